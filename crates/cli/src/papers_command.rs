//! `ethernot paper`: measures the figures and tables of five papers, and compares them with the
//! printed values.

mod folder;
mod measuring;
mod series;
mod verbs_series;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use papers::difference::differences;
use papers::document::Document;
use papers::judge::{Counts, Why, judge};
use papers::printed::{self, Chosen};
use serde_json::{Value, json};
use testbed::clock;

use self::folder::{Folder, Found};
use self::measuring::Wanted;
use crate::output::{check_writable, print, terminal_columns, write_results, write_text};
use crate::{Failure, own_program};

/// Regenerate the figures and tables of five papers, and compare them with the printed values.
///
/// Without a name, lists papers and their items (figures and tables): the command of each item, its
/// duration, and the time and machine of its last measurement. With the name of a paper, or `all`,
/// measures the items that have no results yet, and shows all items. `diff A B` compares two
/// folders of results. The command stores each item as one document, so you can interrupt a run and
/// continue it later. If this machine cannot measure an item, the item's document contains the
/// reason.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot paper\n  \
    ethernot paper sandia1999\n  \
    ethernot paper convergence2005 --figure 3 --quick\n  \
    ethernot paper all --quick --html papers.html\n  \
    ethernot paper --from mine theirs --html papers.html\n  \
    ethernot paper diff before after")]
pub(crate) struct Arguments {
    /// A paper, `all`, or `diff` and two folders
    #[arg(value_name = "NAME")]
    words: Vec<String>,
    /// Only this figure or table, such as 3 or table1
    #[arg(long, value_name = "ID")]
    figure: Option<String>,
    /// Shorter runs with fewer sizes and samples
    #[arg(long)]
    quick: bool,
    /// Repeat items whose results are older than this, such as 30m, 12h or 7d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    since: Option<u64>,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "paper-results")]
    results: PathBuf,
    /// Show the results of these folders, and measure nothing
    #[arg(long, value_name = "FOLDER", num_args = 1.., conflicts_with_all = ["since", "quick"])]
    from: Vec<PathBuf>,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    if let ["diff", rest @ ..] = words.as_slice() {
        let [before, after] = rest else {
            return Err("`paper diff` compares two folders; name both".into());
        };
        return difference([before, after].map(PathBuf::from));
    }
    let name = match words.as_slice() {
        [] => None,
        [name] => Some(*name),
        _ => return Err("name one paper, or `all`; `ethernot paper` lists them".into()),
    };
    let papers = chosen(name, arguments.figure.as_deref())?;
    check_writable([&arguments.json, &arguments.html].into_iter().flatten().map(PathBuf::as_path))?;
    let found = if !arguments.from.is_empty() {
        folder::read(&arguments.from)
    } else if name.is_some() {
        let folder = Folder::create(&arguments.results)?;
        let kept = folder::read(std::slice::from_ref(&arguments.results));
        let wanted = wanted(&papers, arguments, &kept);
        let program = own_program()?;
        for group in measuring::groups(&wanted, arguments.quick) {
            measuring::measure(&program, &folder, &group, arguments.quick)?;
        }
        folder::read(std::slice::from_ref(&arguments.results))
    } else if arguments.results.is_dir() {
        folder::read(std::slice::from_ref(&arguments.results))
    } else {
        Found::default()
    };
    for note in &found.notes {
        eprintln!("ethernot: {note}");
    }
    if let Some(path) = &arguments.html {
        write_text(path, &report::papers_page(&papers, &found.documents, &found.notes)?)?;
    }
    let is_list = name.is_none() && arguments.from.is_empty();
    write_results(
        arguments.json.as_deref(),
        || Ok(format!("{:#}", to_json(&papers, &found))),
        || {
            let columns = terminal_columns(150);
            let documents = &found.documents;
            if is_list {
                report::papers_list(&papers, documents, columns)
            } else {
                report::papers_table(&papers, documents, columns)
            }
        },
    )
}

/// Returns the papers to show, with the selected items.
fn chosen(name: Option<&str>, figure: Option<&str>) -> Result<Vec<Chosen>, Failure> {
    let mut papers: Vec<Chosen> = match name {
        None | Some("all") => printed::all().iter().map(Chosen::whole).collect(),
        Some(name) => vec![printed::paper(name).map(Chosen::whole).ok_or_else(|| {
            let known: Vec<_> = printed::all().iter().map(|paper| paper.key.as_str()).collect();
            format!("unknown paper {name:?}; known papers are: {}, and `all`", known.join(", "))
        })?],
    };
    let Some(figure) = figure else { return Ok(papers) };
    let items = papers.iter().flat_map(|chosen| &chosen.items);
    let known: Vec<&str> = items.map(|item| item.id.as_str()).collect();
    for chosen in &mut papers {
        chosen.items.retain(|item| item.id == figure);
    }
    papers.retain(|chosen| !chosen.items.is_empty());
    if papers.is_empty() {
        let known = known.join(", ");
        return Err(format!("unknown figure {figure:?}; known figures are: {known}").into());
    }
    Ok(papers)
}

/// Returns the items to measure: those that have a command, and whose results are missing, come
/// from a quick run, or are too old.
fn wanted(papers: &[Chosen], arguments: &Arguments, kept: &Found) -> Vec<Wanted> {
    let now = clock::unix_seconds();
    let counts = |document: &Document| {
        let age = now.saturating_sub(document.unix_seconds);
        document.cannot_run.is_none()
            && (arguments.quick || !document.is_quick)
            && arguments.since.is_none_or(|since| age <= since)
    };
    let mut wanted = Vec::new();
    for Chosen { paper, items } in papers {
        for item in items.iter().filter(|item| item.has_command()) {
            let name = format!("{}/{}", paper.key, item.id);
            if !kept.documents.iter().any(|one| one.name() == name && counts(one)) {
                wanted.push((paper.key.as_str(), *item));
            }
        }
    }
    wanted
}

fn difference(folders: [PathBuf; 2]) -> Result<(), Failure> {
    if let Some(missing) = folders.iter().find(|folder| !folder.is_dir()) {
        return Err(format!("{} is not a folder; name a results folder", missing.display()).into());
    }
    let [before, after] = folders.map(|folder| folder::read(&[folder]));
    for note in before.notes.iter().chain(&after.notes) {
        eprintln!("ethernot: {note}");
    }
    let found = differences(&before.documents, &after.documents);
    let changed = found.iter().filter(|one| one.has_changed_verdict).count();
    let mut text =
        format!("{} values differ; the verdict of {changed} of them changed\n", found.len());
    for one in &found {
        let mark = if one.has_changed_verdict { "VERDICT " } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark}{}: {} -> {}", one.name, one.before, one.after);
    }
    print(&text)
}

fn to_json(papers: &[Chosen], found: &Found) -> Value {
    let mut counts = Counts::default();
    let mut items = Vec::new();
    for Chosen { paper, items: chosen } in papers {
        for &item in chosen {
            let is_here = |one: &&Document| one.paper == paper.key && one.item == item.id;
            let documents: Vec<&Document> = found.documents.iter().filter(is_here).collect();
            let judged = judge(item, documents.first().copied());
            let is_measured = documents.iter().any(|one| one.cannot_run.is_none());
            counts.add(item, is_measured, &judged);
            items.push(json!({
                "paper": paper.key, "item": item.id, "place": item.place, "title": item.title,
                "command": item.command, "waits_for": item.waits_for,
                "values": judged.iter().map(|one| json!({
                    "id": one.value.id, "what": one.value.what, "printed": one.value.text(),
                    "manner": one.value.manner.name(), "ours": one.ours,
                    "spread_percent": one.spread_percent, "outcome": one.outcome,
                    "verdict": one.verdict.name(),
                    "reason": one.reason.as_ref().map(Why::text),
                    "reason_is_tested": one.reason.as_ref().map(|why| matches!(why, Why::Tested(_))),
                })).collect::<Vec<_>>(),
                "documents": documents,
            }));
        }
    }
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64 * 100.0;
    json!({
        "format": FORMAT,
        "summary": {
            "items": counts.items,
            "items_with_command": counts.with_command,
            "items_that_wait": counts.items - counts.with_command,
            "items_measured": counts.measured,
            "items_measured_percent": share(counts.measured, counts.with_command),
            "values": counts.values,
            "judged": counts.judged,
            "hold": counts.hold,
            "hold_not": counts.hold_not,
            "reason_tested": counts.tested,
            "not_known": counts.not_known,
            "not_known_percent": share(counts.not_known, counts.values),
        },
        "notes": found.notes,
        "items": items,
    })
}

/// Parses `30m`, `12h`, `7d` or a number of seconds.
fn parse_age(text: &str) -> Result<u64, String> {
    let factor = match text.chars().last() {
        Some('s' | '0'..='9') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => 0,
    };
    let number: Option<u64> = text.trim_end_matches(['s', 'm', 'h', 'd']).parse().ok();
    let seconds = number.filter(|_| factor > 0).and_then(|number| number.checked_mul(factor));
    seconds.ok_or_else(|| {
        format!("invalid age {text:?}: write a number with s, m, h or d, such as 12h")
    })
}

/// Name and version of the format that `--json` writes.
const FORMAT: &str = "ethernot-papers/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_papers_and_figures_are_refused_with_the_valid_ones() {
        let error = chosen(Some("sandia"), None).unwrap_err().to_string();
        assert!(error.contains("sandia1999") && error.contains("multiedge2007"), "{error}");
        let error = chosen(Some("toe2005"), Some("99")).unwrap_err().to_string();
        assert!(error.contains("10, 11"), "{error}");
        assert_eq!(chosen(Some("all"), Some("table1")).unwrap().len(), 2);
    }

    #[test]
    fn ages_have_units() {
        assert_eq!(
            [parse_age("30m"), parse_age("7d"), parse_age("5")],
            [Ok(1800), Ok(604_800), Ok(5)]
        );
        assert!(parse_age("x").is_err() && parse_age("").is_err());
    }
}
