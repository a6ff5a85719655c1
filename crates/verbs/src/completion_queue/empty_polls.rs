//! Polls that find nothing let others run when processors are short.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many polls in a row have found nothing, and after how many the thread offers its processor to others.
///
/// Programs spin on a queue for whole time slices, while the thread that would fill it waits for a processor. So after
/// some empty polls in a row the thread yields. If somebody else ran meanwhile, which takes longer than coming back at
/// once, processors are short, and it yields again after the next empty poll; else after twice as many as
/// before, up to [`EMPTY_POLLS_MAX`]. Where there is a processor for everybody that costs a system call (half a
/// microsecond) every 64 empty polls.
#[derive(Debug, Default)]
pub(super) struct EmptyPolls {
    in_a_row: AtomicU32,
    /// Yields after 2 to this power.
    patience: Patience,
}

#[derive(Debug)]
struct Patience(AtomicU32);

impl Default for Patience {
    fn default() -> Self {
        Self(AtomicU32::new(EMPTY_POLLS_MAX))
    }
}

impl EmptyPolls {
    #[inline]
    pub(super) fn on_found(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }

    /// A poll has found nothing.
    #[inline]
    pub(super) fn on_empty(&self) {
        if self.is_due() {
            self.yield_now();
        }
    }

    #[inline]
    fn is_due(&self) -> bool {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed) + 1;
        let is_due = in_a_row >= self.patience.0.load(Ordering::Relaxed);
        self.in_a_row.store(if is_due { 0 } else { in_a_row }, Ordering::Relaxed);
        is_due
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "how long a yield took tells whether others ran")]
    fn yield_now(&self) {
        let before = Instant::now();
        thread::yield_now();
        self.on_yielded(before.elapsed());
    }

    fn on_yielded(&self, took: Duration) {
        let patience = self.patience.0.load(Ordering::Relaxed);
        let next = if took >= OTHERS_RAN { 1 } else { (patience * 2).min(EMPTY_POLLS_MAX) };
        self.patience.0.store(next, Ordering::Relaxed);
    }
}

/// Empty polls in a row after which a thread yields although it has a processor of its own: of some 0.5 µs each.
const EMPTY_POLLS_MAX: u32 = 64;

/// A yield that takes as long has let somebody else run: two changes of thread take at least as long, a system call that
/// changes nothing a tenth of it.
const OTHERS_RAN: Duration = Duration::from_micros(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_due(polls: &EmptyPolls) -> u32 {
        let mut count = 1;
        while !polls.is_due() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_thread_with_a_processor_of_its_own_yields_rarely() {
        let polls = EmptyPolls::default();
        assert_eq!(polls_until_due(&polls), EMPTY_POLLS_MAX);
        polls.on_yielded(Duration::ZERO);
        assert_eq!(polls_until_due(&polls), EMPTY_POLLS_MAX);
    }

    #[test]
    fn where_others_run_meanwhile_each_empty_poll_yields_until_they_do_not() {
        let polls = EmptyPolls::default();
        polls.on_yielded(Duration::from_millis(3));
        assert_eq!(polls_until_due(&polls), 1);
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            polls.on_yielded(Duration::ZERO);
            assert_eq!(polls_until_due(&polls), expected);
        }
    }

    #[test]
    fn a_completion_begins_the_count_anew() {
        let polls = EmptyPolls::default();
        for _ in 1..EMPTY_POLLS_MAX {
            assert!(!polls.is_due());
        }
        polls.on_found();
        assert_eq!(polls_until_due(&polls), EMPTY_POLLS_MAX);
    }
}
