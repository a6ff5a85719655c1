//! The results of a benchmark. [`Results`] is the JSON document that `docs/bench-json.md`
//! describes. Versions with the same [`FORMAT`] only add fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::statistics::Summary;
use crate::transport::{LatencySummary, Test, Waiting};
use crate::transports::BASELINE;

/// All results of one run of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The path between client and server.
    pub path: PathFacts,
    /// The client's host.
    pub client: Machine,
    /// The server's host, which in most runs is also the client's host.
    pub server: Machine,
    /// The settings of the measurement.
    pub settings: Settings,
    /// The transports that were measured.
    pub transports: Vec<TransportFacts>,
    /// One entry per test, message size, transport and number of links.
    pub results: Vec<Measurement>,
}

/// The path between client and server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFacts {
    /// The kind of path.
    pub kind: PathKind,
    /// Number of links between the hosts.
    pub links: u32,
    /// Largest IP packet in bytes, where known.
    pub mtu: Option<u32>,
}

/// A kind of path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathKind {
    /// Two network namespaces joined by veth pairs.
    Namespaces,
    /// The loopback interface.
    Loopback,
    /// Another host, or another address of this host.
    Peer,
}

impl PathKind {
    /// Returns a description in words.
    pub fn description(self) -> &'static str {
        match self {
            Self::Namespaces => "two network namespaces, connected by veth pairs",
            Self::Loopback => "the loopback interface",
            Self::Peer => "two hosts",
        }
    }
}

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Number of samples taken of each measurement.
    pub repetitions: u32,
    /// Number of samples excluded from the summaries. Half of them are the highest samples, half
    /// the lowest.
    pub dropped: u32,
    /// Intended length of a sample without its warm-up, in seconds.
    pub sample_seconds: f64,
    /// Operations in flight, for transports with pipelining.
    pub in_flight: u32,
    /// The CPU of the client and the CPU of the server, if each was restricted to one.
    pub pinned_to: Option<[usize; 2]>,
    /// Threads that spun on the client's host during the measurement.
    #[serde(default)]
    pub busy: u32,
}

/// A transport that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportFacts {
    /// The transport's name in the measurements.
    pub name: String,
    /// Description in one line.
    pub description: String,
}

/// One test of one transport with one message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The test.
    pub test: Test,
    /// Name of the transport.
    pub transport: String,
    /// Number of links used.
    pub links: u32,
    /// How the transport's threads waited.
    #[serde(default)]
    pub waiting: Waiting,
    /// Bytes of a message; 0 in tests without messages.
    pub message_bytes: u64,
    /// Median latency of an operation (ping-pong: half a round trip), in nanoseconds.
    pub latency_ns: Option<Summary>,
    /// The 99th percentile of the latency, in nanoseconds.
    pub latency_p99_ns: Option<Summary>,
    /// Payload bytes per second, both directions together.
    pub bytes_per_second: Summary,
    /// Operations per second.
    pub operations_per_second: Summary,
    /// CPU seconds of both processes per 10^9 payload bytes of both directions together.
    pub cpu_seconds_per_gigabyte: Option<Summary>,
    /// CPU seconds of the hosts' softirq threads per 10^9 payload bytes. This is an upper bound,
    /// because these threads serve the whole host.
    pub softirq_cpu_seconds_per_gigabyte: Option<Summary>,
    /// Explicit acknowledgements and retransmissions per 100 data frames.
    pub extra_frame_percent: Option<f64>,
    /// Frames out of order per 100 data frames received.
    pub out_of_order_percent: Option<f64>,
    /// Ratios to the baseline and the yardsticks, computed for each repetition. The list contains
    /// no ratio of the measurement to itself, and no ratio to a transport that was not measured.
    pub ratios: Vec<Ratio>,
    /// Mean of each counter of the transport over the samples.
    pub counters: BTreeMap<String, f64>,
    /// The samples in the order of their measurement.
    pub samples: Vec<Sample>,
}

impl Measurement {
    /// Returns the transport's name. Adds the way to wait if the transport does not usually wait in
    /// this way, and the number of links if there are several.
    pub fn label(&self) -> String {
        label(&self.transport, self.waiting, self.links)
    }

    /// Returns the ratio of this measurement to that of transport `to`: the ratio of latencies or
    /// of operations per second, depending on the test. Returns `None` if this ratio was not
    /// computed.
    pub fn ratio_to(&self, to: &str) -> Option<Summary> {
        let ratio = self.ratios.iter().find(|ratio| ratio.to == to)?;
        if self.test.is_about_latency() { ratio.latency } else { ratio.throughput }
    }
}

/// Returns a transport's name. Adds the way to wait, unless the transport polls or is the baseline.
/// Adds the number of links if there are several.
pub fn label(transport: &str, waiting: Waiting, links: u32) -> String {
    let is_usual = transport == BASELINE || waiting == Waiting::Poll;
    let waiting = if is_usual { String::new() } else { format!(" {}", waiting.name()) };
    let links = if links > 1 { format!(" ×{links}") } else { String::new() };
    format!("{transport}{waiting}{links}")
}

/// Ratios of a measurement to another transport's measurement in the same repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the other transport.
    pub to: String,
    /// Ratio of latencies; below 1 is better.
    pub latency: Option<Summary>,
    /// Ratio of operations per second; above 1 is better.
    pub throughput: Option<Summary>,
    /// Ratio of CPU seconds per byte; below 1 is better.
    pub cpu: Option<Summary>,
}

/// The results of one run of one test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Operations performed.
    pub operations: u64,
    /// Payload bytes moved, both directions together.
    pub bytes: u64,
    /// Duration as measured by the client, in seconds.
    pub seconds: f64,
    /// Distribution of the operations' latencies, if the test is about latency.
    pub latency_ns: Option<LatencySummary>,
    /// CPU seconds, user and system, of the client's process.
    pub cpu_seconds_client: f64,
    /// CPU seconds, user and system, of the server's process.
    pub cpu_seconds_server: f64,
    /// CPU seconds of the hosts' softirq threads.
    pub cpu_seconds_softirq: f64,
    /// Voluntary context switches of all threads of both processes.
    #[serde(default)]
    pub voluntary_switches: u64,
    /// Counters of the transport, added over both sides.
    pub counters: BTreeMap<String, f64>,
    /// Bytes that arrived in each millisecond, if the test records them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<u32>,
    /// Time of the timeline's first millisecond, in milliseconds on the receiving host's clock.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timeline_start_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Sample {
    /// Returns the median latency in nanoseconds.
    pub fn latency_ns_p50(&self) -> Option<f64> {
        self.latency_ns.map(|latency| latency.p50)
    }

    /// Returns the operations per second.
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Returns the payload bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Returns the CPU seconds of both processes per 10^9 payload bytes.
    pub fn cpu_seconds_per_gigabyte(&self) -> Option<f64> {
        self.per_gigabyte(self.cpu_seconds_client + self.cpu_seconds_server)
    }

    /// Returns the CPU seconds of the softirq threads per 10^9 payload bytes.
    pub fn softirq_cpu_seconds_per_gigabyte(&self) -> Option<f64> {
        self.per_gigabyte(self.cpu_seconds_softirq)
    }

    fn per_gigabyte(&self, seconds: f64) -> Option<f64> {
        (self.bytes > 0).then(|| seconds * 1e9 / self.bytes as f64)
    }
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-bench/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_distinguish_wait_modes() {
        assert_eq!(label("edge", Waiting::Poll, 1), "edge");
        assert_eq!(label("edge", Waiting::Interrupt, 2), "edge interrupt ×2");
        assert_eq!(label("edge", Waiting::Mixed, 1), "edge mixed");
        assert_eq!(label(BASELINE, Waiting::Interrupt, 1), "tcp");
    }
}
