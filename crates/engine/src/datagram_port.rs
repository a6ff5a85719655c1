//! Types for datagram ports, which serve queue pairs without connections: parameters and errors.

use std::sync::Arc;

use delivery::LinkId;
use mem::AccessError;
use semantics::{CompletionQueue, Owner, SharedReceives};
use thiserror::Error;
use wire_edge::{PeerAddr, QueuePairNumber};

/// Identifies an open port of an endpoint. While the endpoint exists, no two ports get equal
/// identifiers.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DatagramPort {
    pub(crate) number: QueuePairNumber,
    pub(crate) life: u32,
}

impl DatagramPort {
    /// Returns the queue pair number. Peers send datagrams to this number.
    pub const fn number(self) -> QueuePairNumber {
        self.number
    }

    /// Returns the owner that the completions of the port contain. The owner of a port never equals
    /// the owner of a connection, because connections have smaller indices.
    pub const fn owner(self) -> Owner {
        Owner::new(PORT_INDEX | self.number.get(), self.life)
    }
}

/// The parameters of a port to open.
#[derive(Clone, Debug)]
pub struct PortRequest {
    /// The queue pair number; not [`QueuePairNumber::GROUP`].
    pub number: QueuePairNumber,
    /// The queue key that datagrams must carry.
    pub key: u32,
    /// Queue for the completions of sent datagrams. Like a queue pair, the port reserves no places
    /// in the queue. If the queue is full, a completion is lost.
    pub send: Arc<CompletionQueue>,
    /// Queue for the completions of receives; `send` may be the same queue.
    pub receive: Arc<CompletionQueue>,
    /// Maximum number of posted receives. Has no effect if `shared_receives` is set.
    pub receives_max: u32,
    /// Shared queue from which this port, other ports and connections take receives. If a
    /// connection waits for a receive, the connection gets the receive before any datagram.
    pub shared_receives: Option<Arc<SharedReceives>>,
}

/// A datagram to send, without its payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutgoingDatagram {
    /// The link that carries the datagram.
    pub link: LinkId,
    /// The address of an endpoint or of a group.
    pub to: PeerAddr,
    /// The queue pair number at that address; [`QueuePairNumber::GROUP`] for a group.
    pub destination: QueuePairNumber,
    /// The queue key of the destination.
    pub key: u32,
    /// 32 bits that are delivered with the payload.
    pub immediate: Option<u32>,
    /// Whether the completion of the receive wakes a waiting application.
    pub solicited: bool,
    /// Whether a completion is queued when the driver has accepted the datagram. If the datagram
    /// fails, a completion is queued in any case.
    pub signalled: bool,
    /// A value of the caller. The completion returns it.
    pub context: u64,
}

/// Why a call for a datagram port failed. A failed call has no effect.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum DatagramError {
    /// The number [`QueuePairNumber::GROUP`] is not available for a port: it stands for all members
    /// of a group.
    #[error("queue pair number 0xffffff names the members of a group, not a port")]
    NumberOfGroup,
    /// Another port has this number.
    #[error("queue pair number {:#08x} is in use at this endpoint", .0.get())]
    NumberInUse(QueuePairNumber),
    /// The endpoint has the maximum number of ports.
    #[error("all {0} datagram ports of the endpoint are open; close some")]
    NoPortLeft(usize),
    /// The port was closed.
    #[error("the datagram port is not open any more")]
    Closed,
    /// The link is not attached.
    #[error("link {0} is not attached to this endpoint")]
    UnknownLink(u8),
    /// The payload is longer than a datagram on this link can carry.
    #[error("{length} bytes are more than a datagram on this link carries ({payload_max})")]
    TooLong {
        /// Length of the payload, in bytes.
        length: u32,
        /// Largest payload, in bytes.
        payload_max: u16,
    },
    /// The local memory does not exist, or the operation has no right to access it.
    #[error("local memory: {0}")]
    LocalAccess(#[from] AccessError),
    /// The maximum number of datagrams are waiting to be sent.
    #[error("{0} datagrams wait for their links, the most there can be; poll, and post again")]
    TooManyWaiting(usize),
    /// The port has the maximum number of posted receives.
    #[error("all {0} receives of the datagram port are posted")]
    ReceiveQueueFull(u32),
    /// The port takes its receives from a shared queue.
    #[error("the datagram port takes its receives from a shared queue; post them there")]
    ReceivesShared,
    /// A completion was lost because its queue had no room.
    #[error("a completion queue of the port is overrun, and takes no more")]
    Overrun,
    /// The address is not a group address.
    #[error("{0} is not the address of a group")]
    NotGroup(PeerAddr),
    /// All ports together already have the maximum number of memberships in groups.
    #[error(
        "the datagram ports of the endpoint have joined groups {0} times, the most there can be"
    )]
    NoGroupLeft(usize),
}

/// First index of a port. All connections have smaller indices (protocol.md §9: `CONNECTIONS_MAX`).
const PORT_INDEX: u32 = 1 << 31;
