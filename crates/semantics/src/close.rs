//! How a failed access and the end of a connection are reported between peers.

use mem::AccessError;
use wire_edge::CloseReason;

use crate::{AccessFault, OperationError};

/// Returns the error of the operation at fault when the peer closes for `reason`. On a queue pair,
/// the sender gets a different error for a faulty receive than the owner of the receive.
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
/// Returns the reason for the requester when this side refuses one of its accesses.
pub(crate) const fn close_reason_of(error: AccessError) -> CloseReason {
    match error {
        AccessError::Bounds { .. } | AccessError::Unmapped { .. } => CloseReason::OutOfRange,
        AccessError::Permission { .. } => CloseReason::RightMissing,
        AccessError::Misaligned { .. } => CloseReason::Misaligned,
        _ => CloseReason::UnknownKey,
    }
}
