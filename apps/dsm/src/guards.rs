//! Ranges of pages whose first write is a fault, so that their twins can be made then.

use std::collections::BTreeMap;
use std::ops::Range;

/// The guarded ranges of pages. They do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    /// The end of each range, by its first page.
    ends: BTreeMap<usize, usize>,
}

impl Guards {
    /// Returns the range that has a page.
    pub(crate) fn of(&self, page: usize) -> Option<Range<usize>> {
        let (start, end) = self.ends.range(..=page).next_back()?;
        (page < *end).then_some(*start..*end)
    }

    /// Returns a range that has some of these pages.
    pub(crate) fn overlapping(&self, pages: &Range<usize>) -> Option<Range<usize>> {
        let (start, end) = self.ends.range(..pages.end).next_back()?;
        (pages.start < *end).then_some(*start..*end)
    }

    /// Returns whether pages may be guarded. A fault of one page of a short range would cost more than
    /// its twins, and each range needs mappings of the kernel.
    pub(crate) fn have_room_for(&self, pages: &Range<usize>) -> bool {
        pages.len() >= PAGES_MIN && self.ends.len() < RANGES_MAX
    }

    /// Adds a range, which overlaps no other one.
    pub(crate) fn add(&mut self, pages: Range<usize>) {
        self.ends.insert(pages.start, pages.end);
    }

    /// Removes the range that begins with this page.
    pub(crate) fn remove(&mut self, start: usize) {
        self.ends.remove(&start);
    }
}

/// Pages of a range, at least. The fault of the first write costs as much as about four twins.
const PAGES_MIN: usize = 4;

/// Ranges, at most. They need up to twice as many mappings, of which a process has 65 530 by default.
const RANGES_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_page_is_found_until_it_is_removed() {
        let mut guards = Guards::default();
        guards.add(10..30);
        guards.add(30..60);
        guards.add(100..120);
        let found = [9, 10, 29, 30, 59, 60, 99, 119, 120].map(|page| guards.of(page));
        let [none, first, second, third] = [None, Some(10..30), Some(30..60), Some(100..120)];
        let (a, b, c) = (first, second, third);
        let expected = [&none, &a, &a, &b, &b, &none, &none, &c, &none];
        assert_eq!(found.each_ref(), expected);
        let overlapping = [0..10, 0..11, 59..70, 60..100, 60..101, 110..500, 120..500];
        let found = overlapping.map(|pages| guards.overlapping(&pages));
        assert_eq!(found.each_ref(), [&none, &a, &b, &none, &c, &c, &none]);
        guards.remove(30);
        assert_eq!((guards.of(29), guards.of(30)), (a, None));
    }

    #[test]
    fn short_ranges_and_too_many_ranges_have_no_room() {
        let mut guards = Guards::default();
        assert!(guards.have_room_for(&(5..5 + PAGES_MIN)));
        assert!(!guards.have_room_for(&(5..4 + PAGES_MIN)));
        for range in 0..RANGES_MAX {
            assert!(guards.have_room_for(&(0..64)));
            guards.add(range * 64..range * 64 + 32);
        }
        assert!(!guards.have_room_for(&(0..64)));
    }
}
