//! Handles. A handle contains the state of one operation, and can wait for the end of the
//! operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use runtime::{Interest, SpinBudget};
use semantics::OperationStatus;

use crate::connection::ConnectionInner;
use crate::error::OperationFailure;
use crate::tasks::poll_slot;

/// The handle of one operation. If the handle is dropped, the operation continues, but the program
/// cannot get its result.
///
/// A thread calls [`OperationHandle::wait`]. A task awaits the handle, which is a future with the
/// result of `wait`, on any executor.
///
/// A task may await the handle by reference, and cancel the wait at any time, for example in a
/// `select!`. The operation then continues, and the task can await the handle again. After the
/// operation has ended, the handle returns the same result each time. Waiting allocates no memory.
#[must_use = "drop it explicitly to let the operation go on unobserved"]
pub struct OperationHandle {
    connection: Arc<ConnectionInner>,
    slot: u32,
    length: u32,
    spin_budget: SpinBudget,
}

impl OperationHandle {
    pub(crate) fn new(connection: Arc<ConnectionInner>, slot: u32, length: u32) -> Self {
        Self { connection, slot, length, spin_budget: SpinBudget::default() }
    }

    /// Returns the state of the operation. This call does not make progress. A program that only
    /// calls `status` needs the progress thread or [`Endpoint::drive`](crate::Endpoint::drive).
    #[inline]
    pub fn status(&self) -> OperationStatus {
        self.connection.endpoint.runtime.status().status(self.slot)
    }

    /// Returns whether the operation has ended, with success or with a failure.
    #[inline]
    pub fn is_done(&self) -> bool {
        !matches!(self.status(), OperationStatus::Pending { .. })
    }

    /// Waits until the operation is complete, for at most `limit` (`None`: without a limit).
    /// Returns the previous value of the peer's word for an atomic, and 0 for other operations. The
    /// call may be repeated. A call after [`OperationFailure::TimedOut`] waits again. A call after
    /// the operation has ended returns the same result.
    ///
    /// # Errors
    /// Returns [`OperationFailure`] if the operation failed, the limit expired, or the process is a
    /// forked child.
    pub fn wait(&self, limit: Option<Duration>) -> Result<u64, OperationFailure> {
        let runtime = &self.connection.endpoint.runtime;
        let ended = runtime.wait(Interest::Status(self.slot), limit, || self.ended())?;
        ended.unwrap_or_else(|| Err(self.timed_out(limit)))
    }

    /// Returns the result, if the operation has ended.
    #[inline]
    pub(crate) fn ended(&self) -> Option<Result<u64, OperationFailure>> {
        match self.status() {
            OperationStatus::Done { value } => Some(Ok(value)),
            OperationStatus::Failed(error) => Some(Err(error.into())),
            OperationStatus::Pending { .. } => None,
        }
    }

    #[cold]
    fn timed_out(&self, limit: Option<Duration>) -> OperationFailure {
        let bytes = match self.status() {
            OperationStatus::Pending { bytes } => bytes,
            _ => self.length,
        };
        let limit = limit.unwrap_or(Duration::MAX);
        OperationFailure::TimedOut { bytes, length: self.length, limit }
    }

    /// Returns the length of the operation in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub const fn len(&self) -> u32 {
        self.length
    }

    pub(crate) fn connection(&self) -> &ConnectionInner {
        &self.connection
    }
}

impl Future for OperationHandle {
    type Output = Result<u64, OperationFailure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut spin_budget = this.spin_budget;
        let runtime = &this.connection.endpoint.runtime;
        let ended = poll_slot(runtime, context, &mut spin_budget, this.slot, || this.ended());
        this.spin_budget = spin_budget;
        ended.map(|ended| ended?)
    }
}

impl Drop for OperationHandle {
    fn drop(&mut self) {
        self.connection.endpoint.runtime.status().release(self.slot);
    }
}

impl fmt::Debug for OperationHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status();
        f.debug_struct("OperationHandle")
            .field("length", &self.length)
            .field("status", &status)
            .finish_non_exhaustive()
    }
}
