//! Measures how long a wrong rate estimate lasts. One of two equal links is slower for some time,
//! and then has its full rate again.

use core::fmt;

use super::super::machine::Machine;
use super::super::{Exercise, Length, Pauses, Trial};
use super::{GIGABIT, LinkSet, Setting, Shaper, scaled};
use crate::scenario::TransferError;
use crate::stream::Policies;

/// A wrong estimate that the hosts must correct.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Belief {
    /// The factor by which the estimated rate of one of two equal links is too low.
    pub slower: u64,
    /// Speed of both hosts, in quarters of the speed of a calibrated host.
    pub quarters: u32,
}

/// The estimates to test. If hosts are fast, the links are the bottleneck. If hosts are slow, the
/// processors are the bottleneck.
pub const BELIEFS: [Belief; 6] = [
    Belief { slower: 2, quarters: 2 },
    Belief { slower: 2, quarters: 4 },
    Belief { slower: 2, quarters: 8 },
    Belief { slower: 4, quarters: 2 },
    Belief { slower: 4, quarters: 4 },
    Belief { slower: 4, quarters: 8 },
];

/// The division of the load between the links after both have the same rate again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recovery {
    /// The wrong estimate.
    pub belief: Belief,
    /// Time until both links carry the same load, in nanoseconds; `None` if this takes more than
    /// 200 ms.
    pub even_after_ns: Option<u64>,
    /// Smoothed round-trip time at the end of the observation, of the link with the longer round
    /// trip; in nanoseconds.
    pub srtt_ns: u64,
    /// Bytes that the formerly slower link carried in the second half of the observed time, in
    /// percent of the bytes of both links.
    pub share_percent: f64,
}

impl Recovery {
    /// Returns the time until both links carry the same load, in round trips.
    pub fn round_trips(&self) -> Option<f64> {
        self.even_after_ns.map(|ns| ns as f64 / self.srtt_ns.max(1) as f64)
    }
}

impl fmt::Display for Belief {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = f64::from(self.quarters) / 4.0;
        write!(
            formatter,
            "one of two equal links believed {} times slower, host x{speed}",
            self.slower
        )
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { belief, even_after_ns, share_percent, .. } = self;
        write!(formatter, "{belief}: ")?;
        match (even_after_ns, self.round_trips()) {
            (Some(ns), Some(trips)) => {
                let ms = *ns as f64 * 1e-6;
                write!(formatter, "even after {ms:.1} ms, {trips:.0} round trips")?;
            }
            _ => write!(formatter, "not even within {} ms", WATCHED_NS / 1_000_000)?,
        }
        write!(formatter, " ({share_percent:.0} % in the end)")
    }
}

/// Makes the hosts estimate that a link is slower, restores the link's rate, and observes the load
/// of each link.
///
/// # Errors
/// Returns [`TransferError`] if the connection cannot be established or ends.
pub fn recover(belief: Belief, setting: &Setting) -> Result<Recovery, TransferError> {
    let links = LinkSet { name: "2x1G", links: &[(GIGABIT, 0); 2] };
    let links = links.models(Shaper::Timers, setting.offloads);
    let trial = Trial {
        links: &links,
        exercise: Exercise::OneWay,
        message_bytes: 1 << 20,
        in_flight: 16,
        in_order: false,
        costs: scaled(&setting.costs, belief.quarters),
        pauses: Pauses::default(),
        length: Length::Operations { warm_up: 0, measured: 0 },
        seed: 0,
    };
    let mut machine = Machine::new(&trial, &Policies::Default.config())?;
    machine.connect()?;
    machine.set_rate(1, GIGABIT / belief.slower.max(1));
    machine.start(u64::MAX);
    machine.run_for(BELIEVED_NS)?;
    machine.set_rate(1, GIGABIT);
    let mut sent = vec![sent_by(&machine)];
    for _ in 0..WATCHED_NS / STEP_NS {
        machine.run_for(STEP_NS)?;
        sent.push(sent_by(&machine));
    }
    let mut windows = sent.iter().zip(sent.iter().skip(WINDOW_STEPS));
    let even =
        windows.position(|(from, to)| (share_percent(from, to) - 50.0).abs() <= EVEN_PERCENT);
    let paths = machine.paths(0);
    Ok(Recovery {
        belief,
        even_after_ns: even.map(|step| step as u64 * STEP_NS),
        srtt_ns: paths.iter().map(|path| path.srtt_ns).max().unwrap_or(0),
        share_percent: share_percent(&sent[sent.len() / 2], &sent[sent.len() - 1]),
    })
}

/// Returns the bytes that the second link carried between two observations, in percent of the bytes
/// of both links.
fn share_percent(from: &[u64; 2], to: &[u64; 2]) -> f64 {
    let [first, second] = [to[0] - from[0], to[1] - from[1]].map(|bytes| bytes as f64);
    100.0 * second / (first + second).max(1.0)
}

/// Returns the payload that the first host has sent over each of two links so far, in bytes.
fn sent_by(machine: &Machine) -> [u64; 2] {
    let mut sent = [0; 2];
    for path in machine.paths(0) {
        if let Some(sent) = sent.get_mut(usize::from(path.link.0)) {
            *sent = path.counters.payload_bytes_sent;
        }
    }
    sent
}

/// Time for which the link is slower, in nanoseconds: several times the averaging time of rates.
const BELIEVED_NS: u64 = 100_000_000;

/// Time for which the links are observed after both have the same rate again, in nanoseconds.
const WATCHED_NS: u64 = 200_000_000;

/// Interval between two observations, in nanoseconds.
const STEP_NS: u64 = 250_000;

/// Number of steps after which the load of each link is computed. In this time, each link sends 80
/// full frames at 1 Gb/s.
const WINDOW_STEPS: usize = 4;

/// The load counts as equal if each link carries 50 % of the bytes, plus or minus this number of
/// percentage points.
const EVEN_PERCENT: f64 = 5.0;
