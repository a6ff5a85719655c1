//! Both halves of a connection against each other, over a network that loses, repeats, reorders and
//! cuts frames again, in real registered memory.

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
