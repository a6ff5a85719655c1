//! The record of an operation that the peer sends. Some bytes of the operation have arrived.

use mem::Payload;
use wire_edge::{AtomicOpcode, CloseReason, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::{Verdict, violation};
use crate::order_pool::HeldList;
use crate::range_set::RangeSet;

/// An operation of the peer of which some bytes have arrived, or that waits for earlier operations.
///
/// The ranges of its received bytes are in [`Pools::received`](crate::Pools). They are not in this
/// record, so that little memory moves when a record is opened or closed.
#[derive(Debug)]
pub(crate) struct InOperation {
    pub(super) number: OperationNumber,
    /// Slot of the next open operation of the connection, in ascending order of operation numbers.
    pub(super) next: u32,
    pub(super) flags: Flags,
    pub(super) kind: InKind,
    /// Length in bytes; known when the last fragment has arrived.
    pub(super) total: Option<u32>,
    pub(super) immediate: Option<u32>,
    /// Bytes that were received but not placed. If the last byte of the operation is among them, it
    /// is in the last block.
    pub(super) held: HeldList,
    /// Offset of the held tail. Received bytes at or after this offset are held and not placed.
    /// `u32::MAX` if no tail is held.
    pub(super) held_from: u32,
    /// Whether some bytes of the operation were placed although an earlier operation is not
    /// delivered.
    pub(super) placed_early: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum InKind {
    Write {
        key: RemoteKey,
        base: u64,
    },
    Patch {
        key: RemoteKey,
        /// Address of the area, the same in every fragment.
        address: u64,
    },
    /// With `ends_key`, the immediate holds the key to invalidate.
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

/// The content of a fragment of a request.
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
    /// Creates the record of an operation of which no byte has arrived.
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
    /// Checks that a fragment that ends at byte `end` of the operation is consistent with earlier
    /// fragments of the operation.
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
