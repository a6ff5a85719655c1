//! Errors: the caller's, and those that end the node.

use thiserror::Error;

use crate::identity::{PageNumber, Rank};
use crate::transport::Reason;

/// A fault of the caller. Nothing has happened, and the node goes on.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Misuse {
    /// The settings are out of range.
    #[error("the settings of the node are out of range")]
    Settings,
    /// The node has no such thread.
    #[error("the node has no thread {0}")]
    NoThread(u16),
    /// A thread began a call before its last one had ended.
    #[error("thread {0} is inside of a call")]
    Busy(u16),
    /// The region has no such page.
    #[error("the region has no {0}")]
    NoPage(PageNumber),
    /// No thread of any node holds the lock.
    #[error(
        "no thread of any rank holds the lock at {0:#x}: it was never locked, or was unlocked twice"
    )]
    NotHeld(u64),
    /// A thread of another node holds the lock.
    #[error("thread {thread} of {rank} holds the lock at {lock:#x}, not the calling thread")]
    HeldElsewhere {
        /// The lock.
        lock: u64,
        /// The node that holds it.
        rank: Rank,
        /// The thread of that node that holds it.
        thread: u16,
    },
    /// Another thread of the node holds the lock.
    #[error("thread {thread} of this rank holds the lock at {lock:#x}, not the calling thread")]
    HeldBy {
        /// The lock.
        lock: u64,
        /// The thread that holds it.
        thread: u16,
    },
    /// The thread holds the lock already.
    #[error("the thread holds the lock at {0:#x} already")]
    HeldAlready(u64),
    /// The object at the address is of another kind.
    #[error("the object at {0:#x} is in use as another kind of object")]
    OtherKind(u64),
    /// Threads wait at the barrier for another number of threads.
    #[error("threads wait at the barrier {0:#x} for another number of threads")]
    OtherCount(u64),
    /// A barrier for no thread, or for more threads than there are.
    #[error("a barrier of {count} threads: there are {threads}")]
    Count {
        /// The number of threads of the barrier.
        count: u32,
        /// The number of threads of all nodes.
        threads: u32,
    },
    /// An atomic needs 8 bytes at a multiple of 8.
    #[error("the address {0:#x} of an atomic is not a multiple of 8")]
    Unaligned(u64),
    /// A page is not pinned.
    #[error("{0} is not pinned")]
    NotPinned(PageNumber),
    /// A page has 65535 pins.
    #[error("{0} is pinned 65535 times")]
    TooManyPins(PageNumber),
    /// The node has no such peer.
    #[error("there is no {0}")]
    NoRank(Rank),
}

/// What a peer did that the protocol does not permit.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// A message is malformed.
    #[error("a malformed message")]
    Message,
    /// A notification is malformed.
    #[error("the malformed notification {0:#x}")]
    Notification(u32),
    /// The peer's control memory is of other settings or another version.
    #[error("the control memory begins with {0:#x}: another version, or other settings")]
    Header(u64),
    /// A clock is ahead of the log of this node.
    #[error("a clock names notices that this node has not published")]
    Clock,
    /// A log entry is not what belongs to its position.
    #[error("the log entry {entry:#x} at position {position}")]
    LogEntry {
        /// Position in the peer's log.
        position: u64,
        /// What was there.
        entry: u64,
    },
    /// A directory entry names no node, or not the node that it must.
    #[error("the directory entry {entry:#x} of {page}")]
    Directory {
        /// The page of the entry.
        page: PageNumber,
        /// What was there.
        entry: u64,
    },
    /// A table of moves is malformed.
    #[error("the entry {0:#x} of the table of moves")]
    Move(u64),
    /// A message about a lock does not fit the state of the lock.
    #[error("a message about the lock {0:#x} that does not fit its state")]
    Lock(u64),
    /// An answer to a question that no thread has asked.
    #[error("an answer of the object {0:#x} that no thread waits for")]
    Answer(u64),
    /// A release of an object that is not held.
    #[error("a release of the object {0:#x}, which is not held")]
    Release(u64),
    /// Nodes wait at different barriers, or for different numbers of threads.
    #[error("the barrier {address:#x} of {count} threads, at which this node does not wait")]
    Barrier {
        /// The peer's barrier.
        address: u64,
        /// The number of threads for which the peer waits.
        count: u64,
    },
    /// The peer's memory refuses an operation.
    #[error("an operation was refused")]
    Refused,
    /// An operation completed in a way that does not belong to its kind.
    #[error("a completion that does not fit its operation")]
    Completion,
}

/// What ended the node. Every thread gets it, in its present call and all later ones.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Failure {
    /// A peer has died.
    #[error("{rank} has died: {reason:?}")]
    Died {
        /// The peer.
        rank: Rank,
        /// How it was noticed.
        reason: Reason,
    },
    /// A thread of this node misused an object, in a call that had ended when the manager objected.
    #[error("a thread of this node misused an object: {0}")]
    Misuse(Misuse),
    /// A peer has broken the protocol.
    #[error("{rank} broke the protocol: {fault}")]
    Protocol {
        /// The peer.
        rank: Rank,
        /// What it did.
        fault: Fault,
    },
}

/// Why a thread's call failed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum CallError {
    /// The caller's fault.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The node has ended.
    #[error(transparent)]
    Failure(#[from] Failure),
}
