//! The printed values of the papers, from `papers/*.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::statement::Check;

/// A paper and its figures and tables.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Name of the paper on the command line.
    pub key: String,
    /// The title of the paper.
    pub title: String,
    /// Authors of the paper.
    pub authors: String,
    /// Place and date of publication.
    pub published: String,
    /// The machines that the paper measured.
    pub machine: String,
    /// Notes on definitions, and on contradictions in the paper.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Figures and tables, in the paper's order.
    #[serde(rename = "item")]
    pub items: Vec<Item>,
}

/// A figure or a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Name of the item on the command line, unique in its paper.
    pub id: String,
    /// Number of the figure or table, or of the section.
    pub place: String,
    /// Short form of the caption.
    pub title: String,
    /// Arguments with which `ethernot` measures the item; empty if there is no code for it yet.
    #[serde(default)]
    pub command: Vec<String>,
    /// Additional arguments of a quick run.
    #[serde(default)]
    pub quick: Vec<String>,
    /// Additional arguments of a second run, which tests the reasons of the item. If a statement
    /// does not hold in the first run but holds in the second, its reason is confirmed.
    #[serde(default)]
    pub retest: Vec<String>,
    /// Words that describe how the second run differs. The names of its panels end with these words.
    #[serde(default)]
    pub retest_name: String,
    /// Arguments of another command, whose curves the page shows beside those of the item.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Prefixes of names of panels. The item gets the panels whose names start with one of these
    /// prefixes.
    #[serde(default)]
    pub take: Vec<String>,
    /// Approximate duration of a quick run, in seconds.
    #[serde(default)]
    pub seconds_quick: u32,
    /// Approximate duration of a full run, in seconds.
    #[serde(default)]
    pub seconds_full: u32,
    /// The missing part without which no command can measure the item; `None` if there is a
    /// command.
    pub waits_for: Option<String>,
    /// Description of the paper's horizontal axis.
    #[serde(default)]
    pub x: String,
    /// Description of the paper's vertical axis.
    #[serde(default)]
    pub y: String,
    /// The printed values and statements.
    #[serde(default, rename = "value")]
    pub values: Vec<Value>,
    /// Rows of a table in short form. Each has minimum, mean, maximum and standard deviation.
    #[serde(default)]
    rows: Vec<TableRow>,
}

/// A printed number, ratio or statement.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Name of the value, unique in its item.
    pub id: String,
    /// Description in words.
    pub what: String,
    /// Kind of the value.
    pub kind: Kind,
    /// Manner in which our results are compared with the value.
    pub manner: Manner,
    /// The printed number, or the lower end of a printed range; `None` if no number is printed.
    pub value: Option<f64>,
    /// The upper end of a printed range; `None` for a single number.
    pub value_max: Option<f64>,
    /// A second number printed in the same place.
    pub also: Option<f64>,
    /// The divisor of a printed ratio.
    pub to: Option<f64>,
    /// Unit of the numbers.
    #[serde(default)]
    pub unit: String,
    /// Words that restrict the value, such as a condition.
    pub remark: Option<String>,
    /// The part of the figure to which the value belongs, such as (a).
    pub part: Option<String>,
    /// Names of other printed values of the same quantity that have a different number, as
    /// `PAPER/ITEM.VALUE`.
    #[serde(default)]
    pub see: Vec<String>,
    /// The panel of the document that contains our value.
    pub panel: Option<String>,
    /// The series in this panel that contains our value.
    pub series: Option<String>,
    /// The series by whose value our value is divided.
    pub over: Option<String>,
    /// The point of `series` whose value is our value.
    pub at: Option<At>,
    /// Direction in which a ratio is better.
    pub better: Option<Better>,
    /// Whether the number is a gain in percent. If so, the ratio is 1 + value / 100.
    #[serde(default)]
    pub is_gain: bool,
    /// The set-up of `MultiEdge` to which the value belongs, for `bench multiedge`.
    pub setup: Option<String>,
    /// The test of `bench multiedge` to which the value belongs.
    pub test: Option<String>,
    /// The check that decides whether a statement holds.
    pub check: Option<Check>,
    /// The reason why our value deviates: the id of an entry in `papers/reasons.toml`.
    pub reason: Option<String>,
}

/// A row of a table of latencies.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableRow {
    series: String,
    panel: String,
    manner: Manner,
    unit: String,
    values: [f64; 4],
}

/// The kind of a printed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A number.
    Number,
    /// A quotient, or the two numbers of a quotient.
    Ratio,
    /// A statement in words, which can be checked.
    Statement,
    /// A value that the paper only draws, without a number in its text.
    DrawnOnly,
}

/// Manner in which our results are compared with a printed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// Our value comes from a simulation of the same system. The relative error decides the
    /// verdict.
    Same,
    /// A ratio of two stacks on the paper's machine is compared with a ratio of two stacks on our
    /// machine.
    Ratio,
    /// A check of our results decides the verdict.
    Statement,
    /// The value was measured on another machine. The page shows the factor, but gives no verdict.
    Absolute,
    /// Only our value is shown, because the paper prints no number.
    Drawn,
}

impl Manner {
    /// Returns the name of the manner, in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Ratio => "ratio",
            Self::Statement => "statement",
            Self::Absolute => "absolute",
            Self::Drawn => "drawn only",
        }
    }
}

/// A point of a series.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum At {
    /// The point at this position of the axis.
    Place(f64),
    /// The point with the largest (`max`) or smallest (`min`) value, or the last point (`last`).
    Extreme(String),
}

/// Direction in which a ratio is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A higher value is better, for example a rate.
    More,
    /// A lower value is better, for example a time.
    Less,
}

/// A paper with some or all of its items.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The paper.
    pub paper: &'static Paper,
    /// The items, in the paper's order.
    pub items: Vec<&'static Item>,
}

impl Chosen {
    /// Chooses a paper with all of its items.
    pub fn whole(paper: &'static Paper) -> Self {
        Self { paper, items: paper.items.iter().collect() }
    }
}

/// Columns of the tables in the paper `sandia1999`.
pub const COLUMNS: [&str; 4] = ["min", "avg", "max", "sigma"];

/// Returns all papers, in the order in which the command lists them.
pub fn all() -> &'static [Paper] {
    &PAPERS
}

/// Returns the paper with this key; `None` if there is none.
pub fn paper(key: &str) -> Option<&'static Paper> {
    all().iter().find(|paper| paper.key == key)
}

/// Returns the value with the name `PAPER/ITEM.VALUE`; `None` if there is none.
pub fn value(name: &str) -> Option<&'static Value> {
    let (key, rest) = name.split_once('/')?;
    let (item, value) = rest.split_once('.')?;
    paper(key)?.item(item)?.values.iter().find(|known| known.id == value)
}

/// Returns the number of the value `PAPER/ITEM.VALUE`; NaN if there is none.
pub fn number(name: &str) -> f64 {
    value(name).and_then(|value| value.value).unwrap_or(f64::NAN)
}

impl Paper {
    /// Returns the item with this id; `None` if there is none.
    pub fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }
}

impl Item {
    /// Returns whether a command measures this item.
    pub fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// Returns the arguments of `ethernot` for a full or a quick run.
    pub fn arguments(&self, is_quick: bool) -> Vec<String> {
        let quick = if is_quick { self.quick.as_slice() } else { &[] };
        self.command.iter().chain(quick).cloned().collect()
    }

    /// Returns the arguments of the command whose curves the page shows beside those of the item;
    /// `None` if there is no such command.
    pub fn beside_arguments(&self, is_quick: bool) -> Option<Vec<String>> {
        let quick = if is_quick { self.quick.as_slice() } else { &[] };
        (!self.beside.is_empty()).then(|| self.beside.iter().chain(quick).cloned().collect())
    }

    /// Returns the arguments of the run that tests the item's reasons; `None` if there is no such
    /// run.
    pub fn retest_arguments(&self, is_quick: bool) -> Option<Vec<String>> {
        let all = self.arguments(is_quick).into_iter().chain(self.retest.iter().cloned());
        (!self.retest.is_empty()).then(|| all.collect())
    }

    /// Returns the name that a panel has in the run that tests the item's reasons.
    pub fn retest_panel(&self, panel: &str) -> String {
        format!("{panel}, {}", self.retest_name)
    }

    /// Returns the approximate duration of the item's command, in seconds.
    pub fn seconds(&self, is_quick: bool) -> u32 {
        if is_quick { self.seconds_quick } else { self.seconds_full }
    }

    /// Returns the four printed numbers in a row of a table; `None` if there is no such row.
    pub fn row(&self, panel: &str, series: &str) -> Option<[f64; 4]> {
        let row = self.rows.iter().find(|row| row.panel == panel && row.series == series)?;
        Some(row.values)
    }
}

impl Value {
    /// Returns the lower and the upper end of a printed ratio. If the paper prints two numbers
    /// instead of their ratio, computes the ratio.
    pub fn ratio(&self) -> Option<[f64; 2]> {
        let value = self.value?;
        if self.is_gain {
            let ratio = 1.0 + value / 100.0;
            return Some([ratio, ratio]);
        }
        let share = || (self.unit == "%").then_some(100.0);
        let to = self.to.or_else(share)?;
        Some([value / to, self.value_max.unwrap_or(value) / to])
    }

    /// Formats the printed numbers.
    pub fn text(&self) -> String {
        let Some(value) = self.value else { return String::new() };
        let upper = self.value_max.map(|upper| format!(" to {upper}")).unwrap_or_default();
        let also = self.also.map(|also| format!(" and {also}")).unwrap_or_default();
        let to = self.to.map(|to| format!(" / {to}")).unwrap_or_default();
        format!("{value}{upper}{also}{to} {}", self.unit)
    }
}

/// Replaces each short table row by four values.
fn expand(mut paper: Paper) -> Paper {
    for item in &mut paper.items {
        for row in &item.rows {
            for (column, (value, name)) in row.values.into_iter().zip(COLUMNS).enumerate() {
                item.values.push(Value {
                    id: format!("{}, {}, {name}", row.panel, row.series),
                    what: format!("{}, {}: {name}", row.panel, row.series),
                    kind: Kind::Number,
                    manner: row.manner,
                    value: Some(value),
                    value_max: None,
                    also: None,
                    to: None,
                    unit: row.unit.clone(),
                    remark: None,
                    part: None,
                    see: Vec::new(),
                    panel: Some(row.panel.clone()),
                    series: Some(row.series.clone()),
                    over: None,
                    at: Some(At::Place(column as f64)),
                    better: None,
                    is_gain: false,
                    setup: None,
                    test: None,
                    check: None,
                    reason: None,
                });
            }
        }
    }
    paper
}

static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
    let read = |(name, text): (&str, &str)| {
        let paper: Paper = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        expand(paper)
    };
    TEXTS.into_iter().map(read).collect()
});

/// The data file of each paper, with the paper's key.
const TEXTS: [(&str, &str); 5] = [
    ("sandia1999", include_str!("../../../papers/sandia1999.toml")),
    ("convergence2005", include_str!("../../../papers/convergence2005.toml")),
    ("toe2005", include_str!("../../../papers/toe2005.toml")),
    ("neteffect2006", include_str!("../../../papers/neteffect2006.toml")),
    ("multiedge2007", include_str!("../../../papers/multiedge2007.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_and_tables_are_listed_with_a_command_or_as_pending() {
        // There are 34 items with data, and one slide that states the gain of a TCP offload engine.
        assert_eq!(all().iter().map(|paper| paper.items.len()).sum::<usize>(), 35);
        for paper in all() {
            for item in &paper.items {
                let name = format!("{}/{}", paper.key, item.id);
                assert_ne!(item.has_command(), item.waits_for.is_some(), "{name}");
                assert!(!item.values.is_empty(), "{name}");
                assert!(item.waits_for.is_some() || item.seconds_full > 0, "{name}");
                assert_eq!(item.retest.is_empty(), item.retest_name.is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn names_are_unique_and_references_resolve() {
        for paper in all() {
            for item in &paper.items {
                let same = |other: &&Item| other.id == item.id;
                assert_eq!(paper.items.iter().filter(same).count(), 1, "{}", item.id);
                for one in &item.values {
                    let same = item.values.iter().filter(|other| other.id == one.id);
                    assert_eq!(same.count(), 1, "{}/{}.{}", paper.key, item.id, one.id);
                    for see in &one.see {
                        assert!(value(see).is_some(), "{see}");
                    }
                    let reason = one.reason.as_deref();
                    assert!(reason.is_none_or(|id| crate::reasons::reason(id).is_some()));
                }
            }
        }
    }

    #[test]
    fn a_value_has_the_fields_of_its_kind_and_manner() {
        for value in all().iter().flat_map(|paper| &paper.items).flat_map(|item| &item.values) {
            let what = &value.what;
            match value.kind {
                Kind::Number | Kind::Ratio => assert!(value.value.is_some(), "{what}"),
                Kind::DrawnOnly => {
                    assert!(value.value.is_none() && value.manner == Manner::Drawn, "{what}");
                }
                Kind::Statement => {}
            }
            if value.manner == Manner::Same {
                assert!(value.panel.is_some() && value.at.is_some(), "{what}");
            }
            // A ratio compares two series, or it is a percentage that a single series contains.
            let is_compared = value.panel.is_some() && value.better.is_some();
            assert!(value.over.is_none() || is_compared, "{what}");
            assert!(!is_compared || value.over.is_some() || value.unit == "%", "{what}");
        }
    }

    #[test]
    fn ratios_are_printed_or_computed_from_both_sides() {
        let latency = value("convergence2005/3.latency").and_then(Value::ratio).unwrap();
        assert!((latency[0] - 0.858).abs() < 0.001);
        let gain = value("toe2005/19.gain").and_then(Value::ratio).unwrap();
        assert!((gain[0] - 1.65).abs() < 1e-9);
    }
}
