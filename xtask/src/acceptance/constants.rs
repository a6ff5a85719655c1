//! Counts the constants of the sending policy whose value was chosen freely.
//!
//! Searches the files of [`PLACES`], without their tests. Counts each `const` whose value is a
//! literal and whose type is numeric, or a tuple or array of numeric types. Ignores constants that
//! are computed from other constants or from a type (`u32::MAX`). Also ignores the constants of
//! [`FORMATS`], which describe a layout.

use std::path::{Path, PathBuf};

use super::found::{Failure, Found};
use crate::constants::sources::{self, Constant};

/// Counts the constants in the sources below `root`.
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

/// Returns the file itself, or for a folder all files below it except test files.
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

/// Returns the names of the freely chosen constants in `text` that are numbers and not in
/// `FORMATS`.
pub(super) fn constants(text: &str) -> Vec<&str> {
    let counts =
        |constant: &Constant<'_>| constant.is_number() && !FORMATS.contains(&constant.name);
    sources::chosen(text).into_iter().filter(counts).map(|constant| constant.name).collect()
}

/// Files of the sending policy. The code in these files decides on which link, how much and when an
/// end sends. One of the files contains a model of a link.
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

/// Constants that describe a layout: positions of flags, and the size of a datagram's content.
const FORMATS: [&str; 3] = ["LIMITED", "FLAGS_OFFSET", "BATCH_BYTES_MAX"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_chosen_numbers_count() {
        let text = "const A_NS: u64 = 1_000;\npub(crate) const B: (u64, u64) = (1, 2 * 3);\n    \
                    const C: f64 =\n        0.5;\nconst D: u32 = 1 << 10;\n";
        assert_eq!(constants(text), ["A_NS", "B", "C", "D"]);
    }

    #[test]
    fn derived_values_do_not_count() {
        let text = "const A: u64 = 2 * B;\nconst C: u64 = u32::MAX as u64;\nconst D: &str = \"1\";\n\
                    const fn e(F: u64) -> u64 {}\nconst LIMITED: u32 = 1 << 31;\n\
                    const _: () = assert!(1 < 2);\nconst G: Path = Path { rate: 1 };\n\
                    #[cfg(test)]\nmod tests {\n    const H: u64 = 1;\n}\n";
        assert_eq!(constants(text), Vec::<&str>::new());
    }
}
