//! Checks of the public Rust API: every item has an example, errors name a remedy, and changes are
//! visible.
//!
//! `docs/api/ethernot.txt` lists all public items of the crate `ethernot`, and a test compares the
//! list with the code. So every change of the API appears as a change of that file.
//! `docs/api/released.txt` is the listing of the last release, if there is one. If there are
//! breaking changes since that release, the version number must show this.

mod changes;
mod errors;
mod examples;
mod listing;
mod sources;

use std::fmt::Write as _;
use std::process::{Command, ExitCode};

use crate::count::Count;
use crate::error::XtaskError;
use crate::tidy::{files_below, read};
use crate::workspace::Workspace;

use changes::Changes;
use listing::PublicItem;
use sources::Sources;

/// The crate whose API is public.
const CRATE: &str = "ethernot";

/// Crates whose types `ethernot` exports or whose errors it passes on.
const PACKAGES: [&str; 10] = [
    CRATE,
    "runtime",
    "links",
    "link",
    "engine",
    "semantics",
    "delivery",
    "work",
    "mem",
    "wire-edge",
];

/// The file with the recorded listing of the API.
const LISTING: &str = "docs/api/ethernot.txt";
const RELEASED: &str = "docs/api/released.txt";
const WITHOUT_EXAMPLE: &str = "docs/api/without-example.txt";
const WITHOUT_REMEDY: &str = "docs/api/without-remedy.txt";

/// The result of the checks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) without_example: Vec<String>,
    pub(crate) without_remedy: Vec<String>,
    /// Lines of the two lists of exceptions that match no item, and must therefore be removed.
    idle: Vec<String>,
    listing: String,
    since_kept: Changes,
    fault_of_versions: Option<String>,
}

impl Findings {
    /// Checks the API of this workspace.
    pub(crate) fn of(workspace: &Workspace) -> Result<Self, XtaskError> {
        let sources = Sources::load(workspace, &PACKAGES)?;
        let entries = listing::entries(&sources, CRATE);
        let corpus = corpus(workspace, &sources, &entries)?;
        let kept = |path: &str| read(&workspace.root.join(path)).unwrap_or_default();
        let (without_example, mut idle) =
            examples::missing(&entries, &corpus, &kept(WITHOUT_EXAMPLE));
        let (without_remedy, more) =
            errors::without_remedy(&errors::all(&sources), &kept(WITHOUT_REMEDY));
        idle.extend(more);
        let version = version(&kept("Cargo.toml"));
        let listing = text_of(&entries, &version);
        let since_kept = Changes::between(&kept(LISTING), &listing);
        let released = kept(RELEASED);
        let released_version = released.lines().find_map(|line| line.strip_prefix(VERSION));
        let fault_of_versions = released_version.and_then(|before| {
            Changes::between(&released, &listing).fault_of_versions(before, &version)
        });
        Ok(Self { without_example, without_remedy, idle, listing, since_kept, fault_of_versions })
    }

    /// Returns a text that names everything to correct.
    fn complaints(&self) -> String {
        let mut text = String::new();
        let mut section = |title: &str, lines: &[String]| {
            if !lines.is_empty() {
                let _infallible = writeln!(text, "{title}:\n  {}", lines.join("\n  "));
            }
        };
        section(
            &format!("without an example (write one, or a line in {WITHOUT_EXAMPLE})"),
            &self.without_example,
        );
        section(
            &format!(
                "errors without a remedy (say it behind \"; \", or a line in {WITHOUT_REMEDY})"
            ),
            &self.without_remedy,
        );
        section("lines of these lists that are of no use any more", &self.idle);
        section("changes that may break programs", &self.since_kept.breaking);
        section("additions", &self.since_kept.additions);
        section("version", self.fault_of_versions.as_slice());
        if !self.since_kept.is_empty() {
            text.push_str("if that is meant: UPDATE_SNAPSHOTS=1 cargo xtask api, and a line in CHANGELOG.md\n");
        }
        text
    }
}

/// Prints everything that must be corrected. Returns a failure if there is anything to correct.
/// With `UPDATE_SNAPSHOTS=1`, stores the listing.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    let mut found = Findings::of(workspace)?;
    let complaints = found.complaints();
    print!("{complaints}");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        let path = workspace.root.join(LISTING);
        std::fs::write(&path, &found.listing).map_err(|cause| XtaskError::Write { path, cause })?;
        found.since_kept = Changes::default();
    }
    println!("figure: public items without an example: {}", found.without_example.len());
    println!("figure: errors without a remedy: {}", found.without_remedy.len());
    Ok(if found.complaints().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the API with an earlier API. Prints whether programs written for the earlier API still
/// work, and all changes. The earlier API is that of the last release. Before the first release, it
/// is that of the last commit, or of the commit before if the last commit has the same API.
pub(crate) fn show(workspace: &Workspace) -> Result<Count, XtaskError> {
    let listing = Findings::of(workspace)?.listing;
    let bases = if let Ok(released) = read(&workspace.root.join(RELEASED)) {
        vec![(name_of_release(&released), released)]
    } else {
        let commits = [("the last commit", "HEAD"), ("the commit before the last", "HEAD~1")];
        let of_commit =
            |(name, revision): (&str, _)| Some((name.to_owned(), committed(workspace, revision)?));
        commits.into_iter().filter_map(of_commit).collect()
    };
    let Some(verdict) = verdict(&bases, &listing) else {
        println!("skipped: no release, and git does not know an earlier public API");
        return Ok(Count::ONE_SKIPPED);
    };
    println!("{verdict}");
    Ok(Count::ONE_PASSED)
}

/// Returns the comparison with the first of `bases` whose listing differs. If no listing differs,
/// returns the comparison with the last of `bases`.
fn verdict(bases: &[(String, String)], listing: &str) -> Option<String> {
    let mut last = None;
    for (name, base) in bases {
        let changes = Changes::between(base, listing);
        last = Some(changes.verdict(name));
        if !changes.is_empty() {
            break;
        }
    }
    last
}

fn name_of_release(listing: &str) -> String {
    let version = listing.lines().find_map(|line| line.strip_prefix(VERSION));
    format!("version {}", version.unwrap_or("unknown"))
}

/// Returns the listing in a commit, or `None` if git does not have it.
fn committed(workspace: &Workspace, revision: &str) -> Option<String> {
    let object = format!("{revision}:{LISTING}");
    let output =
        Command::new("git").arg("-C").arg(&workspace.root).args(["show", &object]).output();
    let shown = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(shown.stdout).ok()
}

/// Collects the code that tests execute: in the documentation of exported items, in guides, in the
/// README and in examples.
fn corpus(
    workspace: &Workspace,
    sources: &Sources,
    entries: &[PublicItem],
) -> Result<examples::Corpus, XtaskError> {
    let mut code: Vec<String> =
        entries.iter().map(|entry| examples::code_blocks(&entry.docs)).collect();
    code.extend(sources.crates().map(|(_, parsed)| examples::code_blocks(&parsed.docs)));
    for (_, parsed) in sources.crates() {
        code.extend(parsed.docs_of_impls().map(|docs| examples::code_blocks(&docs)));
    }
    code.push(examples::code_blocks(&read(&workspace.root.join("README.md"))?));
    let folder = workspace.root.join("crates").join(CRATE);
    for part in ["src/guide", "examples"] {
        for file in files_below(&folder.join(part), &workspace.target_dir)? {
            let text = read(&file)?;
            let is_code = file.extension().is_some_and(|extension| extension == "rs");
            code.push(if is_code { text } else { examples::code_blocks(&text) });
        }
    }
    Ok(examples::Corpus::new(code.iter().map(String::as_str)))
}

/// The beginning of the version line in a listing.
const VERSION: &str = "# version ";

fn text_of(entries: &[PublicItem], version: &str) -> String {
    let mut lines: Vec<String> = entries.iter().map(PublicItem::line).collect();
    lines.sort();
    lines.dedup();
    let header = format!(
        "# The public API of the crate `{CRATE}`, kept by `UPDATE_SNAPSHOTS=1 cargo xtask api`.\n{VERSION}{version}\n"
    );
    header + &lines.join("\n") + "\n"
}

/// Returns the version of the workspace.
fn version(manifest: &str) -> String {
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    line.map_or(String::new(), |rest| rest.trim_end_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_about_the_first_base_that_differs() {
        let base = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let same = "struct a::S\n";
        let verdict_of = |bases: Vec<_>| verdict(&bases, same);
        let before = base("b", "struct a::S\nstruct a::T\n");
        let both = verdict_of(vec![base("a", same), before]).expect("there are bases");
        assert!(both.contains("BREAKING, programs for b may"), "{both}");
        assert_eq!(verdict_of(vec![base("a", same)]).as_deref(), Some("public API: as in a"));
        assert_eq!(verdict_of(vec![]), None);
    }

    #[test]
    fn the_public_api_is_listed_and_shown_and_its_errors_have_remedies() {
        let found = Findings::of(&Workspace::load().unwrap()).unwrap();
        println!("figure: public items without an example: {}", found.without_example.len());
        println!("figure: errors without a remedy: {}", found.without_remedy.len());
        let complaints = found.complaints();
        assert!(complaints.is_empty(), "\n{complaints}");
    }

    #[test]
    #[ignore = "slow: run by `./x acceptance rust-api`; builds the documentation, and `./x test` builds it with warnings denied"]
    fn links_of_the_documentation_resolve() {
        let output = Command::new(env!("CARGO"))
            .args(["rustdoc", "--package", CRATE, "--lib", "--", "-W", "rustdoc::all"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        let broken = text
            .lines()
            .filter(|line| line.contains("link") && line.starts_with("warning: "))
            .count();
        println!("figure: links broken in rustdoc: {broken}");
        assert!(output.status.success() && broken == 0, "{text}");
    }
}
