//! Curves of the benchmark COMB: bandwidth against availability, and waiting time against the
//! interval of work.

use serde::{Deserialize, Serialize};

use super::comb_document::{CombPoint, CombRun};
use super::contender::{Provided, TCP};
use super::mpi::{Mpi, Over};
use crate::statistics::Summary;

/// A method of COMB. The method determines how the worker, the program under measurement, divides
/// its time between its own work and calls that move messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Works for an interval, tests once which messages have arrived, and answers these messages.
    Polling,
    /// Posts all messages, works without calls, and waits for all messages.
    PostWorkWait,
    /// Works like [`Method::Polling`], but without messages. If the availability differs from 1,
    /// the difference is the error of the method.
    Silent,
}

/// The program and the transport that carry the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// `comb` on a device.
    Verbs(Provided),
    /// `comb` over a TCP connection.
    Tcp,
    /// `comb-mpi` over this transport.
    Mpi(Mpi, Over),
}

/// The results of the test of availability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Availability {
    /// One curve for each method, size and carrier.
    pub curves: Vec<Curve>,
    /// The comparison of CPU times with the elapsed time; `None` if the worker's host was not
    /// restricted to one CPU.
    pub accounting: Option<Accounting>,
}

/// Compares the CPU times of the worker's host with the elapsed time. All times in which the CPU
/// was not idle should add up to the elapsed time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Accounting {
    /// Number of points whose CPU times are known.
    pub points: u32,
    /// Number of points whose CPU times, divided by the elapsed time, add up to 0.95 to 1.05.
    pub within: u32,
    /// `within / points`.
    pub share: f64,
}

/// The results of one carrier at one size, over all intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Unique name: method, size and carrier, as in `polling-262144-edge0`.
    pub name: String,
    /// How the worker spent its time.
    pub method: Method,
    /// Bytes of a message.
    pub size: u64,
    /// The name of the carrier: the device, TCP, or an MPI over one of these two.
    pub carrier: String,
    /// The points in order of growing interval.
    pub points: Vec<CurvePoint>,
    /// In the method polling, the highest bandwidth at an availability of 0.5 or more, in bytes per
    /// second.
    pub half_bandwidth: Option<Summary>,
    /// Ratios of this `half_bandwidth` to that of another carrier, computed for each repetition.
    pub ratios: Vec<CurveRatio>,
    /// In the method post-work-wait, the median time that the worker waits after its work, divided
    /// by the time of a transfer. Only intervals of work that are longer than the transfer count.
    pub wait_share: Option<Summary>,
    /// In the method post-work-wait, the wait at the longest interval of work divided by the wait
    /// at the shortest.
    pub wait_ratio: Option<Summary>,
    /// In the method without messages, the mean availability over all intervals.
    pub silent_availability: Option<Summary>,
    /// The reason why there are no points.
    pub cannot_run: Option<String>,
}

/// The ratio of one carrier's value to that of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurveRatio {
    /// The other carrier.
    pub to: String,
    /// `half_bandwidth` of the first carrier, divided by that of the other.
    pub value: Summary,
}

/// The results at one interval of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Iterations of the work between two calls.
    pub iterations: u64,
    /// Time of these iterations without messages, in microseconds.
    pub interval_us: f64,
    /// Time of the work alone, divided by the time of the same work with messages.
    pub availability: Summary,
    /// Payload bytes per second, both directions together.
    pub bytes_per_second: Summary,
    /// In the method post-work-wait, the times to post, to work and to wait in a round, in
    /// microseconds. All are 0 in the method polling.
    pub round_us: [f64; 3],
    /// Fraction of the time that the worker's CPU spent in softirq.
    pub softirq_share: Option<f64>,
    /// Time in irq and softirq on all other CPUs of the machine, divided by the elapsed time. The
    /// other CPUs include the CPU of the peer's host.
    pub interrupts_elsewhere_share: Option<f64>,
    /// Fraction of the elapsed time in which the CPU of the worker's host was not idle.
    pub accounted: Option<f64>,
    /// Difference between the times of the work alone before and after a sample, in percent of the
    /// shorter time. The value is from the sample with the largest difference.
    pub dry_run_percent: f64,
    /// Whether `dry_run_percent` is more than 10, which shows that the machine was busy with other
    /// work.
    pub is_busy: bool,
    /// Number of samples that were repeated because the times of the work alone differed too much.
    pub retaken: u32,
}

/// The points of each repetition of a carrier, or the reason why there are none.
pub(super) type Taken = Result<Vec<Vec<CombPoint>>, String>;

impl Method {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Silent, Self::Polling, Self::PostWorkWait];

    /// Returns the name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::PostWorkWait => "post-work-wait",
            Self::Silent => "silent",
        }
    }
}

impl Carrier {
    /// Returns the name in results.
    pub fn name(self) -> String {
        match self {
            Self::Verbs(device) => device.name().to_string(),
            Self::Tcp => TCP.to_string(),
            Self::Mpi(mpi, over) => format!("{}-{}", mpi.name(), over.name()),
        }
    }

    /// Returns the name of the device, or of TCP.
    pub const fn device(self) -> &'static str {
        match self {
            Self::Verbs(device) => device.name(),
            Self::Tcp => TCP,
            Self::Mpi(_, over) => over.name(),
        }
    }

    /// Returns whether results contain the ratio of `self` to `other`. The results contain the
    /// ratio if `other` is the same program over TCP.
    fn is_compared_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Verbs(_), Self::Tcp) => true,
            (Self::Mpi(mpi, Over::Edge), Self::Mpi(same, Over::Tcp)) => mpi == same,
            _ => false,
        }
    }
}

impl Availability {
    pub(super) fn new(curves: Vec<Curve>) -> Self {
        let all = || curves.iter().flat_map(|curve| &curve.points);
        let known: Vec<f64> = all().filter_map(|point| point.accounted).collect();
        let within = known.iter().filter(|sum| (**sum - 1.0).abs() <= ACCOUNTED_WITHIN).count();
        let accounting = (!known.is_empty()).then(|| Accounting {
            points: known.len() as u32,
            within: within as u32,
            share: within as f64 / known.len() as f64,
        });
        Self { curves, accounting }
    }
}

impl Curve {
    /// Returns the curves of all carriers at all sizes.
    pub(super) fn all_of(
        method: Method,
        sizes: &[u64],
        carriers: &[Carrier],
        taken: &[Taken],
    ) -> Vec<Self> {
        let of_size = |&size: &u64| {
            let here: Vec<(Carrier, Taken)> = carriers
                .iter()
                .zip(taken)
                .map(|(carrier, taken)| (*carrier, taken.clone().map(|all| at_size(all, size))))
                .collect();
            let curves: Vec<_> = here
                .iter()
                .map(|(carrier, taken)| Self::of(method, size, *carrier, taken, &here))
                .collect();
            curves
        };
        sizes.iter().flat_map(of_size).collect()
    }

    fn of(
        method: Method,
        size: u64,
        carrier: Carrier,
        taken: &Taken,
        all: &[(Carrier, Taken)],
    ) -> Self {
        let repetitions = taken.as_deref().unwrap_or_default();
        let over = |value: fn(&[CombPoint]) -> Option<f64>, wanted: Method| {
            let values = repetitions.iter().filter_map(|points| value(points));
            Summary::trimmed(values.filter(|_| method == wanted))
        };
        let ratio = |(other, others): &(Carrier, Taken)| {
            let values = repetitions.iter().zip(others.as_deref().unwrap_or_default());
            let values = values
                .filter_map(|(own, other)| Some(half_bandwidth(own)? / half_bandwidth(other)?));
            Some(CurveRatio { to: other.name(), value: Summary::trimmed(values)? })
        };
        let others = all
            .iter()
            .filter(|(other, _)| method == Method::Polling && carrier.is_compared_with(*other));
        Self {
            name: format!("{}-{size}-{}", method.name(), carrier.name()),
            method,
            size,
            carrier: carrier.name(),
            points: points(repetitions),
            half_bandwidth: over(half_bandwidth, Method::Polling),
            ratios: others.filter_map(ratio).collect(),
            wait_share: over(wait_share, Method::PostWorkWait),
            wait_ratio: over(wait_ratio, Method::PostWorkWait),
            silent_availability: over(mean_availability, Method::Silent),
            cannot_run: taken.as_ref().err().cloned(),
        }
    }
}

/// Returns the points of one size, for each repetition.
fn at_size(all: Vec<Vec<CombPoint>>, size: u64) -> Vec<Vec<CombPoint>> {
    let of_size =
        |points: Vec<CombPoint>| points.into_iter().filter(|point| point.size == size).collect();
    all.into_iter().map(of_size).collect()
}

/// Summarises the points over all repetitions.
fn points(repetitions: &[Vec<CombPoint>]) -> Vec<CurvePoint> {
    let Some(first) = repetitions.first() else { return Vec::new() };
    let point = |(index, first): (usize, &CombPoint)| {
        let runs = || repetitions.iter().filter_map(move |points| points.get(index).map(run));
        let over = |value: &dyn Fn(&CombRun) -> Option<f64>| {
            Summary::trimmed(runs().filter_map(|run| value(&run)))
        };
        let median = |value: &dyn Fn(&CombRun) -> Option<f64>| over(value).map(|all| all.median);
        let time = |value: fn(&CombRun) -> f64| median(&|run| Some(value(run))).unwrap_or(0.0);
        let variation = runs().map(|run| run.alone_variation).fold(0.0, f64::max);
        Some(CurvePoint {
            iterations: first.iterations,
            interval_us: first.interval_us,
            availability: over(&|run| Some(run.availability))?,
            bytes_per_second: over(&|run| Some(run.bytes as f64 / run.seconds))?,
            round_us: [time(|run| run.post_us), time(|run| run.work_us), time(|run| run.wait_us)],
            softirq_share: median(&|run| Some(run.cpu_softirq_s? / run.seconds)),
            interrupts_elsewhere_share: median(&|run| {
                Some(run.interrupts_elsewhere_s? / run.seconds)
            }),
            accounted: median(&|run| run.accounted),
            dry_run_percent: variation * 100.0,
            is_busy: variation > BUSY_SHARE,
            retaken: runs().map(|run| run.attempts.saturating_sub(1)).sum(),
        })
    };
    first.iter().enumerate().filter_map(point).collect()
}

fn run(point: &CombPoint) -> CombRun {
    point.runs.first().copied().unwrap_or_default()
}

/// Returns the highest bandwidth at an availability of one half or more. Interpolates linearly
/// between the points.
fn half_bandwidth(points: &[CombPoint]) -> Option<f64> {
    let at = |point: &CombPoint| {
        let run = run(point);
        (run.availability, run.bytes as f64 / run.seconds)
    };
    let kept = points.iter().map(at).filter(|(availability, _)| *availability >= HALF);
    let crossed = points.windows(2).filter_map(|pair| {
        let ((one, low), (other, high)) = (at(&pair[0]), at(&pair[1]));
        let crosses = (one < HALF) != (other < HALF);
        crosses.then(|| low + (high - low) * (HALF - one) / (other - one))
    });
    let highest = kept.map(|(_, bandwidth)| bandwidth).chain(crossed).reduce(f64::max);
    highest.filter(|bandwidth| *bandwidth > 0.0)
}

/// Returns the time of a transfer: posting and waiting in a round at the shortest interval, in
/// microseconds. Such a round contains hardly any work.
fn transfer_us(points: &[CombPoint]) -> Option<f64> {
    let shortest = run(points.first()?);
    Some(shortest.post_us + shortest.wait_us).filter(|transfer| *transfer > 0.0)
}

/// Returns the median waiting time over all intervals that are longer than the transfer, divided by
/// the transfer's time.
fn wait_share(points: &[CombPoint]) -> Option<f64> {
    let transfer = transfer_us(points)?;
    let longer = points.iter().filter(|point| point.interval_us > transfer);
    let waits = Summary::trimmed(longer.map(|point| run(point).wait_us))?;
    Some(waits.median / transfer)
}

fn wait_ratio(points: &[CombPoint]) -> Option<f64> {
    let (shortest, longest) = (run(points.first()?).wait_us, run(points.last()?).wait_us);
    (shortest > 0.0 && points.len() > 1).then(|| longest / shortest)
}

fn mean_availability(points: &[CombPoint]) -> Option<f64> {
    let sum: f64 = points.iter().map(|point| run(point).availability).sum();
    (!points.is_empty()).then(|| sum / points.len() as f64)
}

/// The availability at which bandwidths are compared. The paper asks how much bandwidth is left
/// when a program keeps part of its CPU. One half is the middle of the axis.
const HALF: f64 = 0.5;

/// Largest deviation from 1 at which a sum of CPU times counts as correct. The kernel counts CPU
/// time in ticks of 10 ms, so the tolerance is five ticks in a second.
const ACCOUNTED_WITHIN: f64 = 0.05;

/// The machine counts as busy if the times of the work alone before and after a sample differ by
/// more than this fraction of the shorter time. Other measurements use the same limit.
const BUSY_SHARE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    fn point(interval_us: f64, availability: f64, bytes: u64, wait_us: f64) -> CombPoint {
        let run = CombRun {
            availability,
            seconds: 1.0,
            bytes,
            wait_us,
            accounted: Some(0.98),
            cpu_softirq_s: Some(0.25),
            attempts: 2,
            ..CombRun::default()
        };
        CombPoint { size: 8, iterations: interval_us as u64, interval_us, runs: vec![run] }
    }

    fn curve(method: Method, own: Vec<CombPoint>, other: Vec<CombPoint>) -> Curve {
        let taken = [Ok(vec![own]), Ok(vec![other])];
        Curve::all_of(method, &[8], &[Carrier::Verbs(Provided::Edge), Carrier::Tcp], &taken)
            .remove(0)
    }

    #[test]
    fn the_bandwidth_at_half_of_the_cpu_is_interpolated() {
        let own =
            vec![point(1.0, 0.2, 1000, 0.0), point(2.0, 0.6, 600, 0.0), point(3.0, 0.9, 100, 0.0)];
        let other = vec![point(1.0, 0.2, 500, 0.0), point(2.0, 0.7, 300, 0.0)];
        let found = curve(Method::Polling, own, other);
        assert_eq!(found.name, "polling-8-edge0");
        assert!((found.half_bandwidth.unwrap().median - 700.0).abs() < 1e-9, "{found:?}");
        assert_eq!(found.ratios[0].to, "tcp");
        assert!((found.ratios[0].value.median - 700.0 / 380.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.wait_share, found.silent_availability), (None, None));
        assert!(found.points[0].retaken == 1 && found.points[0].softirq_share == Some(0.25));
    }

    #[test]
    fn a_program_that_never_keeps_half_of_its_cpu_has_no_bandwidth_at_half() {
        assert_eq!(half_bandwidth(&[point(1.0, 0.1, 10, 0.0), point(2.0, 0.4, 10, 0.0)]), None);
        // If a program always keeps more than half of its CPU, the result is its highest bandwidth.
        assert_eq!(
            half_bandwidth(&[point(1.0, 0.8, 10, 0.0), point(2.0, 0.9, 20, 0.0)]),
            Some(20.0)
        );
    }

    #[test]
    fn waits_after_work_longer_than_the_transfer_count() {
        let own =
            vec![point(1.0, 0.2, 8, 100.0), point(50.0, 0.3, 8, 60.0), point(200.0, 0.9, 8, 5.0)];
        let found = curve(Method::PostWorkWait, own.clone(), own);
        assert!((found.wait_share.unwrap().median - 0.05).abs() < 1e-9, "{found:?}");
        assert!((found.wait_ratio.unwrap().median - 0.05).abs() < 1e-9, "{found:?}");
        assert!(found.half_bandwidth.is_none() && found.ratios.is_empty());
    }

    #[test]
    fn points_with_consistent_cpu_time_are_counted() {
        let mut own = vec![point(1.0, 0.2, 8, 0.0), point(2.0, 0.2, 8, 0.0)];
        own[1].runs[0].accounted = Some(0.9);
        let found = Availability::new(vec![curve(Method::Silent, own, Vec::new())]);
        let accounting = found.accounting.unwrap();
        assert_eq!((accounting.points, accounting.within), (2, 1));
        assert!((found.curves[0].silent_availability.unwrap().median - 0.2).abs() < 1e-9);
        assert_eq!(Availability::new(Vec::new()).accounting, None);
    }

    #[test]
    fn a_carrier_that_cannot_run_has_a_reason_and_no_points() {
        let taken = [Err("no mpicc".to_string()), Ok(Vec::new())];
        let found = Curve::all_of(
            Method::Polling,
            &[8],
            &[Carrier::Verbs(Provided::Edge), Carrier::Tcp],
            &taken,
        );
        assert_eq!(found[0].cannot_run.as_deref(), Some("no mpicc"));
        assert!(found[0].points.is_empty() && found[0].half_bandwidth.is_none());
    }
}
