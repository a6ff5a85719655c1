//! Changes of a public API between two listings.

use std::collections::BTreeMap;

use super::listing::{CLOSED, REQUIRED};

/// Differences of two listings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Changes after which programs may no longer compile.
    pub(super) breaking: Vec<String>,
    pub(super) additions: Vec<String>,
}

impl Changes {
    /// Compares the lines of two listings.
    pub(super) fn between(old: &str, new: &str) -> Self {
        let (before, after) = (by_key(old), by_key(new));
        let mut changes = Self::default();
        for (key, line) in &before {
            match after.get(key) {
                None => changes.breaking.push(format!("removed: {line}")),
                Some(other) if other != line && !is_opened(line, other) => {
                    changes.breaking.push(format!("changed: {line}\n      to: {other}"));
                }
                Some(other) if other != line => changes.additions.push(format!("opened: {other}")),
                Some(_) => {}
            }
        }
        for (key, line) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
            let parent = key.split_once(' ').and_then(|(_, path)| path.rsplit_once("::"));
            let is_in_closed = matches!(key.split(' ').next(), Some("field" | "variant"))
                && parent.is_some_and(|(parent, _)| {
                    let kinds = ["struct", "enum"].map(|kind| format!("{kind} {parent}"));
                    kinds.iter().any(|kind| before.get(kind).is_some_and(|it| it.ends_with(CLOSED)))
                        || before.contains_key(&format!("variant {parent}"))
                });
            let is_new_duty = line.ends_with(REQUIRED)
                && parent
                    .is_some_and(|(parent, _)| before.contains_key(&format!("trait {parent}")));
            if is_in_closed || is_new_duty {
                changes.breaking.push(format!("added: {line}"));
            } else {
                changes.additions.push(format!("added: {line}"));
            }
        }
        changes
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.breaking.is_empty() && self.additions.is_empty()
    }

    /// Returns a text that says whether programs written for `base` still work, and lists all
    /// changes since, one per line.
    pub(super) fn verdict(&self, base: &str) -> String {
        let (breaking, additions) = (self.breaking.len(), self.additions.len());
        let mut text = match (breaking, additions) {
            (0, 0) => format!("public API: as in {base}"),
            (0, _) => format!("public API: compatible with {base}, {additions} additions"),
            _ => format!(
                "public API: BREAKING, programs for {base} may not compile: {breaking} changes, {additions} additions"
            ),
        };
        for line in self.breaking.iter().chain(&self.additions) {
            text.push_str("\n  ");
            text.push_str(line);
        }
        text
    }

    /// Returns an error text if the new version number is wrong for these changes. Breaking changes
    /// require a new second number below version 1.0, and a new first number from 1.0 on.
    pub(super) fn fault_of_versions(&self, old: &str, new: &str) -> Option<String> {
        let (Some(before), Some(after)) = (numbers(old), numbers(new)) else {
            return Some(format!("{old} and {new} are not versions of three numbers"));
        };
        let breaks = |[major, minor, _]: [u64; 3]| if major == 0 { (0, minor) } else { (major, 0) };
        if after < before {
            return Some(format!("version {new} is older than {old}, which was released"));
        }
        if !self.breaking.is_empty() && breaks(after) <= breaks(before) {
            return Some(format!(
                "{} changes may break programs since {old}; {new} does not say so",
                self.breaking.len()
            ));
        }
        if !self.additions.is_empty() && after == before {
            return Some(format!("there are additions since {old}, and the version is the same"));
        }
        None
    }
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Returns whether the only difference is that the new line lacks the mark [`CLOSED`].
fn is_opened(old: &str, new: &str) -> bool {
    old.strip_suffix(CLOSED).is_some_and(|line| line == new)
}

/// Returns the lines of a listing by key: kind and path, or the whole line for an implementation.
fn by_key(listing: &str) -> BTreeMap<String, &str> {
    let lines = listing.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| (key(line), line)).collect()
}

fn key(line: &str) -> String {
    if line.starts_with("impl ") {
        return line.to_owned();
    }
    let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_';
    let mut end = 0;
    loop {
        let rest = &rest[end..];
        let name = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
        end += name;
        if !rest[name..].starts_with("::") {
            break;
        }
        end += 2;
    }
    format!("{kind} {}", &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# version 0.1.0\nenum a::Closed (exhaustive)\nvariant a::Closed::One\nenum a::Open\n\
                       fn a::S::f(&self, u64) -> u64\nimpl Clone for a::S\nstruct a::S\ntrait a::T\n";

    fn changes(new: &str) -> (Vec<String>, Vec<String>) {
        let Changes { breaking, additions } = Changes::between(OLD, new);
        (breaking, additions)
    }

    #[test]
    fn the_same_listing_has_no_changes() {
        assert!(Changes::between(OLD, OLD).is_empty());
    }

    #[test]
    fn a_removal_or_change_breaks_programs() {
        let (breaking, additions) = changes(&OLD.replace("impl Clone for a::S\n", ""));
        assert_eq!((breaking, additions), (vec!["removed: impl Clone for a::S".into()], vec![]));
        let (breaking, _) = changes(&OLD.replace("u64) -> u64", "u32) -> u64"));
        assert_eq!(breaking.len(), 1);
        assert!(breaking[0].starts_with("changed: fn a::S::f"), "{breaking:?}");
    }

    #[test]
    fn an_addition_breaks_programs_only_in_a_closed_type_or_trait() {
        let with = |line: &str| changes(&format!("{OLD}{line}\n"));
        assert_eq!(with("variant a::Closed::Two").0.len(), 1);
        assert_eq!(
            with("variant a::Open::Two"),
            (vec![], vec!["added: variant a::Open::Two".into()])
        );
        assert_eq!(with("field a::Closed::One::0: u8").0.len(), 1);
        assert_eq!(with("fn a::S::g(&self)").0.len(), 0);
        assert_eq!(with("fn a::T::g(&self) (required)").0.len(), 1);
        assert_eq!(with("fn a::T::g(&self)").0.len(), 0);
        assert_eq!(changes(&OLD.replace(" (exhaustive)", "")).0.len(), 0);
    }

    #[test]
    fn the_verdict_states_compatibility_and_changes() {
        let verdict = |new: &str| Changes::between(OLD, new).verdict("0.1.0");
        assert_eq!(verdict(OLD), "public API: as in 0.1.0");
        let more = format!("{OLD}fn a::S::g(&self)\n");
        let expected = "public API: compatible with 0.1.0, 1 additions\n  added: fn a::S::g(&self)";
        assert_eq!(verdict(&more), expected);
        let both = verdict(&more.replace("impl Clone for a::S\n", ""));
        assert!(both.starts_with("public API: BREAKING, programs for 0.1.0 may"), "{both}");
        assert!(
            both.ends_with("removed: impl Clone for a::S\n  added: fn a::S::g(&self)"),
            "{both}"
        );
    }

    #[test]
    fn version_numbers_must_reflect_the_changes() {
        let breaking = Changes { breaking: vec![String::new()], additions: vec![] };
        let additions = Changes { breaking: vec![], additions: vec![String::new()] };
        for (changes, old, new, is_right) in [
            (&breaking, "0.1.0", "0.1.1", false),
            (&breaking, "0.1.0", "0.2.0", true),
            (&breaking, "1.1.0", "1.2.0", false),
            (&breaking, "1.1.0", "2.0.0", true),
            (&breaking, "0.1.0", "0.1.0", false),
            (&additions, "0.1.0", "0.1.0", false),
            (&additions, "0.1.0", "0.1.1", true),
            (&Changes::default(), "0.1.0", "0.1.0", true),
            (&Changes::default(), "0.2.0", "0.1.0", false),
            (&Changes::default(), "0.2.0", "0.x", false),
        ] {
            let fault = changes.fault_of_versions(old, new);
            assert_eq!(fault.is_none(), is_right, "{old} to {new}: {fault:?}");
        }
    }
}
