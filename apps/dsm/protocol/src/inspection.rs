//! What a node can say of a thread that does not come: which nodes wait for it, what it waits for
//! itself, and which pages it may read in vain.
//!
//! A thread that spins on plain memory waits for ever, because a page changes on a node only when
//! the node acquires. Its driver finds such a thread in three steps: another node waits for this
//! one ([`Node::waits_for_this`]), nodes have changed pages that are still readable here
//! ([`Node::inspect`]), and the thread accesses one of these pages, which the driver unmaps.

use std::collections::BTreeMap;

use crate::barrier_state::Phase;
use crate::error::Fault;
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::layout::{Layout, LogEntry, decode_log_entry};
use crate::memory::Host;
use crate::node::{Node, word_at};
use crate::node_state::{Inspection, Pending, Stage};
use crate::page_table::State;

/// What other threads wait for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Awaited {
    /// That all threads of this node come to the barrier. `rank` is there.
    Barrier {
        /// A node that waits; this node if only its own threads do.
        rank: Rank,
    },
    /// That a thread of this node releases a lock.
    Lock {
        /// The lock.
        lock: u64,
        /// The thread that holds it.
        holder: ThreadNumber,
        /// A node that waits; this node if only its own threads do.
        rank: Rank,
    },
}

/// What a thread waits for, and another thread must do, except the barrier of all threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Obstacle {
    /// That a thread releases this lock or reader-writer lock.
    Lock(u64),
    /// That a thread uses this object: it adds to a semaphore, sets an event, signals a condition
    /// variable, or comes to a barrier of some threads.
    Object(u64),
}

/// Entries of each log that are read: the last ones.
const ENTRIES_MAX: u64 = 512;

impl Node {
    /// Returns what other threads wait for, as far as this node knows: the barrier of all threads,
    /// and locks that are here.
    pub fn waits_for_this(&self) -> Option<Awaited> {
        if self.barrier.phase == Phase::Gathering {
            let sequence = self.barrier.sequence;
            let mut slots = self.barrier.slots.range((sequence, 0)..(sequence + 1, 0));
            let own = (!self.barrier.waiting.is_empty()).then_some(self.me());
            if let Some(rank) = slots.next().map(|(_, slot)| slot.from).or(own) {
                return Some(Awaited::Barrier { rank });
            }
        }
        let (lock, holder, next) = self.locks.wanted()?;
        Some(Awaited::Lock { lock, holder, rank: next.unwrap_or(self.me()) })
    }

    /// Returns whether another node waits for a lock that a thread of this node holds or waits for,
    /// as far as this node knows.
    pub fn is_lock_awaited(&self, lock: u64) -> bool {
        self.locks.is_awaited(lock)
    }

    /// Returns what a thread of this node waits for, if another thread must do it.
    pub fn obstacle_of(&self, thread: ThreadNumber) -> Option<Obstacle> {
        match *self.threads.get(thread.index())? {
            Stage::Object(lock) if self.read_write_locks.contains_key(&(lock, thread)) => {
                Some(Obstacle::Lock(lock))
            }
            Stage::Lock => self.locks.wanted_by(thread).map(Obstacle::Lock),
            Stage::Object(object) | Stage::Sleep { condition: object, .. } => {
                Some(Obstacle::Object(object))
            }
            _ => None,
        }
    }

    /// Begins to read what other nodes have published and this node has not applied.
    pub fn inspect(&mut self, host: &mut dyn Host) {
        self.inspection = Inspection::default();
        if self.failure().is_some() {
            return;
        }
        for rank in self.peers() {
            self.inspection.outstanding += 1;
            self.read_control(host, rank, Layout::published(), 8, Pending::InspectPosition);
        }
    }

    /// Returns the pages that other nodes have changed, with one node for each, once the reads that
    /// [`Node::inspect`] began have completed.
    pub fn inspected(&self) -> Option<&BTreeMap<PageNumber, Rank>> {
        (self.inspection.outstanding == 0).then_some(&self.inspection.writers)
    }

    /// Returns whether threads of this node may read a page without a fault, while it has no changes
    /// of this interval and no pins. The driver may unmap such a page, to see the next access to it:
    /// the fault then ends at once. Call [`Node::note_writes`] before.
    pub fn is_only_read(&self, page: PageNumber) -> bool {
        let found = self.pages.get(page);
        found.state == State::Clean && found.pins == 0
    }

    /// Learns which pages the application has written, if the memory notes writes.
    pub fn note_writes(&mut self, host: &mut dyn Host) {
        self.find_written(host);
    }

    /// Handles the position of the log of `peer`.
    pub(crate) fn handle_inspected_position(
        &mut self,
        host: &mut dyn Host,
        peer: Rank,
        position: u64,
    ) {
        self.inspection.outstanding = self.inspection.outstanding.saturating_sub(1);
        let entries = self.layout.log_entries();
        let first = self.clock.of(peer).max(position.saturating_sub(ENTRIES_MAX.min(entries)));
        let end_of_log = (first | (entries - 1)).saturating_add(1);
        for (position, end) in [(first, position.min(end_of_log)), (end_of_log, position)] {
            if position < end {
                self.inspection.outstanding += 1;
                let count = end - position;
                let address = self.layout.log_entry(position);
                let pending = Pending::InspectLog { position, count };
                self.read_control(host, peer, address, 8 * count as u32, pending);
            }
        }
    }

    /// Handles entries of the log of `peer`.
    pub(crate) fn handle_inspected_log(
        &mut self,
        peer: Rank,
        position: u64,
        count: u64,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        self.inspection.outstanding = self.inspection.outstanding.saturating_sub(1);
        for (index, position) in (position..position.saturating_add(count)).enumerate() {
            let entry = word_at(bytes, index).ok_or(Fault::Completion)?;
            match decode_log_entry(&self.layout, position, entry) {
                LogEntry::Written(page) => {
                    self.inspection.writers.insert(page, peer);
                }
                LogEntry::Overwritten => {}
                LogEntry::Malformed => return Err(Fault::LogEntry { position, entry }),
            }
        }
        Ok(())
    }
}
