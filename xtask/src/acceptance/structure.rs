//! Counts that describe the structure of the code: fields, constants, import cycles, documented
//! call paths, and protocol rules that the code cites.

mod fields;
mod lines;
mod public_names;

use std::path::Path;

use self::lines::SourceFile;
use super::found::{Failure, Found};
use super::{commits, constants};
use crate::constants as listed;
use crate::error::XtaskError;
use crate::tidy::{self, citations, hops};
use crate::workspace::Workspace;

/// A property of the sources that a row counts.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// In these structs of a crate, the fields that code in other files can write.
    OpenFields { package: &'static str, structs: &'static [&'static str] },
    /// Files in a crate's largest import cycle.
    Circle { package: &'static str },
    /// The number of files in the largest import cycle of each crate, summed over all crates.
    Circles,
    /// Constants that decide behaviour, and whose change makes no test fail. Takes hours.
    ConstantsUnnoticed,
    /// Number of constants that decide behaviour.
    Constants,
    /// Functions in a table of call paths in `docs/architecture.md`; the first table is 0.
    Hops { table: usize },
    /// Percentage of the protocol's rules that the code cites as implemented.
    RulesKept,
    /// Percentage of the protocol's rules that a test cites.
    RulesTested,
    /// Decrease of the number of lines of code that decide how threads wait, since the commit
    /// `since`.
    WaitingLinesFewer { since: &'static str, places: &'static [&'static str] },
    /// Decrease of the number of constants that decide how threads wait, since the commit `since`.
    WaitingConstantsFewer { since: &'static str, places: &'static [&'static str] },
    /// Increase of the number of lines of code of these crates, since the commit of `--against`.
    LinesMore { packages: &'static [&'static str] },
    /// Words in comments and documents for which the glossary has a replacement.
    Words,
    /// Names in code and names of files that contain words for which the glossary has a
    /// replacement.
    Names,
    /// Public functions whose documentation does not begin with a verb, or names no errors.
    BareDocs,
    /// Lines of Markdown that are too long, and paragraphs that have too many lines.
    LongMarkdown,
    /// Public names of the commit `since` that no longer exist and that the changelog does not
    /// contain.
    PublicNamesGone { since: &'static str },
}

/// Performs the count.
pub(super) fn count(
    workspace: &Workspace,
    commit: Option<&str>,
    count: Count,
) -> Result<Found, Failure> {
    let found = match count {
        Count::OpenFields { package, structs } => {
            sources(&workspace.root, package).and_then(|files| open_fields(&files, structs))
        }
        Count::Circle { package } => sources(&workspace.root, package).map(|files| circle(&files)),
        Count::Circles => circles(workspace),
        Count::ConstantsUnnoticed => unnoticed(workspace),
        Count::Constants => Ok(Found::plain(listed::count() as f64)),
        Count::Hops { table } => hop_count(workspace, table),
        Count::RulesKept => cited_share(workspace, |kept, _| kept),
        Count::RulesTested => cited_share(workspace, |_, tested| tested),
        Count::WaitingLinesFewer { since, places } => {
            fewer(workspace, since, places, lines::of_files)
        }
        Count::WaitingConstantsFewer { since, places } => {
            fewer(workspace, since, places, |files| {
                files.iter().map(|file| constants::constants(&file.text).len()).sum()
            })
        }
        Count::LinesMore { packages } => lines_more(workspace, commit, packages),
        Count::Words => plain(tidy::words::count(workspace)),
        Count::Names => plain(tidy::names::count(workspace)),
        Count::BareDocs => plain(tidy::item_docs::count(workspace)),
        Count::LongMarkdown => plain(tidy::long_markdown(workspace)),
        Count::PublicNamesGone { since } => public_names_gone(workspace, since),
    };
    found.map_err(Failure::CannotRun)
}

fn plain(count: Result<usize, XtaskError>) -> Result<Found, String> {
    count.map(|count| Found::plain(count as f64)).map_err(|error| error.to_string())
}

fn public_names_gone(workspace: &Workspace, since: &str) -> Result<Found, String> {
    let commit = commits::name(workspace, since)?;
    let git = |arguments: &[&str]| commits::git_text(workspace, arguments);
    let names = public_names::compare(&git, &commit)?;
    let listed =
        if names.gone.is_empty() { String::new() } else { format!(": {}", names.gone.join(", ")) };
    let note = format!(" (of {} at {commit}{listed})", names.all);
    Ok(Found { figure: names.gone.len() as f64, note, bare: None })
}

fn open_fields(files: &[SourceFile], structs: &[&str]) -> Result<Found, String> {
    let mut total = 0;
    let mut notes = Vec::new();
    for name in structs {
        let of_struct = files
            .iter()
            .find_map(|file| fields::open(&file.text, name))
            .ok_or_else(|| format!("no struct `{name}` with named fields"))?;
        total += of_struct;
        notes.push(format!("{of_struct} of {name}"));
    }
    Ok(Found { figure: total as f64, note: format!(" ({})", notes.join(", ")), bare: None })
}

fn circle(files: &[SourceFile]) -> Found {
    let places: Vec<(&str, &str)> =
        files.iter().map(|file| (file.place.as_str(), file.text.as_str())).collect();
    let circle = tidy::circles::largest(&places);
    let note = if circle.len() > 1 { format!(" ({})", circle.join(", ")) } else { String::new() };
    Found { figure: circle.len() as f64, note, bare: None }
}

fn circles(workspace: &Workspace) -> Result<Found, String> {
    let circles = tidy::circles::of_all(workspace).map_err(|error| error.to_string())?;
    let total: usize = circles.iter().map(|(_, files)| files).sum();
    let named: Vec<_> =
        circles.iter().map(|(package, files)| format!("{files} of {package}")).collect();
    let note = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    Ok(Found { figure: total as f64, note, bare: None })
}

fn unnoticed(workspace: &Workspace) -> Result<Found, String> {
    let names = listed::unnoticed(workspace).map_err(|error| error.to_string())?;
    let note = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    Ok(Found { figure: names.len() as f64, note, bare: None })
}

fn hop_count(workspace: &Workspace, table: usize) -> Result<Found, String> {
    let path = workspace.root.join(tidy::ARCHITECTURE);
    let text = std::fs::read_to_string(&path)
        .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    let count = hops::counts(&text).get(table).copied();
    let count = count.ok_or_else(|| format!("{} has no such table", tidy::ARCHITECTURE))?;
    Ok(Found::plain(f64::from(count)))
}

/// Returns the percentage of rules that are cited. `choose` gets two counts, the rules that code
/// cites and the rules that tests cite, and returns one of these counts.
fn cited_share(workspace: &Workspace, choose: fn(usize, usize) -> usize) -> Result<Found, String> {
    let rules = tidy::cited_rules(workspace, tidy::PROTOCOL).map_err(|error| error.to_string())?;
    let (kept, tested, all) = rules.cited();
    if all == 0 {
        return Err("no rules found".into());
    }
    let cited = choose(kept, tested);
    let note = format!(" ({cited} of {all})");
    Ok(Found { figure: 100.0 * cited as f64 / all as f64, note, bare: None })
}

fn lines_more(
    workspace: &Workspace,
    commit: Option<&str>,
    packages: &[&str],
) -> Result<Found, String> {
    let commit = commits::name(workspace, commit.ok_or("name a commit with --against")?)?;
    let (mut now, mut before) = (0, 0);
    for package in packages {
        now += lines::of_files(&sources(&workspace.root, package)?);
        before += lines::of_files(&sources_at(workspace, &commit, package)?);
    }
    let note = format!(" ({now} now, {before} at {commit})");
    Ok(Found { figure: now as f64 - before as f64, note, bare: None })
}

/// Returns by how much the sum of `count` over these files has decreased. A missing file counts
/// like an empty file.
fn fewer(
    workspace: &Workspace,
    since: &str,
    places: &[&str],
    count: fn(&[SourceFile]) -> usize,
) -> Result<Found, String> {
    let commit = commits::name(workspace, since)?;
    let (mut now, mut before) = (Vec::new(), Vec::new());
    for place in places {
        let file = |text| SourceFile { place: (*place).to_owned(), text };
        match std::fs::read_to_string(workspace.root.join(place)) {
            Ok(text) => now.push(file(text)),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            Err(cause) => return Err(format!("cannot read {place}: {cause}")),
        }
        let listed = commits::git_text(workspace, &["ls-tree", "--name-only", &commit, place])?;
        if !listed.trim().is_empty() {
            let text = commits::git_text(workspace, &["show", &format!("{commit}:{place}")])?;
            before.push(file(text));
        }
    }
    let (now, before) = (count(&now), count(&before));
    let note = format!(" ({now} now, {before} at {commit})");
    Ok(Found { figure: before as f64 - now as f64, note, bare: None })
}

/// Returns the current files of a crate.
fn sources(root: &Path, package: &str) -> Result<Vec<SourceFile>, String> {
    let folder = root.join("crates").join(package).join("src");
    let read_error = |path: &Path, cause| format!("cannot read {}: {cause}", path.display());
    let mut found = Vec::new();
    for path in constants::files(&folder).map_err(|cause| read_error(&folder, cause))? {
        let text = std::fs::read_to_string(&path).map_err(|cause| read_error(&path, cause))?;
        let place = path.strip_prefix(&folder).unwrap_or(&path).display().to_string();
        found.push(SourceFile { place, text });
    }
    found.retain(|file| !is_of_tests(&file.place));
    Ok(found)
}

/// Returns the files of a crate in a commit.
fn sources_at(
    workspace: &Workspace,
    commit: &str,
    package: &str,
) -> Result<Vec<SourceFile>, String> {
    let folder = format!("crates/{package}/src/");
    let listed = commits::git_text(workspace, &["ls-tree", "-r", "--name-only", commit, &folder])?;
    let mut found = Vec::new();
    for path in listed.lines() {
        let place = path.strip_prefix(&folder).unwrap_or(path).to_owned();
        let is_rust = Path::new(path).extension().is_some_and(|extension| extension == "rs");
        if is_rust && !is_of_tests(&place) {
            let text = commits::git_text(workspace, &["show", &format!("{commit}:{path}")])?;
            found.push(SourceFile { place, text });
        }
    }
    Ok(found)
}

/// Returns whether the file contains only tests.
fn is_of_tests(place: &str) -> bool {
    citations::is_test_file(&format!("/{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(place: &str, text: &str) -> SourceFile {
        SourceFile { place: place.into(), text: text.into() }
    }

    #[test]
    fn visible_fields_of_several_structs_are_added_and_named() {
        let files = [
            file("a.rs", "struct A {\n    pub(crate) a: u8,\n    b: u8,\n}\n"),
            file("b.rs", "pub struct B {\n    pub a: u8,\n    pub(super) b: u8,\n}\n"),
        ];
        let found = open_fields(&files, &["A", "B"]).expect("both are there");
        assert_eq!(found, Found { figure: 3.0, note: " (1 of A, 2 of B)".into(), bare: None });
    }

    #[test]
    fn a_missing_struct_does_not_count_as_one_without_visible_fields() {
        assert!(open_fields(&[file("a.rs", "struct A { a: u8 }\n")], &["A", "B"]).is_err());
    }

    #[test]
    fn the_files_of_an_import_cycle_are_named() {
        let files = [file("a.rs", "use crate::b::B;\n"), file("b.rs", "use crate::a::A;\n")];
        let found = circle(&files);
        assert_eq!(found, Found { figure: 2.0, note: " (a.rs, b.rs)".into(), bare: None });
        let found = circle(&[file("a.rs", "use crate::b::B;\n"), file("b.rs", "")]);
        assert_eq!(found, Found::plain(1.0));
    }

    #[test]
    fn test_files_are_recognized_by_name() {
        assert!(
            is_of_tests("tests.rs") && is_of_tests("a/tests.rs") && is_of_tests("a/tests/b.rs")
        );
        assert!(!is_of_tests("contests.rs") && !is_of_tests("a.rs"));
    }
}
