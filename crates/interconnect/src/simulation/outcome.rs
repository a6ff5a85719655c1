//! Results of a run, or the reason why it stopped early.

use std::ops::ControlFlow;

use super::super::edge::Counts;
use super::super::ethernet::{PortCounters, TransportCounts};
use super::super::records::{Backlog, Records};
use super::super::statistics::{Histogram, Summary};
use super::super::workload::Workload;
use super::{Limits, Message};

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time when the last rank got its last notification, in picoseconds.
    pub completed_ps: u64,
    /// For each rank, the time in picoseconds at which it finished: it had got its last
    /// notification, and its processor was free. 0 for a rank that only posted messages.
    pub finished_ps: Vec<u64>,
    /// Latencies of messages, from the post to the last byte at the destination host.
    pub latency: Summary,
    /// Number of messages in each class of latencies.
    pub histogram: Histogram,
    /// Number of messages delivered.
    pub delivered: u64,
    /// Payload delivered, in bytes.
    pub delivered_bytes: u64,
    /// Payload that arrived between the end of the warm-up and the end of posting, if the workload
    /// is an open load (messages posted at random times).
    pub accepted: Accepted,
    /// Number of messages in flight when the run was stopped ([`Limits::stop_ps`](super::Limits)).
    pub left: usize,
    /// Number of packets lost because a buffer was full or a link was down.
    pub dropped: u64,
    /// Number of events handled.
    pub events: u64,
    /// Number of link crossings, summed over all packets. A flit fabric sums over all flits.
    pub hops: u64,
    /// Hash of the time, source, destination and content of all deliveries. The hash does not
    /// depend on the order in which deliveries were recorded.
    pub hash: u64,
    /// Maximum number of messages in flight at the same time. For a divided run, the sum of the
    /// maxima of its parts.
    pub messages_max: usize,
    /// Ports at which frames were lost, marked or paused.
    pub ports: Vec<PortCounters>,
    /// Number of messages in flight over time.
    pub backlog: Backlog,
    /// Records; `None` if the run was not recorded.
    pub records: Option<Box<Records>>,
    /// Counters of engines; `None` if hosts have no engines.
    pub engines: Option<Box<Counts>>,
    /// Counters of the transport of model hosts; `None` without a transport.
    pub transport: Option<TransportCounts>,
    /// Results of each of several workloads; empty if there is only one.
    pub workloads: Vec<WorkloadOutcome>,
}

/// Results of one of several workloads.
#[derive(Clone, Debug, Default)]
pub struct WorkloadOutcome {
    /// Time when the last byte of the last message arrived, in picoseconds; 0 without messages.
    pub completed_ps: u64,
    /// Number of messages delivered.
    pub delivered: u64,
    /// Payload delivered, in bytes.
    pub delivered_bytes: u64,
    /// Latencies of messages, from the post to the last byte at the destination host.
    pub latency: Summary,
    /// Number of messages in each class of latencies.
    pub histogram: Histogram,
}

impl WorkloadOutcome {
    /// Counts a message whose last byte has arrived at `time_ps`.
    pub(super) fn on_delivered(&mut self, message: &Message, time_ps: u64, is_measured: bool) {
        self.completed_ps = self.completed_ps.max(time_ps);
        self.delivered += 1;
        self.delivered_bytes += u64::from(message.bytes);
        if is_measured {
            self.latency.add(time_ps - message.posted_ps);
            self.histogram.add(time_ps - message.posted_ps);
        }
    }

    /// Adds the results that another part of the run has for this workload.
    fn merge(&mut self, part: &Self) {
        self.completed_ps = self.completed_ps.max(part.completed_ps);
        self.delivered += part.delivered;
        self.delivered_bytes += part.delivered_bytes;
        self.latency.merge(&part.latency);
        self.histogram.merge(&part.histogram);
    }
}

/// Payload of an open load (messages posted at random times) that arrived between the end of the
/// warm-up and the end of posting.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Accepted {
    /// Payload of the messages whose last byte arrived between the end of the warm-up and the end
    /// of posting, in bytes.
    pub bytes: u64,
    /// Time from the end of the warm-up to the end of posting, in picoseconds; 0 if the workload is
    /// not an open load.
    pub window_ps: u64,
}

impl Accepted {
    /// Returns the payload that each of `hosts` hosts received on average, in bytes per second;
    /// `None` if the workload is not an open load.
    pub fn rate(&self, hosts: u32) -> Option<f64> {
        let host_seconds = self.window_ps as f64 * 1e-12 * f64::from(hosts);
        (self.window_ps > 0).then(|| self.bytes as f64 / host_seconds)
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Fraction of the work that is done, from 0 to 1; `None` if it is not known.
    pub share: Option<f64>,
    /// Virtual time, in picoseconds.
    pub now_ps: u64,
    /// Number of events handled.
    pub events: u64,
    /// Number of messages in flight.
    pub messages: usize,
}

impl Progress {
    /// Reports the progress to `watch`, which can stop the run.
    ///
    /// # Errors
    /// Returns [`Stuck`] if `watch` stops the run.
    pub fn report(self, watch: &mut Watcher<'_>) -> Result<(), Stuck> {
        match watch(self) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                Err(Stuck::Stopped { events: self.events, now_ps: self.now_ps })
            }
        }
    }
}

/// Callback that regularly gets the progress of a run. If the callback returns `Break`, the run
/// ends with [`Stuck::Stopped`].
pub type Watcher<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Why a run stopped before its end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Stuck {
    /// Deadlock: packets wait for each other in a circle.
    #[error("deadlock: {} packets wait for each other in a circle:\n{}", .circle.len(), .circle.join("\n"))]
    Deadlock {
        /// One line for each link of the circle: the packet that holds the link, and the link for
        /// which the packet waits.
        circle: Vec<String>,
    },
    /// The workload waits for messages whose packets were lost.
    #[error("{packets} packets were lost, and the workload waits for their messages")]
    Lost {
        /// Number of packets lost.
        packets: u64,
    },
    /// The run reached its limit of events.
    #[error(
        "not finished after {events} events, at {now_ps} ps with {messages} messages in flight: {verdict}"
    )]
    Endless {
        /// Number of events handled.
        events: u64,
        /// Virtual time, in picoseconds.
        now_ps: u64,
        /// Number of messages in flight.
        messages: usize,
        /// Text that says whether the number of messages in flight kept growing.
        verdict: &'static str,
    },
    /// The workload waits, although all messages have arrived.
    #[error("no event is left, but {what}")]
    Unfinished {
        /// Description of the unfinished work.
        what: String,
    },
    /// The progress callback stopped the run.
    #[error("stopped after {events} events, at {now_ps} ps")]
    Stopped {
        /// Number of events handled.
        events: u64,
        /// Virtual time, in picoseconds.
        now_ps: u64,
    },
    /// The warm-up lasted longer than the run, so nothing was measured.
    #[error(
        "nothing was measured: the run ended after {completed_ps} ps, and messages posted before \
         {warmup_ps} ps do not count; shorten warmup_ps, or run for longer"
    )]
    WarmUp {
        /// Length of the warm-up, in picoseconds.
        warmup_ps: u64,
        /// Time when the last rank got its last notification, in picoseconds.
        completed_ps: u64,
    },
    /// Messages are in flight, but no events remain.
    #[error("{messages} messages are in flight, and no event is left that could deliver them")]
    Silent {
        /// Number of messages in flight.
        messages: usize,
    },
}

impl Outcome {
    /// Returns the rate of delivered payload over the whole run, in bits per second.
    pub fn goodput_bps(&self) -> f64 {
        self.delivered_bytes as f64 * 8e12 / self.completed_ps.max(1) as f64
    }

    pub(super) fn new() -> Self {
        Self {
            completed_ps: 0,
            finished_ps: Vec::new(),
            latency: Summary::new(),
            histogram: Histogram::new(),
            delivered: 0,
            delivered_bytes: 0,
            accepted: Accepted::default(),
            left: 0,
            dropped: 0,
            events: 0,
            hops: 0,
            hash: 0,
            messages_max: 0,
            ports: Vec::new(),
            backlog: Backlog::default(),
            records: None,
            engines: None,
            transport: None,
            workloads: Vec::new(),
        }
    }

    /// Returns an error if messages were delivered but none of them was measured.
    pub(super) const fn check_measured(&self, limits: &Limits) -> Result<(), Stuck> {
        if self.delivered > 0 && self.latency.count() == 0 {
            let (warmup_ps, completed_ps) = (limits.warmup_ps, self.completed_ps);
            return Err(Stuck::WarmUp { warmup_ps, completed_ps });
        }
        Ok(())
    }

    /// Records that a rank has got a notification.
    #[inline]
    pub(super) fn on_reported(&mut self, rank: u32, now_ps: u64) {
        self.completed_ps = self.completed_ps.max(now_ps);
        self.finish_rank(rank as usize, now_ps);
    }

    /// Records that a rank is busy until `time_ps`. Does nothing if the rank is already known to be
    /// busy for longer.
    #[inline]
    pub(super) fn finish_rank(&mut self, rank: usize, time_ps: u64) {
        if let Some(finished_ps) = self.finished_ps.get_mut(rank) {
            *finished_ps = (*finished_ps).max(time_ps);
        }
    }

    /// Adds the results of another part of the run. Does not add the counters of its fabric.
    pub(super) fn merge(&mut self, part: &Self) {
        self.completed_ps = self.completed_ps.max(part.completed_ps);
        self.finished_ps.resize(part.finished_ps.len(), 0);
        for (rank, finished_ps) in part.finished_ps.iter().enumerate() {
            self.finish_rank(rank, *finished_ps);
        }
        self.workloads.resize_with(part.workloads.len(), WorkloadOutcome::default);
        for (own, part) in self.workloads.iter_mut().zip(&part.workloads) {
            own.merge(part);
        }
        self.latency.merge(&part.latency);
        self.histogram.merge(&part.histogram);
        self.delivered += part.delivered;
        self.delivered_bytes += part.delivered_bytes;
        self.accepted.bytes += part.accepted.bytes;
        self.dropped += part.dropped;
        self.events += part.events;
        self.hash = self.hash.wrapping_add(part.hash);
    }
}

/// Returns an error if a run has no further events but is not finished. Possible reasons are
/// losses, a deadlock and unfinished work.
pub(super) fn check_end(
    dropped: u64,
    stuck: Option<Stuck>,
    workload: &impl Workload,
) -> Result<(), Stuck> {
    match stuck {
        Some(stuck) if dropped == 0 || matches!(stuck, Stuck::Deadlock { .. }) => Err(stuck),
        _ if workload.is_finished() => Ok(()),
        _ if dropped > 0 => Err(Stuck::Lost { packets: dropped }),
        _ => Err(Stuck::Unfinished { what: workload.awaits() }),
    }
}
