//! Saturation: measures latency for increasing loads, and finds the load at which latency rises
//! sharply. The loads are open: ranks post messages at random times, whether or not earlier
//! messages have arrived.
//!
//! A load saturates a network in two cases:
//!
//! * The mean latency reaches [`SATURATED_LATENCIES`] times the latency of the idle network.
//! * Some messages have not arrived at the end of the run, which is some time after ranks have
//!   stopped posting.
//!
//! The search increases the load in steps until a load saturates the network. Then it bisects the
//! range between this load and the load of the previous step.

use std::ops::ControlFlow;

use super::configuration::{Configuration, ConfigurationError, Watch};
use super::simulation::{InTurns, Limits, Outcome, Progress};
use super::statistics::confidence_95;

/// Parameters of a search for saturation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Difference between successive loads at the start of the search, in percent of the rate of a
    /// host's link.
    pub step_percent: f64,
    /// Maximum difference at which the search ends, in percent. It is the difference between the
    /// smallest load that saturates the network and the largest load that does not.
    pub precision_percent: f64,
    /// Number of runs at each load. The runs have different random numbers.
    pub replications: u32,
}

impl Default for Search {
    fn default() -> Self {
        Self { step_percent: 10.0, precision_percent: 1.0, replications: 1 }
    }
}

/// A mean over several runs, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean of the runs.
    pub mean: f64,
    /// Half width of the 95 % confidence interval; `None` for a single run.
    pub margin: Option<f64>,
}

/// Results of one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPoint {
    /// Load that each host offers, in percent of the rate of its link.
    pub load_percent: f64,
    /// Mean latency of messages, in microseconds.
    pub latency_us: Estimate,
    /// Load that each host receives, in percent of the rate of its link.
    pub accepted_percent: Estimate,
    /// Whether the load saturates the network.
    pub is_saturated: bool,
}

/// Results of a search for saturation.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Mean latency at [`IDLE_PERCENT`] of load, in microseconds.
    pub idle_us: f64,
    /// All loads that were run, in ascending order.
    pub points: Vec<LoadPoint>,
    /// The largest load that is smaller than all loads that saturated the network. `None` if every
    /// load saturated it, or if none did.
    pub saturation: Option<LoadPoint>,
}

/// Progress of a search, as `watch` gets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The load of each host, in percent of the rate of its link.
    pub load_percent: f64,
    /// Number of the run among the runs of this load, from 1.
    pub run: u32,
    /// Progress within the run.
    pub progress: Progress,
}

impl Configuration {
    /// Searches for the load that saturates the network. The configured workload must be an open
    /// load: its ranks post messages at random times. The search ignores the load that the
    /// configuration sets. Every few thousand events, the search calls `watch` with the progress;
    /// `watch` can stop the search.
    ///
    /// If no warm-up is configured, the warm-up is the first quarter of the posting time.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn saturate(
        &self,
        search: Search,
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Curve, ConfigurationError> {
        let mut points: Vec<LoadPoint> = Vec::new();
        let idle = self.measure(IDLE_PERCENT, search.replications, f64::INFINITY, watch)?;
        let idle_us = idle.latency_us.mean;
        points.push(idle);
        let mut run = |load_percent: f64, points: &mut Vec<LoadPoint>| {
            let limit_us = idle_us * SATURATED_LATENCIES;
            let point = self.measure(load_percent, search.replications, limit_us, watch)?;
            points.push(point);
            Ok::<bool, ConfigurationError>(point.is_saturated)
        };
        let step = search.step_percent.clamp(IDLE_PERCENT, FULL_PERCENT);
        let (mut carried, mut saturating) = (IDLE_PERCENT, None);
        for number in 1.. {
            let load_percent = (step * f64::from(number)).min(FULL_PERCENT);
            if run(load_percent, &mut points)? {
                saturating = Some(load_percent);
                break;
            }
            carried = load_percent;
            if load_percent >= FULL_PERCENT {
                break;
            }
        }
        while let Some(most) = saturating
            && most - carried > search.precision_percent.max(PRECISION_MIN_PERCENT)
        {
            let middle = f64::midpoint(carried, most);
            if run(middle, &mut points)? {
                saturating = Some(middle);
            } else {
                carried = middle;
            }
        }
        points.sort_by(|a, b| a.load_percent.total_cmp(&b.load_percent));
        let saturation = saturating.and_then(|most| {
            let below = points.iter().take_while(|point| point.load_percent < most);
            below.last().copied()
        });
        Ok(Curve { idle_us, points, saturation })
    }

    /// Runs a load `replications` times.
    fn measure(
        &self,
        load_percent: f64,
        replications: u32,
        limit_us: f64,
        watch: &mut dyn FnMut(Step) -> ControlFlow<()>,
    ) -> Result<LoadPoint, ConfigurationError> {
        let (mut latencies_us, mut accepted_percent) = (Vec::new(), Vec::new());
        let mut is_any_left = false;
        for run in 1..=replications.max(1) {
            let seed = self.seed + u64::from(run) - 1;
            let (configuration, rate) = self.at_load(load_percent, seed)?;
            let mut report = |progress| watch(Step { load_percent, run, progress });
            let watched = Watch { progress: Some(&mut report), ..Watch::default() };
            let outcome: Outcome = configuration.run_watched(&InTurns, watched)?;
            is_any_left |= outcome.left > 0;
            latencies_us.push(outcome.latency.mean_us());
            let accepted = outcome.accepted.rate(self.topology.hosts()).unwrap_or(0.0);
            accepted_percent.push(accepted / rate * 100.0);
        }
        let latency_us = Estimate::of(&latencies_us);
        Ok(LoadPoint {
            load_percent,
            latency_us,
            accepted_percent: Estimate::of(&accepted_percent),
            is_saturated: is_any_left || latency_us.mean > limit_us,
        })
    }
}

impl Estimate {
    fn of(values: &[f64]) -> Self {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Self { mean, margin: confidence_95(values) }
    }
}

/// Returns the limits of a run at a load. After ranks have stopped posting, the run continues so
/// that messages in flight can arrive. This part of the run is as long as the measured part.
pub(super) fn limits_at_load(limits: Limits, until_ps: u64) -> Limits {
    let warmup_ps = match limits.warmup_ps {
        0 => until_ps / 4,
        warmup_ps => warmup_ps.min(until_ps),
    };
    let stop_ps = until_ps.saturating_add(until_ps - warmup_ps);
    Limits { warmup_ps, stop_ps, ..limits }
}

/// Ratio of the mean latency at a load to the latency of the idle network. If the ratio is
/// `SATURATED_LATENCIES` or more, the load saturates the network.
pub const SATURATED_LATENCIES: f64 = 3.0;
/// Load at which a network counts as idle, in percent.
pub const IDLE_PERCENT: f64 = 1.0;
/// Load at which hosts send without gaps, in percent.
const FULL_PERCENT: f64 = 100.0;
/// Minimum precision, in percent. Without this minimum, a search might not end.
const PRECISION_MIN_PERCENT: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(text: &str, search: Search) -> Curve {
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        configuration.saturate(search, &mut |_| ControlFlow::Continue(())).expect("it ends")
    }

    /// Four hosts share a trunk with the rate of one host. The trunk can therefore carry a quarter
    /// of their full load.
    #[test]
    fn a_trunk_saturates_at_its_rate() {
        let text = "[topology]\nkind = \"cascade\"\nhosts = 4\n[fabric]\nkind = \"ethernet\"\n\
                    overhead_bytes = 0\ngap_bytes = 0\n[workload]\npattern = \"shift\"\ndistance = 4\n\
                    until_ps = 20_000_000_000\n";
        let search = Search { precision_percent: 0.5, ..Search::default() };
        let curve = curve(text, search);
        let saturation = curve.saturation.expect("it saturates");
        assert!((20.0..25.5).contains(&saturation.load_percent), "{saturation:?}");
        let accepted = saturation.accepted_percent.mean;
        assert!((accepted / saturation.load_percent - 1.0).abs() < 0.03, "{saturation:?}");
        assert_eq!(saturation.accepted_percent.margin, None);
        assert!(curve.points.windows(2).all(|pair| pair[0].load_percent < pair[1].load_percent));
        assert!(
            curve.points.iter().all(|point| {
                point.is_saturated == (point.load_percent > saturation.load_percent)
            })
        );
    }

    #[test]
    fn replications_have_a_margin_that_more_of_them_narrow() {
        let text = "[workload]\nuntil_ps = 200_000_000\n";
        let few = Search { step_percent: 50.0, precision_percent: 50.0, replications: 3 };
        let many = Search { replications: 12, ..few };
        let margin = |curve: Curve| curve.points[1].latency_us.margin.expect("several runs");
        let (wide, narrow) = (margin(curve(text, few)), margin(curve(text, many)));
        assert!(narrow < wide && narrow > 0.0, "{narrow} {wide}");
    }

    #[test]
    fn only_open_loads_have_a_saturation() {
        let text = "[workload]\nkind = \"barrier\"\n";
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let refused = configuration.saturate(Search::default(), &mut |_| ControlFlow::Continue(()));
        let error = refused.expect_err("no load").to_string();
        assert!(error.contains("kind in [workload] is") && error.contains("open_load"), "{error}");
    }
}
