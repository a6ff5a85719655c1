//! Public names that existed in an earlier commit and do not exist any more.

use std::collections::BTreeSet;

/// A kind of public names: the files that contain them, and how to find them there.
struct Kind {
    /// Files and folders, relative to the root.
    places: &'static [&'static str],
    find: fn(&str) -> BTreeSet<String>,
}

const KINDS: [Kind; 5] = [
    // The public Rust API: one item a line.
    Kind { places: &["docs/api/ethernot.txt"], find: lines },
    // The symbols of the C libraries: one name a line.
    Kind { places: &["abi/libibverbs/names.txt", "abi/sockets/names.txt"], find: lines },
    // The functions, types and constants of the C APIs.
    Kind {
        places: &["abi/c/include/ethernot.h", "abi/dsm/include/ethernot_dsm.h"],
        find: |text| words(text, is_of_c),
    },
    // Environment variables, and options of the command.
    Kind { places: &["docs", "README.md", "crates/cli/src"], find: |text| words(text, is_setting) },
    // Fields of the JSON that the command writes.
    Kind { places: &["docs/bench-json.md"], find: fields },
];

/// The public names of an earlier commit.
pub(super) struct Names {
    /// Names that no longer exist and that the changelog does not contain.
    pub(super) gone: Vec<String>,
    /// Number of public names in the earlier commit.
    pub(super) all: usize,
}

/// Compares the public names of `commit` with those of the current commit. `git` runs git with
/// arguments and returns its output.
pub(super) fn compare(
    git: &dyn Fn(&[&str]) -> Result<String, String>,
    commit: &str,
) -> Result<Names, String> {
    let changelog = git(&["show", "HEAD:CHANGELOG.md"])?;
    let mut names = Names { gone: Vec::new(), all: 0 };
    for kind in &KINDS {
        let before = (kind.find)(&texts_at(git, commit, kind.places)?);
        let now = (kind.find)(&texts_at(git, "HEAD", kind.places)?);
        names.all += before.len();
        let is_gone = |name: &String| !now.contains(name) && !changelog.contains(name);
        names.gone.extend(before.into_iter().filter(is_gone));
    }
    Ok(names)
}

/// Returns the content of all files of a commit below `places`.
fn texts_at(
    git: &dyn Fn(&[&str]) -> Result<String, String>,
    commit: &str,
    places: &[&str],
) -> Result<String, String> {
    let listed = [&["ls-tree", "-r", "--name-only", commit, "--"], places].concat();
    let mut texts = String::new();
    for path in git(&listed)?.lines() {
        texts.push_str(&git(&["show", &format!("{commit}:{path}")])?);
        texts.push('\n');
    }
    Ok(texts)
}

/// Returns the lines that are neither empty nor comments.
fn lines(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Returns the words that `is_wanted` accepts. A word consists of letters, digits, `_` and `-`.
fn words(text: &str, is_wanted: fn(&str) -> bool) -> BTreeSet<String> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let words = text.split(|c| !is_of_word(c)).map(|word| word.trim_end_matches(['-', '_']));
    words.filter(|word| is_wanted(word)).map(str::to_owned).collect()
}

fn is_of_c(word: &str) -> bool {
    word.starts_with("ethernot_") || is_variable(word)
}

fn is_setting(word: &str) -> bool {
    let option = word.strip_prefix("--").unwrap_or_default();
    is_variable(word) || option.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns whether a word is an environment variable or a constant of C.
fn is_variable(word: &str) -> bool {
    word.strip_prefix("ETHERNOT_").is_some_and(|rest| !rest.is_empty())
}

/// Returns the words in code font that are in lower case, like the fields of JSON documents.
fn fields(text: &str) -> BTreeSet<String> {
    let code = text.split('`').skip(1).step_by(2);
    let is_of_field = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    code.filter(|code| !code.is_empty() && code.chars().all(is_of_field))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn names_are_found_in_each_kind_of_file() {
        let names = [
            (0, "# a comment\nfn a::b()\n\n  c = d\n", set(&["fn a::b()", "c = d"])),
            (
                2,
                "int ethernot_open(int a); /* ETHERNOT_OK */",
                set(&["ethernot_open", "ETHERNOT_OK"]),
            ),
            (
                3,
                "`--print-prices FILE`, ETHERNOT_LOG=debug, a--b -- ---",
                set(&["--print-prices", "ETHERNOT_LOG"]),
            ),
            (4, "| `p99_ns` | `Not`, ns, `a b` |", set(&["p99_ns"])),
        ];
        for (kind, text, wanted) in names {
            let found = KINDS.get(kind).map(|kind| (kind.find)(text));
            assert_eq!(found, Some(wanted), "{text}");
        }
    }
}
