//! Parts of a node's state: what its threads wait for, and what its operations belong to.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::call::AtomicOperation;
use crate::clock::Clock;
use crate::diff::Bitmap;
use crate::error::{CallError, Fault};
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::layout::BLOCK_PAGES;
use crate::message::Question;

/// What a thread is doing.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// Runs the program.
    Idle,
    /// Waits for a page.
    Fault,
    /// Waits for a lock.
    Lock,
    /// Waits for the end of an interval.
    Flush,
    /// Waits at the barrier of all threads.
    Barrier,
    /// Waits for the answer of an object.
    Object(u64),
    /// Waits to learn which node holds the lock that the thread releases.
    Locate(Search),
    /// Waits to be queued at a condition variable.
    Queue { condition: u64, lock: u64 },
    /// Waits for a signal.
    Sleep { condition: u64, lock: u64 },
    /// Waits to learn the home of the page of an atomic.
    Home { address: u64, operation: AtomicOperation },
    /// Waits for the result of an atomic.
    Atomic,
    /// Waits to learn the homes of so many pages.
    Claim(u32),
    /// Waits for the pages of a pin. `next` is the first that is not pinned yet.
    Pin { next: PageNumber, end: PageNumber, is_written: bool },
    /// Waits for the positions of the other logs.
    Positions { clock: Clock, outstanding: usize },
    /// Waits until notices are applied.
    Apply,
    /// The call has ended; the thread has not taken the result yet.
    Done(Result<u64, CallError>),
}

/// What a thread needs of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// To read it.
    Read,
    /// To write it.
    Write,
    /// To know its home.
    Home,
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FetchStep {
    /// The directory is asked for the home.
    Lookup,
    /// The directories are asked for the homes of a part of a prefetched range.
    Part(u64),
    /// This node claims the page.
    Claim,
    /// Waits until the node's own patches of the page are placed.
    Blocked,
    /// Reads the page.
    Read,
}

/// A page that is being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) step: FetchStep,
    pub(crate) waiters: Vec<(ThreadNumber, Need)>,
    /// Acquires that wait because the page is pinned.
    pub(crate) acquires: Vec<u64>,
    /// Whether a notice has arrived since the read began, so that the bytes are of no use.
    pub(crate) is_stale: bool,
    /// Whether the page is pinned and stays accessible meanwhile.
    pub(crate) is_refresh: bool,
}

impl Fetch {
    /// Returns a fetch of a page that is absent.
    pub(crate) const fn new(step: FetchStep, waiters: Vec<(ThreadNumber, Need)>) -> Self {
        Self { step, waiters, acquires: Vec::new(), is_stale: false, is_refresh: false }
    }
}

/// Pages of a run, at most: 128 KiB. A block of the table of sharers consists of whole runs.
///
/// A node does not serve its peers while it maps a run. With half or twice as many pages, two nodes that
/// read 32 MiB from each other take 1.1 times as long.
const RUN_PAGES: u32 = 32;

const _: () = assert!(BLOCK_PAGES.is_multiple_of(RUN_PAGES));

/// Consecutive pages with one home, which one read fetches. They are in one block of the table of
/// sharers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) home: Rank,
    pub(crate) first: PageNumber,
    pub(crate) count: u32,
    /// Whether the home must learn that this node reads the pages.
    pub(crate) must_announce: bool,
}

impl Run {
    /// Returns the run of one page.
    pub(crate) const fn new(first: PageNumber, home: Rank, must_announce: bool) -> Self {
        Self { home, first, count: 1, must_announce }
    }

    /// Returns whether the run may also have the page.
    pub(crate) const fn takes(&self, page: PageNumber, home: Rank) -> bool {
        let is_next = page.0 == self.first.0 + self.count && !page.0.is_multiple_of(RUN_PAGES);
        is_next && home.0 == self.home.0
    }
}

/// A part of a range that is prefetched, while its directory entries are being read.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) pages: Range<u32>,
    /// The directory entries of the pages, as far as they have arrived.
    pub(crate) entries: Vec<u64>,
    /// Reads of directory entries that are outstanding.
    pub(crate) outstanding: usize,
}

/// What follows the end of an interval.
#[derive(Debug)]
pub(crate) enum AfterInterval {
    /// The thread goes on.
    Finish(ThreadNumber),
    /// An object is asked, with the clock. The thread goes on if it does not wait for the answer.
    Ask { thread: ThreadNumber, object: u64, question: Question },
    /// A lock is passed on.
    HandOver(u64),
    /// The node enters the barrier.
    EnterBarrier,
    /// Notices are applied.
    Acquire { clock: Clock, then: AfterAcquire },
}

/// What follows when notices are applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterAcquire {
    /// The thread goes on.
    Finish(ThreadNumber),
    /// All nodes have entered the barrier.
    EndBarrier,
}

/// Notices that are being read and applied.
#[derive(Debug)]
pub(crate) struct Acquire {
    pub(crate) clock: Clock,
    /// Reads of logs, or fetches of pinned pages, that are outstanding.
    pub(crate) outstanding: usize,
    pub(crate) pages: Vec<PageNumber>,
    /// Whether all pages become invalid.
    pub(crate) is_everything: bool,
    /// Whether the pages are invalid already.
    pub(crate) is_applied: bool,
    pub(crate) then: AfterAcquire,
}

/// Pages that other nodes have published, and whose notices this node has not applied.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    /// Reads that are outstanding.
    pub(crate) outstanding: usize,
    /// One node that has changed each page.
    pub(crate) writers: BTreeMap<PageNumber, Rank>,
}

/// A question to all other nodes, which of their threads holds a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    lock: u64,
    /// Bit `r` is set until rank `r` has answered.
    asked: u64,
    pub(crate) holder: Option<(Rank, ThreadNumber)>,
}

impl Search {
    /// Returns the question to these nodes, which none has answered yet.
    pub(crate) fn new(lock: u64, nodes: impl Iterator<Item = Rank>) -> Self {
        Self { lock, asked: nodes.fold(0, |asked, node| asked | bit(node)), holder: None }
    }

    /// Returns whether all nodes have answered.
    pub(crate) const fn is_complete(&self) -> bool {
        self.asked == 0
    }

    /// Handles the answer of a node, which must be the first one to this question.
    pub(crate) fn handle_answer(
        &mut self,
        from: Rank,
        lock: u64,
        holder: Option<ThreadNumber>,
    ) -> Result<(), Fault> {
        if self.lock != lock || self.asked & bit(from) == 0 {
            return Err(Fault::Answer(lock));
        }
        self.asked &= !bit(from);
        self.holder = self.holder.or(holder.map(|thread| (from, thread)));
        Ok(())
    }
}

/// The present interval, and the one that is ending.
#[derive(Debug, Default)]
pub(crate) struct Interval {
    /// Pages that became dirty, some of them perhaps clean again.
    pub(crate) dirty: Vec<PageNumber>,
    /// Pages that need a notice, although they are not dirty any more.
    pub(crate) touched: Vec<PageNumber>,
    /// Pages in the state [`crate::page_table::State::Open`].
    pub(crate) open: Vec<PageNumber>,
    /// Patches in flight, of this interval and the ending one.
    pub(crate) patches: usize,
    /// The notices of the ending interval, while its patches are in flight.
    pub(crate) closing: Option<Vec<PageNumber>>,
    /// What follows the ending interval.
    pub(crate) current: Vec<AfterInterval>,
    /// What follows the interval after that.
    pub(crate) next: Vec<AfterInterval>,
    /// What the race detectors get.
    pub(crate) changes: Vec<(PageNumber, Bitmap)>,
}

/// What an operation belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// Nothing waits for it.
    None,
    /// A peer's header.
    Header,
    /// A directory entry for a fetch.
    Lookup(PageNumber),
    /// A claim for a fetch.
    Claim(PageNumber),
    /// `count` directory entries from the one of `first` on, of which no fetch is in need yet.
    Homes { first: PageNumber, count: u32 },
    /// `count` directory entries from the one of `first` on, for a part of a range.
    Part { part: u64, first: PageNumber, count: u32 },
    /// The bytes of `count` pages from `first` on, which are being fetched.
    Fetch { first: PageNumber, count: u32 },
    /// Changes of a page.
    Patch(PageNumber),
    /// Log entries from `position` on.
    Log { acquire: u64, position: u64, count: u64 },
    /// The position of a log, which must not be before the one that a clock names.
    Published { acquire: u64, position: u64 },
    /// The position of a log, for the call of a thread.
    Position(ThreadNumber),
    /// The position of a log, for an inspection.
    InspectPosition,
    /// Log entries from `position` on, for an inspection.
    InspectLog { position: u64, count: u64 },
    /// An atomic of a thread.
    Atomic { thread: ThreadNumber, page: PageNumber },
    /// A table of moves.
    Moves,
    /// The directory entry of a page that moves to this node.
    MoveLookup(PageNumber),
    /// The bytes of a page that moves to this node; its old home.
    MoveRead(PageNumber, Rank),
    /// The new directory entry; the former value that it must have.
    MoveClaim(PageNumber, u64),
}

/// Counters of a node, since its start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Counters {
    /// Faults of reads and writes.
    pub faults: u64,
    /// Pages that were read from their homes.
    pub fetches: u64,
    /// Of these, pages that no thread waited for.
    pub prefetches: u64,
    /// Fetches that were repeated because a notice overtook them.
    pub stale_fetches: u64,
    /// Patches and writes of changes.
    pub patches: u64,
    /// Intervals that published notices.
    pub intervals: u64,
    /// Notices that were published.
    pub notices: u64,
    /// Pages that became invalid.
    pub invalidations: u64,
    /// Acquires that found a log overwritten and so invalidated all pages.
    pub overruns: u64,
    /// Locks that were passed to other nodes.
    pub handovers: u64,
    /// Homes that moved to this node.
    pub moves: u64,
}

/// Returns the bit of a rank. A rank outside of the limit has none.
fn bit(rank: Rank) -> u64 {
    1_u64.checked_shl(rank.0.into()).unwrap_or(0)
}
