//! Read-ahead: a thread that reads page after page fetches more and more pages at a time.

use crate::identity::{PageNumber, ThreadNumber};
use crate::layout::BLOCK_PAGES;
use crate::memory::Host;
use crate::node::Node;
use crate::page_table::State;

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
    fn fault(&mut self, page: PageNumber, most: u32) -> u32 {
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

impl Node {
    //= dsm-protocol.md: fetch.8
    /// Begins to fetch the page on which a thread has faulted and those behind it, if the thread
    /// reads page after page.
    pub(crate) fn read_ahead(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        thread: ThreadNumber,
    ) {
        let most = self.config.read_ahead;
        let is_absent = self.pages.get(page).state == State::Absent;
        if !is_absent || self.fetches.contains_key(&page) {
            return;
        }
        let Some(stream) = self.streams.get_mut(thread.index()) else { return };
        let count = stream.fault(page, most);
        if count > 1 {
            let pages = page.0..page.0.saturating_add(count).min(self.config.pages);
            // Without read-ahead, the thread would fault on each of them.
            for page in pages.clone().map(PageNumber) {
                self.barrier.history.faulted(page);
            }
            self.prefetch_range(host, pages);
            // The thread waits for the first page, so that this one is no prefetch.
            self.counters.prefetches = self.counters.prefetches.saturating_sub(1);
        }
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
