//! Compares three sending policies: the policy of this project (its *own rules*), the rules of
//! `MultiEdge`, and plain round robin.
//!
//! The speed of the hosts ranges from a quarter of the speed of a calibrated host to four times
//! this speed. Their processors can be absent at times. Links are equal or unequal. They either
//! have shapers, whose timers interrupt the host, or have no rate limit. The result of the own
//! rules is compared with the better result of the other two policies. All policies get equal
//! virtual time and the same absences.

mod grid;
mod measure;
mod recovery;

use core::fmt;

use crate::channel::{Jitter, LinkModel, TokenBucket};
use crate::costs::EdgeCosts;
use crate::stream::{raw_link, shaped};

use super::{Costs, Exercise};

pub use grid::{full, pairs, quick};
pub use measure::{Comparison, Figures, Setting, compare};
pub use recovery::{BELIEFS, Belief, Recovery, recover};

/// Costs of a calibrated host, which is a small virtual machine with virtual Ethernet
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
    segment_ps: 100_000,
    spread_ps: 150_000,
    timer_ps: 5_000_000,
};

/// A set of links between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSet {
    /// Name used in reports.
    pub name: &'static str,
    /// For each link, its rate in bits per second and its one-way delay in nanoseconds.
    pub links: &'static [(u64, u64)],
}

impl LinkSet {
    /// Returns whether the links have no rate limit, like virtual Ethernet without a shaper. The
    /// processors are then the bottleneck.
    pub const fn is_free(&self) -> bool {
        matches!(self.links.first(), Some(&(FREE, _)))
    }

    /// Returns whether all links are equal.
    pub fn is_equal(&self) -> bool {
        self.links.iter().all(|link| Some(link) == self.links.first())
    }

    /// Returns the models of the links. `offloads` says whether drivers report segmentation offload
    /// ([`LinkModel::offloads`]).
    pub fn models(&self, shaper: Shaper, offloads: bool) -> Vec<LinkModel> {
        let models =
            self.links.iter().map(|&(rate, propagation_ns)| model(rate, propagation_ns, shaper));
        models.map(|link| LinkModel { offloads, ..link }).collect()
    }
}

/// How the rate of a link is limited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shaper {
    /// An exact transmitter, which costs the host nothing.
    Exact,
    /// A token bucket whose timers are late and interrupt the host.
    Timers,
    /// A token bucket whose timers take eight times as long, because each timer leaves the virtual
    /// machine (a VM exit).
    SlowTimers,
}

impl Shaper {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Timers => "timers",
            Self::SlowTimers => "slow-timers",
        }
    }
}

/// All shapers.
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

/// Sizes of a message, in bytes.
pub const SIZES: [u32; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 4 << 20];

/// Speeds of hosts, in quarters of the speed of a calibrated host.
pub const SPEEDS: [u32; 5] = [1, 2, 4, 8, 16];

/// The transfer patterns.
pub const EXERCISES: [Exercise; 3] = [Exercise::OneWay, Exercise::TwoWay, Exercise::PingPong];

/// A combination of settings at which policies are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Links between the hosts.
    pub links: LinkSet,
    /// How the rates of the links are limited.
    pub shaper: Shaper,
    /// Speed of both hosts, in quarters of the speed of a calibrated host.
    pub quarters: u32,
    /// Whether the processors are absent at times, because the kernel or a hypervisor uses them.
    pub has_absences: bool,
    /// The transfer pattern.
    pub exercise: Exercise,
    /// Size of a message in bytes.
    pub message_bytes: u32,
    /// Whether writes are delivered in order.
    pub in_order: bool,
}

impl Point {
    /// Returns the costs of the hosts. `calibrated` are the costs of a calibrated host.
    fn costs(&self, calibrated: &Costs) -> Costs {
        let factor = if self.shaper == Shaper::SlowTimers { SLOW_TIMERS } else { 1 };
        let costs = Costs { timer_ps: calibrated.timer_ps * factor, ..*calibrated };
        scaled(&costs, self.quarters)
    }
}

/// Returns the costs of hosts that have `quarters`/4 of the speed of hosts with `costs`.
pub(super) fn scaled(costs: &Costs, quarters: u32) -> Costs {
    let Costs { host, call_ps, gather_ps, poll_ps, return_ps, segment_ps, spread_ps, timer_ps } =
        *costs;
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
        segment_ps: scaled(segment_ps),
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

/// Formats a size in the usual short form.
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
        // Virtual interfaces report no rate.
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

/// A rate that no host reaches, in bits per second.
const FREE: u64 = 1_000 * GIGABIT;

/// Length of a full frame at MTU 1500, with its Ethernet header, in bytes.
const FRAME_WIRE_BYTES: u32 = 1514;

/// Maximum number of frames in the queue of the testbed's switch.
const QUEUE_FRAMES: u32 = 200;

/// Burst of the testbed's shapers, as time at the link's rate, in nanoseconds. The burst is at
/// least [`BURST_FRAMES`] frames.
const BURST_NS: u64 = 250_000;
const BURST_FRAMES: u32 = 4;

/// Processor time of a slow timer, relative to that of a timer of a calibrated host. With this
/// factor, a slow timer takes 40 µs of processor time. Two links of 1 Gb/s without segmentation
/// offload then have the same rate in simulation as on virtual Ethernet.
const SLOW_TIMERS: u64 = 8;

/// Maximum delay of the timers of an otherwise idle kernel, in nanoseconds.
const TIMER_LATE_NS: u64 = 10_000;
