//! How a program waits for completion events: in a call, or on descriptors.

use std::sync::atomic::{AtomicU32, Ordering};

/// Expects that a program waits in a call, because it did so a few arms ago.
///
/// All channels of a context have this in common. A program may have a channel for sends, in which
/// an event is always queued when it asks, beside a channel for receives, in which it waits.
#[derive(Debug, Default)]
pub(crate) struct ExpectedWaits {
    /// Number of times that the program may arm completion queues before it is assumed to wait on
    /// a descriptor.
    arms: AtomicU32,
}

impl ExpectedWaits {
    /// Records that the program waits in a call.
    pub(crate) fn on_wait(&self) {
        self.arms.store(ARMS_PER_WAIT, Ordering::Relaxed);
    }

    /// Records that the program has armed a completion queue. Returns whether the program will
    /// probably wait in a call.
    pub(crate) fn on_armed(&self) -> bool {
        let one_less = |arms: u32| arms.checked_sub(1);
        self.arms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

/// Number of arms for which a wait in a call shows how the program waits. A program with one queue
/// for sends and one for receives arms each of them once per message.
const ARMS_PER_WAIT: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_in_a_call_is_expected_for_four_arms() {
        let waits = ExpectedWaits::default();
        assert!(!waits.on_armed());
        for _ in 0..2 {
            waits.on_wait();
            waits.on_wait();
            assert_eq!([(); 6].map(|()| waits.on_armed()), [true, true, true, true, false, false]);
        }
    }
}
