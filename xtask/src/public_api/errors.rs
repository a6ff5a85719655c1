//! Finds errors whose text names no remedy.
//!
//! The text of an error first describes the fault. The remedy follows after a semicolon or as a
//! question: `"the port is in use; choose another"`, `"... is the peer running?"`. An error that
//! only wraps another checked error needs no remedy. A file lists all other errors without a
//! remedy, with the reason.

use std::collections::BTreeSet;

use quote::ToTokens;
use syn::{Attribute, Fields, Item};

use super::examples::fits;
use super::sources::Sources;

/// An error type, or a variant of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// `crate::Type` or `crate::Type::Variant`.
    pub(super) path: String,
    text: String,
    /// Types of the fields of the error.
    holds: Vec<String>,
}

/// Returns all errors of the crates that were loaded.
pub(super) fn all(sources: &Sources) -> Vec<Fault> {
    let mut found = Vec::new();
    for (name, parsed) in sources.crates() {
        for item in parsed.items() {
            match item {
                Item::Enum(item) if is_error(&item.attrs) => {
                    for variant in &item.variants {
                        let path = format!("{name}::{}::{}", item.ident, variant.ident);
                        found.extend(fault(path, &variant.attrs, &variant.fields));
                    }
                }
                Item::Struct(item) if is_error(&item.attrs) => {
                    let path = format!("{name}::{}", item.ident);
                    found.extend(fault(path, &item.attrs, &item.fields));
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns errors without a remedy that are missing from the list, and lines of the list that match
/// no error.
pub(super) fn without_remedy(faults: &[Fault], list: &str) -> (Vec<String>, Vec<String>) {
    let known: BTreeSet<&str> =
        faults.iter().filter_map(|fault| fault.path.split("::").nth(1)).collect();
    let excuses: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| line.split_once(" | ").map_or("", |(path, _)| path.trim()))
        .collect();
    let mut used = vec![false; excuses.len()];
    let mut bare = Vec::new();
    for fault in faults.iter().filter(|fault| !fault.has_remedy(&known)) {
        match excuses.iter().position(|excuse| fits(excuse, &fault.path)) {
            Some(index) => used[index] = true,
            None => bare.push(format!("{}: {}", fault.path, fault.text)),
        }
    }
    let idle = excuses.iter().zip(used).filter(|(_, used)| !used);
    (bare, idle.map(|(excuse, _)| (*excuse).to_owned()).collect())
}

impl Fault {
    fn has_remedy(&self, known: &BTreeSet<&str>) -> bool {
        let Self { text, holds, .. } = self;
        let passes_on = text == TRANSPARENT || text.trim_end().ends_with('}');
        let held_is_known = holds.iter().any(|held| known.contains(held.as_str()));
        let prose = without_fields(text);
        prose.contains("; ") || prose.contains('?') || passes_on && held_is_known
    }
}

/// Returns a text without its placeholders.
fn without_fields(text: &str) -> String {
    let mut depth = 0_u32;
    let mut prose = String::new();
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            other if depth == 0 => prose.push(other),
            _ => {}
        }
    }
    prose
}

const TRANSPARENT: &str = "transparent";

fn is_error(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut is_error = false;
        if attribute.path().is_ident("derive") {
            let _only_paths = attribute.parse_nested_meta(|meta| {
                is_error |= meta.path.segments.last().is_some_and(|last| last.ident == "Error");
                Ok(())
            });
        }
        is_error
    })
}

fn fault(path: String, attributes: &[Attribute], fields: &Fields) -> Option<Fault> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("error"))?;
    let tokens = attribute.meta.require_list().ok()?.tokens.to_string();
    // Includes the literals of `match` expressions in the arguments of the attribute.
    let text = if tokens == TRANSPARENT { tokens } else { literals(&tokens) };
    let mut holds = Vec::new();
    for field in fields {
        let words = field.ty.to_token_stream().to_string();
        holds.extend(
            words.split(' ').filter(|word| word.starts_with(char::is_uppercase)).map(str::to_owned),
        );
    }
    Some(Fault { path, text, holds })
}

/// Returns the text between quotation marks.
fn literals(tokens: &str) -> String {
    let mut text = String::new();
    let mut rest = tokens;
    while let Some(start) = rest.find('"') {
        let after = &rest[start + 1..];
        let mut end = 0;
        let mut is_escaped = false;
        for c in after.chars() {
            match c {
                '"' if !is_escaped => break,
                '\\' => is_escaped = !is_escaped,
                _ => is_escaped = false,
            }
            end += c.len_utf8();
        }
        text.push_str(&after[..end]);
        rest = after.get(end + 1..).unwrap_or_default();
    }
    let text = text.replace("\\\n", "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(code: &str) -> Vec<Fault> {
        let Item::Enum(item) = syn::parse_str(code).unwrap() else { panic!("an enum") };
        assert!(is_error(&item.attrs));
        let fault = |it: &syn::Variant| fault(format!("a::E::{}", it.ident), &it.attrs, &it.fields);
        item.variants.iter().filter_map(fault).collect()
    }

    #[test]
    fn errors_without_a_remedy_are_found() {
        let found = faults(
            r#"#[derive(Debug, thiserror::Error)] enum E {
                #[error("port {0} is in use; choose another")] Remedy(u16),
                #[error("no answer: {}", match .0 { true => "is it running?", _ => "" })] Question(bool),
                #[error(transparent)] Passed(#[from] E),
                #[error("while reading: {0}")] Told(Box<E>),
                #[error("a \"quoted\" text")] Bare,
                #[error("the system: {0}")] Foreign(io::Error),
                #[error("not {0:?}")] Shown(u8),
                #[error("bytes")] Listed,
            }"#,
        );
        let (bare, idle) = without_remedy(&found, "a::E::Listed | why\na::E::Gone | why\n");
        assert_eq!(
            bare,
            [
                r#"a::E::Bare: a \"quoted\" text"#,
                "a::E::Foreign: the system: {0}",
                "a::E::Shown: not {0:?}"
            ]
        );
        assert_eq!(idle, ["a::E::Gone"]);
    }
}
