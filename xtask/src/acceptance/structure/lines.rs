//! Counts lines of code, without tests, comments and blank lines.

use crate::tidy::source::{code_of, without_comments};
use crate::tidy::without_tests::test_lines;

/// A file of a crate, without tests.
pub(super) struct SourceFile {
    /// Path of the file below `src`.
    pub(super) place: String,
    pub(super) text: String,
}

/// Returns the number of lines of code of all files.
pub(super) fn of_files(files: &[SourceFile]) -> usize {
    files.iter().map(|file| count(&file.text)).sum()
}

/// Returns the number of lines of code of one file.
fn count(text: &str) -> usize {
    let of_tests = test_lines(&code_of(text));
    let lines = without_comments(text);
    lines
        .lines()
        .zip(of_tests)
        .filter(|(line, of_tests)| !of_tests && !line.trim().is_empty())
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::without_tests::code_without_tests;

    const SOURCE: &str = "\
//! Words.

use a::A; // and why

/* more
   words */
const TEXT: &str = \"one
// not a comment
\";

#[cfg(test)]
#[derive(Debug)]
struct Only([u8; 3], u8);

#[cfg(test)]
fn only(a: [u8; 3]) -> u8 {
    if a { '}' } else { 0 }
}

fn f() {
    g();
}

#[cfg(all(test, not(loom)))]
mod model {
    use super::*;
}

#[cfg(all(not(test), loom))]
fn real() {}

#[cfg(test)]
mod tests;
fn last() {}
";

    #[test]
    fn tests_comments_and_blank_lines_are_not_lines_of_code() {
        // One line of `use`, three lines of the constant, three lines of `f`, two lines of `real`,
        // and one line of `last`.
        assert_eq!(count(SOURCE), 10);
        let file = || SourceFile { place: "a.rs".into(), text: SOURCE.into() };
        assert_eq!(of_files(&[file(), file()]), 20);
    }

    #[test]
    fn code_without_tests_contains_no_test() {
        let code = code_without_tests(SOURCE);
        let words: Vec<&str> = code.split_whitespace().collect();
        let code = "use a::A; const TEXT: &str = ; fn f() { g(); } \
                    #[cfg(all(not(test), loom))] fn real() {} fn last() {}";
        assert_eq!(words.join(" "), code);
    }
}
