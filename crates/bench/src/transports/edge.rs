//! The edge protocol over UDP and other links, through the public API.
//!
//! The tests one-way and two-way stream remote writes into one buffer of the peer, with
//! [`Setup::in_flight`] writes in flight. The last write of a phase has a notification. In a
//! ping-pong, like in the paper, each end writes into the other's memory and polls the last word of
//! its own memory. If an end blocks instead of polling, each write has a notification, and the end
//! waits for this notification.

mod beside;
mod many;
mod verified;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ethernot::{
    Buffer, Completion, CompletionKind, CompletionQueue, ConnectOptions, Connection, Delay,
    Endpoint, EngineConfig, Listener, MemoryRegion, Operation, OperationFlags, Order, PeerSpec,
    Polling, RemoteRegion, Request, Rights, Source, WaitError,
};

use super::idle_limit::IdleLimit;
use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, PHASE_TIME_MAX, Phase, ServerSide, Setup, Test,
    Transport, TransportError, Waiting, counter,
};
use testbed::clock::Stopwatch;

/// Remote writes over the edge protocol.
#[derive(Debug)]
pub struct Edge {
    rules: Rules,
}

/// The sending policy: the rules by which an end schedules frames and sends acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Own,
    /// This project's sending policy, with a link over shared memory in addition to the other
    /// links.
    SharedMemory,
    MultiEdge,
}

impl Rules {
    fn config(self) -> EngineConfig {
        let config = match self {
            Self::Own | Self::SharedMemory => EngineConfig::default(),
            Self::MultiEdge => EngineConfig::multiedge(),
        };
        config.silence_budget_ns(SILENCE_BUDGET_NS)
    }
}

impl Edge {
    /// Makes the transport with this project's sending policy.
    pub fn new() -> Self {
        Self { rules: Rules::Own }
    }

    /// Makes the transport for processes on one host that share memory.
    pub fn shm() -> Self {
        Self { rules: Rules::SharedMemory }
    }

    /// Makes the transport with the sending policy of the `MultiEdge` paper.
    pub fn multiedge() -> Self {
        Self { rules: Rules::MultiEdge }
    }
}

impl Default for Edge {
    fn default() -> Self {
        Self::new()
    }
}

impl Transport for Edge {
    fn name(&self) -> &'static str {
        match self.rules {
            Rules::Own => super::EDGE,
            Rules::SharedMemory => super::SHM,
            Rules::MultiEdge => super::MULTIEDGE,
        }
    }

    fn description(&self) -> &'static str {
        match self.rules {
            Rules::Own => "remote writes over the edge protocol",
            Rules::SharedMemory => {
                "remote writes over the edge protocol, in memory shared between processes of one \
                 host"
            }
            Rules::MultiEdge => {
                "remote writes over the edge protocol with the rules of MultiEdge: round robin, \
                 fixed window"
            }
        }
    }

    fn is_optional(&self) -> bool {
        self.rules != Rules::Own
    }

    fn supports(&self, test: Test, message_bytes: u64, _mtu: Option<u32>) -> bool {
        test == Test::ConnectionSetup || message_bytes >= WORD_BYTES
    }

    fn waitings(&self, chosen: &[Waiting]) -> Vec<Waiting> {
        chosen.to_vec()
    }

    fn link_counts(&self, available: u32) -> Vec<u32> {
        if available > 1 { vec![1, available] } else { vec![1] }
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        if setup.test == Test::ManyConnections {
            return Ok(Box::new(many::Server::listen(setup)?));
        }
        Ok(Box::new(Server::listen(setup, self.rules)?))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        if setup.test == Test::ManyConnections {
            return Ok(Box::new(many::Client::connect(setup, advertisement)?));
        }
        let mut client = Client::new(setup, peers_of(advertisement)?, self.rules)?;
        if setup.test != Test::ConnectionSetup {
            client.connect()?;
        }
        Ok(Box::new(client))
    }
}

/// State that both the client's end and the server's end have: memory, a completion queue, and the
/// connection after its handshake.
struct Half {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    queue: Arc<CompletionQueue>,
    connection: Option<Connection>,
    remote: Option<RemoteRegion>,
    message_bytes: u64,
    in_flight: u64,
    order: Order,
    waiting: Waiting,
    /// Total time spent in timed posts, in nanoseconds, and the number of timed posts.
    post_ns: Cell<u64>,
    posts_timed: Cell<u64>,
    /// Number of round trips so far. This number is written to the polled word.
    rounds: u64,
    /// Counters at the end of the last phase.
    before: Counters,
}

impl Half {
    fn new(endpoint: &Endpoint, setup: &Setup) -> Result<Self, TransportError> {
        // The peer writes into the first half. The second half is the source of writes to the peer.
        let message_bytes = setup.message_bytes.max(WORD_BYTES);
        let buffer = Buffer::new(match setup.test {
            Test::VerifiedStream => verified::buffer_bytes(setup),
            _ => message_bytes * 2,
        });
        let region = endpoint.register(buffer.clone(), Rights::REMOTE_WRITE).map_err(other)?;
        Ok(Self {
            buffer,
            region,
            queue: Arc::new(CompletionQueue::new(QUEUE_ENTRIES)),
            connection: None,
            remote: None,
            message_bytes,
            in_flight: u64::from(setup.in_flight.max(1)),
            order: if setup.in_order { Order::Strict } else { Order::Relaxed },
            waiting: setup.waiting,
            post_ns: Cell::new(0),
            posts_timed: Cell::new(0),
            rounds: 0,
            before: Counters::default(),
        })
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .service(SERVICE)
            .private_data(self.region.remote().to_bytes())
            .queue(Arc::clone(&self.queue))
    }

    fn adopt(&mut self, connection: Connection) -> Result<(), TransportError> {
        let remote = RemoteRegion::from_bytes(&connection.peer_data()).map_err(other)?;
        self.remote = Some(remote);
        self.connection = Some(connection);
        Ok(())
    }

    fn parts(&self) -> Result<(&Connection, RemoteRegion), TransportError> {
        match (&self.connection, self.remote) {
            (Some(connection), Some(remote)) => Ok((connection, remote)),
            _ => Err(TransportError::Closed { attempt: "run a phase over edge" }),
        }
    }

    /// Returns the write of one message, without a notification. For the last write of a phase, the
    /// caller adds the notification.
    fn operation(&self, remote: RemoteRegion, order: Order) -> Operation {
        let source = Source::Region { region: self.region.region().id, offset: self.message_bytes };
        Operation {
            request: Request::Write { source, key: remote.key, address: remote.address },
            length: self.message_bytes as u32,
            flags: OperationFlags { order, ..OperationFlags::default() },
            immediate: None,
            context: 0,
            status: None,
        }
    }

    /// Streams `count` messages to the peer. If `count` is 0, only receives. If `expects` is true,
    /// also waits for the peer's last message.
    fn stream(&self, count: u64, expects: bool) -> Result<(), TransportError> {
        let (connection, remote) = self.parts()?;
        let mut operation = self.operation(remote, self.order);
        // Request one completion for several operations, like performance-critical programs do.
        let group = (self.in_flight / 8).max(1);
        let (mut posted, mut done) = (0, 0);
        let mut expected = expects;
        let mut idle_limit = IdleLimit::new(STREAM);
        let mut passed = self.data_frames_passed()?;
        while done < count || expected {
            while posted < count && posted - done < self.in_flight {
                posted += 1;
                let last = posted == count;
                operation.flags.signalled = last || posted % group == 0;
                operation.context = posted;
                operation.immediate = last.then_some(END_OF_PHASE);
                if posted % POSTS_PER_TIMING == 0 {
                    let started = Stopwatch::start();
                    connection.post_later(&operation).map_err(other)?;
                    self.post_ns.set(self.post_ns.get() + started.elapsed_ns());
                    self.posts_timed.set(self.posts_timed.get() + 1);
                } else {
                    connection.post_later(&operation).map_err(other)?;
                }
            }
            let completion = match self.next_completion(&mut idle_limit) {
                Ok(Some(completion)) => completion,
                Ok(None) => continue,
                Err(error) => {
                    self.unless_data_passed(error, &mut passed)?;
                    idle_limit.on_progress();
                    continue;
                }
            };
            idle_limit.on_progress();
            completion.result.map_err(other)?;
            if completion.kind == CompletionKind::Notification {
                expected = false;
            } else {
                done = completion.context;
            }
        }
        Ok(())
    }

    /// Returns the next completion of a stream. Returns `None` after a poll that found nothing.
    fn next_completion(
        &self,
        idle_limit: &mut IdleLimit,
    ) -> Result<Option<Completion>, TransportError> {
        let (connection, _) = self.parts()?;
        if self.waiting == Waiting::Poll {
            let found = connection.poll().map_err(other)?;
            if found.is_none() {
                idle_limit.on_idle()?;
            }
            return Ok(found);
        }
        let found = connection.wait_completion(Some(PHASE_TIME_MAX));
        found.map(Some).map_err(|error| unless_timed_out(error, STREAM))
    }

    /// Returns `error`, unless it is a timeout and data has passed since `seen` was set. On a busy
    /// host, [`PHASE_TIME_MAX`] may pass between two completions although the stream makes
    /// progress: the receiver gets a completion only for the last message of a phase, and the
    /// sender one for several messages.
    #[cold]
    fn unless_data_passed(
        &self,
        error: TransportError,
        seen: &mut f64,
    ) -> Result<(), TransportError> {
        let before = std::mem::replace(seen, self.data_frames_passed()?);
        let has_passed = matches!(error, TransportError::TimedOut { .. }) && *seen > before;
        if has_passed { Ok(()) } else { Err(error) }
    }

    /// Returns the number of data frames sent and received so far, without retransmissions. The
    /// window lets this end send new frames only after the peer has acknowledged earlier ones.
    fn data_frames_passed(&self) -> Result<f64, TransportError> {
        let counters = Counters::of(self.connection.as_ref())?;
        Ok(counters.sent + counters.received)
    }

    /// Writes message number `round` without waiting.
    fn ping(&self, round: u64) -> Result<(), TransportError> {
        let (connection, remote) = self.parts()?;
        let last_word = self.message_bytes * 2 - WORD_BYTES;
        self.buffer.store_u64(last_word & !7, round);
        let mut operation = self.operation(remote, Order::Strict);
        // A peer that blocks is woken by this notification.
        operation.immediate = (self.waiting != Waiting::Poll).then_some(round as u32);
        connection.post(&operation).map_err(other)
    }

    /// Waits for message number `round` of the peer.
    fn await_round(&self, endpoint: &Endpoint, round: u64) -> Result<(), TransportError> {
        match self.waiting {
            Waiting::Poll => self.poll_word(endpoint, round),
            Waiting::Mixed | Waiting::Interrupt => self.await_notification(),
        }
    }

    /// Blocks until the peer's next message has been placed.
    fn await_notification(&self) -> Result<(), TransportError> {
        let (connection, _) = self.parts()?;
        loop {
            let found = connection.wait_completion(Some(PHASE_TIME_MAX));
            let completion =
                found.map_err(|error| unless_timed_out(error, "ping-pong over edge"))?;
            completion.result.map_err(other)?;
            if completion.kind == CompletionKind::Notification {
                return Ok(());
            }
        }
    }

    /// Polls the last word of the memory that the peer writes to.
    fn poll_word(&self, endpoint: &Endpoint, round: u64) -> Result<(), TransportError> {
        let last_word = (self.message_bytes - WORD_BYTES) & !7;
        let mut idle_limit = IdleLimit::new("ping-pong over edge");
        while self.buffer.load_u64(last_word) != round {
            endpoint.drive().map_err(other)?;
            idle_limit.on_idle()?;
        }
        Ok(())
    }

    /// Returns the increase of each counter since the last call.
    fn observed(&mut self, endpoint: &Endpoint) -> Result<Observed, TransportError> {
        let mut now = Counters::of(self.connection.as_ref())?;
        let runtime = endpoint.runtime_counters().map_err(other)?;
        now.protocol_ns = runtime.protocol_ns as f64;
        now.wakeups = runtime.wakeups as f64;
        now.post_ns = self.post_ns.get() as f64;
        now.posts_timed = self.posts_timed.get() as f64;
        for (link, _) in endpoint.links().map_err(other)? {
            let statistics = endpoint.link_statistics(link).map_err(other)?;
            now.received_frames += statistics.map_or(0.0, |s| s.receive_frames as f64);
        }
        let observed = now.since(&self.before);
        self.before = now;
        Ok(observed)
    }
}

/// Counters, added over the links of a connection.
#[derive(Clone, Copy, Default)]
struct Counters {
    sent: f64,
    acks: f64,
    again: f64,
    received: f64,
    out_of_order: f64,
    lost: f64,
    probe_timeouts: f64,
    protocol_ns: f64,
    wakeups: f64,
    received_frames: f64,
    post_ns: f64,
    posts_timed: f64,
    /// Current values of the link that has sent the most data.
    round_trip_us: f64,
    window_bytes: f64,
    frame_bytes: f64,
}

impl Counters {
    fn of(connection: Option<&Connection>) -> Result<Self, TransportError> {
        let mut sum = Self::default();
        let Some(connection) = connection else { return Ok(sum) };
        let Some(info) = connection.info().map_err(other)? else { return Ok(sum) };
        let mut busiest = 0;
        for path in info.paths {
            let counters = path.counters;
            let again = counters.retransmissions.min(counters.data_frames_sent);
            sum.sent += (counters.data_frames_sent - again) as f64;
            sum.again += again as f64;
            sum.acks += counters.explicit_acks_sent as f64;
            sum.received += counters.data_frames_received as f64;
            sum.out_of_order += counters.out_of_order as f64;
            sum.lost += counters.packets_lost as f64;
            sum.probe_timeouts += counters.probe_timeouts as f64;
            if counters.data_frames_sent > busiest {
                busiest = counters.data_frames_sent;
                sum.round_trip_us = path.srtt_ns as f64 / 1e3;
                sum.window_bytes = f64::from(path.window_bytes);
                sum.frame_bytes = f64::from(path.frame_bytes);
            }
        }
        Ok(sum)
    }

    fn since(&self, before: &Self) -> Observed {
        let counters = [
            (counter::DATA_FRAMES, self.sent - before.sent),
            (counter::RETRANSMISSIONS, self.again - before.again),
            (counter::EXPLICIT_ACKS, self.acks - before.acks),
            (counter::RECEIVED_DATA_FRAMES, self.received - before.received),
            (counter::OUT_OF_ORDER_FRAMES, self.out_of_order - before.out_of_order),
            (PACKETS_LOST, self.lost - before.lost),
            (PROBE_TIMEOUTS, self.probe_timeouts - before.probe_timeouts),
            (counter::PROTOCOL_NS, self.protocol_ns - before.protocol_ns),
            (counter::WAKEUPS, self.wakeups - before.wakeups),
            (counter::RECEIVED_FRAMES, self.received_frames - before.received_frames),
            (counter::POST_NS, self.post_ns - before.post_ns),
            (counter::POSTS_TIMED, self.posts_timed - before.posts_timed),
        ];
        let now = [
            (ROUND_TRIP, self.round_trip_us),
            (WINDOW, self.window_bytes),
            (FRAME, self.frame_bytes),
        ];
        let counters =
            counters.into_iter().chain(now).map(|(name, value)| (name.to_string(), value));
        Observed { counters: counters.collect(), ..Observed::default() }
    }
}

struct Server {
    endpoint: Endpoint,
    listener: Listener,
    half: Half,
    /// The connection of the small writes in [`Test::SmallBesideStream`].
    beside: Option<Connection>,
    test: Test,
}

impl Server {
    fn listen(setup: &Setup, rules: Rules) -> Result<Self, TransportError> {
        let addresses: Vec<IpAddr> = setup.links.iter().map(|link| link.server).collect();
        let endpoint = endpoint(&addresses, &setup.server_links, setup, rules)?;
        let listener = endpoint.listen(SERVICE).map_err(other)?;
        let half = Half::new(&endpoint, setup)?;
        Ok(Self { endpoint, listener, half, beside: None, test: setup.test })
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoint.local_addresses().unwrap_or_default()
    }

    /// Returns the addresses at which clients reach the links of this endpoint.
    fn peers(&self) -> Vec<PeerSpec> {
        let links = self.endpoint.links().unwrap_or_default();
        links.into_iter().filter_map(|(_, address)| PeerSpec::of_address(address)).collect()
    }

    fn accept_one(&self) -> Result<Connection, TransportError> {
        let request = self
            .listener
            .accept(Some(ACCEPT_TIME_MAX))
            .map_err(|error| unless_timed_out(error, "accept over edge"))?;
        request.accept_with(self.half.options()).map_err(other)
    }

    /// Waits for a message of the client, and answers it with a message.
    fn answer(&mut self) -> Result<(), TransportError> {
        self.half.rounds += 1;
        self.half.await_round(&self.endpoint, self.half.rounds)?;
        self.half.ping(self.half.rounds)
    }
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        let parameters = [(PEERS.to_string(), listed(&self.peers()))].into();
        Advertisement { addresses: self.addresses(), parameters }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        if self.test == Test::ConnectionSetup {
            return Ok(());
        }
        let connection = self.accept_one()?;
        self.half.adopt(connection)?;
        if self.test == Test::SmallBesideStream {
            self.beside = Some(self.accept_one()?);
        }
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        self.serve(phase).map_err(|error| explained(error, &self.endpoint))
    }
}

impl Server {
    fn serve(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        match self.test {
            Test::PingPong | Test::ManyConnections => {
                for _ in 0..phase.operations {
                    self.answer()?;
                }
            }
            Test::OneWay | Test::OperationRate | Test::SmallBesideStream => {
                self.half.stream(0, true)?;
            }
            Test::TwoWay => self.half.stream(phase.operations, true)?,
            Test::VerifiedStream => {
                let seen = self.half.verify_stream(phase.operations)?;
                let mut observed = self.half.observed(&self.endpoint)?;
                observed.counters.extend(seen.counters);
                return Ok(Observed { counters: observed.counters, ..seen });
            }
            Test::ConnectionSetup => {
                for _ in 0..phase.operations {
                    drop(self.accept_one()?);
                }
            }
        }
        self.half.observed(&self.endpoint)
    }
}

struct Client {
    endpoint: Endpoint,
    half: Half,
    /// The connection of the small writes in [`Test::SmallBesideStream`].
    beside: Option<Connection>,
    peers: Vec<PeerSpec>,
    test: Test,
}

impl Client {
    fn new(setup: &Setup, peers: Vec<PeerSpec>, rules: Rules) -> Result<Self, TransportError> {
        if peers.is_empty() {
            return Err(TransportError::Advertisement { what: "address" });
        }
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let own: Vec<IpAddr> =
            setup.links.iter().map(|link| link.client.unwrap_or(unspecified)).collect();
        let endpoint = endpoint(&own, &setup.client_links, setup, rules)?;
        let half = Half::new(&endpoint, setup)?;
        Ok(Self { endpoint, half, beside: None, peers, test: setup.test })
    }

    fn connect_one(&self) -> Result<Connection, TransportError> {
        let options = self.half.options().limit(Some(ACCEPT_TIME_MAX));
        self.endpoint.connect_with(self.peers.as_slice(), options).map_err(other)
    }

    /// Makes the measured connection.
    fn connect(&mut self) -> Result<(), TransportError> {
        let connection = self.connect_one()?;
        self.half.adopt(connection)?;
        if self.test == Test::SmallBesideStream {
            self.beside = Some(self.connect_one()?);
        }
        self.await_links(self.pairs())
    }

    /// Returns the number of links that the connection can have: pairs of a local and a remote link
    /// of the same kind.
    fn pairs(&self) -> usize {
        let own = self.endpoint.links().unwrap_or_default();
        let kinds = own.iter().filter_map(|(_, address)| PeerSpec::of_address(*address));
        let mut theirs: Vec<_> = self.peers.iter().map(kind).collect();
        let mut pairs = 0;
        for own in kinds {
            if let Some(index) = theirs.iter().position(|theirs| *theirs == kind(&own)) {
                theirs.swap_remove(index);
                pairs += 1;
            }
        }
        pairs
    }

    /// Waits until `links` links of the connection carry data.
    fn await_links(&self, links: usize) -> Result<(), TransportError> {
        let (connection, _) = self.half.parts()?;
        let mut idle_limit = IdleLimit::new("bring up the links of an edge connection");
        loop {
            let info = connection.info().map_err(other)?;
            let up = |path: &&ethernot::PathInfo| path.state == ethernot::LinkState::Up;
            if info.is_some_and(|info| info.paths.iter().filter(up).count() >= links) {
                return Ok(());
            }
            self.endpoint.drive().map_err(other)?;
            idle_limit.on_idle()?;
        }
    }

    /// Sends a message to the server and waits for the answer.
    fn round_trip(&mut self, latencies: &mut Latencies) -> Result<(), TransportError> {
        self.half.rounds += 1;
        let started = Stopwatch::start();
        self.half.ping(self.half.rounds)?;
        self.half.await_round(&self.endpoint, self.half.rounds)?;
        latencies.record_ns(started.elapsed_ns() / 2);
        Ok(())
    }
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        self.measure(phase, latencies).map_err(|error| explained(error, &self.endpoint))
    }
}

impl Client {
    fn measure(
        &mut self,
        phase: Phase,
        latencies: &mut Latencies,
    ) -> Result<Observed, TransportError> {
        match self.test {
            Test::PingPong | Test::ManyConnections => {
                for _ in 0..phase.operations {
                    self.round_trip(latencies)?;
                }
            }
            Test::OneWay | Test::OperationRate => self.half.stream(phase.operations, false)?,
            Test::TwoWay => self.half.stream(phase.operations, true)?,
            Test::SmallBesideStream => {
                let small = self.beside.as_ref();
                let small =
                    small.ok_or(TransportError::Closed { attempt: "write beside a stream" })?;
                self.half.stream_beside(&self.endpoint, small, phase.operations, latencies)?;
            }
            Test::VerifiedStream => self.half.stream_to_be_verified(phase.operations)?,
            Test::ConnectionSetup => {
                for _ in 0..phase.operations {
                    let started = Stopwatch::start();
                    let connection = self.connect_one()?;
                    latencies.record_ns(started.elapsed_ns());
                    connection.close(&[]).map_err(other)?;
                }
            }
        }
        self.half.observed(&self.endpoint)
    }
}

/// One operation out of `POSTS_PER_TIMING` is timed. Timing each operation would cost too much,
/// because reading the clock twice takes half as long as posting.
const POSTS_PER_TIMING: u64 = 8;

/// Returns the kind of an address. Only addresses of the same kind can reach each other.
fn kind(peer: &PeerSpec) -> u8 {
    match peer {
        PeerSpec::Socket(SocketAddr::V4(_)) => 4,
        PeerSpec::Socket(SocketAddr::V6(_)) => 6,
        _ => 1,
    }
}

fn listed(peers: &[PeerSpec]) -> String {
    peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the server's link addresses.
fn peers_of(advertisement: &Advertisement) -> Result<Vec<PeerSpec>, TransportError> {
    let listed = advertisement.parameters.get(PEERS).map_or("", String::as_str);
    PeerSpec::parse_list(listed).map_err(|_| TransportError::Advertisement { what: PEERS })
}

/// Makes an endpoint with the links in `names` or, if `names` is empty, on `addresses`.
fn endpoint(
    addresses: &[IpAddr],
    names: &[String],
    setup: &Setup,
    rules: Rules,
) -> Result<Endpoint, TransportError> {
    let mut config = rules.config();
    config.connections_max = config.connections_max.max(setup.connections + CONNECTIONS_SPARE);
    let polling = match setup.waiting {
        // Each end has its own processor, so poll also while waiting for connections.
        Waiting::Poll => Polling::ALWAYS,
        Waiting::Mixed => Polling::ADAPTIVE,
        Waiting::Interrupt => Polling::NEVER,
    };
    let shares_memory = rules == Rules::SharedMemory;
    let mut builder =
        Endpoint::builder().engine(config).polling(polling).shared_memory(shares_memory);
    if !names.is_empty() {
        let delays_us = setup.delays_us.clone();
        builder = builder.wrap_links(Box::new(move |index, link| {
            match delays_us.get(index).copied().unwrap_or(0) {
                0 => link,
                delay_us => Box::new(Delay::new(link, u64::from(delay_us) * 1000)),
            }
        }));
        return builder.links(names.join(",")).build().map_err(other);
    }
    for address in addresses {
        builder = builder.bind(SocketAddr::new(*address, 0).to_string());
    }
    builder.build().map_err(other)
}

/// Adds the problems of the endpoint's links to `error`, because they may be its cause.
fn explained(error: TransportError, endpoint: &Endpoint) -> TransportError {
    let problems = endpoint.link_problems();
    if problems.is_empty() {
        return error;
    }
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    TransportError::Other(format!("{error} ({})", problems.join("; ")))
}

/// Maps a timeout of a wait to the timeout error of a phase.
fn unless_timed_out(error: WaitError, attempt: &'static str) -> TransportError {
    match error {
        WaitError::TimedOut { .. } => super::idle_limit::timed_out(attempt),
        error => other(error),
    }
}

fn other(error: impl std::fmt::Display) -> TransportError {
    TransportError::Other(format!("edge: {error}"))
}

/// Parameter with the addresses of the server's links.
const PEERS: &str = "peers";
/// Service number of the measured listener.
const SERVICE: u32 = 0;
/// Time for which a peer may be silent, in nanoseconds: longer than [`PHASE_TIME_MAX`]. On a busy
/// host, a process may get no processor for seconds. The control connection shows the end of the
/// peer's process.
const SILENCE_BUDGET_NS: u64 = 30_000_000_000;
/// The purpose of a stream's waits, for errors.
const STREAM: &str = "stream writes over edge";
/// Immediate value of the last write in a phase.
const END_OF_PHASE: u32 = 0x454e_4421;
/// Smallest message in bytes: a word that can be polled.
const WORD_BYTES: u64 = 8;
/// Size of the completion queue: more than the highest number of operations in flight.
const QUEUE_ENTRIES: usize = 4096;
/// Additional connections of an endpoint, for connections that are still closing while new ones are
/// opened.
const CONNECTIONS_SPARE: u32 = 16;
/// Time limit for `accept`, and for the attempt of the client, which connects at once. It is shorter
/// than [`SILENCE_BUDGET_NS`], so that one of the two always decides which error a client reports.
const ACCEPT_TIME_MAX: Duration = Duration::from_secs(10);
/// Number of packets declared lost.
const PACKETS_LOST: &str = "packets_lost";
/// Number of probes sent because acknowledgements did not arrive in time.
const PROBE_TIMEOUTS: &str = "probe_timeouts";
/// Sum of the smoothed round-trip times of both ends. Each end takes the link on which it has sent
/// the most data.
const ROUND_TRIP: &str = "round_trip_us";
/// Sum of the congestion windows of both ends. Each end takes the link on which it has sent the
/// most data.
const WINDOW: &str = "window_bytes";
/// Sum of the frame sizes of both ends. Each end takes the link on which it has sent the most data.
const FRAME: &str = "frame_bytes";

#[cfg(test)]
mod tests {
    use std::thread;

    use testbed::pair::LinkAddresses;

    use super::super::idle_limit::timed_out;
    use super::*;

    fn one_way() -> Setup {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Setup {
            test: Test::OneWay,
            message_bytes: 64,
            links: vec![LinkAddresses { client: Some(loopback), server: loopback }],
            client_links: Vec::new(),
            server_links: Vec::new(),
            mtu: None,
            in_flight: 1,
            connections: 1,
            in_order: false,
            waiting: Waiting::Interrupt,
            delays_us: Vec::new(),
            rates: Vec::new(),
        }
    }

    #[test]
    fn an_end_without_completions_waits_on_only_while_data_passes() {
        let setup = one_way();
        let mut server = Server::listen(&setup, Rules::Own).expect("a server on loopback");
        let mut client = Client::new(&setup, server.peers(), Rules::Own).expect("a client");
        thread::scope(|scope| {
            let accepting = scope.spawn(|| server.accept());
            client.connect().expect("the server accepts");
            accepting.join().expect("no panic").expect("a request");
        });
        let ends = [&server.half, &client.half];
        let mut seen = ends.map(|end| end.data_frames_passed().expect("not forked"));
        for (end, seen) in ends.into_iter().zip(&mut seen) {
            client.half.stream(1, false).expect("the peer acknowledges the write");
            let mut after = |error| end.unless_data_passed(error, seen);
            after(timed_out(STREAM)).expect("data has passed");
            after(timed_out(STREAM)).expect_err("no data has passed since");
            client.half.stream(1, false).expect("the peer acknowledges the write");
            after(TransportError::Closed { attempt: STREAM }).expect_err("it is no timeout");
        }
    }
}
