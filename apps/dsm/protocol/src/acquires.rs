//! Acquires: the notices that a clock covers are read from the logs, and their pages made invalid.

use crate::clock::Clock;
use crate::config::Coherence;
use crate::error::Fault;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::layout::{Layout, LogEntry, decode_log_entry};
use crate::memory::Host;
use crate::node::{Node, word_at};
use crate::node_state::{Acquire, AfterAcquire, AfterInterval, Pending, Stage};
use crate::planted::{Planted, is_planted};

impl Node {
    //= dsm-protocol.md: acquire.1
    /// Applies all notices that `clock` covers; then `then` follows. `notices` are the last ones
    /// that the clock covers of a node; they need not be read from its log.
    pub(crate) fn acquire(
        &mut self,
        host: &mut dyn Host,
        clock: Clock,
        notices: Option<(Rank, &[PageNumber])>,
        then: AfterAcquire,
    ) -> Result<(), Fault> {
        let me = self.me();
        if clock.of(me) > self.clock.of(me) {
            return Err(Fault::Clock);
        }
        if let AfterAcquire::Finish(thread) = then {
            self.set_stage(thread, Stage::Apply);
        }
        let has_changes = !self.interval.dirty.is_empty() || !self.interval.touched.is_empty();
        if self.config.races && has_changes {
            self.end_interval(host, AfterInterval::Acquire { clock, then });
        } else {
            self.read_logs(host, clock, notices, then);
        }
        Ok(())
    }

    //= dsm-protocol.md: acquire.2
    /// Reads the log entries that the clock covers and this node has not applied.
    pub(crate) fn read_logs(
        &mut self,
        host: &mut dyn Host,
        clock: Clock,
        notices: Option<(Rank, &[PageNumber])>,
        then: AfterAcquire,
    ) {
        let id = self.next_acquire;
        self.next_acquire += 1;
        let is_everything = self.config.coherence == Coherence::SelfInvalidation;
        let mut acquire = Acquire {
            clock,
            outstanding: 0,
            pages: Vec::new(),
            is_everything,
            is_applied: false,
            then,
        };
        let entries = self.layout.log_entries();
        let behind: Vec<_> = self.clock.behind(&acquire.clock).collect();
        for (rank, own, other) in behind {
            if is_everything {
                continue;
            }
            if let Some((from, notices)) = notices
                && from == rank
                && let Some(missing) = last(notices, other - own)
            {
                acquire.pages.extend_from_slice(missing);
                for page in missing {
                    self.profile.was_written(*page);
                    self.barrier.history.was_written(*page);
                }
                continue;
            }
            if other - own > entries {
                acquire.is_everything = true;
                acquire.outstanding += 1;
                self.counters.overruns += 1;
                let pending = Pending::Published { acquire: id, position: other };
                self.read_control(host, rank, Layout::published(), 8, pending);
                continue;
            }
            // The entries may continue at the beginning of the log.
            let end_of_log = (own | (entries - 1)).saturating_add(1);
            for (position, end) in [(own, other.min(end_of_log)), (end_of_log, other)] {
                if position < end {
                    let count = end - position;
                    let pending = Pending::Log { acquire: id, position, count };
                    let address = self.layout.log_entry(position);
                    self.read_control(host, rank, address, 8 * count as u32, pending);
                    acquire.outstanding += 1;
                }
            }
        }
        let is_complete = acquire.outstanding == 0;
        self.acquires.insert(id, acquire);
        if is_complete {
            self.apply(host, id);
        }
    }

    /// Checks the position up to which a log was overwritten: a clock that names more than its node
    /// has published would hide later notices.
    pub(crate) fn handle_published(
        &mut self,
        host: &mut dyn Host,
        id: u64,
        position: u64,
        published: u64,
    ) -> Result<(), Fault> {
        if position > published {
            return Err(Fault::Clock);
        }
        self.count_down_acquire(host, id);
        Ok(())
    }

    /// Handles log entries that an acquire has read.
    pub(crate) fn handle_log(
        &mut self,
        host: &mut dyn Host,
        id: u64,
        position: u64,
        count: u64,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let Some(acquire) = self.acquires.get_mut(&id) else { return Ok(()) };
        for (index, position) in (position..position.saturating_add(count)).enumerate() {
            let entry = word_at(bytes, index).ok_or(Fault::Completion)?;
            match decode_log_entry(&self.layout, position, entry) {
                LogEntry::Written(page) => {
                    acquire.pages.push(page);
                    self.profile.was_written(page);
                    self.barrier.history.was_written(page);
                }
                LogEntry::Overwritten if is_planted(Planted::IgnoresOverwritten) => {}
                LogEntry::Overwritten => {
                    self.counters.overruns += 1;
                    acquire.is_everything = true;
                }
                LogEntry::Malformed => return Err(Fault::LogEntry { position, entry }),
            }
        }
        self.count_down_acquire(host, id);
        Ok(())
    }

    /// Notes that a read of a log, or a fetch of a pinned page, has completed.
    pub(crate) fn count_down_acquire(&mut self, host: &mut dyn Host, id: u64) {
        let Some(acquire) = self.acquires.get_mut(&id) else { return };
        acquire.outstanding = acquire.outstanding.saturating_sub(1);
        if acquire.outstanding == 0 {
            self.apply(host, id);
        }
    }

    /// Makes the pages of an acquire invalid; then ends it.
    fn apply(&mut self, host: &mut dyn Host, id: u64) {
        let Some(mut acquire) = self.acquires.remove(&id) else { return };
        if !acquire.is_applied {
            acquire.is_applied = true;
            let mut pages = std::mem::take(&mut acquire.pages);
            if acquire.is_everything {
                pages = self.pages.present();
                pages.extend(self.fetches.keys());
            }
            pages.sort_unstable();
            pages.dedup();
            acquire.outstanding =
                pages.into_iter().filter(|page| self.invalidate(host, *page, Some(id))).count();
            if acquire.outstanding > 0 {
                self.acquires.insert(id, acquire);
                return;
            }
        }
        if !is_planted(Planted::ForgetsClock) || matches!(acquire.then, AfterAcquire::EndBarrier) {
            self.clock.merge(&acquire.clock);
        }
        match acquire.then {
            AfterAcquire::Finish(thread) => self.finish(thread, Ok(0)),
            AfterAcquire::EndBarrier => self.end_rounds(host),
        }
    }

    /// Handles the position of the log of `peer`, for a thread that applies all notices.
    pub(crate) fn handle_position(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        peer: Rank,
        position: u64,
    ) -> Result<(), Fault> {
        let stage = self.threads.get_mut(thread.index());
        let Some(Stage::Positions { clock, outstanding }) = stage else { return Ok(()) };
        clock.raise(peer, position);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding > 0 {
            return Ok(());
        }
        let clock = clock.clone();
        self.acquire(host, clock, None, AfterAcquire::Finish(thread))
    }

    /// Begins to read the positions of all logs.
    pub(crate) fn read_positions(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
    ) -> Result<(), Fault> {
        let clock = self.clock.clone();
        let outstanding = usize::from(self.config.nodes) - 1;
        if outstanding == 0 {
            return self.acquire(host, clock, None, AfterAcquire::Finish(thread));
        }
        self.set_stage(thread, Stage::Positions { clock, outstanding });
        for rank in self.peers() {
            self.read_control(host, rank, Layout::published(), 8, Pending::Position(thread));
        }
        Ok(())
    }
}

/// Returns the last `count` notices, if there are so many.
fn last(notices: &[PageNumber], count: u64) -> Option<&[PageNumber]> {
    let skipped = notices.len().checked_sub(usize::try_from(count).ok()?)?;
    notices.get(skipped..)
}
