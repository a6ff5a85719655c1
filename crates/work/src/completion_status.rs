//! The result of work, expressed as a status of verbs.

use crate::completion_kind::CompletionKind;
use crate::error::{AccessFault, OperationError};

/// The statuses of a work completion. Names and numbers are those of verbs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum CompletionStatus {
    /// The work succeeded.
    Success = 0,
    /// The message is longer than the receive, or the operation is longer than the connection
    /// supports.
    LocalLength = 1,
    /// The work request is invalid, or its queue pair does not permit this kind of request.
    LocalQueuePairOperation = 2,
    /// The work has no right to use its local memory.
    LocalProtection = 4,
    /// The queue pair failed or was closed before the work was complete.
    Flushed = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// The answer of the peer matches no request.
    BadResponse = 7,
    /// The local memory of a receive could not be written while a message arrived.
    LocalAccess = 8,
    /// The peer found the request invalid, because the message is too long or an atomic is
    /// misaligned.
    RemoteInvalidRequest = 9,
    /// The peer does not allow the access.
    RemoteAccess = 10,
    /// The peer could not perform the operation because of a fault on its side.
    RemoteOperation = 11,
    /// The peer does not answer.
    TransportRetryExceeded = 12,
    /// The peer posted no receive within the time limit.
    RnrRetryExceeded = 13,
    /// The peer aborted the operation.
    RemoteAborted = 16,
    /// The device failed.
    Fatal = 19,
    /// Any other error.
    General = 21,
}

impl OperationError {
    /// Returns the status of a completion of this `kind` that failed with this error. One error has
    /// different statuses for the requester and for the end with the receive.
    pub const fn status(self, kind: CompletionKind) -> CompletionStatus {
        let is_receive = matches!(kind, CompletionKind::Receive);
        match self {
            Self::Flushed | Self::ClosedByPeer | Self::EndedByPeer | Self::NotConnected => {
                CompletionStatus::Flushed
            }
            Self::RemoteAccess(AccessFault::Alignment) => CompletionStatus::RemoteInvalidRequest,
            Self::RemoteAccess(_) => CompletionStatus::RemoteAccess,
            Self::LocalAccess => CompletionStatus::LocalProtection,
            Self::MessageTooLong if is_receive => CompletionStatus::LocalLength,
            Self::MessageTooLong | Self::RemoteInvalidRequest => {
                CompletionStatus::RemoteInvalidRequest
            }
            Self::RemoteOperation => CompletionStatus::RemoteOperation,
            Self::ReceiverNotReady => CompletionStatus::RnrRetryExceeded,
            Self::WindowBind => CompletionStatus::WindowBind,
            Self::Unreachable | Self::PeerRestarted => CompletionStatus::TransportRetryExceeded,
            Self::NotPosted => CompletionStatus::LocalQueuePairOperation,
            Self::ProtocolViolation => CompletionStatus::General,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_too_long_has_different_errors_at_each_end() {
        let status = |kind| OperationError::MessageTooLong.status(kind);
        assert_eq!(status(CompletionKind::Receive), CompletionStatus::LocalLength);
        assert_eq!(status(CompletionKind::Send), CompletionStatus::RemoteInvalidRequest);
    }

    #[test]
    fn no_error_is_a_success() {
        for code in 1..=18 {
            let error = OperationError::from_code(code);
            assert_ne!(error.status(CompletionKind::Write), CompletionStatus::Success);
        }
    }

    #[test]
    fn an_atomic_out_of_alignment_is_an_invalid_request_and_not_a_refused_access() {
        let status = |fault| OperationError::RemoteAccess(fault).status(CompletionKind::FetchAdd);
        assert_eq!(status(AccessFault::Alignment), CompletionStatus::RemoteInvalidRequest);
        assert_eq!(status(AccessFault::Key), CompletionStatus::RemoteAccess);
    }
}
