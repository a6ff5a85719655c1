//! Guides, one for each subject. The tests run all code in the guides.
//!
//! 1. [Getting started](getting_started)
//! 2. [One-sided or messages, and when](one_sided_or_messages)
//! 3. [Passive servers](passive_servers)
//! 4. [Sharing among threads](threads)
//! 5. [Fences and order](fences), torn accesses, and locks
//! 6. [Failures, and what survives them](failures)
//! 7. [Tuning](tuning)
//!
//! Complete programs are in `examples/`: a key-value store, a lock, a work queue, two links with a
//! failover, an echo service on tokio, polled completions, and links of every kind.

#[cfg(doc)]
use crate::{
    Buffer, BufferError, Closed, Completion, CompletionQueue, ConnectOptions, Connection, Endpoint,
    EndpointBuilder, EngineConfig, Error, MemoryRegion, OperationError, OperationHandle,
    OperationOptions, Order, Polling, PostError, ProtectionDomain, RangeError, Records,
    RemoteRegion, Rights, WaitError, Word,
};

#[doc = include_str!("guide/getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("guide/one_sided_or_messages.md")]
pub mod one_sided_or_messages {}

#[doc = include_str!("guide/passive_servers.md")]
pub mod passive_servers {}

#[doc = include_str!("guide/threads.md")]
pub mod threads {}

#[doc = include_str!("guide/fences.md")]
pub mod fences {}

#[doc = include_str!("guide/failures.md")]
pub mod failures {}

#[doc = include_str!("guide/tuning.md")]
pub mod tuning {}
