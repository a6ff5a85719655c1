//! Guides: how to use this crate, a matter each. All code in them is run by the tests.
//!
//! 1. [Getting started](getting_started)
//! 2. [One-sided or messages, and when](one_sided_or_messages)
//! 3. [Passive servers](passive_servers)
//! 4. [Sharing among threads](threads)
//! 5. [Fences and order](fences): what may be torn, locks
//! 6. [Failures, and what survives them](failures)
//! 7. [Tuning](tuning)
//!
//! Whole programs are in `examples/`: a key-value store, a lock, a work queue, two links and a failover, an echo on
//! tokio, completions that are polled, links of every kind.

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
