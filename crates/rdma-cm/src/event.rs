//! Events of ids (`rdma_cm_id`), and event channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs::{AddressVectorAttributes, Error, EventQueue};

use super::id::Id;
use super::ports::ManagedHost;

/// Kind of an event, with the numbers of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum EventKind {
    /// The peer's address is resolved, and the id has a device.
    AddressResolved,
    /// The peer's address could not be resolved.
    AddressError,
    /// The route to the peer is resolved.
    RouteResolved,
    /// There is no route to the peer.
    RouteError,
    /// A peer requests a connection.
    ConnectRequest,
    /// The peer accepted this side's request. The program must connect the queue pair.
    ConnectResponse,
    /// The connection failed for a reason on this side.
    ConnectError,
    /// The peer did not answer.
    Unreachable,
    /// The peer rejected this side's request.
    Rejected,
    /// The connection is established.
    Established,
    /// The connection has ended.
    Disconnected,
    /// The device has been removed.
    DeviceRemoval,
    /// The id has joined a multicast group.
    MulticastJoin,
    /// The id could not join the multicast group.
    MulticastError,
    /// The address of the device has changed.
    AddressChange,
    /// The connection has ended, and none of its packets is in flight any more.
    TimewaitExit,
}

/// An event. The program must [acknowledge](Event::acknowledge) it. A call that destroys the
/// event's id waits for the acknowledgement.
#[derive(Debug)]
pub struct Event {
    /// The id to which the event belongs. For [`EventKind::ConnectRequest`], this is the id of the
    /// new connection.
    pub id: Arc<Id>,
    /// The listening id, if the event is a connection request.
    pub listener: Option<Arc<Id>>,
    /// Kind of the event.
    pub kind: EventKind,
    /// 0 on success. Otherwise a negative `errno`, or the peer's reason code for rejecting the
    /// request.
    pub status: i32,
    /// Parameters of the event.
    pub details: Details,
    /// Private data of the peer's program, padded with zeros.
    pub private_data: Vec<u8>,
}

/// Parameters of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Details {
    /// The event has no parameters.
    None,
    /// Parameters of a connection.
    Connection(ConnectionDetails),
    /// Parameters for sending datagrams.
    Datagrams(DatagramDetails),
}

/// The parameters of a connection that this end must use. They come from the peer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ConnectionDetails {
    /// Maximum number of reads and atomics of the peer that this end must answer at the same time.
    pub responder_resources: u8,
    /// Maximum number of reads and atomics that this end may have in flight.
    pub initiator_depth: u8,
    /// Whether the peer offers end-to-end flow control.
    pub flow_control: bool,
    /// Number of times that this end retransmits a request which gets no answer.
    pub retries: u8,
    /// Number of times that this end retransmits a message for which the peer has no receive
    /// posted.
    pub not_ready_retries: u8,
    /// Whether the peer uses a shared receive queue.
    pub is_shared: bool,
    /// The peer's queue pair number.
    pub number: u32,
}

/// Destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatagramDetails {
    /// Path with which the program can create an address handle.
    pub path: AddressVectorAttributes,
    /// Queue pair number of the destination.
    pub number: u32,
    /// Queue key of the destination.
    pub queue_key: u32,
    /// The value that the program passed to [`Id::join`]; 0 for other events.
    pub cookie: usize,
}

impl Event {
    /// Creates an event without parameters.
    pub(crate) fn of(id: Arc<Id>, kind: EventKind, status: i32) -> Self {
        let (listener, details, private_data) = (None, Details::None, Vec::new());
        Self { id, listener, kind, status, details, private_data }
    }

    /// Returns the id whose destruction waits until the event is acknowledged: the listening id for
    /// a connection request, otherwise the id of the event.
    pub(crate) fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }

    /// Acknowledges the event.
    pub fn acknowledge(&self) {
        self.owner().unacknowledged().acknowledge(1);
    }
}

/// Channel through which programs receive the events of ids.
#[derive(Debug)]
pub struct EventChannel {
    host: Arc<ManagedHost>,
    events: EventQueue<Event>,
}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// Returns [`Error::System`] if the process can open no more file descriptors.
    pub fn new(host: &Arc<ManagedHost>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { host: Arc::clone(host), events: EventQueue::new()? }))
    }

    /// Returns the file descriptor, which is readable if an event is queued.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Dequeues the next event. Waits for an event unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// * Returns [`Error::Again`] if no event is queued and the descriptor is non-blocking.
    /// * Returns [`Error::System`] if a signal interrupts the wait.
    pub fn get(&self) -> Result<Event, Error> {
        let taken = |event: &Event| event.owner().unacknowledged().on_taken();
        // The wait for an event can last until the program ends, and this thread does not drive the
        // devices while it waits. So notify the devices that another thread must drive them.
        let event = self.events.get(taken, |_| self.host.serve_alone())?;
        Ok(Id::on_taken(event))
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: Event) {
        self.events.push(event);
    }

    /// Removes the events for which `is_meant` returns true, and returns them.
    pub(crate) fn take_those(&self, is_meant: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events.take_those(is_meant)
    }
}
