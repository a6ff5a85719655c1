//! A peer whose every byte a test writes.

use delivery::Instant;
use wire_iwarp::{
    Cause, Crc, EnhancedSetup, Opcode, Parsed, QueueNumber, Revision, SETUP_FRAME_BYTES_MAX,
    Segment, SetupFlags, SetupFrame, SetupKind, Stag, Trailer, decode_segment, decode_setup,
    decode_terminate, encode_length,
};

use super::memory::TestMemory;
use crate::config::Config;
use crate::event::{EndCause, Event};
use crate::gather::{Gather, Part};
use crate::memory::{Memory, Piece};
use crate::stream::Stream;

pub(super) const NOW: Instant = Instant(1_000_000_000);

/// Region that the peer may read and write, at offset 0x1000, of 4096 bytes.
pub(super) const OPEN: Stag = Stag(0x50);
/// Region that the peer may neither read nor write.
pub(super) const SHUT: Stag = Stag(0x60);
/// Region for own payload and receives.
pub(super) const OWN: u32 = 0x70;

/// A stream, its memory, and everything that it has reported.
pub(super) struct Subject {
    pub(super) stream: Stream,
    pub(super) memory: TestMemory,
    pub(super) events: Vec<Event>,
    pub(super) out: Gather,
}

impl Subject {
    pub(super) fn new(stream: Stream) -> Self {
        let mut memory = TestMemory::default();
        memory.add(OPEN.0, 0x1000, 4096, (true, true));
        memory.add(SHUT.0, 0x1000, 4096, (false, false));
        memory.add(OWN, 0x8000, 0x20000, (false, false));
        Self { stream, memory, events: Vec::new(), out: Gather::new() }
    }

    /// Returns a responder that has accepted a request with these flags and words.
    pub(super) fn responder(
        config: Config,
        flags: SetupFlags,
        enhanced: Option<EnhancedSetup>,
    ) -> Self {
        let mut subject = Self::new(Stream::respond(config, NOW));
        subject.give(&request(flags, enhanced));
        subject.stream.accept(&[], 2, 2).expect("a request waits");
        subject.written();
        subject
    }

    /// Returns a responder without peer-to-peer mode, which has been given an empty Write.
    pub(super) fn open(config: Config) -> Self {
        let mut subject = Self::responder(config, enhanced(), Some(depths(4, 4)));
        let write = Segment::tagged(Opcode::Write, true, Stag(1), 0);
        subject.give(&fpdu(&write, &[], config.crc));
        subject
    }

    /// Returns an initiator that has received a reply with these flags and words.
    pub(super) fn initiator(
        config: Config,
        flags: SetupFlags,
        words: Option<EnhancedSetup>,
    ) -> Self {
        let initiated = Stream::initiate(config, &[], NOW).expect("no private data");
        let mut subject = Self::new(initiated);
        subject.written();
        let reply = setup_frame(SetupKind::Reply, Revision::Two, flags, words, &[]);
        subject.give(&reply);
        subject
    }

    pub(super) fn give(&mut self, bytes: &[u8]) {
        self.stream.handle_received(bytes, &mut self.memory);
        self.take_events();
    }

    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            self.events.push(event);
        }
    }

    /// Lets the stream write all that it has to write, and returns it.
    pub(super) fn written(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            self.stream.poll_transmit(&mut self.memory, &mut self.out);
            if self.out.is_empty() {
                self.take_events();
                return all;
            }
            for part in self.out.parts() {
                match part {
                    Part::Bytes(range) => all.extend(&self.out.bytes()[range.clone()]),
                    Part::Memory { piece, access } => {
                        let mut bytes = vec![0; piece.bytes as usize];
                        self.memory.read(*piece, *access, &mut bytes).expect("it was checked");
                        all.extend(bytes);
                    }
                }
            }
            self.stream.handle_written(NOW, self.out.total(), &self.out);
        }
    }

    /// Returns the segments that the stream writes, with their payloads.
    pub(super) fn segments(&mut self) -> Vec<(Segment, Vec<u8>)> {
        segments(&self.written())
    }

    /// Returns the cause of the end.
    pub(super) fn cause(&self) -> Option<EndCause> {
        match self.events.last() {
            Some(Event::Ended { cause }) => Some(*cause),
            _ => None,
        }
    }

    /// Shows that the stream has ended with this cause, placed nothing, and sends a Terminate that
    /// says so.
    #[track_caller]
    pub(super) fn assert_terminated(&mut self, cause: Cause) {
        assert_eq!(self.cause(), Some(EndCause::Peer(cause)));
        assert_eq!(self.memory.violation, None);
        let sent = self.segments();
        let [(segment, payload)] = sent.as_slice() else { panic!("not one segment: {sent:?}") };
        let expected = Segment::untagged(Opcode::Terminate, true, QueueNumber::Terminate, 1, 0);
        assert_eq!(*segment, expected);
        let terminate = decode_terminate(payload, false).expect("our own Terminate");
        assert_eq!(terminate.error, cause.error_code());
        assert!(self.stream.may_close());
    }

    /// Adds a receive of `bytes` bytes.
    pub(super) fn add_receive(&mut self, id: u64, at: u64, bytes: u32) -> Piece {
        let piece = Piece { key: OWN, address: 0x8000 + at, bytes };
        self.memory.receives.push_back((id, vec![piece]));
        piece
    }
}

pub(super) fn enhanced() -> SetupFlags {
    SetupFlags { enhanced: true, ..SetupFlags::default() }
}

pub(super) fn depths(ird: u16, ord: u16) -> EnhancedSetup {
    EnhancedSetup { ird, ord, ..EnhancedSetup::default() }
}

pub(super) fn setup_frame(
    kind: SetupKind,
    revision: Revision,
    flags: SetupFlags,
    enhanced: Option<EnhancedSetup>,
    private_data: &[u8],
) -> Vec<u8> {
    let frame = SetupFrame { kind, revision, flags, enhanced, private_data };
    let mut bytes = [0; SETUP_FRAME_BYTES_MAX];
    let length = frame.encode(&mut bytes).expect("a valid frame");
    bytes[..length].to_vec()
}

pub(super) fn request(flags: SetupFlags, enhanced: Option<EnhancedSetup>) -> Vec<u8> {
    setup_frame(SetupKind::Request, Revision::Two, flags, enhanced, b"hello")
}

/// Decodes the reply at the start of `bytes`.
pub(super) fn reply(bytes: &[u8]) -> SetupFrame<'_> {
    match decode_setup(SetupKind::Reply, bytes) {
        Ok(Parsed::Complete { frame, consumed }) if consumed == bytes.len() => frame,
        other => panic!("no reply: {other:?}"),
    }
}

pub(super) fn fpdu(segment: &Segment, payload: &[u8], has_crc: bool) -> Vec<u8> {
    let mut header = [0; 18];
    let length = segment.encode(&mut header);
    raw_fpdu(&[&header[..length], payload].concat(), has_crc)
}

pub(super) fn raw_fpdu(ulpdu: &[u8], has_crc: bool) -> Vec<u8> {
    let length = ulpdu.len() as u16;
    let mut bytes = encode_length(length).to_vec();
    bytes.extend(ulpdu);
    let mut crc = Crc::new();
    crc.update(&bytes);
    bytes.extend(Trailer::new(length, has_crc.then_some(crc)).as_bytes());
    bytes
}

/// Decodes FPDUs without markers.
pub(super) fn segments(mut bytes: &[u8]) -> Vec<(Segment, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(total) = crate::framing::fpdu_length(bytes) {
        let length = usize::from(crate::framing::ulpdu_length(bytes).expect("a length"));
        let ulpdu = &bytes[2..2 + length];
        let (segment, payload) = decode_segment(ulpdu).expect("our own segment");
        all.push((segment, ulpdu[payload].to_vec()));
        bytes = &bytes[total..];
    }
    all
}

pub(super) fn send(msn: u32, mo: u32, last: bool) -> Segment {
    Segment::untagged(Opcode::Send, last, QueueNumber::Send, msn, mo)
}
