//! Reads the keys of a section one by one. Reports keys that remain unread.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::super::nearest::nearest;
use super::ConfigurationError;
use super::reference::{self, Key};
use super::units::Unit;

/// A section of a configuration.
///
/// A method that reads a key checks the value and writes the value to the effective configuration.
/// It also declares the key: [`Self::finish`] returns the declared keys, from which the reference
/// of all keys is generated.
pub(super) struct Reader {
    file: String,
    section: String,
    /// Whether the section is an element of a list, `[[section]]`.
    is_listed: bool,
    table: Table,
    known: Vec<Key>,
    /// Values that were read, defaults included, as lines of TOML.
    effective: String,
}

impl Reader {
    /// Removes a section from the root table and returns it. A missing section counts as empty.
    pub(super) fn section(
        file: &str,
        root: &mut Table,
        name: &str,
    ) -> Result<Self, ConfigurationError> {
        let table = match root.remove(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                return Err(ConfigurationError::Value {
                    file: file.to_owned(),
                    section: String::new(),
                    key: name.to_owned(),
                    value: shown(&other),
                    expected: format!("a section: [{name}]"),
                });
            }
        };
        Ok(Self {
            file: file.to_owned(),
            section: name.to_owned(),
            is_listed: false,
            table,
            known: Vec::new(),
            effective: format!("[{name}]\n"),
        })
    }

    /// Removes a list of sections with one name, `[[name]]`, and returns it. A missing list counts
    /// as empty.
    pub(super) fn sections(
        file: &str,
        root: &mut Table,
        name: &str,
    ) -> Result<Vec<Self>, ConfigurationError> {
        let Some(list) = root.remove(name) else { return Ok(Vec::new()) };
        let tables = match list {
            Value::Array(list) => list,
            other => vec![other],
        };
        let one = |table| {
            let mut alone = Table::from_iter([(name.to_owned(), table)]);
            let mut reader = Self::section(file, &mut alone, name)?;
            reader.is_listed = true;
            reader.effective = format!("[[{name}]]\n");
            Ok(reader)
        };
        tables.into_iter().map(one).collect()
    }

    /// Reads a text.
    pub(super) fn text(&mut self, key: &str, default: &str) -> Result<String, ConfigurationError> {
        let text = match self.take(key, format!("\"{default}\""), "a text".to_owned()) {
            None => default.to_owned(),
            Some(Value::String(text)) => text,
            Some(value) => {
                return Err(self.wrong(key, &value, format!("a text; \"{default}\" would do")));
            }
        };
        self.note(key, format!("{text:?}"));
        Ok(text)
    }

    /// Declares a key that other code has already removed from the table and read.
    pub(super) fn declare(&mut self, key: &str, values: &str) {
        self.take(key, String::new(), values.to_owned());
    }

    /// Reports sections that no reader has removed.
    pub(super) fn finish_root(
        file: &str,
        root: &Table,
        known: &[&str],
    ) -> Result<(), ConfigurationError> {
        unknown(file, "", root, known)
    }

    /// Reads an integer between two bounds, written as a number or as a text with a unit.
    pub(super) fn number(
        &mut self,
        key: &str,
        default: u64,
        least: u64,
        most: u64,
    ) -> Result<u64, ConfigurationError> {
        let unit = Unit::of(key);
        let range = range(unit, least, most);
        let number = match self.take(key, unit.written(unit.below(default)), range.clone()) {
            None => default,
            Some(value) => match number(unit, &value) {
                Some(number) if (least..=most).contains(&number) => number,
                _ => {
                    let meant = meant(unit, &value).unwrap_or(default);
                    let near = meant.clamp(least, unit.below(most).max(least));
                    let expected = format!("{range}; {} would do", unit.quoted(near));
                    return Err(self.wrong(key, &value, expected));
                }
            },
        };
        self.note(key, number);
        Ok(number)
    }

    /// Reads a number from `least` to `most`. The number may have a fractional part.
    pub(super) fn fraction(
        &mut self,
        key: &str,
        default: f64,
        least: f64,
        most: f64,
    ) -> Result<f64, ConfigurationError> {
        let unit = Unit::of(key);
        let range = match unit {
            Unit::Percent => format!("from {least} to {most} %"),
            _ => format!("a number from {least} to {most}"),
        };
        let value = match self.take(key, default.to_string(), range.clone()) {
            None => default,
            Some(value) => value
                .as_float()
                .or_else(|| number(unit, &value).map(|number| number as f64))
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| {
                    let near =
                        value.as_float().or_else(|| meant(unit, &value).map(|near| near as f64));
                    let near = near.unwrap_or(default).clamp(least, most);
                    let near = match unit {
                        Unit::Percent => format!("\"{near} %\""),
                        _ => near.to_string(),
                    };
                    self.wrong(key, &value, format!("{range}; {near} would do"))
                })?,
        };
        self.note(key, value);
        Ok(value)
    }

    /// Reads a list of numbers between two bounds.
    pub(super) fn numbers(
        &mut self,
        key: &str,
        default: &[u64],
        least: u64,
        most: u64,
    ) -> Result<Vec<u64>, ConfigurationError> {
        let unit = Unit::of(key);
        let range = format!("a list of numbers, each {}", range(unit, least, most));
        let numbers = match self.take(key, format!("{default:?}"), range.clone()) {
            None => default.to_vec(),
            Some(value) => {
                let item = |item: &Value| {
                    number(unit, item).filter(|number| (least..=most).contains(number))
                };
                let items = value.as_array().map(|list| list.iter().map(item).collect());
                items.flatten().ok_or_else(|| {
                    let near = match &value {
                        Value::Array(_) => default.to_vec(),
                        alone => meant(unit, alone)
                            .map_or(default.to_vec(), |number| vec![number.clamp(least, most)]),
                    };
                    self.wrong(key, &value, format!("{range}; {near:?} would do"))
                })?
            }
        };
        self.note(key, format!("{numbers:?}"));
        Ok(numbers)
    }

    /// Reads a boolean.
    pub(super) fn flag(&mut self, key: &str, default: bool) -> Result<bool, ConfigurationError> {
        let value = match self.take(key, default.to_string(), "true or false".to_owned()) {
            None => default,
            Some(value) => value.as_bool().ok_or_else(|| {
                let meant = matches!(&value, Value::String(text) if text == "true" || text == "yes")
                    || matches!(value, Value::Integer(1));
                self.wrong(key, &value, format!("true or false; {meant} would do"))
            })?,
        };
        self.note(key, value);
        Ok(value)
    }

    /// Reads a word, which must be one of `words`.
    pub(super) fn word(
        &mut self,
        key: &str,
        default: &str,
        words: &[&str],
    ) -> Result<String, ConfigurationError> {
        let values = format!("one of {}", words.join(", "));
        let word = match self.take(key, format!("\"{default}\""), values.clone()) {
            None => default.to_owned(),
            Some(value) => {
                let word = value.as_str().filter(|word| words.contains(word));
                word.map(ToOwned::to_owned).ok_or_else(|| {
                    let near = value.as_str().and_then(|word| nearest(word, words));
                    let near = near.unwrap_or(default);
                    self.wrong(key, &value, format!("{values}; \"{near}\" would do"))
                })?
            }
        };
        if let Some(known) = self.known.last_mut() {
            known.words = words.iter().map(|&word| word.to_owned()).collect();
        }
        self.note(key, format!("\"{word}\""));
        Ok(word)
    }

    /// Returns the section with defaults, and the keys that it can have. Returns an error if the
    /// section contains a key that was not read.
    pub(super) fn finish(self) -> Result<(String, Vec<Key>), ConfigurationError> {
        let known: Vec<&str> = self.known.iter().map(|key| key.name.as_str()).collect();
        unknown(&self.file, &self.section, &self.table, &known)?;
        Ok((self.effective + "\n", self.known))
    }

    /// Returns whether the section is an element of a list, `[[section]]`.
    pub(super) const fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns the name of the file, for errors.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Returns an error about a number that is valid alone, but not in combination with others.
    pub(super) fn wrong_number(&self, key: &str, value: u64, expected: &str) -> ConfigurationError {
        ConfigurationError::Value {
            file: self.file.clone(),
            section: self.section.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// Returns an error about a word that is valid alone, but not in combination with others.
    pub(super) fn wrong_word(&self, key: &str, value: &str, expected: &str) -> ConfigurationError {
        self.wrong(key, &Value::String(value.to_owned()), expected.to_owned())
    }

    /// Removes a key and returns its value, if the key exists. The generated reference of all keys
    /// shows `default` for this key.
    pub(super) fn take(&mut self, key: &str, default: String, values: String) -> Option<Value> {
        self.known.push(Key::new(&self.section, key, default, values));
        self.table.remove(key)
    }

    /// Writes a key to the effective configuration. Writing to a `String` cannot fail.
    pub(super) fn note(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.effective, "{key} = {value}");
    }

    fn wrong(&self, key: &str, value: &Value, expected: String) -> ConfigurationError {
        self.wrong_text(key, shown(value), expected)
    }

    /// Returns an error about an unknown key inside a value.
    pub(super) fn unknown_key(&self, key: &str, remedy: String) -> ConfigurationError {
        let (file, section, key) = (self.file.clone(), self.section.clone(), key.to_owned());
        ConfigurationError::UnknownKey { file, section, key, remedy }
    }

    /// Returns an error about one part of a value that has several parts.
    pub(super) fn wrong_text(
        &self,
        key: &str,
        value: String,
        expected: String,
    ) -> ConfigurationError {
        ConfigurationError::Value {
            file: self.file.clone(),
            section: self.section.clone(),
            key: key.to_owned(),
            value,
            expected,
        }
    }
}

/// Describes the bounds of a number in words.
pub(super) fn range(unit: Unit, least: u64, most: u64) -> String {
    match unit {
        Unit::Count => format!("a whole number from {least} to {most}"),
        unit => format!("from {} to {}", unit.written(least), unit.written(unit.below(most))),
    }
}

/// Returns the number that a value denotes; `None` if it denotes none.
pub(super) fn number(unit: Unit, value: &Value) -> Option<u64> {
    match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) => unit.parse(text),
        _ => None,
    }
}

/// Returns the number that the author probably meant.
pub(super) fn meant(unit: Unit, value: &Value) -> Option<u64> {
    match value {
        Value::Integer(number) => Some(u64::try_from(*number).unwrap_or_default()),
        Value::Float(number) => unit.nearest(*number),
        Value::String(text) => unit.parse(text).or_else(|| unit.guess(text)),
        _ => None,
    }
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::String(text) => format!("\"{text}\""),
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a section".to_owned(),
    }
}

/// Formats a value as TOML, nested lists included.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(written).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Table(table) => {
            let entries: Vec<String> =
                table.iter().map(|(key, value)| format!("{key} = {}", written(value))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        other => shown(other),
    }
}

fn unknown(
    file: &str,
    section: &str,
    left: &Table,
    known: &[&str],
) -> Result<(), ConfigurationError> {
    let Some(key) = left.keys().next() else { return Ok(()) };
    let near = || nearest(key, known).map(|name| format!("did you mean `{name}`?"));
    let of_sweeps = || {
        let remedy = "only `ethernot sim sweep` reads it; remove it for one simulation";
        (section.is_empty() && key == "sweep").then(|| remedy.to_owned())
    };
    let remedy = match file {
        reference::FILE => None,
        _ => of_sweeps()
            .or_else(|| reference::needed_here(section, key))
            .or_else(near)
            .or_else(|| reference::elsewhere(key)),
    };
    let remedy = remedy.unwrap_or_else(|| format!("known are {}", known.join(", ")));
    Err(ConfigurationError::UnknownKey {
        file: file.to_owned(),
        section: section.to_owned(),
        key: key.clone(),
        remedy,
    })
}
