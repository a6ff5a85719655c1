//! Which runs of writable pages a scan for written pages skips.

use std::ops::Range;

/// The writable pages of a region, counted in groups of consecutive pages. A scan skips groups whose
/// pages are all writable. The machine knows these pages, and a scan would protect them, so that the
/// next write to each page causes a fault of the kernel.
#[derive(Debug)]
pub(crate) struct WritableGroups {
    /// Number of writable pages in each group.
    writable: Vec<usize>,
    group_pages: usize,
}

impl WritableGroups {
    /// Makes the groups of `pages` pages, none of which is writable.
    pub(crate) fn new(pages: usize) -> Self {
        Self::of(pages, GROUP_PAGES)
    }

    fn of(pages: usize, group_pages: usize) -> Self {
        Self { writable: vec![0; pages.div_ceil(group_pages)], group_pages }
    }

    /// Notes whether a page is writable, and was so before.
    pub(crate) fn set(&mut self, page: usize, was_writable: bool, is_writable: bool) {
        if let Some(count) = self.writable.get_mut(page / self.group_pages) {
            *count += usize::from(is_writable);
            *count -= usize::from(was_writable);
        }
    }

    /// Returns the ranges of pages before `end` that a scan must not skip.
    pub(crate) fn to_scan(&self, end: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            while start < end {
                let skipped = self.next_writable(start, end);
                let range = start..skipped.start;
                start = skipped.end;
                if !range.is_empty() {
                    return Some(range);
                }
            }
            None
        })
    }

    /// Returns the next run of groups from the page `start` on whose pages are all writable; an empty
    /// range at the end if there is none. `start` is the first page of a group.
    fn next_writable(&self, start: usize, end: usize) -> Range<usize> {
        let is_writable = |count: &usize| *count == self.group_pages;
        let groups = self.writable.get(start / self.group_pages..).unwrap_or_default();
        let Some(skipped) = groups.iter().position(is_writable) else { return end..end };
        let length = groups.iter().skip(skipped).take_while(|count| is_writable(count)).count();
        let first = start + skipped * self.group_pages;
        first..first + length * self.group_pages
    }
}

/// Pages of a group. With larger groups, a scan protects most pages of a run that begins and ends
/// inside of groups. With smaller groups, a scan is divided often.
pub(crate) const GROUP_PAGES: usize = 64;

#[cfg(test)]
mod tests;
