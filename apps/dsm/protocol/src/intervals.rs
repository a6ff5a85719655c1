//! The end of an interval: changes go to the homes, then notices are published.

use crate::diff::{self, WORD_BYTES};
use crate::error::Fault;
use crate::identity::{PageNumber, Rank};
use crate::layout::{Layout, log_entry};
use crate::memory::{Access, Host};
use crate::message::{GRANT_NOTICES_MAX, Message};
use crate::node::Node;
use crate::node_state::{AfterInterval, Pending, Stage};
use crate::page_table::State;
use crate::planted::{Planted, is_planted};
use crate::races::Changes;
use crate::transport::Operation;
use crate::{faults::frame_address, message::Question};

impl Node {
    /// Ends the interval; then `after` follows. Requests that arrive while an interval is ending
    /// share the next one.
    pub(crate) fn end_interval(&mut self, host: &mut dyn Host, after: AfterInterval) {
        self.interval.next.push(after);
        if self.interval.closing.is_none() {
            self.close_interval(host);
        }
        self.continue_interval(host);
    }

    /// Publishes the interval that is ending, if its patches are placed.
    pub(crate) fn continue_interval(&mut self, host: &mut dyn Host) {
        loop {
            let must_wait = self.interval.patches > 0 && !is_planted(Planted::IgnoresPatches);
            if self.interval.closing.is_none() || must_wait {
                return;
            }
            if let Some(notices) = self.interval.closing.take() {
                self.publish(host, notices);
            }
            for after in std::mem::take(&mut self.interval.current) {
                self.follow(host, after);
            }
            if self.interval.closing.is_none() && !self.interval.next.is_empty() {
                self.close_interval(host);
            }
        }
    }

    //= dsm-protocol.md: interval.2
    /// Posts the changes of all dirty pages. Writes that follow belong to the next interval.
    fn close_interval(&mut self, host: &mut dyn Host) {
        self.find_written(host);
        let mut dirty = std::mem::take(&mut self.interval.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        let mut notices = std::mem::take(&mut self.interval.touched);
        for page in dirty {
            if self.pages.get(page).state == State::Dirty && self.close_page(host, page) {
                notices.push(page);
            }
        }
        let open = std::mem::take(&mut self.interval.open);
        for page in open {
            if self.pages.get(page).state != State::Open {
                continue;
            }
            if !self.is_shared(host, page) {
                self.interval.open.push(page);
                continue;
            }
            notices.push(page);
            if self.pages.get(page).pins > 0 {
                self.pages.at(page).state = State::Dirty;
                self.interval.dirty.push(page);
            } else {
                self.make_clean(host, page);
            }
        }
        notices.sort_unstable();
        notices.dedup();
        self.interval.current = std::mem::take(&mut self.interval.next);
        self.interval.closing = Some(notices);
    }

    //= dsm-protocol.md: noted.1
    /// Adds the pages whose writes were noted to the dirty pages.
    ///
    /// Costs what [`crate::Pages::take_written`] costs, which looks at every page.
    pub(crate) fn find_written(&mut self, host: &mut dyn Host) {
        if !host.notes_writes() || is_planted(Planted::ForgetsNotedWrites) {
            return;
        }
        let mut written = std::mem::take(&mut self.written);
        host.take_written(&mut written);
        for page in written.drain(..) {
            let found = self.pages.at(page);
            if found.state == State::Clean {
                found.state = State::Dirty;
                self.interval.dirty.push(page);
            }
            if found.pins > 0 {
                host.protect(page, Access::Write);
            }
        }
        self.written = written;
    }

    //= dsm-protocol.md: share.2
    /// Ends the interval for a dirty page. Returns whether the page needs a notice.
    fn close_page(&mut self, host: &mut dyn Host, page: PageNumber) -> bool {
        let is_pinned = self.pages.get(page).pins > 0;
        if is_pinned {
            self.interval.dirty.push(page);
        }
        if self.is_in_place(page) {
            if is_pinned {
                return true;
            }
            if self.is_shared(host, page) {
                self.make_clean(host, page);
            } else {
                self.pages.at(page).state = State::Open;
                self.interval.open.push(page);
            }
            return true;
        }
        if is_planted(Planted::MakesTwinLate) {
            host.make_twin(page);
        }
        if !is_pinned {
            host.protect(page, Access::Read);
        }
        let has_changed = self.post_changes(host, page);
        if !is_pinned {
            // Where writes are noted, the twin has what a later diff must be compared with.
            if !host.notes_writes() {
                host.drop_twin(page);
            }
            self.pages.at(page).state = State::Clean;
        }
        has_changed
    }

    /// Returns whether another node may have a copy of a page whose home is this node.
    fn is_shared(&mut self, host: &mut dyn Host, page: PageNumber) -> bool {
        if self.pages.get(page).is_tracked {
            return true;
        }
        let is_sharer = |rank| {
            let address = self.layout.sharer(page, Rank(rank));
            host.load(address & !7) >> (8 * (address & 7)) & 0xff != 0
        };
        let is_shared = (0..self.config.nodes).any(is_sharer);
        self.pages.at(page).is_tracked = is_shared;
        is_shared
    }

    //= dsm-protocol.md: diff.1
    //= dsm-protocol.md: diff.3
    /// Posts the changes of a page to its home. Returns whether there are any.
    ///
    /// Costs a comparison of the page with its twin, the encoding, and one operation.
    pub(crate) fn post_changes(&mut self, host: &mut dyn Host, page: PageNumber) -> bool {
        let mut words = std::mem::take(&mut self.words);
        let mut payload = std::mem::take(&mut self.payload);
        words.clear();
        payload.clear();
        let bitmap = host.diff(page, &mut words);
        let home = self.pages.get(page).home.filter(|_| !bitmap.is_empty());
        if let Some(home) = home {
            let (area, base) = (self.area(), frame_address(page));
            let run = bitmap.run().filter(|(_, count)| *count > PATCHED_RUN_WORDS_MAX);
            let operation = if let Some((first, _)) = run {
                let address = base + (first * WORD_BYTES) as u64;
                Operation::Write { area, address, bytes: &words, notification: None }
            } else {
                diff::encode(&bitmap, &words, &mut payload);
                Operation::Patch { area, address: base, payload: &payload }
            };
            let found = self.pages.at(page);
            // A later change of a word must not be placed before an earlier one.
            let fence = found.patches > 0 && !is_planted(Planted::UnfencedPatch);
            found.patches = found.patches.saturating_add(1);
            self.interval.patches += 1;
            self.counters.patches += 1;
            self.post(host, home, fence, Pending::Patch(page), operation);
            // A read of the page that is in flight may miss these changes.
            if let Some(fetch) = self.fetches.get_mut(&page) {
                fetch.is_stale = true;
            }
            if self.config.races {
                self.interval.changes.push((page, bitmap));
            }
        }
        self.words = words;
        self.payload = payload;
        home.is_some()
    }

    //= dsm-protocol.md: log.3
    /// Appends notices to the log.
    fn publish(&mut self, host: &mut dyn Host, mut notices: Vec<PageNumber>) {
        if is_planted(Planted::LosesNotice) && notices.len() > 1 {
            notices.pop();
        }
        if notices.is_empty() {
            return;
        }
        let me = self.me();
        let clock = self.clock.clone();
        let mut position = clock.of(me);
        for page in &notices {
            host.store(self.layout.log_entry(position), log_entry(position, *page));
            position += 1;
            self.profile.wrote(*page);
            if !self.is_in_place(*page) {
                self.barrier.history.wrote(*page);
            }
        }
        host.store(Layout::published(), position);
        self.clock.raise(me, position);
        self.counters.intervals += 1;
        self.counters.notices += notices.len() as u64;
        for (page, words) in std::mem::take(&mut self.interval.changes) {
            let (detector, _) = self.layout.directory(page);
            let message = Message::Changed { page, position, clock: clock.clone(), words };
            self.send(host, detector, &message);
        }
    }

    /// Returns the notices of this node from position `known` on, if they fit into a message.
    pub(crate) fn last_notices(&self, host: &dyn Host, known: u64) -> Vec<PageNumber> {
        let published = self.clock.of(self.me());
        let count_max = u64::from(GRANT_NOTICES_MAX).min(self.layout.log_entries());
        if published.saturating_sub(known) > count_max {
            return Vec::new();
        }
        let entries = (known..published).map(|position| host.load(self.layout.log_entry(position)));
        entries.map(|entry| PageNumber(entry as u32)).collect()
    }

    /// Remembers what an interval has changed, and reports races.
    pub(crate) fn detect(&mut self, page: PageNumber, changes: Changes) -> Result<(), Fault> {
        if !self.pages.has(page) || self.layout.directory(page).0 != self.me() {
            return Err(Fault::Message);
        }
        if self.config.races {
            self.races.extend(self.detector.add(page, changes));
        }
        Ok(())
    }

    /// Does what follows the end of an interval.
    fn follow(&mut self, host: &mut dyn Host, after: AfterInterval) {
        match after {
            AfterInterval::Finish(thread) => self.finish(thread, Ok(0)),
            AfterInterval::Ask { thread, object, question } => {
                let mut clock = self.clock.clone();
                if is_planted(Planted::ForgetsPost) && matches!(question, Question::Give(_)) {
                    clock = crate::clock::Clock::zero(self.config.nodes as usize);
                }
                let to = self.manager(object);
                self.send(host, to, &Message::Ask { object, thread, question, clock });
                if matches!(question, Question::Arrive(_)) {
                    self.set_stage(thread, Stage::Object(object));
                } else {
                    self.finish(thread, Ok(0));
                }
            }
            AfterInterval::HandOver(lock) => self.hand_over(host, lock),
            AfterInterval::EnterBarrier => self.enter_barrier(host),
            AfterInterval::Acquire { clock, then } => self.read_logs(host, clock, None, then),
        }
    }
}

/// Number of words without a gap up to which they are a Patch. It completes sooner than a write: its
/// sender asks for the acknowledgement. So many words have at most two records.
const PATCHED_RUN_WORDS_MAX: usize = 32;
