//! Lines of code: without tests, comments and blank lines.

use super::SourceFile;
use crate::tidy::source::{code_of, without_comments};

/// Lines of code of all files.
pub(super) fn of_files(files: &[SourceFile]) -> usize {
    files.iter().map(|file| count(&file.text)).sum()
}

/// Lines of code of one file.
fn count(text: &str) -> usize {
    let of_tests = test_lines(&code_of(text));
    let lines = without_comments(text);
    lines
        .lines()
        .zip(of_tests)
        .filter(|(line, of_tests)| !of_tests && !line.trim().is_empty())
        .count()
}

/// The text without tests, comments and the insides of literals.
pub(super) fn code_without_tests(text: &str) -> String {
    let code = code_of(text);
    let of_tests = test_lines(&code);
    let lines = code.lines().zip(of_tests).filter(|(_, of_tests)| !of_tests);
    lines.flat_map(|(line, _)| [line, "\n"]).collect()
}

/// Of each line whether it belongs to an item behind `#[cfg(test)]`.
fn test_lines(code: &str) -> Vec<bool> {
    let mut depth: Option<i32> = None;
    let mut found = Vec::new();
    for line in code.lines() {
        let mut rest = line.trim();
        if depth.is_none()
            && let Some(after) = rest.strip_prefix("#[cfg(test)]")
        {
            depth = Some(0);
            rest = after;
        }
        found.push(depth.is_some());
        for c in rest.chars() {
            depth = depth.and_then(|depth| depth_behind(c, depth));
        }
    }
    found
}

/// How deep in brackets of an item one is behind `c`; `None` when it has ended.
fn depth_behind(c: char, depth: i32) -> Option<i32> {
    match c {
        '(' | '[' | '{' => Some(depth + 1),
        ')' | ']' => Some(depth - 1),
        '}' => Some(depth - 1).filter(|&depth| depth > 0),
        ';' => Some(depth).filter(|&depth| depth > 0),
        _ => Some(depth),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

#[cfg(test)]
mod tests;
fn last() {}
";

    #[test]
    fn tests_comments_and_blank_lines_are_not_lines_of_code() {
        // One of `use`, three of the constant, three of `f`, one of `last`.
        assert_eq!(count(SOURCE), 8);
        let file = || SourceFile { place: "a.rs".into(), text: SOURCE.into() };
        assert_eq!(of_files(&[file(), file()]), 16);
    }

    #[test]
    fn code_without_tests_has_none_of_them() {
        let code = code_without_tests(SOURCE);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words.join(" "), "use a::A; const TEXT: &str = ; fn f() { g(); } fn last() {}");
    }
}
