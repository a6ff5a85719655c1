//! The connection manager: ids, which represent connections as sockets do, and event channels. Its
//! functions are those of `librdmacm`, over any wire that has a [`ConnectionManager`].
//!
//! To connect, two ids exchange a request and an answer (`message.rs`). With their contents each id
//! connects its queue pair, as programs do that exchange queue pair numbers themselves.
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
