//! What an application asks for, and what can go wrong with it.

use mem::{AccessError, MemoryAccess, RegionId, Rights};
use thiserror::Error;
use wire_edge::{CloseReason, RemoteKey};

use crate::limits::{INLINE_BYTES_MAX, OPERATION_BYTES_MAX};

/// One operation, as posted.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What to do.
    pub request: Request,
    /// Bytes, 0 to 2^31 (8 for atomics).
    pub length: u32,
    /// Order and notification.
    pub flags: OperationFlags,
    /// Delivered to the peer with the operation (writes and sends): `MultiEdge`'s notification.
    pub immediate: Option<u32>,
    /// Comes back in the completion.
    pub context: u64,
    /// Slot of the status table that follows this operation, if somebody holds a handle.
    pub status: Option<u32>,
}

impl Operation {
    /// Whether it is possible as far as this side can tell without its connection: lengths, ranges,
    /// alignment, local memory.
    ///
    /// # Errors
    /// [`PostError::TooLong`], [`PostError::InlineTooLong`], [`PostError::RemoteRange`],
    /// [`PostError::Misaligned`] or [`PostError::LocalAccess`].
    pub fn check(&self, memory: &MemoryAccess<'_>) -> Result<(), PostError> {
        let length = self.length;
        if length > OPERATION_BYTES_MAX {
            return Err(PostError::TooLong(u64::from(length)));
        }
        let check_source = |source: &Source| match *source {
            Source::Inline(_) if length as usize > INLINE_BYTES_MAX => {
                Err(PostError::InlineTooLong(length))
            }
            Source::Inline(_) => Ok(()),
            Source::Region { .. } if length == 0 => Ok(()),
            Source::Region { region, offset } => {
                memory.source(region, offset, length)?;
                Ok(())
            }
        };
        let check_remote = |address: u64, length: u32| {
            let ends = address.checked_add(u64::from(length)).is_some();
            if ends { Ok(()) } else { Err(PostError::RemoteRange { address, length }) }
        };
        match self.request {
            Request::Write { ref source, address, .. } => {
                check_remote(address, length)?;
                check_source(source)
            }
            Request::Send { ref source } => check_source(source),
            Request::Read { sink, sink_offset, address, .. } => {
                check_remote(address, length)?;
                memory.resolve_local(sink, sink_offset, u64::from(length), Rights::LOCAL_WRITE)?;
                Ok(())
            }
            Request::FetchAdd { address, .. } | Request::CompareSwap { address, .. } => {
                if !address.is_multiple_of(8) {
                    return Err(PostError::Misaligned(address));
                }
                check_remote(address, 8)
            }
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// Copies local bytes to the peer's memory.
    Write {
        /// Where the bytes are.
        source: Source,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Copies bytes of the peer's memory here.
    Read {
        /// Local region the bytes go to.
        sink: RegionId,
        /// Where in that region, bytes from its start.
        sink_offset: u64,
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address in the peer's memory.
        address: u64,
    },
    /// Adds to 8 bytes of the peer's memory; the completion carries what they held before.
    FetchAdd {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address, a multiple of 8.
        address: u64,
        /// Added modulo 2^64.
        operand: u64,
    },
    /// Stores `swap` in 8 bytes of the peer's memory if they hold `compare`.
    CompareSwap {
        /// Key of the peer's region.
        key: RemoteKey,
        /// Address, a multiple of 8.
        address: u64,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Sends a message into the receive that the peer posted.
    Send {
        /// Where the bytes are.
        source: Source,
    },
}

/// Where the bytes of a write or send come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Registered memory, which must not change until the operation is complete.
    Region {
        /// The region.
        region: RegionId,
        /// Bytes from its start.
        offset: u64,
    },
    /// Bytes carried by value: the first `length` of these.
    Inline([u8; INLINE_BYTES_MAX]),
}

/// How operations of one connection may overtake one another at the target.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Ordering {
    /// Bytes are placed as they arrive (`MultiEdge`'s default).
    #[default]
    Relaxed,
    /// As a reliable connection of verbs: whoever sees the last byte of an operation sees every
    /// byte of all earlier ones, and of two writes to one place the later one wins.
    Strict,
}

/// Order and notification of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationFlags {
    /// Performed only after all earlier operations of this connection (backward fence).
    pub fence_before: bool,
    /// All later operations are performed only after this one (forward fence).
    pub fence_after: bool,
    /// Free or strict order.
    pub ordering: Ordering,
    /// The peer's waiting application is woken.
    pub solicited: bool,
    /// A completion is queued when the operation succeeds. (When it fails, one is queued in any case, but
    /// if a slot of the status table follows the operation, only if the queue has room.)
    pub signalled: bool,
}

/// A buffer for one message.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Where the message goes.
    pub region: RegionId,
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Longest message, in bytes.
    pub length: u32,
    /// Comes back in the completion.
    pub context: u64,
}

/// Why an operation could not be posted. Nothing happened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// Every place is taken by a completion that was not polled, or promised to an operation or receive
    /// under way. Operations that are not signalled and have a handle need none.
    #[error(
        "all {0} places of the completion queue hold completions or are kept for operations and receives \
         under way; poll it, wait until some are complete, or make a larger queue"
    )]
    CompletionQueueFull(usize),
    /// The connection is closed or not yet established.
    #[error("the connection is not established")]
    NotConnected,
    /// The local bytes are not there.
    #[error("local memory of the operation: {0}")]
    LocalAccess(#[from] AccessError),
    /// Operations carry at most 2^31 bytes.
    #[error("length {0} is more than an operation carries ({OPERATION_BYTES_MAX})")]
    TooLong(u64),
    /// Inline payloads have at most [`INLINE_BYTES_MAX`] bytes.
    #[error("{0} inline bytes are more than the {INLINE_BYTES_MAX} an operation carries by value")]
    InlineTooLong(u32),
    /// The address range ends beyond 2^64.
    #[error("{length} bytes at remote address {address:#x} reach beyond the address space")]
    RemoteRange {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u32,
    },
    /// Atomics work on 8 aligned bytes.
    #[error("an atomic needs an address that is a multiple of 8, not {0:#x}")]
    Misaligned(u64),
    /// The endpoint's operations are all in use; wait for completions.
    #[error("all {0} operations of the endpoint are in flight; wait for completions")]
    NoOperationLeft(u32),
    /// The receive queue of the connection is full.
    #[error("all {0} receives of the connection are posted")]
    ReceiveQueueFull(u32),
    /// The peer serves no reads and atomics.
    #[error("the peer serves no reads and atomics on this connection (its read depth is 0)")]
    ReadsRefused,
}

/// Why the peer refused an access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessFault {
    /// No region of the protection domain has this key.
    Key,
    /// Part of the range lies outside the region.
    Range,
    /// The region does not allow this operation.
    Right,
    /// The address of an atomic is not a multiple of 8.
    Alignment,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OperationError {
    /// This side ended the connection before the operation was complete: the application closed it, or
    /// another operation failed here. It may or may not have happened, as with everything that ends with
    /// its connection.
    #[error("flushed: this side ended the connection before the operation was complete")]
    Flushed,
    /// The application of the peer closed the connection before the operation was complete.
    #[error("the peer closed the connection before the operation was complete")]
    ClosedByPeer,
    /// The peer ended the connection, or did not want it, for a reason that the connection tells: another
    /// operation, which learns what was wrong with it.
    #[error("the peer ended the connection, for another reason than this operation")]
    EndedByPeer,
    /// It was posted while another thread was inside the engine, which found the connection over.
    #[error("the connection was over before the operation could be posted")]
    NotConnected,
    /// The peer refused the access, and the connection is closed.
    #[error("the peer refused the remote access: {}", match .0 {
        AccessFault::Key => "no region has this key (was it deregistered?)",
        AccessFault::Range => "part of the range lies outside the region",
        AccessFault::Right => "the region does not allow this operation",
        AccessFault::Alignment => "the address of an atomic must be a multiple of 8",
    })]
    RemoteAccess(AccessFault),
    /// The local memory of the operation or the receive is no longer registered.
    #[error("the local memory of the operation is no longer registered or mapped")]
    LocalAccess,
    /// The message does not fit the receive it met, of which both sides learn: who sent it, and who
    /// posted the receive.
    #[error("the message is longer than the receive posted for it")]
    MessageTooLong,
    /// No link reached the peer for the whole silence budget, or nothing listens at its address any more.
    #[error(
        "the peer is not reached: it was silent for the whole silence budget, or nothing listens at its \
         address any more; is it running?"
    )]
    Unreachable,
    /// The peer restarted and knows nothing of the connection.
    #[error("the peer restarted; connect again")]
    PeerRestarted,
    /// It was posted while another thread was inside the engine, which found it impossible.
    #[error("the operation could not be posted: its range, length or alignment is impossible")]
    NotPosted,
    /// The peer's fault or ours: a rule of the protocol was broken.
    #[error("the connection ended because a rule of the protocol was broken")]
    ProtocolViolation,
}

impl OperationError {
    /// Stable small number for the status table, never 0.
    pub(crate) const fn code(self) -> u8 {
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
        }
    }

    /// The error with this code; [`OperationError::Flushed`] for an unknown one.
    pub(crate) const fn from_code(code: u8) -> Self {
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
            _ => Self::Flushed,
        }
    }

    /// What the operation at fault learns when the peer closes for `reason`.
    pub const fn from_close(reason: CloseReason) -> Self {
        match reason {
            CloseReason::UnknownKey => Self::RemoteAccess(AccessFault::Key),
            CloseReason::OutOfRange => Self::RemoteAccess(AccessFault::Range),
            CloseReason::RightMissing => Self::RemoteAccess(AccessFault::Right),
            CloseReason::Misaligned => Self::RemoteAccess(AccessFault::Alignment),
            CloseReason::MessageTooLong => Self::MessageTooLong,
            CloseReason::ProtocolViolation => Self::ProtocolViolation,
            CloseReason::PeerRestarted => Self::PeerRestarted,
            _ => Self::Flushed,
        }
    }
}

//= protocol.md: violation.3
/// What the requester is told when this side refuses an access of its.
pub(crate) const fn close_reason_of(error: AccessError) -> CloseReason {
    match error {
        AccessError::Bounds { .. } | AccessError::Unmapped { .. } => CloseReason::OutOfRange,
        AccessError::Permission { .. } => CloseReason::RightMissing,
        AccessError::Misaligned { .. } => CloseReason::Misaligned,
        _ => CloseReason::UnknownKey,
    }
}
