//! Handles: the state of one operation, and waiting for its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use runtime::Interest;
use semantics::OperationStatus;

use crate::connection::ConnectionInner;
use crate::error::OperationFailure;

/// Follows one operation. Dropped, the operation goes on, but nobody can ask about it any more.
#[must_use = "drop it explicitly to let the operation go on unobserved"]
pub struct OperationHandle {
    connection: Arc<ConnectionInner>,
    slot: u32,
    length: u32,
}

impl OperationHandle {
    pub(crate) fn new(connection: Arc<ConnectionInner>, slot: u32, length: u32) -> Self {
        Self { connection, slot, length }
    }

    /// How far the operation is. Makes no progress by itself: a program that polls this alone needs
    /// the progress thread or [`Endpoint::drive`](crate::Endpoint::drive).
    #[inline]
    pub fn status(&self) -> OperationStatus {
        self.connection.endpoint.runtime.status().status(self.slot)
    }

    /// Whether the operation is complete or has failed.
    #[inline]
    pub fn is_done(&self) -> bool {
        !matches!(self.status(), OperationStatus::Pending { .. })
    }

    /// Waits until the operation is complete, for at most `limit` (`None`: for as long as it takes).
    /// Returns what an atomic found in the peer's memory, 0 for others. May be called again: after
    /// [`OperationFailure::TimedOut`] it waits on, after the end it says the same once more.
    pub fn wait(&self, limit: Option<Duration>) -> Result<u64, OperationFailure> {
        let runtime = &self.connection.endpoint.runtime;
        let status = runtime
            .wait(Interest::Status(self.slot), limit, || self.is_done().then(|| self.status()))?;
        match status.unwrap_or_else(|| self.status()) {
            OperationStatus::Done { value } => Ok(value),
            OperationStatus::Failed(error) => Err(error.into()),
            OperationStatus::Pending { bytes } => {
                let limit = limit.unwrap_or(Duration::MAX);
                Err(OperationFailure::TimedOut { bytes, length: self.length, limit })
            }
        }
    }

    /// Bytes of the operation.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub const fn len(&self) -> u32 {
        self.length
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
