//! Frames that the kernel refuses for want of room, and will refuse for ever.

use delivery::Instant;

/// How long an interface has taken no frame for want of room (`ENOBUFS`).
///
/// The queue of the interface may be full: a frame is then offered again. But the kernel reports the same for a frame
/// that the interface dropped for another reason: one that is too large for the far end of a virtual cable, for
/// instance. Offered again and again, it would keep everything behind it from being sent for good. So a frame that is
/// refused for long counts as lost, as frames are, and its sender finds out.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// When the link last received.
    now: Instant,
    /// The first refusal since a frame was taken.
    since: Option<Instant>,
}

impl Refusals {
    /// Sets the time, before frames are sent.
    #[inline]
    pub(crate) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// A frame was taken.
    #[inline]
    pub(crate) const fn on_taken(&mut self) {
        self.since = None;
    }

    /// A frame was refused. Returns whether that has gone on for so long that the frame counts as
    /// lost; one frame at a time.
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

/// For how long a full queue may take nothing, in nanoseconds: four frames of 1500 bytes at 10 Mb/s
/// take it. A slower interface loses a frame now and then, as one whose queue is full does.
pub(crate) const REFUSED_NS_MAX: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_lost_when_nothing_was_taken_for_long() {
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
