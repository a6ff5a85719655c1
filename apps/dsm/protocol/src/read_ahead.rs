//! Read-ahead: a thread that reads page after page fetches more and more pages at a time.

use crate::identity::{PageNumber, ThreadNumber};
use crate::memory::Host;
use crate::node::Node;
use crate::page_table::State;

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
