//! The time: deadlines of the set-up, and nudges.

use delivery::Instant;

use crate::event::{EndCause, SetupFault};
use crate::stream::{Phase, Role, Stream};

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
