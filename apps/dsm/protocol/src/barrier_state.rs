//! The state of the barrier of all threads.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Clock;
use crate::identity::{PageNumber, Rank, ThreadNumber};

/// How far the barrier is on this node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Threads of this node are still running.
    #[default]
    Gathering,
    /// All threads of this node wait; prefetches are in flight.
    Draining,
    /// The interval is ending.
    Flushing,
    /// The rounds are in progress.
    Rounds,
    /// Notices are applied.
    Applying,
    /// Tables of moves are read, and pages moved.
    Moving,
    /// The rounds after the moves are in progress.
    RoundsOfMoves,
}

/// What a node writes to another one in a round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Slot {
    pub(crate) from: Rank,
    pub(crate) address: u64,
    pub(crate) count: u64,
    /// Bit `r` is set if rank `r` asks for moves.
    pub(crate) movers: u64,
    pub(crate) clock: Clock,
}

/// A home that moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Move {
    pub(crate) page: PageNumber,
    pub(crate) to: Rank,
}

/// The barrier of all threads. At most one is in progress, as all threads take part.
#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) phase: Phase,
    /// The number of the present or next series of rounds, equal on all nodes. A barrier at which
    /// homes move has two series.
    pub(crate) sequence: u64,
    pub(crate) waiting: Vec<ThreadNumber>,
    pub(crate) address: u64,
    pub(crate) count: u64,
    pub(crate) round: u32,
    /// Whether the slot of the present round is written.
    pub(crate) is_sent: bool,
    /// What this node and the nodes before it have published.
    pub(crate) clock: Clock,
    pub(crate) movers: u64,
    /// Slots that have arrived, by series and round.
    pub(crate) slots: BTreeMap<(u64, u32), Slot>,
    /// Moves that this node will ask for.
    pub(crate) requested: Vec<Move>,
    /// Moves that all nodes ask for at the present barrier.
    pub(crate) asked: BTreeMap<Rank, Vec<Move>>,
    /// The moves that happen: for each page the one that the lowest rank asks for.
    pub(crate) agreed: BTreeMap<PageNumber, Rank>,
    /// Tables and pages that are outstanding.
    pub(crate) outstanding: usize,
    pub(crate) history: History,
}

impl Barrier {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            phase: Phase::Gathering,
            sequence: 0,
            waiting: Vec::new(),
            address: 0,
            count: 0,
            round: 0,
            is_sent: false,
            clock: Clock::zero(nodes),
            movers: 0,
            slots: BTreeMap::new(),
            requested: Vec::new(),
            asked: BTreeMap::new(),
            agreed: BTreeMap::new(),
            outstanding: 0,
            history: History::default(),
        }
    }
}

/// Barriers after which a page is prefetched without a fault in between.
const PREFETCHES_MAX: u8 = 4;

/// What happened to pages between barriers.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Pages that this node writes and whose homes are elsewhere, with the number of barriers in a
    /// row at which no other node had written them.
    alone: BTreeMap<PageNumber, u8>,
    /// Pages that this node has published since the last barrier.
    own: BTreeSet<PageNumber>,
    /// Pages that other nodes have published since the last barrier.
    others: BTreeSet<PageNumber>,
    /// Pages that threads have faulted on, with the number of prefetches that follow.
    faulted: BTreeMap<PageNumber, u8>,
}

impl History {
    /// Remembers that this node has published changes of a page whose home is elsewhere.
    pub(crate) fn wrote(&mut self, page: PageNumber) {
        self.own.insert(page);
    }

    /// Remembers that another node has published changes of a page.
    pub(crate) fn was_written(&mut self, page: PageNumber) {
        self.others.insert(page);
    }

    /// Remembers that a thread has faulted on a page.
    pub(crate) fn faulted(&mut self, page: PageNumber) {
        self.faulted.insert(page, PREFETCHES_MAX);
    }

    //= dsm-protocol.md: move.1
    /// Handles the end of a barrier. Returns the pages that this node alone has written between
    /// each two of the last `barriers` barriers.
    pub(crate) fn end_barrier(&mut self, barriers: u8) -> Vec<PageNumber> {
        let own = std::mem::take(&mut self.own);
        let others = std::mem::take(&mut self.others);
        self.alone.retain(|page, _| !others.contains(page));
        let mut found = Vec::new();
        for page in own.difference(&others) {
            let count = self.alone.entry(*page).or_default();
            *count = count.saturating_add(1);
            if barriers > 0 && *count >= barriers {
                *count = 0;
                found.push(*page);
            }
        }
        found
    }

    //= dsm-protocol.md: fetch.5
    /// Returns the pages among `absent` that a thread will probably fault on.
    pub(crate) fn predict(&mut self, is_absent: impl Fn(PageNumber) -> bool) -> Vec<PageNumber> {
        let mut found = Vec::new();
        self.faulted.retain(|page, left| {
            if is_absent(*page) {
                found.push(*page);
                *left -= 1;
            }
            *left > 0
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNumber = PageNumber(3);

    //= dsm-protocol.md: move.1
    #[test]
    fn a_page_that_one_node_alone_writes_is_found_after_some_barriers() {
        let mut history = History::default();
        for barrier in 0..6 {
            history.wrote(PAGE);
            let found = history.end_barrier(3);
            assert_eq!(!found.is_empty(), barrier % 3 == 2);
        }
        history.wrote(PAGE);
        history.was_written(PAGE);
        assert_eq!(history.end_barrier(1), []);
    }

    //= dsm-protocol.md: fetch.5
    #[test]
    fn a_page_is_prefetched_some_times_after_a_fault() {
        let mut history = History::default();
        history.faulted(PAGE);
        assert_eq!(history.predict(|_| false), []);
        for _ in 0..PREFETCHES_MAX {
            assert_eq!(history.predict(|_| true), [PAGE]);
        }
        assert_eq!(history.predict(|_| true), []);
    }
}
