//! Verbs: devices, protection domains, memory regions, completion queues, queue pairs, and the rules they keep,
//! over any wire that is a [`Provider`].
//!
//! What programs see of it through a C ABI is made elsewhere; here is what the calls do.

mod attributes;
mod error;
mod provider;
mod queue_pair;
mod settings;
pub mod sysfs;
mod work_request;

pub use attributes::{
    AddressVectorAttributes, DeviceAttributes, Gid, GidEntry, PortAttributes, PortState,
    QueuePairAttributes, QueuePairLimits, QueuePairState, QueuePairType,
};
pub use error::Error;
pub use provider::{CompletionOwner, Ending, Provider, Wire};
pub use queue_pair::QueuePair;
pub use settings::{Faults, LogLevel, Settings};
pub use work_request::{
    AddressVector, CompletionOpcode, ReceiveRequest, ScatterGather, SendFlags, SendOpcode,
    SendRequest, WorkCompletion,
};
