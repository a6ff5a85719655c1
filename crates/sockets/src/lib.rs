//! TCP connections of programs, moved to the edge transport where both ends have it, and left alone where not.
//!
//! The kernel connects and accepts as ever. The side that connected opens a *door*, a UDP socket at its own address and
//! port, for a moment; the side that accepted sends an *offer* there. Both then have an edge connection between their
//! processes, the *link group*, which all streams between them share (the term is that of SMC-R, RFC 7609), and each
//! writes a *seal* into the TCP connection, behind which its bytes come by the group. A connection is *undecided* at
//! first, and in the end *moved* or *left* to TCP; one that has moved can go *home* to TCP. What goes over the wire is in `docs/sockets-protocol.md`.
//!
//! * [`Sockets`]: what a process has of it: an endpoint, its groups, doors and offers.
//! * [`Connection`]: what the calls of a program on one descriptor do.
//! * [`Place`]: what stands between the two and the program's descriptors, the C ABI.
#![forbid(unsafe_code)]

mod arena;
mod attempts;
mod bell;
mod calls;
mod connection;
pub mod counters;
mod desk;
mod endpoint;
mod files;
mod flags;
mod group;
mod groups;
pub mod handlers;
mod held;
mod hidden;
mod homing;
mod hooks;
mod keeper;
pub mod log;
mod migration;
mod networks;
mod offer;
mod paying;
mod peeking;
mod peers;
mod place;
mod process;
mod readiness;
mod reasons;
mod receiving;
mod relay;
mod ring;
pub mod rules;
mod seal;
mod sending;
mod settings;
mod shares;
pub mod statistics;
mod stream;
mod table;
mod tcp_part;
mod turns;
mod undecided;
mod waiting;
mod wire;
#[cfg(test)]
mod world;

pub use connection::{Connection, Queued, Route};
pub use flags::{ReceiveFlags, SendFlags};
pub use hidden::Hiding;
#[doc(hidden)]
pub use homing::fuzz_record;
#[doc(hidden)]
pub use offer::fuzz_offer;
pub use paying::{Direction, Moving, MovingError, Trial};
pub use peers::{Peers, Service};
pub use place::Place;
pub use process::{Sockets, StartError};
pub use readiness::Readiness;
pub use reasons::Reason;
pub use rules::Role;
#[doc(hidden)]
pub use rules::fuzz_rules;
pub use settings::{Choice, Settings, SettingsError, variables};
pub use waiting::Waited;
#[doc(hidden)]
pub use wire::fuzz_message;
