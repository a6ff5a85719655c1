//! Events of ids, and the channels they come by.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs::{AddressVectorAttributes, Error, EventQueue};

use super::id::Id;
use super::ports::Host;

/// What has happened to an id: by the numbers of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum EventKind {
    /// The address was resolved: the id has a device.
    AddressResolved,
    /// It could not be.
    AddressError,
    /// The way to the address is known.
    RouteResolved,
    /// There is none.
    RouteError,
    /// Somebody asks for a connection.
    ConnectRequest,
    /// The peer says yes, and the program connects the queue pair by itself.
    ConnectResponse,
    /// The connection could not be made, for a reason on this side.
    ConnectError,
    /// No answer came.
    Unreachable,
    /// The peer says no.
    Rejected,
    /// There is a connection.
    Established,
    /// There is none any more.
    Disconnected,
    /// The device is gone.
    DeviceRemoval,
    /// The id is in a group.
    MulticastJoin,
    /// It could not be.
    MulticastError,
    /// The address of the device has changed.
    AddressChange,
    /// Nothing of the connection is in flight any more.
    TimewaitExit,
}

/// An event, which its id waits for to be acknowledged: [`Event::acknowledge`].
#[derive(Debug)]
pub struct Event {
    /// Of which id: with [`EventKind::ConnectRequest`] that of the connection to be.
    pub id: Arc<Id>,
    /// The id that listens.
    pub listener: Option<Arc<Id>>,
    /// What has happened.
    pub kind: EventKind,
    /// 0, a negative error number, or the reason that the peer has given.
    pub status: i32,
    /// What the event carries.
    pub details: Details,
    /// What the peer's program says, filled up with zeros.
    pub private_data: Vec<u8>,
}

/// What an event carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Details {
    /// Nothing.
    None,
    /// Of a connection.
    Connection(ConnectionDetails),
    /// Of datagrams.
    Datagrams(DatagramDetails),
}

/// What the peer wants of a connection, as this end sees it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ConnectionDetails {
    /// Reads and atomics of the peer that this end is to answer at a time.
    pub responder_resources: u8,
    /// Reads and atomics that this end may have outstanding at a time.
    pub initiator_depth: u8,
    /// Flow control of messages is offered.
    pub flow_control: bool,
    /// How often this end repeats what finds no answer.
    pub retries: u8,
    /// How often this end repeats what finds no receive.
    pub not_ready_retries: u8,
    /// The receives of the peer are shared.
    pub is_shared: bool,
    /// Number of the peer's queue pair.
    pub number: u32,
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatagramDetails {
    /// For an address handle.
    pub path: AddressVectorAttributes,
    /// Number of the queue pair there.
    pub number: u32,
    /// Its queue key.
    pub queue_key: u32,
    /// What the program said when it asked to be in a group.
    pub cookie: usize,
}

impl Event {
    /// An event that carries only this.
    pub(crate) fn of(id: Arc<Id>, kind: EventKind, status: i32) -> Self {
        let (listener, details, private_data) = (None, Details::None, Vec::new());
        Self { id, listener, kind, status, details, private_data }
    }

    /// The id that waits for it to be acknowledged.
    pub(crate) fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }

    /// Acknowledges the event, which the program does not need any more.
    pub fn acknowledge(&self) {
        self.owner().unacknowledged().acknowledge(1);
    }
}

/// What events of ids come by.
#[derive(Debug)]
pub struct EventChannel {
    host: Arc<Host>,
    events: EventQueue<Event>,
}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// [`Error::System`] if there is no descriptor left.
    pub fn new(host: &Arc<Host>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { host: Arc::clone(host), events: EventQueue::new()? }))
    }

    /// Returns the descriptor, which is readable while there is an event.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Returns the next event. Waits for it unless the descriptor is not to block.
    ///
    /// # Errors
    /// [`Error::Again`] if there is none and it is not to block, [`Error::System`] if a signal came.
    pub fn get(&self) -> Result<Event, Error> {
        let taken = |event: &Event| event.owner().unacknowledged().on_taken();
        // A thread may be here for as long as the program runs: others drive the device.
        let event = self.events.get(taken, |_| self.host.serve_alone())?;
        Ok(Id::on_taken(event))
    }

    /// Adds an event.
    pub(crate) fn push(&self, event: Event) {
        self.events.push(event);
    }

    /// Takes those that are meant out of it.
    pub(crate) fn take_those(&self, is_meant: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events.take_those(is_meant)
    }
}
