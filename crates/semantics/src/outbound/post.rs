//! Posting operations: checks them and creates their records.

use wire_edge::{AtomicOpcode, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::{Bytes, LocalWork, OutKind, OutOperation, Outbound};
use crate::slab::NIL;
use work::{CompletionKind, Operation, Order, PostError, Request, Source};

impl Outbound {
    //= protocol.md: length.5
    /// Checks that the peer supports the request.
    pub(super) fn check(&self, operation: &Operation) -> Result<(), PostError> {
        match operation.request {
            Request::Write { .. } | Request::Send { .. } => Ok(()),
            Request::SendInvalidate { .. }
            | Request::BindWindow { .. }
            | Request::Invalidate { .. } => self.check_queue_pair(),
            Request::Patch { .. } => self.check_patches(),
            Request::Swap { .. } => {
                self.check_patches()?;
                self.check_read_depth()
            }
            _ => self.check_read_depth(),
        }
    }

    pub(super) const fn check_queue_pair(&self) -> Result<(), PostError> {
        if self.queue_pair { Ok(()) } else { Err(PostError::QueuePairOnly) }
    }

    //= protocol.md: patch.8
    /// Returns whether both ends offer patches and swaps.
    pub const fn has_patches(&self) -> bool {
        self.peer.patches && !self.queue_pair
    }

    const fn check_patches(&self) -> Result<(), PostError> {
        if self.has_patches() { Ok(()) } else { Err(PostError::PatchesRefused) }
    }

    //= protocol.md: answer.13
    const fn check_read_depth(&self) -> Result<(), PostError> {
        if self.peer.read_depth == 0 { Err(PostError::ReadsRefused) } else { Ok(()) }
    }

    //= protocol.md: message.1, queue-pair.1
    /// Returns the number of the message that the operation sends, and consumes the peer's next
    /// receive. The caller calls this only for operations that consume a receive.
    const fn take_message(&mut self) -> MessageNumber {
        let message = self.next_message;
        self.next_message = message.next();
        message
    }

    pub(super) fn record(
        &mut self,
        operation: &Operation,
        number: OperationNumber,
        list: u32,
    ) -> OutOperation {
        let what = match operation.request {
            Request::Write { source, key, address } => {
                let takes_receive = self.queue_pair && operation.immediate.is_some();
                let message = if takes_receive { self.take_message() } else { self.next_message };
                let source = bytes_of(source, list);
                (OutKind::Write { source, message, takes_receive }, key, address)
            }
            Request::Patch { source, key, address } => {
                (OutKind::Patch { source: bytes_of(source, NIL) }, key, address)
            }
            Request::Send { source } => {
                let message = self.take_message();
                let source = bytes_of(source, list);
                (OutKind::Send { source, message, invalidates: false }, RemoteKey(0), 0)
            }
            Request::SendInvalidate { source, key } => {
                let message = self.take_message();
                let source = bytes_of(source, list);
                (OutKind::Send { source, message, invalidates: true }, key, 0)
            }
            Request::Read { sink, sink_offset, key, address } => (
                OutKind::Read { sink, sink_offset, list, prefix: 0, ranges: NIL, arrived: false },
                key,
                address,
            ),
            Request::FetchAdd { key, address, operand, sink } => {
                let opcode = AtomicOpcode::FetchAdd;
                (OutKind::Atomic { opcode, operand, compare: 0, sink, value: None }, key, address)
            }
            Request::CompareSwap { key, address, compare, swap, sink } => {
                let opcode = AtomicOpcode::CompareSwap;
                (
                    OutKind::Atomic { opcode, operand: swap, compare, sink, value: None },
                    key,
                    address,
                )
            }
            Request::Swap { key, address, value, sink } => {
                let (opcode, operand) = (AtomicOpcode::Swap, value);
                (OutKind::Atomic { opcode, operand, compare: 0, sink, value: None }, key, address)
            }
            Request::BindWindow { replaced, key, window } => {
                let work = LocalWork::Bind { replaced, key, window };
                (OutKind::Local { work, completes_as: CompletionKind::BindWindow }, RemoteKey(0), 0)
            }
            Request::Invalidate { domain, key } => {
                let work = LocalWork::Invalidate { domain, key };
                (OutKind::Local { work, completes_as: CompletionKind::Invalidate }, RemoteKey(0), 0)
            }
        };
        self.record_of(operation, what, number)
    }

    /// Returns the record for `kind`, `key` and `address`. All other fields come from `operation`.
    #[inline]
    pub(super) fn record_of(
        &self,
        operation: &Operation,
        (kind, key, address): (OutKind, RemoteKey, u64),
        number: OperationNumber,
    ) -> OutOperation {
        let mut flags = Flags::default();
        let wanted = &operation.flags;
        for (set, flag) in [
            (wanted.fence_before, Flags::FENCE_BEFORE),
            (wanted.fence_after, Flags::FENCE_AFTER),
            (wanted.order == Order::Strict, Flags::STRICT),
            (wanted.notify, Flags::SOLICITED),
        ] {
            if set {
                flags = flags.with(flag);
            }
        }
        let length = match kind {
            OutKind::Atomic { .. } => 8,
            OutKind::Local { .. } => 0,
            _ => operation.length,
        };
        let invalidates = matches!(kind, OutKind::Send { invalidates: true, .. });
        OutOperation {
            connection: self.owner.index(),
            number,
            next: NIL,
            kind,
            flags,
            length,
            sent: 0,
            all_sent: false,
            signalled: operation.flags.signalled,
            waits_for_answers: operation.flags.waits_for_answers,
            progressed: 0,
            at_risk: 0,
            immediate: if invalidates { None } else { operation.immediate },
            key,
            address,
            context: operation.context,
            status: operation.status,
        }
    }
}

/// Returns the source of an operation's bytes: `list`, or `source` if `list` is [`NIL`].
const fn bytes_of(source: Source, list: u32) -> Bytes {
    match source {
        _ if list != NIL => Bytes::Pieces(list),
        Source::Region { region, offset } => Bytes::Region { region, offset },
        Source::Inline(bytes) => Bytes::Inline(bytes),
    }
}
