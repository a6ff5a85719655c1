//! Tests of both halves of a connection together, with real registered memory. The network in
//! between loses, duplicates and reorders frames, and cuts them into other fragments.

mod everything;
mod exactly_once;
mod lies;
mod limits;
mod local_work;
mod messages;
mod not_ready;
mod ordering;
mod pair;
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
