//! Tests of both halves of a connection together, with real registered memory. A simulated network
//! between the halves loses, duplicates and reorders frames. Retransmitted frames can have other
//! sizes.

mod everything;
mod exactly_once;
mod lies;
mod limits;
mod local_work;
mod messages;
mod not_ready;
mod ordering;
mod pair;
mod patches;
mod questions;
mod queue_pair;
mod queues;
mod receive_lists;
mod requester;
mod script;
mod shared;
mod source_lists;
mod uses;
mod windows;
