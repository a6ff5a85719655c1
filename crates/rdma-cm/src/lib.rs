//! The connection manager: ids, which stand for connections as sockets do, and channels by which programs learn what
//! becomes of them. It is what `librdmacm` offers, over any wire that has a [`ConnectionManager`].
//!
//! What two ids say to each other when they meet is a request and an answer (`message.rs`); with that each connects its
//! queue pair as programs do that exchange numbers by themselves.
#![forbid(unsafe_code)]

mod event;
mod id;
mod manager;
mod message;
mod port_space;
mod ports;
mod status;
#[cfg(test)]
mod tests;

pub use event::{ConnectionDetails, DatagramDetails, Details, Event, EventChannel, EventKind};
pub use id::connect::{AcceptOptions, ConnectOptions};
pub use id::{Id, IdOption, QUEUE_KEY};
pub use manager::{Caller, ConnectionManager, Exchange, Listener, Listening, ManagedDevice, Over};
pub use message::{End, REJECTED_BY_PROGRAM, Refusal, Reply, Request, fuzz_message};
pub use port_space::{PortSpace, PrivateLimits};
pub use ports::Host;
