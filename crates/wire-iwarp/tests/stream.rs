//! Any cut of a stream gives the same frames, with and without markers and CRCs.

use proptest::collection::vec;
use proptest::prelude::*;
use wire_iwarp::{
    Crc, FpduLayout, LENGTH_BYTES, MarkerPosition, MarkerStripper, Opcode, Parsed, Part,
    QueueNumber, Revision, Run, SEGMENT_HEADER_BYTES_MAX, SETUP_FRAME_BYTES_MAX, Segment,
    SegmentStart, SetupFlags, SetupFrame, SetupKind, Stag, Trailer, decode_segment_start,
    decode_setup, encode_length,
};

/// A segment with its payload.
type Message = (Segment, Vec<u8>);

/// Which options of MPA a stream has.
#[derive(Clone, Copy, Debug)]
struct Options {
    markers: bool,
    crc: bool,
}

proptest! {
    #[test]
    fn any_cut_of_a_stream_gives_the_same_frames(
        private_data in vec(any::<u8>(), 0..100),
        messages in vec(message(), 0..10),
        options in options(),
        piece_bytes in vec(1..700_usize, 1..6),
    ) {
        let stream = sent(&private_data, &messages, options);
        let mut receiver = Receiver::new(options);
        for piece in pieces(&stream, &piece_bytes) {
            receiver.receive(piece);
        }
        prop_assert_eq!(&receiver.private_data, &Some(private_data));
        prop_assert_eq!(&receiver.messages, &messages);
    }

    #[test]
    fn one_wrong_bit_of_an_fpdu_is_found_by_its_crc(
        payload in vec(any::<u8>(), 0..1_500),
        markers: bool,
        place: prop::sample::Index,
        bit in 0..8_u32,
    ) {
        let options = Options { markers, crc: true };
        let message = (Segment::tagged(Opcode::Write, true, Stag(1), 0), payload);
        let setup_bytes = sent(&[], &[], options).len();
        let mut stream = sent(&[], &[message], options);
        // A wrong length field lets the receiver wait, so the damage is behind it.
        let first = setup_bytes + LENGTH_BYTES + if markers { 4 } else { 0 };
        let at = first + place.index(stream.len() - first);
        stream[at] ^= 1 << bit;
        let mut receiver = Receiver::new(options);
        receiver.receive(&stream);
        prop_assert!(receiver.is_lost && receiver.messages.is_empty());
    }
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 2]>().prop_map(|[markers, crc]| Options { markers, crc })
}

prop_compose! {
    fn message()(
        opcode in prop::sample::select(Opcode::ALL.to_vec()),
        last: bool,
        number: u32,
        payload in vec(any::<u8>(), 0..1_500),
    ) -> Message {
        let segment = match opcode.queue() {
            None => Segment::tagged(opcode, last, Stag(number), u64::from(number) << 9),
            Some(queue) => Segment::untagged(opcode, last, queue, number, !number),
        };
        (segment, payload)
    }
}

/// Returns the stream that a sender makes of these messages, one FPDU each.
fn sent(private_data: &[u8], messages: &[Message], options: Options) -> Vec<u8> {
    let mut out = [0; SETUP_FRAME_BYTES_MAX];
    let flags = SetupFlags { crc: options.crc, ..SetupFlags::default() };
    let (kind, revision) = (SetupKind::Request, Revision::One);
    let setup = SetupFrame { kind, revision, flags, enhanced: None, private_data };
    let length = setup.encode(&mut out).expect("a valid frame");
    let mut stream = out[..length].to_vec();
    let mut position = MarkerPosition::new();
    for (segment, payload) in messages {
        let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
        let header_bytes = segment.encode(&mut header);
        let ulpdu = [&header[..header_bytes], payload].concat();
        let length = ulpdu.len() as u16;
        let layout = FpduLayout::of(length);
        let mut fpdu = [&encode_length(length), &ulpdu[..]].concat();
        fpdu.extend(Trailer::new(length, None).as_bytes());
        let parts = if options.markers {
            position.take_fpdu(layout).collect()
        } else {
            vec![Part::Bytes(0..fpdu.len())]
        };
        let mut marked = Vec::new();
        for part in parts {
            match part {
                Part::Marker(marker) => marked.extend(marker),
                Part::Bytes(range) => marked.extend(&fpdu[range]),
            }
        }
        if options.crc {
            // No marker is behind the CRC field.
            let (covered, field) = marked.split_last_chunk_mut().expect("a CRC field");
            let mut crc = Crc::new();
            crc.update(covered);
            *field = crc.encode();
        }
        stream.extend(marked);
    }
    stream
}

/// Cuts a stream into pieces of these lengths, again and again.
fn pieces<'a>(mut stream: &'a [u8], piece_bytes: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for length in piece_bytes.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (piece, rest) = stream.split_at((*length).min(stream.len()));
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

/// A receiver that keeps what has arrived until a frame is whole.
struct Receiver {
    options: Options,
    private_data: Option<Vec<u8>>,
    stripper: MarkerStripper,
    setup: Vec<u8>,
    /// The FPDU so far, without markers, and with its markers.
    fpdu: Vec<u8>,
    covered: Vec<u8>,
    messages: Vec<Message>,
    is_lost: bool,
}

impl Receiver {
    fn new(options: Options) -> Self {
        Self {
            options,
            private_data: None,
            stripper: MarkerStripper::new(),
            setup: Vec::new(),
            fpdu: Vec::new(),
            covered: Vec::new(),
            messages: Vec::new(),
            is_lost: false,
        }
    }

    fn receive(&mut self, mut piece: &[u8]) {
        while self.private_data.is_none() {
            match decode_setup(SetupKind::Request, &self.setup).expect("a set-up frame") {
                Parsed::Complete { frame, consumed } => {
                    assert_eq!(
                        consumed,
                        self.setup.len(),
                        "the receiver takes no more than it needs"
                    );
                    self.private_data = Some(frame.private_data.to_vec());
                }
                Parsed::Incomplete { needed } => {
                    let length = piece.len().min(needed - self.setup.len());
                    if length == 0 {
                        return;
                    }
                    self.setup.extend(&piece[..length]);
                    piece = &piece[length..];
                }
            }
        }
        while !piece.is_empty() && !self.is_lost {
            let run = if self.options.markers {
                self.stripper.next_run(piece)
            } else {
                Ok(Run::Bytes(piece.len()))
            };
            let Ok(run) = run else {
                self.is_lost = true;
                return;
            };
            let length = match run {
                Run::Marker(length) => {
                    self.covered.extend(&piece[..length]);
                    length
                }
                Run::Bytes(length) => {
                    piece[..length].iter().for_each(|byte| self.receive_byte(*byte));
                    length
                }
            };
            piece = &piece[length..];
        }
    }

    fn receive_byte(&mut self, byte: u8) {
        self.fpdu.push(byte);
        self.covered.push(byte);
        let Some(length) = self.fpdu.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)) else {
            return;
        };
        if self.is_lost || self.fpdu.len() < FpduLayout::of(length).total {
            return;
        }
        let (covered, field) = self.covered.split_last_chunk().expect("a CRC field");
        let mut crc = Crc::new();
        crc.update(covered);
        if self.options.crc && crc.check(*field).is_err() {
            self.is_lost = true;
            return;
        }
        let ulpdu = &self.fpdu[LENGTH_BYTES..LENGTH_BYTES + usize::from(length)];
        let start = &ulpdu[..ulpdu.len().min(SEGMENT_HEADER_BYTES_MAX)];
        let decoded = decode_segment_start(ulpdu.len(), start).expect("a valid segment");
        let SegmentStart::Complete { segment, header_bytes } = decoded else {
            panic!("the headers are whole");
        };
        self.messages.push((segment, ulpdu[header_bytes..].to_vec()));
        self.fpdu.clear();
        self.covered.clear();
    }
}

#[test]
fn markers_are_those_of_a_sender_that_counts_bytes() {
    let queue = QueueNumber::Send;
    let lengths = [0, 490, 474, 2_000, 1, 64_000, 482, 483];
    let messages: Vec<Message> = lengths
        .iter()
        .zip(1..)
        .map(|(length, msn)| {
            let segment = Segment::untagged(Opcode::Send, true, queue, msn, 0);
            (segment, vec![0x5a; *length])
        })
        .collect();
    let plain = sent(&[], &messages, Options { markers: false, crc: false });
    let marked = sent(&[], &messages, Options { markers: true, crc: false });
    let (setup, mut rest) = plain.split_at(20);
    let mut expected = Vec::new();
    for length in lengths {
        let (fpdu, behind) = rest.split_at(FpduLayout::of(18 + length as u16).total);
        let mut start = None;
        for byte in fpdu {
            if expected.len() % 512 == 0 {
                let pointer = start.map_or(0, |start| expected.len() - start) as u16;
                expected.extend([0, 0]);
                expected.extend(pointer.to_be_bytes());
            }
            start.get_or_insert(expected.len());
            expected.push(*byte);
        }
        rest = behind;
    }
    assert_eq!(marked[..20], *setup);
    assert_eq!(marked[20..], expected);
}
