//! Decodes arbitrary bytes as the stream of an iWARP connection: a set-up frame, then FPDUs with or
//! without markers. Decoding must not panic. Encoding an accepted frame must give the same bytes, and
//! the cut of the stream must not matter.

use wire_iwarp::{
    FpduLayout, LENGTH_BYTES, MarkerStripper, Opcode, Parsed, ReadRequest, Run,
    SEGMENT_HEADER_BYTES_MAX, SETUP_FRAME_BYTES_MAX, SetupKind, decode_segment,
    decode_segment_start, decode_setup, decode_terminate,
};

/// Bits of the first byte of an input; the stream follows.
const MARKERS: u8 = 0x01;
const REPLY: u8 = 0x02;

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let Some((options, stream)) = bytes.split_first() else { return };
    let kind = if options & REPLY == 0 { SetupKind::Request } else { SetupKind::Reply };
    let stream = stream.get(setup(kind, stream)..).unwrap_or_default();
    if options & MARKERS == 0 {
        fpdus(stream);
        return;
    }
    let whole = stripped(stream, stream.len().max(1));
    for piece_bytes in [1, 3, 509] {
        assert_eq!(stripped(stream, piece_bytes), whole);
    }
    fpdus(&whole);
}

/// Decodes a set-up frame, and returns its length. Returns 0 if there is none.
fn setup(kind: SetupKind, stream: &[u8]) -> usize {
    match decode_setup(kind, stream) {
        Ok(Parsed::Complete { frame, consumed }) => {
            let mut out = [0; SETUP_FRAME_BYTES_MAX];
            let length = frame.encode(&mut out).expect("a decoded frame is valid");
            assert_eq!(&out[..length], &stream[..consumed]);
            consumed
        }
        Ok(Parsed::Incomplete { needed }) => {
            assert!(needed > stream.len());
            0
        }
        Err(error) => {
            // A fault of the first bytes is one of all bytes.
            let first = stream.len().min(20);
            assert!(decode_setup(kind, &stream[..first]) == Err(error));
            0
        }
    }
}

/// Returns the stream without its markers, up to the first wrong one, if it arrives in pieces of
/// this length.
fn stripped(stream: &[u8], piece_bytes: usize) -> Vec<u8> {
    let mut stripper = MarkerStripper::new();
    let mut out = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        while !piece.is_empty() {
            let length = match stripper.next_run(piece) {
                Ok(Run::Marker(length)) => length,
                Ok(Run::Bytes(length)) => {
                    out.extend(&piece[..length]);
                    length
                }
                Err(_) => return out,
            };
            assert!(length > 0);
            piece = &piece[length..];
        }
    }
    out
}

/// Decodes all FPDUs, up to the first that is wrong or not whole.
fn fpdus(mut stream: &[u8]) {
    while let Some((length, _)) = stream.split_first_chunk::<LENGTH_BYTES>() {
        let length = u16::from_be_bytes(*length);
        let start = &stream[LENGTH_BYTES..];
        let start = &start[..start.len().min(length.into())];
        let early = decode_segment_start(length.into(), start);
        let Some((fpdu, rest)) = stream.split_at_checked(FpduLayout::of(length).total) else {
            return;
        };
        let ulpdu = &fpdu[LENGTH_BYTES..LENGTH_BYTES + usize::from(length)];
        assert_eq!(early, decode_segment_start(ulpdu.len(), ulpdu));
        if !segment(ulpdu) {
            return;
        }
        stream = rest;
    }
}

/// Decodes a ULPDU. Returns whether it was accepted.
fn segment(ulpdu: &[u8]) -> bool {
    let Ok((segment, range)) = decode_segment(ulpdu) else { return false };
    let mut out = [0; SEGMENT_HEADER_BYTES_MAX];
    let length = segment.encode(&mut out);
    assert_eq!(&out[..length], &ulpdu[..range.start]);
    let payload = &ulpdu[range];
    match segment.opcode {
        Opcode::ReadRequest => {
            if let Ok(request) = ReadRequest::decode(payload) {
                assert_eq!(request.encode(), payload);
            }
        }
        Opcode::Terminate => terminate(payload),
        _ => {}
    }
    true
}

fn terminate(payload: &[u8]) {
    for prefer_swapped in [false, true] {
        if let Ok(terminate) = decode_terminate(payload, prefer_swapped) {
            let mut out = vec![0; payload.len()];
            assert_eq!(terminate.encode(&mut out), Ok(payload.len()));
            assert_eq!(out, payload);
        }
    }
}
