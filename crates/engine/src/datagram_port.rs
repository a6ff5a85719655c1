//! Ports of datagrams: what a queue pair without connections requests, and what is reported to it.

use std::sync::Arc;

use delivery::LinkId;
use mem::AccessError;
use semantics::{CompletionQueue, Owner, SharedReceives};
use thiserror::Error;
use wire_edge::{PeerAddr, QueuePairNumber};

/// Names an open port of an endpoint; never the same for two ports of one life of it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DatagramPort {
    pub(crate) number: QueuePairNumber,
    pub(crate) life: u32,
}

impl DatagramPort {
    /// Returns the queue pair number, by which peers name it.
    pub const fn number(self) -> QueuePairNumber {
        self.number
    }

    /// Returns what the completions of the port carry; never that of a connection, whose indices are smaller.
    pub const fn owner(self) -> Owner {
        Owner::new(PORT_INDEX | self.number.get(), self.life)
    }
}

/// A port to be.
#[derive(Clone, Debug)]
pub struct PortRequest {
    /// The queue pair number; not [`QueuePairNumber::GROUP`].
    pub number: QueuePairNumber,
    /// The queue key that datagrams must carry.
    pub key: u32,
    /// Where completions of datagrams that are sent go. Nothing is promised there, as for queue pairs.
    pub send: Arc<CompletionQueue>,
    /// Where completions of receives go; may be the same.
    pub receive: Arc<CompletionQueue>,
    /// Receives posted at a time, if the port has receives of its own.
    pub receives_max: u32,
    /// Takes its receives from here instead, with other ports and connections. A datagram for which there is none
    /// does not wait, and takes none that somebody waits for.
    pub shared_receives: Option<Arc<SharedReceives>>,
}

/// A datagram to be sent; its payload is said beside it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutgoingDatagram {
    /// The link it takes.
    pub link: LinkId,
    /// Where it goes: the address of an endpoint, or of a group.
    pub to: PeerAddr,
    /// The queue pair there; [`QueuePairNumber::GROUP`] for a group.
    pub destination: QueuePairNumber,
    /// The queue key of that.
    pub key: u32,
    /// Delivered with the payload.
    pub immediate: Option<u32>,
    /// The completion of the receive wakes a waiting application.
    pub solicited: bool,
    /// A completion is queued when the datagram was handed over. When it fails, one is in any case.
    pub signalled: bool,
    /// Comes back in the completion.
    pub context: u64,
}

/// Why something could not be done with a port of datagrams. Nothing happened.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum DatagramError {
    /// The number names all members of a group.
    #[error("queue pair number 0xffffff names the members of a group, not a port")]
    NumberOfGroup,
    /// Another port has this number.
    #[error("queue pair number {:#08x} is in use at this endpoint", .0.get())]
    NumberInUse(QueuePairNumber),
    /// The endpoint has as many ports as there can be.
    #[error("all {0} datagram ports of the endpoint are open; close some")]
    NoPortLeft(usize),
    /// The port was closed.
    #[error("the datagram port is not open any more")]
    Closed,
    /// The link is not attached.
    #[error("link {0} is not attached to this endpoint")]
    UnknownLink(u8),
    /// More payload than a datagram on this link carries.
    #[error("{length} bytes are more than a datagram on this link carries ({payload_max})")]
    TooLong {
        /// Bytes asked for.
        length: u32,
        /// Most bytes.
        payload_max: u16,
    },
    /// The local bytes are not there, or may not be written.
    #[error("local memory: {0}")]
    LocalAccess(#[from] AccessError),
    /// As many datagrams wait to be sent as may.
    #[error("{0} datagrams wait for their links, the most there can be; poll, and post again")]
    TooManyWaiting(usize),
    /// The port has as many receives as it asked for.
    #[error("all {0} receives of the datagram port are posted")]
    ReceiveQueueFull(u32),
    /// Receives were posted to a port that has none of its own.
    #[error("the datagram port takes its receives from a shared queue; post them there")]
    ReceivesShared,
    /// A completion was lost as its queue had no room.
    #[error("a completion queue of the port is overrun, and takes no more")]
    Overrun,
    /// The address is not that of many hosts.
    #[error("{0} is not the address of a group")]
    NotGroup(PeerAddr),
    /// The endpoint is in as many groups as it can be.
    #[error(
        "the datagram ports of the endpoint have joined groups {0} times, the most there can be"
    )]
    NoGroupLeft(usize),
}

/// Beyond all indices of connections (protocol.md §9: `CONNECTIONS_MAX`).
const PORT_INDEX: u32 = 1 << 31;
