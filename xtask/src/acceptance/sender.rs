//! Measures figures of the sending policy.

use serde_json::Value;

use super::commands::{cause, run};
use super::found::{Failure, Found};
use super::runner::{Runner, number, point, ratio, unmeasured};
use super::{Pair, PointOf, rounded};
use crate::count::Count;
use crate::test_output::TestReader;
use crate::workspace::{cargo, package_name};

/// Returns the lowest ratio of all points. The note has the number of points and the worst point.
pub(super) fn policies(result: &Value) -> Result<Found, Failure> {
    let (good, all) = (number(result, "/good")?, number(result, "/points")?);
    let least = rounded(number(result, "/at_least")?);
    let worst = result["worst"].as_str().unwrap_or_default();
    let note = format!(" ({good} of {all} points >= {least}; worst: {worst})");
    Ok(Found { figure: number(result, "/worst_ratio")?, note, bare: None })
}

/// One run: for each point, the throughput of this project's policy divided by the throughput of
/// `MultiEdge`'s policy. Also the throughput of `MultiEdge`'s policy and of the bare stream of
/// frames.
struct Round {
    ratios: Vec<f64>,
    others: Vec<f64>,
}

/// Returns the lowest ratio of all points. In each run, divides the throughput of this project's
/// policy at a point by the throughput of `MultiEdge`'s policy. The ratio of the point is the
/// median over the runs.
///
/// If the machine is busy with other work, the other policies reach less than in other runs. Such a
/// run does not count, and the function repeats the run, up to a limit.
pub(super) fn rules(
    runner: &mut Runner<'_>,
    arguments: &[&str],
    points: &[PointOf],
) -> Result<Found, Failure> {
    let (wanted, most) = if runner.quick { (2, 3) } else { (3, 6) };
    let load = load();
    let mut rounds: Vec<Round> = Vec::new();
    while rounds.len() < most && usual(&rounds).len() < wanted {
        let result = runner.fresh_result(arguments).map_err(unmeasured)?;
        rounds.push(round(&result, points)?);
    }
    let kept = usual(&rounds);
    if kept.is_empty() {
        let count = rounds.len();
        let why = format!("in each of {count} runs others fell below what they can; load {load}");
        return Err(Failure::CannotRun(why));
    }
    let medians: Vec<f64> = (0..points.len())
        .map(|place| median(kept.iter().map(|round| round.ratios[place]).collect()))
        .collect();
    let least = kept.iter().flat_map(|round| &round.ratios).copied().fold(f64::INFINITY, f64::min);
    let each: Vec<String> = points
        .iter()
        .zip(&medians)
        .map(|(of, ratio)| format!("{} {} {} B {}", of.set_up, of.test, of.bytes, rounded(*ratio)))
        .collect();
    let note = format!(
        " ({}; minimum {}; load {load}; {} of {} runs count)",
        each.join(", "),
        rounded(least),
        kept.len(),
        rounds.len()
    );
    Ok(Found { figure: medians.into_iter().fold(f64::INFINITY, f64::min), note, bare: None })
}

fn round(result: &Value, points: &[PointOf]) -> Result<Round, Failure> {
    let mut round = Round { ratios: Vec::new(), others: Vec::new() };
    for of in points {
        let rate = |contender| {
            let point = point(result, *of, of.set_up, contender)?;
            number(point, "/megabytes_per_second/median")
        };
        let (own, rules) = (rate("edge")?, rate("multiedge")?);
        round.ratios.push(ratio(own, rules)?);
        round.others.push(rules);
        // Not every size and delay has a measurement of the bare stream.
        round.others.push(rate("bare").unwrap_or(0.0));
    }
    Ok(round)
}

/// Returns the runs in which the other policies reached nearly their best throughput of all runs.
fn usual(rounds: &[Round]) -> Vec<&Round> {
    let most = |place: usize| rounds.iter().map(|round| round.others[place]).fold(0.0, f64::max);
    let is_usual = |round: &&Round| {
        round.others.iter().enumerate().all(|(place, &rate)| rate >= USUAL_SHARE * most(place))
    };
    rounds.iter().filter(is_usual).collect()
}

/// Returns the median, or the upper of the two middle values of an even number.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the load average over the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Returns the worst ratio over all sizes: the highest ratio of latencies, or the lowest ratio of
/// rates.
pub(super) fn contenders(
    result: &Value,
    wanted: &str,
    test: &str,
    pair: &Pair,
) -> Result<Found, Failure> {
    let path = result.pointer("/path/kind").and_then(Value::as_str).unwrap_or("an unknown path");
    if path != wanted {
        let why = format!("measured over {path}; the bound is for {wanted} (namespaces: as root)");
        return Err(Failure::CannotRun(why));
    }
    let entries = || {
        let entries = result.get("results").and_then(Value::as_array);
        entries.into_iter().flatten().filter(|entry| entry["test"] == test)
    };
    let of = |(transport, links): (&'static str, u64)| {
        entries().filter(move |entry| entry["transport"] == transport && entry["links"] == links)
    };
    let field = format!("/{}/median", pair.field);
    let is_latency = pair.field == "latency_ns";
    let mut worst: Option<(f64, String)> = None;
    for own in of(pair.own) {
        let bytes = &own["message_bytes"];
        let Some(other) = of(pair.other).find(|other| other["message_bytes"] == *bytes) else {
            continue;
        };
        let (own, other) = (number(own, &field)?, number(other, &field)?);
        let found = ratio(own, other)?;
        if worst.as_ref().is_none_or(|(worst, _)| (found > *worst) == is_latency) {
            let [own, other] = [own, other].map(|value| rounded(value * pair.unit.scale));
            let note = format!(" ({bytes} B: {own} {}, {} {other})", pair.unit.unit, pair.other.0);
            worst = Some((found, note));
        }
    }
    let (figure, note) = worst.ok_or_else(|| {
        let ((own, one), (other, two)) = (pair.own, pair.other);
        let why = format!("the result has no {test} of {own} over {one} and {other} over {two}");
        Failure::CannotRun(why)
    })?;
    Ok(Found { figure, note, bare: None })
}

/// Returns the number of failed tests. `chosen` are arguments of `cargo test`, separated by spaces.
pub(super) fn tests(package: &str, chosen: &str) -> Result<Found, Failure> {
    let package = package_name(package);
    eprintln!("-- cargo test --package {package} {chosen}");
    let mut command = cargo();
    command.args(["test", "--package", &package, "--no-fail-fast"]);
    command.args(chosen.split_whitespace());
    if !chosen.contains(" -- ") {
        command.arg("--");
    }
    command.arg("--show-output");
    let output = run(&mut command)?;
    match tested(&String::from_utf8_lossy(&output.stdout)) {
        Err(None) if output.status.success() => {
            Err(Failure::CannotRun(format!("{package} has no test `{chosen}`")))
        }
        Err(None) => Err(Failure::CannotRun(cause(&output))),
        Err(Some(reason)) => Err(Failure::CannotRun(reason)),
        Ok(found) => Ok(found),
    }
}

/// Returns the number of failed tests. If no test ran, returns the reason that the tests printed,
/// if any.
fn tested(text: &str) -> Result<Found, Option<String>> {
    let mut reader = TestReader::default();
    let shown: Vec<_> = text.lines().filter_map(|line| reader.handle_line(line)).collect();
    let Count { passed, failed, skipped } = reader.count();
    if passed + failed == 0 {
        return Err(shown.iter().find_map(|line| Some(line.split_once(": skipped: ")?.1.into())));
    }
    let not_run = if skipped == 0 { String::new() } else { format!(", {skipped} not run") };
    let note = format!(" ({passed} tests passed{not_run})");
    Ok(Found { figure: failed as f64, note, bare: None })
}

/// A run counts only if the other policies reach at least this share of their best throughput in
/// all runs.
const USUAL_SHARE: f64 = 0.9;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Shown;
    use super::*;

    #[test]
    fn the_worst_point_is_named() {
        let result = json!({
            "good": 59, "points": 60, "at_least": 0.99, "worst_ratio": 0.9, "worst": "2x1G one-way",
        });
        let found = policies(&result).expect("all is there");
        assert!((found.figure - 0.9).abs() < 1e-9);
        assert_eq!(found.note, " (59 of 60 points >= 0.990; worst: 2x1G one-way)");
    }

    #[test]
    fn tests_that_report_why_they_cannot_run_do_not_count_as_passed() {
        let text = |second: &str| {
            format!(
                "successes:\n\n---- a stdout ----\nskipped: `fio` is not installed\n\n\
                 ---- b stdout ----\n{second}\n\nsuccesses:\n    a\n    b\n\n\
                 test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
            )
        };
        let found = tested(&text("all is well")).expect("one has run");
        assert_eq!(found.note, " (1 tests passed, 1 not run)");
        let missing = tested(&text("skipped: `qperf` is not installed"));
        assert_eq!(missing, Err(Some("`fio` is not installed".into())));
        assert_eq!(tested("test result: ok. 0 passed; 0 failed; 0 ignored\n"), Err(None));
    }

    #[test]
    fn rounds_with_slow_reference_programs_do_not_count() {
        let round = |others: [f64; 2]| Round { ratios: vec![1.0], others: others.to_vec() };
        let rounds = [round([100.0, 50.0]), round([80.0, 50.0]), round([95.0, 44.0])];
        assert_eq!(usual(&rounds).len(), 1);
        assert_eq!(usual(&rounds[1..]).len(), 0);
        let rounds = [round([100.0, 0.0]), round([91.0, 0.0])];
        assert_eq!(usual(&rounds).len(), 2);
    }

    #[test]
    fn the_worst_size_counts() {
        let entry = |transport: &str, links: u64, bytes: u64, latency_ns: f64| {
            json!({
                "test": "ping-pong", "transport": transport, "links": links,
                "message_bytes": bytes, "latency_ns": {"median": latency_ns},
            })
        };
        let results = json!([
            entry("edge", 1, 8, 3000.0),
            entry("tcp-poll", 1, 8, 3000.0),
            entry("edge", 2, 64, 5000.0),
            entry("edge", 1, 64, 6000.0),
            entry("tcp-poll", 1, 64, 5000.0),
        ]);
        let result = json!({"path": {"kind": "namespaces"}, "results": results});
        let unit = Shown { field: "latency_ns", scale: 1e-3, unit: "us" };
        let pair = Pair { own: ("edge", 1), other: ("tcp-poll", 1), field: "latency_ns", unit };
        let found = contenders(&result, "namespaces", "ping-pong", &pair).expect("both are there");
        assert!((found.figure - 1.2).abs() < 1e-9);
        assert_eq!(found.note, " (64 B: 6 us, tcp-poll 5)");
        assert!(contenders(&result, "loopback", "ping-pong", &pair).is_err());
        assert!(contenders(&result, "namespaces", "one-way", &pair).is_err());
    }
}
