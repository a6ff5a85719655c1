//! Compares the engine on shaped links with simulations of the same links. This module defines the
//! measurements that the comparison needs, and the format of its results.
//!
//! The costs of hosts are measured on links without shapers. So the simulations do not depend on
//! the measurements with which they are compared.

use serde::{Deserialize, Serialize};

use crate::multiedge::{LinkKind, SetUp};
use crate::plan::{Options, PathChoice};
use crate::results::{Measurement, Results, Sample};
use crate::run::{self, Observer, RunError};
use crate::statistics::{self, Summary};
use crate::transport::{Test, counter};
use crate::transports::EDGE;
use testbed::switched::LinkShape;

/// The path between the two hosts while their costs are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreePath {
    /// A veth pair, which joins the hosts directly.
    Cable,
    /// A switch like those of the set-ups, with ports faster than the hosts.
    Switch,
}

/// Runs the measurements of `options` over raw Ethernet on `links` links that are faster than the
/// hosts. [`FreePath::Cable`] has one link.
///
/// # Errors
/// Returns [`RunError`]; each variant names one cause.
pub fn measure_free(
    path: FreePath,
    links: u32,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Vec<Measurement>, RunError> {
    let mut options = options.clone();
    options.path = match path {
        FreePath::Cable => PathChoice::Automatic,
        FreePath::Switch => PathChoice::Switched(vec![free_shape(); links as usize]),
    };
    options.links = links;
    options.link_names = LinkKind::Packet.links(links as usize);
    options.server_link_names.clone_from(&options.link_names);
    options.transports = vec![EDGE.to_string()];
    let Results { results, .. } = run::run(&options, observer)?;
    Ok(results)
}

/// Returns the shape of the link of [`FreePath::Switch`].
pub const fn free_shape() -> LinkShape {
    LinkShape::of_rate(FREE_RATE)
}

/// The samples of one test and message size, from several runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// The test.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// The samples in the order of their measurement.
    pub samples: Vec<Sample>,
}

impl Samples {
    /// Adds the results of another run, `measured`, to `all`.
    pub fn join(all: &mut Vec<Self>, measured: Vec<Measurement>) {
        for Measurement { test, message_bytes, samples, .. } in measured {
            let same =
                |known: &&mut Self| (known.test, known.message_bytes) == (test, message_bytes);
            match all.iter_mut().find(same) {
                Some(known) => known.samples.extend(samples),
                None => all.push(Self { test, message_bytes, samples }),
            }
        }
    }

    /// Returns the compared quantity and its values. For ping-pong, the value is half of each round
    /// trip, in microseconds. For other tests, it is the throughput, in 10^6 bytes per second.
    pub fn values(&self) -> (Quantity, Vec<f64>) {
        let latency_us = |sample: &Sample| sample.latency_ns_p50().map(|ns| ns / 1e3);
        let latencies: Option<Vec<f64>> = self.samples.iter().map(latency_us).collect();
        if let Some(latencies) = latencies.filter(|_| self.test == Test::PingPong) {
            return (Quantity::Latency, latencies);
        }
        let throughput = |sample: &Sample| sample.bytes_per_second() / 1e6;
        (Quantity::Throughput, self.samples.iter().map(throughput).collect())
    }

    /// Returns whether the samples vary little enough for a comparison: see [`STEADY_PERCENT`].
    pub fn are_steady(&self) -> bool {
        let values = self.values().1;
        let quartiles = statistics::quartiles(values.iter().copied());
        let median = Summary::trimmed(values.iter().copied()).map(|summary| summary.median);
        quartiles
            .zip(median)
            .is_some_and(|(quartiles, median)| repeats_percent(quartiles, median) <= STEADY_PERCENT)
    }

    /// Returns the median time in nanoseconds: half a round trip, or the time per message of a
    /// stream. In [`Test::TwoWay`], it is the time per pair of messages.
    pub fn ns(&self) -> Option<f64> {
        let per_operation =
            |sample: &Sample| sample.seconds * 1e9 / sample.operations.max(1) as f64;
        let of_one = |sample: &Sample| match self.test {
            Test::PingPong => sample.latency_ns_p50(),
            _ => Some(per_operation(sample)),
        };
        median(self.samples.iter().map(of_one).collect::<Option<_>>()?)
    }

    /// Returns the time to post a write, in nanoseconds: the median over all samples that contain
    /// this time.
    pub fn post_ns(all: &[Self]) -> Option<f64> {
        let of_one = |sample: &Sample| {
            let timed = *sample.counters.get(counter::POSTS_TIMED)?;
            let spent_ns = *sample.counters.get(counter::POST_NS)?;
            (timed >= 1.0).then(|| spent_ns / timed)
        };
        median(all.iter().flat_map(|samples| &samples.samples).filter_map(of_one).collect())
    }
}

/// A compared quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Half a round trip, in microseconds.
    Latency,
    /// Payload of all directions together, in 10^6 bytes per second.
    Throughput,
}

impl Quantity {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }

    /// Returns the unit of its values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Latency => "µs",
            Self::Throughput => "MB/s",
        }
    }
}

/// The JSON document with the result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run began, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// Costs of the hosts, and how well these costs explain the measured times.
    pub calibration: HostCosts,
    /// One entry for each set-up.
    pub setups: Vec<SetUpComparison>,
    /// Largest error of the steady points in the set-ups of [`DEFAULTS`], in percent. If none of
    /// these set-ups was measured, this is the largest error of the steady points in all set-ups.
    /// The value is 0 if there are no steady points.
    pub worst_error_percent: f64,
    /// Median error of the points that count for `worst_error_percent`, in percent.
    pub median_error_percent: f64,
    /// Number of points, steady or not, in the set-ups that count for `worst_error_percent`.
    #[serde(default)]
    pub points: usize,
    /// Number of points among `points` that are not [steady](Point::is_steady). The errors do not
    /// include unsteady points.
    #[serde(default)]
    pub unsteady_points: usize,
}

/// Costs of hosts, found on links faster than the hosts. Times are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostCosts {
    /// The path between the hosts.
    pub path: FreePath,
    /// Cost per frame sent.
    pub frame_send_ns: f64,
    /// Cost per byte of a frame sent.
    pub frame_send_ns_per_byte: f64,
    /// Cost per frame received.
    pub frame_receive_ns: f64,
    /// Cost per byte of a frame received.
    pub frame_receive_ns_per_byte: f64,
    /// Cost per operation posted. This cost is measured directly, and is not part of the fit.
    pub post_ns: f64,
    /// Cost per batch of frames that a host passes to the kernel in one call.
    pub call_ns: f64,
    /// Additional cost per frame whose payload the driver gathers from the program's memory. The
    /// driver copies short payloads instead.
    pub gather_ns: f64,
    /// Cost per poll of a link.
    pub poll_ns: f64,
    /// Cost per frame sent that the sender pays after the frame has reached the peer.
    pub return_ns: f64,
    /// Cost of choosing a link: per frame sent, for each link after the first. 0 if only one link
    /// was measured.
    #[serde(default)]
    pub spread_ns: f64,
    /// Root mean square of the fit's relative errors, in percent.
    pub rms_error_percent: f64,
    /// Largest relative error of the fit, in percent.
    pub worst_error_percent: f64,
    /// The measured times and the fitted times.
    pub points: Vec<FittedPoint>,
}

/// A measurement to which the costs were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FittedPoint {
    /// The test.
    pub test: Test,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Measured time: half a round trip, or the time per message of a stream. In [`Test::TwoWay`],
    /// it is the time per pair of messages.
    pub measured_ns: f64,
    /// The corresponding time of a simulation with the fitted costs.
    pub fitted_ns: f64,
}

/// The comparison of one set-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetUpComparison {
    /// The set-up.
    pub setup: SetUp,
    /// One curve per test, over the message sizes.
    pub curves: Vec<Curve>,
}

/// The values of one test over the message sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The test.
    pub test: Test,
    /// The compared quantity.
    pub quantity: Quantity,
    /// The points in order of message size.
    pub points: Vec<Point>,
    /// Largest error, in percent.
    pub worst_error_percent: f64,
    /// Median of the errors, in percent.
    pub median_error_percent: f64,
}

/// The comparison of one message size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Summary of the measured values. The comparison uses the median.
    pub real: Summary,
    /// Lower and upper quartile of the measured values.
    #[serde(default)]
    pub real_quartiles: [f64; 2],
    /// Median of the simulated values over all seeds.
    pub simulated: f64,
    /// Lowest and highest simulated value over all seeds.
    #[serde(default)]
    pub simulated_range: [f64; 2],
    /// Difference between `simulated` and the median of `real`, in percent of that median.
    pub error_percent: f64,
}

impl Point {
    /// Compares `simulated`, which has one value per seed, with `real`, which has one value per
    /// sample. Returns `None` if `simulated` or `real` is empty.
    pub fn new(message_bytes: u64, real: &[f64], simulated: &[f64]) -> Option<Self> {
        let summary = Summary::trimmed(real.iter().copied())?;
        let real_quartiles = statistics::quartiles(real.iter().copied())?;
        let over_seeds = median(simulated.to_vec())?;
        let least = simulated.iter().copied().fold(f64::INFINITY, f64::min);
        let most = simulated.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            message_bytes,
            real: summary,
            real_quartiles,
            simulated: over_seeds,
            simulated_range: [least, most],
            error_percent: (over_seeds / summary.median - 1.0).abs() * 100.0,
        })
    }

    /// Returns half the distance between the measured quartiles, in percent of the median.
    pub fn repeats_percent(&self) -> f64 {
        repeats_percent(self.real_quartiles, self.real.median)
    }

    /// Returns whether the measured values vary little enough for a comparison: see
    /// [`STEADY_PERCENT`].
    pub fn is_steady(&self) -> bool {
        self.repeats_percent() <= STEADY_PERCENT
    }

    /// Returns whether the simulated value is outside the quartiles of the measured values.
    pub fn is_beyond_repeats(&self) -> bool {
        let [lower, upper] = self.real_quartiles;
        !(lower..=upper).contains(&self.simulated)
    }
}

impl Curve {
    /// Makes the curve of a test, and computes its errors.
    pub fn new(test: Test, quantity: Quantity, points: Vec<Point>) -> Self {
        let (worst_error_percent, median_error_percent) = errors(points.iter());
        Self { test, quantity, points, worst_error_percent, median_error_percent }
    }
}

impl Report {
    /// Makes the report, and computes its errors.
    pub fn new(unix_seconds: u64, calibration: HostCosts, setups: Vec<SetUpComparison>) -> Self {
        let is_default = |found: &&SetUpComparison| DEFAULTS.contains(&found.setup.name.as_str());
        let has_defaults = setups.iter().any(|found| is_default(&found));
        let counted = setups.iter().filter(|found| !has_defaults || is_default(found));
        let points = counted.flat_map(|found| &found.curves).flat_map(|curve| &curve.points);
        let points: Vec<&Point> = points.collect();
        let steady: Vec<&Point> =
            points.iter().copied().filter(|point| point.is_steady()).collect();
        let (points, unsteady_points) = (points.len(), points.len() - steady.len());
        let (worst_error_percent, median_error_percent) = errors(steady.into_iter());
        Self {
            format: FORMAT.to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            unix_seconds,
            calibration,
            setups,
            worst_error_percent,
            median_error_percent,
            points,
            unsteady_points,
        }
    }
}

/// Returns half the distance between two quartiles, in percent of the median.
fn repeats_percent([lower, upper]: [f64; 2], median: f64) -> f64 {
    (upper - lower) / 2.0 / median * 100.0
}

/// Returns the largest and the median error.
fn errors<'a>(points: impl Iterator<Item = &'a Point>) -> (f64, f64) {
    let errors: Vec<f64> = points.map(|point| point.error_percent).collect();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    (worst, median(errors).unwrap_or(0.0))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) =
        (values.get(values.len().saturating_sub(1) / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-reality/1";

/// Set-ups in which the links, and not the processors of today, limit the throughput of large
/// messages.
pub const DEFAULTS: [&str; 4] = ["1L-100M", "2L-100M", "1G+100M", "1L-1G"];

/// Highest value of [`Point::repeats_percent`] for a steady point, in percent. If the samples vary
/// more than this, the error of their median may be as large as the errors that the comparison
/// looks for.
pub const STEADY_PERCENT: f64 = 8.0;

/// A rate that two processors cannot reach, in bits per second.
const FREE_RATE: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multiedge::setups;

    fn comparison(name: &str, simulated: f64) -> SetUpComparison {
        let real = [90.0, 95.0, 100.0, 105.0, 110.0];
        let points = [95.0, 100.0, simulated].into_iter();
        let points = points.filter_map(|simulated| Point::new(8, &real, &[simulated])).collect();
        let setup = setups::by_name(name).expect("it is one");
        SetUpComparison {
            setup,
            curves: vec![Curve::new(Test::OneWay, Quantity::Throughput, points)],
        }
    }

    fn costs() -> HostCosts {
        HostCosts {
            path: FreePath::Switch,
            frame_send_ns: 0.0,
            frame_send_ns_per_byte: 0.0,
            frame_receive_ns: 0.0,
            frame_receive_ns_per_byte: 0.0,
            post_ns: 0.0,
            call_ns: 0.0,
            gather_ns: 0.0,
            poll_ns: 0.0,
            return_ns: 0.0,
            spread_ns: 0.0,
            rms_error_percent: 0.0,
            worst_error_percent: 0.0,
            points: Vec::new(),
        }
    }

    #[test]
    fn the_worst_point_counts_in_both_directions() {
        for (simulated, worst) in [(130.0, 30.0), (80.0, 20.0)] {
            let curve = &comparison("1L-1G", simulated).curves[0];
            assert!((curve.worst_error_percent - worst).abs() < 1e-9);
            assert!((curve.median_error_percent - 5.0).abs() < 1e-9);
        }
    }

    #[test]
    fn measurement_noise_is_distinguished_from_model_errors() {
        let points = &comparison("1L-1G", 130.0).curves[0].points;
        assert!((points[0].repeats_percent() - 5.0).abs() < 1e-9);
        let is_beyond: Vec<_> = points.iter().map(Point::is_beyond_repeats).collect();
        assert_eq!(is_beyond, [false, false, true]);
        assert_eq!(Point::new(8, &[], &[1.0]), None);
    }

    #[test]
    fn set_ups_not_compared_by_default_do_not_count() {
        let setups = vec![comparison("1L-1G", 110.0), comparison("2L-10G", 300.0)];
        let report = Report::new(0, costs(), setups);
        assert!((report.worst_error_percent - 10.0).abs() < 1e-9);
        let alone = Report::new(0, costs(), vec![comparison("2L-10G", 300.0)]);
        assert!((alone.worst_error_percent - 200.0).abs() < 1e-9);
    }

    /// Checks that the report counts unsteady points, and that they do not change the errors.
    #[test]
    fn unsteady_points_are_counted_but_not_compared() {
        let mut noisy = comparison("1L-1G", 130.0);
        let real = [60.0, 80.0, 100.0, 120.0, 140.0];
        let point = Point::new(8, &real, &[200.0]).expect("there are samples");
        assert!(!point.is_steady());
        noisy.curves[0].points.push(point);
        let report = Report::new(0, costs(), vec![noisy]);
        assert!((report.worst_error_percent - 30.0).abs() < 1e-9);
        assert_eq!((report.points, report.unsteady_points), (4, 1));
    }

    #[test]
    fn the_default_set_ups_exist() {
        assert!(DEFAULTS.iter().all(|name| setups::by_name(name).is_some()));
    }
}
