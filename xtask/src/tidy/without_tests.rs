//! The code of a file without its tests.

use super::source::code_of;

/// Returns the text without tests, comments and the contents of literals.
pub(crate) fn code_without_tests(text: &str) -> String {
    let code = code_of(text);
    let of_tests = test_lines(&code);
    let lines = code.lines().zip(of_tests).filter(|(_, of_tests)| !of_tests);
    lines.flat_map(|(line, _)| [line, "\n"]).collect()
}

/// Returns for each line whether it belongs to an item marked `#[cfg(test)]` or
/// `#[cfg(all(test, …))]`.
pub(crate) fn test_lines(code: &str) -> Vec<bool> {
    let mut depth: Option<i32> = None;
    let mut found = Vec::new();
    for line in code.lines() {
        let mut rest = line.trim();
        if depth.is_none()
            && let Some(after) = after_test_attribute(rest)
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

/// Returns the text after an attribute that limits an item to tests.
fn after_test_attribute(line: &str) -> Option<&str> {
    if let Some(after) = line.strip_prefix("#[cfg(test)]") {
        return Some(after);
    }
    let rest = line.strip_prefix("#[cfg(all(test,")?;
    rest.split_once(")]").map(|(_, after)| after)
}

/// Returns the bracket depth within an item after the character `c`, or `None` if the item ends
/// with `c`.
fn depth_behind(c: char, depth: i32) -> Option<i32> {
    match c {
        '(' | '[' | '{' => Some(depth + 1),
        ')' | ']' => Some(depth - 1),
        '}' => Some(depth - 1).filter(|&depth| depth > 0),
        ';' => Some(depth).filter(|&depth| depth > 0),
        _ => Some(depth),
    }
}
