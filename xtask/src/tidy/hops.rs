//! Checks that the functions on the call paths of `docs/architecture.md` exist.

use super::Violation;

/// Checks the rows `` | 7 | `Type::name` | `file` | … | `` of the text at `place`. The function of
/// each row must exist in the file of the row, and the numbers of the rows must be in order. `read`
/// returns the text of a file below `crates/`.
pub(super) fn check_hops(
    place: &str,
    text: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut found = 0;
    let mut next = 1;
    for (index, line) in text.lines().enumerate() {
        let Some((number, function, file)) = hop(line) else { continue };
        found += 1;
        let mut violate =
            |what| violations.push(Violation { place: format!("{place}:{}", index + 1), what });
        if number != next && number != 1 {
            violate(format!("hop {number} should be number {next}"));
        }
        next = number + 1;
        let name = function.rsplit("::").next().unwrap_or(function);
        let is_there = read(file).is_some_and(|code| {
            [format!("fn {name}("), format!("fn {name}<")].iter().any(|begin| code.contains(begin))
        });
        if !is_there {
            violate(format!("crates/{file} has no function `{name}`"));
        }
    }
    if found == 0 {
        let what = "no table of functions found".to_owned();
        violations.push(Violation { place: place.to_owned(), what });
    }
    violations
}

/// Returns the number of functions in each table. Each table begins with number 1.
pub(crate) fn counts(text: &str) -> Vec<u32> {
    let mut counts = Vec::new();
    for (number, ..) in text.lines().filter_map(hop) {
        match counts.last_mut() {
            Some(count) if number != 1 => *count += 1,
            _ => counts.push(1),
        }
    }
    counts
}

/// Returns number, function and file of a row; `None` for other lines.
fn hop(row: &str) -> Option<(u32, &str, &str)> {
    let mut cells = row.strip_prefix('|')?.split('|').map(str::trim);
    let number = cells.next()?.parse().ok()?;
    let mut code = || cells.next()?.strip_prefix('`')?.strip_suffix('`');
    Some((number, code()?, code()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &str) -> Vec<String> {
        let read = |file: &str| (file == "a.rs").then(|| "fn f() {}\nfn g<T>() {}\n".to_owned());
        check_hops("a.md", rows, read).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn existing_functions_pass() {
        let rows =
            "| 1 | `A::f` | `a.rs` | x |\n| 2 | `g` | `a.rs` | y |\n\n| 1 | `f` | `a.rs` | z |\n";
        assert!(check(rows).is_empty());
    }

    #[test]
    fn missing_functions_and_wrong_numbers_are_found() {
        let rows = "| 1 | `A::h` | `a.rs` | x |\n| 3 | `g` | `a.rs` | y |\n";
        assert_eq!(
            check(rows),
            ["a.md:1: crates/a.rs has no function `h`", "a.md:2: hop 3 should be number 2"]
        );
    }

    #[test]
    fn functions_of_each_table_are_counted() {
        let text = "| 1 | `f` | `a.rs` | x |\n| 2 | `g` | `a.rs` | y |\n| no |\n| 1 | `f` | `a.rs` | z |\n";
        assert_eq!(counts(text), [2, 1]);
        assert!(counts("| a | b |").is_empty());
    }

    #[test]
    fn a_text_without_functions_is_found() {
        assert_eq!(check("| a | b |").len(), 1);
    }
}
