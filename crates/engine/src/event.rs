//! Events: what the engine reports to the application about connections, besides completions; why a connection ended;
//! and the errors of calls.

use delivery::{LinkCounters, LinkId, LinkState, SettingError};
use semantics::{OperationError, Owner};
use thiserror::Error;
use wire_edge::{CloseReason, PeerAddr, RejectReason};

/// Names a connection of an endpoint; never the same for two connections of one life of it.
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

    /// Returns the connection whose completions carry this owner.
    pub const fn of(owner: Owner) -> Self {
        Self { index: owner.index(), generation: owner.life() }
    }

    /// Returns what the completions of the connection carry.
    pub const fn owner(self) -> Owner {
        Owner::new(self.index, self.generation)
    }
}

/// News of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection: accept or reject it.
    Requested {
        /// The connection to be.
        connection: ConnectionHandle,
        /// Which listener is meant.
        service: u32,
        /// Where the request came from: the peer has shown that it receives there.
        peer: PeerAddr,
        /// The peer wants a queue pair ([`Terms::queue_pair`](crate::Terms::queue_pair)).
        queue_pair: bool,
        /// What the peer sent along.
        private_data: Vec<u8>,
    },
    /// The connection is usable. To the side that connected, with what the other sent along.
    Established {
        /// Which connection.
        connection: ConnectionHandle,
        /// What the peer sent along with its acceptance.
        private_data: Vec<u8>,
    },
    /// The connection has ended, or could not be established; everything outstanding was completed.
    Closed {
        /// Which connection.
        connection: ConnectionHandle,
        /// Why.
        reason: Closed,
        /// What the peer sent along.
        private_data: Vec<u8>,
    },
    /// A link of a connection began or ceased to carry data.
    Path {
        /// Which connection.
        connection: ConnectionHandle,
        /// Index of the link within the connection.
        index: u8,
        /// The link at this endpoint.
        link: LinkId,
        /// Where it stands now.
        state: LinkState,
    },
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Closed {
    /// The application at this side closed it.
    #[error("closed by this side")]
    Here,
    /// The peer closed it.
    #[error("closed by the peer; connect again if that was not meant")]
    ByPeer,
    /// The peer ended it because of what this side did.
    #[error("ended by the peer: {0:?}; do otherwise what it refused, and connect again")]
    PeerRefused(CloseReason),
    /// This side ended it because of what the peer did.
    #[error("ended because the peer broke a rule: {0:?}; report it, with a capture of the link")]
    PeerMisbehaved(CloseReason),
    /// The local memory of an operation is gone.
    #[error(
        "the local memory of an operation was deregistered or unmapped while it was under way; keep it until the operation \
         is complete"
    )]
    LocalMemory,
    /// The peer does not want the connection.
    #[error("rejected by the peer: {}", match .0 {
        RejectReason::Application => "its application refused; what it sent along may say why",
        RejectReason::NoListener => "nothing listens for this service; start its listener, or correct the number",
        RejectReason::ConnectionLimit => "its limit of connections is reached; try again later",
        RejectReason::Parameters => "it cannot accept our parameters; change the terms of the connection",
        RejectReason::Moved => "the service is elsewhere, and was not found there; try again",
        _ => "for a reason this version does not know; use the same version on both sides",
    })]
    Rejected(RejectReason),
    /// The peer speaks other versions.
    #[error(
        "the peer speaks versions {lowest} to {highest} of the edge protocol, this side speaks 1; use the same \
         release on both sides"
    )]
    Version {
        /// Lowest version it speaks.
        lowest: u16,
        /// Highest version it speaks.
        highest: u16,
    },
    /// No link reached the peer for the whole silence budget.
    #[error(
        "{peer} did not answer for {silence_ms} ms; is it running, and {}?", match .peer.to_mac() {
            None => "does the network carry UDP to it",
            Some(_) => "on the same Ethernet, with the same EtherType and VLAN",
        }
    )]
    Unreachable {
        /// Where it was.
        peer: PeerAddr,
        /// How long it was waited for, in milliseconds.
        silence_ms: u64,
    },
    /// Nothing listens at the peer's address.
    #[error("nothing listens at {0} (port unreachable); start the peer, or correct the address")]
    Refused(PeerAddr),
    /// The peer knows nothing of the connection: it restarted, or gave the connection up, as it heard nothing of this
    /// side for too long.
    #[error(
        "the peer does not know the connection: it restarted, or heard nothing of this side for too long; connect again"
    )]
    PeerRestarted,
    /// An operation of this queue pair failed on this side: its completion says why.
    #[error("an operation of this side failed; its completion says why")]
    OperationFailed,
    /// A completion queue of the connection, which promises no places, had no room for a completion.
    #[error(
        "a completion of the connection was lost, as its completion queue was full; make it larger, or poll it \
         before more work is posted than it has room for"
    )]
    Overrun,
}

impl Closed {
    /// What operations learn that were outstanding.
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

/// Why a connection could not be asked for.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ConnectError {
    /// No address to connect to.
    #[error("a connection needs at least one link and peer address; name some")]
    NoPath,
    /// The link was never attached.
    #[error("link {0} is not attached to this endpoint; name one that `Endpoint::links` lists")]
    UnknownLink(u8),
    /// More private data than a frame takes.
    #[error("{0} bytes of private data are more than the {max} a handshake carries; send the rest as a message", max = wire_edge::PRIVATE_BYTES_MAX)]
    PrivateData(usize),
    /// Nothing works under these terms.
    #[error(transparent)]
    Terms(#[from] SettingError),
    /// All connections are in use.
    #[error("all {0} connections of the endpoint are in use; close some or raise the limit")]
    NoConnectionLeft(u32),
}

/// Why a request could not be accepted.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum AcceptError {
    /// It is no longer there, or was answered before.
    #[error("the request is no longer there, or was answered before; accept the next one")]
    Gone,
    /// More private data than a frame takes.
    #[error("{0} bytes of private data are more than the {max} a handshake carries; send the rest as a message", max = wire_edge::PRIVATE_BYTES_MAX)]
    PrivateData(usize),
    /// Nothing works under these terms. The request still waits.
    #[error(transparent)]
    Terms(#[from] SettingError),
}

/// The connection does not exist (any more).
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the connection does not exist any more")]
pub struct Unknown;

/// What is known of one link of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathInfo {
    /// Index within the connection.
    pub index: u8,
    /// The link at this endpoint.
    pub link: LinkId,
    /// The peer's address on it.
    pub peer: PeerAddr,
    /// Where it stands.
    pub state: LinkState,
    /// Smoothed round trip, in nanoseconds.
    pub srtt_ns: u64,
    /// Measured rate, in bytes per second.
    pub rate_bytes_per_second: Option<u64>,
    /// Congestion window, in bytes.
    pub window_bytes: u32,
    /// Bytes in flight.
    pub in_flight_bytes: u32,
    /// Packets that are in flight or remembered as lost.
    pub packets: u16,
    /// Largest frame, in bytes.
    pub frame_bytes: u16,
    /// Everything counted.
    pub counters: LinkCounters,
}

/// What is known of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Whether operations may be posted.
    pub established: bool,
    /// Whether it is a queue pair: both ends want that.
    pub queue_pair: bool,
    /// Operations posted and not complete.
    pub outstanding: u32,
    /// Messages that may be posted until the peer grants more, beside those that wait for it.
    pub credits: u32,
    /// Its links.
    pub paths: Vec<PathInfo>,
}
