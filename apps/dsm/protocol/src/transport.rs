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
    /// The frame of a page of this node, by the mapping that the application does not see.
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
    /// Reads `length` bytes.
    Read { area: Area, address: u64, length: u32, landing: Landing },
    /// Writes bytes. With a notification, the peer gets [`Arrival::Notified`] with its value once
    /// the bytes are placed.
    Write { area: Area, address: u64, bytes: &'a [u8], notification: Option<u32> },
    /// Writes scattered words of the page at `address`; [`crate::diff::encode`] has the format.
    Patch { area: Area, address: u64, payload: &'a [u8] },
    /// Adds to the 8 bytes at `address`, and returns what was there.
    FetchAdd { area: Area, address: u64, operand: u64 },
    /// Replaces the 8 bytes at `address` if they are `expected`, and returns what was there.
    CompareSwap { area: Area, address: u64, expected: u64, desired: u64 },
    /// Replaces the 8 bytes at `address`, and returns what was there.
    Swap { area: Area, address: u64, operand: u64 },
    /// Sends a message, which the peer's machine handles as [`Arrival::Received`].
    Send { message: &'a [u8] },
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
    Completed { ticket: Ticket, answer: Answer },
    /// A write of `from` with this notification is placed.
    Notified { from: Rank, notification: u32 },
    /// The buffer has a message of `from`.
    Received { from: Rank },
    /// The connection to `rank` has ended.
    Died { rank: Rank, reason: Reason },
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
