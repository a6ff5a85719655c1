//! The part of the edge protocol below the operations: it delivers packets and does not interpret
//! their content. The crate does no I/O, reads no clock and holds no socket.
//!
//! * [`ReceivedPackets`]: tracks the packets that a link of a connection has received and must
//!   acknowledge.
//! * [`SendHalf`], with a [`CongestionController`]: tracks the packets in flight on a link,
//!   declares packets lost, and limits the bytes in flight.
//! * [`PathState`]: decides whether a link works. [`PathMtu`]: finds the largest frame that a link
//!   carries.
//! * [`SchedulerState`]: chooses the link for the next bytes.
//! * [`CookieJar`] and [`RateLimiter`]: protect an endpoint against unknown peers.
//! * [`TxBatch`], [`RxFrame`], [`LinkEvent`]: the data that the engine and the drivers of its links
//!   exchange.
//!
//! `docs/sender.md` specifies most of these algorithms.
#![forbid(unsafe_code)]

mod boundary;
mod congestion;
mod cookie;
mod counters;
mod coverage;
mod link_estimate;
mod loss;
mod pack;
mod path_mtu;
mod path_state;
mod protocol_error;
mod rate;
mod received;
mod rtt;
mod scheduler;
mod send_config;
mod send_half;
mod sent_packets;
mod setting;
mod time;
mod timer_queue;

pub use boundary::{
    Evidence, LinkCaps, LinkEvent, LinkId, QUOTED_BYTES, RxFrame, TxBatch, TxFrame,
};
pub use congestion::{
    AckSample, Aimd, CongestionAlgorithm, CongestionController, Delay, Fixed, LossSample,
};
pub use cookie::{COOKIE_BYTES, COOKIE_LIFETIME_NS, CookieError, CookieJar, RateLimiter};
pub use counters::{EndpointCounters, LinkCounters};
pub use link_estimate::LinkEstimate;
pub use pack::{Pack, Packer, Unpacker};
pub use path_mtu::PathMtu;
pub use path_state::{LinkState, PathChange, PathState, SILENCE_BUDGET_NS, SilenceBudget};
pub use protocol_error::ProtocolError;
pub use received::{
    AckPolicy, Arrival, Eliciting, JUMP_PACKETS_MAX, REPLAY_WINDOW_PACKETS, ReceivedPackets,
};
pub use scheduler::{
    LINKS_MAX, LinkView, Next, REMEASURE_NS, SchedulerState, SchedulingPolicy, next,
};
pub use send_config::SendConfig;
pub use send_half::{
    ASK_FRAMES_MAX, AckSummary, BATCH_NS, Fate, QUANTUM_NS, SendHalf, TimeoutOutcome,
};
pub use sent_packets::{PacketClass, SentPool};
pub use setting::SettingError;
pub use time::Instant;
pub use timer_queue::TimerQueue;
