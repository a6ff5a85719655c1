//! Deadlines of the set-up, and the nudges of an initiator whose peer is silent.

use delivery::Instant;

use crate::event::{EndCause, SetupFault};
use crate::stream::{Phase, Role, Stream};

/// How long a responder waits for the request, in nanoseconds. Linux siw has the same limit.
pub(crate) const REQUEST_NS: u64 = 5_000_000_000;

/// How long an initiator waits for the reply, in nanoseconds. Linux siw has the same limit.
pub(crate) const REPLY_NS: u64 = 10_000_000_000;

/// How long an initiator waits before each nudge, in nanoseconds.
const NUDGE_NS: [u64; 4] = [5_000_000, 20_000_000, 80_000_000, 320_000_000];

/// The nudges of an initiator. The passive side of Linux siw can sleep through the first FPDU, until
/// another TCP segment arrives. So an initiator that has received nothing since it sent its first
/// FPDU sends an empty Write after a while, up to four times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nudges {
    /// When the next nudge is due.
    due: Option<Instant>,
    /// Number of nudges that have become due.
    pub(crate) owed: u32,
    is_armed: bool,
}

impl Nudges {
    pub(crate) const fn new() -> Self {
        Self { due: None, owed: 0, is_armed: false }
    }

    /// Takes note that TCP has taken an FPDU.
    pub(crate) fn on_fpdu_sent(&mut self, now: Instant) {
        if !self.is_armed {
            self.is_armed = true;
            self.due = NUDGE_NS.first().map(|ns| now.after_ns(*ns));
        }
    }

    /// Takes note that bytes of the peer have arrived, or that the stream has ended.
    pub(crate) fn stop(&mut self) {
        self.is_armed = true;
        self.due = None;
        self.owed = 0;
    }

    fn on_time(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.owed += 1;
            self.due = NUDGE_NS.get(self.owed as usize).map(|ns| now.after_ns(*ns));
        }
    }
}

impl Stream {
    /// Returns when [`Stream::handle_timeout`] is to be called. Call it after each other call.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.nudges.due).min()
    }

    /// Handles the time. Does nothing before the time of [`Stream::next_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            let fault = match self.role {
                Role::Initiator => SetupFault::NoReply,
                Role::Responder => SetupFault::NoRequest,
            };
            self.end(EndCause::Setup(fault));
        }
        if self.phase == Phase::Operating {
            self.nudges.on_time(now);
        }
    }
}
