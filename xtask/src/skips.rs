//! The list of skipped tests, with reasons, at the end of a test run.

use std::collections::BTreeMap;
use std::fmt;

/// Skipped tests, by the reason that they printed.
#[derive(Debug, Default)]
pub(crate) struct Skips(BTreeMap<String, Vec<String>>);

impl Skips {
    /// Adds a test and the line it printed, such as `skipped: needs root`.
    pub(crate) fn add(&mut self, test: &str, line: &str) {
        let reason = line.split_once(": ").map_or(line, |(_, reason)| reason).trim();
        let tests = self.0.entry(reason.to_owned()).or_default();
        // A test that covers several cases may print the line several times.
        if !tests.iter().any(|other| other == test) {
            tests.push(test.to_owned());
        }
    }

    /// Adds the skipped tests of another part of the run.
    pub(crate) fn append(&mut self, other: Self) {
        for (reason, tests) in other.0 {
            self.0.entry(reason).or_default().extend(tests);
        }
    }
}

/// Prints each reason on a line, with its tests below. Prints nothing if no test was skipped.
impl fmt::Display for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(f, "== skipped, and why")?;
        for (reason, tests) in &self.0 {
            writeln!(f, "{reason}")?;
            let shown = tests.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>();
            let more = tests.len().saturating_sub(SHOWN_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(f, "    {}{more}", shown.join(", "))?;
        }
        writeln!(f, "{REMEDY}")
    }
}

/// Maximum number of test names printed per reason.
const SHOWN_MAX: usize = 8;

const REMEDY: &str = "To have them: run `./x test` as root, with a network, on Debian or Ubuntu, without X_NO_INSTALL: it \
    installs packages and fetches wheels. For tests in a guest: `./x guest build`. Tests that measure run in `./x acceptance SUITE`.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_listed_under_their_common_reason() {
        let mut skips = Skips::default();
        assert_eq!(skips.to_string(), "");
        skips.add("a", "skipped: needs root");
        skips.add("b", "skipped: tshark is not installed");
        let mut more = Skips::default();
        more.add("c", "skipped: needs root");
        more.add("c", "skipped: needs root");
        skips.append(more);
        let shown = skips.to_string();
        assert!(
            shown.contains("\nneeds root\n    a, c\ntshark is not installed\n    b\n"),
            "{shown}"
        );
        assert!(shown.contains("To have them:"), "{shown}");
    }

    #[test]
    fn a_long_list_is_truncated() {
        let mut skips = Skips::default();
        for number in 0..20 {
            skips.add(&number.to_string(), "skipped: so");
        }
        assert!(skips.to_string().contains("    0, 1, 2, 3, 4, 5, 6, 7 and 12 more\n"));
    }
}
