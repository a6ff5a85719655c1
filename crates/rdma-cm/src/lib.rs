//! The connection manager, with the functions of `librdmacm`. It has ids, which represent
//! connections like sockets do, and event channels, which report what happens to ids. The
//! connection manager works with any transport that implements [`ConnectionManager`].
//!
//! To connect, two ids exchange a request and an answer (`message.rs`). The two messages contain
//! everything that each id needs to connect its queue pair. Programs that use verbs without ids
//! exchange the same data themselves.
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
pub use manager::{
    Caller, ConnectionManager, Exchange, Listener, Listening, ManagedDevice, ManagerAttributes,
    Over, Padding, PortClaim, Route,
};
pub use message::{End, REJECTED_BY_PROGRAM, Refusal, Reply, Request, fuzz_message};
pub use port_space::{PortSpace, PrivateDataLimits};
pub use ports::ManagedHost;
