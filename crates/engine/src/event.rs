//! The reports of the engine to the application, except completions: events of connections, reasons
//! for the end of a connection, and errors of calls.

use delivery::{LinkCounters, LinkId, LinkState, SettingError};
use semantics::{OperationError, Owner};
use thiserror::Error;
use wire_edge::{CloseReason, PeerAddr, RejectReason};

/// Identifies a connection of an endpoint. While the endpoint exists, no two connections get equal
/// handles.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ConnectionHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnectionHandle {
    /// Returns the index of the connection at its endpoint.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the connection whose completions contain this owner.
    pub const fn of(owner: Owner) -> Self {
        Self { index: owner.index(), generation: owner.life() }
    }

    /// Returns the owner that the completions of this connection contain.
    pub const fn owner(self) -> Owner {
        Owner::new(self.index, self.generation)
    }
}

/// An event of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection. Accept or reject the request.
    Requested {
        /// The requested connection.
        connection: ConnectionHandle,
        /// The number of the service that the peer requests.
        service: u32,
        /// The address of the peer. The peer has proved that it receives frames at this address.
        peer: PeerAddr,
        /// The peer wants a queue pair ([`Terms::queue_pair`](crate::Terms::queue_pair)).
        queue_pair: bool,
        /// The private data in the peer's request.
        private_data: Vec<u8>,
    },
    /// The connection is usable.
    Established {
        /// The connection.
        connection: ConnectionHandle,
        /// The private data in the peer's Accept.
        private_data: Vec<u8>,
    },
    /// The connection has ended, or could not be established. The engine has completed all
    /// outstanding operations and receives before this event.
    Closed {
        /// The connection.
        connection: ConnectionHandle,
        /// The reason.
        reason: Closed,
        /// The private data in the peer's Close or Reject.
        private_data: Vec<u8>,
    },
    /// A link of a connection started or stopped carrying data.
    Path {
        /// The connection.
        connection: ConnectionHandle,
        /// Index of the link within the connection.
        index: u8,
        /// The link at this endpoint.
        link: LinkId,
        /// The present state of the link.
        state: LinkState,
    },
}

/// The reason for the end of a connection.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Closed {
    /// The application on this side closed the connection.
    #[error("closed by this side")]
    Here,
    /// The peer closed the connection.
    #[error("closed by the peer; connect again if that was not meant")]
    ByPeer,
    /// The peer ended the connection because of an action of this side.
    #[error("ended by the peer: {0:?}; avoid what it refused, and connect again")]
    PeerRefused(CloseReason),
    /// This side ended the connection because of an action of the peer.
    #[error("ended because the peer broke a rule: {0:?}; report it, with a capture of the link")]
    PeerMisbehaved(CloseReason),
    /// Local memory of an operation was deregistered or unmapped before the operation was complete.
    #[error(
        "the local memory of an operation was deregistered or unmapped while it was in use; keep it until the operation \
         is complete"
    )]
    LocalMemory,
    /// The peer rejected the connection.
    #[error("rejected by the peer: {}", match .0 {
        RejectReason::Application => "its application refused; what it sent along may say why",
        RejectReason::NoListener => "nothing listens for this service; start its listener, or correct the number",
        RejectReason::ConnectionLimit => "its limit of connections is reached; try again later",
        RejectReason::Parameters => "it cannot accept our parameters; change the terms of the connection",
        RejectReason::Moved => "the service is elsewhere, and was not found there; try again",
        _ => "for a reason this version does not know; use the same version on both sides",
    })]
    Rejected(RejectReason),
    /// The peer speaks only other versions.
    #[error(
        "the peer speaks versions {lowest} to {highest} of the edge protocol, this side speaks 1; use the same \
         release on both sides"
    )]
    Version {
        /// Lowest version that the peer speaks.
        lowest: u16,
        /// Highest version that the peer speaks.
        highest: u16,
    },
    /// The peer was silent on all links for the whole silence budget.
    #[error(
        "{peer} did not answer for {silence_ms} ms; is it running, and {}?", match .peer.to_mac() {
            None => "does the network carry UDP to it",
            Some(_) => "on the same Ethernet, with the same EtherType and VLAN",
        }
    )]
    Unreachable {
        /// The address of the peer.
        peer: PeerAddr,
        /// How long the peer was silent, in milliseconds.
        silence_ms: u64,
    },
    /// No program listens at the peer's address.
    #[error("nothing listens at {0} (port unreachable); start the peer, or correct the address")]
    Refused(PeerAddr),
    /// The peer does not know the connection. Either the peer has restarted, or the peer dropped
    /// the connection because it received nothing from this side for too long.
    #[error(
        "the peer does not know the connection: it restarted, or heard nothing of this side for too long; connect again"
    )]
    PeerRestarted,
    /// An operation of this queue pair failed on this side. The completion of the operation
    /// contains the cause.
    #[error("an operation of this side failed; its completion says why")]
    OperationFailed,
    /// A completion queue had no room for a completion of this connection. The connection had
    /// reserved no place in the queue.
    #[error(
        "a completion of the connection was lost, as its completion queue was full; make it larger, or poll it \
         before more work is posted than it has room for"
    )]
    Overrun,
}

impl Closed {
    /// Returns the error with which outstanding operations complete.
    pub(crate) const fn operation_error(self) -> OperationError {
        match self {
            Self::Unreachable { .. } | Self::Refused(_) => OperationError::Unreachable,
            Self::PeerRestarted => OperationError::PeerRestarted,
            Self::PeerMisbehaved(_) => OperationError::ProtocolViolation,
            Self::ByPeer => OperationError::ClosedByPeer,
            Self::PeerRefused(_) | Self::Rejected(_) | Self::Version { .. } => {
                OperationError::EndedByPeer
            }
            Self::Here | Self::LocalMemory | Self::OperationFailed | Self::Overrun => {
                OperationError::Flushed
            }
        }
    }
}

/// Why [`Engine::connect`](crate::Engine::connect) failed.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The request contains no link and address.
    #[error("a connection needs at least one link and peer address; name some")]
    NoPath,
    /// The link is not attached.
    #[error("link {0} is not attached to this endpoint; name one that `Endpoint::links` lists")]
    UnknownLink(u8),
    /// There is more private data than a frame can carry.
    #[error("{0} bytes of private data are more than the {max} a handshake carries; send the rest as a message", max = wire_edge::PRIVATE_BYTES_MAX)]
    PrivateData(usize),
    /// The terms are invalid.
    #[error(transparent)]
    Terms(#[from] SettingError),
    /// The endpoint already has the maximum number of connections.
    #[error("all {0} connections of the endpoint are in use; close some or raise the limit")]
    NoConnectionLeft(u32),
}

/// Why a request could not be accepted.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AcceptError {
    /// The request has ended, or the application has already answered it.
    #[error("the request is no longer there, or was answered before; accept the next one")]
    Gone,
    /// There is more private data than a frame can carry.
    #[error("{0} bytes of private data are more than the {max} a handshake carries; send the rest as a message", max = wire_edge::PRIVATE_BYTES_MAX)]
    PrivateData(usize),
    /// The terms are invalid. The application can call `accept` again or reject the request.
    #[error(transparent)]
    Terms(#[from] SettingError),
}

/// There is no such connection, or it has ended.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the connection does not exist any more")]
pub struct Unknown;

/// State of one link of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathInfo {
    /// Index within the connection.
    pub index: u8,
    /// The link at this endpoint.
    pub link: LinkId,
    /// The peer's address on this link.
    pub peer: PeerAddr,
    /// State of the link.
    pub state: LinkState,
    /// Smoothed round trip, in nanoseconds.
    pub srtt_ns: u64,
    /// Measured rate, in bytes per second; `None` if the rate was not measured.
    pub rate_bytes_per_second: Option<u64>,
    /// Congestion window, in bytes.
    pub window_bytes: u32,
    /// Bytes in flight.
    pub in_flight_bytes: u32,
    /// Number of packets that the engine remembers: packets in flight, and lost packets that the
    /// peer may still acknowledge.
    pub packets: u16,
    /// Size of the largest frame that this end sends on the link, in bytes.
    pub frame_bytes: u16,
    /// Counters of the link.
    pub counters: LinkCounters,
}

/// State of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Whether operations may be posted.
    pub established: bool,
    /// Whether the connection is a queue pair. It is a queue pair if both ends want a queue pair.
    pub queue_pair: bool,
    /// Whether patches and swaps may be posted: both ends offer them, and it is no queue pair.
    pub patches: bool,
    /// Operations that were posted and are not complete.
    pub outstanding: u32,
    /// Number of messages that this end may post before a message must wait for a receive of the
    /// peer.
    pub credits: u32,
    /// Links of the connection.
    pub paths: Vec<PathInfo>,
}
