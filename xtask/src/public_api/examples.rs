//! Finds public items without an example.
//!
//! Examples are code that tests execute: in documentation, the guides, the README and `examples/`.
//! A type or a function has an example if its own documentation contains code, or if an example
//! names it. A method or constant of a type has an example if an example calls or names it. Fields
//! and variants need no example if their type has an example. A file lists the exceptions, with the
//! reason.

use std::collections::BTreeSet;

use super::listing::{Kind, PublicItem};

/// Code that tests execute.
pub(super) struct Corpus {
    words: BTreeSet<String>,
    /// Names that stand after a dot or `::` in this code.
    members: BTreeSet<String>,
}

impl Corpus {
    pub(super) fn new<'a>(code: impl Iterator<Item = &'a str>) -> Self {
        let (mut words, mut members) = (BTreeSet::new(), BTreeSet::new());
        for text in code {
            let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
            let mut before = "";
            let mut rest = text;
            while let Some(start) = rest.find(is_of_name) {
                before = if start == 0 { before } else { &rest[..start] };
                let length = rest[start..].find(|c| !is_of_name(c)).unwrap_or(rest.len() - start);
                let word = &rest[start..start + length];
                words.insert(word.to_owned());
                if before.ends_with('.') || before.ends_with("::") {
                    members.insert(word.to_owned());
                }
                rest = &rest[start + length..];
            }
        }
        Self { words, members }
    }

    fn shows(&self, entry: &PublicItem) -> bool {
        let mut path = entry.path.rsplit("::");
        let name = path.next().unwrap_or_default();
        let is_member = path.next().is_some_and(|parent| parent.starts_with(char::is_uppercase));
        has_code(&entry.docs)
            || if is_member { self.members.contains(name) } else { self.words.contains(name) }
    }
}

/// Returns items without an example that are missing from the list, and lines of the list that
/// match no item.
pub(super) fn missing(
    entries: &[PublicItem],
    corpus: &Corpus,
    list: &str,
) -> (Vec<String>, Vec<String>) {
    let excuses: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| line.split_once(" | ").map_or("", |(pattern, _)| pattern.trim()))
        .collect();
    let mut used = vec![false; excuses.len()];
    let mut missing = Vec::new();
    for entry in entries {
        let needs_one = !matches!(entry.kind, Kind::Field | Kind::Variant | Kind::Implementation);
        if !needs_one || corpus.shows(entry) {
            continue;
        }
        match excuses.iter().position(|excuse| fits(excuse, &entry.path)) {
            Some(index) => used[index] = true,
            None => missing.push(entry.line()),
        }
    }
    let idle = excuses.iter().zip(used).filter(|(_, used)| !used);
    (missing, idle.map(|(excuse, _)| (*excuse).to_owned()).collect())
}

/// Returns whether an exception applies to a path: `a::B` applies to that item, `a::B::*` to the
/// item and its members.
pub(super) fn fits(excuse: &str, path: &str) -> bool {
    match excuse.strip_suffix("::*") {
        Some(parent) => {
            path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        }
        None => path == excuse,
    }
}

fn has_code(docs: &str) -> bool {
    !code_blocks(docs).is_empty()
}

/// Returns the Rust code in a Markdown text.
pub(super) fn code_blocks(text: &str) -> String {
    let mut code = String::new();
    let mut is_code = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            is_code = match is_code {
                Some(_) => None,
                None => {
                    Some(!["text", "sh", "toml", "mermaid", "ignore"].contains(&language.trim()))
                }
            };
        } else if is_code == Some(true) {
            code.push_str(trimmed.trim_start_matches("# "));
            code.push('\n');
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: Kind, docs: &str) -> PublicItem {
        PublicItem { path: path.into(), kind, signature: String::new(), docs: docs.into() }
    }

    #[test]
    fn items_have_an_example_in_their_documentation_or_by_name() {
        let corpus = Corpus::new(["let x = Buffer::new(8); x.load_u64(0); free()"].into_iter());
        let entries = [
            entry("a::Buffer", Kind::Struct, ""),
            entry("a::Buffer::new", Kind::Function, ""),
            entry("a::Buffer::load_u64", Kind::Function, ""),
            entry("a::free", Kind::Function, ""),
            entry("a::Told", Kind::Struct, "Text.\n ```\n code();\n ```\n"),
            entry("a::Listed", Kind::Enum, ""),
            entry("a::Listed::f", Kind::Function, ""),
            entry("a::Field::x", Kind::Field, ""),
        ];
        let list = "# why\na::Listed::* | told elsewhere\n";
        assert_eq!(missing(&entries, &corpus, list), (vec![], vec![]));
        let entries =
            [entry("a::Buffer::free", Kind::Function, ""), entry("a::Buff", Kind::Enum, "")];
        let (found, idle) = missing(&entries, &corpus, list);
        assert_eq!((found.len(), idle), (2, vec!["a::Listed::*".to_owned()]));
    }

    #[test]
    fn shell_code_does_not_count_as_an_example() {
        assert_eq!(
            code_blocks("```sh\nls\n```\n```text\nx\n```\n```\n# hidden()\nshown()\n```"),
            "hidden()\nshown()\n"
        );
    }
}
