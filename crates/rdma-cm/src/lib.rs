//! The connection manager. It has ids, which represent connections like sockets do, and event
//! channels. The functions are those of `librdmacm`. They work on any wire that implements
//! [`ConnectionManager`].
//!
//! To connect, two ids exchange a request and an answer (`message.rs`). The request and the answer
//! contain all that each id needs to connect its queue pair. Programs without ids exchange these
//! data themselves.
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
pub use ports::ManagedHost;
