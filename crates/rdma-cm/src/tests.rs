//! Tests of ids on a wire (a transport) in memory: which events ids get, in which order, and which
//! calls fail.

mod two_wires;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mem::{MemoryTable, TableLimits};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{
    AttributeMask, Device, DeviceAttributes, Error, Gid, GidEntry, GidKind, OnDemandPaging,
    PortAttributes, PortState, Provider, QueuePair, QueuePairState, QueuePairType, Registry,
    Services, Strictness, Transport, Vendor, Wire,
};
use work::SharedReceives;

use super::*;

/// A device with queue pairs that carry nothing, and that passes requests through memory.
struct Memory {
    attributes: DeviceAttributes,
    registry: Arc<Registry>,
    table: Arc<MemoryTable>,
    next_number: AtomicU32,
    manager: ManagerAttributes,
    addresses: Vec<IpAddr>,
    claims: Arc<Claims>,
    /// Numbers of the queue pairs that the manager has connected.
    connected: Arc<Mutex<Vec<u32>>>,
    /// If not 0, the status with which each connection attempt fails.
    failure: AtomicI32,
    listeners: Mutex<Vec<Listens>>,
    /// Sequence number of the requester's first packet, from the latest request.
    asked_psn: AtomicU32,
}

/// Ports of a device.
struct Claims {
    /// Number of claims of each address.
    counts: Mutex<HashMap<SocketAddr, usize>>,
    /// Ports that another process of the host has.
    foreign: Mutex<HashSet<u16>>,
    /// The port that the device chooses next.
    next: AtomicU16,
}

struct Claimed {
    claims: Arc<Claims>,
    at: SocketAddr,
}

impl Claims {
    fn new(first: u16) -> Arc<Self> {
        let (counts, foreign) = (Mutex::default(), Mutex::default());
        Arc::new(Self { counts, foreign, next: AtomicU16::new(first) })
    }

    fn claim(self: &Arc<Self>, at: SocketAddr) -> Result<Claimed, Error> {
        let port = match at.port() {
            0 => self.next.fetch_add(1, Ordering::SeqCst),
            port => port,
        };
        let at = SocketAddr::new(at.ip(), port);
        let mut counts = lock(&self.counts);
        let overlaps = |known: &SocketAddr| {
            let is_any = known.ip().is_unspecified() || at.ip().is_unspecified();
            known.port() == port && *known != at && is_any
        };
        if lock(&self.foreign).contains(&port) || counts.keys().any(overlaps) {
            let number = Errno::EADDRINUSE as i32;
            return Err(Error::System { what: format!("claiming {at}"), number });
        }
        *counts.entry(at).or_default() += 1;
        Ok(Claimed { claims: Arc::clone(self), at })
    }

    /// Returns the claimed ports, in order.
    fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = lock(&self.counts).keys().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports
    }
}

impl PortClaim for Claimed {
    fn address(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut counts = lock(&self.claims.counts);
        let count = counts.get_mut(&self.at).expect("it is claimed");
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.at);
        }
    }
}

struct Listens {
    at: SocketAddr,
    space: PortSpace,
    listener: Arc<dyn Listener>,
    is_there: Arc<AtomicBool>,
}

/// One end of an exchange.
struct Side {
    manager: ManagerAttributes,
    service: QueuePairType,
    /// Numbers of the queue pairs that the manager has connected.
    connected: Arc<Mutex<Vec<u32>>>,
    caller: Mutex<Option<Arc<dyn Caller>>>,
    other: Mutex<Weak<Self>>,
    has_ended: AtomicBool,
    is_accepted: AtomicBool,
}

struct Call(Arc<Side>);

struct Stays(Arc<AtomicBool>);

impl Listening for Stays {}

impl Drop for Stays {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Side {
    fn new(device: &Memory, service: QueuePairType) -> Arc<Self> {
        Arc::new(Self {
            manager: device.manager,
            service,
            connected: Arc::clone(&device.connected),
            caller: Mutex::new(None),
            other: Mutex::new(Weak::new()),
            has_ended: AtomicBool::new(false),
            is_accepted: AtomicBool::new(false),
        })
    }

    fn is_iwarp(&self) -> bool {
        self.manager == ManagerAttributes::IWARP
    }

    /// Returns the end of an exchange that one side has refused.
    fn refused(&self, refusal: &Refusal) -> Over {
        let refusal = refusal.clone();
        if !self.is_iwarp() {
            return Over::of_refusal(refusal, self.service);
        }
        let errno = if refusal.reason == 8 { Errno::ECONNREFUSED } else { Errno::ECONNRESET };
        Over::Refused { status: -(errno as i32), private_data: refusal.private_data }
    }

    fn notify(&self, notify: impl FnOnce(&dyn Caller)) {
        let caller = lock(&self.caller).clone();
        if let Some(caller) = caller {
            notify(&*caller);
        }
    }

    fn other(&self) -> Option<Arc<Self>> {
        lock(&self.other).upgrade()
    }

    /// Marks this end of the exchange as ended. Returns true only for the first call.
    fn end(&self) -> bool {
        let was = self.has_ended.swap(true, Ordering::SeqCst);
        if let Some(other) = self.other() {
            other.has_ended.store(true, Ordering::SeqCst);
        }
        !was
    }
}

impl Exchange for Call {
    fn take_over(&self, _queue_pair: &Arc<QueuePair>) -> Result<(), Error> {
        assert!(!self.0.is_iwarp(), "the wire connects the queue pair");
        Ok(())
    }

    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error> {
        if self.0.is_iwarp() {
            assert!(reply.end.takes_over);
            let queue_pair = queue_pair.expect("the wire connects it");
            assert_eq!(reply.end.number, queue_pair.number());
            lock(&self.0.connected).push(queue_pair.number());
        }
        let asks = self.0.other().filter(|_| !self.0.has_ended.load(Ordering::SeqCst));
        let Some(asks) = asks else { return Err(Error::Invalid("no peer asks".into())) };
        self.0.is_accepted.store(true, Ordering::SeqCst);
        asks.is_accepted.store(true, Ordering::SeqCst);
        asks.notify(|caller| caller.on_accepted(reply.clone()));
        self.0.notify(|caller| caller.on_established());
        Ok(())
    }

    fn reject(&self, refusal: &Refusal) -> Result<(), Error> {
        if self.0.end()
            && let Some(other) = self.0.other()
        {
            other.notify(|caller| caller.on_over(self.0.refused(refusal)));
        }
        Ok(())
    }

    fn close(&self) {
        if !self.0.end() {
            return;
        }
        let was_there = self.0.is_accepted.load(Ordering::SeqCst);
        for side in [self.0.other(), Some(Arc::clone(&self.0))].into_iter().flatten() {
            let refused = self.0.refused(&Refusal::of(REJECTED_BY_PROGRAM));
            let over = if was_there { Over::Disconnected } else { refused };
            side.notify(|caller| caller.on_over(over));
            if was_there && !side.is_iwarp() {
                side.notify(|caller| caller.on_quiet());
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.close();
    }
}

impl ConnectionManager for Memory {
    fn attributes(&self) -> ManagerAttributes {
        self.manager
    }

    fn private_data_limits(&self, space: PortSpace, service: QueuePairType) -> PrivateDataLimits {
        match self.manager {
            ManagerAttributes::IWARP => PrivateDataLimits::IWARP,
            _ => PrivateDataLimits::infiniband(space, service),
        }
    }

    fn carries(&self, space: PortSpace) -> bool {
        self.manager != ManagerAttributes::IWARP || space == PortSpace::Tcp
    }

    fn claim(&self, at: SocketAddr, space: PortSpace) -> Result<Box<dyn PortClaim>, Error> {
        assert!(self.carries(space), "{space:?}");
        Ok(Box::new(self.claims.claim(at)?))
    }

    fn listen(
        &self,
        claim: &dyn PortClaim,
        space: PortSpace,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error> {
        let at = claim.address();
        assert!(lock(&self.claims.counts).contains_key(&at), "a claim of this device");
        let is_there = Arc::new(AtomicBool::new(true));
        let listens = Listens { at, space, listener, is_there: Arc::clone(&is_there) };
        lock(&self.listeners).push(listens);
        Ok(Box::new(Stays(is_there)))
    }

    fn connect(
        &self,
        route: Route,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error> {
        let mut request = match self.manager {
            ManagerAttributes::IWARP => request.clone(),
            _ => Request::decode(&request.encode()).expect("it means something"),
        };
        request.end.gid = Gid::of(route.from.ip());
        self.asked_psn.store(request.end.psn, Ordering::SeqCst);
        let service = request.end.service;
        let (asks, asked) = (Side::new(self, service), Side::new(self, service));
        if asks.is_iwarp() {
            assert!(request.end.takes_over);
            let queue_pair = queue_pair.expect("the wire connects it");
            assert_eq!(request.end.number, queue_pair.number());
            lock(&self.connected).push(queue_pair.number());
        }
        let failure = self.failure.load(Ordering::SeqCst);
        if failure != 0 {
            caller.on_over(Over::Failed { status: failure });
            return Ok(Arc::new(Call(asks)));
        }
        *lock(&asks.other) = Arc::downgrade(&asked);
        *lock(&asked.other) = Arc::downgrade(&asks);
        *lock(&asks.caller) = Some(caller);
        let listener = {
            let listeners = lock(&self.listeners);
            let is_it = |listens: &&Listens| {
                let is_there = listens.is_there.load(Ordering::SeqCst);
                let is_port = listens.at.port() == route.to.port();
                is_there && is_port && listens.space == request.space
            };
            listeners.iter().find(is_it).map(|listens| Arc::clone(&listens.listener))
        };
        let exchange = Arc::new(Call(Arc::clone(&asked)));
        let taken = match listener {
            Some(listener) => listener.on_request(request, Arc::clone(&exchange) as _),
            None => Err(Refusal::of(8)),
        };
        match taken {
            Ok(caller) => *lock(&asked.caller) = Some(caller),
            Err(refusal) => {
                asks.end();
                asks.notify(|caller| caller.on_over(asks.refused(&refusal)));
            }
        }
        Ok(Arc::new(Call(asks)))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

impl Provider for Memory {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }
    fn port(&self) -> PortAttributes {
        PortAttributes { state: PortState::Active, active_mtu: 2048, gids: 1, rate: None }
    }
    fn path_mtu(&self) -> u32 {
        2048
    }
    fn gids(&self) -> Vec<GidEntry> {
        vec![GidEntry {
            gid: Gid::of([127, 0, 0, 1].into()),
            kind: GidKind::RoceV2,
            index: 0,
            interface: 1,
        }]
    }
    fn memory(&self) -> Result<Arc<MemoryTable>, Error> {
        Ok(Arc::clone(&self.table))
    }
    fn reserve_number(&self, _service: QueuePairType) -> Result<u32, Error> {
        Ok(self.next_number.fetch_add(1, Ordering::SeqCst))
    }
    fn release_number(&self, _number: u32) {}
    fn wire(&self, _queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error> {
        Ok(Box::new(SilentWire))
    }
    fn receives_posted(&self, _receives: &Arc<SharedReceives>) {}
    fn arm_limit(&self, _receives: &Arc<SharedReceives>, _limit: u32) -> Result<bool, Error> {
        Ok(false)
    }
    fn drive(&self) {}
    fn send_deferred(&self) {}
    fn wait(&self, _ready: &mut dyn FnMut() -> bool) {}
    fn wake(&self) {}
    fn serve_alone(&self) {}
}

/// The wire of queue pairs that carry nothing.
struct SilentWire;

impl Wire for SilentWire {
    fn open(&self) -> Result<(), Error> {
        Ok(())
    }
    fn connect(&self) -> Result<(), Error> {
        Ok(())
    }
    fn update(&self) -> Result<(), Error> {
        Ok(())
    }
    fn ring(&self) {}
    fn receives(&self) {}
    fn drain(&self) {}
    fn send_out(&self) {}
    fn close(&self) {}
    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Memory {
    /// Creates a device. The ports that it chooses begin with `first_port`.
    fn new(manager: ManagerAttributes, addresses: &[IpAddr], first_port: u16) -> Arc<Self> {
        let attributes = DeviceAttributes {
            services: Services::of(match manager {
                ManagerAttributes::IWARP => Transport::Iwarp,
                _ => Transport::InfiniBand,
            }),
            queue_pairs_max: 16,
            completion_queues_max: 16,
            domains_max: 16,
            ..attributes()
        };
        Arc::new(Self {
            attributes,
            registry: Registry::new(),
            table: Arc::new(MemoryTable::new(TableLimits::default(), [1, 2])),
            next_number: AtomicU32::new(100),
            manager,
            addresses: addresses.to_vec(),
            claims: Claims::new(first_port),
            connected: Arc::default(),
            failure: AtomicI32::new(0),
            listeners: Mutex::default(),
            asked_psn: AtomicU32::new(0),
        })
    }
}

fn attributes() -> DeviceAttributes {
    DeviceAttributes {
        name: "memory0".into(),
        node_guid: [0; 8],
        vendor: Vendor::NONE,
        services: Services::of(Transport::InfiniBand),
        on_demand_paging: OnDemandPaging::Supported,
        message_bytes_max: 1 << 20,
        queue_pairs_max: 1,
        work_requests_max: 1,
        pieces_max: 1,
        read_pieces_max: 1,
        inline_max: 0,
        completion_queues_max: 1,
        completions_max: 1,
        regions_max: 1,
        windows_max: 1,
        region_bytes_max: 1,
        domains_max: 1,
        read_depth_max: 128,
        shared_queues_max: 1,
        shared_receives_max: 1,
        address_handles_max: 1,
        groups_max: 1,
        strictness: Strictness::Lenient,
    }
}

/// A host with two programs, a client and a server.
struct World {
    devices: Vec<Arc<Memory>>,
    host: Arc<ManagedHost>,
    server: Arc<EventChannel>,
    client: Arc<EventChannel>,
}

impl World {
    fn new() -> Self {
        let addresses = [[127, 0, 0, 1].into()];
        Self::with(&[Memory::new(ManagerAttributes::INFINIBAND, &addresses, 40_000)])
    }

    /// Creates a host with these devices.
    fn with(devices: &[Arc<Memory>]) -> Self {
        let managed = |memory: &Arc<Memory>| ManagedDevice {
            device: Device::new(Arc::clone(memory) as _),
            manager: Arc::clone(memory) as _,
        };
        let host = ManagedHost::new(devices.iter().map(managed).collect());
        let channel = || {
            let channel = EventChannel::new(&host).expect("a channel");
            let flags = FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
            fcntl(channel.descriptor(), flags).expect("it is set");
            channel
        };
        let (server, client) = (channel(), channel());
        Self { devices: devices.to_vec(), host, server, client }
    }

    fn id(&self, channel: &Arc<EventChannel>, space: PortSpace) -> Arc<Id> {
        Id::new(&self.host, channel, space, None).expect("an id")
    }

    fn listener(&self, space: PortSpace) -> Arc<Id> {
        let id = self.id(&self.server, space);
        id.bind(loopback(0)).expect("a free port");
        id.listen(0).expect("it listens");
        id
    }

    /// Creates an id of the client, and resolves the address `to` and the route to it.
    fn resolved(&self, space: PortSpace, to: SocketAddr) -> Arc<Id> {
        let id = self.id(&self.client, space);
        id.resolve_address(None, to).expect("it is looked for");
        got(&self.client, EventKind::AddressResolved);
        id.resolve_route().expect("it is looked for");
        got(&self.client, EventKind::RouteResolved);
        id
    }

    /// Sends a request of the client, and reads it at the server. Returns the client's id, and the
    /// server's id of the new connection.
    fn request(&self, listener: &Id) -> (Arc<Id>, Arc<Id>) {
        let client = self.resolved(listener.space(), listener.local().expect("an address"));
        client.connect(&saying(b"hello")).expect("it asks");
        let event = got(&self.server, EventKind::ConnectRequest);
        (client, Arc::clone(&event.id))
    }

    /// Establishes a connection. Returns the ids of the client and the server.
    fn connection(&self, listener: &Id) -> (Arc<Id>, Arc<Id>) {
        let (client, server) = self.request(listener);
        server.accept(&AcceptOptions::default()).expect("it accepts");
        got(&self.client, EventKind::ConnectResponse);
        client.establish().expect("it is there");
        got(&self.server, EventKind::Established);
        (client, server)
    }
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn saying(private_data: &[u8]) -> ConnectOptions {
    let private_data = private_data.to_vec();
    let external = (false, 77);
    ConnectOptions {
        private_data,
        external,
        retries: 7,
        not_ready_retries: 6,
        ..Default::default()
    }
}

/// Returns the next event, which must have this kind, and acknowledges it.
fn got(channel: &EventChannel, kind: EventKind) -> Event {
    let event = taken(channel, kind);
    event.acknowledge();
    event
}

/// Returns the next event, which must have this kind. Does not acknowledge it.
fn taken(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.get().expect("there is an event");
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

fn nothing(channel: &EventChannel) {
    assert!(matches!(channel.get(), Err(Error::Again)));
}

fn errno(result: Result<(), Error>) -> i32 {
    match result.expect_err("it fails") {
        Error::System { number, .. } => number,
        Error::Invalid(_) => Errno::EINVAL as i32,
        other => panic!("{other}"),
    }
}

fn is_readable(channel: &EventChannel) -> bool {
    let mut wanted = [PollFd::new(channel.descriptor(), PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::ZERO).expect("it can be polled") > 0
}

#[test]
fn events_arrive_in_the_order_of_librdmacm_with_padded_private_data() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let to = listener.local().expect("an address");
    let client = world.resolved(PortSpace::Tcp, to);
    assert_eq!(client.local().map(|local| local.ip()), Some(to.ip()));
    client.connect(&saying(b"hello")).expect("it asks");
    let asked = got(&world.server, EventKind::ConnectRequest);
    assert!(asked.private_data.starts_with(b"hello\0"));
    assert_eq!(asked.private_data.len(), 56);
    assert!(Arc::ptr_eq(asked.listener.as_ref().expect("a listener"), &listener));
    let server = Arc::clone(&asked.id);
    assert_eq!((server.local(), server.remote()), (Some(to), client.local()));
    nothing(&world.client);
    let options = Some(saying(b"welcome"));
    server.accept(&AcceptOptions { options, queue_key: None }).expect("it accepts");
    let answer = got(&world.client, EventKind::ConnectResponse);
    assert!(answer.private_data.starts_with(b"welcome\0"));
    assert_eq!((answer.private_data.len(), answer.status), (196, 0));
    client.establish().expect("it is there");
    got(&world.server, EventKind::Established);
    client.disconnect().expect("there is a connection");
    for channel in [&world.client, &world.server] {
        got(channel, EventKind::Disconnected);
        got(channel, EventKind::TimewaitExit);
    }
    server.disconnect().expect("there was one");
    for id in [client, server, listener] {
        id.destroy().expect("once");
        assert_eq!(errno(id.destroy()), Errno::EINVAL as i32);
    }
    nothing(&world.client);
    nothing(&world.server);
}

#[test]
fn each_end_sees_the_addresses_from_its_own_side() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp, listener.local().expect("an address"));
    let asks =
        ConnectOptions { responder_resources: Some(3), initiator_depth: Some(9), ..saying(b"") };
    client.connect(&asks).expect("it asks");
    let event = got(&world.server, EventKind::ConnectRequest);
    let Details::Connection(seen) = event.details else { panic!("{event:?}") };
    assert_eq!((seen.responder_resources, seen.initiator_depth), (9, 3));
    assert_eq!((seen.number, seen.retries, seen.not_ready_retries), (77, 7, 6));
    let server = Arc::clone(&event.id);
    let ready = server.modification(QueuePairState::ReadyToReceive).expect("it knows its peer");
    assert_eq!(ready.attributes.destination, 77);
    assert!(ready.mask.contains(AttributeMask::PATH | AttributeMask::RECEIVE_PSN));
    let options = ConnectOptions { initiator_depth: Some(2), external: (false, 88), ..saying(b"") };
    server.accept(&AcceptOptions { options: Some(options), queue_key: None }).expect("it accepts");
    got(&world.client, EventKind::ConnectResponse);
    let here = client.modification(QueuePairState::ReadyToReceive).expect("it knows its peer");
    assert_eq!((here.attributes.destination, here.attributes.path_mtu), (88, 2048));
    assert_eq!(here.attributes.peer_reads_max, 2);
    let sending = server.modification(QueuePairState::ReadyToSend).expect("it knows its peer");
    assert_eq!(here.attributes.receive_psn, sending.attributes.send_psn);
    // As in InfiniBand, each end starts to send with the packet number that its peer has announced.
    assert_eq!(sending.attributes.send_psn, world.devices[0].asked_psn.load(Ordering::SeqCst));
    assert_eq!(sending.attributes.not_ready_retries, 6);
}

#[test]
fn a_rejection_and_a_missing_listener_report_their_reasons() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let (client, server) = world.request(&listener);
    server.reject(b"no").expect("it rejects");
    let event = got(&world.client, EventKind::Rejected);
    assert_eq!((event.status, event.private_data.len()), (28, 148));
    assert!(event.private_data.starts_with(b"no\0"));
    assert_eq!(errno(client.disconnect()), Errno::EINVAL as i32);
    assert_eq!(errno(server.accept(&AcceptOptions::default())), Errno::EINVAL as i32);
    let to = listener.local().expect("an address");
    listener.destroy().expect("once");
    let client = world.resolved(PortSpace::Tcp, to);
    client.connect(&saying(b"")).expect("it asks");
    assert_eq!(got(&world.client, EventKind::Rejected).status, 8);
    // An id that listens at the same port number in another port space must not get the request.
    let listener = world.listener(PortSpace::Ib);
    let client = world.resolved(PortSpace::Tcp, listener.local().expect("an address"));
    client.connect(&saying(b"")).expect("it asks");
    assert_eq!(got(&world.client, EventKind::Rejected).status, 8);
}

#[test]
fn private_data_beyond_the_limit_is_refused() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp, listener.local().expect("an address"));
    assert_eq!(errno(client.connect(&saying(&[1; 57]))), Errno::EINVAL as i32);
    client.connect(&saying(&[1; 56])).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    let long = AcceptOptions { options: Some(saying(&[1; 197])), queue_key: None };
    assert_eq!(errno(server.accept(&long)), Errno::EINVAL as i32);
    assert_eq!(errno(server.reject(&[1; 149])), Errno::EINVAL as i32);
    server.reject(&[1; 148]).expect("it rejects");
}

#[test]
fn a_port_belongs_to_one_id_unless_both_allow_sharing() {
    let world = World::new();
    let one = world.listener(PortSpace::Tcp);
    let at = one.local().expect("an address");
    assert_ne!(at.port(), 0);
    let other = world.id(&world.server, PortSpace::Tcp);
    assert_eq!(errno(other.bind(at)), Errno::EADDRINUSE as i32);
    other.set_option(IdOption::ReuseAddress(true)).expect("it is early");
    other.bind(at).expect("it is shared");
    world.id(&world.server, PortSpace::Udp).bind(at).expect("another port space");
    // Another process of the host has a port. An id must not get the port until it is free.
    let taken = loopback(7);
    lock(&world.devices[0].claims.foreign).insert(7);
    let id = world.id(&world.server, PortSpace::Tcp);
    assert_eq!(errno(id.bind(taken)), Errno::EADDRINUSE as i32);
    lock(&world.devices[0].claims.foreign).clear();
    id.bind(taken).expect("it is free");
    id.destroy().expect("once");
    world.id(&world.server, PortSpace::Tcp).bind(taken).expect("it is free again");
    let nowhere = world.id(&world.server, PortSpace::Tcp).bind(([192, 0, 2, 99], 0).into());
    assert_eq!(errno(nowhere), Errno::ENODEV as i32);
}

#[test]
fn a_port_of_all_addresses_in_use_is_not_available() {
    let world = World::new();
    let one = world.id(&world.server, PortSpace::Tcp);
    one.bind(loopback(0)).expect("a free port");
    let port = one.local().expect("an address").port();
    let id = world.id(&world.server, PortSpace::Tcp);
    assert_eq!(errno(id.bind(([0; 4], port).into())), Errno::EADDRNOTAVAIL as i32);
    let all = world.id(&world.server, PortSpace::Tcp);
    all.bind(([0; 4], 0).into()).expect("a free port");
    let port = all.local().expect("an address").port();
    assert_eq!(errno(id.bind(([0; 4], port).into())), Errno::EADDRNOTAVAIL as i32);
    assert_eq!(errno(id.bind(loopback(port))), Errno::EADDRNOTAVAIL as i32);
}

#[test]
fn connections_outlive_their_listener() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let (client, server) = world.connection(&listener);
    listener.destroy().expect("once");
    nothing(&world.client);
    server.disconnect().expect("there is a connection");
    got(&world.client, EventKind::Disconnected);
    client.destroy().expect("once");
}

#[test]
fn a_destroyed_id_ends_its_connection_attempt() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let to = listener.local().expect("an address");
    // Destroy the client while its request is pending.
    let client = world.resolved(PortSpace::Tcp, to);
    client.connect(&saying(b"")).expect("it asks");
    client.destroy().expect("once");
    let asked = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    got(&world.server, EventKind::Rejected);
    assert_eq!(errno(asked.accept(&AcceptOptions::default())), Errno::EINVAL as i32);
    // Destroy one end of a connection.
    let (client, server) = world.connection(&listener);
    server.destroy().expect("once");
    got(&world.client, EventKind::Disconnected);
    got(&world.client, EventKind::TimewaitExit);
    client.destroy().expect("once");
    // Destroy a listening id. The program has not read the event of one of its requests.
    let client = world.resolved(PortSpace::Tcp, to);
    client.connect(&saying(b"")).expect("it asks");
    listener.destroy().expect("once");
    nothing(&world.server);
    got(&world.client, EventKind::Rejected);
}

#[test]
fn destroying_an_id_waits_for_its_taken_events() {
    let world = World::new();
    let id = world.id(&world.client, PortSpace::Tcp);
    id.resolve_address(None, loopback(9)).expect("it is looked for");
    let event = taken(&world.client, EventKind::AddressResolved);
    id.resolve_route().expect("the address is known");
    let is_acknowledged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            id.destroy().expect("once");
            assert!(is_acknowledged.load(Ordering::SeqCst));
        });
        is_acknowledged.store(true, Ordering::SeqCst);
        event.acknowledge();
    });
    nothing(&world.client);
}

#[test]
fn pending_events_move_with_their_id() {
    let world = World::new();
    let id = world.id(&world.client, PortSpace::Tcp);
    let stays = world.id(&world.client, PortSpace::Tcp);
    for id in [&id, &stays] {
        id.resolve_address(None, loopback(9)).expect("it is looked for");
    }
    let elsewhere = EventChannel::new(&world.host).expect("a channel");
    id.migrate(&elsewhere).expect("it is there");
    let moved = got(&elsewhere, EventKind::AddressResolved);
    assert!(Arc::ptr_eq(&moved.id, &id));
    let stayed = got(&world.client, EventKind::AddressResolved);
    assert!(Arc::ptr_eq(&stayed.id, &stays));
    id.resolve_route().expect("the address is known");
    nothing(&world.client);
    got(&elsewhere, EventKind::RouteResolved);
}

#[test]
fn a_channel_is_readable_while_an_event_is_pending() {
    let world = World::new();
    assert!(!is_readable(&world.client));
    let id = world.id(&world.client, PortSpace::Tcp);
    id.resolve_address(None, loopback(9)).expect("it is looked for");
    assert!(is_readable(&world.client));
    got(&world.client, EventKind::AddressResolved);
    assert!(!is_readable(&world.client));
    id.resolve_route().expect("the address is known");
    id.destroy().expect("once");
    assert!(!is_readable(&world.client), "its events went with it");
}

#[test]
fn requests_beyond_the_backlog_are_refused() {
    let world = World::new();
    let listener = world.id(&world.server, PortSpace::Tcp);
    listener.bind(loopback(0)).expect("a free port");
    listener.listen(1).expect("it listens");
    let to = listener.local().expect("an address");
    let [one, two] = [0, 1].map(|_| world.resolved(PortSpace::Tcp, to));
    one.connect(&saying(b"")).expect("it asks");
    two.connect(&saying(b"")).expect("it asks");
    let refused = got(&world.client, EventKind::Rejected);
    assert!(Arc::ptr_eq(&refused.id, &two));
    let _kept = got(&world.server, EventKind::ConnectRequest);
    let three = world.resolved(PortSpace::Tcp, to);
    three.connect(&saying(b"")).expect("it asks");
    got(&world.server, EventKind::ConnectRequest);
}

#[test]
fn a_datagram_query_returns_the_destination() {
    let world = World::new();
    let listener = world.listener(PortSpace::Udp);
    let client = world.resolved(PortSpace::Udp, listener.local().expect("an address"));
    client.connect(&saying(&[5; 180])).expect("it asks");
    let event = got(&world.server, EventKind::ConnectRequest);
    assert_eq!(event.private_data, [5; 180]);
    let server = Arc::clone(&event.id);
    let options = Some(ConnectOptions { external: (false, 1234), ..saying(b"there") });
    server.accept(&AcceptOptions { options, queue_key: None }).expect("it accepts");
    let event = got(&world.client, EventKind::Established);
    let Details::Datagrams(there) = event.details else { panic!("{event:?}") };
    assert_eq!((there.number, there.queue_key), (1234, QUEUE_KEY));
    assert_eq!(there.path.gid, Gid::of([127, 0, 0, 1].into()));
    assert_eq!(event.private_data.len(), 136);
    // A datagram id has no connection, so it cannot be disconnected.
    nothing(&world.server);
    assert_eq!(errno(client.disconnect()), Errno::EINVAL as i32);
    // Test a rejection, and then a port at which no program listens.
    let client = world.resolved(PortSpace::Udp, listener.local().expect("an address"));
    client.connect(&saying(b"")).expect("it asks");
    Arc::clone(&got(&world.server, EventKind::ConnectRequest).id).reject(b"").expect("no");
    assert_eq!(got(&world.client, EventKind::Unreachable).status, 2);
    let client = world.resolved(PortSpace::Udp, loopback(1));
    client.connect(&saying(b"")).expect("it asks");
    assert_eq!(got(&world.client, EventKind::Unreachable).status, 1);
}

#[test]
fn joining_a_multicast_group_returns_its_destination() {
    let world = World::new();
    let id = world.id(&world.client, PortSpace::Udp);
    let group: SocketAddr = ([239, 1, 2, 3], 0).into();
    assert_eq!(errno(id.join(group, 5, false)), Errno::EINVAL as i32, "no device yet");
    id.bind(loopback(0)).expect("a free port");
    assert_eq!(errno(id.join(loopback(1), 5, false)), Errno::EINVAL as i32);
    id.join(group, 5, false).expect("it is a group");
    let event = got(&world.client, EventKind::MulticastJoin);
    let Details::Datagrams(there) = event.details else { panic!("{event:?}") };
    assert_eq!((there.number, there.queue_key, there.cookie), (0xff_ffff, QUEUE_KEY, 5));
    assert_eq!(there.path.gid, Gid::of(group.ip()));
    id.leave(group).expect("it is in it");
    assert_eq!(errno(id.leave(group)), Errno::EADDRNOTAVAIL as i32);
    id.destroy().expect("once");
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let world = World::new();
    let id = world.id(&world.client, PortSpace::Tcp);
    let einval = Errno::EINVAL as i32;
    assert_eq!(errno(id.resolve_route()), einval);
    assert_eq!(errno(id.connect(&saying(b""))), einval);
    assert_eq!(errno(id.accept(&AcceptOptions::default())), einval);
    assert_eq!(errno(id.reject(b"")), einval);
    assert_eq!(errno(id.establish()), einval);
    assert_eq!(errno(id.disconnect()), einval);
    assert!(id.modification(QueuePairState::Init).is_err());
    id.bind(loopback(0)).expect("a free port");
    assert_eq!(errno(id.bind(loopback(0))), einval);
    assert!(id.modification(QueuePairState::Init).is_ok());
    assert!(id.modification(QueuePairState::ReadyToReceive).is_err());
    id.listen(1).expect("it listens");
    assert_eq!(errno(id.listen(1)), einval);
    assert_eq!(errno(id.resolve_address(None, loopback(1))), einval);
    id.destroy().expect("once");
    assert_eq!(errno(id.listen(1)), einval);
    assert!(
        Id::new(&world.host, &world.client, PortSpace::Tcp, Some(QueuePairType::Datagram)).is_err()
    );
    let far = world.id(&world.client, PortSpace::Tcp);
    far.resolve_address(None, ([0, 0, 0, 0], 5).into()).expect("it is looked for");
    assert!(got(&world.client, EventKind::AddressError).status < 0);
}

#[test]
fn an_id_bound_to_a_loopback_address_has_no_device() {
    let world = World::new();
    let of_device = world.id(&world.server, PortSpace::Tcp);
    of_device.bind(loopback(0)).expect("a free port");
    assert!(of_device.device().is_some());
    let of_host = world.id(&world.server, PortSpace::Tcp);
    of_host.bind(([127, 0, 0, 2], 0).into()).expect("a free port");
    assert!(of_host.device().is_none());
    // Although the id has no device, requests from the same host reach it.
    of_host.listen(0).expect("it listens");
    let client = world.resolved(PortSpace::Tcp, of_host.local().expect("an address"));
    client.connect(&saying(b"")).expect("it asks");
    got(&world.server, EventKind::ConnectRequest);
}
