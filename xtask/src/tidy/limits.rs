//! Checks that the values in the tables of limits of `docs/protocol.md` and `docs/sender.md` equal
//! those in the code. Also checks that a value in words, such as `100 µs`, equals the value in its
//! row.

use super::Violation;

/// End of the heading of the section with the table of limits.
const SECTION: &str = "Limits and timers";

/// One row of a table of limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Line in the text, from 1.
    pub(super) line: usize,
    /// Name of a constant. A name in lower case is the name of a field with a default.
    pub(super) name: String,
    /// The value as the code writes it.
    pub(super) value: String,
    /// The value in words: `200 ms`, `256 KiB`, or a unit alone.
    pub(super) words: String,
    /// Path below `crates/` of the file that defines the constant.
    pub(super) file: String,
}

/// Returns the rows of the table of limits, or nothing if there is no such table.
pub(super) fn limits(text: &str) -> Vec<Limit> {
    let section = text
        .lines()
        .enumerate()
        .skip_while(|(_, line)| !(line.starts_with("## ") && line.ends_with(SECTION)))
        .enumerate()
        .take_while(|(index, (_, line))| *index == 0 || !line.starts_with("## "));
    section.filter_map(|(_, (index, line))| limit(index + 1, line)).collect()
}

/// Checks that each limit in the text at `place` has the same value as in the code. `read` returns
/// the text of a file below `crates/`, or `None` if there is no such file.
pub(super) fn check_limits(
    place: &str,
    text: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Violation> {
    let limits = limits(text);
    let mut violations = Vec::new();
    if limits.is_empty() {
        let what = format!("no rows found in the table of limits below `## … {SECTION}`");
        violations.push(Violation { place: place.to_owned(), what });
    }
    for limit in &limits {
        let Limit { line, name, value, words, file } = limit;
        if let Some(what) = contradiction(name, value, words) {
            violations.push(Violation { place: format!("{place}:{line}"), what });
        }
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

/// Parses a row `` | `name` | `value` | words | `file` | … | ``; returns `None` for other lines.
fn limit(line: usize, row: &str) -> Option<Limit> {
    let mut cells = row.strip_prefix('|')?.split('|').map(str::trim);
    let code = |cell: &str| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned());
    Some(Limit {
        line,
        name: code(cells.next()?)?,
        value: code(cells.next()?)?,
        words: cells.next()?.to_owned(),
        file: code(cells.next()?)?,
    })
}

/// Returns an error text if the words beside a value contain another number.
fn contradiction(name: &str, value: &str, words: &str) -> Option<String> {
    let Some(numbers) = numbers(value) else {
        return None; // The value is the name of another constant.
    };
    let said: Vec<u64> = quantities(words);
    let is_time = name.split('_').any(|part| part.eq_ignore_ascii_case("ns")) && words != "ns";
    if said.is_empty() && !is_time {
        return None;
    }
    let meant = if words.starts_with("1/") && !words.contains('^') {
        numbers.iter().map(|shift| 1_u64.checked_shl(u32::try_from(*shift).ok()?)).collect()
    } else {
        Some(numbers)
    };
    (meant.as_ref() != Some(&said))
        .then(|| format!("`{name}` is `{value}`, and that is not {words}"))
}

/// Returns the numbers in an expression of the code: one number, or the numbers of a tuple. Returns
/// `None` if the expression is not numeric.
fn numbers(value: &str) -> Option<Vec<u64>> {
    let inside = value.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(value);
    inside.split(',').map(|number| product(number.trim())).collect()
}

/// Evaluates `a`, `a * b …` or `a << b`.
fn product(expression: &str) -> Option<u64> {
    if let Some((number, shift)) = expression.split_once("<<") {
        return product(number.trim())?.checked_shl(literal(shift.trim())?.try_into().ok()?);
    }
    expression
        .split('*')
        .map(|factor| literal(factor.trim()))
        .try_fold(1_u64, |all, factor| all.checked_mul(factor?))
}

fn literal(digits: &str) -> Option<u64> {
    let digits = digits.replace('_', "");
    match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    }
}

/// Returns the numbers in words, in nanoseconds if they have a unit of time, and in bytes if they
/// have a unit of size. Returns all other numbers unchanged. For `1/N` and `1/2^N`, returns `N`.
fn quantities(words: &str) -> Vec<u64> {
    let mut found = Vec::new();
    let mut words = words.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let digits = word.strip_prefix("1/").map_or(word, |part| part.trim_start_matches("2^"));
        let Some(number) = literal(digits) else { continue };
        let unit = words.peek().and_then(|unit| scale(unit)).unwrap_or(1);
        found.push(number.saturating_mul(unit));
    }
    found
}

/// Returns the number of nanoseconds or bytes in a unit.
fn scale(unit: &str) -> Option<u64> {
    let units = [
        ("µs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("min", 60_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];
    units.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale)
}

/// Returns the values of the constant `name` in `code`. If `name` is in lower case, returns the
/// values of all fields of that name.
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

/// Returns the text from `name:` to the end of the field, for each occurrence except the field's
/// declaration.
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
        let text = format!(
            "## 8. x\n| `NO` | `1` | | `a.rs` | |\n## 9. Limits and timers\n\n{row}\n## 10. z\n"
        );
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
        assert_eq!(check("| `WINDOW_NS` | `1_000` | 1 µs | `a.rs` | |").len(), 1);
    }

    #[test]
    fn words_that_contradict_their_value_are_found() {
        for (name, value, words) in [
            ("A_NS", "100_000", "300 µs"),
            ("A_NS_MAX", "1_000_000_000", "200 ms"),
            ("a_ns", "600_000_000_000", "1 min"),
            ("A_NS", "(1_000, 2_000)", "1 µs"),
            ("A_NS", "5_000", "a while"),
            ("A_BYTES", "1 << 31", "1 GiB"),
            ("A_BYTES", "256 * 1024", "255 KiB"),
            ("A_SHIFT", "4", "1/8"),
            ("A_SHIFT", "4", "1/2^3"),
            ("A_MAX", "8", "512 packets"),
        ] {
            assert!(contradiction(name, value, words).is_some(), "{name} {value} {words}");
        }
    }

    #[test]
    fn words_that_agree_with_their_value_pass() {
        for (name, value, words) in [
            ("A_NS", "100_000", "100 µs"),
            ("A_NS_MAX", "1_000_000_000", "1 s"),
            ("a_ns", "600_000_000_000", "10 min"),
            ("A_NS", "(1_000, 2_000)", "1 µs to 2 µs"),
            ("UNIT_NS", "64", "ns"),
            ("A_BYTES", "1 << 31", "2 GiB"),
            ("A_BYTES", "256 * 1024", "256 KiB"),
            ("A_SHIFT", "4", "1/16"),
            ("A_SHIFT", "4", "1/2^4"),
            ("A_MAX", "8", "packets"),
            ("ETHERTYPE", "0x88b5", ""),
            ("window", "WINDOW_DEFAULT", "the next row"),
        ] {
            assert_eq!(contradiction(name, value, words), None, "{name} {value} {words}");
        }
    }

    #[test]
    fn a_missing_name_or_file_is_found() {
        assert_eq!(
            check("| `GONE` | `1` | | `a.rs` | |"),
            ["p.md:5: crates/a.rs defines no `GONE`"]
        );
        assert_eq!(check("| `depth` | `64` | | `b.rs` | |").len(), 1);
    }

    #[test]
    fn a_missing_table_is_found() {
        assert_eq!(check("no table").len(), 1);
    }
}
