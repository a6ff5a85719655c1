//! Ids (`rdma_cm_id`). An id represents a connection, from address resolution to the last event of
//! the connection.

mod attributes;
pub(crate) mod connect;
mod group;
mod news;
mod resolve;

use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{Connector, Device, Error, QueuePair, QueuePairType, Unacknowledged};

use super::event::{Event, EventChannel, EventKind};
use super::manager::{ConnectionManager, Exchange, ManagedDevice, ManagerAttributes};
use super::message::End;
use super::port_space::{PortSpace, PrivateDataLimits};
use super::ports::{Claim, Heard, ManagedHost};

/// A communication identifier (`rdma_cm_id`).
///
/// Several threads may use the same id. A thread that holds the id's lock must not call the wire,
/// the transport that carries requests and connections. A thread of the wire also calls ids, and
/// such a call takes the id's lock. So if a thread called the wire with the lock held, it could
/// deadlock with a thread of the wire.
pub struct Id {
    this: Weak<Self>,
    host: Arc<ManagedHost>,
    space: PortSpace,
    service: QueuePairType,
    channel: Mutex<Arc<EventChannel>>,
    unacknowledged: Unacknowledged,
    inner: Mutex<Inner>,
    /// The exchange of the request that this id has sent or received. A thread that sends a request
    /// holds this lock until it has stored the exchange. A thread of the program that handles the
    /// answer waits for this lock, and so finds the exchange. Calls from the wire (the transport)
    /// never take this lock.
    exchange: Mutex<Option<Arc<dyn Exchange>>>,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    state: State,
    device: Option<ManagedDevice>,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    claim: Option<Claim>,
    heard: Option<Heard>,
    /// Of a listening id: `waiting` is the number of requests whose event the program has not read,
    /// and `backlog` is its maximum.
    backlog: usize,
    waiting: usize,
    queue_pair: Option<Arc<QueuePair>>,
    options: Options,
    own: Own,
    peer: Option<End>,
    groups: Vec<Group>,
}

/// State of an id.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// The id has no address.
    #[default]
    Idle,
    /// The id is bound to an address.
    Bound,
    /// The id is bound to a device and has the peer's address.
    AddressResolved,
    /// The route is known.
    RouteResolved,
    /// The id listens for connection requests.
    Listening,
    /// A request has arrived, but the program has not answered it.
    Requested,
    /// This side has sent a request.
    Connecting,
    /// The peer has accepted this side's request. The program has not read the event yet, or has
    /// not connected its queue pair.
    Answered,
    /// This side has accepted the peer's request, but the peer has not confirmed the connection.
    Accepted,
    /// The connection is established.
    Connected,
    /// The connection has ended.
    Disconnected,
    /// The connection could not be established.
    Failed,
    /// The id was destroyed.
    Destroyed,
}

/// Options that the program has set.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    is_address_shared: bool,
    traffic_class: u8,
    acknowledgement_timeout: Option<u8>,
    not_ready_timer: Option<u8>,
}

/// Options of an id (`rdma_set_option`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdOption {
    /// Type of service (traffic class) of the packets that this side sends.
    TypeOfService(u8),
    /// Whether other ids may use the same port.
    ReuseAddress(bool),
    /// Whether an id for IPv6 rejects IPv4. The option has no effect.
    OneFamily(bool),
    /// Timeout code of the queue pair: the timeout is 4.096 µs × 2^code.
    AcknowledgementTimeout(u8),
}

/// A multicast group that an id has joined.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Group {
    ip: IpAddr,
    /// Whether the id receives the datagrams of the group. If false, it only sends to the group.
    is_member: bool,
    is_attached: bool,
}

/// This side's parameters of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    number: u32,
    psn: u32,
    responder_resources: u8,
    initiator_depth: u8,
    retries: u8,
    not_ready_retries: u8,
    is_shared: bool,
    queue_key: Option<u32>,
}

impl Id {
    /// Creates an id. `service` is the transport service of the id's queue pairs. `None` stands for
    /// the default service of the port space.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the port space does not allow this service.
    pub fn new(
        host: &Arc<ManagedHost>,
        channel: &Arc<EventChannel>,
        space: PortSpace,
        service: Option<QueuePairType>,
    ) -> Result<Arc<Self>, Error> {
        let service = service.unwrap_or(space.service());
        let wants_datagrams = service == QueuePairType::Datagram;
        let is_known = match space {
            PortSpace::Tcp => !wants_datagrams,
            PortSpace::Udp | PortSpace::IpOverIb => wants_datagrams,
            PortSpace::Ib => true,
        };
        if !is_known {
            return Err(Error::Invalid(format!(
                "port space {space:?} has no {service:?} queue pairs"
            )));
        }
        Ok(Self::make(host, channel, space, service, Inner::default(), None))
    }

    fn make(
        host: &Arc<ManagedHost>,
        channel: &Arc<EventChannel>,
        space: PortSpace,
        service: QueuePairType,
        inner: Inner,
        exchange: Option<Arc<dyn Exchange>>,
    ) -> Arc<Self> {
        let mut inner = inner;
        inner.own.psn = fresh_psn();
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            host: Arc::clone(host),
            space,
            service,
            channel: Mutex::new(Arc::clone(channel)),
            unacknowledged: Unacknowledged::default(),
            inner: Mutex::new(inner),
            exchange: Mutex::new(exchange),
            user: AtomicUsize::new(0),
        })
    }

    /// Returns the port space.
    pub const fn space(&self) -> PortSpace {
        self.space
    }

    /// Returns the service of the id's queue pairs.
    pub const fn service(&self) -> QueuePairType {
        self.service
    }

    /// Returns the maximum lengths of private data in this id's messages. Before the device is
    /// known, these are the lengths of InfiniBand.
    pub fn private_data_limits(&self) -> PrivateDataLimits {
        let (space, service) = (self.space, self.service);
        let limits =
            |manager: Arc<dyn ConnectionManager>| manager.private_data_limits(space, service);
        self.manager().map_or_else(|| PrivateDataLimits::infiniband(space, service), limits)
    }

    /// Returns whether the route to the peer has a path record of InfiniBand.
    pub fn has_path_record(&self) -> bool {
        self.manager_attributes().has_path_record
    }

    /// Returns the device of the id; `None` if the device is not known yet.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.lock().device.as_ref().map(|managed| Arc::clone(&managed.device))
    }

    fn manager(&self) -> Option<Arc<dyn ConnectionManager>> {
        self.lock().device.as_ref().map(|managed| Arc::clone(&managed.manager))
    }

    /// Returns the properties of the device's connection manager. Before the device is known, these
    /// are the properties of InfiniBand's connection manager.
    fn manager_attributes(&self) -> ManagerAttributes {
        self.manager().map_or(ManagerAttributes::INFINIBAND, |manager| manager.attributes())
    }

    /// Returns whether the wire connects the queue pair of this id.
    fn is_connected_by_wire(&self) -> bool {
        let is_datagram = self.service == QueuePairType::Datagram;
        let connector = self.device().map(|device| device.attributes().transport().connector());
        !is_datagram && connector == Some(Connector::Manager)
    }

    /// Returns the local address, if the id has one.
    pub fn local(&self) -> Option<SocketAddr> {
        self.lock().local
    }

    /// Returns the address of the peer, if the id has one.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.lock().remote
    }

    /// Returns the channel that receives the id's events.
    pub fn channel(&self) -> Arc<EventChannel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the id's queue pair, if one is attached.
    pub fn queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.lock().queue_pair.clone()
    }

    /// Sets an option.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the value is out of range, or if the state of the id no longer
    /// allows the option.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.lock();
        match option {
            IdOption::TypeOfService(class) => inner.options.traffic_class = class,
            IdOption::ReuseAddress(is_shared) => {
                inner.check("setting options", |state| state == State::Idle)?;
                inner.options.is_address_shared = is_shared;
            }
            IdOption::OneFamily(_) => {}
            IdOption::AcknowledgementTimeout(code) if code < 32 => {
                inner.options.acknowledgement_timeout = Some(code);
            }
            IdOption::AcknowledgementTimeout(code) => {
                return Err(Error::Invalid(format!("a timeout code of {code}: at most 31")));
            }
        }
        Ok(())
    }

    /// Moves the id and its unread events to another channel. Waits until the program has
    /// acknowledged every event of the id that the program has read.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the id is destroyed.
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        self.lock().check("moving an id", |_| true)?;
        {
            // A thread that queues an event of this id holds this lock. So no event is added to the
            // old channel after its events have moved.
            let mut current = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
            if !Arc::ptr_eq(&current, channel) {
                for event in current.take_those(|event| self.waits_for(event)) {
                    channel.push(event);
                }
                *current = Arc::clone(channel);
            }
        }
        self.unacknowledged.wait();
        Ok(())
    }

    /// Destroys the id, in any state. Waits until the program has acknowledged every event of the
    /// id that the program has read.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the id is already destroyed.
    pub fn destroy(&self) -> Result<(), Error> {
        let (heard, claim, device, queue_pair, groups) = {
            let mut inner = self.lock();
            inner.check("destroying an id", |_| true)?;
            inner.state = State::Destroyed;
            let groups = std::mem::take(&mut inner.groups);
            let (heard, claim) = (inner.heard.take(), inner.claim.take());
            (heard, claim, inner.device.take(), inner.queue_pair.take(), groups)
        };
        for group in groups {
            group.leave(queue_pair.as_ref());
        }
        drop((heard, claim));
        drop(self.take_exchange());
        let left = self.channel().take_those(|event| self.waits_for(event));
        drop((left, device, queue_pair));
        self.unacknowledged.wait();
        Ok(())
    }

    pub(super) const fn unacknowledged(&self) -> &Unacknowledged {
        &self.unacknowledged
    }

    /// Returns whether the destruction of this id must wait for the acknowledgement of `event`.
    fn waits_for(&self, event: &Event) -> bool {
        std::ptr::eq(Arc::as_ptr(event.owner()), self)
    }

    fn report(&self, event: Event) {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.push(event);
    }

    /// Queues an event without parameters for this id.
    fn report_kind(&self, kind: EventKind, status: i32) {
        if let Some(this) = self.this.upgrade() {
            self.report(Event::of(this, kind, status));
        }
    }

    fn take_exchange(&self) -> Option<Arc<dyn Exchange>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn exchange(&self) -> Option<Arc<dyn Exchange>> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns an error if `is_allowed` returns false for the state. `what` names the action in the
    /// error.
    fn check(&self, what: &str, is_allowed: impl Fn(State) -> bool) -> Result<(), Error> {
        let state = self.state;
        if state == State::Destroyed {
            return Err(Error::Invalid(format!("{what}: the id was destroyed")));
        }
        if is_allowed(state) {
            return Ok(());
        }
        Err(Error::Invalid(format!("{what}: the id is {state:?}")))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        let Inner { state, local, remote, .. } = &*inner;
        f.debug_struct("Id")
            .field("space", &self.space)
            .field("state", state)
            .field("local", local)
            .field("remote", remote)
            .finish_non_exhaustive()
    }
}

/// Returns a packet sequence number for the first packet of a connection. Peers cannot guess the
/// number, because it comes from the random seed of the standard library's hash tables.
fn fresh_psn() -> u32 {
    let random = std::hash::RandomState::new().hash_one(0_u8);
    random as u32 & 0xff_ffff
}

/// Queue key of datagram queue pairs and multicast groups for which the program sets no key
/// (`RDMA_UDP_QKEY`).
pub const QUEUE_KEY: u32 = 0x0123_4567;
