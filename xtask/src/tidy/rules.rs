//! Checks that code and a test cite each rule of a protocol.
//!
//! In the text, a rule begins with its name in brackets: `[close.2]`. A comment
//! `//= protocol.md: close.2` cites this rule of the file `protocol.md`. Above an item of the code,
//! the comment means that the item implements the rule. Above a test, the comment means that the
//! test covers the rule.

use std::collections::BTreeMap;

use super::Violation;
use super::citations::{ADRIFT, citations};

/// Minimum percentage of rules with a test.
const TESTED_PERCENT_MIN: usize = 95;

/// The rules of a text, and their citations.
pub(crate) struct Rules {
    /// Path of the text, relative to the root.
    place: String,
    /// The beginning of each citation of this text.
    mark: String,
    by_name: BTreeMap<String, Rule>,
    violations: Vec<Violation>,
}

/// One rule.
struct Rule {
    /// Line in the text, from 1.
    line: usize,
    is_kept: bool,
    is_tested: bool,
}

impl Rules {
    /// Finds the rules of the text `text` at `place`.
    pub(super) fn of(place: &str, text: &str) -> Self {
        let file = place.rsplit('/').next().unwrap_or(place);
        let mut found = Self {
            place: place.to_owned(),
            mark: format!("//= {file}:"),
            by_name: BTreeMap::new(),
            violations: Vec::new(),
        };
        for (line, name) in names(text) {
            let rule = Rule { line, is_kept: false, is_tested: false };
            if found.by_name.insert(name.to_owned(), rule).is_some() {
                found.violate(format!("{place}:{line}"), format!("a second rule `{name}`"));
            }
        }
        found
    }

    /// Finds citations in the Rust file `text` at `place`.
    pub(super) fn read(&mut self, place: &str, text: &str) {
        for citation in citations(place, text, &self.mark) {
            let here = format!("{place}:{}", citation.line);
            if !citation.is_above_item {
                self.violate(here.clone(), ADRIFT.into());
            }
            for name in citation.text.split(',').map(str::trim) {
                match self.by_name.get_mut(name) {
                    Some(rule) if citation.is_test => rule.is_tested = true,
                    Some(rule) => rule.is_kept = true,
                    None => {
                        self.violate(here.clone(), format!("{} has no rule `{name}`", self.place));
                    }
                }
            }
        }
    }

    /// Returns the violations: citations of unknown rules, rules that no code cites, and a
    /// percentage of tested rules below the minimum.
    pub(super) fn violations(mut self) -> Vec<Violation> {
        if self.by_name.is_empty() {
            self.violate(self.place.clone(), "no rules found".into());
        }
        for (name, line) in self.without(|rule| rule.is_kept) {
            let what =
                format!("no code cites the rule: `{} {name}` above what keeps it", self.mark);
            self.violate(format!("{}:{line}", self.place), what);
        }
        let untested = self.without(|rule| rule.is_tested).len();
        if (self.by_name.len() - untested) * 100 < self.by_name.len() * TESTED_PERCENT_MIN {
            let what = format!("{untested} of {} rules are cited by no test", self.by_name.len());
            self.violate(self.place.clone(), what);
        }
        self.violations
    }

    /// Returns a text with the number of rules, and the names of the rules that no test cites.
    pub(super) fn summary(&self) -> String {
        let untested: Vec<String> =
            self.without(|rule| rule.is_tested).into_iter().map(|(name, _)| name).collect();
        let names = if untested.is_empty() { "none".to_owned() } else { untested.join(", ") };
        format!("{}: {} rules, without a test: {names}", self.place, self.by_name.len())
    }

    /// Returns three counts: the rules that code cites, the rules that tests cite, and all rules.
    pub(crate) fn cited(&self) -> (usize, usize, usize) {
        let all = self.by_name.len();
        let unkept = self.without(|rule| rule.is_kept).len();
        let untested = self.without(|rule| rule.is_tested).len();
        (all - unkept, all - untested, all)
    }

    /// Returns names and lines of the rules for which `has` is false, in the order of the text.
    fn without(&self, has: impl Fn(&Rule) -> bool) -> Vec<(String, usize)> {
        let mut found: Vec<(String, usize)> = self
            .by_name
            .iter()
            .filter(|(_, rule)| !has(rule))
            .map(|(name, rule)| (name.clone(), rule.line))
            .collect();
        found.sort_by_key(|(_, line)| *line);
        found
    }

    fn violate(&mut self, place: String, what: String) {
        self.violations.push(Violation { place, what });
    }
}

/// Returns the names of rules, such as `[area.1]`, with their lines. Ignores names in code, and
/// names of links.
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices('[') {
            let Some((name, after)) = line.get(at + 1..).and_then(|rest| rest.split_once(']'))
            else {
                continue;
            };
            let is_code = line.get(..at).is_some_and(|before| before.ends_with('`'));
            if is_name(name) && !is_code && !after.starts_with('(') {
                found.push((index + 1, name));
            }
        }
    }
    found
}

/// Returns whether `name` has the form of a rule name, such as `area.1`: an area of one or several
/// words in lower case, and a number.
fn is_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c == '-';
    name.split_once('.').is_some_and(|(area, number)| {
        let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
        !area.is_empty() && area.chars().all(is_word) && is_number
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[close.1] Close is repeated.\n| cell | [set-up.2] so |\n\
                        A list [blocks], a link [close.9](close.md), a word `[close.8]`.\n";
    const KEPT: &str = "//= p.md: close.1, set-up.2\n/// Closes.\n#[must_use]\nfn close() {}\n";
    const SHOWN: &str = "mod tests {\n    //= p.md: close.1\n    //= p.md: set-up.2\n    #[test]\n    fn a() {}\n}\n";

    /// Returns the violations of a text whose code is these files.
    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let mut rules = Rules::of("p.md", TEXT);
        for (place, text) in files {
            rules.read(place, text);
        }
        rules.violations().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn implemented_and_tested_rules_pass() {
        assert!(check(&[("a.rs", KEPT), ("b.rs", SHOWN)]).is_empty());
    }

    #[test]
    fn a_rule_that_no_code_cites_is_found() {
        let found = check(&[("b.rs", SHOWN)]);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found.first().map(String::as_str),
            Some("p.md:1: no code cites the rule: `//= p.md: close.1` above what keeps it")
        );
    }

    #[test]
    fn a_citation_of_a_missing_rule_is_found() {
        let stale = "//= p.md: close.7\nfn close() {}\n";
        assert_eq!(
            check(&[("a.rs", KEPT), ("b.rs", SHOWN), ("c.rs", stale)]),
            ["c.rs:1: p.md has no rule `close.7`"]
        );
    }

    #[test]
    fn rules_without_a_test_are_counted_and_named() {
        assert_eq!(check(&[("a.rs", KEPT)]), ["p.md: 2 of 2 rules are cited by no test"]);
        let mut rules = Rules::of("p.md", TEXT);
        rules.read("a.rs", KEPT);
        rules.read("x/tests/b.rs", "//= p.md: set-up.2\n#[test]\nfn a() {}\n");
        assert_eq!(rules.summary(), "p.md: 2 rules, without a test: close.1");
        assert_eq!(rules.cited(), (2, 1, 2));
    }

    #[test]
    fn a_citation_without_an_item_is_found() {
        let adrift = "//= p.md: close.1\n\nfn close() {}\n";
        assert_eq!(check(&[("a.rs", KEPT), ("b.rs", SHOWN), ("c.rs", adrift)]).len(), 1);
        let no_test = "//= p.md: close.1\nconst A: u8 = 1;\n";
        assert_eq!(check(&[("a.rs", KEPT), ("b.rs", SHOWN), ("x/tests.rs", no_test)]).len(), 1);
        assert!(check(&[("a.rs", KEPT), ("b.rs", SHOWN), ("c.rs", no_test)]).is_empty());
    }

    #[test]
    fn a_duplicate_rule_name_is_found() {
        let found = Rules::of("p.md", "[a.1] x\n[a.1] y\n").violations;
        assert_eq!(found.iter().map(|v| v.place.as_str()).collect::<Vec<_>>(), ["p.md:2"]);
    }

    #[test]
    fn a_text_without_rules_is_found() {
        assert_eq!(Rules::of("p.md", "no rules").violations().len(), 1);
    }
}
