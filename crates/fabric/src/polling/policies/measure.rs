//! Measures each policy at one point (combination of settings).

use super::super::machine::Machine;
use super::super::{Costs, Exercise, Length, PAYLOAD_BYTES, Pauses, Trial, run_by};
use super::Point;
use crate::channel::LinkModel;
use crate::scenario::TransferError;
use crate::stream::Policies;

/// Results of one policy with one combination of settings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The figure that is compared. For a stream, the rate of payload in all directions, in bytes
    /// per second. For a ping-pong, the reciprocal of the latency in seconds.
    pub worth: f64,
    /// Number of runs of the engine in which data waited and a link had room, but the link got no
    /// data; in percent of the data frames.
    pub idle_percent: f64,
    /// Number of pure acknowledgements and retransmissions, in percent of the data frames.
    pub extra_percent: f64,
}

/// How each combination of settings is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Costs of a calibrated host.
    pub costs: Costs,
    /// Number of seeds, at least 1. Each combination of settings is run with all seeds below this
    /// number.
    pub seeds: u64,
    /// Whether drivers report segmentation offload: see
    /// [`LinkModel::offloads`](crate::LinkModel::offloads).
    pub offloads: bool,
}

/// The results of all policies with one combination of settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The point.
    pub point: Point,
    /// Results of the project's own rules.
    pub own: Figures,
    /// Results of the rules of `MultiEdge`.
    pub multiedge: Figures,
    /// Results of the project's own rules with round robin between the links. Equal to `own` if
    /// there is only one link.
    pub round_robin: Figures,
    /// Results of the project's own rules on the first link alone. `None` if there is only one
    /// link, or if the links have a rate limit.
    pub alone: Option<Figures>,
    /// Measures how much the seeds differ: each seed alone gives a ratio, and this value is half of
    /// the distance between the highest and the lowest of these ratios.
    pub spread: f64,
}

impl Comparison {
    /// Returns the result of the project's own rules, divided by the better result of the other two
    /// policies.
    pub fn ratio(&self) -> f64 {
        self.own.worth / self.multiedge.worth.max(self.round_robin.worth)
    }

    /// Returns the result of the project's own rules, divided by their result on the first link
    /// alone.
    pub fn ratio_to_one(&self) -> Option<f64> {
        self.alone.map(|alone| self.own.worth / alone.worth)
    }

    /// Returns the payload rate of a stream, in percent of the links' rates; `None` if the links
    /// have no rate limit.
    pub fn efficiency_percent(&self) -> Option<f64> {
        let Point { links, exercise, .. } = self.point;
        let directions = match exercise {
            Exercise::PingPong => return None,
            Exercise::OneWay => 1.0,
            Exercise::TwoWay => 2.0,
        };
        let bits: u64 = links.links.iter().map(|&(rate, _)| rate).sum();
        (!links.is_free()).then(|| 800.0 * self.own.worth / (bits as f64 * directions))
    }

    /// Returns half of the round-trip time of a ping-pong with these results, in microseconds.
    pub fn latency_us(&self, figures: &Figures) -> Option<f64> {
        (self.point.exercise == Exercise::PingPong).then(|| 1e6 / figures.worth)
    }
}

/// Runs one combination of settings with each policy.
///
/// # Errors
/// Returns [`TransferError`] if a connection cannot be established, ends, or transfers no data.
pub fn compare(point: &Point, setting: &Setting) -> Result<Comparison, TransferError> {
    let links = point.links.models(point.shaper, setting.offloads);
    let by = |links: &[LinkModel], policies| -> Result<Vec<Figures>, TransferError> {
        let seeds = 0..setting.seeds.max(1);
        seeds.map(|seed| measure(point, &setting.costs, links, policies, seed)).collect()
    };
    let own = by(&links, Policies::Default)?;
    let multiedge = by(&links, Policies::MultiEdge)?;
    let has_several = links.len() > 1;
    let round_robin = if has_several { by(&links, Policies::RoundRobin)? } else { own.clone() };
    let alone = match links.first() {
        Some(first) if has_several && point.links.is_free() => {
            Some(by(&[*first], Policies::Default)?)
        }
        _ => None,
    };
    let others = multiedge.iter().zip(&round_robin);
    let ratios = own
        .iter()
        .zip(others)
        .map(|(own, (multiedge, in_turn))| own.worth / multiedge.worth.max(in_turn.worth));
    let (least, most) = ratios
        .fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
    Ok(Comparison {
        point: *point,
        own: Figures::mean(&own),
        multiedge: Figures::mean(&multiedge),
        round_robin: Figures::mean(&round_robin),
        alone: alone.as_deref().map(Figures::mean),
        spread: (most - least) / 2.0,
    })
}

impl Figures {
    fn mean(of_seeds: &[Self]) -> Self {
        let count = of_seeds.len().max(1) as f64;
        let mean = |value: fn(&Self) -> f64| of_seeds.iter().map(value).sum::<f64>() / count;
        Self {
            worth: mean(|figures| figures.worth),
            idle_percent: mean(|figures| figures.idle_percent),
            extra_percent: mean(|figures| figures.extra_percent),
        }
    }
}

fn measure(
    point: &Point,
    calibrated: &Costs,
    links: &[LinkModel],
    policies: Policies,
    seed: u64,
) -> Result<Figures, TransferError> {
    let lengths_ns: &[u32] = if point.has_absences { &ABSENCES_NS } else { &[] };
    let trial = Trial {
        links,
        exercise: point.exercise,
        message_bytes: point.message_bytes,
        in_flight: (IN_FLIGHT_BYTES / point.message_bytes).clamp(2, IN_FLIGHT),
        in_order: point.in_order,
        costs: point.costs(calibrated),
        pauses: Pauses { every_ns: ABSENT_EVERY_NS, lengths_ns },
        length: Length::Operations { warm_up: 0, measured: 0 },
        seed,
    };
    if point.exercise == Exercise::PingPong {
        ping_pong(&trial, policies)
    } else {
        stream(point, &trial, policies)
    }
}

fn ping_pong(trial: &Trial<'_>, policies: Policies) -> Result<Figures, TransferError> {
    let frames = u64::from(trial.message_bytes.div_ceil(PAYLOAD_BYTES).max(1));
    let measured = (FRAMES / (2 * frames)).clamp(ROUNDS_MIN, ROUNDS_MAX);
    let length = Length::Operations { warm_up: measured / 2, measured };
    let outcome = run_by(&Trial { length, ..trial.clone() }, policies)?;
    let percent = |count: u64| 100.0 * count as f64 / outcome.data_frames.max(1) as f64;
    Ok(Figures {
        worth: 1e9 / outcome.latency_ns.unwrap_or(f64::INFINITY),
        idle_percent: percent(outcome.idle_with_data),
        extra_percent: percent(outcome.acknowledgements + outcome.retransmissions),
    })
}

/// Measures a stream that starts before the measurement and ends after it.
fn stream(point: &Point, trial: &Trial<'_>, policies: Policies) -> Result<Figures, TransferError> {
    let measured_ns = measured_ns(point, &trial.costs);
    let mut machine = Machine::new(trial, &policies.config())?;
    machine.connect()?;
    machine.start(u64::MAX);
    machine.run_for(measured_ns.max(WARM_UP_NS_MIN))?;
    let before = machine.counters();
    machine.run_for(measured_ns)?;
    let counted = machine.counters().links.since(&before.links);
    let percent = |count: u64| 100.0 * count as f64 / counted.data_frames_sent.max(1) as f64;
    if counted.payload_bytes_received == 0 {
        let bytes = point.message_bytes;
        return Err(TransferError::Unfinished { bytes, limit_ns: measured_ns });
    }
    Ok(Figures {
        worth: counted.payload_bytes_received as f64 * 1e9 / measured_ns as f64,
        idle_percent: percent(counted.idle_with_data),
        extra_percent: percent(counted.extra_frames()),
    })
}

/// Returns the duration of the measurement, in nanoseconds. The measurement contains at least about
/// [`FRAMES`] frames, many round trips and many absences.
fn measured_ns(point: &Point, costs: &Costs) -> u64 {
    let host = &costs.host;
    let frame_ps = host.frame_send_ps
        + host.frame_send_ps_per_byte * u64::from(PAYLOAD_BYTES)
        + costs.gather_ps
        + costs.return_ps;
    let bits: u64 = point.links.links.iter().map(|&(rate, _)| rate).sum();
    let wire_ps = u64::from(PAYLOAD_BYTES) * 8_000_000_000_000 / bits.max(1);
    let longest_ns = point.links.links.iter().map(|&(_, delay_ns)| 2 * delay_ns).max();
    let least_ns = longest_ns.unwrap_or(0) * ROUND_TRIPS;
    let least_ns = if point.has_absences { least_ns.max(ABSENT_EVERY_NS * 20) } else { least_ns };
    (FRAMES * frame_ps.max(wire_ps) / 1_000).max(least_ns)
}

/// Possible lengths of absences, in which the kernel or a hypervisor uses the processor, in
/// nanoseconds.
const ABSENCES_NS: [u32; 7] = [50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000];

/// Mean time between the end of an absence and the start of the next absence, in nanoseconds.
const ABSENT_EVERY_NS: u64 = 10_000_000;

/// Maximum number of bytes in flight in a stream; `IN_FLIGHT` is the maximum number of messages.
const IN_FLIGHT_BYTES: u32 = 16 << 20;
const IN_FLIGHT: u32 = 16;

/// Minimum number of frames of one measurement.
const FRAMES: u64 = 6_000;

/// Minimum number of round trips of one measurement, on the longest link.
const ROUND_TRIPS: u64 = 25;

/// Minimum time before a stream is measured, in nanoseconds. After this time, rates and windows are
/// steady.
const WARM_UP_NS_MIN: u64 = 50_000_000;

/// Minimum number of rounds of a ping-pong that are measured; `ROUNDS_MAX` is the maximum.
const ROUNDS_MIN: u64 = 8;
const ROUNDS_MAX: u64 = 400;
