//! Generates the reference of all configuration keys from the code that reads them.
//!
//! The value of a key such as `kind` can decide which other keys exist. Therefore the generator
//! reads a configuration once for each allowed word of such a key. The reference contains all keys
//! that these readings request, so it cannot differ from the code.

use std::fmt::Write as _;

use toml::Table;

use super::Configuration;
use super::meanings::meaning;
use super::units::Unit;

/// A key of a configuration.
#[derive(Clone, Debug)]
pub struct Key {
    /// Section of the key.
    pub section: String,
    /// Name of the key.
    pub name: String,
    /// Unit of a number that the author of a configuration writes without a unit.
    pub unit: Unit,
    /// Default value; empty if there is none. If the default depends on other keys, this is the
    /// default that applies when those keys have their own defaults.
    pub default: String,
    /// Allowed values, in words.
    pub values: String,
    /// Allowed words, if the value is a word; otherwise empty.
    pub words: Vec<String>,
    /// Settings without which the key is unknown, such as `[topology] kind = "torus" or "mesh"`.
    pub needs: Vec<String>,
}

impl Key {
    pub(super) fn new(section: &str, name: &str, default: String, values: String) -> Self {
        let (section, name) = (section.to_owned(), name.to_owned());
        let unit = Unit::of(&name);
        Self { section, name, unit, default, values, words: Vec::new(), needs: Vec::new() }
    }

    /// Returns the meaning of the key; empty if the list of meanings lacks it.
    pub fn meaning(&self) -> &'static str {
        meaning(&self.section, &self.name)
    }

    /// Returns whether two keys are equal in everything except the settings that they need.
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
    // If two entries differ only in the settings that they need, the entry with fewer needs is
    // valid in more cases. It replaces the other entry.
    let is_less = |less: &Key, key: &Key| {
        less.is(key)
            && less.needs.len() < key.needs.len()
            && less.needs.iter().all(|need| key.needs.contains(need))
    };
    let says_more = |key: &&Key| !found.iter().any(|less| is_less(less, key));
    let mut keys: Vec<Key> = found.iter().filter(says_more).cloned().collect();
    // If key A needs key B, then A also needs the settings that B needs.
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

/// Formats the keys as a page of documentation, in Markdown.
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

/// Describes the settings that a key of a section needs; `None` if the section has no such key.
pub(super) fn needed_here(section: &str, name: &str) -> Option<String> {
    let found = keys().into_iter().filter(|key| key.section == section && key.name == name);
    let mut needs: Vec<String> = found.map(|key| key.needs.join(" and ")).collect();
    needs.dedup();
    (!needs.is_empty()).then(|| format!("it needs {}", needs.join(", or ")))
}

/// Describes the section that has a key of this name; `None` if no section has it.
pub(super) fn elsewhere(name: &str) -> Option<String> {
    let found = keys().into_iter().find(|key| key.name == name);
    found.map(|key| format!("it is a key of [{}]", key.section))
}

/// A key with the word chosen for it: section, key, word.
type Choice = (String, String, String);

/// Reads the keys that exist with the chosen words. Then tries the other words of each key that
/// `known` does not contain, and reads the keys that exist with those words. Returns all keys that
/// were read. Keys in `known` keep their word, because another call explores them.
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
        // If a further key exists with several words of `key`, several branches contain that key.
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

/// Returns the settings that the key named in `need` itself requires.
fn needed_by(keys: &[Key], need: &str) -> Vec<String> {
    let is_it = |key: &&Key| need.starts_with(&format!("[{}] {} ", key.section, key.name));
    // If the key is listed several times with different required settings, this function returns no
    // settings, as for a key that always exists.
    let mut found = keys.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(only), None) => only.needs.clone(),
        _ => Vec::new(),
    }
}

/// Adds a key if it is new. Then adds `need` to the settings that the key needs.
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

/// Returns the keys that exist only in list sections, such as `[[workload]]`. All other keys of
/// list sections also exist in the single section.
fn of_lists(known: &[Key]) -> Vec<Key> {
    let list = Table::from_iter([("workload".to_owned(), vec![Table::new()].into())]);
    let keys = Configuration::from_table(FILE, list).map(|(_, keys)| keys).unwrap_or_default();
    let is_new = |key: &Key| !known.iter().any(|known| known.is(key));
    let needs = || vec!["[[workload]]".to_owned()];
    keys.into_iter().filter(is_new).map(|key| Key { needs: needs(), ..key }).collect()
}

/// Returns the keys that a configuration with the chosen words requests; `None` if it is invalid.
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

/// File name of the configurations that are read to build the reference. Errors with this file name
/// must not look up the reference, because the look-up would start to build the reference again.
pub(super) const FILE: &str = "the reference";

/// All sections, in the order of the generated page.
const SECTIONS: [&str; 7] = ["topology", "routing", "fabric", "host", "outage", "workload", "run"];

const PREFACE: &str = "\
# Keys of the interconnect simulator

All keys of a configuration of `ethernot sim`.
`ethernot sim keys --markdown` generates this page from the code that reads the keys.
A test compares this page with the output of the command.

A number is written without a unit, in the unit at the end of the key's name, or as a text with a unit:

* times (`_ps`): `ps`, `ns`, `us` (`µs`), `ms`, `s`
* rates (`_bps`): `b/s`, `kb/s`, `Mb/s`, `Gb/s`, `Tb/s` (or `bit/s` for `b/s`)
* lengths (`bytes`): `B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, `TiB`
* shares: `%`, `ppm`, `ppb`

`host_rate_bps = \"10 Gb/s\"` is `host_rate_bps = 10_000_000_000`.
If a default or a range depends on other keys, the meaning names these keys, and the table assumes their defaults.
A key has several rows if its default or its range differs between other settings.
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
        assert!(missing.is_empty(), "configuration/meanings.rs lacks the keys {missing:?}");
        for (section, name, _) in MEANINGS {
            let is_it = |key: &Key| key.section == *section && key.name == *name;
            assert!(
                keys.iter().any(is_it),
                "configuration/meanings.rs has the key {section}.{name}, which no code reads"
            );
        }
    }

    #[test]
    fn the_page_of_keys_matches_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulator-keys.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "generate the page again: ethernot sim keys --markdown > docs/simulator-keys.md"
        );
    }

    #[test]
    fn keys_list_their_required_settings() {
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
    fn every_default_can_be_set_explicitly() {
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
