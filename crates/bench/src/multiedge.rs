//! Measures the set-ups of the `MultiEdge` paper and additional set-ups. In each set-up, links of
//! known rate join two hosts. The contenders are the edge protocol with this project's sending
//! policy, the edge protocol with the sending policy of `MultiEdge`, and kernel TCP.
//!
//! Each set-up is a separate run with its own namespaces and processes. A run samples its
//! contenders alternately.

pub mod paper;
pub mod setups;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::client::messages_per_operation;
use crate::plan::{Options, PathChoice};
use crate::results::{Measurement, Results, Sample};
use crate::run::{self, Observer, RunError};
use crate::statistics::Summary;
use crate::transport::{Test, Waiting, counter};
use crate::transports::{BASELINE, EDGE, MPTCP, MULTIEDGE};
use crate::yardsticks::bare_stream;
use testbed::clock;
use testbed::mptcp;
use testbed::switched::LinkShape;

pub use self::paper::Paper;
pub use self::setups::SetUp;

/// A kind of link: the kernel interface through which the edge protocol sends and receives frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// Raw Ethernet over packet sockets.
    Packet,
    /// UDP sockets.
    Udp,
    /// Raw Ethernet over `AF_XDP`.
    Xdp,
}

impl LinkKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Packet, Self::Udp, Self::Xdp];

    /// Returns the name on the command line and in names of links.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Udp => "udp",
            Self::Xdp => "xdp",
        }
    }

    /// Returns the names of the links of a host with `count` interfaces, in the notation of the
    /// command line.
    pub(crate) fn links(self, count: usize) -> Vec<String> {
        let name = |link| match self {
            Self::Packet | Self::Udp => format!("{}:link{link}", self.name()),
            // The switch redirects frames by a filter. An XDP program in generic mode does not see
            // redirected frames (`skb_is_redirected` in the kernel's `do_xdp_generic`), so use
            // native mode.
            Self::Xdp => format!("{}:link{link}:0/mode=native", self.name()),
        };
        (1..=count).map(name).collect()
    }
}

/// The user's choices for a run over set-ups.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The set-ups in the order of their measurement.
    pub setups: Vec<SetUp>,
    /// The kind of links: UDP sockets, packet sockets or `AF_XDP`.
    pub kind: LinkKind,
    /// MTU of the links in bytes; `None` selects the MTU of each set-up.
    pub mtu: Option<u32>,
    /// Whether to measure the edge protocol with this project's sending policy.
    pub with_own: bool,
    /// Whether to measure the edge protocol with the sending policy of `MultiEdge`.
    pub with_multiedge: bool,
    /// Whether to measure a bare stream of frames, which shows the highest rate of this host. A
    /// bare stream requires [`LinkKind::Packet`] and links without delay.
    pub with_bare: bool,
    /// Whether to measure kernel TCP in all set-ups, and MPTCP in set-ups with several links.
    pub with_tcp: bool,
    /// All other choices: tests, sizes, repetitions, time per set-up.
    pub options: Options,
}

/// The results of a run over set-ups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The kind of links over which the set-ups were measured.
    pub kind: LinkKind,
    /// One entry for each set-up.
    pub setups: Vec<SetUpResults>,
}

/// The results of one set-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetUpResults {
    /// The set-up.
    pub setup: SetUp,
    /// The detailed results.
    pub results: Results,
    /// The quantities that the paper prints: one row for each test, size and contender.
    pub rows: Vec<Row>,
    /// For each contender without results, the reason why it could not run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cannot_run: BTreeMap<String, String>,
}

/// The quantities that the paper prints for a test with one message size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The test.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// The contender: the edge protocol with this project's or with `MultiEdge`'s sending policy,
    /// or kernel TCP.
    pub contender: String,
    /// How the contender's threads waited.
    #[serde(default)]
    pub waiting: Waiting,
    /// Half a round trip, in microseconds.
    pub latency_us: Option<Summary>,
    /// Payload in 10^6 bytes per second, both directions together.
    pub megabytes_per_second: Summary,
    /// Payload in percent of the capacity of all links in the directions used.
    pub share_percent: Summary,
    /// Time to post an operation, in nanoseconds.
    pub post_ns: Option<f64>,
    /// Time inside the engine while the engine had work, system calls included, in percent of one
    /// processor. The value is the sum of both hosts, so its maximum is 200.
    pub protocol_cpu_percent: Option<f64>,
    /// Processor time of both processes, polling included, in percent of one processor; 200 at
    /// most.
    pub cpu_percent: f64,
    /// Processor time of the kernel's softirq threads, in percent of one processor. This is an
    /// upper bound, because these threads serve the whole host.
    #[serde(default)]
    pub softirq_cpu_percent: f64,
    /// Sum of `cpu_percent` and `softirq_cpu_percent`.
    #[serde(default)]
    pub ends_cpu_percent: f64,
    /// Number of times that a thread of either host slept and was woken, divided by the number of
    /// full frames that the payload fills.
    #[serde(default)]
    pub wakeups_per_frame: f64,
    /// Frames out of order per 100 data frames received.
    pub out_of_order_percent: Option<f64>,
    /// Explicit acknowledgements and retransmissions per 100 data frames.
    pub extra_frame_percent: Option<f64>,
    /// Wake-ups per 100 frames received. The paper counts interrupts here.
    pub wakeup_percent: Option<f64>,
    /// Data frames that were retransmitted, per 100 data frames.
    pub retransmission_percent: Option<f64>,
}

/// Measures all set-ups. Reports each set-up to `observer`.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, RunError> {
    let unix_seconds = clock::unix_seconds();
    let mut setups = Vec::new();
    for setup in &wishes.setups {
        observer.on_note(&format!("{}: {}", setup.name, setup.description));
        let mtu = wishes.mtu.unwrap_or(setup.mtu);
        let options = options_for(setup, wishes, mtu);
        let results = run::run(&options, observer)?;
        let rows = rows(setup, mtu, &results.results);
        let setup = SetUp { mtu, ..setup.clone() };
        let cannot_run = cannot_run(&setup, wishes);
        setups.push(SetUpResults { setup, results, rows, cannot_run });
    }
    let version = env!("CARGO_PKG_VERSION").to_string();
    Ok(Report { format: FORMAT.to_string(), version, unix_seconds, kind: wishes.kind, setups })
}

fn options_for(setup: &SetUp, wishes: &Wishes, mtu: u32) -> Options {
    let mut options = wishes.options.clone();
    options.path = PathChoice::Switched(setup.links.clone());
    options.links = setup.links.len() as u32;
    options.link_names = wishes.kind.links(setup.links.len());
    options.server_link_names.clone_from(&options.link_names);
    options.mtu = mtu;
    options.in_order = setup.in_order;
    options.delays_us = setup.links.iter().map(|link| link.delay_us).collect();
    let is_delayed = setup.links.iter().any(|link| link.delay_us > 0);
    let contenders = [
        (wishes.with_own, EDGE),
        (wishes.with_multiedge, MULTIEDGE),
        (setup.with_tcp || wishes.with_tcp, BASELINE),
        (wants_mptcp(setup, wishes) && mptcp::why_not().is_none(), MPTCP),
        (wishes.with_bare && wishes.kind == LinkKind::Packet && !is_delayed, bare_stream::NAME),
    ];
    let chosen = contenders.into_iter().filter(|(wanted, _)| *wanted);
    options.transports = chosen.map(|(_, name)| name.to_string()).collect();
    options
}

/// Returns whether the user wants to measure MPTCP in this set-up.
fn wants_mptcp(setup: &SetUp, wishes: &Wishes) -> bool {
    wishes.with_tcp && setup.links.len() > 1
}

fn cannot_run(setup: &SetUp, wishes: &Wishes) -> BTreeMap<String, String> {
    let reason = mptcp::why_not().filter(|_| wants_mptcp(setup, wishes));
    reason.map(|reason| (MPTCP.to_string(), reason)).into_iter().collect()
}

fn rows(setup: &SetUp, mtu: u32, measurements: &[Measurement]) -> Vec<Row> {
    let links_bits: u64 = setup.links.iter().map(|link: &LinkShape| link.rate).sum();
    measurements.iter().map(|measured| row(links_bits as f64 / 8.0, mtu, measured)).collect()
}

/// Returns the number of TCP segments that the messages of `sample` need at this MTU. Each message
/// starts a new segment, so the number is rounded up for each message.
fn frames(measured: &Measurement, sample: &Sample, mtu: u32) -> u64 {
    let messages = sample.operations * messages_per_operation(measured.test);
    messages * measured.message_bytes.div_ceil(u64::from(mtu) - TCP_HEADER_BYTES)
}

fn row(links_bytes_per_second: f64, mtu: u32, measured: &Measurement) -> Row {
    let directions = if measured.test == Test::TwoWay { 2.0 } else { 1.0 };
    let sum = |name: &str| -> Option<f64> {
        let values = measured.samples.iter().map(|sample| sample.counters.get(name));
        values.sum::<Option<f64>>()
    };
    let of = |part: Option<f64>, whole: Option<f64>| match (part, whole) {
        (Some(part), Some(whole)) if whole > 0.0 => Some(part / whole),
        _ => None,
    };
    let percent =
        |part: Option<f64>, whole: Option<f64>| of(part, whole).map(|share| share * 100.0);
    let seconds: f64 = measured.samples.iter().map(|sample| sample.seconds).sum();
    let cpu = |sample: &Sample| sample.cpu_seconds_client + sample.cpu_seconds_server;
    let cpu_seconds: f64 = measured.samples.iter().map(cpu).sum();
    let softirq_seconds: f64 = measured.samples.iter().map(|s| s.cpu_seconds_softirq).sum();
    let [cpu_percent, softirq_cpu_percent] =
        [cpu_seconds, softirq_seconds].map(|spent| spent / seconds.max(1e-9) * 100.0);
    let switches: u64 = measured.samples.iter().map(|sample| sample.voluntary_switches).sum();
    let frames: u64 = measured.samples.iter().map(|sample| frames(measured, sample, mtu)).sum();
    Row {
        test: measured.test,
        message_bytes: measured.message_bytes,
        contender: measured.transport.clone(),
        waiting: measured.waiting,
        latency_us: measured.latency_ns.map(|latency| latency.scaled(1e-3)),
        megabytes_per_second: measured.bytes_per_second.scaled(1e-6),
        share_percent: measured
            .bytes_per_second
            .scaled(100.0 / (links_bytes_per_second * directions)),
        post_ns: of(sum(counter::POST_NS), sum(counter::POSTS_TIMED)),
        protocol_cpu_percent: percent(sum(counter::PROTOCOL_NS).map(|ns| ns / 1e9), Some(seconds)),
        cpu_percent,
        softirq_cpu_percent,
        ends_cpu_percent: cpu_percent + softirq_cpu_percent,
        wakeups_per_frame: switches as f64 / frames.max(1) as f64,
        out_of_order_percent: measured.out_of_order_percent,
        extra_frame_percent: measured.extra_frame_percent,
        wakeup_percent: percent(sum(counter::WAKEUPS), sum(counter::RECEIVED_FRAMES)),
        retransmission_percent: percent(sum(counter::RETRANSMISSIONS), sum(counter::DATA_FRAMES)),
    }
}

/// Bytes of the headers of IPv4 and of TCP with time stamps.
const TCP_HEADER_BYTES: u64 = 52;

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-multiedge/1";

/// Message sizes from the paper's figure 2, a selection of those from 4 bytes to 1 MiB. The
/// protocol's ping-pong polls a word of 8 bytes, so its smallest message has 8 bytes.
pub const SIZES: [u64; 8] = [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 128 << 10, 1 << 20];

/// Message sizes of a quick run.
pub const SIZES_QUICK: [u64; 3] = [8, 4 << 10, 1 << 20];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_the_names_of_the_command_line() {
        assert_eq!(LinkKind::Packet.links(2), ["packet:link1", "packet:link2"]);
        assert_eq!(LinkKind::Xdp.links(1), ["xdp:link1:0/mode=native"]);
    }
}
