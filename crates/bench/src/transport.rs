//! The interface of a transport that can be measured.
//!
//! A [`Transport`] creates a [`ServerSide`] in the server's process and a [`ClientSide`] in the
//! client's process. A *sample* has these steps:
//!
//! 1. The server calls `listen`.
//! 2. The client receives the server's [`Advertisement`] and calls `connect`, while the server
//!    calls `accept`.
//! 3. Both ends run *phases*: one or more phases to warm up, and one phase that is recorded. In
//!    each phase both ends `run` the same number of operations. The server enters `run` before the
//!    client does.
//!
//! The caller measures time and CPU time around `run`. So `ClientSide::run` must return only after
//! the server's application has received all data.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use testbed::pair::LinkAddresses;

/// A kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Sends one message back and forth. An operation is a round trip. The recorded latency is half
    /// its time.
    PingPong,
    /// Sends messages from client to server. The transport chooses how many messages are in flight.
    OneWay,
    /// Sends messages in both directions at the same time. An operation is one message in each
    /// direction.
    TwoWay,
    /// Sends small messages from client to server, [`Setup::in_flight`] at a time, and counts
    /// operations.
    OperationRate,
    /// Sets up one connection after another. An operation ends when the applications of both ends
    /// have the connection. The recorded latency is the time of the operation.
    ConnectionSetup,
    /// Sends messages from client to server. The server checks each byte and records progress over
    /// time. The test is not in [`Test::ALL`], because it needs links that fail while it runs.
    VerifiedStream,
    /// Sends a stream of messages from client to server. At the same time, another connection of
    /// the same two endpoints regularly writes 8 bytes. An operation is a message of the stream.
    /// The recorded latencies are the times of the small writes from post to completion. The test
    /// is not in [`Test::ALL`], because only endpoints can have two connections.
    SmallBesideStream,
    /// Alternates two ping-pongs. The first uses one of [`Setup::connections`] connections of an
    /// endpoint, while its other connections are idle. The second uses the only connection of
    /// another endpoint. Only the latencies of the first ping-pong are recorded.
    ManyConnections,
}

impl Test {
    /// All tests, in the order in which they are run and shown.
    pub const ALL: [Self; 6] = [
        Self::PingPong,
        Self::OneWay,
        Self::TwoWay,
        Self::OperationRate,
        Self::ConnectionSetup,
        Self::ManyConnections,
    ];

    /// All tests that the command line accepts.
    pub const NAMED: [Self; 7] = [
        Self::PingPong,
        Self::OneWay,
        Self::TwoWay,
        Self::OperationRate,
        Self::ConnectionSetup,
        Self::ManyConnections,
        Self::SmallBesideStream,
    ];

    /// Returns the name on the command line, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::OneWay => "one-way",
            Self::TwoWay => "two-way",
            Self::OperationRate => "operation-rate",
            Self::ConnectionSetup => "connection-setup",
            Self::ManyConnections => "many-connections",
            Self::VerifiedStream => "verified-stream",
            Self::SmallBesideStream => "small-beside-stream",
        }
    }

    /// Returns whether repetitions are compared by latency. Otherwise operations per second are
    /// compared.
    pub fn is_about_latency(self) -> bool {
        matches!(
            self,
            Self::PingPong
                | Self::ConnectionSetup
                | Self::ManyConnections
                | Self::SmallBesideStream
        )
    }
}

/// How a thread waits for the other host.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Polls and never sleeps.
    #[default]
    Poll,
    /// Blocks in a call that may spin before it sleeps.
    Mixed,
    /// Blocks in a call that sleeps at once.
    Interrupt,
}

impl Waiting {
    /// All ways to wait.
    pub const ALL: [Self; 3] = [Self::Poll, Self::Mixed, Self::Interrupt];

    /// Returns the name on the command line, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Mixed => "mixed",
            Self::Interrupt => "interrupt",
        }
    }
}

/// Everything both sides must know before they connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The test to run.
    pub test: Test,
    /// Bytes of a message, at most [`MESSAGE_BYTES_MAX`].
    pub message_bytes: u64,
    /// The links to use, at least one.
    pub links: Vec<LinkAddresses>,
    /// Names of the client's links, for transports with named links. If empty, [`Setup::links`]
    /// applies.
    #[serde(default)]
    pub client_links: Vec<String>,
    /// Names of the server's links, set by the server itself. If empty, [`Setup::links`] applies.
    #[serde(default)]
    pub server_links: Vec<String>,
    /// Largest IP packet of the links, in bytes, if it is known.
    pub mtu: Option<u32>,
    /// Operations that the client keeps in flight in [`Test::OneWay`], [`Test::TwoWay`] and
    /// [`Test::OperationRate`]. Transports without pipelining ignore this number.
    pub in_flight: u32,
    /// Number of connections in [`Test::ManyConnections`]; 1 in other tests.
    pub connections: u32,
    /// Whether the writes of a stream are delivered in order, as verbs require. Otherwise any order
    /// is allowed, which is `MultiEdge`'s default. Only transports that support both orders use
    /// this field.
    #[serde(default)]
    pub in_order: bool,
    /// How threads wait, for transports that can wait in several ways.
    #[serde(default)]
    pub waiting: Waiting,
    /// Delay to add to each named link, in microseconds. Transports without named links ignore the
    /// delays.
    #[serde(default)]
    pub delays_us: Vec<u32>,
    /// Rates of the named links in bits per second; empty if they are unknown. Only yardsticks use
    /// this field.
    #[serde(default)]
    pub rates: Vec<u64>,
}

/// How the client reaches the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertisement {
    /// Addresses, one per link.
    pub addresses: Vec<SocketAddr>,
    /// All other parameters, such as the address and the key of a memory region.
    pub parameters: BTreeMap<String, String>,
}

/// One run over an established connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Operations to perform, at least 1.
    pub operations: u64,
}

/// The counters that one end recorded during a phase. The report adds the counters of both ends by
/// name, and uses the names in [`counter`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The increase of each counter during the phase.
    pub counters: BTreeMap<String, f64>,
    /// Bytes that arrived in each millisecond ([`Test::VerifiedStream`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<u32>,
    /// Time of the first millisecond of the timeline, in milliseconds on the recording host's
    /// clock.
    #[serde(default)]
    pub timeline_start_ms: u64,
}

/// Names of the counters that reports use.
pub mod counter {
    /// Frames with payload, without retransmissions.
    pub const DATA_FRAMES: &str = "data_frames";
    /// Frames that contain only acknowledgements.
    pub const EXPLICIT_ACKS: &str = "explicit_acks";
    /// Frames retransmitted.
    pub const RETRANSMISSIONS: &str = "retransmissions";
    /// Frames with payload that arrived.
    pub const RECEIVED_DATA_FRAMES: &str = "received_data_frames";
    /// Received data frames that arrived after a frame with later data.
    pub const OUT_OF_ORDER_FRAMES: &str = "out_of_order_frames";
    /// Datagrams that did not arrive. Only yardsticks have this counter, because they do not
    /// retransmit.
    pub const LOST_DATAGRAMS: &str = "lost_datagrams";
    /// Memory of an idle connection at the server, in bytes
    /// ([`Test::ManyConnections`](super::Test)).
    pub const BYTES_PER_IDLE_CONNECTION: &str = "bytes_per_idle_connection";
    /// Memory of an idle connection at the client, in bytes.
    pub const CLIENT_BYTES_PER_IDLE_CONNECTION: &str = "client_bytes_per_idle_connection";
    /// Number of messages with wrong bytes.
    pub const CORRUPTED: &str = "corrupted_messages";
    /// Time that the application spent posting the timed operations, in nanoseconds.
    pub const POST_NS: &str = "post_ns";
    /// Number of operations whose posting was timed.
    pub const POSTS_TIMED: &str = "posts_timed";
    /// Time inside the engine while the engine had work, in nanoseconds, added over both hosts.
    /// This is the CPU time of the protocol.
    pub const PROTOCOL_NS: &str = "protocol_ns";
    /// Number of times that a thread slept on the links and was woken.
    pub const WAKEUPS: &str = "wakeups";
    /// Frames received, with or without payload.
    pub const RECEIVED_FRAMES: &str = "received_frames";
    /// Median latency on one of many connections, divided by the median latency on the only
    /// connection of an endpoint.
    pub const SLOWDOWN: &str = "slowdown";
}

/// A way to transfer bytes that can be measured.
pub trait Transport {
    /// Returns the name on the command line, in tables and in JSON.
    fn name(&self) -> &'static str;

    /// Describes the transport in one line.
    fn description(&self) -> &'static str;

    /// Returns whether the transport is measured only if the user names it.
    fn is_optional(&self) -> bool {
        false
    }

    /// Returns whether the transport can run `test` with messages of `message_bytes` at this `mtu`.
    fn supports(&self, test: Test, message_bytes: u64, mtu: Option<u32>) -> bool;

    /// Returns the numbers of links with which to measure the transport, each at most `available`.
    fn link_counts(&self, available: u32) -> Vec<u32> {
        let _ = available;
        vec![1]
    }

    /// Returns the ways to wait with which to measure the transport. `chosen` lists the ways that
    /// the user selected.
    fn waitings(&self, chosen: &[Waiting]) -> Vec<Waiting> {
        let _ = chosen;
        vec![Waiting::Poll]
    }

    /// Binds the address that the client connects to.
    ///
    /// # Errors
    /// Returns [`TransportError`]; each variant names one cause.
    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError>;

    /// Connects to the address that the server has advertised.
    ///
    /// # Errors
    /// Returns [`TransportError`]; each variant names one cause.
    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError>;
}

/// The server's side of one sample.
pub trait ServerSide {
    /// Returns the parameters that the client needs for `connect`.
    fn advertisement(&self) -> Advertisement;

    /// Waits until the client has connected, at most [`PHASE_TIME_MAX`].
    ///
    /// # Errors
    /// Returns [`TransportError`]; each variant names one cause.
    fn accept(&mut self) -> Result<(), TransportError>;

    /// Runs the server's part of `phase` until all operations are done.
    ///
    /// # Errors
    /// Returns [`TransportError`]; each variant names one cause.
    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError>;
}

/// The client's side of one sample.
pub trait ClientSide {
    /// Runs the client's part of `phase`. Records the latency of each operation if the test is
    /// about latency.
    ///
    /// # Errors
    /// Returns [`TransportError`]; each variant names one cause.
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError>;
}

/// Why a transport failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// A system call failed.
    #[error("{attempt}: {source}")]
    Io {
        /// The attempted action, with its values.
        attempt: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The other side did not answer in time.
    #[error(
        "{attempt}: no progress for {seconds} s; check whether a firewall blocks the path between \
         the hosts"
    )]
    TimedOut {
        /// The attempted action.
        attempt: &'static str,
        /// Time without progress, in seconds.
        seconds: u64,
    },
    /// The other side closed the connection in the middle of a phase.
    #[error("{attempt}: the peer closed the connection")]
    Closed {
        /// The attempted action.
        attempt: &'static str,
    },
    /// The advertisement lacks a value that the client needs, or contains an unusable value.
    #[error(
        "the server's advertisement has no usable {what}; install the same version on both hosts"
    )]
    Advertisement {
        /// The name of the missing or unusable value.
        what: &'static str,
    },
    /// The transport cannot run the test with this message size.
    #[error("transport {transport} cannot run test {test} with messages of {message_bytes} bytes")]
    Unsupported {
        /// The transport's name.
        transport: &'static str,
        /// The test's name.
        test: &'static str,
        /// Bytes of a message.
        message_bytes: u64,
    },
    /// An error specific to one transport.
    #[error("{0}")]
    Other(String),
}

impl TransportError {
    /// Adds a description of the attempt to an error of the operating system.
    pub fn io(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempt = attempt.into();
        move |source| Self::Io { attempt, source }
    }
}

/// Latencies of the operations of one phase, from 1 ns to 60 s, with three significant digits.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Makes an empty record. Recording into it allocates nothing.
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("the bounds and the digits are valid constants"),
        )
    }

    /// Records the latency of one operation.
    #[inline]
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns);
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        // Unlike `clear`, `reset` also resets the minimum and the maximum.
        self.0.reset();
    }

    /// Returns the distribution; `None` if nothing was recorded.
    pub fn summary(&self) -> Option<LatencySummary> {
        let quantile = |q| self.0.value_at_quantile(q) as f64;
        (!self.0.is_empty()).then(|| LatencySummary {
            min: self.0.min() as f64,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.0.max() as f64,
            mean: self.0.mean(),
        })
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// A distribution of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The lowest latency.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The highest latency.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// Time without progress after which a phase fails. A phase lasts about a second at most, so this
/// limit is reached only if a host or the path between the hosts is down.
pub const PHASE_TIME_MAX: Duration = Duration::from_secs(10);

/// Largest message in bytes: 64 MiB. With this limit, a server allocates at most 128 MiB for the
/// two buffers of a sample.
pub const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// Highest number of connections in [`Test::ManyConnections`].
pub const CONNECTIONS_MAX: u32 = 100_000;

/// Highest recorded latency: one minute, which is far longer than [`PHASE_TIME_MAX`].
const LATENCY_NS_MAX: u64 = 60_000_000_000;
