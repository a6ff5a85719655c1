//! Discrete-event simulation in virtual time: the event core, models of links, hosts that run the
//! real engine, and the torture harness that searches for violated guarantees.
//!
//! A run depends on its seed alone: it uses no thread, clock, socket or global generator. The same
//! seed therefore repeats a run exactly, and the hash of the trace proves it.
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
