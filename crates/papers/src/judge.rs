//! Compares printed values with our values. The data determine how each value is compared.

use crate::document::{Document, Point, Series};
use crate::printed::{At, Better, Item, Manner, Value};
use crate::reasons;

/// A printed value and our value.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The printed value.
    pub value: &'static Value,
    /// Our value, either in the unit of the printed value or as a ratio.
    pub ours: Option<f64>,
    /// Half of the distance between our lowest and our highest sample, in percent.
    pub spread_percent: Option<f64>,
    /// Result of the comparison as text: the error in percent ([`Manner::Same`]), the factor
    /// ([`Manner::Ratio`], [`Manner::Absolute`]), or the compared figures ([`Manner::Statement`]).
    pub outcome: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for a deviation; `None` if none is needed.
    pub reason: Option<Why>,
}

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Our value agrees. [`Manner::Same`]: the value is within 10 %. [`Manner::Ratio`]: our ratio
    /// is at least as good as the paper's ratio. [`Manner::Statement`]: the statement holds.
    Holds,
    /// Our value deviates too much, or the statement does not hold.
    HoldsNot,
    /// Our value is shown without a verdict.
    Shown,
    /// The item was measured, but its document contains no value to compare.
    NotCovered,
    /// The item of the paper was not measured.
    NotMeasured,
    /// No command measures the item yet.
    NoCode,
}

/// The reason why our value deviates or why a statement does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// A reason that a second run has confirmed: in that run, the cause is absent and the statement
    /// holds.
    Tested(String),
    /// A reason with evidence, which no run has tested.
    Known(String),
    /// No reason is known. [`Counts::not_known`] counts these values.
    NotKnown,
}

impl Why {
    /// Returns the reason in words.
    pub fn text(&self) -> &str {
        match self {
            Self::Tested(text) | Self::Known(text) => text,
            Self::NotKnown => "not known",
        }
    }
}

impl Verdict {
    /// Returns the verdict in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsNot => "holds not",
            Self::Shown => "shown",
            Self::NotCovered => "not covered",
            Self::NotMeasured => "not measured",
            Self::NoCode => "no code yet",
        }
    }

    /// Returns whether this verdict says that our value agrees, or that it does not agree.
    pub const fn is_judged(self) -> bool {
        matches!(self, Self::Holds | Self::HoldsNot)
    }
}

/// Compares all values of an item with the values in `document`.
pub fn judge(item: &'static Item, document: Option<&Document>) -> Vec<Judged> {
    item.values.iter().map(|value| judge_value(item, value, document)).collect()
}

fn judge_value(item: &Item, value: &'static Value, document: Option<&Document>) -> Judged {
    let plain = |verdict, outcome: &str| Judged {
        value,
        ours: None,
        spread_percent: None,
        outcome: outcome.to_owned(),
        verdict,
        reason: None,
    };
    if let Some(what) = &item.waits_for {
        return plain(Verdict::NoCode, &format!("waits for {what}"));
    }
    let Some(document) = document else { return plain(Verdict::NotMeasured, "") };
    if let Some(cause) = &document.cannot_run {
        return plain(Verdict::NotMeasured, cause);
    }
    let known = value.reason.as_deref().and_then(reasons::reason);
    let not_covered = || plain(Verdict::NotCovered, known.map_or("", |reason| &reason.text));
    match value.manner {
        Manner::Drawn => plain(Verdict::Shown, "no number is printed"),
        Manner::Statement => statement(item, value, document).unwrap_or_else(not_covered),
        Manner::Same | Manner::Ratio | Manner::Absolute => {
            number(value, document).unwrap_or_else(not_covered)
        }
    }
}

fn statement(item: &Item, value: &'static Value, document: &Document) -> Option<Judged> {
    let seen = document.seen.iter().find(|seen| seen.id == value.id);
    let (holds, saw, reason) = match (seen, &value.check) {
        (Some(seen), _) => (seen.holds, seen.saw.clone(), seen.reason.clone()),
        (None, Some(check)) => {
            let checked = check.check(document)?;
            (checked.holds, checked.saw, None)
        }
        (None, None) => return None,
    };
    let verdict = if holds { Verdict::Holds } else { Verdict::HoldsNot };
    let reason = (!holds).then(|| why(value, reason));
    let (reason, retested) = match reason {
        Some(reason) => {
            let (reason, retested) = tested(item, value, document, reason);
            (Some(reason), retested)
        }
        None => (None, None),
    };
    let outcome = saw + &retested.map_or_else(String::new, |more| format!("; {more}"));
    Some(Judged { value, ours: None, spread_percent: None, outcome, verdict, reason })
}

/// Tests the reason why a statement does not hold in the first run of an item. The cause that the
/// reason names is absent in the second run. If the statement holds in the second run, returns
/// `reason` as confirmed. If the statement fails in the second run too, returns that no reason is
/// known. Also returns the figures of the second run.
fn tested(item: &Item, value: &Value, document: &Document, reason: Why) -> (Why, Option<String>) {
    let again = value
        .check
        .as_ref()
        .and_then(|check| check.check_in(document, &item.retest_panel(&check.panel)));
    let Some(again) = again else { return (reason, None) };
    let (name, saw) = (&item.retest_name, again.saw);
    let reason = match reason {
        Why::Known(text) if again.holds => {
            Why::Tested(format!("{text}; tested: with {name}, the statement holds"))
        }
        _ => Why::NotKnown,
    };
    (reason, Some(format!("over {name} {saw}")))
}

fn number(value: &'static Value, document: &Document) -> Option<Judged> {
    let panel = value.panel.as_deref()?;
    let at = value.at.as_ref()?;
    let point = pick(document.series(panel, value.series.as_deref()?)?, at)?;
    let spread = |point: &Point| (point.max - point.min) / point.value * 50.0;
    let (ours, spread_percent) = match &value.over {
        Some(other) => {
            let other = pick(document.series(panel, other)?, at)?;
            (point.value / other.value, spread(point) + spread(other))
        }
        None => (point.value, spread(point)),
    };
    let (verdict, outcome) = match value.manner {
        Manner::Same => same(ours, value.value?),
        Manner::Ratio => {
            // A panel in percent has numbers up to 100, and `ratio` compares fractions.
            let is_percent = value.over.is_none() && value.unit == "%";
            let fraction = if is_percent { ours / 100.0 } else { ours };
            ratio(fraction, value.ratio()?, value.better?)
        }
        _ => (Verdict::Shown, format!("{:.2} × the paper's value", ours / value.value?)),
    };
    let is_off = verdict == Verdict::HoldsNot;
    Some(Judged {
        value,
        ours: Some(ours),
        spread_percent: Some(spread_percent),
        outcome,
        verdict,
        reason: is_off.then(|| why(value, point.reason.clone())),
    })
}

/// Compares two numbers. The numbers agree if the relative error is at most [`ERROR_PERCENT_MAX`].
fn same(ours: f64, printed: f64) -> (Verdict, String) {
    let error = (ours / printed - 1.0) * 100.0;
    let holds = error.abs() <= ERROR_PERCENT_MAX;
    let verdict = if holds { Verdict::Holds } else { Verdict::HoldsNot };
    (verdict, format!("{error:+.1} %"))
}

/// Compares two ratios. The ratios agree if ours is at least as good as the worse end of the
/// printed range.
fn ratio(ours: f64, [from, until]: [f64; 2], better: Better) -> (Verdict, String) {
    let holds = match better {
        Better::More => ours >= from.min(until),
        Better::Less => ours <= from.max(until),
    };
    let printed = if from.total_cmp(&until).is_eq() {
        format!("{from:.2}")
    } else {
        format!("{from:.2} to {until:.2}")
    };
    let verdict = if holds { Verdict::Holds } else { Verdict::HoldsNot };
    let which = if holds { "ours is as good as theirs or better" } else { "theirs is better" };
    (verdict, format!("ours {ours:.2}, theirs {printed}: {which}"))
}

fn why(value: &Value, given: Option<String>) -> Why {
    let known = value.reason.as_deref().and_then(reasons::reason);
    let listed = known.map(|reason| format!("{} ({})", reason.text, reason.evidence));
    given.or(listed).map_or(Why::NotKnown, Why::Known)
}

fn pick<'a>(series: &'a Series, at: &At) -> Option<&'a Point> {
    let by_value = |a: &&Point, b: &&Point| a.value.total_cmp(&b.value);
    match at {
        At::Place(place) => {
            series.points.iter().find(|point| (point.at - place).abs() <= place.abs() * 1e-9)
        }
        At::Extreme(which) => match which.as_str() {
            "max" => series.points.iter().max_by(by_value),
            "min" => series.points.iter().min_by(by_value),
            _ => series.points.last(),
        },
    }
}

/// Counts of a paper's items and values, for one line of the overview.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of figures and tables.
    pub items: usize,
    /// Number of items that a command can measure.
    pub with_command: usize,
    /// Number of measured items.
    pub measured: usize,
    /// Number of printed values and statements.
    pub values: usize,
    /// Number of values and statements with the verdict that they agree, or the verdict that they
    /// do not agree.
    pub judged: usize,
    /// Number of values and statements that agree.
    pub hold: usize,
    /// Number of values and statements that do not agree.
    pub hold_not: usize,
    /// Number of values and statements that do not agree, with a reason that a second run has
    /// confirmed.
    pub tested: usize,
    /// Number of values and statements that do not agree, without a known reason.
    pub not_known: usize,
}

impl Counts {
    /// Adds the values of an item to the counts.
    pub fn add(&mut self, item: &Item, is_measured: bool, judged: &[Judged]) {
        let count = |verdict| judged.iter().filter(|one| one.verdict == verdict).count();
        self.items += 1;
        self.with_command += usize::from(item.has_command());
        self.measured += usize::from(is_measured);
        self.values += judged.len();
        self.judged += judged.iter().filter(|one| one.verdict.is_judged()).count();
        self.hold += count(Verdict::Holds);
        self.hold_not += count(Verdict::HoldsNot);
        let tested = |one: &&Judged| matches!(one.reason, Some(Why::Tested(_)));
        self.tested += judged.iter().filter(tested).count();
        let unknown = |one: &&Judged| one.reason == Some(Why::NotKnown);
        self.not_known += judged.iter().filter(unknown).count();
    }
}

/// Maximum error of a value that agrees, in percent. A larger error needs a reason.
pub const ERROR_PERCENT_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printed::paper;

    fn point(at: f64, value: f64) -> Point {
        Point { at, value, min: value, max: value, samples: Vec::new(), reason: None }
    }

    fn series(panel: &str, name: &str, points: Vec<Point>) -> Series {
        let (panel, name) = (panel.to_owned(), name.to_owned());
        Series { panel, name, x: String::new(), unit: String::new(), points }
    }

    #[test]
    fn ratios_compare_two_stacks_and_name_the_better_one() {
        let item = paper("convergence2005").unwrap().item("3").unwrap();
        let mut document = Document::new("convergence2005", "3");
        document.series = vec![
            series("latency 1500", "sockets", vec![point(1.0, 5.0)]),
            series("latency 1500", "tcp", vec![point(1.0, 10.0)]),
            series("throughput 1500", "sockets", vec![point(1.0, 1.0), point(2.0, 1.2)]),
            series("throughput 1500", "tcp", vec![point(1.0, 0.5), point(2.0, 1.0)]),
        ];
        let judged = judge(item, Some(&document));
        assert_eq!(judged[0].verdict, Verdict::Holds);
        assert_eq!(judged[1].verdict, Verdict::HoldsNot);
        assert!(matches!(judged[1].reason, Some(Why::Known(_))));
        assert_eq!(judged[2].verdict, Verdict::NotCovered);
    }

    #[test]
    fn shares_in_percent_are_compared_with_printed_shares_in_percent() {
        let item = paper("neteffect2006").unwrap().item("3").unwrap();
        let judged_with = |overhead: f64| {
            let mut document = Document::new("neteffect2006", "3");
            let points = vec![point(65_536.0, 50.0), point(1_048_576.0, overhead)];
            document.series = vec![series("mpi overhead W16", "open-mpi-edge0", points)];
            judge(item, Some(&document)).into_iter().find(|one| one.value.id == "earlier").unwrap()
        };
        // The paper prints about 10 %.
        let below = judged_with(5.5);
        assert_eq!(below.verdict, Verdict::Holds, "{}", below.outcome);
        assert!(below.outcome.starts_with("ours 0.06, theirs 0.10"), "{}", below.outcome);
        assert_eq!(judged_with(15.0).verdict, Verdict::HoldsNot);
    }

    #[test]
    fn a_second_run_confirms_or_refutes_a_reason() {
        let item = paper("convergence2005").unwrap().item("6").unwrap();
        let judged_with = |again: f64| {
            let mut document = Document::new("convergence2005", "6");
            let fan_in = |panel: &str, last| {
                series(panel, "sockets", vec![point(1.0, 1.0), point(12.0, last)])
            };
            let shaped = item.retest_panel("fan-in 1500");
            document.series = vec![fan_in("fan-in 1500", 2.0), fan_in(&shaped, again)];
            judge(item, Some(&document)).into_iter().find(|one| one.value.id == "in").unwrap()
        };
        let confirmed = judged_with(1.1);
        assert_eq!(confirmed.verdict, Verdict::HoldsNot);
        assert!(matches!(confirmed.reason, Some(Why::Tested(_))), "{confirmed:?}");
        assert!(confirmed.outcome.contains("1.10"), "{}", confirmed.outcome);
        assert_eq!(judged_with(2.0).reason, Some(Why::NotKnown));
    }

    #[test]
    fn unmeasured_and_unimplemented_items_are_distinguished() {
        let verdict =
            |key: &str, id: &str| judge(paper(key).unwrap().item(id).unwrap(), None)[0].verdict;
        assert_eq!(verdict("sandia1999", "table1"), Verdict::NotMeasured);
        assert_eq!(verdict("convergence2005", "12"), Verdict::NoCode);
    }

    #[test]
    fn a_simulation_is_judged_by_its_error() {
        assert_eq!(same(1.1, 1.0).0, Verdict::HoldsNot);
        assert_eq!(same(1.09, 1.0).0, Verdict::Holds);
    }
}
