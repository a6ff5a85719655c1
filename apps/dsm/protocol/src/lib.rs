//! The protocol machine of one node of the distributed shared memory: home-based lazy release
//! consistency. The crate does no I/O, reads no clock and owns no memory that programs share:
//! messages, time and memory are behind traits. `docs/dsm-protocol.md` is the normative text.
//!
//! A driver connects a [`Node`] with a [`Host`]: the node's memory ([`Pages`], [`Control`]) and its
//! connections ([`Transport`]).
//!
//! * It passes calls of threads, such as page faults and locks, to [`Node::start`].
//! * It calls [`Node::poll`] when the transport has arrivals.
//! * After each of these calls, it takes results with [`Node::take`]. A call without a result
//!   blocks its thread.
//!
//! The application of a node is never interrupted: pages are read, patched and claimed by one-sided
//! operations, and messages are handled by the thread that calls [`Node::poll`].
//!
//! Nothing that a peer writes or sends panics. A peer that breaks the protocol, or dies, ends the
//! node with a [`Failure`] that names it.
#![forbid(unsafe_code)]

// The random programs of the tests use the public names, because another crate runs them too.
#[cfg(test)]
extern crate self as dsm_protocol;

mod acquires;
mod barrier_state;
mod barriers;
mod call;
mod calls;
mod clock;
mod config;
pub mod diff;
mod error;
mod faults;
mod holders;
mod identity;
mod inspection;
mod intervals;
mod layout;
mod lock_table;
mod managers;
mod memory;
mod message;
mod moves;
mod node;
mod node_state;
mod objects;
mod page_table;
mod planted;
mod profile;
mod races;
mod read_ahead;
mod runs;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub use call::{AtomicOperation, Call};
pub use config::{Coherence, Config};
pub use error::{CallError, Failure, Fault, Misuse};
pub use identity::{NODES_MAX, PAGES_MAX, PageNumber, Rank, ThreadNumber};
pub use inspection::{Awaited, Obstacle};
pub use layout::Layout;
pub use memory::{Access, Control, Host, Pages};
pub use node::Node;
pub use node_state::Counters;
pub use profile::PageCosts;
pub use races::Race;
pub use transport::{Answer, Area, Arrival, Landing, Operation, Reason, Ticket, Transport};
