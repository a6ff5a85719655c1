//! Checks that a test shows each rule of an RFC that code keeps.
//!
//! A comment `//= RFC 5041 section 5.2: short paraphrase` cites the rule. Above an item of the code,
//! the comment means that the item keeps the rule. The same comment above a test means that the test
//! covers the rule.

use std::collections::BTreeMap;

use super::citations::{ADRIFT, citations};

/// The beginning of a citation.
const MARK: &str = "//= RFC";

/// The cited rules of all RFCs.
#[derive(Default)]
pub(super) struct Rfcs {
    /// The citations by their whole text.
    by_text: BTreeMap<String, Cited>,
    violations: Vec<(String, String)>,
}

/// The first places that cite a rule.
#[derive(Default)]
struct Cited {
    in_code: Option<String>,
    in_test: Option<String>,
}

impl Rfcs {
    /// Finds citations in the Rust file `text` at `place`.
    pub(super) fn read(&mut self, place: &str, text: &str) {
        for citation in citations(place, text, MARK) {
            let here = format!("{place}:{}", citation.line);
            if !citation.is_above_item {
                self.violations.push((here.clone(), ADRIFT.into()));
            }
            if !is_well_formed(citation.text) {
                let what = format!("write `{MARK} 5041 section 5.2: short paraphrase`");
                self.violations.push((here, what));
                continue;
            }
            let cited = self.by_text.entry(citation.text.to_owned()).or_default();
            let first = if citation.is_test { &mut cited.in_test } else { &mut cited.in_code };
            first.get_or_insert(here);
        }
    }

    /// Returns place and text of each violation: malformed citations, rules that no test cites, and
    /// rules that only a test cites.
    pub(super) fn violations(self) -> Vec<(String, String)> {
        let mut violations = self.violations;
        for (text, cited) in self.by_text {
            let line = format!("`{MARK}{text}`");
            match (cited.in_code, cited.in_test) {
                (Some(place), None) => {
                    violations
                        .push((place, format!("no test cites the rule: {line} above a test")));
                }
                (None, Some(place)) => {
                    let what = format!("no code cites the rule: {line} above what keeps it");
                    violations.push((place, what));
                }
                _ => {}
            }
        }
        violations
    }

    /// Returns a text with the number of rules.
    pub(super) fn summary(&self) -> String {
        format!("RFCs: {} rules cited", self.by_text.len())
    }
}

/// Returns whether `text` has the form ` 5041 section 5.2: short paraphrase`.
fn is_well_formed(text: &str) -> bool {
    let Some((place, rule)) = text.split_once(": ") else { return false };
    let Some((number, section)) = place.split_once(" section ") else { return false };
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    number.strip_prefix(' ').is_some_and(is_number)
        && section.split('.').all(is_number)
        && !rule.is_empty()
        && rule.trim() == rule
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "//= RFC 5041 section 5.2: a message may be cut anywhere\n";

    /// Returns the violations of a text in the place of code, and of a text in the place of tests.
    fn check(code: &str, test: &str) -> Vec<(String, String)> {
        let mut rfcs = Rfcs::default();
        rfcs.read("a/src/b.rs", code);
        rfcs.read("a/tests/c.rs", test);
        rfcs.violations()
    }

    #[test]
    fn a_rule_that_code_and_a_test_cite_passes() {
        let code = format!("{RULE}/// Cuts.\nfn cut() {{}}\n");
        let test = format!("{RULE}#[test]\nfn it_cuts() {{}}\n");
        assert!(check(&code, &test).is_empty());
        let beside =
            format!("{code}mod tests {{\n    {RULE}    #[test]\n    fn it_cuts() {{}}\n}}\n");
        assert!(check(&beside, "").is_empty());
    }

    #[test]
    fn a_rule_without_a_test_or_without_code_is_found() {
        let code = format!("{RULE}fn cut() {{}}\n");
        let rule = RULE.trim_end();
        let what = format!("no test cites the rule: `{rule}` above a test");
        assert_eq!(check(&code, ""), [("a/src/b.rs:1".to_owned(), what)]);
        let what = format!("no code cites the rule: `{rule}` above what keeps it");
        assert_eq!(check("", &code), [("a/tests/c.rs:1".to_owned(), what)]);
    }

    #[test]
    fn a_test_of_other_words_does_not_count() {
        let code = format!("{RULE}fn cut() {{}}\n");
        assert_eq!(check(&code, &code.replace("5.2", "5.3")).len(), 2);
        assert_eq!(check(&code, &code.replace("anywhere", "nowhere")).len(), 2);
    }

    #[test]
    fn a_malformed_citation_is_found() {
        for mark in [
            "//= RFC5041 section 5.2: a",
            "//= RFC 5041: a",
            "//= RFC 5041 section x: a",
            "//= RFC 5041 section 5.: a",
            "//= RFC 5041 section 5.2",
            "//= RFC 5041 section 5.2:  a",
        ] {
            let found = check(&format!("{mark}\nfn a() {{}}\n"), "");
            assert_eq!(found.len(), 1, "{mark}");
            assert!(found.iter().all(|(_, what)| what.starts_with("write `//= RFC ")), "{mark}");
        }
    }

    #[test]
    fn a_citation_that_is_above_nothing_is_found() {
        let code = format!("{RULE}fn cut() {{}}\n");
        let adrift = format!("{RULE}\nfn cut() {{}}\n");
        assert_eq!(check(&adrift, &code), [("a/src/b.rs:1".to_owned(), ADRIFT.to_owned())]);
    }
}
