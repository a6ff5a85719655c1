//! Checks that documents have short lines and short paragraphs, so that a diff shows the sentence
//! that changed.
//!
//! A line of Markdown has at most [`COLUMNS_MAX`] characters. Rows of tables, code blocks and lines
//! that consist of a link may be longer, because they cannot be broken. A paragraph has at most
//! [`LINES_MAX`] lines; each list item is a paragraph.

use super::Violation;

/// The longest line of a document, in characters.
const COLUMNS_MAX: usize = 120;

/// The longest paragraph, in lines.
const LINES_MAX: usize = 6;

/// Checks one document.
pub(super) fn check_columns(place: &str, text: &str) -> Vec<Violation> {
    let violation = |(line, what)| Violation { place: format!("{place}:{line}"), what };
    faults(text).into_iter().map(violation).collect()
}

/// Returns long lines and paragraphs, with the number of their first line.
fn faults(text: &str) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let mut paragraph = 0;
    let mut in_fence = false;
    for (index, line) in text.lines().enumerate() {
        let kind = kind(line);
        let is_prose = !in_fence && matches!(kind, Kind::Prose | Kind::Item);
        if is_prose && !is_link(line) {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                let what = format!(
                    "{columns} columns; break the line after a sentence, {COLUMNS_MAX} columns at most"
                );
                faults.push((index + 1, what));
            }
        }
        paragraph = match kind {
            _ if !is_prose => 0,
            Kind::Item => 1,
            _ => paragraph + 1,
        };
        if paragraph == LINES_MAX + 1 {
            let what = format!(
                "a paragraph of more than {LINES_MAX} lines; make it shorter, two, or a list"
            );
            faults.push((index + 1 - LINES_MAX, what));
        }
        in_fence ^= kind == Kind::Fence;
    }
    faults
}

/// The kind of a line. Its first characters decide the kind.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Prose,
    /// The first line of a list item.
    Item,
    Fence,
    /// An empty line, a heading or a table row.
    Other,
}

fn kind(line: &str) -> Kind {
    let line = line.trim_start();
    let digits = line.trim_start_matches(|character: char| character.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && digits.starts_with(". ");
    if line.starts_with("```") {
        Kind::Fence
    } else if line.is_empty() || line.starts_with(['|', '#']) {
        Kind::Other
    } else if line.starts_with("* ") || line.starts_with("- ") || is_numbered {
        Kind::Item
    } else {
        Kind::Prose
    }
}

/// Returns whether the line is a single link, perhaps as a list item.
fn is_link(line: &str) -> bool {
    let line = line.trim().trim_start_matches(['*', '-']).trim_start();
    let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return false;
    };
    (target.starts_with('(') || target.starts_with(": "))
        && !target.trim_start_matches(": ").contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        faults(text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn long_lines_of_prose_are_found() {
        let long = "µ".repeat(COLUMNS_MAX + 1);
        assert_eq!(lines(&format!("short\n{long}\n* {long}\n")), [2, 3]);
        assert!(lines(&"µ".repeat(COLUMNS_MAX)).is_empty(), "characters count, not bytes");
    }

    #[test]
    fn lines_that_cannot_be_broken_may_be_long() {
        let long = "a".repeat(COLUMNS_MAX);
        for line in [
            format!("| {long} |"),
            format!("```sh\n{long} {long}\n```"),
            format!("[{long}](b.md)"),
            format!("* [a b](https://{long})"),
            format!("[a]: https://{long}"),
        ] {
            assert!(lines(&line).is_empty(), "{line}");
        }
        assert_eq!(lines(&format!("[a](b.md) {long}")), [1], "a link and more");
    }

    #[test]
    fn long_paragraphs_are_reported_once_at_their_first_line() {
        let seven = "a\n".repeat(LINES_MAX + 1);
        assert_eq!(lines(&format!("a\n\n{seven}a\n")), [3]);
        assert!(lines(&format!("```\n{seven}```\n")).is_empty(), "code is no paragraph");
    }

    #[test]
    fn items_of_a_list_are_paragraphs() {
        for mark in ["* a\n", "- a\n", "12. a\n", "  * a\n"] {
            assert!(lines(&mark.repeat(LINES_MAX + 1)).is_empty(), "{mark}");
        }
        assert_eq!(lines(&format!("* a\n{}", "  a\n".repeat(LINES_MAX))), [1]);
    }

    #[test]
    fn a_violation_names_the_line_and_the_remedy() {
        let text = format!("a\n{}\n", "a".repeat(COLUMNS_MAX + 1));
        let found: Vec<String> =
            check_columns("a.md", &text).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["a.md:2: 121 columns; break the line after a sentence, 120 columns at most"]
        );
    }
}
