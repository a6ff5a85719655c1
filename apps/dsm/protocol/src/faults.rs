//! Page faults: homes, fetches, copies that become invalid.

use crate::diff::{PAGE_BYTES, PageBytes};
use crate::error::Fault;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::memory::{Access, Host};
use crate::node::{Node, word_at};
use crate::node_state::{Fetch, FetchStep, Need, Pending, Run, Stage};
use crate::page_table::State;
use crate::planted::{Planted, is_planted};
use crate::transport::{Area, Landing, Operation};

impl Node {
    /// Returns whether the frame of a page on this node is the page at its home, so that the frame
    /// is always valid.
    pub(crate) fn is_in_place(&self, page: PageNumber) -> bool {
        !self.config.races && self.pages.get(page).home == Some(self.me())
    }

    /// Handles the need of a thread. Returns whether it is met; otherwise the thread continues with
    /// [`Node::resume`].
    pub(crate) fn need(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        thread: ThreadNumber,
        need: Need,
    ) -> bool {
        let found = self.pages.get(page);
        match (need, found.state) {
            (Need::Home, _) if found.home.is_some() => return true,
            (Need::Read, State::Clean | State::Dirty | State::Open)
            | (Need::Write, State::Dirty | State::Open) => return true,
            (Need::Write, State::Clean) if found.home.is_some() => {
                self.upgrade(host, page);
                return true;
            }
            _ => {}
        }
        self.counters.faults += 1;
        self.barrier.history.faulted(page);
        if let Some(fetch) = self.fetches.get_mut(&page) {
            fetch.waiters.push((thread, need));
            self.hurry(host, page);
            return false;
        }
        self.begin_fetch(host, page, vec![(thread, need)]);
        if need == Need::Read {
            self.fetch_neighbours(host, page);
        }
        false
    }

    /// Begins to fetch a page that no thread waits for.
    pub(crate) fn prefetch(&mut self, host: &mut dyn Host, page: PageNumber) {
        if self.pages.get(page).state == State::Absent && !self.fetches.contains_key(&page) {
            self.counters.prefetches += 1;
            self.begin_fetch(host, page, Vec::new());
        }
    }

    /// Prefetches the other pages of the group of [`crate::Config::fetch_pages`] pages.
    fn fetch_neighbours(&mut self, host: &mut dyn Host, page: PageNumber) {
        let group = self.config.fetch_pages;
        if group > 1 {
            let first = page.0 - page.0 % group;
            let end = first.saturating_add(group).min(self.config.pages);
            (first..end).map(PageNumber).for_each(|page| self.prefetch(host, page));
        }
    }

    fn begin_fetch(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        waiters: Vec<(ThreadNumber, Need)>,
    ) {
        self.fetches.insert(page, Fetch::new(FetchStep::Lookup, waiters));
        self.locate(host, page);
    }

    //= dsm-protocol.md: fetch.1
    /// Takes the next step of a fetch: looks the home up, claims the page, or reads it.
    pub(crate) fn locate(&mut self, host: &mut dyn Host, page: PageNumber) {
        let found = self.pages.get(page);
        let is_frame_zero = found.state == State::Clean;
        if let Some(home) = found.home {
            return self.begin_read(host, page, home);
        }
        let Some(fetch) = self.fetches.get_mut(&page) else { return };
        fetch.is_stale = false;
        let (rank, address) = self.layout.directory(page);
        //= dsm-protocol.md: noted.2
        let is_read = fetch.waiters.iter().all(|(_, need)| *need == Need::Read);
        let is_read_fault = is_read && !fetch.waiters.is_empty();
        if is_read && !(is_read_fault && host.notes_writes()) {
            fetch.step = FetchStep::Lookup;
            self.read_control(host, rank, address, 8, Pending::Lookup(page));
        } else {
            fetch.step = FetchStep::Claim;
            self.claim(host, page, is_frame_zero, (rank, address));
        }
        if is_read_fault && rank != self.me() {
            self.read_near_homes(host, page);
        }
    }

    //= dsm-protocol.md: fetch.6
    /// Reads the block of directory entries with the one of a page. A thread that reads the page
    /// probably reads its neighbours, too, in either direction, and their fetches then save a round
    /// trip.
    fn read_near_homes(&mut self, host: &mut dyn Host, page: PageNumber) {
        let nodes = u32::from(self.config.nodes);
        let index = page.0 / nodes;
        let block = index - index % HOMES_AT_ONCE;
        let first = PageNumber(block * nodes + page.0 % nodes);
        let count = (self.config.pages - first.0).div_ceil(nodes).min(HOMES_AT_ONCE);
        let neighbours = [index.checked_sub(1), index.checked_add(1)].into_iter().flatten();
        let is_unknown = |index: u32| {
            let neighbour = PageNumber(index * nodes + page.0 % nodes);
            (block..block + count).contains(&index) && self.pages.get(neighbour).home.is_none()
        };
        if neighbours.into_iter().any(is_unknown) {
            let (rank, address) = self.layout.directory(first);
            self.read_control(host, rank, address, 8 * count, Pending::Homes { first, count });
        }
    }

    //= dsm-protocol.md: fetch.6
    /// Handles directory entries of pages that are probably fetched soon.
    ///
    /// The entries may be older than the last barrier. But an entry that is not 0 changes only by a
    /// move, and then this node knows the home already.
    pub(crate) fn handle_homes(
        &mut self,
        first: PageNumber,
        count: u32,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let pages = (first.0..).step_by(usize::from(self.config.nodes)).map(PageNumber);
        for (index, page) in (0..count as usize).zip(pages) {
            let entry = word_at(bytes, index).ok_or(Fault::Completion)?;
            // The entry is this node's if its claim has been performed, and is still in flight.
            let home = self.decode_directory(page, entry)?.filter(|home| *home != self.me());
            let found = self.pages.get(page);
            let is_new = found.home.is_none() && found.state == State::Absent;
            if is_new && !self.fetches.contains_key(&page) {
                self.pages.at(page).home = home;
            }
        }
        Ok(())
    }

    //= dsm-protocol.md: home.2
    /// Claims a page. The frame is zero before the claim is posted, because peers may patch it as
    /// soon as the claim is performed.
    fn claim(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        is_frame_zero: bool,
        (rank, address): (Rank, u64),
    ) {
        if !is_frame_zero {
            host.clear(page);
        }
        let desired = directory_word(self.me());
        let area = Area::Control;
        let claim = Operation::CompareSwap { area, address, expected: 0, desired };
        self.post(host, rank, false, Pending::Claim(page), claim);
    }

    //= dsm-protocol.md: home.1
    /// Returns the home that a directory entry names.
    pub(crate) fn decode_directory(
        &self,
        page: PageNumber,
        entry: u64,
    ) -> Result<Option<Rank>, Fault> {
        match entry {
            0 => Ok(None),
            entry if entry <= u64::from(self.config.nodes) => Ok(Some(Rank((entry - 1) as u8))),
            entry => Err(Fault::Directory { page, entry }),
        }
    }

    //= dsm-protocol.md: fetch.2
    /// Handles the directory entry of a page that is being fetched.
    pub(crate) fn handle_lookup(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        entry: u64,
    ) -> Result<(), Fault> {
        let home = self.decode_directory(page, entry)?;
        let Some(fetch) = self.fetches.get(&page) else { return Ok(()) };
        if home == Some(self.me()) {
            return Err(Fault::Directory { page, entry });
        }
        let is_write = fetch.waiters.iter().any(|(_, need)| *need != Need::Read);
        let claims = host.notes_writes() && !fetch.waiters.is_empty();
        let is_stale = fetch.is_stale && !is_planted(Planted::UsesStaleFetch);
        if home.is_some() {
            self.pages.at(page).home = home;
        }
        if home.is_some() || is_stale || is_write || claims {
            self.locate(host, page);
            return Ok(());
        }
        if !host.notes_writes() {
            host.clear(page);
            self.make_clean(host, page);
        }
        self.end_fetch(host, page);
        Ok(())
    }

    //= dsm-protocol.md: home.3
    /// Handles the result of a claim.
    pub(crate) fn handle_claim(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        entry: u64,
    ) -> Result<(), Fault> {
        let former = self.decode_directory(page, entry)?;
        let me = self.me();
        if former == Some(me) {
            return Err(Fault::Directory { page, entry });
        }
        let Some(fetch) = self.fetches.get_mut(&page) else { return Ok(()) };
        self.pages.at(page).home = former.or(Some(me));
        if let Some(home) = former {
            let mut waiters = std::mem::take(&mut fetch.waiters);
            let homeless = waiters.extract_if(.., |(_, need)| *need == Need::Home);
            let homeless: Vec<_> = homeless.collect();
            fetch.waiters = waiters;
            let found = self.pages.get(page);
            fetch.is_refresh |= found.pins > 0 && found.state != State::Absent;
            let is_refresh = fetch.is_refresh;
            let is_wanted = is_refresh || !fetch.waiters.is_empty();
            if is_planted(Planted::KeepsLostClaim) {
                self.make_clean(host, page);
                self.end_fetch(host, page);
            } else {
                if !is_refresh {
                    self.make_absent(host, page);
                }
                if is_wanted {
                    self.begin_read(host, page, home);
                } else {
                    self.fetches.remove(&page);
                }
            }
            for (thread, need) in homeless {
                self.resume(host, page, thread, need);
            }
            return Ok(());
        }
        if self.config.races && fetch.is_stale {
            self.begin_read(host, page, me);
            return Ok(());
        }
        if self.config.races {
            self.make_clean(host, page);
        } else {
            self.pages.at(page).state = State::Dirty;
            self.interval.dirty.push(page);
            host.protect(page, Access::Write);
        }
        self.end_fetch(host, page);
        Ok(())
    }

    //= dsm-protocol.md: fetch.3
    /// Reads a page from its home. Waits while patches of this node for the page are in flight,
    /// because the page without them would lack this node's own changes.
    fn begin_read(&mut self, host: &mut dyn Host, page: PageNumber, home: Rank) {
        let found = self.pages.get(page);
        let Some(fetch) = self.fetches.get_mut(&page) else { return };
        fetch.is_stale = false;
        if found.patches > 0 {
            fetch.step = FetchStep::Blocked;
            return;
        }
        fetch.step = FetchStep::Read;
        let is_refresh = fetch.is_refresh;
        let must_announce = !found.is_announced && !self.config.races;
        self.pages.at(page).is_announced |= must_announce;
        self.counters.fetches += 1;
        self.profile.fetched(page);
        if is_refresh {
            self.post_read(host, Run::new(page, home, must_announce), Landing::Buffer);
        } else {
            self.add_to_run(host, page, home, must_announce);
        }
    }

    //= dsm-protocol.md: fetch.4
    /// Handles the bytes of pages. Reads those again of which a notice has overtaken the read.
    pub(crate) fn handle_fetched(
        &mut self,
        host: &mut dyn Host,
        first: PageNumber,
        count: u32,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        self.end_run(host, count);
        let mut fetched = std::mem::take(&mut self.fetched);
        for page in (first.0..first.0.saturating_add(count)).map(PageNumber) {
            let Some(fetch) = self.fetches.get(&page) else { continue };
            if fetch.is_stale && !is_planted(Planted::UsesStaleFetch) {
                self.counters.stale_fetches += 1;
                self.locate(host, page);
            } else if fetch.is_refresh {
                let bytes: &PageBytes = bytes.try_into().map_err(|_| Fault::Completion)?;
                host.merge(page, bytes);
                self.end_fetch(host, page);
            } else {
                self.pages.at(page).state = State::Clean;
                fetched.push(page);
            }
        }
        //= dsm-protocol.md: noted.1
        for run in fetched.chunk_by(|page, next| page.0 + 1 == next.0) {
            if let Some(first) = run.first() {
                host.permit_reads(*first, run.len() as u32);
            }
        }
        for page in fetched.drain(..) {
            self.end_fetch(host, page);
        }
        self.fetched = fetched;
        Ok(())
    }

    /// Lets the waiters of a fetch continue.
    fn end_fetch(&mut self, host: &mut dyn Host, page: PageNumber) {
        let Some(fetch) = self.fetches.remove(&page) else { return };
        for (thread, need) in fetch.waiters {
            self.resume(host, page, thread, need);
        }
        for acquire in fetch.acquires {
            self.count_down_acquire(host, acquire);
        }
    }

    /// Lets a thread continue whose need is met.
    fn resume(&mut self, host: &mut dyn Host, page: PageNumber, thread: ThreadNumber, need: Need) {
        if need == Need::Write && self.pages.get(page).state == State::Clean {
            self.upgrade(host, page);
        }
        match self.threads.get(thread.index()) {
            Some(Stage::Fault) => self.finish(thread, Ok(0)),
            Some(Stage::Pin { .. }) => self.continue_pin(host, thread),
            Some(Stage::Claim(_)) => self.count_down_claim(thread),
            Some(&Stage::Home { address, operation }) => {
                self.post_atomic(host, thread, address, operation);
            }
            _ => {}
        }
    }

    //= dsm-protocol.md: interval.1
    /// Makes a clean page writable. Its home is known.
    pub(crate) fn upgrade(&mut self, host: &mut dyn Host, page: PageNumber) {
        // Where writes are noted, the page has a twin already, and may differ from it.
        if !self.is_in_place(page) && !host.notes_writes() {
            host.make_twin(page);
        }
        self.pages.at(page).state = State::Dirty;
        self.interval.dirty.push(page);
        host.protect(page, Access::Write);
    }

    //= dsm-protocol.md: noted.1
    pub(crate) fn make_clean(&mut self, host: &mut dyn Host, page: PageNumber) {
        if host.notes_writes() && !self.is_in_place(page) {
            host.make_twin(page);
        }
        self.pages.at(page).state = State::Clean;
        host.protect(page, Access::Read);
    }

    fn make_absent(&mut self, host: &mut dyn Host, page: PageNumber) {
        self.pages.at(page).state = State::Absent;
        host.protect(page, Access::None);
    }

    //= dsm-protocol.md: acquire.3
    /// Makes the copy of a page invalid, after a notice. A dirty page is patched first. A pinned
    /// page stays and is read again; then the acquire has to wait, and the call returns true.
    pub(crate) fn invalidate(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        acquire: Option<u64>,
    ) -> bool {
        if self.is_in_place(page) {
            return false;
        }
        if let Some(fetch) = self.fetches.get_mut(&page) {
            fetch.is_stale = true;
            if fetch.is_refresh {
                fetch.acquires.extend(acquire);
                return acquire.is_some();
            }
        }
        let found = self.pages.get(page);
        if found.state == State::Absent {
            return false;
        }
        self.counters.invalidations += 1;
        if found.pins > 0 {
            self.begin_refresh(host, page, acquire);
            return acquire.is_some();
        }
        self.make_absent(host, page);
        //= dsm-protocol.md: noted.3
        if found.state == State::Dirty || host.notes_writes() {
            if !is_planted(Planted::DropsChanges) && self.post_changes(host, page) {
                self.interval.touched.push(page);
            }
            host.drop_twin(page);
        }
        false
    }

    fn begin_refresh(&mut self, host: &mut dyn Host, page: PageNumber, acquire: Option<u64>) {
        let (step, waiters) = (FetchStep::Read, Vec::new());
        let acquires = acquire.into_iter().collect();
        let fetch = Fetch { step, waiters, acquires, is_stale: false, is_refresh: true };
        self.fetches.insert(page, fetch);
        self.locate(host, page);
    }

    /// Handles the completion of a patch.
    pub(crate) fn handle_patched(&mut self, host: &mut dyn Host, page: PageNumber) {
        let found = self.pages.at(page);
        found.patches = found.patches.saturating_sub(1);
        let is_last = found.patches == 0;
        self.interval.patches = self.interval.patches.saturating_sub(1);
        let is_blocked =
            self.fetches.get(&page).is_some_and(|fetch| fetch.step == FetchStep::Blocked);
        if is_last && is_blocked {
            self.locate(host, page);
        }
        self.continue_interval(host);
    }
}

/// Number of directory entries that a read fault reads at once: 512 bytes fit into one frame of any
/// network.
const HOMES_AT_ONCE: u32 = 64;

/// Returns the directory entry of a page with this home.
pub(crate) const fn directory_word(home: Rank) -> u64 {
    home.0 as u64 + 1
}

/// Returns the address of a page in the areas of frames and masters.
pub(crate) const fn frame_address(page: PageNumber) -> u64 {
    page.0 as u64 * PAGE_BYTES as u64
}
