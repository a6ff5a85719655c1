//! `cargo xtask constants`: checks for each freely chosen constant that a test fails if the
//! constant has no effect.
//!
//! Does the following for each constant of [`table`] that decides behaviour: replaces its value in
//! a copy of the sources by its neutral value, which switches the effect off. Then runs tests, the
//! cheapest first, until one of them fails.

mod ladder;
pub(crate) mod sources;
mod table;
mod trial;

use std::process::ExitCode;

use self::ladder::ladder;
use self::table::{FILES, File, Kind};
use self::trial::{Copy, Said};
use crate::error::XtaskError;
use crate::workspace::Workspace;

/// Tries constants, and prints which tests fail for each. If there is a constant for which no test
/// fails, returns a failure.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let wishes = Wishes::parse(arguments)?;
    let chosen: Vec<_> = behaviours().filter(|(file, name, _)| wishes.wants(file, name)).collect();
    if chosen.is_empty() {
        let what = format!("no constant has {:?} in its path or name", wishes.only);
        return Err(XtaskError::Usage { what });
    }
    if wishes.is_list {
        for (file, name, neutral) in &chosen {
            println!("{} | {name} | {neutral}", path(file));
        }
        println!("constants: {} that decide behaviour, of {}", chosen.len(), total());
        return Ok(ExitCode::SUCCESS);
    }
    println!("file | constant | neutral value | noticed by");
    let unnoticed = try_all(workspace, &chosen)?;
    println!("constants that nothing notices: {} of {}", unnoticed.len(), chosen.len());
    Ok(if unnoticed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tries all constants. Returns the names of the constants for which no test fails.
pub(crate) fn unnoticed(workspace: &Workspace) -> Result<Vec<String>, XtaskError> {
    try_all(workspace, &behaviours().collect::<Vec<_>>())
}

fn try_all(workspace: &Workspace, chosen: &[Chosen]) -> Result<Vec<String>, XtaskError> {
    let copy = Copy::create(workspace)?;
    let mut unnoticed = Vec::new();
    for (file, name, neutral) in chosen {
        let noticed = noticed_by(&copy, file, name, neutral)?;
        if noticed.is_none() {
            unnoticed.push((*name).to_owned());
        }
        let shown = noticed.unwrap_or_else(|| "nothing".to_owned());
        println!("{} | {name} | {neutral} | {shown}", path(file));
    }
    Ok(unnoticed)
}

/// A constant that decides behaviour: its file, its name, and its neutral value, which turns the
/// mechanism off or removes the mechanism's limit.
type Chosen = (&'static File, &'static str, &'static str);

/// The parsed arguments.
#[derive(Debug, Default)]
struct Wishes {
    /// Only constants with one of these texts in their path or name.
    only: Vec<String>,
    is_list: bool,
}

impl Wishes {
    fn parse(arguments: &[String]) -> Result<Self, XtaskError> {
        let mut wishes = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => wishes.is_list = true,
                "--only" => wishes.only.extend(words.next().cloned()),
                other => {
                    let what = format!("constants {other}: --list or --only TEXT is known");
                    return Err(XtaskError::Usage { what });
                }
            }
        }
        Ok(wishes)
    }

    fn wants(&self, file: &File, name: &str) -> bool {
        let path = path(file);
        self.only.is_empty()
            || self.only.iter().any(|text| path.contains(text) || name.contains(text))
    }
}

/// Returns the first group of tests in which a test fails, and the first such test.
fn noticed_by(
    copy: &Copy,
    file: &File,
    name: &str,
    neutral: &str,
) -> Result<Option<String>, XtaskError> {
    copy.with_value(&path(file), name, neutral, |copy| {
        for rung in ladder(file.package) {
            let manner = if rung.is_scenario { "scenario" } else { "test" };
            let said = match copy.run(rung)? {
                Said::Nothing => continue,
                Said::DoesNotCompile => "an assertion at compile time".to_owned(),
                Said::DoesNotEnd => format!("{} tests, which do not end", rung.package),
                Said::Fails(failed) => match failed.split_first() {
                    Some((first, [])) => format!("{manner} {first} ({})", rung.package),
                    Some((first, others)) => {
                        format!("{manner} {first} ({}) and {} more", rung.package, others.len())
                    }
                    None => format!("{} tests, which crash", rung.package),
                },
            };
            return Ok(Some(said));
        }
        Ok(None)
    })
}

/// Returns the constants that decide behaviour, with their neutral values.
fn behaviours() -> impl Iterator<Item = Chosen> {
    FILES.iter().flat_map(|file| {
        file.constants.iter().filter_map(move |(name, kind)| match kind {
            Kind::Behaviour(neutral) => Some((file, *name, *neutral)),
            Kind::Fixed(_) => None,
        })
    })
}

/// Returns how many constants decide behaviour.
pub(crate) fn count() -> usize {
    behaviours().count()
}

fn total() -> usize {
    FILES.iter().map(|file| file.constants.len()).sum()
}

/// Returns the path of a file, relative to the root.
fn path(file: &File) -> String {
    format!("crates/{}/src/{}", file.package, file.place)
}

/// Crates in which each chosen constant must be listed.
const PACKAGES: [&str; 4] = ["delivery", "engine", "semantics", "runtime"];

/// Returns the constants of a file that are missing from the table, and the constants of the table
/// that are missing from the file.
///
/// `place` is the path relative to the root.
pub(crate) fn check_listed(place: &str, text: &str) -> Vec<String> {
    let Some((package, inside)) =
        place.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/"))
    else {
        return Vec::new();
    };
    let is_test = inside.ends_with("tests.rs") || inside.contains("tests/");
    if !PACKAGES.contains(&package) || is_test {
        return Vec::new();
    }
    let file = FILES.iter().find(|file| file.package == package && file.place == inside);
    let listed = file.map_or(&[] as &[_], |file| file.constants);
    let there = sources::chosen(text);
    let missing = there.iter().filter(|one| !listed.iter().any(|(name, _)| *name == one.name));
    let gone = listed.iter().filter(|(name, _)| !there.iter().any(|one| one.name == *name));
    missing
        .map(|one| {
            format!(
                "the constant {} is not in {TABLE}; add it with its neutral value, and a scenario that fails with that",
                one.name
            )
        })
        .chain(gone.map(|(name, _)| format!("{TABLE} has a constant {name} of this file; remove it")))
        .collect()
}

const TABLE: &str = "xtask/src/constants/table.rs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_and_missing_constants_are_named() {
        let place = "crates/delivery/src/loss.rs";
        let listed = check_listed(place, "const NEW: u32 = 1;\n");
        assert!(listed[0].contains("the constant NEW is not in"), "{listed:?}");
        assert!(listed.iter().any(|what| what.contains("has a constant REORDER_PACKETS")));
        assert!(check_listed("crates/bench/src/loss.rs", "const NEW: u32 = 1;\n").is_empty());
        assert!(check_listed("crates/engine/src/x/tests.rs", "const NEW: u32 = 1;\n").is_empty());
    }

    #[test]
    fn constants_are_selected_by_path_or_name() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let wishes = Wishes::parse(&words("--only loss.rs --only HOLD_NS")).unwrap();
        let chosen = behaviours().filter(|(file, name, _)| wishes.wants(file, name)).count();
        assert_eq!(chosen, 5);
        assert!(Wishes::parse(&words("--all")).is_err());
    }
}
