//! Finds numbers in results that contain lists of entries, by the fields of the entries.

use serde_json::Value;

use super::found::{Failure, Found};
use super::runner::number;

/// A step from a part of a JSON result to a smaller part.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Goes to this JSON pointer.
    At(&'static str),
    /// Goes to the entry of a list whose fields have these values.
    Entry(&'static [(&'static str, &'static str)]),
}

/// Returns the number at the end of all steps.
pub(super) fn figure(result: &Value, steps: &[Step], pointer: &str) -> Result<Found, Failure> {
    let end = steps.iter().try_fold(result, |value, step| match step {
        Step::At(pointer) => value
            .pointer(pointer)
            .ok_or_else(|| Failure::CannotRun(format!("the result has nothing at {pointer}"))),
        Step::Entry(fields) => entry(value, fields),
    })?;
    number(end, pointer).map(Found::plain)
}

/// Returns the entry of a list. If the entry is missing, the error contains the reason that the
/// result gives, if any.
fn entry<'a>(list: &'a Value, fields: &[(&str, &str)]) -> Result<&'a Value, Failure> {
    let entries = || list.as_array().into_iter().flatten();
    let is = |entry: &Value, (field, text): &(&str, &str)| match entry.get(*field) {
        Some(Value::String(found)) => found == text,
        Some(Value::Bool(found)) => (if *found { "true" } else { "false" }) == *text,
        _ => false,
    };
    let found = entries().find(|entry| fields.iter().all(|field| is(entry, field)));
    let near = found
        .or_else(|| entries().find(|entry| fields.first().is_some_and(|field| is(entry, field))));
    if let Some(reason) = near.and_then(|near| near.get("cannot_run")?.as_str()) {
        return Err(Failure::CannotRun(reason.into()));
    }
    if let Some(found) = found {
        return Ok(found);
    }
    let shown: Vec<_> = fields.iter().map(|(field, text)| format!("{field} {text}")).collect();
    let message = format!("the result has no entry with {}", shown.join(", "));
    Err(if near.is_some() { Failure::Failed(message) } else { Failure::CannotRun(message) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STEPS: [Step; 2] =
        [Step::At("/cases"), Step::Entry(&[("name", "a"), ("is_proven", "true")])];

    #[test]
    fn entries_are_found_by_their_fields() {
        let result = json!({"cases": [
            {"name": "b", "is_proven": true, "ratio": 1.0},
            {"name": "a", "is_proven": true, "ratio": 2.0},
        ]});
        assert_eq!(figure(&result, &STEPS, "/ratio"), Ok(Found::plain(2.0)));
    }

    #[test]
    fn a_case_that_could_not_run_has_a_reason_and_an_unproven_one_fails() {
        let result = json!({"cases": [{"name": "a", "is_proven": false, "cannot_run": "no wrk"}]});
        let missing = figure(&result, &STEPS, "/ratio");
        assert_eq!(missing, Err(Failure::CannotRun("no wrk".into())));
        let result = json!({"cases": [{"name": "a", "is_proven": false, "ratio": 1.0}]});
        assert!(matches!(figure(&result, &STEPS, "/ratio"), Err(Failure::Failed(_))));
        let result = json!({"cases": [{"name": "a", "is_proven": true, "cannot_run": "no mpicc"}]});
        let missing = figure(&result, &STEPS, "/ratio");
        assert_eq!(missing, Err(Failure::CannotRun("no mpicc".into())));
        let missing = figure(&json!({"cases": []}), &STEPS, "/ratio");
        assert!(matches!(missing, Err(Failure::CannotRun(_))));
    }
}
