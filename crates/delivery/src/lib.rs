//! The edge protocol below the operations: frames are packets here, and what they carry does not matter.
//! Does no I/O, reads no clock, holds no socket.
//!
//! * What a link of a connection has received and must acknowledge: [`ReceivedPackets`].
//! * What is in flight on it, what of that is lost, and how much more may be sent: [`SendHalf`], with
//!   a [`CongestionController`].
//! * Whether it works: [`PathState`]; how large frames may be: [`PathMtu`].
//! * Which link the next bytes go to: [`SchedulerState`].
//! * What stands between an endpoint and strangers: [`CookieJar`] and [`RateLimiter`].
//! * What passes between the engine and the drivers of its links: [`TxBatch`], [`RxFrame`], [`LinkEvent`].
//!
//! `docs/sender.md` is the text to most of it.
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
