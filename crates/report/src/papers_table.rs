//! Shows five papers on a terminal: their items, and the comparison of their values with ours.

use std::fmt::Write;

use comfy_table::CellAlignment::{Left, Right};
use papers::document::Document;
use papers::judge::{Counts, Judged, Verdict, judge};
use papers::printed::{self, Chosen, Item, Paper, Value};

use crate::format::{date, digits};
use crate::rows::{Column, terminal_table};

/// Lists all items. Each has its command, the duration of the command, and the time and machine of
/// its latest measurement.
pub fn papers_list(papers: &[Chosen], documents: &[Document], columns: u16) -> String {
    let mut text = String::new();
    for Chosen { paper, items } in papers {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{}: {} ({})", paper.key, paper.title, paper.published);
        let row = |item: &&Item| list_row(item, latest(documents, paper, item));
        let _ = writeln!(text, "{}\n", terminal_table(&LIST, items.iter().map(row), columns));
    }
    let _ = writeln!(text, "{}", totals(&counts(papers, documents)));
    text
}

/// Draws a table of all printed values and our values.
pub fn papers_table(papers: &[Chosen], documents: &[Document], columns: u16) -> String {
    let mut text = String::new();
    for Chosen { paper, items } in papers {
        let _ = writeln!(text, "{}: {} ({})", paper.key, paper.title, paper.published);
        for &item in items {
            let document = latest(documents, paper, item);
            let _ = writeln!(text, "\n{}: {}", item.place, item.title);
            let _ = writeln!(text, "{}", origin(item, document));
            let rows = judge(item, document).into_iter().map(|one| value_row(&one));
            let _ = writeln!(text, "{}", terminal_table(&VALUES, rows, columns));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}", totals(&counts(papers, documents)));
    text
}

/// Returns the newest document of an item. If there are documents with results, returns the newest
/// of those.
pub(crate) fn latest<'a>(
    documents: &'a [Document],
    paper: &Paper,
    item: &Item,
) -> Option<&'a Document> {
    let is_here = |one: &&Document| one.paper == paper.key && one.item == item.id;
    let rank = |one: &&Document| (one.cannot_run.is_none(), one.unix_seconds);
    documents.iter().filter(is_here).max_by_key(rank)
}

/// Returns the number of items of these papers in each state.
pub(crate) fn counts(papers: &[Chosen], documents: &[Document]) -> Counts {
    let mut counts = Counts::default();
    for Chosen { paper, items } in papers {
        for &item in items {
            let document = latest(documents, paper, item);
            let is_measured = document.is_some_and(|one| one.cannot_run.is_none());
            counts.add(item, is_measured, &judge(item, document));
        }
    }
    counts
}

fn totals(counts: &Counts) -> String {
    let Counts { items, with_command, measured, values, judged, hold, hold_not, tested, not_known } =
        counts;
    format!(
        "{items} figures and tables, {with_command} with a command, {measured} measured; {values} \
         printed values and statements, {judged} judged: {hold} hold, {hold_not} do not hold; the \
         reason for this is tested for {tested} and not known for {not_known}"
    )
}

/// Returns the command, the machine and the time of a measurement, or the reason why there is none.
pub(crate) fn origin(item: &Item, document: Option<&Document>) -> String {
    let Some(document) = document else {
        return match &item.waits_for {
            Some(what) => format!("no code yet: waits for {what}"),
            None => format!("not measured; `ethernot {}`", item.command.join(" ")),
        };
    };
    if let Some(why) = &document.cannot_run {
        return format!("not measured: {why}");
    }
    let machine = &document.machine;
    let spread = document.spread_percent().map_or_else(String::new, |spread| {
        let mark = if spread > SPREAD_PERCENT_MAX { ": the machine was busy" } else { "" };
        format!(", spread at most ± {} %{mark}", digits(spread))
    });
    let quick = if document.is_quick { ", a quick run" } else { "" };
    format!(
        "{}{quick}; {}, {}, {} processors, Linux {}; commit {}; {} in {} s, load {:.1}{spread}",
        document.command,
        machine.host,
        machine.cpu,
        machine.cpus,
        machine.kernel,
        document.commit,
        date(document.unix_seconds),
        digits(document.seconds),
        document.load,
    )
}

fn list_row(item: &Item, document: Option<&Document>) -> [String; 5] {
    let seconds = format!("{} / {} s", item.seconds_quick, item.seconds_full);
    let (command, seconds) = match &item.waits_for {
        Some(what) => (format!("no code yet: {what}"), String::new()),
        None => (format!("ethernot {}", item.command.join(" ")), seconds),
    };
    let measured = match document {
        Some(one) if one.cannot_run.is_none() => {
            format!("{} on {}", date(one.unix_seconds), one.machine.host)
        }
        Some(_) => "cannot run here".to_owned(),
        None => "–".to_owned(),
    };
    [format!("{} ({})", item.id, item.place), item.title.clone(), command, seconds, measured]
}

/// Returns the cells of a value.
pub(crate) fn value_row(judged: &Judged) -> [String; 7] {
    let value = judged.value;
    let ours = judged.ours.map_or_else(String::new, |ours| {
        let unit = if value.over.is_some() { "×" } else { &value.unit };
        format!("{} {unit}", digits(ours))
    });
    let spread = judged.spread_percent.map_or_else(String::new, |one| format!("± {}", digits(one)));
    let mut printed = value.text();
    if let Some(remark) = &value.remark {
        let _ = write!(printed, " ({remark})");
    }
    for see in &value.see {
        let other = printed::value(see).map(Value::text).unwrap_or_default();
        let _ = write!(printed, "; {see}: {other}");
    }
    let mut verdict = judged.verdict.name().to_owned();
    if let Some(why) = &judged.reason {
        let _ = write!(verdict, "; {}", why.text());
    }
    if judged.verdict == Verdict::NotCovered {
        verdict.push_str(": none of our measurements covers this value");
    }
    [
        value.what.clone(),
        printed,
        ours,
        spread,
        value.manner.name().to_owned(),
        judged.outcome.clone(),
        verdict,
    ]
}

const LIST: [Column; 5] = [
    ("item", Left),
    ("what", Left),
    ("regenerated by", Left),
    ("quick / full", Right),
    ("last measured", Left),
];

pub(crate) const VALUES: [Column; 7] = [
    ("what", Left),
    ("printed", Left),
    ("ours", Right),
    ("%", Right),
    ("manner", Left),
    ("compared", Left),
    ("verdict", Left),
];

/// Largest spread that is not marked in the table, in percent.
const SPREAD_PERCENT_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use papers::printed;

    use super::*;

    #[test]
    fn the_list_has_every_item_and_marks_pending_ones() {
        let papers: Vec<Chosen> = printed::all().iter().map(Chosen::whole).collect();
        let list = papers_list(&papers, &[], 200);
        assert!(list.contains("no code yet: programs of PARMACS"), "{list}");
        assert!(list.contains("35 figures and tables"), "{list}");
    }

    #[test]
    fn contradictory_values_are_shown_side_by_side() {
        let papers = vec![Chosen::whole(printed::paper("convergence2005").unwrap())];
        let text = papers_table(&papers, &[], 400);
        assert!(text.contains("toe2005/10.latency: 8.6 / 10.5 µs"), "{text}");
    }
}
