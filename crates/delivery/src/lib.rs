//! The edge protocol below the operations. Does no I/O, reads no clock, holds no socket.
#![forbid(unsafe_code)]

mod boundary;
mod time;

pub use boundary::{LinkCaps, LinkEvent, LinkId, RxFrame, TxBatch, TxFrame};
pub use time::Instant;
