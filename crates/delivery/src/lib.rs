//! The edge protocol below the operations. Does no I/O, reads no clock, holds no socket.
#![forbid(unsafe_code)]

mod ack_block;
mod boundary;
mod congestion;
mod coverage;
mod loss;
mod protocol_error;
mod rate;
mod rtt;
mod send_config;
mod send_half;
mod sent_packets;
mod time;

pub use ack_block::{AckBlock, AckDelay};

pub use boundary::{LinkCaps, LinkEvent, LinkId, RxFrame, TxBatch, TxFrame};
pub use congestion::{
    AckSample, Aimd, CongestionAlgorithm, CongestionController, Delay, Fixed, LossSample,
};
pub use protocol_error::ProtocolError;
pub use send_config::SendConfig;
pub use send_half::{AckSummary, Fate, SendHalf, TimeoutOutcome};
pub use sent_packets::{PacketClass, SentPool};
pub use time::Instant;
