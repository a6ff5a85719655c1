//! Which thread holds a lock: a node asks all other nodes, because the manager of a lock knows only
//! the last node of the queue.
//!
//! A node asks before it refuses a release, so that the error names the holder. Its driver asks if a
//! thread has waited for a lock for long ([`Node::search`]).

use crate::error::{Fault, Misuse};
use crate::identity::{Rank, ThreadNumber};
use crate::memory::Host;
use crate::message::Message;
use crate::node::Node;
use crate::node_state::{Search, Stage};

impl Node {
    /// Begins to search the thread that holds a lock or a reader-writer lock, among all nodes. Does
    /// nothing while an earlier search is not complete.
    pub fn search(&mut self, host: &mut dyn Host, lock: u64) {
        if self.failure().is_none() && self.search.is_none_or(|search| search.is_complete()) {
            let mut search = self.ask_for_holder(host, SEARCHER, lock);
            search.holder = self.holder(lock).map(|thread| (self.me(), thread));
            self.search = Some(search);
        }
    }

    /// Returns whether nodes have not answered yet that the last search has asked.
    pub fn is_searching(&self) -> bool {
        self.search.is_some_and(|search| !search.is_complete())
    }

    /// Returns the node and its thread that held the lock, as far as nodes have answered the last
    /// search. A reader-writer lock may have further holders.
    pub fn found_holder(&self) -> Option<(Rank, ThreadNumber)> {
        self.search?.holder
    }

    /// Asks the other nodes which of their threads holds a lock that `thread` releases. Its call ends
    /// with the misuse once all have answered.
    pub(crate) fn refuse_release(&mut self, host: &mut dyn Host, thread: ThreadNumber, lock: u64) {
        let search = self.ask_for_holder(host, thread, lock);
        self.set_stage(thread, Stage::Locate(search));
    }

    //= dsm-protocol.md: lock.5
    fn ask_for_holder(&mut self, host: &mut dyn Host, thread: ThreadNumber, lock: u64) -> Search {
        for peer in self.peers() {
            self.send(host, peer, &Message::Locate { lock, thread });
        }
        Search::new(lock, self.peers())
    }

    //= dsm-protocol.md: lock.5
    /// Handles the answer of a node.
    pub(crate) fn handle_holder(
        &mut self,
        from: Rank,
        lock: u64,
        thread: ThreadNumber,
        holder: Option<ThreadNumber>,
    ) -> Result<(), Fault> {
        if thread == SEARCHER {
            let search = self.search.as_mut().ok_or(Fault::Answer(lock))?;
            return search.handle_answer(from, lock, holder);
        }
        let Some(Stage::Locate(search)) = self.threads.get_mut(thread.index()) else {
            return Err(Fault::Answer(lock));
        };
        search.handle_answer(from, lock, holder)?;
        if search.is_complete() {
            let misuse = match search.holder {
                Some((rank, ThreadNumber(thread))) => Misuse::HeldElsewhere { lock, rank, thread },
                None => Misuse::NotHeld(lock),
            };
            self.finish(thread, Err(misuse.into()));
        }
        Ok(())
    }

    /// Returns the thread of this node that holds a lock of either kind.
    pub(crate) fn holder(&self, lock: u64) -> Option<ThreadNumber> {
        self.locks.holder(lock).or_else(|| self.read_write_holder(lock))
    }

    /// Returns a thread of this node that holds a reader-writer lock. Threads that wait for the lock
    /// are in the same map.
    pub(crate) fn read_write_holder(&self, lock: u64) -> Option<ThreadNumber> {
        let threads = (lock, ThreadNumber(0))..=(lock, ThreadNumber(u16::MAX));
        let mut threads = self.read_write_locks.range(threads).map(|((_, thread), _)| *thread);
        threads.find(|thread| !self.is_asking(*thread, lock))
    }
}

/// Stands for the driver in questions. No thread has this number, because a node has at most 65535.
const SEARCHER: ThreadNumber = ThreadNumber(u16::MAX);
