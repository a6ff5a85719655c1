//! Matches messages with receives by source and tag, as in MPI. A receive can accept any source or
//! any tag.

use std::collections::{BTreeMap, VecDeque};

use mem::prefetch;

/// Value for source or tag with which a receive accepts any source or any tag.
pub(super) const ANY: u32 = u32::MAX;

/// The receives of a rank that wait for messages, and the messages that wait for a receive.
///
/// A message matches the earliest posted receive that accepts it. A receive matches the earliest
/// arrived message that it accepts.
#[derive(Clone, Debug)]
pub(super) struct Matching<M> {
    /// Posted receives, by source and tag.
    posted: Waiting<u32>,
    /// Messages without a receive, by source and tag.
    unexpected: Waiting<M>,
    /// Number of posted receives with [`ANY`] as source or tag.
    wildcards: u32,
    /// Sequence number of the next receive or message.
    next: u64,
}

/// Waiting items, ordered by key; items with equal keys are ordered by sequence number.
///
/// Traces post many receives in advance, mostly in ascending order of source and tag, and the
/// messages arrive in the same order. Such items are in `row`. Adding an item to `row` is an
/// append, and removing an item usually checks only the front. All other items are in a tree. A
/// match without [`ANY`] therefore never needs a linear search.
#[derive(Clone, Debug)]
struct Waiting<T> {
    /// Items that were added in ascending order of keys. Removing an item from the middle leaves an
    /// empty entry; the front is never empty. Of several items with equal keys, the first is
    /// removed first.
    row: VecDeque<MatchEntry<T>>,
    others: BTreeMap<(u64, u64), T>,
}

#[derive(Clone, Debug)]
struct MatchEntry<T> {
    key: u64,
    number: u64,
    /// The item; `None` if it was removed.
    value: Option<T>,
}

impl<M> Matching<M> {
    /// Creates an empty matching.
    pub(super) const fn new() -> Self {
        Self { posted: Waiting::new(), unexpected: Waiting::new(), wildcards: 0, next: 0 }
    }

    /// Removes and returns a waiting message that a receive accepts. If there is no such message,
    /// posts the receive; `name` is the caller's number for the receive.
    pub(super) fn receive(&mut self, source: u32, tag: u32, name: u32) -> Option<M> {
        if !self.unexpected.is_empty()
            && let Some(message) = self.take_unexpected(source, tag)
        {
            return Some(message);
        }
        self.wildcards += u32::from(source == ANY || tag == ANY);
        let number = self.number();
        self.posted.push(key(source, tag), number, name);
        None
    }

    /// Removes and returns the first message that a receive accepts.
    fn take_unexpected(&mut self, source: u32, tag: u32) -> Option<M> {
        let key = if source == ANY || tag == ANY {
            let fits = |key: u64| {
                let (from, with) = parts(key);
                (source == ANY || source == from) && (tag == ANY || tag == with)
            };
            let waiting = self.unexpected.iter().filter(|(key, ..)| fits(*key));
            let first = waiting.min_by_key(|(_, number, _)| *number);
            first.map(|(key, ..)| key)
        } else {
            Some(key(source, tag))
        };
        self.unexpected.take(key?)
    }

    /// Removes the receive that matches a message. Returns the caller's number for the receive, and
    /// the message. If there is no such receive, stores the message and returns `None`.
    pub(super) fn arrive(&mut self, source: u32, tag: u32, message: M) -> Option<(u32, M)> {
        let exact = key(source, tag);
        let found = if self.wildcards == 0 {
            Some(exact)
        } else {
            let candidates = [exact, key(ANY, tag), key(source, ANY), key(ANY, ANY)];
            let first = |key: &u64| Some((self.posted.first(*key)?, *key));
            candidates.iter().filter_map(first).min().map(|(_, key)| key)
        };
        if let Some(key) = found
            && let Some(name) = self.posted.take(key)
        {
            let (from, with) = parts(key);
            self.wildcards -= u32::from(from == ANY || with == ANY);
            return Some((name, message));
        }
        let number = self.number();
        self.unexpected.push(exact, number, message);
        None
    }

    /// Prefetches the receive that probably matches the next message.
    pub(super) fn foresee(&self) {
        if let Some(first) = self.posted.row.front() {
            prefetch(first);
        }
    }

    /// Returns the posted receives, each as source, tag and the caller's number. The list is
    /// ordered by source and tag, then by the time of posting.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let mut all: Vec<_> =
            self.posted.iter().map(|(key, number, &name)| (key, number, name)).collect();
        all.sort_unstable();
        all.into_iter().map(|(key, _, name)| {
            let (source, tag) = parts(key);
            (source, tag, name)
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

impl<T> Waiting<T> {
    const fn new() -> Self {
        Self { row: VecDeque::new(), others: BTreeMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.row.is_empty() && self.others.is_empty()
    }

    /// Adds an item. The sequence number of the item must be larger than all earlier numbers.
    #[inline]
    fn push(&mut self, key: u64, number: u64, value: T) {
        if self.row.back().is_none_or(|last| last.key <= key) {
            self.row.push_back(MatchEntry { key, number, value: Some(value) });
        } else {
            self.others.insert((key, number), value);
        }
    }

    /// Returns the index in `row` of the first item with a key.
    fn place(&self, key: u64) -> Option<usize> {
        let front = self.row.front()?;
        let place = if front.key == key {
            0
        } else {
            let is_before =
                |entry: &MatchEntry<T>| (entry.key, entry.value.is_some()) < (key, true);
            self.row.partition_point(is_before)
        };
        self.row.get(place).filter(|entry| entry.key == key).map(|_| place)
    }

    /// Returns the sequence number of the first item with a key in the tree `others`.
    fn other(&self, key: u64) -> Option<u64> {
        let mut of_key = self.others.range((key, 0)..=(key, u64::MAX));
        of_key.next().map(|(&(_, number), _)| number)
    }

    /// Returns the sequence number of the first item with a key.
    fn first(&self, key: u64) -> Option<u64> {
        let in_row = self.place(key).map(|place| self.row[place].number);
        in_row.into_iter().chain(self.other(key)).min()
    }

    /// Removes and returns the first item with a key.
    #[inline]
    fn take(&mut self, key: u64) -> Option<T> {
        if self.others.is_empty() && self.row.front().is_some_and(|front| front.key == key) {
            let first = self.row.pop_front()?;
            self.drop_gone();
            return first.value;
        }
        self.search(key)
    }

    /// Removes empty entries from the front of `row`.
    #[inline]
    fn drop_gone(&mut self) {
        while self.row.front().is_some_and(|front| front.value.is_none()) {
            self.row.pop_front();
        }
    }

    /// Removes and returns the first item with a key, from `row` or from the tree `others`.
    fn search(&mut self, key: u64) -> Option<T> {
        let place = self.place(key);
        let in_row = place.map_or(u64::MAX, |place| self.row[place].number);
        if let Some(number) = self.other(key)
            && number < in_row
        {
            return self.others.remove(&(key, number));
        }
        let value = self.row.get_mut(place?)?.value.take();
        self.drop_gone();
        while self.row.back().is_some_and(|back| back.value.is_none()) {
            self.row.pop_back();
        }
        value
    }

    /// Returns all items, each with its key, sequence number and value.
    fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        let row = self.row.iter();
        let row = row.filter_map(|entry| Some((entry.key, entry.number, entry.value.as_ref()?)));
        row.chain(self.others.iter().map(|(&(key, number), value)| (key, number, value)))
    }
}

/// Combines source and tag into a key. Keys are ordered by source, then by tag.
const fn key(source: u32, tag: u32) -> u64 {
    (source as u64) << 32 | tag as u64
}

/// Returns the source and the tag of a key.
const fn parts(key: u64) -> (u32, u32) {
    ((key >> 32) as u32, key as u32)
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

    /// A simple model of the matching, which searches two lists.
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
        fn matches_equal_those_of_a_two_list_model(steps in prop::collection::vec(step(), 0..60)) {
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
