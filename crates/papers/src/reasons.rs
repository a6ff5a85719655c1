//! The reasons why our values deviate, from `papers/reasons.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

/// A reason, with its evidence and test.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Name of the reason in the data of the papers.
    pub id: String,
    /// The reason, in one sentence.
    pub text: String,
    /// The facts that support the reason.
    pub evidence: String,
    /// How the reason was or can be tested.
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

/// Returns the reason with this name; `None` if there is none.
pub fn reason(id: &str) -> Option<&'static Reason> {
    all().iter().find(|reason| reason.id == id)
}

static REASONS: LazyLock<List> = LazyLock::new(|| {
    let text = include_str!("../../../papers/reasons.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("papers/reasons.toml: {error}"))
});
