//! How many numbers somebody chose for the sending policy.
//!
//! What counts: each `const` of a numeric type (or of a tuple or array of them) in the files of [`PLACES`],
//! outside of tests, whose value is written in numbers. What does not: constants that follow from others or
//! from a type (`u32::MAX`), and those of [`FORMATS`], which say how something is laid out.

use std::path::{Path, PathBuf};

use super::runner::{Failure, Found};

/// Counts them in the sources below `root`.
pub(super) fn count(root: &Path) -> Result<Found, Failure> {
    let cannot = |what: String| Failure::CannotRun(what);
    let mut total = 0;
    let mut notes = Vec::new();
    for (package, places) in PLACES {
        let mut of_package = 0;
        for place in places {
            let path = root.join("crates").join(package).join("src").join(place);
            for file in
                files(&path).map_err(|cause| cannot(format!("{}: {cause}", path.display())))?
            {
                let text = std::fs::read_to_string(&file)
                    .map_err(|cause| cannot(format!("{}: {cause}", file.display())))?;
                of_package += constants(&text).len();
            }
        }
        total += of_package;
        notes.push(format!("{of_package} in {package}"));
    }
    Ok(Found { figure: total as f64, note: format!(" ({})", notes.join(", ")), bare: None })
}

/// The file, or all below a folder but those of tests.
pub(super) fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.file_stem().is_none_or(|stem| stem != "tests")
        {
            found.push(path);
        }
    }
    Ok(found)
}

/// Names of the constants that count.
pub(super) fn constants(text: &str) -> Vec<&str> {
    let code = text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(code, _)| code);
    let mut found = Vec::new();
    for definition in code.split("const ").skip(1) {
        let Some((name, rest)) = definition.split_once(": ") else { continue };
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) || FORMATS.contains(&name) {
            continue;
        }
        let Some((kind, value)) = rest.split_once(" =") else { continue };
        let value = value.split_once(';').map_or(value, |(value, _)| value);
        if is_numeric(kind) && is_written_in_numbers(value) {
            found.push(name);
        }
    }
    found
}

/// A number, or a tuple or an array of numbers.
fn is_numeric(kind: &str) -> bool {
    let mut words =
        kind.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.all(|word| NUMBERS.contains(&word) || word.chars().all(|c| c.is_ascii_digit()))
}

/// Digits and operators, at most with the type behind the digits.
fn is_written_in_numbers(value: &str) -> bool {
    let mut words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
    words.all(|word| {
        word.is_empty()
            || word.starts_with(|c: char| c.is_ascii_digit())
            || word == "as"
            || NUMBERS.contains(&word)
    })
}

/// The sending policy: which link, how much, when, and what is known of a link.
const PLACES: [(&str, &[&str]); 2] = [
    (
        "delivery",
        &[
            "scheduler.rs",
            "scheduler",
            "rate.rs",
            "rtt.rs",
            "link_estimate.rs",
            "loss.rs",
            "send_half.rs",
            "send_half",
            "congestion",
        ],
    ),
    ("engine", &["spread.rs", "transmit.rs"]),
];

/// Where a flag is, and what a datagram holds.
const FORMATS: [&str; 3] = ["LIMITED", "FLAGS_OFFSET", "BATCH_BYTES_MAX"];

const NUMBERS: [&str; 13] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_somebody_chose_count() {
        let text = "const A_NS: u64 = 1_000;\npub(crate) const B: (u64, u64) = (1, 2 * 3);\n    \
                    const C: f64 =\n        0.5;\nconst D: u32 = 1 << 10;\n";
        assert_eq!(constants(text), ["A_NS", "B", "C", "D"]);
    }

    #[test]
    fn what_follows_from_something_else_does_not_count() {
        let text = "const A: u64 = 2 * B;\nconst C: u64 = u32::MAX as u64;\nconst D: &str = \"1\";\n\
                    const fn e(F: u64) -> u64 {}\nconst LIMITED: u32 = 1 << 31;\n\
                    const _: () = assert!(1 < 2);\nconst G: Path = Path { rate: 1 };\n\
                    #[cfg(test)]\nmod tests {\n    const H: u64 = 1;\n}\n";
        assert_eq!(constants(text), Vec::<&str>::new());
    }
}
