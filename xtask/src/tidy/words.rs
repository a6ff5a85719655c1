//! Finds words in comments and documents that are unusual in texts about networks.
//!
//! No crate and no document may contain such a word.

use std::collections::BTreeMap;

use super::{Violation, files_below, read};
use crate::error::XtaskError;
use crate::workspace::Workspace;

/// Forbidden words and their replacements.
pub(super) const PATTERNS: &[(&str, &str)] = &[
    ("whoever", "the thing by its name: the peer, the requester, the calling thread"),
    ("nobody", "no peer, no thread, nothing"),
    ("who looks", "the thread that looks"),
    ("told", "notified, reported, returned"),
    ("tell", "notify, report, return"),
    ("tells", "notifies, reports, returns"),
    ("anew", "again, from the start"),
    ("by then", "until then, at that time"),
    ("by and by", "later"),
    ("of whom", "the connection's peer"),
    ("the same of", "the thing by its name"),
    ("look on", "spin, busy-poll"),
    ("looks on", "spins, busy-polls"),
    ("put off", "defer, batch"),
    ("puts off", "defers, batches"),
    ("under way", "in flight, pending, outstanding"),
    ("on its way", "in flight"),
    ("is over", "has ended, is closed"),
    ("are over", "have ended, are closed"),
    ("is no more", "is closed, is gone"),
    ("are no more", "are closed, are gone"),
    ("send again", "retransmit"),
    ("sends again", "retransmits"),
    ("sent again", "retransmitted"),
    ("leave away", "drop, omit"),
    ("left away", "dropped, omitted"),
    ("desk", "connection table"),
    ("clerk", "connection manager, background thread"),
    ("bell", "doorbell, notification"),
    ("seal", "switch marker"),
    ("seals", "switch markers"),
];

/// The number of occurrences of each pattern in the texts of a crate or document.
type Found = BTreeMap<&'static str, usize>;

/// Checks all crates and documents. Returns violations, and a summary.
pub(super) fn check_words(workspace: &Workspace) -> Result<(Vec<Violation>, String), XtaskError> {
    let found = found(workspace)?;
    let violations = found.iter().filter_map(|(place, words)| check(place, words)).collect();
    let left: usize = found.values().flat_map(BTreeMap::values).sum();
    let places = found.values().filter(|words| !words.is_empty()).count();
    let summary = format!(
        "words of the glossary's last column: {left}, in {places} of {} crates and documents",
        found.len()
    );
    Ok((violations, summary))
}

/// Returns the number of words in all comments and documents for which the glossary has a
/// replacement.
pub(crate) fn count(workspace: &Workspace) -> Result<usize, XtaskError> {
    Ok(found(workspace)?.values().flat_map(BTreeMap::values).sum())
}

fn found(workspace: &Workspace) -> Result<BTreeMap<String, Found>, XtaskError> {
    let mut found = BTreeMap::new();
    for package in &workspace.packages {
        let words: &mut Found = found.entry(package.name.clone()).or_default();
        for path in files_below(&package.folder, &workspace.target_dir)? {
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            // This file contains the list of these words.
            if path.ends_with("xtask/src/tidy/words.rs") {
                continue;
            }
            add(words, read(&path)?.lines().filter_map(comment_of));
        }
    }
    let mut documents = vec![];
    for folder in ["docs", "python", "examples", "crates/ethernot/src/guide"] {
        documents.extend(files_below(&workspace.root.join(folder), &workspace.target_dir)?);
    }
    documents.extend(
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| workspace.root.join(name)),
    );
    for path in documents {
        if path.extension().is_some_and(|extension| extension == "md") {
            let words = found.entry(super::place(&workspace.root, &path)).or_default();
            add(words, prose(&read(&path)?));
        }
    }
    Ok(found)
}

fn check(place: &str, words: &Found) -> Option<Violation> {
    let total: usize = words.values().sum();
    if total == 0 {
        return None;
    }
    let instead =
        |word: &str| PATTERNS.iter().find(|(one, _)| *one == word).map_or("", |(_, other)| other);
    let listed: Vec<_> = words
        .iter()
        .map(|(word, count)| format!("\"{word}\" {count} times: write {}", instead(word)))
        .collect();
    let what = format!(
        "{total} words of comments or text stop a reader ({}); docs/glossary.md has the list",
        listed.join("; ")
    );
    Some(Violation { place: place.to_owned(), what })
}

fn add<'a>(words: &mut Found, texts: impl Iterator<Item = &'a str>) {
    for text in texts {
        let text = text.to_ascii_lowercase();
        for (pattern, _) in PATTERNS {
            let count = occurrences(&text, pattern);
            if count > 0 {
                *words.entry(pattern).or_default() += count;
            }
        }
    }
}

/// Returns how often `pattern` occurs in `text` as separate words.
fn occurrences(text: &str, pattern: &str) -> usize {
    let is_part = |character: Option<char>| {
        character.is_some_and(|character| character.is_alphanumeric() || "_-`".contains(character))
    };
    text.match_indices(pattern)
        .filter(|(start, _)| {
            let (before, rest) = text.split_at(*start);
            !is_part(before.chars().next_back()) && !is_part(rest[pattern.len()..].chars().next())
        })
        .count()
}

/// Returns the comment in a line of code.
fn comment_of(line: &str) -> Option<&str> {
    let start = line.match_indices("//").map(|(start, _)| start).find(|&start| {
        let before = line.get(..start).unwrap_or_default();
        before.is_empty() || before.ends_with(' ')
    })?;
    line.get(start..)
}

/// Returns the lines of a document outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_fence = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        !in_fence && !is_fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Found {
        let mut words = Found::new();
        add(&mut words, texts.iter().copied());
        words
    }

    #[test]
    fn whole_words_are_found_in_any_case() {
        assert_eq!(
            of(&["Nobody is told.", "untold, a tell-tale"]),
            [("nobody", 1), ("told", 1)].into()
        );
        assert!(of(&["`told`, told_count"]).is_empty(), "names of code are no prose");
    }

    #[test]
    fn only_comments_and_text_outside_code_blocks_are_checked() {
        assert_eq!(comment_of("let a = 1; // anew"), Some("// anew"));
        assert_eq!(comment_of("let nobody = \"http://told\";"), None);
        let page = "nobody\n```\nnobody\n```\nanew\n";
        assert_eq!(prose(page).collect::<Vec<_>>(), ["nobody", "anew"]);
    }

    #[test]
    fn the_glossary_lists_each_word_and_its_replacement() {
        let glossary = read(&crate::workspace::source_root().join("docs/glossary.md")).unwrap();
        for (word, instead) in PATTERNS {
            let row = format!("| `{word}` | {instead} |");
            assert!(glossary.contains(&row), "docs/glossary.md has no row {row}");
        }
    }

    #[test]
    fn each_word_is_refused_with_its_replacement() {
        assert_eq!(check("a", &Found::new()), None);
        let words = of(&["nobody", "nobody"]);
        let refused = check("a", &words).unwrap().to_string();
        assert!(refused.contains("\"nobody\" 2 times: write no peer"), "{refused}");
    }
}
