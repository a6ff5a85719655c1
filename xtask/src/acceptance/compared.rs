//! Compares two contenders of one run of `ethernot bench`, at every point of a row.

use std::cmp::Ordering;

use serde_json::Value;

use super::found::{Failure, Found};
use super::runner::{number, ratio};
use super::{Bound, rounded};

/// Place of the points in a result.
#[derive(Clone, Copy)]
pub(super) enum PointLocation {
    /// In a result of `ethernot bench`.
    Bench,
    /// In a set-up of `ethernot bench multiedge`.
    SetUp(&'static str),
    /// In a result of `ethernot bench sockets`.
    Sockets,
}

/// A contender, and how its threads wait. `ethernot bench sockets` uses only the name of the
/// contender.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) contender: &'static str,
    pub(super) waiting: &'static str,
}

/// A test with a message size.
pub(super) type Point = (&'static str, u64);

/// The quantity that is compared.
#[derive(Clone, Copy)]
pub(super) enum Quantity {
    /// Operations per second, divided by the other contender's.
    Rate,
    /// The median latency, divided by the other contender's.
    Latency,
    /// The 99th percentile of the latency, divided by the other contender's.
    Tail,
    /// Processor time of both ends per byte, divided by the other contender's.
    Processor,
    /// The median latency minus the other contender's, in microseconds.
    ExtraLatency,
    /// Processor time of both ends in percent of one processor; not compared with another
    /// contender.
    Share,
}

/// The comparison of a row.
#[derive(Clone, Copy)]
pub(super) struct Comparison {
    pub(super) place: PointLocation,
    pub(super) points: &'static [Point],
    pub(super) own: Side,
    pub(super) other: Side,
    pub(super) quantity: Quantity,
}

/// Returns the figure of the point that is worst for `bound`. The note lists all points.
pub(super) fn worst(result: &Value, of: &Comparison, bound: Bound) -> Result<Found, Failure> {
    let mut figures = Vec::new();
    let mut notes = Vec::new();
    for &point in of.points {
        let figure = figure(result, of, point)?;
        figures.push(figure);
        let (test, bytes) = point;
        notes.push(format!("{test} {bytes} B {}", rounded(figure)));
    }
    let ordered = |a: &f64, b: &f64| match bound {
        Bound::AtLeast(..) => a.total_cmp(b),
        Bound::AtMost(..) => b.total_cmp(a),
    };
    let worst = figures.into_iter().min_by(|a, b| -> Ordering { ordered(a, b) });
    let figure = worst.ok_or_else(|| Failure::CannotRun("the row has no point".into()))?;
    Ok(Found { figure, note: format!(" ({})", notes.join(", ")), bare: None })
}

fn figure(result: &Value, of: &Comparison, point: Point) -> Result<f64, Failure> {
    if matches!(of.place, PointLocation::Sockets) {
        return of_sockets(result, of, point);
    }
    let own = samples(result, of.place, of.own, point)?;
    let values = match of.quantity {
        Quantity::Share => own.iter().map(share_percent).collect(),
        quantity => {
            let other = samples(result, of.place, of.other, point)?;
            let pairs = own.iter().zip(other);
            pairs.map(|(own, other)| compared(quantity, own, other)).collect::<Result<Vec<_>, _>>()
        }
    }?;
    median(values).ok_or_else(|| Failure::CannotRun("the result has no samples".into()))
}

/// Compares a sample with the sample of the other contender in the same round.
fn compared(quantity: Quantity, own: &Value, other: &Value) -> Result<f64, Failure> {
    let of = |value: fn(&Value) -> Result<f64, Failure>| Ok((value(own)?, value(other)?));
    match quantity {
        Quantity::Rate => of(rate).and_then(|(own, other)| ratio(own, other)),
        Quantity::Latency => of(latency_ns).and_then(|(own, other)| ratio(own, other)),
        Quantity::Tail => of(tail_ns).and_then(|(own, other)| ratio(own, other)),
        Quantity::Processor => of(processor_per_byte).and_then(|(own, other)| ratio(own, other)),
        Quantity::ExtraLatency => of(latency_ns).map(|(own, other)| (own - other) / 1e3),
        Quantity::Share => share_percent(own),
    }
}

fn rate(sample: &Value) -> Result<f64, Failure> {
    ratio(number(sample, "/operations")?, number(sample, "/seconds")?)
}

fn latency_ns(sample: &Value) -> Result<f64, Failure> {
    number(sample, "/latency_ns/p50")
}

fn tail_ns(sample: &Value) -> Result<f64, Failure> {
    number(sample, "/latency_ns/p99")
}

fn processor_seconds(sample: &Value) -> Result<f64, Failure> {
    let fields = ["/cpu_seconds_client", "/cpu_seconds_server", "/cpu_seconds_softirq"];
    fields.iter().map(|pointer| number(sample, pointer)).sum()
}

fn processor_per_byte(sample: &Value) -> Result<f64, Failure> {
    ratio(processor_seconds(sample)?, number(sample, "/bytes")?)
}

fn share_percent(sample: &Value) -> Result<f64, Failure> {
    Ok(100.0 * ratio(processor_seconds(sample)?, number(sample, "/seconds")?)?)
}

/// Returns the samples of a contender, in the order in which they were taken.
fn samples(
    result: &Value,
    place: PointLocation,
    side: Side,
    (test, bytes): Point,
) -> Result<&Vec<Value>, Failure> {
    let results = match place {
        PointLocation::SetUp(name) => {
            let set_ups = result["setups"].as_array().into_iter().flatten();
            let set_up = set_ups.clone().find(|set_up| set_up["setup"]["name"] == name);
            if let Some(reason) = set_up.and_then(|it| it["cannot_run"][side.contender].as_str()) {
                return Err(Failure::CannotRun(reason.to_owned()));
            }
            set_up.map(|set_up| &set_up["results"]["results"])
        }
        PointLocation::Bench | PointLocation::Sockets => result.get("results"),
    };
    let entries = results.and_then(Value::as_array).into_iter().flatten();
    let is_it = |entry: &&Value| {
        entry["test"] == test
            && entry["message_bytes"] == bytes
            && entry["transport"] == side.contender
            && entry["waiting"] == side.waiting
    };
    let found = entries.clone().find(is_it).and_then(|entry| entry["samples"].as_array());
    found.ok_or_else(|| {
        let Side { contender, waiting } = side;
        let what = format!("the result has no {test} of {bytes} B of {contender} {waiting}");
        Failure::CannotRun(what)
    })
}

/// Compares results of `ethernot bench sockets`, whose samples are already summarized.
fn of_sockets(result: &Value, of: &Comparison, (test, bytes): Point) -> Result<f64, Failure> {
    if let Some(reason) = result["no_library"].as_str() {
        return Err(Failure::CannotRun(reason.to_owned()));
    }
    let row = |side: Side| {
        let rows = result["rows"].as_array().into_iter().flatten();
        let is_it = |row: &&Value| {
            row["test"] == test
                && row["message_bytes"] == bytes
                && row["contender"] == side.contender
        };
        let what = format!("the result has no {test} of {bytes} B of {}", side.contender);
        rows.clone().find(is_it).ok_or(Failure::CannotRun(what))
    };
    let (own, other) = (row(of.own)?, row(of.other)?);
    let pointer = match of.quantity {
        Quantity::Rate => "/bytes_per_second/mean",
        Quantity::Latency => "/latency_us/mean",
        Quantity::Tail => "/latency_p99_us/mean",
        Quantity::Processor | Quantity::ExtraLatency | Quantity::Share => {
            return Err(Failure::CannotRun("`bench sockets` does not tell it".into()));
        }
    };
    ratio(number(own, pointer)?, number(other, pointer)?)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EDGE: Side = Side { contender: "edge", waiting: "interrupt" };
    const TCP: Side = Side { contender: "tcp", waiting: "interrupt" };
    const POINTS: &[Point] = &[("one-way", 8), ("one-way", 64)];

    fn comparison(place: PointLocation, quantity: Quantity) -> Comparison {
        Comparison { place, points: POINTS, own: EDGE, other: TCP, quantity }
    }

    fn entry(bytes: u64, contender: &str, seconds: f64) -> Value {
        let sample = json!({
            "operations": 100, "bytes": 100, "seconds": seconds,
            "latency_ns": {"p50": seconds * 1000.0, "p99": seconds * 3000.0},
            "cpu_seconds_client": 0.5, "cpu_seconds_server": 0.25, "cpu_seconds_softirq": 0.25,
        });
        json!({"test": "one-way", "message_bytes": bytes, "transport": contender,
               "waiting": "interrupt", "samples": [sample.clone(), sample]})
    }

    fn results() -> Value {
        json!({"results": [
            entry(8, "edge", 2.0), entry(8, "tcp", 1.0),
            entry(64, "edge", 1.0), entry(64, "tcp", 1.0),
        ]})
    }

    #[test]
    fn the_worst_point_counts_and_all_are_shown() {
        let rate = comparison(PointLocation::Bench, Quantity::Rate);
        let found = worst(&results(), &rate, Bound::AtLeast(0.9, "x")).expect("all is there");
        assert!((found.figure - 0.5).abs() < 1e-9, "{found:?}");
        assert_eq!(found.note, " (one-way 8 B 0.500, one-way 64 B 1)");
        let latency = comparison(PointLocation::Bench, Quantity::Latency);
        let found = worst(&results(), &latency, Bound::AtMost(1.3, "x")).expect("all is there");
        assert!((found.figure - 2.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn differences_are_in_microseconds_and_shares_in_per_cent_of_one_processor() {
        let extra = comparison(PointLocation::Bench, Quantity::ExtraLatency);
        let found = worst(&results(), &extra, Bound::AtMost(100.0, "us")).expect("all is there");
        assert!((found.figure - 1.0).abs() < 1e-9, "{found:?}");
        let share = comparison(PointLocation::Bench, Quantity::Share);
        let found = worst(&results(), &share, Bound::AtMost(43.0, "%")).expect("all is there");
        assert!((found.figure - 100.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_contender_that_cannot_run_reports_the_reason() {
        let set_up = json!({"setup": {"name": "s"}, "results": results(),
                            "cannot_run": {"tcp": "no such kernel"}});
        let result = json!({"setups": [set_up]});
        let rate = comparison(PointLocation::SetUp("s"), Quantity::Rate);
        let found = worst(&result, &rate, Bound::AtLeast(1.0, "x"));
        assert_eq!(found, Err(Failure::CannotRun("no such kernel".into())));
        let missing = comparison(PointLocation::SetUp("t"), Quantity::Rate);
        let found = worst(&result, &missing, Bound::AtLeast(1.0, "x"));
        assert!(matches!(found, Err(Failure::CannotRun(_))));
    }

    #[test]
    fn rows_of_sockets_are_compared_by_their_means() {
        let row = |contender: &str, mean: f64| {
            json!({"test": "one-way", "message_bytes": 8, "contender": contender,
                   "bytes_per_second": {"mean": mean}})
        };
        let result = json!({"rows": [row("edge", 3.0), row("tcp", 2.0)]});
        let points: &[Point] = &[("one-way", 8)];
        let rate = Comparison { points, ..comparison(PointLocation::Sockets, Quantity::Rate) };
        let found = worst(&result, &rate, Bound::AtLeast(1.0, "x")).expect("both are there");
        assert!((found.figure - 1.5).abs() < 1e-9, "{found:?}");
    }
}
