//! What can go wrong, each with the value at fault and the remedy.

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

/// Any error of this crate, for programs that only report them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint could not be made, or given a further link.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A service could not be offered.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No connection came about.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request could not be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// An operation could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An operation failed, or is not complete in time.
    #[error(transparent)]
    Operation(#[from] OperationFailure),
    /// A completion queue could not be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Memory of this side was not accessed.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// A range is not within a region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A wait ended without what was waited for.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Bytes are not a remote region.
    #[error(transparent)]
    RemoteRegion(#[from] RemoteRegionError),
    /// A link of a connection could not be added or removed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a service could not be offered.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ListenError {
    /// There is a listener for it.
    #[error("the endpoint listens for service {0} already; choose another number")]
    InUse(u32),
    /// The endpoint was shut down.
    #[error("the endpoint is shut down; listen on another one")]
    ShutDown,
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why no connection came about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing works with a setting of the connection.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The address could not be understood or resolved.
    #[error(transparent)]
    Peer(#[from] PeerSpecError),
    /// A link that the peer's address makes necessary could not be made.
    #[error("cannot make a link towards the peer: {0}")]
    Link(#[source] Box<BindError>),
    /// No host on raw Ethernet has the address or serves the port.
    #[error("no peer found on raw Ethernet: {0}")]
    Neighbour(#[from] PacketError),
    /// No local link can send to any of the addresses.
    #[error(
        "no link of this endpoint can send to {}; add one that does: IPv4 reaches IPv4 only, and \
         stations are reached by packet and xdp links",
        listed(.peers)
    )]
    NoWay {
        /// Where the peer was said to be.
        peers: Vec<PeerSpec>,
    },
    /// The request was refused on this side.
    #[error(transparent)]
    Request(#[from] engine::ConnectError),
    /// The protection domain is of another endpoint.
    #[error("the regions that the peer may reach: {0}")]
    Domain(#[source] RegisterError),
    /// The completion queue belongs to another endpoint.
    #[error(
        "the completion queue of the connection belongs to another endpoint; connections share a queue \
         only with others of their endpoint"
    )]
    ForeignQueue,
    /// The handshake ended without a connection.
    #[error("no connection to {peer}: {reason}")]
    Closed {
        /// The first address of the peer.
        peer: PeerAddr,
        /// Why: refused, rejected, unreachable, another version.
        #[source]
        reason: Closed,
        /// What the peer sent along with a rejection.
        private_data: Vec<u8>,
    },
    /// The endpoint was shut down.
    #[error("the endpoint is shut down; connect from another one")]
    ShutDown,
    /// The attempt has ended, and its outcome was reported already.
    #[error("the outcome of this attempt was returned before; connect again")]
    Answered,
    /// The limit of the attempt has passed.
    #[error(
        "{peer} did not accept within {limit:?}; does its program accept connections, and does the network carry the \
         frames?"
    )]
    TimedOut {
        /// The first address of the peer.
        peer: PeerAddr,
        /// How long was waited.
        limit: Duration,
    },
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

fn listed(peers: &[PeerSpec]) -> String {
    peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a request could not be accepted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// Nothing works with a setting of the connection.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// It is no longer there, or its answer is impossible.
    #[error(transparent)]
    Refused(#[from] engine::AcceptError),
    /// The protection domain is of another endpoint.
    #[error("the regions that the peer may reach: {0}")]
    Domain(#[source] RegisterError),
    /// The completion queue belongs to another endpoint.
    #[error(
        "the completion queue of the connection belongs to another endpoint; connections share a queue \
         only with others of their endpoint"
    )]
    ForeignQueue,
    /// The peer was lost before it heard of the acceptance.
    #[error("the peer is gone before it knew of the acceptance: {0}")]
    Closed(#[source] Closed),
    /// The endpoint was shut down.
    #[error(
        "the endpoint is shut down, so the request is rejected; accept requests of another endpoint"
    )]
    ShutDown,
    /// The limit has passed before the peer confirmed that it knows. The connection is given up.
    #[error(
        "the peer did not confirm the acceptance within {limit:?}; it is gone, or the network loses frames: wait for \
         its next request"
    )]
    TimedOut {
        /// How long was waited.
        limit: Duration,
    },
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why an operation could not be posted. Nothing happened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PostError {
    /// The connection has ended.
    #[error("the connection is over: {0}")]
    Closed(Closed),
    /// The runtime or the engine refused it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The memory of a message could not be registered.
    #[error("the message has no memory: {0}")]
    Register(#[from] RegisterError),
    /// All handles are in use.
    #[error("all operation handles of the endpoint are in use; drop those of finished operations")]
    NoHandleLeft,
    /// Pieces of memory are no list.
    #[error(transparent)]
    Pieces(#[from] PieceListError),
    /// The range leaves the remote region.
    #[error(
        "{length} bytes at offset {offset} leave the remote region of {limit} bytes; access less of it, or have the peer offer more"
    )]
    RemoteBounds {
        /// Offset of the first byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the region.
        limit: u64,
    },
    /// A status slot in an operation without a handle.
    #[error(
        "status slot {0} may follow an operation of another handle; leave `status` empty, or post by a \
         method that returns a handle"
    )]
    Status(u32),
    /// More bytes than an operation carries by value.
    #[error("{0} bytes are more than the {max} an operation carries by value; register them", max = semantics::INLINE_BYTES_MAX)]
    InlineTooLong(usize),
    /// More bytes than an operation carries.
    #[error("{0} bytes are more than the {max} an operation carries; split it", max = semantics::OPERATION_BYTES_MAX)]
    TooLong(u64),
}

impl From<semantics::PostError> for PostError {
    fn from(error: semantics::PostError) -> Self {
        Self::Submit(SubmitError::Post(error))
    }
}

/// Why an operation has no result.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OperationFailure {
    /// It failed.
    #[error("the operation failed: {0}")]
    Failed(#[from] OperationError),
    /// It is still pending when the limit of the wait has passed; it goes on.
    #[error(
        "the operation is not complete after {limit:?}: {bytes} of {length} bytes are done; wait again, or close the connection"
    )]
    TimedOut {
        /// Bytes acknowledged so far.
        bytes: u32,
        /// Bytes of the operation.
        length: u32,
        /// How long was waited.
        limit: Duration,
    },
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a completion queue was not polled.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PollError {
    /// Connections of another endpoint fill it.
    #[error(
        "the completion queue that was to be polled belongs to another endpoint; poll it there"
    )]
    ForeignQueue,
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Why a wait ended without what was waited for. All waits have a limit, `None` for as long as it takes, and say
/// by an error that it has passed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum WaitError {
    /// The limit has passed. Nothing is lost by it.
    #[error("nothing has come within {limit:?}; wait again")]
    TimedOut {
        /// How long was waited.
        limit: Duration,
    },
    /// The connection has ended, and nothing more comes of it.
    #[error("the connection is over: {0}")]
    Closed(Closed),
    /// The endpoint was shut down while somebody waited, or before.
    #[error("the endpoint was shut down; make another")]
    ShutDown,
    /// Connections of another endpoint fill the queue.
    #[error(
        "the completion queue that is waited for belongs to another endpoint; wait for it there"
    )]
    ForeignQueue,
    /// Something that is waited for belongs to another endpoint.
    #[error("something that is waited for belongs to another endpoint; wait for it there")]
    Foreign,
    /// In a forked child.
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

/// What came of a wait, of which nothing came within `limit` if there is none.
pub(crate) fn in_time<R>(found: Option<R>, limit: Option<Duration>) -> Result<R, WaitError> {
    found.ok_or(WaitError::TimedOut { limit: limit.unwrap_or(Duration::MAX) })
}

/// Why a link of a connection could not be added or removed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LinkError {
    /// The connection or the link does not exist, or there are as many links as there may be.
    #[error(
        "the connection is over, the link is not attached, or all links of the connection are in use; look at \
         `Connection::info` and `Endpoint::links`"
    )]
    Refused,
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Bytes that are not a remote region.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("a remote region is described by {expected} bytes, not {0}; have the peer send `RemoteRegion::to_bytes`", expected = crate::RemoteRegion::BYTES)]
pub struct RemoteRegionError(pub usize);
