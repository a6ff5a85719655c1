//! Finds names with words that are unusual in texts about networks: identifiers of Rust, C and
//! Python, and file names.
//!
//! Apart from [`EXCEPTIONS`], no name in a crate or folder may contain such a word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::code_of;
use super::{Violation, files_below, place, read, words};
use crate::error::XtaskError;
use crate::workspace::Workspace;

/// Words that names must not contain, in addition to [`words::PATTERNS`], with their replacements.
const PATTERNS: &[(&str, &str)] = &[
    ("untold", "not reported, pending"),
    ("telling", "notifying, reporting"),
    ("who", "the peer, the requester, the calling thread"),
    ("whom", "the connection's peer"),
    ("he", "the peer, the thread"),
    ("him", "the peer, the thread"),
    ("himself", "itself"),
    ("desks", "connection tables"),
    ("clerks", "connection managers, background threads"),
    ("keeper", "connection manager, background thread"),
    ("keepers", "connection managers, background threads"),
    ("book", "table, list, entries"),
    ("books", "tables, lists"),
    ("ledger", "table, account"),
    ("ledgers", "tables, accounts"),
    ("bells", "doorbells, notifications"),
    ("press", "doorbell, notification"),
    ("presses", "doorbells, notifications"),
    ("pressed", "signalled, notified"),
    ("door", "rendezvous socket, redirect port, multicast socket"),
    ("doors", "rendezvous sockets, redirect ports, multicast sockets"),
    ("sealed", "marked"),
    ("unsealed", "unmarked"),
    ("grave", "deferred deregistration"),
    ("graves", "deferred deregistrations"),
    ("bury", "defer the deregistration"),
    ("buried", "deferred"),
    ("letter", "control message"),
    ("letters", "control messages"),
    ("letterbox", "receive buffer"),
    ("letterboxes", "receive buffers"),
    ("repent", "cool down, back off"),
    ("repents", "cools down, backs off"),
    ("house", "crate, module, project"),
];

/// Permitted words and names of a crate or folder. A word is permitted in a crate where it has
/// another, usual meaning. A name is permitted if another project chose the name, or if programs
/// depend on the name.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    // A type of the crate nix.
    ("bench", &["UsageWho"]),
    // A field of the public API, which programs use.
    ("link", &["who"]),
    ("python", &["messages_under_way"]),
    // In these crates, the word means a character of the alphabet.
    ("dissector", LETTERS),
    ("ethernot-c", LETTERS),
    ("interconnect", LETTERS),
    ("libibverbs-abi", LETTERS),
    ("links", LETTERS),
    ("papers", LETTERS),
    // fcntl(2) uses this word for the flags that restrict changes of a file, such as
    // `F_SEAL_SHRINK`.
    ("link", SEALS),
    ("mem", SEALS),
    // A character of the alphabet, and the flags of fcntl(2).
    ("paths-abi", &["letter", "seal", "seals"]),
];

const LETTERS: &[&str] = &["letter", "letters"];

const SEALS: &[&str] = &["seal", "seals", "sealed", "unsealed"];

/// The names of each file of a crate or folder, with the words that they contain.
type Found = BTreeMap<(String, String), BTreeSet<&'static str>>;

/// Checks the names of the whole repository. Returns violations, and a summary.
pub(super) fn check_names(workspace: &Workspace) -> Result<(Vec<Violation>, String), XtaskError> {
    let found = found(workspace)?;
    let violations = found.iter().filter_map(|(owner, names)| check(owner, names)).collect();
    let left: usize = found.values().map(BTreeMap::len).sum();
    let owners = found.values().filter(|names| !names.is_empty()).count();
    let summary = format!(
        "names with words of the glossary's last column: {left}, in {owners} of {} crates and folders",
        found.len()
    );
    Ok((violations, summary))
}

/// Returns the number of names that contain a word for which the glossary has a replacement.
pub(crate) fn count(workspace: &Workspace) -> Result<usize, XtaskError> {
    Ok(found(workspace)?.values().map(BTreeMap::len).sum())
}

fn found(workspace: &Workspace) -> Result<BTreeMap<String, Found>, XtaskError> {
    let mut found = BTreeMap::new();
    for path in files_below(&workspace.root, &workspace.target_dir)? {
        let (owner, file) = owner_of(workspace, &path);
        // This file contains the list of these words.
        if path.ends_with("xtask/src/tidy/names.rs") {
            continue;
        }
        let names: &mut Found = found.entry(owner.clone()).or_default();
        add(names, &owner, &file, file.rsplit_once('.').map_or(file.as_str(), |(stem, _)| stem));
        let text = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs" | "c" | "h") => code_of(&read(&path)?),
            Some("py" | "pyi") => code_of_python(&read(&path)?),
            _ => continue,
        };
        for name in identifiers(&text) {
            add(names, &owner, &file, name);
        }
    }
    Ok(found)
}

/// Returns the crate or topmost folder of a file, and the file's path in it.
fn owner_of(workspace: &Workspace, path: &Path) -> (String, String) {
    let packages = workspace.packages.iter().filter(|package| path.starts_with(&package.folder));
    if let Some(package) = packages.max_by_key(|package| package.folder.as_os_str().len()) {
        return (package.name.clone(), place(&package.folder, path));
    }
    let file = place(&workspace.root, path);
    let (folder, file) = file.split_once('/').unwrap_or(("the root", &file));
    (folder.to_owned(), file.to_owned())
}

fn check(owner: &str, names: &Found) -> Option<Violation> {
    if names.is_empty() {
        return None;
    }
    let listed: Vec<_> = names
        .iter()
        .map(|((file, name), words)| {
            let instead: Vec<_> = words.iter().map(|word| instead(word)).collect();
            format!("`{name}` in {file}: {}", instead.join("; "))
        })
        .collect();
    let what = format!(
        "{} names stop a reader; docs/glossary.md has the list:\n  {}",
        names.len(),
        listed.join("\n  ")
    );
    Some(Violation { place: owner.to_owned(), what })
}

fn add(names: &mut Found, owner: &str, file: &str, name: &str) {
    let parts = parts(name);
    for (pattern, _) in patterns() {
        let words: Vec<&str> = pattern.split(' ').collect();
        let is_in_name = parts.windows(words.len()).any(|window| window == words);
        if is_in_name && !is_excepted(owner, pattern) && !is_excepted(owner, name) {
            names.entry((file.to_owned(), name.to_owned())).or_default().insert(pattern);
        }
    }
}

fn is_excepted(owner: &str, word_or_name: &str) -> bool {
    EXCEPTIONS.iter().any(|(place, words)| *place == owner && words.contains(&word_or_name))
}

fn patterns() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    words::PATTERNS.iter().chain(PATTERNS)
}

/// Returns a text with the word and its replacement.
fn instead(word: &str) -> String {
    let instead = patterns().find(|(one, _)| *one == word).map_or("", |(_, other)| other);
    format!("not \"{word}\" but {instead}")
}

/// Returns the identifiers of a text without comments and literals.
fn identifiers(code: &str) -> BTreeSet<&str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|name| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
        .collect()
}

/// Returns the words of a path or of a name in snake case or camel case, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in name.split(|c: char| !c.is_alphanumeric()) {
        let letters: Vec<char> = part.chars().collect();
        let mut word = String::new();
        for (index, &letter) in letters.iter().enumerate() {
            let previous = index.checked_sub(1).and_then(|index| letters.get(index));
            let next = letters.get(index + 1);
            let begins_word = letter.is_uppercase()
                && (previous.is_some_and(|previous| !previous.is_uppercase())
                    || next.is_some_and(|next| next.is_lowercase()));
            if begins_word && !word.is_empty() {
                parts.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        if !word.is_empty() {
            parts.push(word);
        }
    }
    parts
}

/// Returns a Python text in which comments and the contents of strings are blank.
fn code_of_python(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => python_string_len(rest, first),
            _ => 0,
        };
        if length == 0 {
            code.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        } else {
            code.push(' ');
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    code
}

/// Returns the length of the Python string at the start of `text`.
fn python_string_len(text: &str, quote: char) -> usize {
    let three = String::from(quote).repeat(3);
    let end = if text.starts_with(&three) { three } else { quote.to_string() };
    let mut at = end.len();
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(&end) {
            return at + end.len();
        }
        let mut characters = rest.chars();
        let first = characters.next().map_or(1, char::len_utf8);
        let second = characters.next().map_or(0, char::len_utf8);
        at += if rest.starts_with('\\') { first + second } else { first };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(owner: &str, names: &[&str]) -> Vec<String> {
        let mut found = Found::new();
        for name in names {
            add(&mut found, owner, "a.rs", name);
        }
        found.into_keys().map(|(_, name)| name).collect()
    }

    #[test]
    fn names_in_snake_and_camel_case_are_split_into_words() {
        assert_eq!(parts("is_told_ofLate"), ["is", "told", "of", "late"]);
        assert_eq!(parts("TCPDoor2Error"), ["tcp", "door2", "error"]);
        assert_eq!(parts("DOOR_KEYS_MAX"), ["door", "keys", "max"]);
        assert_eq!(parts("src/udp-door/mod"), ["src", "udp", "door", "mod"]);
        assert!(parts("__").is_empty());
    }

    #[test]
    fn only_whole_consecutive_words_match() {
        let names = ["told", "tolderance", "put_off", "put_it_off", "doorbell", "DoorError"];
        assert_eq!(names_of("a", &names), ["DoorError", "put_off", "told"]);
    }

    #[test]
    fn words_with_another_meaning_are_permitted_in_their_crate() {
        assert!(names_of("mem", &["F_ADD_SEALS"]).is_empty());
        assert_eq!(names_of("sockets", &["SEALS"]), ["SEALS"]);
        assert_eq!(names_of("mem", &["SEALS_TOLD"]), ["SEALS_TOLD"]);
        assert_eq!(names_of("bench", &["UsageWho", "who"]), ["who"]);
    }

    #[test]
    fn only_identifiers_are_checked() {
        let code = code_of("let nobody = \"desk\"; // told_b\n");
        assert_eq!(identifiers(&code).into_iter().collect::<Vec<_>>(), ["let", "nobody"]);
        let code =
            code_of_python("a = 'told' # told_b\nb = \"\"\"bell\n'\"\"\" + f'\\'desk'\nc = 1x\n");
        assert_eq!(identifiers(&code).into_iter().collect::<Vec<_>>(), ["a", "b", "c", "f"]);
    }

    #[test]
    fn the_glossary_lists_each_word_and_its_replacement() {
        let glossary = read(&crate::workspace::source_root().join("docs/glossary.md")).unwrap();
        for (word, instead) in PATTERNS {
            let row = format!("| `{word}` | {instead} |");
            assert!(glossary.contains(&row), "docs/glossary.md has no row {row}");
        }
    }

    #[test]
    fn each_name_is_refused_with_its_replacement() {
        let mut names = Found::new();
        assert_eq!(check("a", &names), None);
        add(&mut names, "a", "b.rs", "nobody_told");
        let refused = check("a", &names).unwrap().to_string();
        assert!(refused.contains("`nobody_told` in b.rs: not \"nobody\" but no peer"), "{refused}");
    }
}
