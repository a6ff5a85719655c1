//! Rules about Rust files: forbidden names, sizes, file names.

use super::Violation;

/// Maximum length of a file, in lines. A longer file should be split.
const FILE_LINES_MAX: usize = 1000;

/// File names that say nothing about the content.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "misc", "helpers", "helper"];

/// Macros left over from development, forbidden in commits.
const LEFTOVERS: &[&str] = &["dbg!", "todo!", "unimplemented!"];

/// Names that a crate without I/O must not contain, because it gets time, randomness and I/O as
/// arguments.
const SANS_IO_BANS: &[&str] = &[
    "std::net::UdpSocket",
    "std::net::TcpStream",
    "UdpSocket::bind",
    "std::thread",
    "thread::spawn",
    "Instant::now",
    "SystemTime",
    "rand::rng()",
    "thread_rng",
    "from_os_rng",
    "getrandom",
];

/// Checks that the file name describes the content.
pub(super) fn check_name(place: &str) -> Option<Violation> {
    let stem = place.rsplit('/').next()?.strip_suffix(".rs")?;
    EMPTY_NAMES.contains(&stem).then(|| Violation {
        place: place.to_owned(),
        what: format!("`{stem}` says nothing; name the file after what is in it"),
    })
}

/// Checks that the file is short enough and has no leftovers.
pub(super) fn check_text(place: &str, text: &str) -> Vec<Violation> {
    let mut violations = check_banned(place, text, LEFTOVERS, "left over from writing");
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        violations.push(Violation {
            place: place.to_owned(),
            what: format!("{lines} lines, at most {FILE_LINES_MAX}: make it two files"),
        });
    }
    violations
}

/// Checks that the file, including its tests, uses no socket, thread, clock or global source of
/// random numbers.
pub(super) fn check_sans_io(place: &str, text: &str) -> Vec<Violation> {
    check_banned(place, text, SANS_IO_BANS, "time, entropy and I/O come in as arguments here")
}

/// Checks that the root of the crate forbids `unsafe`.
pub(super) fn check_forbids_unsafe(place: &str, text: &str) -> Option<Violation> {
    let is_forbidden =
        code_of(text).lines().any(|line| line.trim_start().starts_with("#![forbid(unsafe_code)]"));
    (!is_forbidden).then(|| Violation {
        place: place.to_owned(),
        what: "`#![forbid(unsafe_code)]` is missing: this crate may not be unsafe".into(),
    })
}

fn check_banned(place: &str, text: &str, banned: &[&str], why: &str) -> Vec<Violation> {
    let code = code_of(text);
    let mut violations = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for name in banned.iter().filter(|name| contains_name(line, name)) {
            violations.push(Violation {
                place: format!("{place}:{}", index + 1),
                what: format!("`{name}`: {why}"),
            });
        }
    }
    violations
}

/// Returns whether `line` contains `name` at the start of an identifier.
fn contains_name(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line.get(..at).and_then(|start| start.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Replaces comments and the contents of string and character literals by blanks. Keeps line
/// breaks.
pub(crate) fn code_of(text: &str) -> String {
    blanked(text, false)
}

/// Replaces comments by blanks. Keeps line breaks and literals.
pub(crate) fn without_comments(text: &str) -> String {
    blanked(text, true)
}

/// Replaces comments by blanks. Also replaces literals if `keeps_literals` is false.
fn blanked(text: &str, keeps_literals: bool) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let is_start_of_word = !(previous.is_alphanumeric() || previous == '_');
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment_len(rest),
            '"' => string_len(rest),
            'r' | 'b' | 'c' if is_start_of_word => raw_string_len(rest).unwrap_or(0),
            '\'' => char_len(rest).unwrap_or(0),
            _ => 0,
        };
        let Some((skipped, after)) = rest.split_at_checked(length) else { break };
        if length == 0 {
            code.push(first);
            previous = first;
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        } else if keeps_literals && first != '/' {
            code.push_str(skipped);
            previous = ' ';
            rest = after;
        } else {
            code.push(' ');
            code.extend(skipped.chars().filter(|c| *c == '\n'));
            previous = ' ';
            rest = after;
        }
    }
    code
}

/// Returns the length of the block comment at the start of `text`. Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Returns the length of the ordinary string literal at the start of `text`.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of the raw string literal (`r"…"`, `br#"…"#`) at the start of `text`, if
/// there is one.
fn raw_string_len(text: &str) -> Option<usize> {
    let after_prefix = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let after_hashes = after_prefix.trim_start_matches('#');
    let hashes = after_prefix.len() - after_hashes.len();
    let body = after_hashes.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let head = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| head + at + end.len()))
}

/// Returns the length of the character literal at the start of `text`; `None` for a lifetime.
fn char_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_do_not_count_as_code() {
        let text = "a // todo!\nb /* dbg! /* x */ dbg! */ c\n\"todo!(\\\" dbg!\" d\nr#\"dbg!\"\"# e '\"' f 'x g\n";
        let code = code_of(text);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "c", "d", "e", "f", "'x", "g"]);
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn comments_are_removed_and_literals_kept() {
        assert_eq!(
            without_comments("a /* b */ \"// c\" // d\n'/' r\"/* e\"\n"),
            "a   \"// c\"  \n'/' r\"/* e\"\n"
        );
    }

    #[test]
    fn leftovers_are_found_with_their_line() {
        let found = check_text("a.rs", "fn f() {\n    todo!()\n}\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found.first().map(|violation| violation.place.as_str()), Some("a.rs:2"));
        assert!(check_text("a.rs", "my_todo!()").is_empty());
    }

    #[test]
    fn a_use_of_a_clock_is_found_and_its_mention_is_not() {
        assert_eq!(check_sans_io("a.rs", "let now = std::time::Instant::now();").len(), 1);
        assert_eq!(check_sans_io("a.rs", "use std::thread;").len(), 1);
        assert!(
            check_sans_io("a.rs", "/// Not Instant::now, never.\nlet a = \"SystemTime\";")
                .is_empty()
        );
    }

    #[test]
    fn a_long_file_is_found() {
        assert!(check_text("a.rs", &"\n".repeat(FILE_LINES_MAX)).is_empty());
        assert_eq!(check_text("a.rs", &"\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
    }

    #[test]
    fn a_root_that_does_not_forbid_unsafe_is_found() {
        assert!(check_forbids_unsafe("lib.rs", "//! x\n#![forbid(unsafe_code)]\n").is_none());
        assert!(check_forbids_unsafe("lib.rs", "// #![forbid(unsafe_code)]\n").is_some());
    }

    #[test]
    fn empty_names_are_found() {
        assert!(check_name("crates/mem/src/utils.rs").is_some());
        assert!(check_name("crates/mem/src/region.rs").is_none());
        assert!(check_name("docs/common.md").is_none());
    }
}
