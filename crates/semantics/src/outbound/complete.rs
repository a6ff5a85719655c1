//! Completes operations of this side, in the order of posting.

use mem::RegionId;
use wire_edge::AtomicOpcode;

use super::{Bytes, OutKind, OutOperation, Outbound};
use crate::limits::OPERATION_SHARE;
use crate::pools::Pools;
use crate::slab::NIL;
use work::{Completion, CompletionKind, OperationError};

impl Outbound {
    //= protocol.md: complete.1
    /// Completes operations in the order of posting, starting with the oldest.
    pub(super) fn complete_ready(&mut self, pools: &mut Pools) {
        if self.is_faulty {
            return;
        }
        while let Some(operation) = pools.operations.get(self.head) {
            let result = match self.is_done(operation) {
                true => Ok(()),
                false if self.queue_pair => match self.local_result(operation) {
                    Some(result) => result,
                    None => break,
                },
                false => break,
            };
            let slot = self.head;
            self.head = operation.next;
            if self.head == NIL {
                self.tail = NIL;
            }
            if self.cursor == slot {
                self.cursor = self.head;
            }
            self.finish(pools, slot, result);
            if result.is_err() {
                self.is_faulty = true;
                self.blocked = true;
                break;
            }
        }
    }

    /// Returns whether the operation is done: the peer has delivered and answered it, and it has
    /// not failed on this side.
    #[inline]
    pub(super) fn is_done(&self, operation: &OutOperation) -> bool {
        operation.number.since(self.delivered) < 0
            && operation.is_answered()
            && self.fault.is_none_or(|(fault, _)| fault != operation.number)
    }

    /// Frees an operation that was removed from the list and reports its completion.
    pub(super) fn finish(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        result: Result<(), OperationError>,
    ) {
        if self.outstanding > OPERATION_SHARE {
            pools.beyond.remove(self.is_spared);
        }
        self.outstanding -= 1;
        pools.note_room(self.owner);
        let operation = &pools.operations[slot];
        self.at_risk_bytes -= operation.at_risk;
        if self.last_fence == Some(operation.number) {
            self.last_fence = None;
        }
        let (is_question, value) = match operation.kind {
            OutKind::Read { ranges, list, .. } => {
                if ranges != NIL {
                    pools.reads.remove(ranges);
                }
                if list != NIL {
                    pools.lists.remove(list);
                }
                (true, 0)
            }
            OutKind::Atomic { value, .. } => (true, value.unwrap_or(0)),
            OutKind::Write { source: Bytes::Pieces(list), .. }
            | OutKind::Send { source: Bytes::Pieces(list), .. } => {
                pools.lists.remove(list);
                (false, 0)
            }
            OutKind::Write { .. }
            | OutKind::Patch { .. }
            | OutKind::Send { .. }
            | OutKind::Local { .. } => (false, 0),
        };
        if is_question && operation.all_sent {
            self.asked -= 1;
            pools.reads_index.remove(self.owner.index(), operation.number);
        }
        if let Some(status) = operation.status {
            pools.status.progress(status, operation.length);
            pools.notices.count += 1;
            pools.status.finish(status, result.map(|()| value));
        }
        let has_place = operation.has_place();
        if result.is_ok() && !operation.signalled {
            if has_place {
                self.outlet.withdraw();
            }
            pools.operations.free(slot);
            return;
        }
        let completion = Completion {
            context: operation.context,
            owner: self.owner,
            kind: operation.completion_kind(),
            result,
            bytes: operation.length,
            immediate: None,
            solicited: false,
            value,
        };
        pools.operations.free(slot);
        if has_place {
            self.outlet.complete(&mut pools.notices, &completion);
        } else {
            // The operation reserved no room. If the queue has no room, only the operation's handle
            // reports the error.
            self.outlet.offer(&mut pools.notices, &completion);
        }
    }
}

impl OutOperation {
    /// Returns whether the operation has reserved room in the completion queue. The result is false
    /// if the operation is unsignalled and has a handle, because the handle then reports the
    /// result.
    const fn has_place(&self) -> bool {
        self.signalled || self.status.is_none()
    }

    /// Returns true if the answer has arrived, or if the operation needs no answer.
    pub(super) const fn is_answered(&self) -> bool {
        match self.kind {
            OutKind::Write { .. } | OutKind::Patch { .. } | OutKind::Send { .. } => true,
            OutKind::Read { arrived, .. } => arrived,
            OutKind::Atomic { value, .. } => value.is_some(),
            OutKind::Local { .. } => false,
        }
    }

    /// Returns the region of the operation's bytes, if they are all in one region.
    pub(crate) const fn region(&self) -> Option<RegionId> {
        match self.kind {
            OutKind::Write { source: Bytes::Region { region, .. }, .. }
            | OutKind::Patch { source: Bytes::Region { region, .. } }
            | OutKind::Send { source: Bytes::Region { region, .. }, .. } => Some(region),
            OutKind::Read { sink, list: NIL, .. } => Some(sink),
            OutKind::Atomic { sink: Some(sink), .. } => Some(sink.region),
            // The caller visits lists separately.
            OutKind::Write { .. }
            | OutKind::Patch { .. }
            | OutKind::Send { .. }
            | OutKind::Read { .. }
            | OutKind::Atomic { .. }
            | OutKind::Local { .. } => None,
        }
    }

    const fn completion_kind(&self) -> CompletionKind {
        match self.kind {
            OutKind::Write { .. } => CompletionKind::Write,
            OutKind::Patch { .. } => CompletionKind::Patch,
            OutKind::Send { .. } => CompletionKind::Send,
            OutKind::Read { .. } => CompletionKind::Read,
            OutKind::Atomic { opcode: AtomicOpcode::FetchAdd, .. } => CompletionKind::FetchAdd,
            OutKind::Atomic { opcode: AtomicOpcode::CompareSwap, .. } => {
                CompletionKind::CompareSwap
            }
            OutKind::Atomic { opcode: AtomicOpcode::Swap, .. } => CompletionKind::Swap,
            OutKind::Local { completes_as, .. } => completes_as,
        }
    }
}
