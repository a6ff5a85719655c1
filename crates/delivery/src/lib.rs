//! The edge protocol below the operations. Does no I/O, reads no clock, holds no socket.
#![forbid(unsafe_code)]

mod ack_block;
mod boundary;
mod cookie;
mod counters;
mod path_mtu;
mod path_state;
mod received;
mod scheduler;
mod time;
mod timer_queue;

pub use ack_block::{AckBlock, AckDelay};
pub use boundary::{LinkCaps, LinkEvent, LinkId, RxFrame, TxBatch, TxFrame};
pub use cookie::{COOKIE_BYTES, COOKIE_LIFETIME_NS, CookieError, CookieJar, RateLimiter};
pub use counters::{EndpointCounters, LinkCounters};
pub use path_mtu::PathMtu;
pub use path_state::{LinkState, PathChange, PathState, SILENCE_BUDGET_NS, SilenceBudget};
pub use received::{
    AckPolicy, Arrival, Eliciting, JUMP_PACKETS_MAX, REPLAY_WINDOW_PACKETS, ReceivedPackets,
};
pub use scheduler::{
    BURST_NS, Decision, LINKS_MAX, LinkView, REMEASURE_NS, SchedulerState, SchedulingPolicy, pick,
};
pub use time::Instant;
pub use timer_queue::TimerQueue;
