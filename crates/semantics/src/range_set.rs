//! The set of bytes of one operation that have arrived.

/// Maximum number of disjoint ranges of one operation.
///
/// Frames of one link alternate with frames of other links. If a link falls silent, each of its
/// frames in flight therefore leaves a gap. Until the sender notices the silence, the link can have
/// up to 144 frames in flight that the sender presumes delivered, and the frames of a short window.
/// If the delays of two links at 1 Gb/s differ by 2 ms, 170 frames are missing, in groups of 14. If
/// a frame would add one range too many, the receiver refuses the frame, and the sender retransmits
/// it later.
pub(crate) const RANGES_MAX: usize = 168;

/// A sorted set of disjoint, non-adjacent ranges of byte offsets. The set has a fixed size and
/// allocates no memory.
///
/// Bytes that arrive in order extend the last range without a search.
#[derive(Clone, Debug)]
pub struct RangeSet {
    len: u8,
    /// Ranges as `(start, end)`, end exclusive. The first `len` are valid; they are in ascending
    /// order and do not touch.
    ranges: [(u32, u32); RANGES_MAX],
}

/// Error: the set has no room for another disjoint range.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Full;

impl Default for RangeSet {
    fn default() -> Self {
        Self { len: 0, ranges: [(0, 0); RANGES_MAX] }
    }
}

impl RangeSet {
    /// Removes all ranges.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds `[start, end)`.
    ///
    /// # Errors
    /// Returns [`Full`] if the set would then need more than `RANGES_MAX` ranges. In this case the
    /// set stays unchanged.
    #[inline]
    pub fn insert(&mut self, start: u32, end: u32) -> Result<(), Full> {
        if start >= end {
            return Ok(());
        }
        let len = usize::from(self.len);
        match self.ranges[..len].last_mut() {
            Some(last) if last.1 == start => {
                last.1 = end;
                return Ok(());
            }
            Some(last) if last.1 < start => return self.insert_at(len, start, end),
            None => return self.insert_at(0, start, end),
            Some(_) => {}
        }
        self.insert_inside(start, end)
    }

    /// Returns whether [`RangeSet::insert`] of `[start, end)` succeeds.
    #[inline]
    pub fn takes(&self, start: u32, end: u32) -> bool {
        usize::from(self.len) < RANGES_MAX || !self.is_apart(start, end)
    }

    /// Returns true if three conditions hold: `[start, end)` is not empty, the set is not empty,
    /// and `[start, end)` neither overlaps nor touches a range of the set. Inserting such a range
    /// adds one range to the set, and this range counts as [extra](RangeSet::extra).
    pub(crate) fn is_apart(&self, start: u32, end: u32) -> bool {
        start < end
            && self.len > 0
            && !self.as_slice().iter().any(|range| range.0 <= end && start <= range.1)
    }

    /// Returns the number of ranges, not counting the first.
    #[inline]
    pub(crate) fn extra(&self) -> u32 {
        u32::from(self.len.saturating_sub(1))
    }

    /// Returns the first byte in the set, or 0 if the set is empty.
    #[inline]
    pub fn start(&self) -> u32 {
        self.as_slice().first().map_or(0, |range| range.0)
    }

    /// Returns the end of the last range, or 0 if the set is empty.
    #[inline]
    pub fn end(&self) -> u32 {
        self.as_slice().last().map_or(0, |range| range.1)
    }

    /// Calls `visit` with each part of `[start, end)` that is not in the set, in order.
    pub fn uncovered(&self, start: u32, end: u32, mut visit: impl FnMut(u32, u32)) {
        let mut from = start;
        for &(low, high) in self.as_slice() {
            if high <= from {
                continue;
            }
            if low >= end {
                break;
            }
            if low > from {
                visit(from, low);
            }
            from = from.max(high);
            if from >= end {
                return;
            }
        }
        if from < end {
            visit(from, end);
        }
    }

    /// Returns whether every byte of `[start, end)` is in the set.
    #[inline]
    pub fn contains(&self, start: u32, end: u32) -> bool {
        start >= end || self.as_slice().iter().any(|range| range.0 <= start && end <= range.1)
    }

    /// Returns whether at least one byte of `[start, end)` is in the set.
    pub fn intersects(&self, start: u32, end: u32) -> bool {
        start < end && self.as_slice().iter().any(|range| range.0 < end && start < range.1)
    }

    /// Returns the ranges in ascending order.
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..usize::from(self.len)]
    }

    /// Adds a range that begins before the end of the last range.
    #[inline(never)]
    fn insert_inside(&mut self, start: u32, end: u32) -> Result<(), Full> {
        let len = usize::from(self.len);
        // The first existing range that touches the new range or is behind it.
        let first = self.ranges[..len].partition_point(|range| range.1 < start);
        let after = first + self.ranges[first..len].partition_point(|range| range.0 <= end);
        if first == after {
            return self.insert_at(first, start, end);
        }
        self.ranges[first].0 = self.ranges[first].0.min(start);
        self.ranges[first].1 = self.ranges[after - 1].1.max(end);
        self.ranges.copy_within(after..len, first + 1);
        self.len = (len - (after - first - 1)) as u8;
        Ok(())
    }

    #[cold]
    fn insert_at(&mut self, index: usize, start: u32, end: u32) -> Result<(), Full> {
        let len = usize::from(self.len);
        if len == RANGES_MAX {
            return Err(Full);
        }
        self.ranges.copy_within(index..len, index + 1);
        self.ranges[index] = (start, end);
        self.len += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn behaves_like_a_set_of_bytes(
            inserts in proptest::collection::vec((0_u32..200, 0_u32..40), 1..80),
        ) {
            let mut set = RangeSet::default();
            let mut model = [false; 256];
            for (start, len) in inserts {
                let end = start + len;
                let mut missing = Vec::new();
                set.uncovered(start, end, |low, high| missing.extend(low..high));
                let expected: Vec<u32> = (start..end).filter(|&b| !model[b as usize]).collect();
                prop_assert_eq!(missing, expected);
                prop_assert_eq!(set.intersects(start, end), (start..end).any(|b| model[b as usize]));
                let takes = set.takes(start, end);
                let inserted = set.insert(start, end);
                prop_assert_eq!(inserted.is_ok(), takes);
                if inserted.is_ok() {
                    model[start as usize..end as usize].fill(true);
                }
                prop_assert_eq!(set.contains(start, end), (start..end).all(|b| model[b as usize]));
                for pair in set.as_slice().windows(2) {
                    prop_assert!(pair[0].1 < pair[1].0);
                }
            }
        }
    }

    #[test]
    fn a_full_range_set_refuses_a_new_range_and_keeps_its_ranges() {
        let mut set = RangeSet::default();
        for index in 0..RANGES_MAX as u32 {
            set.insert(index * 10, index * 10 + 1).unwrap();
        }
        assert_eq!(set.insert(5, 6), Err(Full));
        assert_eq!(set.as_slice().len(), RANGES_MAX);
        set.insert(1, 10).unwrap();
        assert_eq!(set.as_slice().len(), RANGES_MAX - 1);
    }
}
