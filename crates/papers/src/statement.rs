//! Checks whether statements of the papers hold for our results.

use serde::Deserialize;

use crate::document::{Document, Point, Series};
use crate::line::Line;

/// The check that decides whether a statement holds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The kind of check.
    pub kind: CheckKind,
    /// Name of the panel with the series.
    pub panel: String,
    /// The series that the statement is about.
    pub series: String,
    /// The series that is compared with `series`.
    #[serde(default)]
    pub other: String,
    /// The panel that is compared with `panel`.
    #[serde(default)]
    pub other_panel: String,
    /// The limit of the check; its meaning depends on [`CheckKind`].
    pub within: f64,
    /// The last position on the axis that the check includes; `None` includes the whole axis.
    pub until: Option<f64>,
}

/// A kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// The highest value is at most `within` times the lowest value.
    Flat,
    /// The quotient of the two series changes along the axis by a factor of at most `within`.
    Alike,
    /// The growth of a series is its last value divided by its first value. The growth of the
    /// series is at most `within` times the growth of the other series.
    Scales,
    /// Each value is at least `within` times the value of the other series at the same point.
    Above,
    /// Each value differs from the value of the same series in the other panel by a factor of at
    /// most `within`.
    Same,
    /// The highest value is at most `within` times the highest value of the same series in the
    /// other panel.
    NoMore,
    /// All values are close to a straight line. The distance of each value from the line of least
    /// squares is at most `within` times the highest value.
    Linear,
    /// The last value is at least `within` times the first value.
    Grows,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Whether the statement holds.
    pub holds: bool,
    /// The figures on which the result is based.
    pub saw: String,
}

impl Check {
    /// Checks a document. Returns `None` if the document lacks the series.
    pub fn check(&self, document: &Document) -> Option<Checked> {
        self.check_in(document, &self.panel)
    }

    /// Checks a document, but uses `panel` instead of the panel that the check names.
    pub fn check_in(&self, document: &Document, panel: &str) -> Option<Checked> {
        let series = document.series(panel, &self.series)?;
        let other = || document.series(panel, &self.other);
        let beside = || document.series(&self.other_panel, &self.series);
        match self.kind {
            CheckKind::Flat => {
                let values = || series.points.iter().map(|point| point.value);
                let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
                let () = (series.points.len() > 1).then_some(())?;
                let factor = high / low;
                let saw = format!("highest / lowest = {factor:.2}");
                Some(Checked { holds: factor <= self.within, saw })
            }
            CheckKind::Alike => {
                let quotients = quotients(series, other()?);
                let low = quotients.iter().copied().reduce(f64::min)?;
                let high = quotients.iter().copied().reduce(f64::max)?;
                let () = (quotients.len() > 1).then_some(())?;
                let saw = format!("{} / {} from {low:.2} to {high:.2}", self.series, self.other);
                Some(Checked { holds: high / low <= self.within, saw })
            }
            CheckKind::Scales => {
                let growth = growth(series)?;
                let other = self::growth(other()?)?;
                let saw = format!("grows {growth:.2} ×, {} {other:.2} ×", self.other);
                Some(Checked { holds: growth <= other * self.within, saw })
            }
            CheckKind::Above => {
                let quotients = quotients(series, other()?);
                let low = quotients.into_iter().reduce(f64::min)?;
                let saw = format!("at least {low:.2} × of {}", self.other);
                Some(Checked { holds: low >= self.within, saw })
            }
            CheckKind::Same => {
                let counts = |point: &&Point| self.until.is_none_or(|until| point.at <= until);
                let points = series.points.iter().filter(counts).cloned().collect();
                let quotients = quotients(&Series { points, ..series.clone() }, beside()?);
                let low = quotients.iter().copied().reduce(f64::min)?;
                let high = quotients.iter().copied().reduce(f64::max)?;
                let saw = format!("from {low:.2} to {high:.2} × of {}", self.other_panel);
                Some(Checked { holds: high.max(1.0 / low) <= self.within, saw })
            }
            CheckKind::Linear => {
                let off = deviation(series)?;
                let saw = format!("deviates from a straight line by at most {:.0} %", off * 100.0);
                Some(Checked { holds: off <= self.within, saw })
            }
            CheckKind::Grows => {
                let growth = growth(series)?;
                Some(Checked { holds: growth >= self.within, saw: format!("grows {growth:.2} ×") })
            }
            CheckKind::NoMore => {
                let highest = |series: &Series| {
                    series.points.iter().map(|point| point.value).reduce(f64::max)
                };
                let factor = highest(series)? / highest(beside()?)?;
                let saw = format!("at most {factor:.2} × of {}", self.other_panel);
                Some(Checked { holds: factor <= self.within, saw })
            }
        }
    }
}

fn quotients(series: &Series, other: &Series) -> Vec<f64> {
    let pair = |place: f64| other.points.iter().find(|point| point.at.total_cmp(&place).is_eq());
    let both = series.points.iter().filter_map(|point| Some((point, pair(point.at)?)));
    both.map(|(ours, theirs)| ours.value / theirs.value).filter(|value| value.is_finite()).collect()
}

fn growth(series: &Series) -> Option<f64> {
    let (first, last) = (series.points.first()?, series.points.last()?);
    (series.points.len() > 1 && first.value > 0.0).then(|| last.value / first.value)
}

/// Returns the largest distance of a value from the line of least squares, as a fraction of the
/// highest value.
fn deviation(series: &Series) -> Option<f64> {
    let points: Vec<_> = series.points.iter().map(|point| (point.at, point.value)).collect();
    let line = Line::through(&points)?;
    let off = |(at, value): &(f64, f64)| (value - line.value(*at)).abs();
    let highest = points.iter().map(|point| point.1).reduce(f64::max)?;
    Some(points.iter().map(off).fold(0.0, f64::max) / highest)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn series(name: &str, values: &[f64]) -> Series {
        let point = |(at, value): (usize, &f64)| Point {
            at: at as f64,
            value: *value,
            min: *value,
            max: *value,
            samples: Vec::new(),
            reason: None,
        };
        Series {
            panel: "p".to_owned(),
            name: name.to_owned(),
            x: String::new(),
            unit: String::new(),
            points: values.iter().enumerate().map(point).collect(),
        }
    }

    fn holds(kind: CheckKind, ours: &[f64], theirs: &[f64], within: f64) -> Option<bool> {
        let mut document = Document::new("toe2005", "13");
        document.series = vec![series("a", ours), series("b", theirs)];
        let (panel, series, other) = ("p".to_owned(), "a".to_owned(), "b".to_owned());
        let other_panel = String::new();
        let check = Check { kind, panel, series, other, other_panel, within, until: None };
        Some(check.check(&document)?.holds)
    }

    #[test]
    fn statements_are_evaluated_as_true_or_false() {
        use CheckKind::{Above, Alike, Flat, Grows, Linear, Scales};
        assert_eq!(holds(Flat, &[1.0, 1.2], &[], 1.25), Some(true));
        assert_eq!(holds(Flat, &[1.0, 1.3], &[], 1.25), Some(false));
        assert_eq!(holds(Alike, &[1.0, 2.0], &[2.0, 4.0], 1.1), Some(true));
        assert_eq!(holds(Alike, &[1.0, 4.0], &[2.0, 4.0], 1.1), Some(false));
        assert_eq!(holds(Scales, &[1.0, 3.0], &[2.0, 6.0], 1.1), Some(true));
        assert_eq!(holds(Scales, &[1.0, 4.0], &[2.0, 6.0], 1.1), Some(false));
        assert_eq!(holds(Above, &[3.0, 4.0], &[2.0, 4.0], 1.0), Some(true));
        assert_eq!(holds(Above, &[1.0, 4.0], &[2.0, 4.0], 1.0), Some(false));
        assert_eq!(holds(Linear, &[1.0, 2.1, 3.0], &[], 0.1), Some(true));
        assert_eq!(holds(Linear, &[1.0, 3.0, 3.0], &[], 0.1), Some(false));
        assert_eq!(holds(Grows, &[1.0, 5.0, 2.0], &[], 2.0), Some(true));
        assert_eq!(holds(Grows, &[1.0, 5.0, 1.9], &[], 2.0), Some(false));
    }

    #[test]
    fn panels_are_compared_up_to_a_point() {
        let mut document = Document::new("toe2005", "11");
        let other = Series { panel: "q".to_owned(), ..series("a", &[1.0, 2.0, 8.0]) };
        document.series = vec![series("a", &[1.1, 2.0, 4.0]), other];
        let holds = |kind, within, until| {
            let [panel, series, other_panel] = ["p", "a", "q"].map(str::to_owned);
            let other = String::new();
            let check = Check { kind, panel, series, other, other_panel, within, until };
            check.check(&document).map(|checked| checked.holds)
        };
        assert_eq!(holds(CheckKind::Same, 1.25, Some(1.0)), Some(true));
        assert_eq!(holds(CheckKind::Same, 1.25, None), Some(false), "the last is half");
        assert_eq!(holds(CheckKind::NoMore, 1.0, None), Some(true));
        assert_eq!(holds(CheckKind::NoMore, 0.4, None), Some(false));
    }

    #[test]
    fn one_point_gives_no_statement_about_an_axis() {
        assert_eq!(holds(CheckKind::Flat, &[1.0], &[], 1.25), None);
        assert_eq!(holds(CheckKind::Alike, &[1.0], &[1.0], 1.25), None);
    }
}
