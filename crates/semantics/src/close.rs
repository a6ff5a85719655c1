//! Translates failed accesses to reasons in a Close, and reasons in a Close to errors of
//! operations.

use mem::AccessError;
use wire_edge::CloseReason;

use crate::{AccessFault, OperationError};

/// Returns the error of the failed operation when the peer closes the connection with `reason`. On
/// a queue pair, the sender of a message and the owner of its receive get different errors.
pub(crate) const fn error_of_close(reason: CloseReason, queue_pair: bool) -> OperationError {
    match reason {
        CloseReason::MessageTooLong if queue_pair => OperationError::RemoteInvalidRequest,
        CloseReason::LocalMemoryGone if queue_pair => OperationError::RemoteOperation,
        CloseReason::UnknownKey => OperationError::RemoteAccess(AccessFault::Key),
        CloseReason::OutOfRange => OperationError::RemoteAccess(AccessFault::Range),
        CloseReason::RightMissing => OperationError::RemoteAccess(AccessFault::Right),
        CloseReason::Misaligned => OperationError::RemoteAccess(AccessFault::Alignment),
        CloseReason::MessageTooLong => OperationError::MessageTooLong,
        CloseReason::ProtocolViolation => OperationError::ProtocolViolation,
        CloseReason::PeerRestarted => OperationError::PeerRestarted,
        _ => OperationError::Flushed,
    }
}

//= protocol.md: violation.3
/// Returns the reason that the Close gives to the requester when this side rejects its access.
pub(crate) const fn close_reason_of(error: AccessError) -> CloseReason {
    match error {
        AccessError::Bounds { .. } | AccessError::Unmapped { .. } => CloseReason::OutOfRange,
        AccessError::Permission { .. } => CloseReason::RightMissing,
        AccessError::Misaligned { .. } => CloseReason::Misaligned,
        _ => CloseReason::UnknownKey,
    }
}
