//! The sending policy against others, on hosts and links of many kinds: own rules against those of
//! `MultiEdge` and against plain turns.
//!
//! Hosts are a quarter to four times as fast as a calibrated one and may be absent for a while; links are
//! equal and unlike, behind shapers whose timers interrupt the host, or limited by nothing at all. What own
//! rules reach is compared with the better of the others in the same virtual time, with the same absences.

mod grid;
mod measure;
mod recovery;

use core::fmt;

use crate::EdgeCosts;
use crate::stream::{raw_link, shaped};
use crate::{Jitter, LinkModel, TokenBucket};

use super::{Costs, Exercise};

pub use grid::{full, pairs, quick};
pub use measure::{Comparison, Figures, Setting, compare};
pub use recovery::{BELIEFS, Belief, Recovery, recover};

/// What a calibrated host costs: virtual Ethernet on a small virtual machine
/// (docs/performance-notes.md, notes 35 to 41).
pub const CALIBRATED: Costs = Costs {
    host: EdgeCosts {
        frame_send_ps: 2_800_000,
        frame_send_ps_per_byte: 100,
        frame_receive_ps: 500_000,
        frame_receive_ps_per_byte: 50,
        post_ps: 100_000,
        completion_ps: 0,
    },
    call_ps: 300_000,
    gather_ps: 800_000,
    poll_ps: 600_000,
    return_ps: 1_300_000,
    spread_ps: 150_000,
    timer_ps: 5_000_000,
};

/// Links that are compared together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSet {
    /// Name in reports.
    pub name: &'static str,
    /// Rate in bits per second and one-way delay in nanoseconds of each.
    pub links: &'static [(u64, u64)],
}

impl LinkSet {
    /// Whether the links limit nothing, as virtual Ethernet without a shaper: processors do.
    pub const fn is_free(&self) -> bool {
        matches!(self.links.first(), Some(&(FREE, _)))
    }

    /// Whether all links are alike.
    pub fn is_equal(&self) -> bool {
        self.links.iter().all(|link| Some(link) == self.links.first())
    }

    /// Returns the links in both directions, with drivers that offload or do not ([`LinkModel::offloads`]).
    pub fn models(&self, shaper: Shaper, offloads: bool) -> Vec<LinkModel> {
        let models =
            self.links.iter().map(|&(rate, propagation_ns)| model(rate, propagation_ns, shaper));
        models.map(|link| LinkModel { offloads, ..link }).collect()
    }
}

/// What keeps links to their rate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shaper {
    /// A transmitter, bit by bit, at no cost for the host.
    Exact,
    /// A token bucket, whose timers are late and interrupt the host.
    Timers,
    /// The same, where a timer takes eight times as long, as it leaves a virtual machine.
    SlowTimers,
}

impl Shaper {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Timers => "timers",
            Self::SlowTimers => "slow-timers",
        }
    }
}

/// All of them.
pub const SHAPERS: [Shaper; 3] = [Shaper::Timers, Shaper::SlowTimers, Shaper::Exact];

/// All sets of links.
pub const LINK_SETS: [LinkSet; 12] = [
    LinkSet { name: "1x100M", links: &[(GIGABIT / 10, 0)] },
    LinkSet { name: "1x1G", links: &[(GIGABIT, 0)] },
    LinkSet { name: "1x10G", links: &[(10 * GIGABIT, 0)] },
    LinkSet { name: "2x100M", links: &[(GIGABIT / 10, 0); 2] },
    LinkSet { name: "2x1G", links: &[(GIGABIT, 0); 2] },
    LinkSet { name: "3x1G", links: &[(GIGABIT, 0); 3] },
    LinkSet { name: "4x1G", links: &[(GIGABIT, 0); 4] },
    LinkSet { name: "2x10G", links: &[(10 * GIGABIT, 0); 2] },
    LinkSet { name: "1G+100M", links: &[(GIGABIT, 0), (GIGABIT / 10, 0)] },
    LinkSet { name: "10G+1G", links: &[(10 * GIGABIT, 0), (GIGABIT, 0)] },
    LinkSet { name: "1G/20us+1G/2ms", links: &[(GIGABIT, 20_000), (GIGABIT, 2_000_000)] },
    LinkSet { name: "2xfree", links: &[(FREE, 0); 2] },
];

/// Bytes of a message.
pub const SIZES: [u32; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 4 << 20];

/// How fast hosts are, in quarters of a calibrated one.
pub const SPEEDS: [u32; 5] = [1, 2, 4, 8, 16];

/// What is done.
pub const EXERCISES: [Exercise; 3] = [Exercise::OneWay, Exercise::TwoWay, Exercise::PingPong];

/// Something to compare policies at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Links between the hosts.
    pub links: LinkSet,
    /// What keeps them to their rate.
    pub shaper: Shaper,
    /// How fast both hosts are, in quarters of a calibrated one.
    pub quarters: u32,
    /// Whether processors are away at times.
    pub has_absences: bool,
    /// What is done.
    pub exercise: Exercise,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Whether writes are delivered in order.
    pub in_order: bool,
}

impl Point {
    /// What its hosts cost, if a calibrated one costs `calibrated`.
    fn costs(&self, calibrated: &Costs) -> Costs {
        let factor = if self.shaper == Shaper::SlowTimers { SLOW_TIMERS } else { 1 };
        let costs = Costs { timer_ps: calibrated.timer_ps * factor, ..*calibrated };
        scaled(&costs, self.quarters)
    }
}

/// What hosts cost that are so many quarters as fast as those that cost `costs`.
pub(super) fn scaled(costs: &Costs, quarters: u32) -> Costs {
    let Costs { host, call_ps, gather_ps, poll_ps, return_ps, spread_ps, timer_ps } = *costs;
    let scaled = |ps: u64| ps * 4 / u64::from(quarters.max(1));
    Costs {
        host: EdgeCosts {
            frame_send_ps: scaled(host.frame_send_ps),
            frame_send_ps_per_byte: scaled(host.frame_send_ps_per_byte),
            frame_receive_ps: scaled(host.frame_receive_ps),
            frame_receive_ps_per_byte: scaled(host.frame_receive_ps_per_byte),
            post_ps: scaled(host.post_ps),
            completion_ps: scaled(host.completion_ps),
        },
        call_ps: scaled(call_ps),
        gather_ps: scaled(gather_ps),
        poll_ps: scaled(poll_ps),
        return_ps: scaled(return_ps),
        spread_ps: scaled(spread_ps),
        timer_ps: scaled(timer_ps),
    }
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { links, shaper, quarters, has_absences, exercise, message_bytes, in_order } =
            self;
        let speed = f64::from(*quarters) / 4.0;
        let size = size_name(*message_bytes);
        write!(formatter, "{} {} {size}, host x{speed}", links.name, exercise.name())?;
        for (text, is_so) in [
            (", absences", *has_absences),
            (", exact rate", *shaper == Shaper::Exact),
            (", slow timers", *shaper == Shaper::SlowTimers),
            (", in order", *in_order),
        ] {
            formatter.write_str(if is_so { text } else { "" })?;
        }
        Ok(())
    }
}

/// Returns a size as people write it.
pub fn size_name(bytes: u32) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ => format!("{}K", bytes >> 10),
    }
}

fn model(rate: u64, propagation_ns: u64, shaper: Shaper) -> LinkModel {
    let link = LinkModel {
        jitter: Jitter::Constant,
        queue_bytes: QUEUE_FRAMES * FRAME_WIRE_BYTES,
        // Virtual interfaces report none.
        reports_rate: false,
        ..raw_link(rate, propagation_ns)
    };
    if rate == FREE || shaper == Shaper::Exact {
        return link;
    }
    let burst_ns =
        (u64::from(BURST_FRAMES * FRAME_WIRE_BYTES) * 8_000_000_000 / rate).max(BURST_NS);
    let bucket = shaped(link).bucket;
    let bucket =
        bucket.map(|bucket| TokenBucket { burst_ns, late_ns_max: TIMER_LATE_NS, ..bucket });
    LinkModel { bucket, ..link }
}

const GIGABIT: u64 = 1_000_000_000;

/// Faster than any of the hosts.
const FREE: u64 = 1_000 * GIGABIT;

/// A full frame at MTU 1500 with its Ethernet header.
const FRAME_WIRE_BYTES: u32 = 1514;

/// What the switches of the testbed queue.
const QUEUE_FRAMES: u32 = 200;

/// What the shapers of the testbed let pass at once: so long, but so many frames at least.
const BURST_NS: u64 = 250_000;
const BURST_FRAMES: u32 = 4;

/// With timers of 40 µs two links of 1 Gb/s carry in simulation what they do on virtual Ethernet.
const SLOW_TIMERS: u64 = 8;

/// Timers of a kernel that has nothing else to do.
const TIMER_LATE_NS: u64 = 10_000;
