//! The reasons why our values are off: `papers/reasons.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

/// A reason and its evidence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The name by which the papers' data refer to it.
    pub id: String,
    /// The reason in one sentence.
    pub text: String,
    /// The evidence.
    pub evidence: String,
    /// The test of the reason.
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

/// Returns the reason with this name.
pub fn reason(id: &str) -> Option<&'static Reason> {
    all().iter().find(|reason| reason.id == id)
}

static REASONS: LazyLock<List> = LazyLock::new(|| {
    let text = include_str!("../../../papers/reasons.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("papers/reasons.toml: {error}"))
});
