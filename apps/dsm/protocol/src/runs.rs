//! Runs of pages: consecutive pages with one home are announced by one write, and fetched by one
//! read.

use std::ops::Range;

use crate::diff::PAGE_BYTES;
use crate::error::Fault;
use crate::faults::frame_address;
use crate::identity::{PageNumber, Rank};
use crate::layout::BLOCK_PAGES;
use crate::memory::Host;
use crate::node::{Node, word_at};
use crate::node_state::{Fetch, FetchStep, Part, Pending, Run};
use crate::page_table::State;
use crate::planted::{Planted, is_planted};
use crate::transport::{Area, Landing, Operation};

impl Node {
    //= dsm-protocol.md: fetch.7
    /// Adds a page to the run, whose read is posted when another run begins, or when the node has
    /// handled its calls and arrivals.
    pub(crate) fn add_to_run(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        home: Rank,
        must_announce: bool,
    ) {
        // A node with a race detector may read from itself, which it does page by page.
        let may_grow = !self.config.races;
        if let Some(run) = self.run.as_mut().filter(|run| may_grow && run.takes(page, home)) {
            run.count += 1;
            run.must_announce |= must_announce;
            return;
        }
        self.flush_run(host);
        self.run = Some(Run::new(page, home, must_announce));
    }

    //= dsm-protocol.md: fetch.9
    /// Posts the read of the run, if there is one. If many pages are in flight, a run that no thread
    /// waits for is queued.
    pub(crate) fn flush_run(&mut self, host: &mut dyn Host) {
        let Some(run) = self.run.take() else { return };
        let is_next = self.queued.is_empty() && self.has_room_for(run);
        if run.count == 1 || is_next || self.is_awaited(run) {
            self.read_run(host, run);
        } else {
            self.queued.push_back(run);
        }
    }

    /// Returns whether the pages of a run may be in flight with those that are.
    const fn has_room_for(&self, run: Run) -> bool {
        let most = self.config.pages_in_flight;
        self.reading == 0 || self.reading + run.count <= most
    }

    /// Returns whether a thread waits for a page of a run.
    fn is_awaited(&self, run: Run) -> bool {
        let mut fetches = self.fetches.range(run.first..PageNumber(run.first.0 + run.count));
        fetches.any(|(_, fetch)| !fetch.waiters.is_empty())
    }

    fn read_run(&mut self, host: &mut dyn Host, run: Run) {
        self.reading += in_flight(run.count);
        self.post_read(host, run, Landing::Frame(run.first));
    }

    /// Reads the run with a page now, if it is queued: a thread waits for the page.
    pub(crate) fn hurry(&mut self, host: &mut dyn Host, page: PageNumber) {
        let has_page = |run: &Run| (run.first.0..run.first.0 + run.count).contains(&page.0);
        if let Some(run) =
            self.queued.iter().position(has_page).and_then(|index| self.queued.remove(index))
        {
            self.read_run(host, run);
        }
    }

    /// Notes that the read of a run has completed, and posts those that have waited for it.
    pub(crate) fn end_run(&mut self, host: &mut dyn Host, count: u32) {
        self.reading = self.reading.saturating_sub(in_flight(count));
        while let Some(run) = self.queued.front().copied().filter(|run| self.has_room_for(*run)) {
            self.queued.pop_front();
            self.read_run(host, run);
        }
    }

    /// Reads the pages of a run from their home.
    pub(crate) fn post_read(&mut self, host: &mut dyn Host, run: Run, landing: Landing) {
        let Run { home, first, count, must_announce } = run;
        if must_announce && !is_planted(Planted::HidesSharer) {
            self.announce(host, run);
        }
        let (area, length) = (self.area(), count * PAGE_BYTES as u32);
        let read = Operation::Read { area, address: frame_address(first), length, landing };
        self.post(host, home, must_announce, Pending::Fetch { first, count }, read);
    }

    //= dsm-protocol.md: share.1
    /// Sets this node's bytes in the home's table of sharers. The read that follows is fenced: if
    /// the home finds a byte unset when an interval ends, the read returns all that the interval
    /// has written.
    fn announce(&mut self, host: &mut dyn Host, run: Run) {
        let address = self.layout.sharer(run.first, self.me());
        let (area, notification) = (Area::Control, None);
        let ones = [1; BLOCK_PAGES as usize];
        let bytes = ones.get(..run.count as usize).unwrap_or(&ones);
        let write = Operation::Write { area, address, bytes, notification };
        self.post(host, run.home, false, Pending::None, write);
    }

    /// Fetches the pages of a range that are absent. No thread waits for them yet.
    pub(crate) fn prefetch_range(&mut self, host: &mut dyn Host, pages: Range<u32>) {
        let part_pages = u32::from(self.config.nodes) * ENTRIES_AT_ONCE;
        let mut start = pages.start;
        while start < pages.end {
            let end = start.saturating_add(part_pages - start % part_pages).min(pages.end);
            self.prefetch_part(host, start..end);
            start = end;
        }
    }

    /// Fetches the absent pages of a part of a range: looks up all their homes, and then reads the
    /// pages in ascending order, so that they form runs.
    fn prefetch_part(&mut self, host: &mut dyn Host, pages: Range<u32>) {
        let number = self.next_part;
        self.next_part += 1;
        for page in pages.clone().map(PageNumber) {
            if self.pages.get(page).state == State::Absent && !self.fetches.contains_key(&page) {
                self.counters.prefetches += 1;
                self.fetches.insert(page, Fetch::new(FetchStep::Part(number), Vec::new()));
            }
        }
        let nodes = u32::from(self.config.nodes);
        let mut outstanding = 0;
        // The entries of each directory, beginning with that of the first page.
        for first in (pages.start..pages.end).take(nodes as usize) {
            let mut own = (first..pages.end).step_by(nodes as usize).map(PageNumber);
            let count = own.len() as u32;
            let is_sought =
                |page| self.pages.get(page).home.is_none() && self.is_in_part(page, number);
            if own.any(is_sought) {
                let first = PageNumber(first);
                let (rank, address) = self.layout.directory(first);
                let pending = Pending::Part { part: number, first, count };
                self.read_control(host, rank, address, 8 * count, pending);
                outstanding += 1;
            }
        }
        let entries = vec![0; pages.len()];
        let part = Part { pages, entries, outstanding };
        if outstanding > 0 {
            self.parts.insert(number, part);
        } else {
            // The homes of all pages are known, so that no entry is looked at.
            let _known = self.read_part(host, number, &part);
        }
    }

    /// Returns whether a page is fetched as a page of a part, and its home is being looked up.
    fn is_in_part(&self, page: PageNumber, part: u64) -> bool {
        self.fetches.get(&page).is_some_and(|fetch| fetch.step == FetchStep::Part(part))
    }

    //= dsm-protocol.md: fetch.2
    /// Handles directory entries of a part of a range: `count` entries from that of `first` on.
    pub(crate) fn handle_part(
        &mut self,
        host: &mut dyn Host,
        number: u64,
        (first, count): (PageNumber, u32),
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let Some(mut part) = self.parts.remove(&number) else { return Ok(()) };
        let pages = (first.0..).step_by(usize::from(self.config.nodes)).map(PageNumber);
        for (index, page) in (0..count as usize).zip(pages) {
            let entry = word_at(bytes, index).ok_or(Fault::Completion)?;
            let home = self.decode_directory(page, entry)?;
            if home == Some(self.me()) && self.is_in_part(page, number) {
                return Err(Fault::Directory { page, entry });
            }
            let place = part.entries.get_mut((page.0 - part.pages.start) as usize);
            if let Some(place) = place {
                *place = entry;
            }
        }
        part.outstanding = part.outstanding.saturating_sub(1);
        if part.outstanding == 0 {
            return self.read_part(host, number, &part);
        }
        self.parts.insert(number, part);
        Ok(())
    }

    /// Continues the fetches of a part, whose directory entries are all there.
    fn read_part(&mut self, host: &mut dyn Host, number: u64, part: &Part) -> Result<(), Fault> {
        for (page, entry) in part.pages.clone().map(PageNumber).zip(&part.entries) {
            if !self.is_in_part(page, number) {
                continue;
            }
            if self.pages.get(page).home.is_some() {
                self.locate(host, page);
            } else {
                self.handle_lookup(host, page, *entry)?;
            }
        }
        Ok(())
    }
}

/// Returns for how many pages a read counts among those in flight. Reads of single pages may also be
/// refreshes of pinned pages, which wait for nothing.
const fn in_flight(count: u32) -> u32 {
    if count > 1 { count } else { 0 }
}

/// Number of directory entries of a node that one read returns: 512 bytes fit into one frame of any
/// network.
const ENTRIES_AT_ONCE: u32 = 64;
