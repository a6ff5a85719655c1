//! Reports of the race detector.

use std::collections::BTreeSet;
use std::fmt;

use dsm_protocol::{PageNumber, Race};

use crate::heap::{Heap, PAGE, REGION};

/// Two ranks that changed the same word of four bytes, without a lock, a barrier or another object
/// between them that orders the changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RaceReport {
    address: usize,
    /// For each of the two: the rank, and the number of notices up to the end of the interval.
    intervals: [(usize, u64); 2],
    /// The line of the program that has allocated the word, and the byte within the allocation.
    allocation: Option<(String, u64)>,
}

impl RaceReport {
    fn new(race: Race, heap: &Heap) -> Self {
        let Race { page, word, ranks: (first, second), intervals: (first_end, second_end) } = race;
        let offset = u64::from(page.0) * PAGE + u64::from(word) * 4;
        let allocation = heap.find(offset);
        Self {
            address: REGION + offset as usize,
            intervals: [(first.index(), first_end), (second.index(), second_end)],
            allocation: allocation.map(|made| (made.place.to_string(), offset - made.start)),
        }
    }

    /// Returns the address of the word.
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Returns the two ranks.
    pub const fn ranks(&self) -> (usize, usize) {
        let [(first, _), (second, _)] = self.intervals;
        (first, second)
    }

    /// Returns the line of the program that has allocated the word, such as `src/main.rs:12`, and
    /// the number of the byte within the allocation.
    pub fn allocation(&self) -> Option<(&str, u64)> {
        self.allocation.as_ref().map(|(place, byte)| (place.as_str(), *byte))
    }
}

impl fmt::Display for RaceReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, intervals: [(first, first_end), (second, second_end)], .. } = self;
        write!(
            formatter,
            "race: rank {first} (interval up to its notice {first_end}) and rank {second} (interval \
             up to its notice {second_end}) both changed the 4 bytes at {address:#x}"
        )?;
        if let Some((place, byte)) = &self.allocation {
            write!(formatter, ", byte {byte} of the allocation at {place}")?;
        }
        write!(formatter, "; order the changes by a lock or a barrier")
    }
}

/// The races that are reported, and those that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Races {
    /// What was reported: page, word and the two ranks. A loop has the same race many times.
    known: BTreeSet<(u32, u16, u8, u8)>,
    pending: Vec<Race>,
}

impl Races {
    /// Takes a race that the machine has found. Drops it if it is known, or if there are too many.
    pub(crate) fn add(&mut self, race: Race) {
        let Race { page: PageNumber(page), word, ranks: (first, second), .. } = race;
        let key = (page, word, first.0.min(second.0), first.0.max(second.0));
        if self.known.len() < RACES_MAX && self.known.insert(key) {
            self.pending.push(race);
        }
    }

    /// Takes the races that were added since the last call.
    pub(crate) fn take(&mut self, heap: &Heap) -> Vec<RaceReport> {
        self.pending.drain(..).map(|race| RaceReport::new(race, heap)).collect()
    }
}

/// Races that are reported, at most.
const RACES_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use dsm_protocol::Rank;

    use super::*;

    fn race(word: u16, first: u8, second: u8) -> Race {
        let ranks = (Rank(first), Rank(second));
        Race { page: PageNumber(1), word, ranks, intervals: (5, 6) }
    }

    #[test]
    fn a_race_that_happens_again_is_reported_once() {
        let mut races = Races::default();
        races.add(race(3, 0, 1));
        races.add(race(3, 1, 0));
        assert_eq!(races.pending, [race(3, 0, 1)]);
        races.add(race(3, 0, 2));
        races.add(race(4, 0, 1));
        assert_eq!(races.pending.len(), 3);
    }

    #[test]
    fn a_report_names_ranks_intervals_address_allocation_and_remedy() {
        let report = RaceReport {
            address: 0x1040,
            intervals: [(0, 5), (2, 7)],
            allocation: Some(("src/main.rs:12:9".into(), 64)),
        };
        let text = report.to_string();
        for part in [
            "rank 0 (interval up to its notice 5)",
            "rank 2 (interval up to its notice 7)",
            "0x1040",
            "byte 64 of the allocation at src/main.rs:12",
            "by a lock or a barrier",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
