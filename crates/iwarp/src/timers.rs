//! The time: deadlines of the set-up, and nudges.

use delivery::Instant;

use crate::event::{EndCause, SetupFault};
use crate::stream::{Phase, Role, Stream};

impl Stream {
    /// Returns when [`Stream::handle_timeout`] is to be called. Call it after each other call.
    pub fn next_timeout(&self) -> Option<Instant> {
        let hold = self.hold_until.filter(|_| !self.is_peer_heard);
        self.deadline.into_iter().chain(hold).chain(self.nudges.due).min()
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
        if self.hold_until.is_some_and(|until| until <= now) {
            (self.hold_until, self.is_hold_over) = (None, true);
        }
    }

    /// Begins to wait for the first FPDU of the initiator, because TCP has taken the reply.
    ///
    /// Without peer-to-peer mode, nothing makes the initiator send first, and the programs of both
    /// ends may wait for the responder to speak (`ucmatose` over siw does). So the wait ends. It
    /// must end late enough that the initiator has handled the reply: siw resets a connection in
    /// which bytes follow the reply at once.
    pub(crate) fn begin_hold(&mut self, now: Instant) {
        if !self.terms.peer_to_peer {
            self.hold_until = Some(now.after_ns(HOLD_NS));
        }
    }
}

/// Time for which a responder without peer-to-peer mode lets its initiator speak first, in
/// nanoseconds.
const HOLD_NS: u64 = 100_000_000;
