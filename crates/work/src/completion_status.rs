//! How work ended, in the words that all programs for RDMA know.

use crate::{AccessFault, CompletionKind, OperationError};

/// The statuses of a work completion, named and numbered as the verbs do.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum CompletionStatus {
    /// It has happened.
    Success = 0,
    /// The message is longer than the receive, or the work longer than the connection carries.
    LocalLength = 1,
    /// The work contradicts itself or its queue pair.
    LocalQueuePairOperation = 2,
    /// The local memory may not be used as the work would.
    LocalProtection = 4,
    /// The queue pair had failed before, or was ended.
    Flushed = 5,
    /// A memory window could not be bound.
    WindowBind = 6,
    /// The answer of the peer fits nothing that was asked.
    BadResponse = 7,
    /// The local memory of a receive was at fault while a message was written to it.
    LocalAccess = 8,
    /// The peer found the request impossible: a message too long, an atomic out of alignment.
    RemoteInvalidRequest = 9,
    /// The peer does not allow the access.
    RemoteAccess = 10,
    /// The peer could not do it, for a fault of its own.
    RemoteOperation = 11,
    /// The peer does not answer.
    TransportRetryExceeded = 12,
    /// The peer posted no receive for too long.
    RnrRetryExceeded = 13,
    /// The peer aborted it.
    RemoteAborted = 16,
    /// The device failed.
    Fatal = 19,
    /// None of the others.
    General = 21,
}

impl OperationError {
    /// Returns what the completion of a `kind` that failed so says in the terms of the verbs. One fault has
    /// different names on the two sides.
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
    fn a_message_too_long_has_its_name_at_either_end() {
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
