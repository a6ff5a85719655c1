//! Decodes the streams of a connection to frames, encodes the frames again, and compares the bytes.

use wire_iwarp::{
    BitOrder, CRC_BYTES, Cause, Crc, EnhancedSetup, FpduLayout, LENGTH_BYTES, Opcode, Parsed,
    ReadRequest, Revision, SEGMENT_HEADER_BYTES_MAX, SETUP_FRAME_BYTES_MAX, Segment, SetupError,
    SetupFlags, SetupKind, TERMINATE_BYTES_MAX, Trailer, decode_segment, decode_setup,
    decode_terminate, encode_length,
};

use crate::{pcap, tcp};

/// An iWARP connection of a capture.
pub(crate) struct Conversation {
    pub(crate) initiator: Half,
    pub(crate) responder: Half,
}

/// The frames that one end sent.
pub(crate) struct Half {
    pub(crate) setup: Setup,
    pub(crate) fpdus: Vec<Fpdu>,
    /// Length of the FPDU in which the stream ends, because the capture ends, in bytes.
    pub(crate) unfinished: Option<usize>,
    /// Whether the end sent an RST.
    pub(crate) is_reset: bool,
}

/// A set-up frame.
#[derive(Debug, PartialEq)]
pub(crate) struct Setup {
    pub(crate) revision: Revision,
    pub(crate) flags: SetupFlags,
    pub(crate) enhanced: Option<EnhancedSetup>,
    pub(crate) private_data: Vec<u8>,
}

/// An FPDU.
pub(crate) struct Fpdu {
    pub(crate) segment: Segment,
    pub(crate) payload: Vec<u8>,
    /// Whether all pads are 0. Siw leaves other bytes in the pads of short FPDUs.
    pub(crate) has_zero_pads: bool,
    /// Whether the CRC field is right. 0 is right if CRCs are off.
    pub(crate) has_right_crc: bool,
    /// The error, if this is a Terminate, and its bit order.
    pub(crate) terminate: Option<(Cause, BitOrder)>,
}

impl Half {
    /// Returns the opcodes in the order of the FPDUs.
    pub(crate) fn opcodes(&self) -> Vec<Opcode> {
        self.fpdus.iter().map(|fpdu| fpdu.segment.opcode).collect()
    }

    /// Returns the Terminates.
    pub(crate) fn terminates(&self) -> Vec<(Cause, BitOrder)> {
        self.fpdus.iter().filter_map(|fpdu| fpdu.terminate).collect()
    }

    /// Returns the payload lengths of the FPDUs with this opcode, in bytes.
    pub(crate) fn lengths(&self, opcode: Opcode) -> Vec<usize> {
        let fpdus = self.fpdus.iter().filter(|fpdu| fpdu.segment.opcode == opcode);
        fpdus.map(|fpdu| fpdu.payload.len()).collect()
    }
}

/// Returns the iWARP connections of a capture. Tools open other TCP connections too.
pub(crate) fn conversations(name: &str) -> Vec<Conversation> {
    let connections = tcp::connections(&pcap::frames(name));
    connections.iter().filter_map(|connection| conversation(name, connection)).collect()
}

fn conversation(name: &str, connection: &tcp::Connection) -> Option<Conversation> {
    let request = connection.initiator.stream();
    let reply = connection.responder.stream();
    if let Err(SetupError::Key { .. }) = decode_setup(SetupKind::Request, &request) {
        return None;
    }
    let (initiator_setup, request_bytes) = setup(name, SetupKind::Request, &request);
    let (responder_setup, reply_bytes) = setup(name, SetupKind::Reply, &reply);
    // Every peer in these captures turns CRCs on if the reply says so.
    let crc = responder_setup.flags.crc;
    let half = |setup, stream: &[u8], is_reset| {
        let (fpdus, unfinished) = fpdus(name, crc, stream);
        Half { setup, fpdus, unfinished, is_reset }
    };
    Some(Conversation {
        initiator: half(initiator_setup, &request[request_bytes..], connection.initiator.is_reset),
        responder: half(responder_setup, &reply[reply_bytes..], connection.responder.is_reset),
    })
}

/// Decodes the set-up frame at the start of a stream, and returns its length.
fn setup(name: &str, kind: SetupKind, stream: &[u8]) -> (Setup, usize) {
    let parsed = decode_setup(kind, stream).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Parsed::Complete { frame, consumed } = parsed else { panic!("{name}: no whole {kind}") };
    let mut again = [0; SETUP_FRAME_BYTES_MAX];
    let length = frame.encode(&mut again).expect("a decoded frame");
    assert_eq!(again[..length], stream[..consumed], "{name}: {kind}");
    let setup = Setup {
        revision: frame.revision,
        flags: frame.flags,
        enhanced: frame.enhanced,
        private_data: frame.private_data.to_vec(),
    };
    (setup, consumed)
}

/// Decodes the whole FPDUs of a stream, and returns the length of the FPDU that is not whole.
fn fpdus(name: &str, crc: bool, mut stream: &[u8]) -> (Vec<Fpdu>, Option<usize>) {
    let mut fpdus = Vec::new();
    while let Some(length) = stream.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)) {
        let total = FpduLayout::of(length).total;
        let Some((bytes, rest)) = stream.split_at_checked(total) else {
            return (fpdus, Some(total));
        };
        fpdus.push(fpdu(&format!("{name}: FPDU {}", fpdus.len()), crc, length, bytes));
        stream = rest;
    }
    assert!(stream.is_empty(), "{name}: the stream ends inside of a length field");
    (fpdus, None)
}

fn fpdu(place: &str, has_crc: bool, length: u16, bytes: &[u8]) -> Fpdu {
    let (covered, field) = bytes.split_at(bytes.len() - CRC_BYTES);
    let (unpadded, pads) = covered.split_at(LENGTH_BYTES + usize::from(length));
    let ulpdu = &unpadded[LENGTH_BYTES..];
    let (segment, range) = decode_segment(ulpdu).unwrap_or_else(|error| panic!("{place}: {error}"));
    let payload = &ulpdu[range];
    let (payload_again, terminate) = payload_again(place, segment.opcode, payload);

    let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
    let header_bytes = segment.encode(&mut header);
    let mut again = encode_length(length).to_vec();
    again.extend(&header[..header_bytes]);
    again.extend(&payload_again);
    assert_eq!(again, unpadded, "{place}");

    let mut crc = Crc::new();
    crc.update(covered);
    let field: [u8; CRC_BYTES] = field.try_into().expect("four bytes");
    let has_right_crc = if has_crc { crc.check(field).is_ok() } else { field == [0; CRC_BYTES] };
    let has_zero_pads = pads.iter().all(|pad| *pad == 0);
    if has_zero_pads && has_right_crc {
        let mut crc = Crc::new();
        crc.update(&again);
        let trailer = Trailer::new(length, has_crc.then_some(crc));
        assert_eq!(trailer.as_bytes(), &bytes[again.len()..], "{place}: trailer");
    }
    Fpdu { segment, payload: payload.to_vec(), has_zero_pads, has_right_crc, terminate }
}

/// Decodes and encodes a payload that has fields of RDMAP. Returns other payloads as they are.
fn payload_again(
    place: &str,
    opcode: Opcode,
    payload: &[u8],
) -> (Vec<u8>, Option<(Cause, BitOrder)>) {
    match opcode {
        Opcode::ReadRequest => {
            let request = ReadRequest::decode(payload);
            let request = request.unwrap_or_else(|error| panic!("{place}: {error}"));
            (request.encode().to_vec(), None)
        }
        Opcode::Terminate => {
            // All these peers are siw.
            let terminate = decode_terminate(payload, true);
            let terminate = terminate.unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(terminate.trailing.is_empty(), "{place}: bytes behind the last part");
            let mut again = [0; TERMINATE_BYTES_MAX];
            let length = terminate.encode(&mut again).expect("a decoded message");
            let cause = terminate.error.cause().expect("a code of an RFC");
            (again[..length].to_vec(), Some((cause, terminate.order)))
        }
        _ => (payload.to_vec(), None),
    }
}
