//! What is known of an address that may have no listener: how often that was found, and when it is asked.

use delivery::Instant;
use wire_edge::PacketNumber;

/// What is reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Report {
    /// Frames of more than this many bytes do not get through.
    TooBig(u16),
    /// The address has no listener.
    Refused,
}

/// How often in succession the address of a link was found to have no listener.
///
/// A process may be about to start again, and a report may be late: what was refused is asked
/// [`QUESTIONS`] times whether it is so, and only a refusal of what was sent since counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusals {
    count: u8,
    /// The number of the last question; `None` while the next one waits.
    asked: Option<u32>,
    /// When the next question is due.
    ask_at: Instant,
}

delivery::pack_fields!(Refusals { count, asked, ask_at });

impl Refusals {
    /// Something was heard on the link, or it is new.
    pub(crate) const NONE: Self = Self { count: 0, asked: None, ask_at: Instant::NEVER };

    /// A packet was refused. Returns whether the link has just failed by that.
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

    /// Another connection has found that the address has no listener.
    pub(crate) const fn fail(&mut self) {
        *self = Self { count: QUESTIONS + 1, ..Self::NONE };
    }

    /// Whether to ask now with the packet of this number.
    pub(crate) fn poll_question(&mut self, now: Instant, next: PacketNumber) -> bool {
        if now < self.ask_at {
            return false;
        }
        self.ask_at = Instant::NEVER;
        self.asked = Some(next.truncate());
        true
    }

    /// When to call [`Refusals::poll_question`].
    pub(crate) const fn deadline(&self) -> Instant {
        self.ask_at
    }

    /// Whether the address has no listener.
    pub(crate) const fn have_failed(&self) -> bool {
        self.count > QUESTIONS
    }
}

/// Questions after which the peer counts as gone, if each was refused.
const QUESTIONS: u8 = 3;
/// Pause before the second and the third question, in nanoseconds: a live peer has answered one in that time.
pub(crate) const QUESTION_NS: u64 = 20_000_000;
