//! Moves TCP connections of programs to the edge transport, the RDMA protocol of this project, if
//! both ends run this library. All other connections stay on TCP.
//!
//! The kernel connects and accepts as before. The side that connected opens a *rendezvous socket*
//! for a short time: a UDP socket at the address and port number of its TCP connection. The side
//! that accepted sends an *offer* to the rendezvous socket: a datagram that names its endpoint. The
//! two processes then establish one edge connection, the *link group* (a term of SMC-R, RFC 7609).
//! All streams between the two processes share the link group. Each side writes a *switch marker*
//! of 16 random bytes into the TCP connection. Every byte that a side sends after its marker goes
//! over the link group.
//!
//! A connection is *undecided* at first. Later the connection is *moved* to the edge or *left* to
//! TCP. A moved connection can return to TCP, which is called *going home*.
//! `docs/sockets-protocol.md` specifies the bytes on the wire.
//!
//! * [`Sockets`]: the endpoint of a process, with its groups, rendezvous sockets and offers.
//! * [`Connection`]: the calls of a program on one descriptor.
//! * [`DescriptorTable`]: the program's descriptors. The C ABI implements it.
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
