//! Verbs: devices, protection domains, memory regions, completion queues and queue pairs, with
//! their rules. The transport protocol that carries the work, such as the edge protocol, is called
//! a wire. It implements [`Provider`].
//!
//! The crate `rdma-cm` is the connection manager. `verbs-edge` implements the provider on top of
//! Ethernot's protocol engine. `libibverbs-abi` is the C ABI for programs.
//!
//! Only `registration.rs` has unsafe code.
#![deny(unsafe_code)]

mod access;
mod acknowledged;
mod address_handle;
mod async_event;
mod attributes;
mod capture;
mod completion_channel;
mod completion_queue;
mod device;
mod error;
mod event_queue;
mod expected_waits;
mod log;
mod memory_region;
mod memory_window;
mod protection_domain;
mod provider;
mod queue_pair;
mod registration;
mod registry;
mod services;
mod shared_receive_queue;
pub mod statistics;
pub mod sysfs;
mod transport;
mod uses;
mod work_request;

pub use access::AccessFlags;
pub use acknowledged::Unacknowledged;
pub use address_handle::{AddressHandle, answer_to};
pub use async_event::{AsyncEvent, AsyncEventKind, EventElement};
pub use attributes::{
    AddressVectorAttributes, DeviceAttributes, Gid, GidEntry, OnDemandPaging, PortAttributes,
    PortCounters, PortState, QueuePairAttributes, QueuePairLimits, QueuePairState, Strictness,
    Vendor,
};
pub use capture::SharedCapture;
pub use completion_channel::CompletionChannel;
pub use completion_queue::CompletionQueue;
pub use device::{Context, Device};
pub use error::Error;
pub use event_queue::EventQueue;
pub use link::start_thread;
pub use log::{FailedStarts, Log, LogLevel};
pub use memory_region::{MemoryRegion, Reregistration, first_address};
pub use memory_window::{MemoryWindow, WindowBinding, WindowType, next_key};
pub use protection_domain::ProtectionDomain;
pub use provider::{CompletionOwner, Ending, Provider, WAIT_MAX, Wire};
pub use queue_pair::{
    AttributeMask, Inline, Modification, QueuePair, QueuePairInit, QueuePairQuery, ReceivePosting,
    SendPosting, TakenReceive, TakenSend,
};
pub use registry::Registry;
pub use services::{Operation, Operations, QueuePairType, Services};
pub use shared_receive_queue::{SharedReceiveQuery, SharedReceiveQueue};
pub use transport::{Connector, GidKind, NodeType, Transport};
pub use work::{Arm, CompletionStatus};
pub use work_request::{
    AddressVector, CompletionOpcode, ReceiveRequest, ScatterGather, SendFlags, SendOpcode,
    SendRequest, WorkCompletion,
};
