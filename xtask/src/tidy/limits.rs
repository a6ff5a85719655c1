//! The table of limits in `docs/protocol.md` says what the code says.

use super::Violation;

/// Heading of the section whose table is compared.
const SECTION: &str = "## 9. ";

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Line in the text, from 1.
    pub(super) line: usize,
    /// Name of a constant, or in lower case of a field with a default.
    pub(super) name: String,
    /// Its value, as the code writes it.
    pub(super) value: String,
    /// File that defines it, below `crates/`.
    pub(super) file: String,
}

/// The rows of the table of limits. A table that cannot be found has none.
pub(super) fn limits(text: &str) -> Vec<Limit> {
    let section = text
        .lines()
        .enumerate()
        .skip_while(|(_, line)| !line.starts_with(SECTION))
        .enumerate()
        .take_while(|(index, (_, line))| *index == 0 || !line.starts_with("## "));
    section.filter_map(|(_, (index, line))| limit(index + 1, line)).collect()
}

/// Each limit of the text `text` at `place` has in the code the value that the text gives. `read`
/// returns the text of a file below `crates/`, if there is one.
pub(super) fn check_limits(
    place: &str,
    text: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Violation> {
    let limits = limits(text);
    let mut violations = Vec::new();
    if limits.is_empty() {
        let what = format!("no rows found in the table of limits below `{SECTION}`");
        violations.push(Violation { place: place.to_owned(), what });
    }
    for limit in &limits {
        let Limit { line, name, value, file } = limit;
        let found = read(file).map(|code| values(&code, name)).unwrap_or_default();
        if !found.contains(value) {
            let what = if found.is_empty() {
                format!("crates/{file} defines no `{name}`")
            } else {
                format!("`{name}` is not `{value}`; crates/{file} says `{}`", found.join("`, `"))
            };
            violations.push(Violation { place: format!("{place}:{line}"), what });
        }
    }
    violations
}

/// A row `` | `name` | `value` | … | `file` | … | ``; other lines are none.
fn limit(line: usize, row: &str) -> Option<Limit> {
    let mut cells = row.strip_prefix('|')?.split('|').map(str::trim);
    let mut code = |skipped| {
        let cell = cells.nth(skipped)?;
        Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned())
    };
    Some(Limit { line, name: code(0)?, value: code(0)?, file: code(1)? })
}

/// What `code` gives the constant `name`, or, if it is in lower case, every field of that name.
fn values(code: &str, name: &str) -> Vec<String> {
    if name.chars().any(|c| c.is_ascii_lowercase()) {
        return field_values(code, name);
    }
    let definition = format!("const {name}:");
    let value = code.split_once(&definition).and_then(|(_, after)| {
        let (statement, _) = after.split_once(';')?;
        let (_, value) = statement.split_once('=')?;
        Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    value.into_iter().collect()
}

/// What stands behind `name:` up to the end of the field, except where the field is declared.
fn field_values(code: &str, name: &str) -> Vec<String> {
    let field = format!("{name}: ");
    let starts_field = |before: &str| before.trim_end().ends_with(['{', ',']);
    code.match_indices(&field)
        .filter_map(|(at, _)| {
            let (before, after) = (code.get(..at)?, code.get(at + field.len()..)?);
            let line = after.lines().next()?;
            let value = line.split([',', '}']).next()?.trim();
            starts_field(before).then(|| value.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "pub struct A {\n    pub depth: u16,\n}\nA { wide: 5, depth: 64 }\n\
                        pub(crate) const WINDOW_NS: (u64, u64) =\n    (1_000, 2_000);\n";

    fn check(row: &str) -> Vec<String> {
        let text = format!("## 8. x\n| `NO` | `1` | | `a.rs` | |\n## 9. y\n\n{row}\n## 10. z\n");
        let read = |file: &str| (file == "a.rs").then(|| CODE.to_owned());
        check_limits("p.md", &text, read).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rows_that_agree_with_the_code_pass() {
        assert!(
            check("| `WINDOW_NS` | `(1_000, 2_000)` | 1 µs to 2 µs | `a.rs` | why |").is_empty()
        );
        assert!(check("| `depth` | `64` | answers | `a.rs` | why |").is_empty());
    }

    #[test]
    fn a_value_that_differs_is_found() {
        let found = check("| `depth` | `65` | answers | `a.rs` | why |");
        assert_eq!(found, ["p.md:5: `depth` is not `65`; crates/a.rs says `64`"]);
        assert_eq!(check("| `WINDOW_NS` | `1_000` | | `a.rs` | |").len(), 1);
    }

    #[test]
    fn a_name_or_file_that_is_gone_is_found() {
        assert_eq!(
            check("| `GONE` | `1` | | `a.rs` | |"),
            ["p.md:5: crates/a.rs defines no `GONE`"]
        );
        assert_eq!(check("| `depth` | `64` | | `b.rs` | |").len(), 1);
    }

    #[test]
    fn a_table_that_is_gone_is_found() {
        assert_eq!(check("no table").len(), 1);
    }
}
