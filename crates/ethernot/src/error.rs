//! Error types. Each error text names the faulty value and the remedy.

use std::time::Duration;

use delivery::SettingError;
use engine::Closed;
use link::PacketError;
use links::{BindError, PeerSpec, PeerSpecError};
use mem::{BufferError, RegisterError};
use runtime::{Forked, SubmitError};
use semantics::{OperationError, PieceListError};
use thiserror::Error;
use wire_edge::PeerAddr;

use crate::region::RangeError;

/// Any error of this crate. Programs that only report errors can use this type.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint could not be made, or a link could not be added to it.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A listener could not be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No connection was established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request could not be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// An operation could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An operation failed, or did not complete within the limit.
    #[error(transparent)]
    Operation(#[from] OperationFailure),
    /// A completion queue could not be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Local memory could not be accessed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A range is not within a region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A wait ended without a result.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The bytes do not describe a remote region, because they have the wrong length.
    #[error(transparent)]
    RemoteRegion(#[from] RemoteRegionError),
    /// A link of a connection could not be added or removed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Reason why a listener could not be made.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ListenError {
    /// The service already has a listener. Contains the number of the service.
    #[error("the endpoint already listens for service {0}; choose another number")]
    InUse(u32),
    /// The endpoint was shut down.
    #[error("the endpoint is shut down; listen on another endpoint")]
    ShutDown,
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Reason why no connection was established.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting of the connection is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The peer's address could not be parsed or resolved.
    #[error(transparent)]
    Peer(#[from] PeerSpecError),
    /// A link that the peer's address requires could not be made.
    #[error("cannot make a link to the peer: {0}")]
    Link(#[source] Box<BindError>),
    /// On raw Ethernet, no host has the address, or the host with this address does not serve the
    /// port.
    #[error("no peer found on raw Ethernet: {0}")]
    Neighbour(#[from] PacketError),
    /// No link of this endpoint can send to any of the peer's addresses.
    #[error(
        "no link of this endpoint can send to {}; add a suitable link: IPv4 links reach only IPv4 \
         addresses, and only packet and xdp links reach stations",
        listed(.peers)
    )]
    NoWay {
        /// The addresses given for the peer.
        peers: Vec<PeerSpec>,
    },
    /// The local engine refused the request.
    #[error(transparent)]
    Request(#[from] engine::ConnectError),
    /// The protection domain belongs to another endpoint.
    #[error("the memory regions that the peer can access: {0}")]
    Domain(#[source] RegisterError),
    /// The completion queue belongs to another endpoint.
    #[error(
        "the completion queue of the connection belongs to another endpoint; connections can share \
         a queue only with connections of the same endpoint"
    )]
    ForeignQueue,
    /// The handshake ended without a connection.
    #[error("no connection to {peer}: {reason}")]
    Closed {
        /// The first address of the peer.
        peer: PeerAddr,
        /// The reason: refused, rejected, unreachable, or another version of the protocol.
        #[source]
        reason: Closed,
        /// Private data of the peer's rejection.
        private_data: Vec<u8>,
    },
    /// The endpoint was shut down.
    #[error("the endpoint is shut down; connect from another endpoint")]
    ShutDown,
    /// An earlier call has already returned the outcome of the attempt.
    #[error("the outcome of this attempt was returned before; connect again")]
    Answered,
    /// The limit of the attempt has expired.
    #[error(
        "{peer} did not accept within {limit:?}; check whether its program accepts connections, \
         and whether {}", carried(.peer)
    )]
    TimedOut {
        /// The first address of the peer.
        peer: PeerAddr,
        /// The limit.
        limit: Duration,
    },
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

fn listed(peers: &[PeerSpec]) -> String {
    peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns what carries the frames to `peer`.
fn carried(peer: &PeerAddr) -> &'static str {
    match peer.to_mac() {
        Some(_) => "it is on the same Ethernet, with the same EtherType and VLAN",
        None if peer.is_shared_memory() => "its process runs",
        None => "the network carries UDP to it",
    }
}

/// Reason why a request could not be accepted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// A setting of the connection is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The request no longer exists, or the options are invalid.
    #[error(transparent)]
    Refused(#[from] engine::AcceptError),
    /// The protection domain belongs to another endpoint.
    #[error("the memory regions that the peer can access: {0}")]
    Domain(#[source] RegisterError),
    /// The completion queue belongs to another endpoint.
    #[error(
        "the completion queue of the connection belongs to another endpoint; connections can share \
         a queue only with connections of the same endpoint"
    )]
    ForeignQueue,
    /// The connection to the peer was lost before the peer confirmed the acceptance.
    #[error("the connection ended before the peer received the acceptance: {0}")]
    Closed(#[source] Closed),
    /// The endpoint was shut down.
    #[error(
        "the endpoint is shut down, so the request is rejected; accept requests of another endpoint"
    )]
    ShutDown,
    /// The limit expired before the peer confirmed the acceptance. The connection is closed.
    #[error(
        "the peer did not confirm the acceptance within {limit:?}; the peer ended, or the network \
         loses frames: wait for the next request"
    )]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Reason why an operation was not posted. If a call returns this error, it had no effect.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// The connection has ended.
    #[error("the connection has ended: {0}")]
    Closed(Closed),
    /// The runtime or the engine refused the operation.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The memory for a message could not be registered.
    #[error("the message has no memory: {0}")]
    Register(#[from] RegisterError),
    /// All handles are in use.
    #[error("all operation handles of the endpoint are in use; drop those of finished operations")]
    NoHandleLeft,
    /// The list of memory pieces is invalid.
    #[error(transparent)]
    Pieces(#[from] PieceListError),
    /// The range exceeds the remote region.
    #[error(
        "{length} bytes at offset {offset} exceed the remote region of {limit} bytes; access fewer bytes, or let the peer offer a larger region"
    )]
    RemoteBounds {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of the region in bytes.
        limit: u64,
    },
    /// The operation refers to a status slot although it was posted without a handle. Contains the
    /// number of the slot.
    #[error(
        "status slot {0} may follow an operation of another handle; leave `status` empty, or post by a \
         method that returns a handle"
    )]
    Status(u32),
    /// The operation has more bytes than an operation can carry inline. Contains the number of
    /// bytes.
    #[error("{0} bytes exceed the {max} bytes that an operation carries by value; register the \
             memory", max = semantics::INLINE_BYTES_MAX)]
    InlineTooLong(usize),
    /// The operation has more bytes than any operation can carry. Contains the number of bytes.
    #[error("{0} bytes exceed the {max} bytes of an operation; split the operation", max = semantics::OPERATION_BYTES_MAX)]
    TooLong(u64),
}

impl From<semantics::PostError> for PostError {
    fn from(error: semantics::PostError) -> Self {
        Self::Submit(SubmitError::Post(error))
    }
}

/// Reason why an operation has no result.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OperationFailure {
    /// The operation failed.
    #[error("the operation failed: {0}")]
    Failed(#[from] OperationError),
    /// The operation was still pending when the limit of the wait expired. The operation continues.
    #[error(
        "the operation is not complete after {limit:?}: {bytes} of {length} bytes are done; wait again, or close the connection"
    )]
    TimedOut {
        /// Number of bytes acknowledged so far.
        bytes: u32,
        /// Number of bytes of the operation.
        length: u32,
        /// The limit.
        limit: Duration,
    },
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Reason why a completion queue was not polled.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PollError {
    /// The queue belongs to another endpoint.
    #[error("the completion queue belongs to another endpoint; poll it at that endpoint")]
    ForeignQueue,
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Reason why a wait ended without a result. Each wait has a limit, where `None` means no limit.
/// When the limit expires, the wait returns an error.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum WaitError {
    /// The limit has expired. No event is lost, so the call may be repeated.
    #[error("no event arrived within {limit:?}; wait again")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The connection has ended, and the program has already received all its events.
    #[error("the connection has ended: {0}")]
    Closed(Closed),
    /// The endpoint was shut down before or during the wait.
    #[error("the endpoint was shut down; make another endpoint")]
    ShutDown,
    /// The queue belongs to another endpoint.
    #[error("the completion queue belongs to another endpoint; wait for it at that endpoint")]
    ForeignQueue,
    /// At least one of the awaited objects belongs to another endpoint.
    #[error("one of the events belongs to another endpoint; wait for it at that endpoint")]
    Foreign,
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl From<PollError> for WaitError {
    fn from(error: PollError) -> Self {
        match error {
            PollError::ForeignQueue => Self::ForeignQueue,
            PollError::Forked(forked) => Self::Forked(forked),
        }
    }
}

/// Converts the result of a wait: `None` means that the limit has expired.
pub(crate) fn in_time<R>(found: Option<R>, limit: Option<Duration>) -> Result<R, WaitError> {
    found.ok_or(WaitError::TimedOut { limit: limit.unwrap_or(Duration::MAX) })
}

/// Reason why a link of a connection could not be added or removed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LinkError {
    /// The connection or the link does not exist, or the connection already has the highest number
    /// of links.
    #[error(
        "the connection has ended, the link is not attached, or all links of the connection are in use; look at \
         `Connection::info` and `Endpoint::links`"
    )]
    Refused,
    /// The process is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// The bytes do not describe a remote region. Contains the number of bytes.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("a description of a remote region has {expected} bytes, not {0}; let the peer send `RemoteRegion::to_bytes`", expected = crate::region::RemoteRegion::BYTES)]
pub struct RemoteRegionError(pub usize);
