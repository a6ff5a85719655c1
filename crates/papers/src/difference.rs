//! Compares two sets of documents, for example from two commits or from two machines.

use crate::document::Document;
use crate::judge::{Judged, Verdict, judge};
use crate::printed;

/// A printed value whose verdict or outcome differs between two sets of documents.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Name of the value, as `PAPER/ITEM.VALUE`.
    pub name: String,
    /// Verdict and outcome in the first set.
    pub before: String,
    /// Verdict and outcome in the second set.
    pub after: String,
    /// Whether the verdict differs.
    pub has_changed_verdict: bool,
}

/// Returns the differences between two sets. Values with different verdicts come first. A value that
/// neither set has measured is no difference, even if the reasons differ.
pub fn differences(before: &[Document], after: &[Document]) -> Vec<Difference> {
    let mut found = Vec::new();
    for paper in printed::all() {
        for item in &paper.items {
            let of = |documents: &[Document]| {
                let is_here = |one: &&Document| one.paper == paper.key && one.item == item.id;
                judge(item, documents.iter().find(is_here))
            };
            for (old, new) in of(before).into_iter().zip(of(after)) {
                let (was, is) = (text(&old), text(&new));
                let is_measured = |one: &Judged| one.verdict != Verdict::NotMeasured;
                if was != is && (is_measured(&old) || is_measured(&new)) {
                    found.push(Difference {
                        name: format!("{}/{}.{}", paper.key, item.id, old.value.id),
                        before: was,
                        after: is,
                        has_changed_verdict: old.verdict != new.verdict,
                    });
                }
            }
        }
    }
    // The sort is stable, so the values remain in the order of the papers.
    found.sort_by_key(|one| !one.has_changed_verdict);
    found
}

fn text(judged: &Judged) -> String {
    let outcome = &judged.outcome;
    let name = judged.verdict.name();
    if outcome.is_empty() { name.to_owned() } else { format!("{name}: {outcome}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Seen;

    fn seen(item: &str, id: &str, holds: bool, saw: &str) -> Document {
        let mut document = Document::new("sandia1999", item);
        let (id, saw) = (id.to_owned(), saw.to_owned());
        document.seen.push(Seen { id, holds, saw, reason: None });
        document
    }

    #[test]
    fn changed_verdicts_are_listed_first() {
        let before = [seen("5", "avici-small", true, "1"), seen("6", "proportional", true, "1")];
        let after = [seen("5", "avici-small", true, "2"), seen("6", "proportional", false, "2")];
        let found = differences(&before, &after);
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["sandia1999/6.proportional", "sandia1999/5.avici-small"]);
        assert!(found[0].has_changed_verdict && !found[1].has_changed_verdict);
        assert!(differences(&before, &before).is_empty());
    }

    #[test]
    fn values_that_neither_set_has_measured_do_not_differ() {
        let refused = |reason: &str| {
            let mut document = Document::new("sandia1999", "6");
            document.cannot_run = Some(reason.to_owned());
            document
        };
        assert!(differences(&[refused("needs root")], &[refused("no program")]).is_empty());
        assert!(differences(&[refused("needs root")], &[]).is_empty());
        let measured =
            differences(&[refused("needs root")], &[seen("6", "proportional", true, "1")]);
        let found = measured.iter().find(|one| one.name == "sandia1999/6.proportional");
        assert!(found.is_some_and(|one| one.has_changed_verdict), "{measured:?}");
    }
}
