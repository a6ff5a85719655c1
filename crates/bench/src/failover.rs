//! Measures a stream of checked writes over two links while one link is cut and restored.

use serde::{Deserialize, Serialize};

use crate::client::SampleRequest;
use crate::multiedge::LinkKind;
use crate::plan::{Options, PathChoice};
use crate::process::Line;
use crate::results::Sample;
use crate::run::{Bench, Observer, RunError};
use crate::transport::{Setup, Test, Waiting, counter};
use crate::transports::EDGE;
use testbed::clock;
use testbed::lever::Lever;
use testbed::namespace::NamespaceError;
use testbed::pair::{Direction, NamespacePair};
use testbed::switched::LinkShape;

/// A way to cut the second link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cut {
    /// The switch silently drops all frames, in both directions.
    BothWays,
    /// The switch silently drops frames in one direction: from the sender of the data to its
    /// receiver.
    OneWay,
    /// The sender's cable is pulled, so its interface loses the carrier.
    Carrier,
}

impl Cut {
    /// All ways, in the order of their measurement.
    pub const ALL: [Self; 3] = [Self::BothWays, Self::OneWay, Self::Carrier];

    /// Returns the name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BothWays => "both-ways",
            Self::OneWay => "one-way",
            Self::Carrier => "carrier",
        }
    }

    /// Prepares the command that cuts or restores the link.
    fn lever(self, pair: &NamespacePair, is_cut: bool) -> Result<Lever, NamespaceError> {
        const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];
        match self {
            Self::BothWays => pair.prepare_cut(CUT_LINK, &BOTH, is_cut),
            Self::OneWay => pair.prepare_cut(CUT_LINK, &[Direction::ToServer], is_cut),
            Self::Carrier => pair.prepare_plug(CUT_LINK, is_cut),
        }
    }
}

/// The user's choices for this benchmark.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The kind of links: UDP sockets, packet sockets or `AF_XDP`.
    pub kind: LinkKind,
    /// The two links. The second is cut.
    pub links: [LinkShape; 2],
    /// The kinds of cuts to measure.
    pub cuts: Vec<Cut>,
    /// Length of each of the three phases, in seconds: before the cut, during the cut, and after
    /// the restoration.
    pub phase_seconds: f64,
    /// Bytes of a message, a multiple of 8.
    pub message_bytes: u64,
    /// All other choices.
    pub options: Options,
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// The kind of links: UDP sockets, packet sockets or `AF_XDP`.
    pub kind: LinkKind,
    /// The two links. The second was cut.
    pub links: [LinkShape; 2],
    /// One entry for each way to cut.
    pub cuts: Vec<Outcome>,
}

/// The results of one cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How the link was cut.
    pub cut: Cut,
    /// Number of messages that were sent and had to be checked.
    pub messages: u64,
    /// Number of the sent messages that arrived with wrong bytes or out of order.
    pub corrupted: u64,
    /// Number of the sent messages that never arrived.
    pub lost: u64,
    /// Payload rate before the cut, in bits per second.
    pub before_bits_per_second: f64,
    /// Steady payload rate after the cut, over the link that was not cut, in bits per second.
    pub remaining_bits_per_second: f64,
    /// Longest time after the cut in which the rate stayed below 80 % of
    /// `remaining_bits_per_second`, in milliseconds.
    pub gap_ms: f64,
    /// Time from the restoration until the rate is again 80 % of `before_bits_per_second`, in
    /// milliseconds; `None` if the rate did not reach this value.
    pub back_ms: Option<f64>,
    /// Time of the cut, in milliseconds from the start of the timeline.
    pub cut_at_ms: u64,
    /// Time of the restoration, in milliseconds from the start of the timeline.
    pub restored_at_ms: u64,
    /// Upper bound, in milliseconds, of the longer of two times: the time that this host's kernel
    /// took to cut the link, and the time that the kernel took to restore the link.
    #[serde(default)]
    pub late_ms: f64,
    /// Payload bytes that arrived in each millisecond.
    pub timeline: Vec<u32>,
}

/// Measures all cuts, each with its own processes and namespaces.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn run(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Report, RunError> {
    let unix_seconds = clock::unix_seconds();
    let mut cuts = Vec::new();
    for &cut in &wishes.cuts {
        observer.on_note(&format!("cutting link {CUT_LINK}: {}", cut.name()));
        let mut outcome = one(wishes, cut, observer)?;
        for _ in 1..ATTEMPTS {
            if outcome.late_ms <= LATE_MS {
                break;
            }
            observer.on_note(&format!(
                "this host cut or restored the link {:.0} ms late; repeating the measurement",
                outcome.late_ms
            ));
            outcome = one(wishes, cut, observer)?;
        }
        cuts.push(outcome);
    }
    Ok(Report {
        format: FORMAT.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        unix_seconds,
        kind: wishes.kind,
        links: wishes.links,
        cuts,
    })
}

fn one(wishes: &Wishes, cut: Cut, observer: &mut dyn Observer) -> Result<Outcome, RunError> {
    let mut options = wishes.options.clone();
    options.path = PathChoice::Switched(wishes.links.to_vec());
    options.links = 2;
    options.link_names = wishes.kind.links(2);
    options.server_link_names.clone_from(&options.link_names);
    let mut bench = Bench::open(&options, observer)?;
    let pair = bench.namespaces().ok_or(NamespaceError::NoSwitch { link: CUT_LINK })?;
    let (mut cutting, mut restoring) = (cut.lever(pair, true)?, cut.lever(pair, false)?);
    let request = SampleRequest {
        transport: EDGE.to_string(),
        setup: Setup {
            test: Test::VerifiedStream,
            message_bytes: wishes.message_bytes,
            links: bench.links().to_vec(),
            client_links: options.link_names.clone(),
            server_links: Vec::new(),
            mtu: Some(options.mtu),
            in_flight: options.in_flight,
            connections: 1,
            in_order: false,
            waiting: Waiting::Poll,
            delays_us: Vec::new(),
            rates: Vec::new(),
        },
        // Request enough operations for two and a half phases over both links, and for one more
        // phase in reserve. The reserve is needed if the rate is lower in the warm-up than in the
        // recorded phase.
        seconds: wishes.phase_seconds * 3.5,
        announced: true,
    };
    let failed = |source| RunError::Sample { what: format!("failover, {}", cut.name()), source };
    bench.client().send(&request).map_err(failed)?;
    match bench.client().receive().map_err(failed)? {
        Line::Counting => {}
        line => return Err(failed(bench.client().unexpected(&line))),
    }
    let start_ns = clock::monotonic_ns();
    let phase_ns = (wishes.phase_seconds * 1e9) as u64;
    let pull = |lever: &mut Lever, at_ns| -> Result<u64, RunError> {
        clock::sleep_until(at_ns);
        Ok(lever.pull()? / 1_000_000)
    };
    let cut_at_ms = pull(&mut cutting, start_ns + phase_ns)?;
    let restored_at_ms = pull(&mut restoring, start_ns + 2 * phase_ns)?;
    let sample = match bench.client().receive().map_err(failed)? {
        Line::Sample(sample) => sample,
        line => return Err(failed(bench.client().unexpected(&line))),
    };
    let late_ns = cutting.finish()?.max(restoring.finish()?);
    let found = outcome(cut, wishes.message_bytes, &sample, cut_at_ms, restored_at_ms);
    Ok(Outcome { late_ms: late_ns as f64 / 1e6, ..found })
}

fn outcome(
    cut: Cut,
    message_bytes: u64,
    sample: &Sample,
    cut_at_ms: u64,
    restored_at_ms: u64,
) -> Outcome {
    let timeline = &sample.timeline;
    let index =
        |at_ms: u64| (at_ms.saturating_sub(sample.timeline_start_ms) as usize).min(timeline.len());
    let (cut_at, restored_at) = (index(cut_at_ms), index(restored_at_ms));
    let steady_at = usize::midpoint(cut_at, restored_at);
    let before = mean(timeline.get(cut_at / 2..cut_at));
    let remaining = mean(timeline.get(steady_at..restored_at));
    let arrived: u64 = timeline.iter().map(|&bytes| u64::from(bytes)).sum();
    let messages = sample.operations;
    let bits = |bytes_per_ms: f64| bytes_per_ms * 8e3;
    Outcome {
        cut,
        messages,
        corrupted: sample.counters.get(counter::CORRUPTED).map_or(messages, |&count| count as u64),
        lost: messages.saturating_sub(arrived / message_bytes.max(1)),
        before_bits_per_second: bits(before),
        remaining_bits_per_second: bits(remaining),
        gap_ms: longest_below(timeline.get(cut_at..restored_at), remaining * ENOUGH) as f64,
        back_ms: first_reached(timeline.get(restored_at..), before * ENOUGH)
            .map(|after_ms| after_ms as f64),
        cut_at_ms: cut_at as u64,
        restored_at_ms: restored_at as u64,
        late_ms: 0.0,
        timeline: timeline.clone(),
    }
}

fn mean(bytes: Option<&[u32]>) -> f64 {
    let bytes = bytes.unwrap_or_default();
    bytes.iter().map(|&bytes| f64::from(bytes)).sum::<f64>() / bytes.len().max(1) as f64
}

/// Returns the length of the longest interval, in milliseconds, in which every window of
/// [`WINDOW_MS`] has less than `enough` bytes per millisecond. If the interval is shorter than a
/// window, returns 0.
fn longest_below(timeline: Option<&[u32]>, enough: f64) -> usize {
    let mut longest = 0;
    let mut since = None;
    for (at, window) in timeline.unwrap_or_default().windows(WINDOW_MS).enumerate() {
        if mean(Some(window)) >= enough {
            since = None;
        } else {
            let start: usize = *since.get_or_insert(at);
            longest = longest.max(at - start + WINDOW_MS);
        }
    }
    longest
}

/// Finds the first window of [`BACK_WINDOW_MS`] that has at least `enough` bytes per millisecond.
/// Returns the time from the start of `timeline` to the end of this window, in milliseconds.
fn first_reached(timeline: Option<&[u32]>, enough: f64) -> Option<usize> {
    let mut windows = timeline.unwrap_or_default().windows(BACK_WINDOW_MS);
    windows.position(|window| mean(Some(window)) >= enough).map(|at| at + BACK_WINDOW_MS)
}

/// Number of the link that is cut, from 1. The control connection between the processes uses the
/// other link.
const CUT_LINK: u32 = 2;

/// Longest time that the kernel may take to cut or to restore the link, in milliseconds. If the
/// kernel takes longer, the measured times are useless. The cut is then repeated, up to `ATTEMPTS`
/// times.
const LATE_MS: f64 = 100.0;
const ATTEMPTS: u32 = 4;

/// A stream counts as interrupted while its rate is below this fraction of the steady rate.
const ENOUGH: f64 = 0.8;

/// Length of the windows over which throughput is averaged, in milliseconds. A window contains
/// several messages, because a message of 64 KiB takes half a millisecond at 1 Gb/s.
const WINDOW_MS: usize = 5;

/// Length of the windows after a restoration, in milliseconds. On some hosts two links are hardly
/// faster than one. In a shorter window, a burst of messages could then look like the throughput of
/// both links.
const BACK_WINDOW_MS: usize = 20;

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-failover/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_lasts_while_no_messages_arrive() {
        let mut timeline = vec![100; 50];
        timeline[10..30].fill(0);
        assert_eq!(longest_below(Some(&timeline), 80.0), 20 + 2 * (WINDOW_MS - 2));
        assert_eq!(longest_below(Some(&[100; 50]), 80.0), 0);
        assert_eq!(first_reached(Some(&timeline[10..]), 80.0), Some(20 + BACK_WINDOW_MS * 4 / 5));
        assert_eq!(first_reached(Some(&[0; 50]), 80.0), None);
    }

    #[test]
    fn a_short_burst_does_not_count_as_the_second_link() {
        let mut timeline = vec![50; 100];
        timeline[30..34].fill(100);
        timeline[60..].fill(100);
        assert_eq!(first_reached(Some(&timeline), 80.0), Some(60 + BACK_WINDOW_MS * 3 / 5));
    }

    #[test]
    fn messages_that_never_arrived_count_as_lost() {
        let sample = Sample {
            operations: 10,
            bytes: 0,
            seconds: 1.0,
            latency_ns: None,
            cpu_seconds_client: 0.0,
            cpu_seconds_server: 0.0,
            cpu_seconds_softirq: 0.0,
            voluntary_switches: 0,
            counters: [(counter::CORRUPTED.to_string(), 1.0)].into(),
            timeline: vec![64; 9],
            timeline_start_ms: 1000,
        };
        let outcome = outcome(Cut::OneWay, 64, &sample, 1003, 1006);
        assert_eq!((outcome.lost, outcome.corrupted), (1, 1));
        assert_eq!((outcome.cut_at_ms, outcome.restored_at_ms), (3, 6));
    }
}
