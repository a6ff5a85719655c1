//! Limits the time for which a link retries a frame that the kernel refuses because the interface
//! has no room.

use delivery::Instant;

/// Measures how long an interface has refused all frames because it has no room (`ENOBUFS`).
///
/// If the queue of the interface is full, the link retries the frame. But the kernel returns the
/// same error if the interface drops a frame for another reason. For example, the frame may be too
/// large for the far end of a virtual cable. If the link retried such a frame for ever, all later
/// frames would be blocked. Therefore, after [`REFUSED_NS_MAX`] of refusals, the link counts the
/// frame as lost. The engine then retransmits the data, perhaps in smaller frames.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Time of the link's last receive call.
    now: Instant,
    /// Time of the first refusal since the interface last accepted a frame.
    since: Option<Instant>,
}

impl Refusals {
    /// Sets the current time, before frames are sent.
    #[inline]
    pub(crate) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Notes that the interface accepted a frame.
    #[inline]
    pub(crate) const fn on_taken(&mut self) {
        self.since = None;
    }

    /// Notes that the interface refused a frame. Returns true if the refusals have lasted too long,
    /// so that the frame counts as lost. After each lost frame, the measurement starts again.
    #[cold]
    pub(crate) fn is_lost(&mut self) -> bool {
        let since = *self.since.get_or_insert(self.now);
        let is_lost = self.now.since_ns(since) >= REFUSED_NS_MAX;
        if is_lost {
            self.since = None;
        }
        is_lost
    }
}

/// Longest time, in nanoseconds, for which the link retries a frame while the interface accepts no
/// frame: the transmission time of four frames of 1500 bytes at 10 Mb/s. On a slower interface with
/// a full queue, the link occasionally counts a frame as lost that it could have sent later.
pub(crate) const REFUSED_NS_MAX: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_lost_after_the_driver_refused_all_frames_for_long() {
        let mut refusals = Refusals::default();
        let mut now = Instant(1_000);
        refusals.set_time(now);
        assert!(!refusals.is_lost());
        now = now.after_ns(REFUSED_NS_MAX - 1);
        refusals.set_time(now);
        assert!(!refusals.is_lost());
        refusals.on_taken();
        assert!(!refusals.is_lost());
        now = now.after_ns(REFUSED_NS_MAX);
        refusals.set_time(now);
        assert!(refusals.is_lost());
        assert!(!refusals.is_lost(), "one at a time");
    }
}
