//! Takes keys out of a section one by one, and complains about what is left.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::ConfigurationError;

/// A section of a configuration.
pub(super) struct Reader {
    file: String,
    section: String,
    table: Table,
    known: Vec<String>,
    /// What was read, defaults included, as lines of TOML.
    effective: String,
}

impl Reader {
    /// Takes a section out of a file; empty if it is not there.
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
            table,
            known: Vec::new(),
            effective: format!("[{name}]\n"),
        })
    }

    /// A list of sections of one name, `[[name]]`; empty if there is none.
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
            reader.effective = format!("[[{name}]]\n");
            Ok(reader)
        };
        tables.into_iter().map(one).collect()
    }

    /// Any text.
    pub(super) fn text(&mut self, key: &str, default: &str) -> Result<String, ConfigurationError> {
        let text = match self.take(key) {
            None => default.to_owned(),
            Some(Value::String(text)) => text,
            Some(value) => return Err(self.wrong(key, &value, "a text".to_owned())),
        };
        self.note(key, format!("{text:?}"));
        Ok(text)
    }

    /// Complains about sections nobody took.
    pub(super) fn finish_root(
        file: &str,
        root: &Table,
        known: &[&str],
    ) -> Result<(), ConfigurationError> {
        let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
        unknown(file, "", root, &known)
    }

    /// A number between two bounds.
    pub(super) fn number(
        &mut self,
        key: &str,
        default: u64,
        least: u64,
        most: u64,
    ) -> Result<u64, ConfigurationError> {
        let value = match self.take(key) {
            None => default,
            Some(value) => value
                .as_integer()
                .and_then(|number| u64::try_from(number).ok())
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| {
                    self.wrong(key, &value, format!("a whole number from {least} to {most}"))
                })?,
        };
        self.note(key, value);
        Ok(value)
    }

    /// A number between two bounds that need not be whole.
    pub(super) fn fraction(
        &mut self,
        key: &str,
        default: f64,
        least: f64,
        most: f64,
    ) -> Result<f64, ConfigurationError> {
        let value = match self.take(key) {
            None => default,
            Some(value) => value
                .as_float()
                .or_else(|| value.as_integer().map(|number| number as f64))
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| {
                    self.wrong(key, &value, format!("a number from {least} to {most}"))
                })?,
        };
        self.note(key, value);
        Ok(value)
    }

    /// A list of numbers between two bounds.
    pub(super) fn numbers(
        &mut self,
        key: &str,
        default: &[u64],
        least: u64,
        most: u64,
    ) -> Result<Vec<u64>, ConfigurationError> {
        let numbers = match self.take(key) {
            None => default.to_vec(),
            Some(value) => value
                .as_array()
                .and_then(|list| {
                    let number = |item: &Value| {
                        let number = u64::try_from(item.as_integer()?).ok()?;
                        (least..=most).contains(&number).then_some(number)
                    };
                    list.iter().map(number).collect::<Option<Vec<u64>>>()
                })
                .ok_or_else(|| {
                    let expected = format!("a list of whole numbers from {least} to {most}");
                    self.wrong(key, &value, expected)
                })?,
        };
        self.note(key, format!("{numbers:?}"));
        Ok(numbers)
    }

    /// True or false.
    pub(super) fn flag(&mut self, key: &str, default: bool) -> Result<bool, ConfigurationError> {
        let value = match self.take(key) {
            None => default,
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.wrong(key, &value, "true or false".to_owned()))?,
        };
        self.note(key, value);
        Ok(value)
    }

    /// One of some words.
    pub(super) fn word(
        &mut self,
        key: &str,
        default: &str,
        words: &[&str],
    ) -> Result<String, ConfigurationError> {
        let word = match self.take(key) {
            None => default.to_owned(),
            Some(value) => value
                .as_str()
                .filter(|word| words.contains(word))
                .map(ToOwned::to_owned)
                .ok_or_else(|| self.wrong(key, &value, format!("one of {}", words.join(", "))))?,
        };
        self.note(key, format!("\"{word}\""));
        Ok(word)
    }

    /// The section as it was read. Keys that nobody asked for are errors.
    pub(super) fn finish(self) -> Result<String, ConfigurationError> {
        unknown(&self.file, &self.section, &self.table, &self.known)?;
        Ok(self.effective + "\n")
    }

    /// The file, for errors.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// An error on a number that is wrong together with others.
    pub(super) fn wrong_number(&self, key: &str, value: u64, expected: &str) -> ConfigurationError {
        ConfigurationError::Value {
            file: self.file.clone(),
            section: self.section.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// An error on a word that is wrong together with others.
    pub(super) fn wrong_word(&self, key: &str, value: &str, expected: &str) -> ConfigurationError {
        self.wrong(key, &Value::String(value.to_owned()), expected.to_owned())
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.known.push(key.to_owned());
        self.table.remove(key)
    }

    /// Writing to a `String` cannot fail.
    fn note(&mut self, key: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.effective, "{key} = {value}");
    }

    fn wrong(&self, key: &str, value: &Value, expected: String) -> ConfigurationError {
        ConfigurationError::Value {
            file: self.file.clone(),
            section: self.section.clone(),
            key: key.to_owned(),
            value: shown(value),
            expected,
        }
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

fn unknown(
    file: &str,
    section: &str,
    left: &Table,
    known: &[String],
) -> Result<(), ConfigurationError> {
    let Some(key) = left.keys().next() else { return Ok(()) };
    let nearest = known.iter().min_by_key(|name| distance(key, name));
    let remedy = match nearest {
        Some(name) if distance(key, name) <= key.len().div_ceil(3) => {
            format!("did you mean `{name}`?")
        }
        _ => format!("known are {}", known.join(", ")),
    };
    Err(ConfigurationError::UnknownKey {
        file: file.to_owned(),
        section: section.to_owned(),
        key: key.clone(),
        remedy,
    })
}

/// Letters to insert, delete or change to make one word of the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
