//! The record of an operation of the peer that has partly arrived.

use mem::Payload;
use wire_edge::{AtomicOpcode, CloseReason, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::{Verdict, violation};
use crate::order_pool::HeldList;
use crate::range_set::RangeSet;

/// An operation of the peer that has partly arrived or waits for earlier ones. The bytes received,
/// placed or held, are recorded separately in [`Pools::received`](crate::Pools), so that opening
/// and closing a record moves little memory.
#[derive(Debug)]
pub(crate) struct InOperation {
    pub(super) number: OperationNumber,
    /// Slot of the next later open operation of the connection.
    pub(super) next: u32,
    pub(super) flags: Flags,
    pub(super) kind: InKind,
    /// Length in bytes, once the last fragment has arrived.
    pub(super) total: Option<u32>,
    pub(super) immediate: Option<u32>,
    /// Bytes received and not placed. The last byte of the operation is in the last block.
    pub(super) held: HeldList,
    /// Offset from which on no byte is placed: bytes received beyond it are held. `u32::MAX` if
    /// none are held.
    pub(super) held_from: u32,
    /// Whether bytes were placed before the operation was in turn, and it is not in turn yet.
    pub(super) placed_early: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum InKind {
    Write {
        key: RemoteKey,
        base: u64,
    },
    /// With `ends_key`, the immediate is a key to invalidate.
    Send {
        message: MessageNumber,
        ends_key: bool,
    },
    Read {
        key: RemoteKey,
        address: u64,
        length: u32,
    },
    Atomic {
        opcode: AtomicOpcode,
        key: RemoteKey,
        address: u64,
        operand: u64,
        compare: u64,
    },
}

/// A fragment of a request.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) number: OperationNumber,
    pub(super) flags: Flags,
    pub(super) kind: InKind,
    pub(super) offset: u32,
    pub(super) immediate: Option<u32>,
    pub(super) payload: Payload<'a>,
}

impl InOperation {
    /// Creates the record of an operation of which no byte has arrived yet.
    pub(super) const fn new(number: OperationNumber, flags: Flags, kind: InKind) -> Self {
        Self {
            number,
            next: crate::slab::NIL,
            flags,
            kind,
            total: None,
            immediate: None,
            held: HeldList::EMPTY,
            held_from: u32::MAX,
            placed_early: false,
        }
    }

    //= protocol.md: operation.2
    /// Checks that a fragment that ends at `end` agrees with the earlier fragments of its
    /// operation.
    pub(super) fn check(
        &self,
        received: &RangeSet,
        part: &Part<'_>,
        end: u32,
    ) -> Result<(), Verdict> {
        let ordering = Flags(Flags::FENCE_BEFORE.0 | Flags::STRICT.0);
        let last = part.flags.contains(Flags::LAST);
        let agrees = self.kind == part.kind
            && (self.flags.0 ^ part.flags.0) & ordering.0 == 0
            && match self.total {
                Some(total) if last => end == total,
                Some(total) => end <= total,
                None => !last || received.end() <= end,
            };
        if agrees { Ok(()) } else { Err(violation(CloseReason::ProtocolViolation, self.number)) }
    }

    pub(super) fn is_complete(&self, received: &RangeSet) -> bool {
        self.total.is_some_and(|total| received.contains(0, total))
    }
}
