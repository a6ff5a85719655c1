//! What a run over the set-ups yields; `docs/bench-json.md` explains every field.

use serde::{Deserialize, Serialize};

use super::setups::PaperFigures;
use crate::machine::Machine;
use crate::results::Sample;
use crate::statistics::Summary;
use crate::testbed::LinkShape;
use crate::transport::{Test, counter};

/// Everything measured by one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MultiedgeResults {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run was started.
    pub unix_seconds: u64,
    /// The host.
    pub machine: Machine,
    /// Kind of the links: `packet`, `udp` or `xdp`.
    pub link: String,
    /// Samples of each point.
    pub repetitions: u32,
    /// How long a sample was meant to take, without its warm-up.
    pub sample_seconds: f64,
    /// CPUs of client and server, if each was restricted to one.
    pub pinned_to: Option<[usize; 2]>,
    /// The set-ups that were measured.
    pub set_ups: Vec<SetUpFacts>,
    /// One entry per set-up, test, size and contender.
    pub points: Vec<Point>,
}

/// A set-up that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetUpFacts {
    /// Its name.
    pub name: String,
    /// Its links.
    pub links: Vec<LinkShape>,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Operations were delivered in order.
    pub is_strict: bool,
}

/// One test of one contender with one message size on one set-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the set-up.
    pub set_up: String,
    /// What was measured.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// `edge`: ours; `multiedge`: `MultiEdge`'s rules in our engine; otherwise a yardstick.
    pub contender: String,
    /// Why there are no figures, if so.
    pub failure: Option<String>,
    /// Median latency of an operation (half a round trip), in nanoseconds.
    pub latency_ns: Option<Summary>,
    /// Payload of both directions together.
    pub bytes_per_second: Option<Summary>,
    /// That, divided by the sum of the rates of the links (twice the sum in two-way).
    pub share_of_links: Option<Summary>,
    /// Time in the call that posts an operation, in nanoseconds.
    pub initiate_ns: Option<Summary>,
    /// CPU time of the protocol in per cent of one CPU, at the host that needs more. Time in turns
    /// that found work, system calls included; a host that polls has two threads, so 200 is the most.
    pub protocol_cpu_percent: Option<Summary>,
    /// Frames that arrived after later ones, per 100 data frames.
    pub out_of_order_percent: Option<f64>,
    /// Explicit acknowledgements and retransmissions per 100 data frames.
    pub extra_frame_percent: Option<f64>,
    /// Of these, the retransmissions.
    pub retransmission_percent: Option<f64>,
    /// Times a sleeping thread woke up, per frame received.
    pub wakeups_per_frame: Option<f64>,
    /// Frames that the queues of the switches dropped during all samples, warm-ups included.
    pub queue_drops: u64,
    /// Frames that arrived and were dropped by the protocol.
    pub dropped_frames: f64,
    /// Compared with other contenders at the same test and size, repetition by repetition.
    pub ratios: Vec<PointRatio>,
    /// What the paper says.
    pub paper: Option<PaperFigures>,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// A point divided by that of another contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointRatio {
    /// The other contender.
    pub to: String,
    /// Of what the test is about: latency in ping-pong, else throughput.
    pub ratio: Summary,
}

impl Point {
    /// Summarises `samples`; `bits_per_second`: sum of the rates of the links.
    pub fn of_samples(
        set_up: &str,
        test: Test,
        message_bytes: u64,
        contender: &str,
        samples: Vec<Sample>,
        bits_per_second: Option<u64>,
    ) -> Self {
        let over = |value: &dyn Fn(&Sample) -> Option<f64>| {
            Summary::trimmed(samples.iter().filter_map(value))
        };
        let count = |sample: &Sample, name: &str| sample.counters.get(name).copied();
        let sum = |name: &str| -> f64 { samples.iter().filter_map(|s| count(s, name)).sum() };
        let per = |parts: &[&str], whole: &str, factor: f64| {
            let whole = sum(whole);
            (whole > 0.0).then(|| factor * parts.iter().map(|part| sum(part)).sum::<f64>() / whole)
        };
        let directions = if test == Test::TwoWay { 2.0 } else { 1.0 };
        let link_bytes = bits_per_second.map(|bits| bits as f64 / 8.0 * directions);
        Self {
            set_up: set_up.to_string(),
            test,
            message_bytes,
            contender: contender.to_string(),
            failure: None,
            latency_ns: over(&Sample::latency_ns_p50),
            bytes_per_second: over(&|sample| Some(sample.bytes_per_second())),
            share_of_links: over(&|sample| Some(sample.bytes_per_second() / link_bytes?)),
            initiate_ns: over(&|sample| {
                let posts = count(sample, counter::POSTS).filter(|posts| *posts > 0.0)?;
                Some(count(sample, counter::POST_NS)? / posts)
            }),
            protocol_cpu_percent: over(&|sample| {
                let client = count(sample, counter::PROTOCOL_NS_CLIENT)?;
                let server = count(sample, counter::PROTOCOL_NS_SERVER)?;
                Some(client.max(server) / (sample.seconds * 1e9) * 100.0)
            }),
            out_of_order_percent: per(
                &[counter::OUT_OF_ORDER_FRAMES],
                counter::RECEIVED_DATA_FRAMES,
                100.0,
            ),
            extra_frame_percent: per(
                &[counter::EXPLICIT_ACKS, counter::RETRANSMISSIONS],
                counter::DATA_FRAMES,
                100.0,
            ),
            retransmission_percent: per(&[counter::RETRANSMISSIONS], counter::DATA_FRAMES, 100.0),
            wakeups_per_frame: per(&[counter::WAKEUPS], counter::RECEIVED_FRAMES, 1.0),
            queue_drops: 0,
            dropped_frames: sum(counter::DROPPED_FRAMES),
            ratios: Vec::new(),
            paper: super::setups::paper(set_up, test),
            samples,
        }
    }

    /// A point without figures.
    pub fn failed(
        set_up: &str,
        test: Test,
        message_bytes: u64,
        contender: &str,
        failure: String,
    ) -> Self {
        let mut point = Self::of_samples(set_up, test, message_bytes, contender, Vec::new(), None);
        point.failure = Some(failure);
        point
    }

    /// Adds the ratio to `other`, of the same test and size.
    pub fn compare(&mut self, other: &str, samples: &[Sample]) {
        let is_latency = self.test.is_about_latency();
        let value = |sample: &Sample| {
            if is_latency { sample.latency_ns_p50() } else { Some(sample.bytes_per_second()) }
        };
        let ratios = self.samples.iter().zip(samples);
        let ratios = ratios.filter_map(|(own, other)| Some(value(own)? / value(other)?));
        if let Some(ratio) = Summary::trimmed(ratios) {
            self.ratios.push(PointRatio { to: other.to_string(), ratio });
        }
    }
}

/// Name and version of the document's shape.
pub const FORMAT: &str = "ethernot-multiedge/1";
