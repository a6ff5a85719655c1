//! What the machine asks of the network: operations to the registered memory of peers, and their
//! results.

use crate::identity::{PageNumber, Rank};

/// A registered area of a node's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Area {
    /// The frames of the pages, by byte from the beginning of the region. The application of the
    /// node sees the same frames.
    Frames,
    /// The master copies of the pages, by byte from the beginning of the region. Only the race
    /// detector needs them ([`crate::Config::races`]).
    Masters,
    /// The control memory, whose tables [`crate::Layout`] describes.
    Control,
}

/// The place of the bytes that a read returns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Landing {
    /// The frames of pages of this node, from this page on, by the mapping that the application does
    /// not see.
    Frame(PageNumber),
    /// The master copy of a page of this node.
    Master(PageNumber),
    /// The buffer that [`Transport::poll`] fills.
    Buffer,
}

/// An operation of the edge protocol. Addresses count bytes within the area.
///
/// Unfenced operations may be performed in any order, and their words one by one. Sends of a node
/// to a peer arrive in the order in which they were posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation<'a> {
    /// Reads bytes.
    Read {
        /// The area.
        area: Area,
        /// The first byte.
        address: u64,
        /// The number of bytes.
        length: u32,
        /// Where the bytes go.
        landing: Landing,
    },
    /// Writes bytes.
    Write {
        /// The area.
        area: Area,
        /// The first byte.
        address: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// The value of [`Arrival::Notified`] that the peer gets once the bytes are placed.
        notification: Option<u32>,
    },
    /// Writes scattered words of a page.
    Patch {
        /// The area.
        area: Area,
        /// The first byte of the page.
        address: u64,
        /// The words; [`crate::diff::encode`] has the format.
        payload: &'a [u8],
    },
    /// Adds to 8 bytes, and returns what was there.
    FetchAdd {
        /// The area.
        area: Area,
        /// The first byte, a multiple of 8.
        address: u64,
        /// What is added.
        operand: u64,
    },
    /// Replaces 8 bytes if they have the expected value, and returns what was there.
    CompareSwap {
        /// The area.
        area: Area,
        /// The first byte, a multiple of 8.
        address: u64,
        /// The expected value.
        expected: u64,
        /// The new value.
        desired: u64,
    },
    /// Replaces 8 bytes, and returns what was there.
    Swap {
        /// The area.
        area: Area,
        /// The first byte, a multiple of 8.
        address: u64,
        /// The new value.
        operand: u64,
    },
    /// Sends a message, which the peer's machine handles as [`Arrival::Received`].
    Send {
        /// The message.
        message: &'a [u8],
    },
}

/// The number of an operation, by which its completion names it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ticket(pub u64);

/// The result of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The target has placed or delivered everything. The bytes of a read have landed.
    Done,
    /// What an atomic found.
    Value(u64),
    /// The target has refused the operation.
    Refused,
}

/// Why a connection to a peer ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The peer closed the connection: its process ended.
    Closed,
    /// The peer acknowledges nothing any more.
    Silent,
    /// The peer's machine ended with a failure of its own.
    Failed,
}

/// What [`Transport::poll`] reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// An operation has completed. The buffer has the bytes of a read that landed there.
    Completed {
        /// The operation.
        ticket: Ticket,
        /// The result.
        answer: Answer,
    },
    /// A write of `from` with this notification is placed.
    Notified {
        /// The writer.
        from: Rank,
        /// The value.
        notification: u32,
    },
    /// The buffer has a message of `from`.
    Received {
        /// The sender.
        from: Rank,
    },
    /// The connection to `rank` has ended.
    Died {
        /// The peer.
        rank: Rank,
        /// How it was noticed.
        reason: Reason,
    },
}

/// The connections of a node to all nodes. A node addresses itself as it does a peer.
pub trait Transport {
    /// Begins an operation at `peer`. With `fence`, the peer performs the operation after all
    /// earlier ones of this node. Copies the bytes that the operation borrows.
    fn post(&mut self, peer: Rank, ticket: Ticket, fence: bool, operation: Operation<'_>);

    /// Returns the next arrival. Replaces the contents of `buffer` if the arrival has bytes.
    fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<Arrival>;

    /// Returns the time in nanoseconds.
    fn now(&self) -> u64;
}
