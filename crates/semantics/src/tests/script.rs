//! Frames that the peer of a queue pair sends. They are the frames of an honest requester, in any
//! order.

use wire_edge::{Flags, Header, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{Random, Side};
use crate::inbound::Verdict;

#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) flags: Flags,
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    pub(super) fn operation(&self) -> u32 {
        match self.header {
            Header::Write { operation, .. }
            | Header::Send { operation, .. }
            | Header::SendInvalidate { operation, .. }
            | Header::ReadRequest { operation, .. }
            | Header::Atomic { operation, .. } => operation.0,
            _ => panic!("no request: {self:?}"),
        }
    }

    pub(super) fn arrive_at(&self, side: &mut Side) -> Verdict {
        side.handle(self.flags, &self.header, &self.payload)
    }
}

/// Gives operations and messages their numbers, like a requester.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) operation: u32,
    pub(super) message: u32,
    /// Flags that every frame has.
    pub(super) flags: Flags,
    /// Number of payload bytes in a frame.
    pub(super) frame_bytes: usize,
}

impl Script {
    pub(super) const fn new(flags: Flags, frame_bytes: usize) -> Self {
        Self { operation: 0, message: 0, flags, frame_bytes }
    }

    pub(super) fn write(
        &mut self,
        (key, address): (RemoteKey, u64),
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Vec<Frame> {
        self.message += u32::from(immediate.is_some());
        self.cut(bytes, |operation, offset, is_last| {
            let address = address + u64::from(offset);
            let immediate = immediate.filter(|_| is_last);
            Header::Write { operation, offset, key, address, immediate }
        })
    }

    pub(super) fn send(&mut self, bytes: &[u8], immediate: Option<u32>) -> Vec<Frame> {
        let message = MessageNumber(self.message);
        self.message += 1;
        self.cut(bytes, |operation, offset, is_last| {
            let immediate = immediate.filter(|_| is_last);
            Header::Send { operation, offset, message, immediate }
        })
    }

    pub(super) fn send_invalidate(&mut self, bytes: &[u8], key: RemoteKey) -> Vec<Frame> {
        let message = MessageNumber(self.message);
        self.message += 1;
        self.cut(bytes, |operation, offset, is_last| {
            let key = is_last.then_some(key);
            Header::SendInvalidate { operation, offset, message, key }
        })
    }

    fn cut(
        &mut self,
        bytes: &[u8],
        header: impl Fn(OperationNumber, u32, bool) -> Header,
    ) -> Vec<Frame> {
        let operation = OperationNumber(self.operation);
        self.operation += 1;
        let count = bytes.len().div_ceil(self.frame_bytes).max(1);
        let cut = |index: usize| {
            let start = index * self.frame_bytes;
            let end = bytes.len().min(start + self.frame_bytes);
            let is_last = index + 1 == count;
            let flags = if is_last { self.flags.with(Flags::LAST) } else { self.flags };
            let header = header(operation, start as u32, is_last);
            Frame { flags, header, payload: bytes[start..end].to_vec() }
        };
        (0..count).map(cut).collect()
    }
}

/// Delivers frames to `side` in random order until all operations are delivered. Some frames arrive
/// repeatedly.
pub(super) fn deliver_all(side: &mut Side, random: &mut Random, frames: &[Frame]) {
    let end = frames.iter().map(Frame::operation).max().map_or(0, |last| last + 1);
    let mut steps = 0;
    while side.inbound.delivered() != OperationNumber(end) {
        let frame = &frames[random.below(frames.len())];
        let verdict = frame.arrive_at(side);
        assert!(!matches!(verdict, Verdict::Violation { .. }), "{frame:?}: {verdict:?}");
        steps += 1;
        assert!(steps < 100_000, "no end at {:?}", side.inbound.delivered());
    }
}
