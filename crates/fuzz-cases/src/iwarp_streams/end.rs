//! One end: its stream, its memory, the bytes in flight to it, and what its user knows.

use std::collections::VecDeque;

use delivery::Instant;
use iwarp::{
    EndCause, Event, Gather, Kind, Memory, Part, Payload, Piece, PostError, Status, Stream, Work,
    WorkKind,
};
use wire_iwarp::Stag;

use super::memory::{BASE, OWN, OracleMemory, Owner, READABLE, REGION_BYTES, WRITABLE};
use super::memory::{any_address, any_key};
use super::pipe::Pipe;
use crate::input::Input;

/// An operation that is outstanding, or whose success is not reported.
struct Operation {
    id: u64,
    kind: Kind,
    bytes: u32,
    signaled: bool,
    /// Where the answer to a read begins.
    sink: Option<Piece>,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) stream: Stream,
    pub(super) memory: OracleMemory,
    /// Bytes in flight to this end.
    pub(super) pipe: Pipe,
    pub(super) cause: Option<EndCause>,
    /// The numbers of reads with which this end answers a request.
    depths: (u16, u16),
    is_established: bool,
    operations: VecDeque<Operation>,
    next_operation: u64,
    next_receive: u64,
    /// Capacities of the receives that no Send of the peer has claimed, oldest first.
    unclaimed: VecDeque<u32>,
}

impl End {
    pub(super) fn new(stream: Stream, depths: (u16, u16)) -> Self {
        Self {
            stream,
            memory: OracleMemory::default(),
            pipe: Pipe::default(),
            cause: None,
            depths,
            is_established: false,
            operations: VecDeque::new(),
            next_operation: 0,
            next_receive: 0,
            unclaimed: VecDeque::new(),
        }
    }

    /// Posts an operation. Returns whether an honest peer cannot refuse it.
    pub(super) fn post(&mut self, input: &mut Input<'_>, peer: &mut Self) -> bool {
        let flags = input.u8();
        let (signaled, fence, is_bold) = (flags & 1 == 0, flags & 2 != 0, flags & 0xc0 == 0xc0);
        let pieces: Vec<Piece> = (0..flags >> 2 & 3).map(|_| own_piece(input)).collect();
        let inline = [0x5a; 100];
        let is_inline = flags & 16 != 0;
        let inline = &inline[..input.below(inline.len() + 1)];
        let payload = if is_inline { Payload::Inline(inline) } else { Payload::Pieces(&pieces) };
        let total: u32 = pieces.iter().map(|piece| piece.bytes).sum();
        let bytes = if is_inline { inline.len() as u32 } else { total };
        let target = |key: u32, input: &mut Input<'_>| {
            if is_bold { (Stag(any_key(input)), any_address(input)) } else { (Stag(key), BASE) }
        };
        let kind = match input.u8() % 3 {
            0 => {
                let (stag, offset) = target(WRITABLE, input);
                WorkKind::Write { stag, offset }
            }
            1 => {
                let (stag, offset) = target(READABLE, input);
                WorkKind::Read { stag, offset }
            }
            _ => {
                let invalidate = is_bold.then(|| Stag(any_key(input)));
                WorkKind::Send { solicited: flags & 32 != 0, invalidate }
            }
        };
        let id = self.next_operation;
        let work = Work { id, kind, payload, signaled, fence };
        match self.stream.post_send(&work) {
            Ok(()) => assert!(self.cause.is_none(), "an ended stream accepts work"),
            Err(PostError::NotConnected) => return true,
            Err(error) => {
                assert!(self.cause.is_none(), "an ended stream says {error}");
                return true;
            }
        }
        self.next_operation += 1;
        let kind = kind.kind();
        let sink = pieces.first().copied().filter(|_| kind == Kind::Read);
        self.operations.push_back(Operation { id, kind, bytes, signaled, sink });
        if !is_inline {
            self.memory.own(Owner::Operation(id), &pieces);
        }
        let fits = match kind {
            Kind::Send => peer.unclaimed.pop_front().is_some_and(|capacity| bytes <= capacity),
            _ => bytes <= REGION_BYTES,
        };
        fits && !is_bold
    }

    /// Posts a receive.
    pub(super) fn post_receive(&mut self, input: &mut Input<'_>) {
        let pieces: Vec<Piece> = (0..input.u8() & 3).map(|_| own_piece(input)).collect();
        let id = self.next_receive;
        self.next_receive += 1;
        self.unclaimed.push_back(pieces.iter().map(|piece| piece.bytes).sum());
        self.memory.post_receive(id, pieces);
    }

    /// Writes up to `share` of 255 parts of the next bytes to the peer's pipe. Returns whether there
    /// were bytes to write.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut Gather,
        share: u8,
        pipe: &mut Pipe,
    ) -> bool {
        self.stream.poll_transmit(&mut self.memory, out);
        let mut bytes = Vec::with_capacity(out.total());
        for part in out.parts() {
            match part {
                Part::Bytes(range) => bytes.extend_from_slice(&out.bytes()[range.clone()]),
                Part::Memory { piece, access } => {
                    let start = bytes.len();
                    bytes.resize(start + piece.bytes as usize, 0);
                    let read = self.memory.read(*piece, *access, &mut bytes[start..]);
                    read.expect("the stream has checked the piece");
                }
            }
        }
        assert_eq!(bytes.len(), out.total());
        let written = bytes.len() * usize::from(share) / 255;
        pipe.write(&bytes[..written], out.frame_lengths());
        if !bytes.is_empty() {
            self.stream.handle_written(now, written, out);
        }
        !bytes.is_empty()
    }

    /// Puts an FPDU with any fields among the bytes in flight to this end.
    pub(super) fn forge(&mut self, input: &mut Input<'_>) {
        let sink = self.operations.iter().find_map(|operation| operation.sink);
        self.pipe.forge(input, self.stream.terms().crc, sink);
    }

    /// Delivers up to `count` bytes. If a message waits for a receive that was not posted meanwhile,
    /// gives it up if `count` is odd, and otherwise delivers more bytes behind it.
    pub(super) fn deliver(&mut self, count: usize) {
        self.stream.handle_receives(&mut self.memory);
        if self.stream.waits_for_receive() && count % 2 == 1 {
            self.stream.give_up_waiting(&mut self.memory);
        }
        let bytes = self.pipe.take(count);
        self.stream.handle_received(&bytes, &mut self.memory);
    }

    /// Delivers up to `count` bytes as a driver that reads straight into memory, if the stream says
    /// where they belong.
    pub(super) fn deliver_directly(&mut self, count: usize) {
        let Some(sink) = self.stream.direct_sink() else { return self.deliver(count) };
        let bytes = self.pipe.take(count.min(sink.piece.bytes as usize));
        if bytes.is_empty() {
            return;
        }
        let piece = Piece { bytes: bytes.len() as u32, ..sink.piece };
        if self.memory.place(piece, sink.access, &bytes, false).is_ok() {
            self.stream.handle_placed(bytes.len() as u32);
        } else {
            // The region has ended. The stream meets this itself.
            self.stream.handle_received(&bytes, &mut self.memory);
        }
    }

    /// Lets the stream handle the time.
    pub(super) fn pass_time(&mut self, now: Instant) {
        self.stream.handle_timeout(now);
        assert!(self.stream.next_timeout().is_none_or(|next| next > now), "a timer is in the past");
    }

    /// Takes all events, and checks them.
    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            assert!(self.cause.is_none(), "{event:?} after the end");
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Request { private_data, .. } => {
                let (ird, ord) = self.depths;
                self.stream.accept(&private_data, ird, ord).expect("a request waits");
            }
            Event::Established { .. } => {
                let was_established = std::mem::replace(&mut self.is_established, true);
                assert!(!was_established, "established twice");
            }
            Event::Rejected { .. } => assert!(!self.is_established),
            Event::Completed { id, kind, status, bytes } => {
                self.on_completed(id, kind, status, bytes);
            }
            Event::ReceiveCompleted { id, status, bytes, .. } => {
                let (taken, capacity) = self.memory.taken.pop_front().expect("it was taken");
                assert_eq!(id, taken, "receives end in order, once");
                assert!(bytes <= capacity && (status == Status::Success || bytes == 0));
                self.memory.disown(Owner::Receive(id));
            }
            Event::Ended { cause } => {
                self.cause = Some(cause);
                self.memory.is_ended = true;
                assert!(self.stream.is_idle(), "ended with outstanding operations");
                assert!(self.memory.taken.is_empty(), "ended with a receive");
                assert!(self.operations.iter().all(|operation| !operation.signaled));
            }
        }
    }

    /// Checks that an operation ends in its turn. Only successes that are not signaled are passed
    /// over.
    fn on_completed(&mut self, id: u64, kind: Kind, status: Status, bytes: u32) {
        loop {
            let operation = self.operations.pop_front().expect("it was posted");
            self.memory.disown(Owner::Operation(operation.id));
            if operation.id == id {
                assert_eq!((operation.kind, operation.bytes), (kind, bytes));
                assert!(operation.signaled || status != Status::Success);
                return;
            }
            assert!(!operation.signaled, "operation {} was passed over", operation.id);
        }
    }

    /// Checks a stream whose TCP connection has ended.
    pub(super) fn expect_ended(&mut self, now: Instant, out: &mut Gather) {
        assert!(self.cause.is_some() && self.stream.is_idle());
        assert!(self.stream.may_close() && self.stream.next_timeout().is_none());
        self.stream.handle_received(&[0xc1; 40], &mut self.memory);
        self.stream.handle_timeout(now.after_ns(3_600_000_000_000));
        self.stream.handle_reset();
        self.stream.poll_transmit(&mut self.memory, out);
        assert!(out.is_empty() && self.stream.direct_sink().is_none());
        self.take_events();
    }
}

/// Returns a piece of the region for own operations and receives.
fn own_piece(input: &mut Input<'_>) -> Piece {
    let at = u32::from(input.u8()) * 2;
    let bytes = u32::from(input.u8()) * 2;
    Piece { key: OWN, address: BASE + u64::from(at), bytes }
}
