//! Ids: what becomes of a connection, from the first address to the last event.

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

use verbs::{Device, Error, QueuePair, QueuePairType, Unacknowledged};

use super::event::{Event, EventChannel, EventKind};
use super::manager::{Exchange, ManagedDevice};
use super::message::End;
use super::port_space::{PortSpace, PrivateLimits};
use super::ports::{Claim, Heard, Host};

/// A communication identifier.
///
/// A program may use it from several threads. Nothing of the wire is called while its lock is held, as the wire reports to it
/// what happens from within.
pub struct Id {
    this: Weak<Self>,
    host: Arc<Host>,
    space: PortSpace,
    service: QueuePairType,
    channel: Mutex<Arc<EventChannel>>,
    unacknowledged: Unacknowledged,
    inner: Mutex<Inner>,
    /// The request it has made or got. Held while it is made, so that the thread that gets the answer finds it; the wire never
    /// asks for it.
    exchange: Mutex<Option<Arc<dyn Exchange>>>,
    /// Whatever the surface keeps with it.
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
    /// Requests that listen's queue has room for, and those that the program has not taken.
    backlog: usize,
    waiting: usize,
    queue_pair: Option<Arc<QueuePair>>,
    options: Options,
    own: Own,
    peer: Option<End>,
    groups: Vec<Group>,
}

/// Where an id stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// It has no address.
    #[default]
    Idle,
    /// It has one.
    Bound,
    /// It has a device and knows whom it is to reach.
    AddressResolved,
    /// It knows the way.
    RouteResolved,
    /// It waits for requests.
    Listening,
    /// It was asked, and the program has not answered.
    Requested,
    /// It has asked.
    Connecting,
    /// The peer has said yes, and the program does not know or has not connected its queue pair.
    Answered,
    /// It has said yes, and does not know whether the peer has heard.
    Accepted,
    /// There is a connection.
    Connected,
    /// There was one.
    Disconnected,
    /// There will be none.
    Failed,
    /// It was destroyed.
    Destroyed,
}

/// What the program has set.
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
    /// Traffic class of what is sent.
    TypeOfService(u8),
    /// Others may have the same port.
    ReuseAddress(bool),
    /// An id for IPv6 takes nothing of IPv4: taken and of no effect.
    OneFamily(bool),
    /// Timeout code of its queue pair.
    AcknowledgementTimeout(u8),
}

/// A group that an id is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Group {
    ip: IpAddr,
    /// It gets what is sent to the group, and does not only send.
    is_member: bool,
    is_attached: bool,
}

/// What this end has of a connection.
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
    /// Creates an id. Its queue pairs give `service` if it is named, and otherwise that of the port space.
    ///
    /// # Errors
    /// [`Error::Invalid`] if queue pairs of the port space give no such service.
    pub fn new(
        host: &Arc<Host>,
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
            return Err(Error::Invalid(format!("{service:?} queue pairs of port space {space:?}")));
        }
        Ok(Self::make(host, channel, space, service, Inner::default(), None))
    }

    fn make(
        host: &Arc<Host>,
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

    /// Returns its port space.
    pub const fn space(&self) -> PortSpace {
        self.space
    }

    /// Returns the service of its queue pairs.
    pub const fn service(&self) -> QueuePairType {
        self.service
    }

    /// Returns the largest private data that its program may send.
    pub const fn private_limits(&self) -> PrivateLimits {
        PrivateLimits::of(self.space, self.service)
    }

    /// Returns the device to which it belongs, once it is known.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.lock().device.as_ref().map(|managed| Arc::clone(&managed.device))
    }

    /// Returns its own address.
    pub fn local(&self) -> Option<SocketAddr> {
        self.lock().local
    }

    /// Returns the address of its peer.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.lock().remote
    }

    /// Returns the channel that its events come by.
    pub fn channel(&self) -> Arc<EventChannel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the queue pair that is connected with it.
    pub fn queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.lock().queue_pair.clone()
    }

    /// Sets an option.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the value is none, or it is too late.
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

    /// Moves its events to another channel, those that the program has not taken included, and waits until those that were
    /// taken are acknowledged.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was destroyed.
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        self.lock().check("moving an id", |_| true)?;
        {
            // Events are reported under this lock, so none comes by the old channel later.
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

    /// Ends it, whatever it is at, and waits until the events of it that were taken are acknowledged.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was.
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

    /// Whether an event is one of those that it waits for.
    fn waits_for(&self, event: &Event) -> bool {
        std::ptr::eq(Arc::as_ptr(event.owner()), self)
    }

    fn report(&self, event: Event) {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.push(event);
    }

    /// Describes itself.
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
    /// Whether an id in this state may do something.
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

/// The number of a first packet, which no peer can guess: the standard library's tables are seeded so.
fn fresh_psn() -> u32 {
    let random = std::hash::RandomState::new().hash_one(0_u8);
    random as u32 & 0xff_ffff
}

/// Queue key of datagram queue pairs and groups, if the program sets none (`RDMA_UDP_QKEY`).
pub const QUEUE_KEY: u32 = 0x0123_4567;
