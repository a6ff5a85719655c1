//! TCP connections of programs, moved to the edge transport where both ends have it, and left alone where not.
//!
//! The kernel connects and accepts as ever. The side that connected opens a *rendezvous socket*, a UDP socket at its own address and
//! port, for a moment; the side that accepted sends an *offer* there. Both then have an edge connection between their
//! processes, the *link group*, which all streams between them share (the term is that of SMC-R, RFC 7609), and each
//! writes a *switch marker* into the TCP connection, behind which its bytes come by the group. A connection is *undecided* at
//! first, and in the end *moved* or *left* to TCP; one that has moved can go *home* to TCP. What goes over the wire is in `docs/sockets-protocol.md`.
//!
//! * [`Sockets`]: what a process has of it: an endpoint, its groups, rendezvous sockets and offers.
//! * [`Connection`]: what the calls of a program on one descriptor do.
//! * [`DescriptorTable`]: what stands between the two and the program's descriptors, the C ABI.
#![forbid(unsafe_code)]

mod atomics;
mod calls;
pub mod counters;
pub mod handlers;
mod lock;
pub mod log;
mod migration;
mod networks;
mod paying;
mod peers;
mod reasons;
mod rendezvous;
pub mod rules;
mod settings;
pub mod statistics;
mod transport;
mod wire;
#[cfg(test)]
mod world;

pub use calls::connection::{Connection, Queued, Route};
pub use calls::descriptor_table::DescriptorTable;
pub use calls::expected::Hiding;
pub use calls::flags::{ReceiveFlags, SendFlags};
pub use calls::waiting::Waited;
#[doc(hidden)]
pub use migration::homing::fuzz_record;
#[doc(hidden)]
pub use migration::offer::fuzz_offer;
pub use paying::{Direction, Moving, MovingError, Trial};
pub use peers::{Peers, Service};
pub use reasons::Reason;
pub use rendezvous::process::{Sockets, StartError};
pub use rules::Role;
#[doc(hidden)]
pub use rules::fuzz_rules;
pub use settings::{Choice, Settings, SettingsError, variables};
pub use transport::readiness::Readiness;
#[doc(hidden)]
pub use wire::fuzz_message;
