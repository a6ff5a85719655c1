//! One of two links dies in mid-transfer and comes back: how long that is felt, and whether every
//! byte arrives.
//!
//! The source streams writes into slots of the target's memory, each filled with a pattern of its
//! number and position. The target is notified of each write, checks every word of it, and tells
//! the source which slots it may use again.

pub mod results;
pub mod run;
pub(crate) mod stream;

pub use stream::{Series, Side, StreamSpec};
