//! Discrete-event simulation in virtual time. The crate contains the event queue, models of links,
//! hosts that run the real engine, and the torture harness, which searches for violated guarantees.
//!
//! A run depends only on its seed. The simulation uses no thread, clock, socket or global random
//! generator. The same seed therefore repeats a run exactly. To check this, compare the hashes of
//! the two traces.
#![forbid(unsafe_code)]

mod channel;
mod costs;
mod edge_host;
pub mod host;
mod network;
mod oracle;
pub mod polling;
mod queue;
mod random;
pub mod scenario;
pub mod scheduler;
pub mod stream;
pub mod torture;
mod trace;
mod watch;
mod world;

#[cfg(test)]
mod network_tests;

pub use channel::{Corruption, Faults, Jitter, LinkModel, Overhead, TokenBucket};
pub use costs::EdgeCosts;
pub use edge_host::EdgeHost;
pub use network::{
    Arrival, Counters, Network, NetworkEvent, Notice, PortId, Segment, SendOutcome, port_address,
};
pub use oracle::Violation;
pub use queue::EventQueue;
pub use random::Random;
pub use trace::{Kind, Trace, TraceEntry, digest};
pub use world::{Application, Livelock, World, WorldEvent};
