//! What a transport must be able to do to be measured.
//!
//! A [`Transport`] makes a [`ServerSide`] in the server's process and a [`ClientSide`] in the
//! client's. A *sample* is: `listen` at the server, its [`Advertisement`] goes to the client,
//! `connect` there while the server is in `accept`, then *phases*: one or more that warm up, one
//! that counts. In each phase both sides are asked to `run` the same number of operations; the
//! server is inside `run` before the client enters. Time and CPU are measured around `run` by the
//! caller, so `ClientSide::run` must return only after the server's application has everything.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One message back and forth. An operation is a round trip; its latency is recorded halved.
    PingPong,
    /// Messages from client to server, as many in flight as the transport wants.
    OneWay,
    /// Messages in both directions at the same time. An operation is a message each way.
    TwoWay,
    /// Small messages from client to server, [`Setup::in_flight`] at a time: counts operations.
    OperationRate,
    /// Connections made one after the other. An operation is a connection that both applications
    /// have; its latency is recorded.
    ConnectionSetup,
    /// Messages from client to server, each checked there byte by byte; the progress over time is
    /// recorded. Not among [`Test::ALL`]: it is about what happens to links meanwhile.
    VerifiedStream,
    /// Messages from client to server, while another connection of the same endpoints writes 8 bytes
    /// once in a while. An operation is a message of the stream; the latencies are those of the small
    /// writes, until their completion. Not among [`Test::ALL`]: only endpoints have two connections.
    SmallBesideStream,
    /// A ping-pong on one of [`Setup::connections`] connections, the others idle, in turn with one
    /// on a connection that is alone at its endpoint. Only the former's latencies are recorded.
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

    /// All tests that the command line knows.
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

    /// Whether repetitions are compared by latency; otherwise by operations per second.
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
    /// It polls and never sleeps.
    #[default]
    Poll,
    /// It blocks in a call, which may spin before it sleeps.
    Mixed,
    /// It blocks in a call, which sleeps at once.
    Interrupt,
}

impl Waiting {
    /// All of them.
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

/// The two ends of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkAddresses {
    /// The client's address, if it must be a certain one; otherwise the kernel chooses.
    pub client: Option<IpAddr>,
    /// The server's address.
    pub server: IpAddr,
}

/// Everything both sides must know before they connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// What is measured.
    pub test: Test,
    /// Bytes of a message, at most [`MESSAGE_BYTES_MAX`].
    pub message_bytes: u64,
    /// The links to use, at least one.
    pub links: Vec<LinkAddresses>,
    /// The client's links by name, for transports that have links; empty: those of [`Setup::links`].
    #[serde(default)]
    pub client_links: Vec<String>,
    /// The server's links by name, which it sets itself; empty: those of [`Setup::links`].
    #[serde(default)]
    pub server_links: Vec<String>,
    /// Largest IP packet of the links, in bytes, if it is known.
    pub mtu: Option<u32>,
    /// Operations that the client keeps in flight in [`Test::OneWay`], [`Test::TwoWay`] and
    /// [`Test::OperationRate`], for transports that have such a notion.
    pub in_flight: u32,
    /// Connections of [`Test::ManyConnections`]; 1 otherwise.
    pub connections: u32,
    /// Whether the writes of a stream are delivered in order (verbs) or freely (`MultiEdge`'s
    /// default), for transports that can do either.
    #[serde(default)]
    pub in_order: bool,
    /// How threads wait, for transports that can wait in several ways.
    #[serde(default)]
    pub waiting: Waiting,
    /// How much longer than they are the named links behave, in microseconds each, for transports
    /// that have links; the others ignore it.
    #[serde(default)]
    pub delays_us: Vec<u32>,
    /// Rates of the named links in bits per second, as far as they are known: for yardsticks.
    #[serde(default)]
    pub rates: Vec<u64>,
}

/// Where and how the client reaches what the server's side listens on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertisement {
    /// Addresses, one per link.
    pub addresses: Vec<SocketAddr>,
    /// Anything else, such as the address and the key of a memory region.
    pub parameters: BTreeMap<String, String>,
}

/// One run over a connection that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Operations to perform, at least 1.
    pub operations: u64,
}

/// What one side saw during a phase. Counters of both sides are added up by name; the names in
/// [`counter`] have a meaning for the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// Counters, as differences over the phase.
    pub counters: BTreeMap<String, f64>,
    /// Bytes that arrived in each millisecond ([`Test::VerifiedStream`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<u32>,
    /// When the first millisecond of the timeline was, on the clock of the host that recorded it.
    #[serde(default)]
    pub timeline_start_ms: u64,
}

/// Names of counters from which the report derives percentages.
pub mod counter {
    /// Frames with payload, first transmissions.
    pub const DATA_FRAMES: &str = "data_frames";
    /// Frames that carry nothing but acknowledgements.
    pub const EXPLICIT_ACKS: &str = "explicit_acks";
    /// Frames retransmitted.
    pub const RETRANSMISSIONS: &str = "retransmissions";
    /// Frames with payload that arrived.
    pub const RECEIVED_DATA_FRAMES: &str = "received_data_frames";
    /// Of these, the ones that arrived after a frame with later data.
    pub const OUT_OF_ORDER_FRAMES: &str = "out_of_order_frames";
    /// Datagrams that did not arrive (yardsticks without retransmission).
    pub const LOST_DATAGRAMS: &str = "lost_datagrams";
    /// Memory of an idle connection at the server, in bytes
    /// ([`Test::ManyConnections`](super::Test)).
    pub const BYTES_PER_IDLE_CONNECTION: &str = "bytes_per_idle_connection";
    /// The same at the client.
    pub const CLIENT_BYTES_PER_IDLE_CONNECTION: &str = "client_bytes_per_idle_connection";
    /// Messages that were not what they had to be.
    pub const CORRUPTED: &str = "corrupted_messages";
    /// Nanoseconds the application spent in posting operations it timed.
    pub const POST_NS: &str = "post_ns";
    /// Operations whose posting was timed.
    pub const POSTS_TIMED: &str = "posts_timed";
    /// Nanoseconds inside the engine with something to do: both hosts' CPU time for the protocol.
    pub const PROTOCOL_NS: &str = "protocol_ns";
    /// Times a thread that slept on the links was woken.
    pub const WAKEUPS: &str = "wakeups";
    /// Frames received, whatever they carry.
    pub const RECEIVED_FRAMES: &str = "received_frames";
    /// Median latency of one of many connections, divided by that of a connection alone.
    pub const SLOWDOWN: &str = "slowdown";
}

/// A way to move bytes that can be measured.
pub trait Transport {
    /// Returns the name on the command line, in tables and in JSON.
    fn name(&self) -> &'static str;

    /// Describes it in one line.
    fn description(&self) -> &'static str;

    /// Whether it is measured only when it is asked for by name.
    fn is_optional(&self) -> bool {
        false
    }

    /// Whether `test` with messages of `message_bytes` makes sense for it at this `mtu`.
    fn supports(&self, test: Test, message_bytes: u64, mtu: Option<u32>) -> bool;

    /// Returns the numbers of links to measure it with, each at most `available`.
    fn link_counts(&self, available: u32) -> Vec<u32> {
        let _ = available;
        vec![1]
    }

    /// Returns the ways to wait to measure it with. `chosen` lists what the user wants, where there is a choice.
    fn waitings(&self, chosen: &[Waiting]) -> Vec<Waiting> {
        let _ = chosen;
        vec![Waiting::Poll]
    }

    /// Binds what the client connects to.
    ///
    /// # Errors
    /// [`TransportError`], one variant for each cause.
    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError>;

    /// Connects to what the server has advertised.
    ///
    /// # Errors
    /// [`TransportError`], one variant for each cause.
    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError>;
}

/// The server's side of one sample.
pub trait ServerSide {
    /// Returns what the client needs for `connect`.
    fn advertisement(&self) -> Advertisement;

    /// Waits until the client has connected, at most [`PHASE_TIME_MAX`].
    ///
    /// # Errors
    /// [`TransportError`], one variant for each cause.
    fn accept(&mut self) -> Result<(), TransportError>;

    /// Takes part in `phase` until all its operations are done.
    ///
    /// # Errors
    /// [`TransportError`], one variant for each cause.
    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError>;
}

/// The client's side of one sample.
pub trait ClientSide {
    /// Performs `phase`. Records the latency of each operation if the test is about latency.
    ///
    /// # Errors
    /// [`TransportError`], one variant for each cause.
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError>;
}

/// Why a transport could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The operating system refused.
    #[error("{attempt}: {source}")]
    Io {
        /// What was attempted, with its values.
        attempt: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The other side did not answer in time.
    #[error("{attempt}: no progress for {seconds} s; is the path between the hosts open?")]
    TimedOut {
        /// What was attempted.
        attempt: &'static str,
        /// How long it was tried.
        seconds: u64,
    },
    /// The other side closed the connection in the middle of a phase.
    #[error("{attempt}: the other side closed the connection")]
    Closed {
        /// What was attempted.
        attempt: &'static str,
    },
    /// The advertisement lacks something or holds something unusable.
    #[error("the server's advertisement has no usable {what}; do both hosts run the same version?")]
    Advertisement {
        /// What is missing.
        what: &'static str,
    },
    /// The test or its setup is not possible with this transport.
    #[error("{transport} cannot run {test} with messages of {message_bytes} bytes")]
    Unsupported {
        /// The transport's name.
        transport: &'static str,
        /// The test's name.
        test: &'static str,
        /// Bytes of a message.
        message_bytes: u64,
    },
    /// Something specific to a transport.
    #[error("{0}")]
    Other(String),
}

impl TransportError {
    /// Wraps what the operating system said with what was attempted.
    pub fn io(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempt = attempt.into();
        move |source| Self::Io { attempt, source }
    }
}

/// Latencies of the operations of one phase, from 1 ns to 60 s, to three digits.
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

    /// Records one operation.
    #[inline]
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        // Unlike `clear`, this forgets the shortest and the longest, too.
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
    /// The shortest, in nanoseconds as all of them.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// 999 of 1000 are at most this.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

/// A phase without any progress for this long has failed. Phases last about a second at most, so
/// this is only reached when a host or the path between them is gone.
pub const PHASE_TIME_MAX: Duration = Duration::from_secs(10);

/// Largest message, in bytes: 64 MiB, so that a server holds at most two such buffers per sample.
pub const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// Most connections of [`Test::ManyConnections`].
pub const CONNECTIONS_MAX: u32 = 100_000;

/// One minute: far above [`PHASE_TIME_MAX`].
const LATENCY_NS_MAX: u64 = 60_000_000_000;
