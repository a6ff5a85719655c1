//! How a thread reads pages: by gaps, or page after page.

use crate::identity::PageNumber;
use crate::layout::BLOCK_PAGES;

/// How a thread reads: the pages that its last fault has fetched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// The page behind the last one.
    next: u32,
    /// The number of pages.
    pages: u32,
}

impl Stream {
    /// Returns how many pages a fault on `page` fetches, at most `most`. A fault on the page behind
    /// those of the last fault fetches twice as many, every other fault one.
    ///
    /// So a thread fetches at most as many pages too many as it has read one after the other.
    pub(crate) fn fault(&mut self, page: PageNumber, most: u32) -> u32 {
        let is_next = self.pages > 0 && page.0 == self.next;
        let wanted = if is_next { self.pages.saturating_mul(2).min(most) } else { 1 };
        let mut end = page.0.saturating_add(wanted);
        // A run ends at the border of a block, so that long fetches end there, too.
        let border = end - end % BLOCK_PAGES;
        if wanted >= BLOCK_PAGES && border.saturating_sub(page.0) >= wanted / 2 {
            end = border;
        }
        *self = Self { next: end, pages: end - page.0 };
        self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= dsm-protocol.md: fetch.8
    #[test]
    fn a_thread_that_reads_page_after_page_fetches_twice_as_many_pages_each_time() {
        let mut stream = Stream::default();
        let mut page = 5;
        let mut counts = Vec::new();
        for _ in 0..9 {
            let count = stream.fault(PageNumber(page), 128);
            counts.push(count);
            page += count;
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 32, 60, 64, 128]);
        assert_eq!(stream.fault(PageNumber(page + 1), 128), 1);
        assert_eq!(stream.fault(PageNumber(page + 2), 128), 2);
    }

    #[test]
    fn the_first_page_that_a_thread_reads_is_fetched_alone() {
        assert_eq!(Stream::default().fault(PageNumber(0), 128), 1);
        assert_eq!(Stream::default().fault(PageNumber(7), 128), 1);
    }

    #[test]
    fn without_read_ahead_a_thread_fetches_each_page_alone() {
        let mut stream = Stream::default();
        assert!((0..100).all(|page| stream.fault(PageNumber(page), 1) == 1));
    }
}
