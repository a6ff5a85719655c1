//! Checks that each ignored test has a marker. For a slow test the marker names the suite that runs
//! the test. For a known failure it gives the cause.

use super::Violation;

const SLOW: &str = "slow: ";
const KNOWN_FAILURE: &str = "known failure: ";

/// A test that fails for a known reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KnownFailure {
    /// Name of the test function.
    pub(crate) test: String,
    /// The cause, from the test's marker.
    pub(crate) reason: String,
}

/// Checks that each `#[ignore]` of a file has a marker.
pub(super) fn check_ignored(place: &str, text: &str) -> Vec<Violation> {
    ignored(text)
        .filter_map(|Ignored { line, reason, .. }| {
            let what = what_is_wrong(&reason)?;
            Some(Violation { place: format!("{place}:{line}"), what })
        })
        .collect()
}

fn what_is_wrong(reason: &str) -> Option<String> {
    if reason.strip_prefix(KNOWN_FAILURE).is_some_and(|why| !why.is_empty()) {
        return None;
    }
    let Some(what_runs_it) = reason.strip_prefix(SLOW) else {
        return Some(format!(
            "a test is ignored for `{reason}`; begin its reason with `{SLOW}run by` and what runs it, or with \
             `{KNOWN_FAILURE}` and why it fails"
        ));
    };
    let is_named = suite_of(reason).is_some() || what_runs_it.starts_with("run by hand");
    (!is_named).then(|| {
        format!(
            "a slow test does not say what runs it: `{reason}`; write `{SLOW}run by` and an acceptance suite \
             (`` `./x acceptance NAME` ``) or `by hand`"
        )
    })
}

/// Returns the acceptance suite that runs a slow test, from its marker.
fn suite_of(reason: &str) -> Option<&str> {
    let named = reason.strip_prefix(SLOW)?.strip_prefix("run by `./x acceptance ")?;
    named.split_once('`').map(|(name, _)| name)
}

/// Returns the acceptance suites in the markers of a file's slow tests.
#[cfg(test)]
pub(crate) fn suites(text: &str) -> Vec<String> {
    ignored(text).filter_map(|found| suite_of(&found.reason).map(str::to_owned)).collect()
}

/// Returns the known failures of a file.
pub(crate) fn known_failures(text: &str) -> Vec<KnownFailure> {
    ignored(text)
        .filter_map(|Ignored { test, reason, .. }| {
            let reason = reason.strip_prefix(KNOWN_FAILURE)?.to_owned();
            Some(KnownFailure { test: test?, reason })
        })
        .collect()
}

/// An attribute `ignore`.
struct Ignored {
    /// Line where the attribute begins, from 1.
    line: usize,
    /// The reason in the attribute; empty if the attribute gives none.
    reason: String,
    /// The name of the test function that follows, if there is one.
    test: Option<String>,
}

fn ignored(text: &str) -> impl Iterator<Item = Ignored> + '_ {
    let mut offset = 0;
    let starts = text.split_inclusive('\n').enumerate().filter_map(move |(index, line)| {
        let start = offset;
        offset += line.len();
        line.trim_start().starts_with("#[ignore").then_some((index, start))
    });
    starts.map(|(index, start)| {
        let rest = text.get(start..).unwrap_or_default();
        let (attribute, behind) = rest.split_once("]\n").unwrap_or((rest, ""));
        let reason = attribute.split_once('"').map_or("", |(_, reason)| reason);
        let reason = reason.strip_suffix('"').unwrap_or(reason);
        // After a backslash at the end of a line, a reason continues on the next line.
        let pieces = reason.split("\\\n").map(str::trim_start);
        let test = behind.lines().find_map(|line| {
            let (_, name) = line.split_once("fn ")?;
            name.split_once('(').map(|(name, _)| name.to_owned())
        });
        Ignored { line: index + 1, reason: pieces.collect(), test }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(reason: &str) -> Option<String> {
        let text = format!("#[test]\n    #[ignore = \"{reason}\"]\nfn some() {{}}\n");
        check_ignored("a.rs", &text).pop().map(|violation| violation.to_string())
    }

    #[test]
    fn slow_tests_name_the_command_that_runs_them() {
        assert_eq!(wrong("slow: run by `./x acceptance waiting`; measures"), None);
        assert_eq!(wrong("slow: run by hand, in release mode"), None);
        let without = wrong("slow: takes minutes").unwrap();
        assert!(without.starts_with("a.rs:2: ") && without.contains("`slow: takes"), "{without}");
        let marker =
            "#[ignore = \"slow: run by `./x acceptance speeds`; measures\"]\nfn some() {}\n";
        assert_eq!(suites(marker), ["speeds"]);
    }

    #[test]
    fn missing_and_other_reasons_are_refused() {
        assert!(wrong("takes minutes").is_some_and(|what| what.contains("`takes minutes`")));
        assert!(wrong("known failure: ").is_some());
        assert!(!check_ignored("a.rs", "#[ignore]\nfn some() {}\n").is_empty());
    }

    #[test]
    fn known_failures_are_found_with_their_reasons() {
        let text = "#[test]\n#[ignore = \"known failure: two ends \\\n    wait\"]\n#[expect(a)]\nfn hangs() {}\n\
                    #[test]\n#[ignore = \"slow: run by hand\"]\nfn slow() {}\n";
        let expected = KnownFailure { test: "hangs".into(), reason: "two ends wait".into() };
        assert_eq!(known_failures(text), [expected]);
        assert!(check_ignored("a.rs", text).is_empty());
    }
}
