//! Work that a queue pair performs without its peer: operations on memory windows, and operations
//! that have failed on this side.

use mem::{MemoryAccess, ProtectionDomain, Window};
use wire_edge::{Flags, OperationNumber, RemoteKey};

use super::{OutKind, OutOperation, Outbound};
use crate::pools::Pools;
use crate::slab::NIL;
use work::{Operation, OperationError, PostError};

/// Work that sends no frame to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum LocalWork {
    Bind {
        replaced: Option<RemoteKey>,
        key: RemoteKey,
        window: Option<Window>,
    },
    Invalidate {
        domain: ProtectionDomain,
        key: RemoteKey,
    },
    Done,
    /// The operation completes with this error when all earlier operations are complete.
    Failed(OperationError),
}

impl Outbound {
    //= protocol.md: queue-pair.3
    /// Posts an operation that cannot be performed, for example because its local memory does not
    /// exist.
    ///
    /// When all earlier operations are complete, the operation completes with `error`. After that,
    /// the connection [is faulty](Outbound::is_faulty). Later operations are not sent.
    ///
    /// # Errors
    /// Returns [`PostError`] in these cases:
    ///
    /// * [`PostError::QueuePairOnly`] if the connection is not a queue pair.
    /// * [`PostError::NoOperationLeft`] if no record is free.
    /// * [`PostError::CompletionQueueFull`] if there is no room for the completion.
    pub fn post_failed(
        &mut self,
        pools: &mut Pools,
        operation: &Operation,
        error: OperationError,
    ) -> Result<(), PostError> {
        self.check_queue_pair()?;
        self.admit(pools, operation)?;
        let completes_as = operation.request.completion_kind();
        let kind = OutKind::Local { work: LocalWork::Failed(error), completes_as };
        let record = self.record_of(operation, (kind, RemoteKey(0), 0), self.next_number);
        self.append(pools, record);
        self.complete_ready(pools);
        Ok(())
    }

    //= protocol.md: queue-pair.3
    /// Fails an operation whose memory on this side is gone. Either some fragments of the operation
    /// were sent, or the operation is the next one to send.
    ///
    /// Earlier operations continue. When they are complete, the operation completes with `error`,
    /// and the connection [is faulty](Outbound::is_faulty). After this call, no fragment of this
    /// operation or of a later one is sent.
    pub fn fail(&mut self, pools: &mut Pools, number: OperationNumber, error: OperationError) {
        let is_first = self.fault.is_none_or(|(known, _)| number.since(known) < 0);
        if self.is_faulty || !is_first || !self.is_outstanding(pools, number) {
            return;
        }
        self.fault = Some((number, error));
        self.blocked = true;
        self.complete_ready(pools);
    }

    /// Returns whether an operation has failed on this side, and this operation and all earlier
    /// operations are complete. If so, the connection must end, and all later operations must be
    /// [flushed](Outbound::flush).
    pub const fn is_faulty(&self) -> bool {
        self.is_faulty
    }

    //= protocol.md: queue-pair.2, queue-pair.3
    /// Returns the result of the oldest operation if this side has decided the result without the
    /// peer.
    #[cold]
    pub(super) fn local_result(
        &self,
        operation: &OutOperation,
    ) -> Option<Result<(), OperationError>> {
        if operation.number.since(self.delivered) > 0 {
            return None;
        }
        match operation.kind {
            OutKind::Local { work: LocalWork::Done, .. } => Some(Ok(())),
            OutKind::Local { work: LocalWork::Failed(error), .. } => Some(Err(error)),
            OutKind::Local { .. } => None,
            _ => {
                let (fault, error) = self.fault?;
                (fault == operation.number).then_some(Err(error))
            }
        }
    }

    //= protocol.md: queue-pair.2
    /// Performs the local work (work that sends nothing to the peer) at the cursor. Stops at an
    /// operation that must be sent, and at local work that must wait. Returns true if this call has
    /// performed some work and an operation may now be sent.
    #[cold]
    pub(super) fn pass_local(&mut self, memory: &MemoryAccess<'_>, pools: &mut Pools) -> bool {
        let mut has_passed = false;
        while let Some(operation) = pools.operations.get_mut(self.cursor) {
            let may_begin = self.fence_lets_begin(operation);
            let OutKind::Local { ref mut work, .. } = operation.kind else { break };
            if !may_begin || self.is_halted() {
                self.blocked = true;
                return false;
            }
            if let Err(error) = work.perform(memory, self.owner.bits()) {
                *work = LocalWork::Failed(error);
                self.blocked = true;
                self.complete_ready(pools);
                return false;
            }
            *work = LocalWork::Done;
            self.cursor = operation.next;
            self.backlog_bytes = self.backlog_bytes.saturating_sub(1);
            has_passed = true;
        }
        if !has_passed {
            return false;
        }
        self.unblock();
        self.complete_ready(pools);
        self.cursor != NIL && !self.blocked
    }

    /// Returns whether the fences before this operation let the operation begin. They do if all
    /// operations for which the fences wait are done.
    fn fence_lets_begin(&self, operation: &OutOperation) -> bool {
        let is_fenced = operation.flags.contains(Flags::FENCE_BEFORE);
        let waits = is_fenced || operation.waits_for_answers;
        !(waits && self.asked > 0 || is_fenced && operation.number.since(self.delivered) > 0)
    }

    /// Returns whether the operation with this number is posted and not done. If an operation waits
    /// only for the completion of earlier operations, it is done.
    fn is_outstanding(&self, pools: &Pools, number: OperationNumber) -> bool {
        let mut slot = self.head;
        while let Some(operation) = pools.operations.get(slot) {
            if operation.number == number && !operation.is_local() {
                return !self.is_done(operation);
            }
            slot = operation.next;
        }
        false
    }
}

impl LocalWork {
    /// Performs the work on a connection.
    fn perform(&self, memory: &MemoryAccess<'_>, connection: u64) -> Result<(), OperationError> {
        let table = memory.table();
        match *self {
            Self::Bind { replaced, key, window } => {
                if let Some(replaced) = replaced {
                    table.unbind(replaced);
                }
                let Some(window) = window else { return Ok(()) };
                table.bind(key, window).map_err(|_| OperationError::WindowBind)
            }
            Self::Invalidate { domain, key } => {
                let ended = table.invalidate(domain, connection, key);
                ended.map(drop).map_err(|_| OperationError::WindowBind)
            }
            Self::Done => Ok(()),
            Self::Failed(error) => Err(error),
        }
    }
}

impl OutOperation {
    /// Returns whether the operation sends no frame to the peer.
    #[inline]
    pub(super) const fn is_local(&self) -> bool {
        matches!(self.kind, OutKind::Local { .. })
    }
}
