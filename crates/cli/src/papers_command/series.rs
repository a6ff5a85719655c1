//! Converts results of the benchmarks and of the simulator into curves of documents.

use bench::reality::FittedPoint;
use bench::transport::Test;
use bench::unmodified::figures::{Case, Quantity};
use bench::unmodified::way::Way;
use bench::{ganglia, multiedge, sockets};
use interconnect::paper::Reproduction;
use interconnect::paper::reference::panel;
use papers::document::{Point, Seen, Series};

use super::verbs_series;

/// Curves by panel and name, in the order of their first points.
#[derive(Debug, Default)]
pub(super) struct Curves(Vec<Series>);

/// A value with its lowest and highest sample.
pub(super) type Ranged = [f64; 3];

impl Curves {
    /// Adds a point to a curve.
    pub(super) fn add(
        &mut self,
        panel: &str,
        name: &str,
        [x, unit]: [&str; 2],
        at: f64,
        value: Ranged,
    ) {
        let [value, min, max] = value;
        self.put(
            panel,
            name,
            [x, unit],
            Point { at, value, min, max, samples: vec![], reason: None },
        );
    }

    fn put(&mut self, panel: &str, name: &str, [x, unit]: [&str; 2], point: Point) {
        let is_it = |one: &&mut Series| one.panel == panel && one.name == name;
        if let Some(known) = self.0.iter_mut().find(is_it) {
            known.points.push(point);
            return;
        }
        self.0.push(Series {
            panel: panel.to_owned(),
            name: name.to_owned(),
            x: x.to_owned(),
            unit: unit.to_owned(),
            points: vec![point],
        });
    }

    /// Returns all curves, with the points of each in order.
    pub(super) fn finish(mut self) -> Vec<Series> {
        for series in &mut self.0 {
            series.points.sort_by(|a, b| a.at.total_cmp(&b.at));
        }
        self.0
    }
}

/// Returns the curves of `ethernot bench sockets`. Panels have the names `TEST MTU`. For CPU time
/// the names are `cpu TEST MTU` (all processes), `cpu client TEST MTU` and `cpu server TEST MTU`.
pub(super) fn of_sockets(report: &sockets::Report) -> Curves {
    let mut curves = Curves::default();
    for row in &report.rows {
        let panel = format!("{} {}", row.test.name(), row.mtu);
        let by_size = row.test.has_sizes();
        let at = if by_size { row.message_bytes as f64 } else { f64::from(row.clients) };
        let x = if by_size { "message size (bytes)" } else { "streams or clients" };
        let (unit, scale) = if row.test.is_about_time() { ("µs", 1.0) } else { ("Gb/s", 8e-9) };
        let ranged = |figure: sockets::Figure, scale: f64| {
            [figure.mean, figure.min, figure.max].map(|v| v * scale)
        };
        if let Some(figure) = row.value() {
            curves.add(&panel, row.contender.name(), [x, unit], at, ranged(figure, scale));
        }
        let of_hosts = [
            ("cpu", row.cpu_percent),
            ("cpu client", row.client_cpu_percent),
            ("cpu server", row.server_cpu_percent),
        ];
        for (whose, figure) in of_hosts {
            let Some(figure) = figure else { continue };
            let panel = format!("{whose} {panel}");
            curves.add(&panel, row.contender.name(), [x, "%"], at, ranged(figure, 1.0));
        }
    }
    curves
}

/// Returns the curves of `ethernot bench multiedge`. Panels are `SET-UP TEST QUANTITY`.
pub(super) fn of_multiedge(report: &multiedge::Report) -> Curves {
    let mut curves = Curves::default();
    for found in &report.setups {
        for row in &found.rows {
            let at = row.message_bytes as f64;
            let mut add = |quantity: &str, unit: &str, value: Option<Ranged>| {
                let Some(value) = value else { return };
                let panel = format!("{} {} {quantity}", found.setup.name, row.test.name());
                curves.add(&panel, &row.contender, ["message size (bytes)", unit], at, value);
            };
            let rate = row.megabytes_per_second;
            add("rate", "MB/s", Some([rate.median, rate.min, rate.max]));
            add("latency", "µs", row.latency_us.map(|one| [one.median, one.min, one.max]));
            let alike = |value: Option<f64>| value.map(|value| [value; 3]);
            add("protocol CPU", "%", alike(row.protocol_cpu_percent));
            add("out of order", "%", alike(row.out_of_order_percent));
            add("extra", "%", alike(row.extra_frame_percent));
        }
    }
    curves
}

/// Returns the curves of `ethernot sim calibrate`: the one-way latency of the edge without MPI, and
/// the overhead of a host, which is half of the latency that the simulation computes from the
/// costs.
pub(super) fn of_calibration(points: &[FittedPoint]) -> Curves {
    let mut curves = Curves::default();
    for point in points {
        if point.test != Test::PingPong || point.message_bytes > verbs_series::FITTED_BYTES {
            continue;
        }
        let (at, axes) = (point.message_bytes as f64, [verbs_series::SIZE, "µs"]);
        let (measured, fitted) = (point.measured_ns / 1e3, point.fitted_ns / 1e3);
        curves.add(verbs_series::FITTED_PANEL, "sim calibrate", axes, at, [fitted; 3]);
        curves.add(verbs_series::FITTED_PANEL, "edge without MPI", axes, at, [measured; 3]);
        curves.add(verbs_series::OVERHEAD_PANEL, "sim calibrate", axes, at, [fitted / 2.0; 3]);
    }
    curves
}

/// Returns the curves of unmodified programs over kernel TCP and the edge. The name of a panel is
/// `GROUP QUANTITY`. Also returns the reasons why cases could not run.
pub(super) fn of_cases<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    x: &str,
) -> (Curves, Vec<String>) {
    let (mut curves, mut refusals) = (Curves::default(), Vec::new());
    for case in cases {
        let refusal = case.cannot_run.as_ref().map(|why| format!("{}: {why}", case.name));
        refusals.extend(refusal);
        for figure in &case.figures {
            let group = short_group(&case.group);
            let panel = format!("{group} {}", figure.quantity.name());
            let other = if case.other == Way::Edge { "edge" } else { case.other.name() };
            let unit = figure.quantity.unit();
            for (name, one) in [(Way::Tcp.name(), figure.tcp), (other, figure.other)] {
                let value = [one.median, one.min, one.max];
                curves.add(&panel, name, [x, unit], case.at, value);
                if figure.quantity == Quantity::AnswerUs {
                    let panel = format!("{group} connect");
                    curves.add(&panel, &format!("answer {name}"), [x, unit], case.at, value);
                }
            }
        }
    }
    (curves, refusals)
}

fn short_group(group: &str) -> &str {
    match group {
        ganglia::SEQUENTIAL => "sequential",
        bench::apache::FILE_GROUP => "file",
        bench::apache::ZIPF_GROUP => "zipf",
        other => other,
    }
}

/// Returns the curves and statements of Sandia's study: tables, completion times and costs.
pub(super) fn of_sandia(found: &Reproduction) -> (Curves, Vec<Seen>) {
    let mut curves = Curves::default();
    let exact = |value: f64| [value; 3];
    let column = ["column", "µs"];
    for token in &found.tokens {
        for (at, value) in token.model.into_iter().enumerate() {
            curves.add("table 1", token.interconnect.name(), column, at as f64, exact(value));
        }
    }
    for cell in &found.cells {
        let reason = cell.reason().map(str::to_owned);
        let (at, value) = (cell.column as f64, cell.model);
        let point = Point { at, value, min: value, max: value, samples: vec![], reason };
        curves.put(&panel(cell.bytes), cell.interconnect.name(), column, point);
    }
    for curve in &found.curves {
        let name = curve.interconnect.name();
        for &(share, time_us) in &curve.points {
            let panel = format!("completion, host overhead {share}");
            let x = ["message size (bytes)", "µs"];
            curves.add(&panel, name, x, f64::from(curve.bytes), exact(time_us));
            let panel = format!("overhead, {} B", curve.bytes);
            let x = ["host overhead (% of today's)", "µs"];
            curves.add(&panel, name, x, share * 100.0, exact(time_us));
        }
    }
    for cost in &found.costs {
        let (name, total) = (cost.interconnect.name(), cost.bill.total());
        curves.add("cost", name, ["", "$"], 0.0, exact(total));
        curves.add("cost, thousands", name, ["", "thousand $"], 0.0, exact(total / 1000.0));
    }
    let seen = found.statements.iter().flat_map(|statement| {
        statement.ids.iter().map(|id| Seen {
            id: id.clone(),
            holds: statement.holds,
            saw: statement.model.clone(),
            reason: statement.note.map(str::to_owned),
        })
    });
    (curves, seen.collect())
}

#[cfg(test)]
mod tests {
    use interconnect::paper::configurations::Configurations;
    use papers::document::Document;
    use papers::judge::{Verdict, judge};

    use super::*;

    #[test]
    fn a_calibration_gives_the_latency_and_the_overhead_of_short_messages() {
        let point = |test, message_bytes| FittedPoint {
            test,
            message_bytes,
            measured_ns: 9000.0,
            fitted_ns: 8000.0,
        };
        let points =
            [point(Test::PingPong, 8), point(Test::PingPong, 1 << 20), point(Test::OneWay, 8)];
        let found = of_calibration(&points).finish();
        let points: Vec<_> = found
            .iter()
            .map(|one| (&*one.panel, &*one.name, one.points.len(), one.points[0].value))
            .collect();
        assert_eq!(
            points,
            [
                ("fitted mpi-latency", "sim calibrate", 1, 8.0),
                ("fitted mpi-latency", "edge without MPI", 1, 9.0),
                ("host overhead", "sim calibrate", 1, 4.0),
            ]
        );
    }

    #[test]
    fn the_sandia_study_equals_the_simulator_result_to_the_last_digit() {
        let found = Reproduction::new(&Configurations::default()).expect("it runs");
        let (curves, seen) = of_sandia(&found);
        let mut document = Document::new("sandia1999", "table2");
        (document.series, document.seen) = (curves.finish(), seen);
        for cell in &found.cells {
            let series = document.series(&panel(cell.bytes), cell.interconnect.name()).unwrap();
            assert_eq!(series.points[cell.column].value.to_bits(), cell.model.to_bits());
        }
        let item = papers::printed::paper("sandia1999").unwrap().item("table2").unwrap();
        let judged = judge(item, Some(&document));
        let within = judged.iter().filter(|one| one.verdict == Verdict::Holds).count();
        assert_eq!((judged.len(), within), (84, found.cells_within(10.0)));
        // The simulator gives a reason for every value that differs too much from the printed one.
        let reasons = judged.iter().filter(|one| one.reason.is_some()).count();
        assert_eq!(reasons, found.cells.iter().filter(|cell| cell.reason().is_some()).count());
    }

    #[test]
    fn every_statement_of_figures_5_and_6_is_checked() {
        let found = Reproduction::new(&Configurations::default()).expect("it runs");
        let (_, seen) = of_sandia(&found);
        let paper = papers::printed::paper("sandia1999").unwrap();
        for id in ["5", "6"] {
            for value in &paper.item(id).unwrap().values {
                assert!(seen.iter().any(|one| one.id == value.id), "{}", value.id);
            }
        }
    }
}
