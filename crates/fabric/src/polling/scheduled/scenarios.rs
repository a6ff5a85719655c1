//! Measures the wait policy on hosts of many speeds, with busy threads of other programs. Compares
//! the results with the processor time that these threads leave, and with the results of rules that
//! do not learn.

use core::fmt;

use waiting::Spinning;

use super::{Mode, Outcome, Policies, SpinAtMost, Trial, WaitRule, run, share_left};
use crate::channel::{Jitter, LinkModel};
use crate::polling::Exercise;
use crate::polling::policies::{CALIBRATED, scaled, size_name};
use crate::scenario::TransferError;
use crate::scheduler::Settings;
use crate::stream::raw_link;

/// Two hosts with other threads, and the transfer between them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Point {
    /// The transfer pattern.
    pub exercise: Exercise,
    /// Size of a message in bytes.
    pub message_bytes: u32,
    /// How the applications wait.
    pub mode: Mode,
    /// Speed of both hosts, in quarters of the speed of a calibrated host.
    pub quarters: u32,
    /// Number of busy threads of other programs per processor.
    pub load: usize,
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exercise, message_bytes, mode, quarters, load } = self;
        let (exercise, size, mode) = (exercise.name(), size_name(*message_bytes), mode.name());
        let speed = f64::from(*quarters) / 4.0;
        write!(formatter, "{exercise} {size}, {mode}, host x{speed}, load {load}")
    }
}

/// How each combination of settings is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Setting {
    /// Number of processors of a host.
    pub processors: usize,
    /// Virtual time of each run, in nanoseconds. It contains many slices of all threads.
    pub measured_ns: u64,
    /// Number of runs of each combination of settings, at least 1.
    pub seeds: u64,
}

/// Results of the wait policy and of simple rules with one combination of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The combination of settings with which the policy was measured.
    pub point: Point,
    /// Operations per second on hosts without other threads, with the better of two rules: always
    /// spin, and never spin.
    pub alone_per_second: f64,
    /// Fraction of a processor that a thread gets if it always has work.
    pub share_left: f64,
    /// Results of the policy in the run with the first seed.
    pub outcome: Outcome,
    /// Mean operations per second of the policy, over all runs.
    pub per_second: f64,
    /// Mean operations per second of the best of three rules: always spin; never spin; spin for as
    /// long as a sleep costs.
    pub simple_per_second: f64,
}

impl Comparison {
    /// Returns the result of the policy, divided by the result that a thread could have with the
    /// fraction [`Comparison::share_left`] of a processor.
    pub fn ratio(&self) -> f64 {
        self.per_second / (self.alone_per_second * self.share_left)
    }

    /// Returns the result of the best simple rule, divided by the result that a thread could have
    /// with the fraction [`Comparison::share_left`] of a processor.
    pub fn simple_ratio(&self) -> f64 {
        self.simple_per_second / (self.alone_per_second * self.share_left)
    }
}

/// Returns all points.
pub fn full() -> Vec<Point> {
    points(&SPEEDS)
}

/// Returns the combinations of settings for three speeds of hosts: a quarter, the same and four
/// times the speed of a calibrated host.
pub fn quick() -> Vec<Point> {
    points(&[1, 4, 16])
}

fn points(speeds: &[u32]) -> Vec<Point> {
    let mut points = Vec::new();
    for mode in [Mode::Polls, Mode::Waits] {
        for (exercise, message_bytes) in EXERCISES {
            for &quarters in speeds {
                let of_load = |load| Point { exercise, message_bytes, mode, quarters, load };
                points.extend(LOADS.map(of_load));
            }
        }
    }
    points
}

/// Measures the wait policy with one combination of settings. If `with_simple` is true, also
/// measures the simple rules; otherwise their result is 0.
///
/// # Errors
/// Returns [`TransferError`] if a connection cannot be established or ends.
pub fn measure(
    point: &Point,
    setting: &Setting,
    with_simple: bool,
) -> Result<Comparison, TransferError> {
    let processors = Settings::usual(setting.processors).scaled(point.quarters);
    let sleep_cost_ns = processors.sleep_cost_ns();
    let spinning = match point.mode {
        Mode::Polls => Spinning::AtMost(u64::MAX),
        Mode::Waits => Spinning::Learned,
    };
    let of_policy = || -> Box<dyn WaitRule> { Box::new(Policies::measured(spinning, &processors)) };
    let simple = |limit_ns| {
        move || -> Box<dyn WaitRule> {
            Box::new(SpinAtMost { limit_ns, ..SpinAtMost::always(sleep_cost_ns) })
        }
    };
    let busy = point.load * setting.processors;
    let mean = |rule: &dyn Fn() -> Box<dyn WaitRule>| -> Result<(Outcome, f64), TransferError> {
        let seeds = setting.seeds.max(1);
        let outcomes = (0..seeds).map(|seed| trial(point, setting, processors, busy, seed, rule));
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        let sum: f64 = outcomes.iter().map(|outcome| outcome.operations_per_second).sum();
        let first = outcomes.into_iter().next().unwrap_or_default();
        Ok((first, sum / seeds as f64))
    };
    let alone = |limit_ns| {
        let setting = Setting { measured_ns: ALONE_NS, ..*setting };
        trial(point, &setting, processors, 0, 0, &simple(limit_ns))
    };
    let alone = [alone(u64::MAX)?, alone(0)?].map(|outcome| outcome.operations_per_second);
    let (outcome, per_second) = mean(&of_policy)?;
    let mut simple_per_second = 0.0_f64;
    if with_simple {
        for limit_ns in [u64::MAX, sleep_cost_ns, 0] {
            simple_per_second = simple_per_second.max(mean(&simple(limit_ns))?.1);
        }
    }
    Ok(Comparison {
        point: *point,
        alone_per_second: alone[0].max(alone[1]),
        share_left: share_left(processors, busy),
        outcome,
        per_second,
        simple_per_second,
    })
}

fn trial(
    point: &Point,
    setting: &Setting,
    processors: Settings,
    busy: usize,
    seed: u64,
    rule: &dyn Fn() -> Box<dyn WaitRule>,
) -> Result<Outcome, TransferError> {
    let trial = Trial {
        links: &LINKS,
        exercise: point.exercise,
        mode: point.mode,
        message_bytes: point.message_bytes,
        in_flight: IN_FLIGHT,
        costs: scaled(&CALIBRATED, point.quarters),
        processors,
        busy,
        measured_ns: setting.measured_ns,
        seed,
    };
    run(&trial, rule)
}

/// Speeds of hosts, in quarters of the speed of a calibrated host.
pub const SPEEDS: [u32; 5] = [1, 2, 4, 8, 16];

/// Numbers of busy threads of other programs per processor.
pub const LOADS: [usize; 4] = [0, 1, 2, 4];

/// The transfer patterns, with the sizes of their messages in bytes.
pub const EXERCISES: [(Exercise, u32); 4] = [
    (Exercise::PingPong, 8),
    (Exercise::PingPong, 16 << 10),
    (Exercise::OneWay, 16 << 10),
    (Exercise::TwoWay, 16 << 10),
];

/// A link without a rate limit, like virtual Ethernet. The processors are the bottleneck.
const LINKS: [LinkModel; 1] =
    [LinkModel { jitter: Jitter::Constant, ..raw_link(1_000_000_000_000, 0) }];

/// Number of writes in flight in a stream.
const IN_FLIGHT: u32 = 16;

/// Virtual time of a run without other threads, in nanoseconds. A short run suffices, because
/// without other threads all rounds are equal.
const ALONE_NS: u64 = 50_000_000;
