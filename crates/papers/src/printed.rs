//! The printed values, read from `papers/*.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::statement::Check;

/// A paper and its figures and tables.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The name on the command line.
    pub key: String,
    /// Its title.
    pub title: String,
    /// Its authors.
    pub authors: String,
    /// Where and when it was published.
    pub published: String,
    /// The machines that it measured.
    pub machine: String,
    /// Definitions, and where the paper contradicts itself.
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
    /// The name on the command line, unique in its paper.
    pub id: String,
    /// Its place in the paper.
    pub place: String,
    /// What it shows.
    pub title: String,
    /// Arguments of `ethernot` that regenerate it; empty if there is no code yet.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments of a quick run, after the others.
    #[serde(default)]
    pub quick: Vec<String>,
    /// Arguments of a second run, after the others, that tests the reasons of the item: a statement that does
    /// not hold, but holds there, has a tested reason.
    #[serde(default)]
    pub retest: Vec<String>,
    /// What differs in the second run, in words; panels of it have this name behind theirs.
    #[serde(default)]
    pub retest_name: String,
    /// Names with which the panels begin that belong to it.
    #[serde(default)]
    pub take: Vec<String>,
    /// About how long a quick run takes.
    #[serde(default)]
    pub seconds_quick: u32,
    /// About how long a full run takes.
    #[serde(default)]
    pub seconds_full: u32,
    /// What has to exist first, if there is no code yet.
    pub waits_for: Option<String>,
    /// The paper's horizontal axis.
    #[serde(default)]
    pub x: String,
    /// The paper's vertical axis.
    #[serde(default)]
    pub y: String,
    /// What it prints or says.
    #[serde(default, rename = "value")]
    pub values: Vec<Value>,
    /// Rows of a table, in short: minimum, mean, maximum and standard deviation each.
    #[serde(default)]
    rows: Vec<TableRow>,
}

/// A printed number, ratio or statement.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Unique in its item.
    pub id: String,
    /// What it is.
    pub what: String,
    /// Of which kind.
    pub kind: Kind,
    /// How it is compared with ours.
    pub manner: Manner,
    /// The number, if one is printed. Of a range the lower end.
    pub value: Option<f64>,
    /// The upper end of a range.
    pub value_max: Option<f64>,
    /// A second number that is printed in the same place.
    pub also: Option<f64>,
    /// What a ratio divides by.
    pub to: Option<f64>,
    /// Unit of the numbers.
    #[serde(default)]
    pub unit: String,
    /// What qualifies it.
    pub remark: Option<String>,
    /// The part of the figure.
    pub part: Option<String>,
    /// Other places that print the same quantity with another number, as `PAPER/ITEM.VALUE`.
    #[serde(default)]
    pub see: Vec<String>,
    /// The panel of the document that has ours.
    pub panel: Option<String>,
    /// The series in this panel.
    pub series: Option<String>,
    /// The series that ours is divided by.
    pub over: Option<String>,
    /// Which point of the series.
    pub at: Option<At>,
    /// Whether more or less of a ratio is better.
    pub better: Option<Better>,
    /// Whether the number is a gain in percent: the ratio is 1 + value / 100.
    #[serde(default)]
    pub is_gain: bool,
    /// The set-up of `MultiEdge`, for `bench multiedge`.
    pub setup: Option<String>,
    /// The test of `bench multiedge`.
    pub test: Option<String>,
    /// How a statement is checked.
    pub check: Option<Check>,
    /// Why ours is off, if it is: an entry of `papers/reasons.toml`.
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

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A number.
    Number,
    /// A quotient, or both sides of one.
    Ratio,
    /// Words that hold or do not.
    Statement,
    /// A drawing, and no number in the text.
    DrawnOnly,
}

/// How ours is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// A simulation of the same thing: relative error.
    Same,
    /// Two stacks on one machine there, two on one machine here.
    Ratio,
    /// A function of our results.
    Statement,
    /// Another machine's value: shown with the factor, never judged.
    Absolute,
    /// Ours alone: no number is printed.
    Drawn,
}

impl Manner {
    /// Returns its name, one word.
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
    /// The point at this place of the axis.
    Place(f64),
    /// `max`, `min` or `last`.
    Extreme(String),
}

/// Which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A rate.
    More,
    /// A time.
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

/// Columns of the tables of Sandia's study.
pub const COLUMNS: [&str; 4] = ["min", "avg", "max", "sigma"];

/// Returns all papers, in the order in which the command lists them.
pub fn all() -> &'static [Paper] {
    &PAPERS
}

/// Returns the paper with this key.
pub fn paper(key: &str) -> Option<&'static Paper> {
    all().iter().find(|paper| paper.key == key)
}

/// Returns the value `PAPER/ITEM.VALUE`.
pub fn value(name: &str) -> Option<&'static Value> {
    let (key, rest) = name.split_once('/')?;
    let (item, value) = rest.split_once('.')?;
    paper(key)?.item(item)?.values.iter().find(|known| known.id == value)
}

/// Returns the number that stands at `PAPER/ITEM.VALUE`; NaN if there is none.
pub fn number(name: &str) -> f64 {
    value(name).and_then(|value| value.value).unwrap_or(f64::NAN)
}

impl Paper {
    /// Returns the item with this id.
    pub fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }
}

impl Item {
    /// Whether a command regenerates it.
    pub fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// Returns the arguments of `ethernot` for a full or a quick run.
    pub fn arguments(&self, is_quick: bool) -> Vec<String> {
        let quick = if is_quick { self.quick.as_slice() } else { &[] };
        self.command.iter().chain(quick).cloned().collect()
    }

    /// Returns the arguments of the run that tests reasons, if there is one.
    pub fn retest_arguments(&self, is_quick: bool) -> Option<Vec<String>> {
        let all = self.arguments(is_quick).into_iter().chain(self.retest.iter().cloned());
        (!self.retest.is_empty()).then(|| all.collect())
    }

    /// Returns the name that a panel has in the run that tests reasons.
    pub fn retest_panel(&self, panel: &str) -> String {
        format!("{panel}, {}", self.retest_name)
    }

    /// Returns about how long its command takes, in seconds.
    pub fn seconds(&self, is_quick: bool) -> u32 {
        if is_quick { self.seconds_quick } else { self.seconds_full }
    }

    /// Returns the four printed columns of a row of a table.
    pub fn row(&self, panel: &str, series: &str) -> Option<[f64; 4]> {
        let row = self.rows.iter().find(|row| row.panel == panel && row.series == series)?;
        Some(row.values)
    }
}

impl Value {
    /// Returns the ratio that is printed, or that follows from both printed sides: from, and up to. A value in percent is
    /// a ratio to 100.
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

    /// Returns what is printed, as text.
    pub fn text(&self) -> String {
        let Some(value) = self.value else { return String::new() };
        let upper = self.value_max.map(|upper| format!(" to {upper}")).unwrap_or_default();
        let also = self.also.map(|also| format!(" and {also}")).unwrap_or_default();
        let to = self.to.map(|to| format!(" / {to}")).unwrap_or_default();
        format!("{value}{upper}{also}{to} {}", self.unit)
    }
}

/// Turns each row of tables into four values.
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

/// What is built in.
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
    fn all_figures_and_tables_are_listed_and_each_has_a_command_or_waits() {
        // 34 with data, and the slide that says what the gain is.
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
    fn names_are_unique_and_references_lead_somewhere() {
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
    fn a_value_has_what_its_kind_and_manner_need() {
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
            // A ratio is one of two series, or a share that a series has already.
            let is_compared = value.panel.is_some() && value.better.is_some();
            assert!(value.over.is_none() || is_compared, "{what}");
            assert!(!is_compared || value.over.is_some() || value.unit == "%", "{what}");
        }
    }

    #[test]
    fn ratios_are_printed_or_follow_from_both_sides() {
        let latency = value("convergence2005/3.latency").and_then(Value::ratio).unwrap();
        assert!((latency[0] - 0.858).abs() < 0.001);
        let gain = value("toe2005/19.gain").and_then(Value::ratio).unwrap();
        assert!((gain[0] - 1.65).abs() < 1e-9);
    }
}
