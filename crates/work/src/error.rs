//! Errors of posting operations, and errors with which operations complete.

use mem::AccessError;
use thiserror::Error;

use crate::limits::{INLINE_BYTES_MAX, OPERATION_BYTES_MAX};

/// Why an operation could not be posted. A call that returns this error has no effect.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// All places of the completion queue are in use. A place is in use if it contains a completion
    /// that was not polled, or if it is reserved for an operation or receive in flight. An
    /// unsignalled operation needs no place if it has a handle, because the handle reports its
    /// result.
    #[error(
        "all {0} places of the completion queue hold completions or are reserved for operations and \
         receives in flight; poll it, wait until some are complete, or make a larger queue"
    )]
    CompletionQueueFull(usize),
    /// The connection is closed or not yet established.
    #[error(
        "the connection is not established; wait until it is, or connect again if it was closed"
    )]
    NotConnected,
    /// The operation has no right to use its local memory.
    #[error("local memory of the operation: {0}")]
    LocalAccess(#[from] AccessError),
    /// The operation has more than 2^31 bytes.
    #[error("length {0} is more than an operation carries ({OPERATION_BYTES_MAX}); post several")]
    TooLong(u64),
    /// The inline payload has more than [`INLINE_BYTES_MAX`] bytes.
    #[error(
        "{0} inline bytes are more than the {INLINE_BYTES_MAX} an operation carries by value; register them"
    )]
    InlineTooLong(u32),
    /// The range of addresses in the peer's memory ends beyond 2^64.
    #[error(
        "{length} bytes at remote address {address:#x} reach beyond the address space; name bytes of the peer's region"
    )]
    RemoteRange {
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u32,
    },
    /// The address of an atomic is not a multiple of 8.
    #[error("an atomic needs an address that is a multiple of 8, not {0:#x}; use such an address")]
    Misaligned(u64),
    /// The connection has reached its maximum number of operations in flight. The endpoint has a
    /// fixed number of records for operations, and one connection may use only some of them. Wait
    /// for completions.
    #[error(
        "{0} operations of the connection are in flight, its share of those of the endpoint; wait for completions"
    )]
    NoOperationLeft(u32),
    /// The connection has reached its maximum number of scatter/gather lists in use. The endpoint
    /// has a fixed number of lists, and one connection may use only some of them. Wait for
    /// completions.
    #[error(
        "{0} lists of pieces of the connection are in use, its share of those of the endpoint; wait for completions"
    )]
    NoListLeft(u32),
    /// The receive queue of the connection is full.
    #[error(
        "all {0} receives of the connection are posted; wait for messages, or raise `receives_max`"
    )]
    ReceiveQueueFull(u32),
    /// The request is possible only on a queue pair, and the connection is not one.
    #[error(
        "only queue pairs have this kind of work, and the connection is none; set `Terms::queue_pair` on both sides"
    )]
    QueuePairOnly,
    /// The connection takes its receives from a shared queue.
    #[error("the connection takes its receives from a shared queue; post them there")]
    ReceivesShared,
    /// The connection has no patches and swaps. Either the peer or this endpoint does not offer
    /// them (protocol.md §2.3, `patch`), or the connection is a queue pair.
    #[error(
        "the connection has no patches and swaps: one of its ends does not offer them, or it is a queue pair; write \
         and compare-and-swap instead"
    )]
    PatchesRefused,
    /// A patch cannot have strict order.
    #[error("a patch has no strict order; use a fence")]
    PatchStrict,
    /// The address of the area of a patch is not a multiple of 4.
    #[error("a patch needs an address that is a multiple of 4, not {0:#x}; use such an address")]
    PatchMisaligned(u64),
    /// The local bytes of a patch are not records of the protocol. Either a record is not whole, or
    /// a block does not come after the block before it.
    #[error(
        "byte {offset} of the patch begins no record, or one whose block is not after the one before; encode it with \
         `encode_patch`"
    )]
    PatchRecords {
        /// Offset of the record in the local bytes of the patch.
        offset: u32,
    },
    /// The peer answers no reads and no atomics on this connection.
    #[error(
        "the peer serves no reads and atomics on this connection; have it grant a read depth above 0"
    )]
    ReadsRefused,
}

/// Why the peer refused an access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessFault {
    /// No region of the protection domain has this key.
    Key,
    /// Part of the range of addresses lies outside the region.
    Range,
    /// The rights of the region do not allow this operation.
    Right,
    /// The address of an atomic is not a multiple of 8.
    Alignment,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OperationError {
    /// This side ended the connection before the operation was complete. Either the application
    /// closed the connection, or another operation failed on this side. The peer may or may not
    /// have performed the operation.
    #[error("flushed: this side ended the connection before the operation was complete")]
    Flushed,
    /// The application at the peer closed the connection before the operation was complete.
    #[error(
        "the peer closed the connection before the operation was complete; connect again if that was not meant"
    )]
    ClosedByPeer,
    /// The peer ended or rejected the connection, and this operation was not the cause. For
    /// example, another operation failed, and completed with its own error. The connection reports
    /// the cause.
    #[error(
        "the peer ended the connection, for another reason than this operation; the connection says which"
    )]
    EndedByPeer,
    /// The connection was already closed when the engine took the operation. The post itself
    /// reported no error, because another thread was inside the engine and took the operation
    /// later.
    #[error("the connection was closed before the operation could be posted; connect again")]
    NotConnected,
    /// The peer refused the access and closed the connection.
    #[error("the peer refused the remote access: {}", match .0 {
        AccessFault::Key => "no region has this key; was it deregistered?",
        AccessFault::Range => "part of the range lies outside the region; access less of it",
        AccessFault::Right => "the region does not allow this operation; have the peer register it with the right",
        AccessFault::Alignment => "the address of an atomic must be a multiple of 8; use such an address",
    })]
    RemoteAccess(AccessFault),
    /// The local memory of the operation or the receive is no longer registered.
    #[error(
        "the local memory of the operation is no longer registered or mapped; keep it until the operation is complete"
    )]
    LocalAccess,
    /// The message is longer than the receive that it consumed. Both ends get this error: the
    /// sender for the send, and the receiver for the receive.
    #[error("the message is longer than the receive posted for it; post larger ones, or send less")]
    MessageTooLong,
    /// The peer does not answer. Either it was silent for longer than a connection survives (the
    /// silence budget), or no process listens at its address.
    #[error(
        "the peer is not reached: it was silent for the whole silence budget, or nothing listens at its \
         address any more; is it running?"
    )]
    Unreachable,
    /// The peer does not know the connection. Either the peer has restarted, or it received nothing
    /// from this side for too long and closed the connection.
    #[error(
        "the peer does not know the connection: it restarted, or heard nothing of this side for too long; connect again"
    )]
    PeerRestarted,
    /// The operation was invalid. The post itself reported no error, because another thread was
    /// inside the engine and checked the operation later.
    #[error(
        "the operation could not be posted: its range, length or alignment is impossible; the same call by one thread \
         says which"
    )]
    NotPosted,
    /// The peer posted no receive for the message until the time limit of the operation was
    /// reached.
    #[error(
        "the peer posted no receive for the message in time; have it post more of them, or wait longer"
    )]
    ReceiverNotReady,
    /// The peer could not perform the operation because of a fault on its side: the memory of the
    /// receive is gone.
    #[error(
        "the peer could not do it: the memory of its receive is no longer registered or mapped; have it keep \
         that until a message came"
    )]
    RemoteOperation,
    /// The peer found the request invalid: the message is longer than its receive.
    #[error(
        "the peer found the request impossible: the message is longer than its receive; send less, or have it post \
         larger ones"
    )]
    RemoteInvalidRequest,
    /// The memory window could not be bound, for one of these reasons: its range is not in the
    /// region, the region does not grant its rights, or the window cannot have this key.
    #[error("the memory window could not be bound so; look at its key, range and rights")]
    WindowBind,
    /// This side or the peer violated the protocol.
    #[error(
        "the connection ended because a rule of the protocol was broken; report it, with a capture of the link"
    )]
    ProtocolViolation,
}

impl OperationError {
    /// Returns the number of this error in the status table. The number is stable, small and never
    /// 0.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Flushed => 1,
            Self::RemoteAccess(AccessFault::Key) => 2,
            Self::RemoteAccess(AccessFault::Range) => 3,
            Self::RemoteAccess(AccessFault::Right) => 4,
            Self::RemoteAccess(AccessFault::Alignment) => 5,
            Self::LocalAccess => 6,
            Self::MessageTooLong => 7,
            Self::Unreachable => 8,
            Self::PeerRestarted => 9,
            Self::ProtocolViolation => 10,
            Self::NotPosted => 11,
            Self::ClosedByPeer => 12,
            Self::EndedByPeer => 13,
            Self::NotConnected => 14,
            Self::ReceiverNotReady => 15,
            Self::RemoteOperation => 16,
            Self::RemoteInvalidRequest => 17,
            Self::WindowBind => 18,
        }
    }

    /// Returns the error with the number `code`, or [`OperationError::Flushed`] if no error has
    /// that number.
    #[inline]
    pub const fn from_code(code: u8) -> Self {
        match code {
            2 => Self::RemoteAccess(AccessFault::Key),
            3 => Self::RemoteAccess(AccessFault::Range),
            4 => Self::RemoteAccess(AccessFault::Right),
            5 => Self::RemoteAccess(AccessFault::Alignment),
            6 => Self::LocalAccess,
            7 => Self::MessageTooLong,
            8 => Self::Unreachable,
            9 => Self::PeerRestarted,
            10 => Self::ProtocolViolation,
            11 => Self::NotPosted,
            12 => Self::ClosedByPeer,
            13 => Self::EndedByPeer,
            14 => Self::NotConnected,
            15 => Self::ReceiverNotReady,
            16 => Self::RemoteOperation,
            17 => Self::RemoteInvalidRequest,
            18 => Self::WindowBind,
            _ => Self::Flushed,
        }
    }
}
