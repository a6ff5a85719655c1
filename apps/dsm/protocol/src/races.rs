//! The race detector of the pages whose directory is this node: finds concurrent intervals that
//! changed the same word.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::Clock;
use crate::diff::Bitmap;
use crate::identity::{PageNumber, Rank};

/// Intervals that the detector keeps for a page. A race with an older one is not found.
const INTERVALS_MAX: usize = 128;

/// Two nodes changed one word without an order between them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Race {
    /// The page.
    pub page: PageNumber,
    /// The word within the page, the first of those that both changed.
    pub word: u16,
    /// The two nodes.
    pub ranks: (Rank, Rank),
    /// For each, the number of notices that it had published at the end of the interval.
    pub intervals: (u64, u64),
}

/// What an interval changed on a page.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    pub(crate) rank: Rank,
    /// Position in the node's log after the interval's notices. A clock with this position or a
    /// later one belongs to a later interval.
    pub(crate) position: u64,
    /// What the node had applied in the interval.
    pub(crate) clock: Clock,
    pub(crate) words: Bitmap,
}

impl Changes {
    fn precedes(&self, other: &Self) -> bool {
        other.clock.of(self.rank) >= self.position
    }

    fn is_concurrent(&self, other: &Self) -> bool {
        self.rank != other.rank && !self.precedes(other) && !other.precedes(self)
    }
}

/// The changes that the detector remembers.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    by_page: BTreeMap<PageNumber, VecDeque<Changes>>,
}

impl Detector {
    //= dsm-protocol.md: race.1
    /// Compares changes with the remembered ones, and remembers them. Returns the races.
    pub(crate) fn add(&mut self, page: PageNumber, changes: Changes) -> Vec<Race> {
        let earlier = self.by_page.entry(page).or_default();
        let concurrent = earlier.iter().filter(|other| other.is_concurrent(&changes));
        let races = concurrent
            .filter_map(|other| {
                let word = other.words.overlap(&changes.words)? as u16;
                let ranks = (other.rank, changes.rank);
                Some(Race { page, word, ranks, intervals: (other.position, changes.position) })
            })
            .collect();
        if earlier.len() == INTERVALS_MAX {
            earlier.pop_front();
        }
        earlier.push_back(changes);
        races
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNumber = PageNumber(3);

    fn changes(rank: u8, position: u64, seen: u64, word: usize) -> Changes {
        let mut clock = Clock::zero(2);
        clock.raise(Rank(1 - rank), seen);
        let mut words = Bitmap::EMPTY;
        words.insert(word);
        Changes { rank: Rank(rank), position, clock, words }
    }

    //= dsm-protocol.md: race.1
    #[test]
    fn concurrent_changes_of_a_word_are_a_race() {
        let mut detector = Detector::default();
        assert_eq!(detector.add(PAGE, changes(0, 5, 0, 9)), []);
        let ranks = (Rank(0), Rank(1));
        let race = Race { page: PAGE, word: 9, ranks, intervals: (5, 5) };
        assert_eq!(detector.add(PAGE, changes(1, 5, 4, 9)), [race]);
    }

    #[test]
    fn ordered_changes_other_words_other_pages_and_the_own_node_are_no_race() {
        let mut detector = Detector::default();
        assert_eq!(detector.add(PAGE, changes(0, 5, 0, 9)), []);
        assert_eq!(detector.add(PAGE, changes(1, 5, 5, 9)), []);
        assert_eq!(detector.add(PAGE, changes(0, 6, 5, 9)), []);
        assert_eq!(detector.add(PAGE, changes(1, 6, 5, 8)), []);
        assert_eq!(detector.add(PageNumber(4), changes(1, 6, 0, 9)), []);
    }

    #[test]
    fn the_detector_keeps_a_limited_number_of_intervals() {
        let mut detector = Detector::default();
        for position in 0..1000 {
            detector.add(PAGE, changes(0, position, 0, 9));
        }
        assert_eq!(detector.add(PAGE, changes(1, 5, 0, 9)).len(), INTERVALS_MAX);
    }
}
