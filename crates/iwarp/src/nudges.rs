//! The nudges of an initiator whose peer is silent.

use delivery::Instant;

/// How long an initiator waits before each nudge, in nanoseconds: 5 ms before the first one, and
/// 315 ms in all. A nudge that siw sleeps through as well costs the wait for the next one, so no wait
/// is long.
const NUDGE_NS: [u64; 10] = [
    5_000_000, 10_000_000, 20_000_000, 40_000_000, 40_000_000, 40_000_000, 40_000_000, 40_000_000,
    40_000_000, 40_000_000,
];

/// The nudges of an initiator. The passive side of Linux siw can sleep through the first FPDU, until
/// another TCP segment arrives. It overlooks each segment that arrives between its reply and the next
/// step of the thread that accepts (`siw_accept`), which comes late on a busy host. So an initiator
/// that has received nothing since it sent its first FPDU sends an empty Write after a while, up to
/// ten times.
///
/// A peer that has sent something does not sleep through later segments. But it may have slept
/// through an earlier one, unless it had to receive an FPDU before it could send. So another FPDU
/// follows its first bytes, at the latest when the next nudge is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nudges {
    /// When the next nudge is due.
    pub(crate) due: Option<Instant>,
    /// Number of nudges that have become due.
    pub(crate) owed: u32,
    /// Whether an FPDU was sent.
    is_armed: bool,
    /// Whether the peer has sent something after the first FPDU.
    is_heard: bool,
    /// Whether no more nudges become due.
    has_ended: bool,
}

impl Nudges {
    pub(crate) const fn new() -> Self {
        Self { due: None, owed: 0, is_armed: false, is_heard: false, has_ended: false }
    }

    /// Takes note that TCP has taken an FPDU.
    pub(crate) fn on_fpdu_sent(&mut self, now: Instant) {
        if self.has_ended {
            return;
        }
        if self.is_heard {
            self.stop();
        } else if !self.is_armed {
            self.is_armed = true;
            self.due = NUDGE_NS.first().map(|ns| now.after_ns(*ns));
        }
    }

    /// Takes note that bytes of the peer have arrived. `answers` is whether the peer can have sent
    /// them only after it had received an FPDU.
    pub(crate) fn on_heard(&mut self, answers: bool) {
        if self.has_ended || self.is_heard {
            return;
        }
        if answers || !self.is_armed {
            return self.stop();
        }
        self.is_heard = true;
        if self.due.is_none() {
            self.owed += 1;
        }
    }

    /// Takes note that the stream needs no more nudges, for example because it has ended.
    pub(crate) fn stop(&mut self) {
        (self.due, self.owed, self.has_ended) = (None, 0, true);
    }

    /// Handles the time.
    pub(crate) fn on_time(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.owed += 1;
            let next = NUDGE_NS.get(self.owed as usize).filter(|_| !self.is_heard);
            self.due = next.map(|ns| now.after_ns(*ns));
        }
    }
}
