//! Refusals: reports of a peer's host that an address has no listener. This file counts the
//! refusals, and decides when to ask at that address.

use delivery::Instant;
use wire_edge::PacketNumber;

/// A report of the network about frames that did not arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Report {
    /// Frames of more than this number of bytes do not pass.
    TooBig(u16),
    /// The address has no listener.
    Refused,
}

/// Counts consecutive refusals by the address of a link.
///
/// One refusal is no proof, because a process may be about to restart, and because a report may
/// arrive late. Therefore, after a refusal, this end asks the address [`QUESTIONS`] times. A
/// refusal counts only if it concerns a packet that was sent after the latest question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusals {
    count: u8,
    /// The packet number of the last question; `None` if this end has sent no question after the
    /// last refusal.
    asked: Option<u32>,
    ask_at: Instant,
}

delivery::pack_fields!(Refusals { count, asked, ask_at });

impl Refusals {
    /// The state of a new link, and of a link on which a frame has arrived.
    pub(crate) const NONE: Self = Self { count: 0, asked: None, ask_at: Instant::NEVER };

    /// Handles the refusal of a packet. Returns whether the link fails because of this refusal.
    pub(crate) fn on_refused(&mut self, now: Instant, packet: u32) -> bool {
        let counts = match self.asked {
            Some(asked) => packet.wrapping_sub(asked) < 1 << 31,
            None => self.count == 0,
        };
        if !counts || self.have_failed() {
            return false;
        }
        self.count += 1;
        self.asked = None;
        if self.have_failed() {
            return true;
        }
        self.ask_at = if self.count == 1 { now } else { now.after_ns(QUESTION_NS) };
        false
    }

    /// Records that another connection has found that nothing listens at the address.
    pub(crate) const fn fail(&mut self) {
        *self = Self { count: QUESTIONS + 1, ..Self::NONE };
    }

    /// Returns whether to ask the refusing address now. The question will be the packet with number
    /// `next`.
    pub(crate) fn poll_question(&mut self, now: Instant, next: PacketNumber) -> bool {
        if now < self.ask_at {
            return false;
        }
        self.ask_at = Instant::NEVER;
        self.asked = Some(next.truncate());
        true
    }

    /// Returns when to call [`Refusals::poll_question`].
    pub(crate) const fn deadline(&self) -> Instant {
        self.ask_at
    }

    /// Returns whether the address has no listener.
    pub(crate) const fn have_failed(&self) -> bool {
        self.count > QUESTIONS
    }
}

/// Number of refused questions after which the peer counts as gone.
const QUESTIONS: u8 = 3;
/// Pause before the second question and before the third, in nanoseconds. A running peer answers
/// within this time.
pub(crate) const QUESTION_NS: u64 = 20_000_000;
