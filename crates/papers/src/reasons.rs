//! Why numbers of ours are off: `papers/reasons.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

/// A reason with its evidence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Its name in the data of papers.
    pub id: String,
    /// In a sentence.
    pub text: String,
    /// What shows it.
    pub evidence: String,
    /// What tests it.
    pub test: String,
}

#[derive(Debug, Deserialize)]
struct List {
    reason: Vec<Reason>,
}

/// Returns all reasons.
pub fn all() -> &'static [Reason] {
    &REASONS.reason
}

/// Returns the reason of this name.
pub fn reason(id: &str) -> Option<&'static Reason> {
    all().iter().find(|reason| reason.id == id)
}

static REASONS: LazyLock<List> = LazyLock::new(|| {
    let text = include_str!("../../../papers/reasons.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("papers/reasons.toml: {error}"))
});
