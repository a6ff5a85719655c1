//! Rules of the project that the compiler does not check, applied to the whole repository.
//!
//! Each rule is a function that returns a list of [`Violation`]s. The test at the bottom requires
//! that this repository has no violation.

mod arrows;
pub(crate) mod circles;
pub(crate) mod citations;
mod columns;
pub(crate) mod hops;
pub(crate) mod ignored;
pub(crate) mod item_docs;
mod limits;
mod markdown;
pub(crate) mod names;
mod rfcs;
pub(crate) mod rules;
pub(crate) mod source;
pub(crate) mod without_tests;
pub(crate) mod words;

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::constants;
use crate::count::Count;
use crate::error::XtaskError;
use crate::workspace::Workspace;

/// The normative text of the protocol.
pub(crate) const PROTOCOL: &str = "docs/protocol.md";

/// The normative text of the protocol by which TCP connections move.
const SOCKETS_PROTOCOL: &str = "docs/sockets-protocol.md";

/// The normative text of the protocol of the distributed shared memory.
const DSM_PROTOCOL: &str = "docs/dsm-protocol.md";

/// The document that describes the call path of a write, and that of a received frame.
pub(crate) const ARCHITECTURE: &str = "docs/architecture.md";

/// A violation of a rule: the place, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path relative to the root, with a line number if there is one.
    place: String,
    /// The fault and the remedy.
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.what)
    }
}

/// Returns the number of lines of Markdown that are too long, and of paragraphs with too many lines.
pub(crate) fn long_markdown(workspace: &Workspace) -> Result<usize, XtaskError> {
    let mut count = 0;
    for file in files_below(&workspace.root, &workspace.target_dir)? {
        if file.extension().is_some_and(|extension| extension == "md") {
            let place = place(&workspace.root, &file);
            count += columns::check_columns(&place, &read(&file)?).len();
        }
    }
    Ok(count)
}

/// Prints every violation; fails if there are any.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    let (violations, summaries) = check(workspace)?;
    for violation in &violations {
        println!("{violation}");
    }
    for summary in &summaries {
        println!("tidy: {summary}");
    }
    println!("tidy: {} violations", violations.len());
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all rules as a step of `test` or `check`. All violations together count as one failure.
pub(crate) fn test(workspace: &Workspace) -> Result<Count, XtaskError> {
    let (violations, _) = check(workspace)?;
    for violation in &violations {
        println!("{violation}");
    }
    Ok(if violations.is_empty() { Count::NONE } else { Count::ONE_FAILED })
}

/// Applies every rule to the repository. Returns the violations, and one-line summaries.
fn check(workspace: &Workspace) -> Result<(Vec<Violation>, Vec<String>), XtaskError> {
    let mut violations = Vec::new();
    let files = files_below(&workspace.root, &workspace.target_dir)?;

    violations.extend(arrows::check_arrows(workspace));
    violations.extend(circles::check_circles(workspace)?);
    let documented = read(&workspace.root.join("docs/dependencies.md"))?;
    violations.extend(arrows::check_documented(workspace, &documented));
    let crates = workspace.root.join("crates");
    for document in [PROTOCOL, "docs/sender.md"] {
        let text = read(&workspace.root.join(document))?;
        violations
            .extend(limits::check_limits(document, &text, |file| read(&crates.join(file)).ok()));
    }
    let text = read(&workspace.root.join(ARCHITECTURE))?;
    violations.extend(hops::check_hops(ARCHITECTURE, &text, |file| read(&crates.join(file)).ok()));

    violations.extend(check_entrances(&workspace.root));
    for file in &files {
        let place = place(&workspace.root, file);
        violations.extend(source::check_name(&place));
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let text = read(file)?;
                violations.extend(source::check_text(&place, &text));
                violations.extend(ignored::check_ignored(&place, &text));
                let unlisted = constants::check_listed(&place, &text).into_iter();
                violations.extend(unlisted.map(|what| Violation { place: place.clone(), what }));
                if arrows::is_sans_io(workspace, file) {
                    violations.extend(source::check_sans_io(&place, &text));
                }
            }
            Some("md") => {
                let text = read(file)?;
                violations.extend(markdown::check_links(&workspace.root, file, &text));
                violations.extend(columns::check_columns(&place, &text));
            }
            _ => {}
        }
    }
    for package in &workspace.packages {
        if arrows::may_be_unsafe(package) {
            continue;
        }
        for target in &package.targets {
            let text = read(&target.source)?;
            let place = place(&workspace.root, &target.source);
            violations.extend(source::check_forbids_unsafe(&place, &text));
        }
    }
    let (of_words, summary) = words::check_words(workspace)?;
    violations.extend(of_words);
    let (of_docs, of_functions) = item_docs::check_item_docs(workspace)?;
    violations.extend(of_docs);
    let (of_names, named) = names::check_names(workspace)?;
    violations.extend(of_names);
    let mut summaries = vec![summary, of_functions, named];
    for document in [PROTOCOL, SOCKETS_PROTOCOL, DSM_PROTOCOL] {
        let rules = cited_rules(workspace, document)?;
        summaries.push(rules.summary());
        violations.extend(rules.violations());
    }
    let rfcs = cited_rfcs(workspace)?;
    summaries.push(rfcs.summary());
    let of_rfcs = rfcs.violations().into_iter();
    violations.extend(of_rfcs.map(|(place, what)| Violation { place, what }));
    Ok((violations, summaries))
}

/// Checks that the scripts which the README and CI call exist and are executable.
fn check_entrances(root: &Path) -> Vec<Violation> {
    let can_be_run = |name: &&str| {
        std::fs::metadata(root.join(name))
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    ["x", ".ci/run"]
        .iter()
        .filter(|name| !can_be_run(name))
        .map(|name| Violation {
            place: (*name).to_owned(),
            what: "is missing or not executable, although README or the run of all checks calls it; restore it"
                .to_owned(),
        })
        .collect()
}

/// Returns the rules of a protocol, with the citations in code and in tests.
pub(crate) fn cited_rules(
    workspace: &Workspace,
    document: &str,
) -> Result<rules::Rules, XtaskError> {
    let mut rules = rules::Rules::of(document, &read(&workspace.root.join(document))?);
    for (place, text) in citing_files(workspace)? {
        rules.read(&place, &text);
    }
    Ok(rules)
}

/// Returns the rules of RFCs that code and tests cite.
fn cited_rfcs(workspace: &Workspace) -> Result<rfcs::Rfcs, XtaskError> {
    let mut rfcs = rfcs::Rfcs::default();
    for (place, text) in citing_files(workspace)? {
        rfcs.read(&place, &text);
    }
    Ok(rfcs)
}

/// Returns place and text of the Rust files that may cite rules: those of the crates, which
/// implement the protocols. The tests of this checker cite rules that do not exist.
fn citing_files(workspace: &Workspace) -> Result<Vec<(String, String)>, XtaskError> {
    let mut files = Vec::new();
    for folder in ["crates", "apps"] {
        files.extend(files_below(&workspace.root.join(folder), &workspace.target_dir)?);
    }
    files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .map(|file| Ok((place(&workspace.root, &file), read(&file)?)))
        .collect()
}

/// Returns the files of the repository, without the target folder and git's own files.
pub(crate) fn files_below(root: &Path, target_dir: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let read_error = |cause| XtaskError::Read { path: folder.clone(), cause };
        for entry in std::fs::read_dir(&folder).map_err(read_error)? {
            let entry = entry.map_err(read_error)?;
            let path = entry.path();
            let kind = entry.file_type().map_err(read_error)?;
            let is_built = path == target_dir
                || [".git", "target", "corpus", "artifacts"]
                    .iter()
                    .any(|name| path.ends_with(name));
            if kind.is_dir() && !is_built {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, XtaskError> {
    let bytes = std::fs::read(path)
        .map_err(|cause| XtaskError::Read { path: path.to_path_buf(), cause })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn place(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_follows_its_rules() {
        let (violations, _) = check(&Workspace::load().unwrap()).unwrap();
        let listed: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(listed.is_empty(), "\n{}", listed.join("\n"));
    }
}
