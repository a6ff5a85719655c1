//! Finds the lines of a configuration file that errors are about.

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table};

use super::super::edge::{EdgeError, OutageError};
use super::super::topology::TopologyError;
use super::ConfigurationError;
use super::reader::shown;
use super::units::Unit;

/// The text of a configuration, kept so that errors can name its lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    pub(super) file: String,
    pub(super) text: String,
}

impl Written {
    /// Adds to an error the line of the key that the error is about. Shows the value as the file
    /// contains it.
    pub(super) fn locate(&self, error: ConfigurationError) -> ConfigurationError {
        match error {
            ConfigurationError::UnknownKey { section, key, remedy, .. } => {
                let file = match self.cable_place(&key) {
                    Some(place) => place,
                    None => self.place(&section, &key, ""),
                };
                ConfigurationError::UnknownKey { file, section, key, remedy }
            }
            ConfigurationError::Value { file, section, key, value, expected } => {
                let Some(entry) = self.entry(&section, &key, &value) else {
                    let file = self.cable_place(&key).unwrap_or(file);
                    return ConfigurationError::Value { file, section, key, value, expected };
                };
                let file = format!("{}:{}", self.file, entry.line);
                // Another notation of the same value, such as `1 KiB` for 1024, counts as this
                // value.
                let text = entry.written.trim_matches(['"', '\'']);
                let is_it = Unit::of(&key).parse(text).is_some_and(|it| it.to_string() == value);
                let is_shown = entry.shown == value || is_it;
                let is_shown = is_shown && entry.written.len() <= WRITTEN_MAX;
                let value = if is_shown { entry.written } else { value };
                ConfigurationError::Value { file, section, key, value, expected }
            }
            ConfigurationError::Topology(TopologyError::Size { what, .. })
                if self.entry("topology", what, "").is_some() =>
            {
                self.within("topology", what, "", error)
            }
            ConfigurationError::Topology(TopologyError::Graph(ref wrong)) => {
                let place = wrong.cable().and_then(|cable| self.cable_line(cable));
                match place {
                    Some(line) => ConfigurationError::Within {
                        place: format!("{}:{line}, [topology]", self.file),
                        cause: Box::new(error),
                    },
                    None => self.within("topology", "kind", "", error),
                }
            }
            ConfigurationError::Topology(_) => self.within("topology", "kind", "", error),
            ConfigurationError::Routing(_) => self.within("routing", "kind", "", error),
            ConfigurationError::Undivided { .. } => self.within("run", "threads", "", error),
            ConfigurationError::Edge(EdgeError::Outage(OutageError::Place {
                ref place, ..
            })) => {
                let shown = format!("\"{place}\"");
                self.within("outage", "place", &shown, error)
            }
            ConfigurationError::Edge(EdgeError::Outage(OutageError::Rail { rail, .. })) => {
                self.within("outage", "rail", &rail.to_string(), error)
            }
            ConfigurationError::Edge(EdgeError::FrameBytes { .. }) => {
                self.within("fabric", "mtu_bytes", "", error)
            }
            other => other,
        }
    }

    /// Returns an error about a value that is valid alone, but not in combination with others.
    pub(super) fn value(
        &self,
        section: &str,
        key: &str,
        value: String,
        expected: String,
    ) -> ConfigurationError {
        let (file, section, key) = (self.file.clone(), section.to_owned(), key.to_owned());
        self.locate(ConfigurationError::Value { file, section, key, value, expected })
    }

    fn within(
        &self,
        section: &str,
        key: &str,
        value: &str,
        cause: ConfigurationError,
    ) -> ConfigurationError {
        let place = format!("{}, [{section}]", self.place(section, key, value));
        ConfigurationError::Within { place, cause: Box::new(cause) }
    }

    /// Returns the file and line of a cable, if `key` has the form `… of cable N`.
    fn cable_place(&self, key: &str) -> Option<String> {
        let (_, cable) = key.rsplit_once(" of cable ")?;
        let line = self.cable_line(cable.parse().ok()?)?;
        Some(format!("{}:{line}", self.file))
    }

    /// Returns the line where a cable of `[topology]` starts. Lines and cables count from 1.
    fn cable_line(&self, cable: usize) -> Option<usize> {
        let root = DeTable::parse(&self.text).ok()?;
        let topology = root.get_ref().get("topology")?.get_ref().as_table()?;
        let cables = topology.get("cables")?.get_ref().as_array()?;
        Some(self.line_of(cables.get(cable.checked_sub(1)?)?.span().start))
    }

    /// Returns the line that contains a byte offset. Lines count from 1.
    fn line_of(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
    }

    /// Returns the name of the file. If the file contains the key, appends the key's line.
    fn place(&self, section: &str, key: &str, value: &str) -> String {
        let entry = self.entry(section, key, value);
        let line = entry.map_or(String::new(), |entry| format!(":{}", entry.line));
        self.file.clone() + &line
    }

    /// Returns the entry of a key with this value. If no entry has the value, returns the first
    /// entry of the key.
    fn entry(&self, section: &str, key: &str, value: &str) -> Option<KeyEntry> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut entries = Vec::new();
        let sweep = root.get_ref().get("sweep").and_then(|sweep| sweep.get_ref().as_table());
        for tables in [Some(root.get_ref()), sweep].into_iter().flatten() {
            if section.is_empty() {
                entries.extend(self.read(tables, key));
            }
            match tables.get(section).map(Spanned::get_ref) {
                Some(DeValue::Table(table)) => entries.extend(self.read(table, key)),
                Some(DeValue::Array(list)) => {
                    let tables = list.iter().filter_map(|item| item.get_ref().as_table());
                    entries.extend(tables.filter_map(|table| self.read(table, key)));
                }
                _ => {}
            }
        }
        let found = entries.iter().position(|entry| entry.shown == value).unwrap_or_default();
        (found < entries.len()).then(|| entries.swap_remove(found))
    }

    fn read(&self, table: &DeTable<'_>, key: &str) -> Option<KeyEntry> {
        let (name, value) = table.get_key_value(key)?;
        let written = self.text.get(value.span()).unwrap_or_default().to_owned();
        let alone: Table = format!("value = {written}").parse().unwrap_or_default();
        Some(KeyEntry {
            line: self.line_of(name.span().start),
            shown: alone.get("value").map(shown).unwrap_or_default(),
            written,
        })
    }
}

/// Returns the error for a text that is not TOML.
pub(super) fn syntax(file: &str, text: &str, cause: &toml::de::Error) -> ConfigurationError {
    let start = cause.span().map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or_default();
    let line = before.matches('\n').count();
    let content = text.lines().nth(line).unwrap_or_default().trim();
    // If a value such as `key = 10 Gb/s` lacks its quotes, the error also contains a remedy.
    let remedy = Some(content).and_then(|content| {
        let (key, value) = content.split_once('=')?;
        let (key, value) = (key.trim(), value.split('#').next()?.trim());
        let unit = Unit::of(key);
        let number = unit.parse(value).or_else(|| unit.guess(value))?;
        Some(format!("; {key} = {} would do", unit.quoted(number)))
    });
    let message = cause.message().lines().collect::<Vec<_>>().join(", ");
    ConfigurationError::Syntax {
        file: file.to_owned(),
        line: line + 1,
        cause: match content {
            "" => message,
            content => format!("{message}, in `{content}`"),
        },
        remedy: remedy.unwrap_or_default(),
    }
}

/// A key in the file, with its value.
struct KeyEntry {
    /// Line, from 1.
    line: usize,
    /// The value in the form that errors show.
    shown: String,
    /// The value as the file contains it.
    written: String,
}

/// Maximum length of a written value in an error.
const WRITTEN_MAX: usize = 60;
