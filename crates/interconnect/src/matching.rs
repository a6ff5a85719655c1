//! Which receive gets which message: as in MPI, by source and tag, of which either may be any.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// Source or tag of a receive that takes any.
pub(super) const ANY: u32 = u32::MAX;

/// Receives and messages of a rank that wait for each other.
///
/// Of receives that fit a message the first posted gets it, and of messages that fit a receive the
/// first that came is taken. Those of the same source and tag wait in a queue of their own, so that
/// a match without [`ANY`] is a search in a tree and not in a list.
#[derive(Clone, Debug)]
pub(super) struct Matching<M> {
    /// By what they ask for.
    posted: Lines<u32>,
    /// By source and tag.
    unexpected: Lines<M>,
    /// Posted receives with [`ANY`] in them.
    wildcards: u32,
    /// Numbers receives and messages in the order in which they came.
    next: u64,
}

/// Those that wait, by source and tag.
type Lines<T> = BTreeMap<(u32, u32), Line<T>>;

/// What waits for the same, each with its number. Mostly it is one, for which nothing is allocated.
#[derive(Clone, Debug)]
struct Line<T> {
    first: (u64, T),
    others: VecDeque<(u64, T)>,
}

impl<M> Matching<M> {
    /// Nothing waits.
    pub(super) const fn new() -> Self {
        Self { posted: BTreeMap::new(), unexpected: BTreeMap::new(), wildcards: 0, next: 0 }
    }

    /// Takes a message that is there for a receive, or posts the receive under a name.
    pub(super) fn receive(&mut self, source: u32, tag: u32, name: u32) -> Option<M> {
        let key = if source == ANY || tag == ANY {
            let fits = |&(from, with): &(u32, u32)| {
                (source == ANY || source == from) && (tag == ANY || tag == with)
            };
            let waiting = self.unexpected.iter().filter(|(key, _)| fits(key));
            let first = waiting.min_by_key(|(_, line)| line.first.0);
            first.map(|(key, _)| *key)
        } else {
            Some((source, tag))
        };
        if let Some(message) = key.and_then(|key| pop(&mut self.unexpected, key)) {
            return Some(message);
        }
        self.wildcards += u32::from(source == ANY || tag == ANY);
        let number = self.number();
        push(&mut self.posted, (source, tag), (number, name));
        None
    }

    /// The receive that gets a message; without one the message waits.
    pub(super) fn arrive(&mut self, source: u32, tag: u32, message: M) -> Option<(u32, M)> {
        let exact = (source, tag);
        let key = if self.wildcards == 0 {
            Some(exact)
        } else {
            let candidates = [exact, (ANY, tag), (source, ANY), (ANY, ANY)];
            let first = |key: &(u32, u32)| Some((self.posted.get(key)?.first.0, *key));
            candidates.iter().filter_map(first).min().map(|(_, key)| key)
        };
        if let Some(key) = key
            && let Some(name) = pop(&mut self.posted, key)
        {
            self.wildcards -= u32::from(key.0 == ANY || key.1 == ANY);
            return Some((name, message));
        }
        let number = self.number();
        push(&mut self.unexpected, exact, (number, message));
        None
    }

    /// The receives that wait: source, tag and name.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.posted.iter().flat_map(|(&(source, tag), line)| {
            let all = std::iter::once(&line.first).chain(&line.others);
            all.map(move |&(_, name)| (source, tag, name))
        })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl<M> Default for Matching<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn push<T>(lines: &mut Lines<T>, key: (u32, u32), value: (u64, T)) {
    match lines.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(Line { first: value, others: VecDeque::new() });
        }
        Entry::Occupied(mut entry) => entry.get_mut().others.push_back(value),
    }
}

/// Takes the first of a line, and the line with the last.
fn pop<T>(lines: &mut Lines<T>, key: (u32, u32)) -> Option<T> {
    let Entry::Occupied(mut entry) = lines.entry(key) else { return None };
    let (_, value) = match entry.get_mut().others.pop_front() {
        Some(next) => std::mem::replace(&mut entry.get_mut().first, next),
        None => entry.remove().first,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Receive(u32, u32),
        Arrive(u32, u32),
    }

    /// The same by looking through two lists.
    #[derive(Default)]
    struct Model {
        posted: Vec<(u32, u32, u32)>,
        unexpected: Vec<(u32, u32, u32)>,
    }

    fn fits(receive: (u32, u32), message: (u32, u32)) -> bool {
        (receive.0 == ANY || receive.0 == message.0) && (receive.1 == ANY || receive.1 == message.1)
    }

    fn step() -> impl Strategy<Value = Step> {
        let any = |most: u32| prop_oneof![3 => 0..most, 1 => Just(ANY)];
        prop_oneof![
            (any(3), any(3)).prop_map(|(source, tag)| Step::Receive(source, tag)),
            (0..3_u32, 0..3_u32).prop_map(|(source, tag)| Step::Arrive(source, tag)),
        ]
    }

    proptest! {
        #[test]
        fn matches_are_those_of_two_lists(steps in prop::collection::vec(step(), 0..60)) {
            let (mut matching, mut model) = (Matching::new(), Model::default());
            for (name, step) in (0..).zip(steps) {
                match step {
                    Step::Receive(source, tag) => {
                        let at = model
                            .unexpected
                            .iter()
                            .position(|&(from, with, _)| fits((source, tag), (from, with)));
                        let expected = at.map(|at| model.unexpected.remove(at).2);
                        if expected.is_none() {
                            model.posted.push((source, tag, name));
                        }
                        prop_assert_eq!(matching.receive(source, tag, name), expected);
                    }
                    Step::Arrive(source, tag) => {
                        let at = model
                            .posted
                            .iter()
                            .position(|&(from, with, _)| fits((from, with), (source, tag)));
                        let expected = at.map(|at| (model.posted.remove(at).2, name));
                        if expected.is_none() {
                            model.unexpected.push((source, tag, name));
                        }
                        prop_assert_eq!(matching.arrive(source, tag, name), expected);
                    }
                }
                let mut waiting: Vec<_> = matching.waiting().collect();
                waiting.sort_unstable();
                let mut posted = model.posted.clone();
                posted.sort_unstable();
                prop_assert_eq!(waiting, posted);
            }
        }
    }
}
