//! The nudges of an initiator whose peer is silent.

use delivery::Instant;

/// How long an initiator waits before each nudge, in nanoseconds.
const NUDGE_NS: [u64; 4] = [5_000_000, 20_000_000, 80_000_000, 320_000_000];

/// The nudges of an initiator. The passive side of Linux siw can sleep through the first FPDU, until
/// another TCP segment arrives. So an initiator that has received nothing since it sent its first
/// FPDU sends an empty Write after a while, up to four times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nudges {
    /// When the next nudge is due.
    pub(crate) due: Option<Instant>,
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

    /// Handles the time.
    pub(crate) fn on_time(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.owed += 1;
            self.due = NUDGE_NS.get(self.owed as usize).map(|ns| now.after_ns(*ns));
        }
    }
}
