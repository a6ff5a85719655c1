//! A page about the values that five papers print, and our values.

use std::fmt::Write;

use papers::document::{Document, Series as Measured};
use papers::judge::{Judged, Verdict, judge};
use papers::printed::{At, Chosen, Item, Manner, Value, value};

use crate::chart::{self, ChartError, Point, Series};
use crate::format::digits;
use crate::page::{document, escaped, legend};
use crate::papers_table::{VALUES, counts, latest, origin, value_row};
use crate::rows::page_table;

/// Makes a self-contained HTML page with counts, a matrix of all items, and each figure.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn papers_page(
    papers: &[Chosen],
    documents: &[Document],
    notes: &[String],
) -> Result<String, ChartError> {
    let title = "Ethernot: five papers, regenerated";
    let mut body = format!("<header><h1>{title}</h1></header>");
    // Writing to a string cannot fail, here and below.
    overview(&mut body, papers, documents);
    gain(&mut body, documents);
    matrix(&mut body, papers, documents);
    for note in notes {
        let _ = writeln!(body, "<p><b>{}</b></p>", escaped(note));
    }
    for Chosen { paper, items } in papers {
        let _ = writeln!(
            body,
            "<section><h2>{}</h2><p>{}, {}. Measured there: {}.</p>",
            escaped(&paper.title),
            escaped(&paper.authors),
            escaped(&paper.published),
            escaped(&paper.machine),
        );
        for note in &paper.notes {
            let _ = writeln!(body, "<p>{}</p>", escaped(note));
        }
        for &item in items {
            let is_here = |one: &&Document| one.paper == paper.key && one.item == item.id;
            let of_item: Vec<&Document> = documents.iter().filter(is_here).collect();
            section(&mut body, item, &of_item)?;
        }
        body.push_str("</section>\n");
    }
    let _ = writeln!(body, "<footer>{}</footer>", escaped(FOOTER));
    Ok(document(title, STYLE, &body))
}

/// Adds a table with one row for each paper.
fn overview(body: &mut String, papers: &[Chosen], documents: &[Document]) {
    let row = |chosen: &Chosen| {
        let one = counts(std::slice::from_ref(chosen), documents);
        let numbers = [
            one.items,
            one.with_command,
            one.measured,
            one.values,
            one.judged,
            one.hold,
            one.hold_not,
            one.tested,
        ];
        let mut cells = numbers.map(|number| number.to_string()).to_vec();
        cells.push(one.not_known.to_string());
        (chosen.paper.key.clone(), cells)
    };
    body.push_str(
        "<div class=\"wide\"><table class=\"stacked\"><thead><tr><th class=\"text\">paper</th>",
    );
    for name in COUNTED {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>");
    for (key, cells) in papers.iter().map(row) {
        let _ = write!(
            body,
            "<tr class=\"case\"><td class=\"text\" data-label=\"paper\">{}</td>",
            escaped(&key)
        );
        for (cell, name) in cells.iter().zip(COUNTED) {
            let _ = write!(body, "<td data-label=\"{name}\">{cell}</td>");
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></div>\n");
}

/// Adds the part of a TCP offload engine's (TOE's) gain that our measurement reaches, and the
/// limits of the measurement.
fn gain(body: &mut String, documents: &[Document]) {
    let answer = |name: &str| {
        let (key, rest) = name.split_once('/')?;
        let (id, wanted) = rest.split_once('.')?;
        let paper = papers::printed::paper(key)?;
        let item = paper.item(id)?;
        let judged = judge(item, latest(documents, paper, item));
        judged.into_iter().find(|one| one.value.id == wanted)
    };
    body.push_str("<h2>How much of the gain of the TOE does Ethernot reach?</h2><ul>");
    for name in ["convergence2005/3.latency", "convergence2005/3.throughput"] {
        let what = value(name).map_or("", |value| value.what.as_str());
        let text = match answer(name) {
            Some(one) if one.ours.is_some() => one.outcome,
            _ => "not measured; `ethernot paper convergence2005 --figure 3`".to_owned(),
        };
        let _ = write!(body, "<li>{}: {}</li>", escaped(what), escaped(&text));
    }
    let _ = writeln!(
        body,
        "</ul><h2>What can these measurements not show?</h2><p>{}</p>",
        escaped(CANNOT_SHOW)
    );
}

/// Adds a matrix with one cell for each item.
fn matrix(body: &mut String, papers: &[Chosen], documents: &[Document]) {
    body.push_str("<h2>All figures and tables</h2><ul class=\"legend\">");
    for state in State::ALL {
        let (class, name) = (state.class(), state.name());
        let _ = write!(body, "<li><span class=\"{class}\"></span>{name}</li>");
    }
    body.push_str("</ul>\n");
    for Chosen { paper, items } in papers {
        let _ = write!(body, "<div class=\"matrix\"><b>{}</b>", escaped(&paper.key));
        for &item in items {
            let judged = judge(item, latest(documents, paper, item));
            let state = State::of(&judged);
            let place = escaped(&item.place);
            let title = escaped(&item.title);
            let _ =
                write!(body, "<span class=\"{}\" title=\"{title}\">{place}</span>", state.class());
        }
        body.push_str("</div>\n");
    }
}

/// The state of an item, shown by its colour.
#[derive(Clone, Copy)]
enum State {
    Holds,
    HoldsNot,
    Shown,
    NotMeasured,
    NoCode,
}

impl State {
    const ALL: [Self; 5] =
        [Self::Holds, Self::HoldsNot, Self::Shown, Self::NotMeasured, Self::NoCode];

    fn of(judged: &[Judged]) -> Self {
        let has = |verdict| judged.iter().any(|one| one.verdict == verdict);
        if has(Verdict::NoCode) {
            Self::NoCode
        } else if has(Verdict::NotMeasured) {
            Self::NotMeasured
        } else if has(Verdict::HoldsNot) {
            Self::HoldsNot
        } else if has(Verdict::Holds) {
            Self::Holds
        } else {
            Self::Shown
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsNot => "holds-not",
            Self::Shown => "shown",
            Self::NotMeasured => "not-measured",
            Self::NoCode => "no-code",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Holds => "all judged values hold",
            Self::HoldsNot => "at least one value does not hold",
            Self::Shown => "measured, but no value to judge",
            Self::NotMeasured => "not measured",
            Self::NoCode => "no code yet",
        }
    }
}

/// Adds a figure. For each machine, adds our curves with the printed points, the table, the command
/// and the description of the machine.
fn section(
    body: &mut String,
    item: &'static Item,
    documents: &[&Document],
) -> Result<(), ChartError> {
    let _ = writeln!(body, "<h3>{}: {}</h3>", escaped(&item.place), escaped(&item.title));
    let all: Vec<Option<&Document>> = if documents.is_empty() {
        vec![None]
    } else {
        documents.iter().copied().map(Some).collect()
    };
    for document in all {
        let _ = writeln!(body, "<p class=\"origin\">{}</p>", escaped(&origin(item, document)));
        if let Some(document) = document {
            for note in &document.notes {
                let _ = writeln!(body, "<p>{}</p>", escaped(note));
            }
            charts(body, item, document)?;
        }
        let rows = judge(item, document).into_iter().map(|one| value_row(&one));
        body.push_str(&page_table(&VALUES, rows));
    }
    Ok(())
}

/// Adds one chart for each panel that has several positions on its axis.
fn charts(body: &mut String, item: &Item, document: &Document) -> Result<(), ChartError> {
    let mut panels: Vec<&str> = Vec::new();
    for series in &document.series {
        let is_chart = series.points.iter().filter(|point| is_drawable(point.at)).count() > 1;
        if is_chart && series.x != "column" && !panels.contains(&series.panel.as_str()) {
            panels.push(&series.panel);
        }
    }
    if panels.is_empty() {
        return Ok(());
    }
    body.push_str("<div class=\"charts\">\n");
    for panel in panels {
        let here: Vec<&Measured> =
            document.series.iter().filter(|series| series.panel == panel).collect();
        let mut drawn: Vec<Series> =
            here.iter().enumerate().map(|(at, one)| curve(at, one)).collect();
        let printed = printed_points(item, panel, &drawn);
        let mut names: Vec<(usize, &str)> =
            here.iter().enumerate().map(|(at, one)| (colour(at), one.name.as_str())).collect();
        if !printed.is_empty() {
            names.push((PAPER_COLOUR, "printed in the paper"));
            drawn.extend(printed);
        }
        let Some(first) = here.first() else { continue };
        if let Some(svg) = chart::draw_over(panel, &first.x, &first.unit, &drawn)? {
            let _ = writeln!(
                body,
                "<figure><figcaption>{}</figcaption>{}{svg}</figure>",
                escaped(panel),
                legend(names)
            );
        }
    }
    body.push_str("</div>\n");
    Ok(())
}

/// Returns the colour of our curve with this number in its chart. It is not the colour of the
/// printed points.
const fn colour(number: usize) -> usize {
    if number >= PAPER_COLOUR { number + 1 } else { number }
}

fn curve(number: usize, series: &Measured) -> Series {
    let colour = colour(number);
    let point = |point: &papers::document::Point| Point {
        message_bytes: point.at as u64,
        median: point.value,
        min: point.min,
        max: point.max,
        note: format!("{}, {}: {} {}", series.name, point.at, digits(point.value), series.unit),
    };
    let points = series.points.iter().filter(|point| is_drawable(point.at));
    Series { colour, points: points.map(point).collect() }
}

/// Returns whether a logarithmic axis of whole numbers can show this position.
fn is_drawable(at: f64) -> bool {
    at >= 1.0 && at.fract().abs() < 1e-9
}

/// Returns the numbers that the paper prints for this panel. A number with a known position becomes
/// a point. A number without a position becomes a line over the whole axis.
fn printed_points(item: &Item, panel: &str, drawn: &[Series]) -> Vec<Series> {
    let places = || drawn.iter().flat_map(|series| &series.points).map(|point| point.message_bytes);
    let (Some(first), Some(last)) = (places().min(), places().max()) else { return Vec::new() };
    let is_here = |value: &&Value| {
        value.panel.as_deref() == Some(panel) && !matches!(value.manner, Manner::Statement)
    };
    let series = item.values.iter().filter(is_here).filter_map(|one| {
        let number = one.value.filter(|_| !one.is_gain)?;
        let point = |message_bytes| Point {
            message_bytes,
            median: number,
            min: number,
            max: one.value_max.unwrap_or(number),
            note: format!("printed, {}: {}", one.what, one.text()),
        };
        let points = match &one.at {
            Some(At::Place(at)) if is_drawable(*at) => vec![point(*at as u64)],
            Some(At::Extreme(_)) => vec![point(first), point(last)],
            _ => return None,
        };
        Some(Series { colour: PAPER_COLOUR, points })
    });
    series.collect()
}

const COUNTED: [&str; 9] = [
    "items",
    "with command",
    "measured",
    "values",
    "judged",
    "hold",
    "hold not",
    "reason tested",
    "reason not known",
];

const CANNOT_SHOW: &str = "This machine has no TOE, InfiniBand or Myrinet, and both hosts run on it. Therefore the \
measurements cannot show how much work an adapter takes from a host's processor, what a second machine would change, \
or any absolute time of the papers' machines. Ratios are comparable: each ratio compares two stacks on the same \
machine, in the paper and here.";

const FOOTER: &str = "same: a simulation of the same system, judged by its relative error. ratio: the ratio of two \
stacks on the same machine, in the paper and here. statement: a statement of the paper, judged by a function of our \
results. absolute: a value of another machine, never judged. drawn only: the paper draws the value and prints no \
number. No value is read from a drawing.";

/// Index of the printed points' colour on all charts.
const PAPER_COLOUR: usize = 5;

const STYLE: &str = "h3 { margin: 2rem 0 .25rem; font-size: 1.05rem; }
.origin { overflow-wrap: anywhere; font-size: .9em; }
td, th { white-space: normal; padding: .25rem .5rem; overflow-wrap: break-word; vertical-align: top; }
.matrix { display: flex; flex-wrap: wrap; gap: .3rem; margin: .3rem 0; align-items: center; }
.matrix b { flex: 0 0 10rem; font-weight: 600; }
.matrix span { padding: .1rem .5rem; border-radius: 5px; color: #fff; }
.holds { background: #0b7a5f; } .holds-not { background: #b3323f; } .shown { background: #1668c7; }
.not-measured { background: #6b7280; } .no-code { background: #8a6d3b; }
@media (max-width: 700px) { body { padding: 1rem .75rem; font-size: 13px; } }
@media print { .wide { overflow: visible; border: 0; } figure, tr { break-inside: avoid; }
  body { max-width: none; padding: 0; font-size: 10px; } .matrix span { print-color-adjust: exact; } }
";

#[cfg(test)]
mod tests {
    use papers::document::{Document, Point as At, Series as Measured};
    use papers::printed::{self, Chosen};

    use super::*;

    fn page_of(documents: &[Document]) -> String {
        let papers: Vec<Chosen> = printed::all().iter().map(Chosen::whole).collect();
        papers_page(&papers, documents, &["a <note>".to_owned()]).unwrap()
    }

    #[test]
    fn the_page_is_self_contained_and_has_every_printed_value() {
        let page = page_of(&[]);
        for item in printed::all().iter().flat_map(|paper| &paper.items) {
            for value in &item.values {
                assert!(page.contains(&escaped(&value.what)), "{}", value.what);
                assert!(page.contains(&escaped(&value.text())), "{}", value.text());
            }
        }
        let own = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            assert!(!own.contains(reference), "{reference}");
        }
        assert!(page.contains("a &lt;note&gt;"));
    }

    #[test]
    fn curves_show_the_printed_points_and_the_first_screen_the_gain() {
        let mut document = Document::new("convergence2005", "3");
        let point =
            |at, value| At { at, value, min: value, max: value, samples: vec![], reason: None };
        let series = |name: &str, value| Measured {
            panel: "latency 1500".to_owned(),
            name: name.to_owned(),
            x: "message size (bytes)".to_owned(),
            unit: "µs".to_owned(),
            points: vec![point(1.0, value), point(1024.0, value * 2.0)],
        };
        document.series = vec![series("tcp", 10.0), series("sockets", 5.0)];
        let page = page_of(&[document]);
        assert!(
            page.contains("<svg") && page.contains("printed, latency of one byte in one direction")
        );
        assert!(page.contains("ours 0.50, theirs 0.86: ours is as good as theirs or better"));
    }

    #[test]
    fn the_legend_has_the_colours_of_the_curves() {
        let mut document = Document::new("convergence2005", "7");
        let point = |at| At { at, value: 1.0, min: 1.0, max: 1.0, samples: vec![], reason: None };
        let series = |number: usize| Measured {
            panel: "latency 1500".to_owned(),
            name: format!("curve {number}"),
            x: "message size (bytes)".to_owned(),
            unit: "µs".to_owned(),
            points: vec![point(1.0), point(1024.0)],
        };
        document.series = (0..7).map(series).collect();
        let page = page_of(&[document.clone()]);
        for (number, one) in document.series.iter().enumerate() {
            let colour = curve(number, one).colour;
            assert_ne!(colour, PAPER_COLOUR);
            let entry = format!("var(--series-{colour})\"></span>{}</li>", one.name);
            assert!(page.contains(&entry), "{entry}");
        }
    }
}
