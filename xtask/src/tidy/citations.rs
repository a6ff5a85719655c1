//! Finds citations of rules in Rust files: comments that begin with `//=`.

/// One citation.
pub(super) struct Citation<'a> {
    /// Line in the file, from 1.
    pub(super) line: usize,
    /// The text behind the mark.
    pub(super) text: &'a str,
    /// Whether the citation belongs to a test.
    pub(super) is_test: bool,
    /// Whether the citation is directly above an item; in tests, above a function.
    pub(super) is_above_item: bool,
}

/// What a citation that is not above an item has to change.
pub(super) const ADRIFT: &str =
    "a citation must be directly above an item; in tests, above a function";

/// Returns the citations in the Rust file `text` at `place` that begin with `mark`.
pub(super) fn citations<'a>(place: &str, text: &'a str, mark: &str) -> Vec<Citation<'a>> {
    let mut found = Vec::new();
    let mut is_test = is_test_file(place);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for (index, line) in lines.iter().enumerate() {
        is_test |= line.starts_with("mod tests {");
        let Some(text) = line.strip_prefix(mark) else { continue };
        let item = lines.iter().skip(index + 1).find(|line| !is_beside_item(line));
        let is_above_item = item.is_some_and(|item| {
            !item.is_empty() && *item != "}" && (!is_test || item.contains("fn "))
        });
        found.push(Citation { line: index + 1, text, is_test, is_above_item });
    }
    found
}

/// Returns whether the file contains only tests.
pub(crate) fn is_test_file(place: &str) -> bool {
    place.contains("/tests/") || place.ends_with("/tests.rs") || place.ends_with("_tests.rs")
}

/// Returns whether the line is a comment or an attribute. Such lines belong to the item below them.
fn is_beside_item(line: &str) -> bool {
    line.starts_with("//") || line.starts_with("#[")
}
