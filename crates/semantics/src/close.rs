//! Translates between a failed access, the reason in a Close, and the error of an operation.

use mem::AccessError;
use wire_edge::CloseReason;

use work::{AccessFault, OperationError};

/// Returns the error of the failed operation if the peer closes the connection with `reason`. If a
/// message fails on a queue pair, the end that sent the message and the end that posted the receive
/// get different errors.
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
/// Returns the reason for the Close that this side sends when it rejects an access of the peer with
/// `error`.
pub(crate) const fn close_reason_of(error: AccessError) -> CloseReason {
    match error {
        AccessError::Bounds { .. } | AccessError::Unmapped { .. } => CloseReason::OutOfRange,
        AccessError::Permission { .. } => CloseReason::RightMissing,
        AccessError::Misaligned { .. } => CloseReason::Misaligned,
        _ => CloseReason::UnknownKey,
    }
}
