//! Every key that a configuration may have, found by asking the code that reads it.
//!
//! A configuration is read for each word that a key may be, as other keys depend on it. What each
//! reading asks for is the reference, so it cannot say anything else than what is read.

use std::fmt::Write as _;

use toml::Table;

use super::Configuration;
use super::meanings::meaning;
use super::units::Unit;

/// A key of a configuration.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its section.
    pub section: String,
    /// Its name.
    pub name: String,
    /// What a plain number is in.
    pub unit: Unit,
    /// What it is unless it is given; empty for nothing. Where that depends on other keys, with
    /// their defaults.
    pub default: String,
    /// What it may be, in words.
    pub values: String,
    /// The words it may be, if it is one.
    pub words: Vec<String>,
    /// The settings that it needs, e.g. `[topology] kind = "torus" or "mesh"`.
    pub needs: Vec<String>,
}

impl Key {
    pub(super) fn new(section: &str, name: &str, default: String, values: String) -> Self {
        let (section, name) = (section.to_owned(), name.to_owned());
        let unit = Unit::of(&name);
        Self { section, name, unit, default, values, words: Vec::new(), needs: Vec::new() }
    }

    /// Returns what the key is for; empty for a key whose text is missing there.
    pub fn meaning(&self) -> &'static str {
        meaning(&self.section, &self.name)
    }

    /// Whether this is the same key with the same default and values, whatever it needs.
    fn is(&self, other: &Self) -> bool {
        let of =
            |key: &Self| [&key.section, &key.name, &key.default, &key.values].map(Clone::clone);
        of(self) == of(other)
    }
}

/// Returns all keys, by section, in the order in which they are read.
pub fn keys() -> Vec<Key> {
    let mut found = explore(&[], &[]);
    found.extend(of_lists(&found));
    // The same key with fewer needs says more.
    let is_less = |less: &Key, key: &Key| {
        less.is(key)
            && less.needs.len() < key.needs.len()
            && less.needs.iter().all(|need| key.needs.contains(need))
    };
    let says_more = |key: &&Key| !found.iter().any(|less| is_less(less, key));
    let mut keys: Vec<Key> = found.iter().filter(says_more).cloned().collect();
    // What a key needs may need something itself.
    let direct = keys.clone();
    for key in &mut keys {
        let further: Vec<String> =
            key.needs.iter().flat_map(|need| needed_by(&direct, need)).collect();
        let own = std::mem::take(&mut key.needs);
        key.needs = further.into_iter().filter(|need| !own.contains(need)).collect();
        key.needs.extend(own);
    }
    keys.sort_by_key(|key| SECTIONS.iter().position(|&section| section == key.section));
    keys
}

/// Formats the keys for pages of documentation.
pub fn markdown() -> String {
    let mut text = PREFACE.to_owned();
    let keys = keys();
    for section in SECTIONS {
        // Writing to a `String` cannot fail, here and below.
        let _ = write!(
            text,
            "\n## `[{section}]`\n\n| key | default | values | meaning |\n|---|---|---|---|\n"
        );
        for key in keys.iter().filter(|key| key.section == section) {
            let default = match key.default.as_str() {
                "" => String::new(),
                default => format!("`{default}`"),
            };
            let needs = match key.needs.as_slice() {
                [] => String::new(),
                needs => format!(" Only with `{}`.", needs.join("` and `")),
            };
            let (name, values, meaning) = (&key.name, &key.values, key.meaning());
            let _ = writeln!(text, "| `{name}` | {default} | {values} | {meaning}.{needs} |");
        }
    }
    text
}

/// What a key of a section needs to mean something there, if anything makes it.
pub(super) fn needed_here(section: &str, name: &str) -> Option<String> {
    let found = keys().into_iter().filter(|key| key.section == section && key.name == name);
    let mut needs: Vec<String> = found.map(|key| key.needs.join(" and ")).collect();
    needs.dedup();
    (!needs.is_empty()).then(|| format!("it needs {}", needs.join(", or ")))
}

/// In which other section a key means something.
pub(super) fn elsewhere(name: &str) -> Option<String> {
    let found = keys().into_iter().find(|key| key.name == name);
    found.map(|key| format!("it is a key of [{}]", key.section))
}

/// A word that was chosen: section, key, word.
type Choice = (String, String, String);

/// The keys there are with these words, and with others in the place of the default of each further
/// word; not of `known` ones, which are explored elsewhere.
fn explore(chosen: &[Choice], known: &[Key]) -> Vec<Key> {
    let here = read(chosen).unwrap_or_default();
    let is_known = |key: &Key| known.iter().any(|known| known.is(key));
    let mut found = here.clone();
    for key in here.iter().filter(|key| !key.words.is_empty() && !is_known(key)) {
        let mut branches = Vec::new();
        for word in &key.words {
            let choice = (key.section.clone(), key.name.clone(), word.clone());
            let path = [chosen, &[choice]].concat();
            let keys = read(&path);
            branches.extend(keys.map(|keys| (word, path, keys)));
        }
        let is_in = |keys: &[Key], key: &Key| keys.iter().any(|known| known.is(key));
        // What is not there by default may come with another word, too: then it is there twice.
        let mut with_this: Vec<Key> = Vec::new();
        for other in branches.iter().flat_map(|(_, _, keys)| keys) {
            let has_it = |branch: &&(&String, _, Vec<Key>)| is_in(&branch.2, other);
            let (with, without): (Vec<_>, Vec<_>) = branches.iter().partition(has_it);
            if without.is_empty() {
                continue;
            }
            let need = if with.len() > 3 && without.len() < 3 {
                need(key, "is not", without.iter().map(|branch| branch.0))
            } else {
                need(key, "=", with.iter().map(|branch| branch.0))
            };
            add(if is_in(&here, other) { &mut found } else { &mut with_this }, other, &need);
        }
        found.append(&mut with_this);
        for (word, path, keys) in &branches {
            for other in explore(path, &[known, &here].concat()) {
                let is_of_branch = is_in(keys, &other);
                if is_of_branch && is_in(&here, &other) || !is_of_branch && is_in(&found, &other) {
                    continue;
                }
                if !is_of_branch {
                    add(&mut found, &other, &need(key, "=", std::iter::once(*word)));
                }
                for need in &other.needs {
                    add(&mut found, &other, need);
                }
            }
        }
    }
    found
}

fn need<'a>(key: &Key, is: &str, words: impl Iterator<Item = &'a String>) -> String {
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    format!("[{}] {} {is} {}", key.section, key.name, words.join(" or "))
}

/// What the key in a need needs itself.
fn needed_by(keys: &[Key], need: &str) -> Vec<String> {
    let is_it = |key: &&Key| need.starts_with(&format!("[{}] {} ", key.section, key.name));
    // A key that is there in several ways is always there.
    let mut found = keys.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(only), None) => only.needs.clone(),
        _ => Vec::new(),
    }
}

/// Adds what a key needs, and the key if it is new.
fn add(found: &mut Vec<Key>, key: &Key, need: &str) {
    let at = found.iter().position(|known| known.is(key)).unwrap_or_else(|| {
        found.push(Key { needs: Vec::new(), ..key.clone() });
        found.len() - 1
    });
    if let Some(known) = found.get_mut(at)
        && !known.needs.iter().any(|known| known == need)
    {
        known.needs.push(need.to_owned());
    }
}

/// The keys that only sections of a list have, as `[[workload]]`; others are found in the single one.
fn of_lists(known: &[Key]) -> Vec<Key> {
    let list = Table::from_iter([("workload".to_owned(), vec![Table::new()].into())]);
    let keys = Configuration::from_table(FILE, list).map(|(_, keys)| keys).unwrap_or_default();
    let is_new = |key: &Key| !known.iter().any(|known| known.is(key));
    let needs = || vec!["[[workload]]".to_owned()];
    keys.into_iter().filter(is_new).map(|key| Key { needs: needs(), ..key }).collect()
}

/// The keys that are asked for with these words.
fn read(chosen: &[Choice]) -> Option<Vec<Key>> {
    let mut root = Table::new();
    for (section, key, word) in chosen {
        let section = root.entry(section.as_str()).or_insert_with(|| Table::new().into());
        section.as_table_mut()?.insert(key.clone(), word.as_str().into());
    }
    let has_engines =
        |choice: &Choice| choice.0 == "host" && choice.1 == "kind" && choice.2 == "edge";
    if chosen.iter().any(has_engines) {
        root.insert("outage".to_owned(), vec![Table::new()].into());
    }
    Configuration::from_table(FILE, root).ok().map(|(_, keys)| keys)
}

/// What is read for the reference is called so: it must not ask the reference what is wrong with it.
pub(super) const FILE: &str = "the reference";

/// All there are, as they are written out.
const SECTIONS: [&str; 7] = ["topology", "routing", "fabric", "host", "outage", "workload", "run"];

const PREFACE: &str = "\
# Keys of the interconnect simulator

All keys of a configuration of `ethernot sim`.
`ethernot sim keys --markdown` makes this page from the code that reads the keys, and a test compares the two.

A number is plain, in the unit that ends the name of its key, or a text with a unit:

* times (`_ps`): `ps`, `ns`, `us` (`µs`), `ms`, `s`
* rates (`_bps`): `b/s`, `kb/s`, `Mb/s`, `Gb/s`, `Tb/s` (or `bit/s` for `b/s`)
* lengths (`bytes`): `B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, `TiB`
* shares: `%`, `ppm`, `ppb`

`host_rate_bps = \"10 Gb/s\"` is `host_rate_bps = 10_000_000_000`.
If a default or a range depends on other keys, the table shows it for their defaults, and the meaning names them.
A key that stands twice has another default or range with other settings.
";

#[cfg(test)]
mod tests {
    use super::super::meanings::MEANINGS;
    use super::*;

    #[test]
    fn every_key_has_a_meaning_and_every_meaning_a_key() {
        let keys = keys();
        let mut missing: Vec<String> = keys
            .iter()
            .filter(|key| key.meaning().is_empty())
            .map(|key| format!("{}.{}", key.section, key.name))
            .collect();
        missing.dedup();
        assert!(missing.is_empty(), "configuration/meanings.rs has nothing on {missing:?}");
        for (section, name, _) in MEANINGS {
            let is_it = |key: &Key| key.section == *section && key.name == *name;
            assert!(keys.iter().any(is_it), "nothing reads {section}.{name}");
        }
    }

    #[test]
    fn the_page_of_keys_is_what_the_code_reads() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulator-keys.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "write it again: ethernot sim keys --markdown > docs/simulator-keys.md"
        );
    }

    #[test]
    fn keys_name_what_they_need() {
        let keys = keys();
        let needs = |section: &str, name: &str| -> Vec<&str> {
            let of = keys.iter().filter(|key| key.section == section && key.name == name);
            of.flat_map(|key| &key.needs).map(String::as_str).collect()
        };
        assert_eq!(needs("fabric", "flowlet_gap_ps"), ["[fabric] choice = \"flowlet\""]);
        assert_eq!(needs("topology", "radix"), ["[topology] kind = \"fat_tree\""]);
        assert_eq!(needs("outage", "rail"), ["[host] kind = \"edge\""]);
        assert_eq!(needs("run", "seed"), [""; 0]);
        assert_eq!(needs("workload", "reduce_ps_per_byte"), ["[workload] kind = \"all_reduce\""]);
    }

    #[test]
    fn every_default_can_be_given() {
        for key in keys().iter().filter(|key| key.needs.is_empty() && !key.default.is_empty()) {
            let has_unit = key.default.contains(' ') && !key.default.starts_with(['[', '"']);
            let quote = if has_unit { "\"" } else { "" };
            let value = format!("{quote}{}{quote}", key.default);
            let text = format!("[{}]\n{} = {value}\n", key.section, key.name);
            let read = Configuration::parse("a.toml", &text);
            assert!(read.is_ok(), "{text}{}", read.expect_err("it is wrong"));
        }
    }
}
