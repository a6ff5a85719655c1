//! Converts results of `ethernot bench verbs` into curves of documents.

use bench::statistics::Summary;
use bench::verbs::Report;
use bench::verbs::curves::{Curve, Method};
use bench::verbs::figures::Point;
use bench::verbs::registration::RegistrationPoint;

use papers::line::Line;

use super::series::Curves;

/// Returns the curves of `ethernot bench verbs`, and the reasons why contenders could not run.
/// Panels are `KIND` (latency) or `KIND W16` (a window of 16 messages), `mpi overhead W16`,
/// `comb SIZE …` and `registration MEMORY`.
pub(super) fn of_verbs(report: &Report) -> (Curves, Vec<String>) {
    let (mut curves, mut refusals) = (Curves::default(), Vec::new());
    for row in &report.devices {
        refusals.extend(row.cannot_run.as_ref().map(|why| format!("{}: {why}", row.name)));
    }
    for point in &report.points {
        of_point(point, &mut curves);
        overhead(point, &mut curves);
        for one in &point.contenders {
            let refusal = one.cannot_run.as_ref().map(|why| format!("{}: {why}", one.name));
            refusals.extend(refusal.filter(|refusal| !refusals.contains(refusal)));
        }
    }
    of_fits(&report.points, &mut curves);
    for curve in report.availability.iter().flat_map(|found| &found.curves) {
        if curve.method == Method::Polling {
            of_comb(curve, &mut curves);
        }
        refusals.extend(curve.cannot_run.as_ref().map(|why| format!("{}: {why}", curve.name)));
    }
    for point in report.registration.iter().flat_map(|found| &found.points) {
        of_registration(point, &mut curves);
    }
    (curves, refusals)
}

fn of_point(point: &Point, curves: &mut Curves) {
    let (panel, unit, scale) = if point.unit == "s" {
        (point.kind.clone(), "µs", 1e6)
    } else {
        (windowed(&point.kind, point.window), "Gb/s", 8e-9)
    };
    for one in &point.contenders {
        if let Some(value) = one.value {
            curves.add(&panel, &one.name, [SIZE, unit], point.size as f64, ranged(value, scale));
        }
    }
}

/// Adds the straight line through the latencies of each MPI, and the overhead of a host by this line. The pair of virtual interfaces between the hosts has no rate limit, so
/// the transmission time of the network, which Sandia's study subtracts, is 0 here.
fn of_fits(points: &[Point], curves: &mut Curves) {
    let counts = |point: &&Point| point.kind == "mpi-latency" && point.size <= FITTED_BYTES;
    let points: Vec<_> = points.iter().filter(counts).collect();
    for one in points.first().iter().flat_map(|point| &point.contenders) {
        if !is_mpi(&one.name) {
            continue;
        }
        let latency = |point: &&Point| {
            let same = point.contenders.iter().find(|other| other.name == one.name)?;
            Some((point.size as f64, same.value?.median * 1e6))
        };
        let latencies: Vec<_> = points.iter().filter_map(latency).collect();
        let Some(line) = Line::through(&latencies) else { continue };
        for (at, _) in latencies {
            let fitted = line.value(at);
            curves.add(FITTED_PANEL, &one.name, [SIZE, "µs"], at, [fitted; 3]);
            curves.add(OVERHEAD_PANEL, &one.name, [SIZE, "µs"], at, [fitted / 2.0; 3]);
        }
    }
}

/// Adds the overhead of each MPI: the percentage by which its bandwidth is below that of the
/// transport that it uses.
fn overhead(point: &Point, curves: &mut Curves) {
    if point.kind != "mpi-bandwidth" {
        return;
    }
    let median = |name: &str| {
        point.contenders.iter().find(|one| one.name == name)?.value.map(|value| value.median)
    };
    for mpi in &point.contenders {
        let below = if mpi.name.ends_with("-tcp") { "tcp-polling" } else { "edge0-polling" };
        let (Some(below), Some(value), true) = (median(below), mpi.value, is_mpi(&mpi.name)) else {
            continue;
        };
        let lost = |value: f64| (1.0 - value / below) * 100.0;
        let panel = windowed("mpi overhead", point.window);
        let lost = [value.median, value.max, value.min].map(lost);
        curves.add(&panel, &mpi.name, [SIZE, "%"], point.size as f64, lost);
    }
}

/// Returns whether a contender of the MPI test is an MPI, and not a transport alone.
fn is_mpi(name: &str) -> bool {
    name.contains("mpi")
}

/// Adds the curve of bandwidth against the fraction of CPU time that messages take. Adds the
/// measured points, interpolated values at every tenth, and the lowest fraction with [`FULL`]
/// bandwidth.
fn of_comb(curve: &Curve, curves: &mut Curves) {
    let taken = |availability: f64| ((1.0 - availability) * 100.0).max(0.0);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for point in &curve.points {
        let at = taken(point.availability.median);
        let panel = format!("comb {} by CPU", curve.size);
        let value = ranged(point.bytes_per_second, 1e-6);
        curves.add(&panel, &curve.carrier, [TAKEN, "MB/s"], at, value);
        points.push((at, value[0]));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    for tenth in 1..=10 {
        let at = f64::from(tenth) * 10.0;
        if let Some(value) = between(&points, at) {
            let panel = format!("comb {} at", curve.size);
            curves.add(&panel, &curve.carrier, [TAKEN, "MB/s"], at, [value; 3]);
        }
    }
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    if let Some((at, _)) = points.iter().find(|point| point.1 >= highest * FULL) {
        curves.add(&format!("comb {} full", curve.size), &curve.carrier, ["", "%"], 0.0, [*at; 3]);
    }
}

/// Returns the linearly interpolated value at `at`. `points` are sorted by their first coordinate.
fn between(points: &[(f64, f64)], at: f64) -> Option<f64> {
    points.windows(2).find_map(|pair| {
        let [(from, low), (until, high)] = *pair else { return None };
        let is_inside = from <= at && at <= until && from < until;
        is_inside.then(|| low + (high - low) * (at - from) / (until - from))
    })
}

/// Adds the costs of one thread that registers one region at a time.
fn of_registration(point: &RegistrationPoint, curves: &mut Curves) {
    if (point.alive, point.threads) != (1, 1) {
        return;
    }
    for (panel, cost) in [("registration", &point.register), ("deregistration", &point.deregister)]
    {
        let panel = format!("{panel} {}", point.memory);
        let value = ranged(cost.median_us, 1.0);
        curves.add(&panel, &point.device, [REGION, "µs"], point.size as f64, value);
    }
}

fn windowed(kind: &str, window: u32) -> String {
    format!("{kind} W{window}")
}

fn ranged(summary: Summary, scale: f64) -> [f64; 3] {
    [summary.median, summary.min, summary.max].map(|value| value * scale)
}

/// Panel of the straight lines through the latencies of MPI.
pub(super) const FITTED_PANEL: &str = "fitted mpi-latency";

/// Panel of the overhead of each host by these lines.
pub(super) const OVERHEAD_PANEL: &str = "host overhead";

/// Size in bytes of the largest message that counts for the lines: that of Sandia's study.
pub(super) const FITTED_BYTES: u64 = 2048;

pub(super) const SIZE: &str = "message size (bytes)";
const TAKEN: &str = "CPU taken from the program (%)";
const REGION: &str = "region (bytes)";

/// Fraction of the highest bandwidth that counts as full bandwidth.
const FULL: f64 = 0.95;

#[cfg(test)]
mod tests {
    use bench::verbs::Operation;
    use bench::verbs::contender::Manner;
    use bench::verbs::curves::CurvePoint;
    use bench::verbs::figures::{Measured, Surroundings};

    use super::*;

    fn exact(value: f64) -> Summary {
        Summary { median: value, min: value, max: value }
    }

    #[test]
    fn bandwidth_is_interpolated_between_two_points() {
        let points = [(0.0, 0.0), (20.0, 100.0), (100.0, 100.0)];
        assert_eq!(between(&points, 10.0), Some(50.0));
        assert_eq!(between(&points, 60.0), Some(100.0));
        assert_eq!(between(&points[1..], 10.0), None);
    }

    #[test]
    fn latencies_of_mpi_give_a_line_and_the_overhead_of_a_host() {
        let point = |size: u64, microseconds: f64| Point {
            name: format!("mpi-latency-write-{size}-1"),
            kind: "mpi-latency".to_owned(),
            operation: Operation::Write,
            size,
            window: 1,
            unit: "s".to_owned(),
            contenders: vec![Measured {
                name: "mpich-tcp".to_owned(),
                device: "tcp".to_owned(),
                manner: Manner::Polling,
                paper_mean: None,
                value: Some(exact(microseconds * 1e-6)),
                ratios: vec![],
                cpu_shares: [0.0; 2],
                cpu_seconds_per_gigabyte: 0.0,
                interrupt_shares: [0.0; 2],
                samples: vec![],
                cannot_run: None,
            }],
            surroundings: Surroundings::default(),
        };
        // The last message is longer than those of the study.
        let points = [point(0, 10.0), point(1000, 12.0), point(2000, 14.0), point(65536, 900.0)];
        let mut curves = Curves::default();
        of_fits(&points, &mut curves);
        let found = curves.finish();
        let values = |panel: &str| -> Vec<f64> {
            let one = found.iter().find(|one| one.panel == panel).expect(panel);
            one.points.iter().map(|point| (point.value * 1e6).round() / 1e6).collect()
        };
        assert_eq!(values(FITTED_PANEL), [10.0, 12.0, 14.0]);
        assert_eq!(values(OVERHEAD_PANEL), [5.0, 6.0, 7.0]);
    }

    #[test]
    fn a_comb_curve_has_the_cpu_share_at_full_bandwidth() {
        let point = |availability, megabytes: f64| CurvePoint {
            iterations: 1,
            interval_us: 1.0,
            availability: exact(availability),
            bytes_per_second: exact(megabytes * 1e6),
            round_us: [0.0; 3],
            softirq_share: None,
            interrupts_elsewhere_share: None,
            accounted: None,
            dry_run_percent: 0.0,
            is_busy: false,
            retaken: 0,
        };
        let curve = Curve {
            name: "polling-4-edge0".to_owned(),
            method: Method::Polling,
            size: 4,
            carrier: "edge0".to_owned(),
            points: vec![point(0.2, 980.0), point(0.75, 1000.0), point(0.95, 200.0)],
            half_bandwidth: None,
            ratios: vec![],
            wait_share: None,
            wait_ratio: None,
            silent_availability: None,
            cannot_run: None,
        };
        let mut curves = Curves::default();
        of_comb(&curve, &mut curves);
        let found = curves.finish();
        let full = found.iter().find(|one| one.panel == "comb 4 full").unwrap();
        assert!((full.points[0].value - 25.0).abs() < 1e-9, "{full:?}");
        let tenths = found.iter().find(|one| one.panel == "comb 4 at").unwrap();
        assert!((tenths.points[0].value - 400.0).abs() < 1e-6, "{tenths:?}");
    }
}
