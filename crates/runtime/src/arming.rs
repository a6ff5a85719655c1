//! Decides when a report to the application makes the descriptor readable.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State of the endpoint's descriptor: whether it is armed (becomes readable at the next report to
/// the application), and the number of such reports. A *report* is a completion, a finished
/// operation or receive with a slot, or an event of a connection.
///
/// While the descriptor is not armed, a turn with work needs only one load of this state.
#[derive(Debug)]
pub(crate) struct Arming {
    /// Number of reports to the application so far. Only the thread inside the engine writes this
    /// value.
    reports: AtomicU64,
    /// Value of `reports` when a thread last tried to arm.
    seen: AtomicU64,
    is_armed: AtomicBool,
}

impl Arming {
    pub(crate) fn new() -> Self {
        Self {
            reports: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
        }
    }

    /// Sets the number of reports to the application. Only the thread inside the engine calls this.
    #[inline]
    pub(crate) fn publish(&self, reports: u64) {
        self.reports.store(reports, Ordering::Relaxed);
    }

    /// Returns the number of reports to the application.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Acquire)
    }

    /// Arms the descriptor. Returns false, without arming, if there was a report to the application
    /// since a thread last tried to arm the descriptor. `pass` must call
    /// [`ProgressCell::pass`](crate::cell::ProgressCell::pass). A thread that leaves the engine
    /// after that call sees that the descriptor is armed. If a thread left before that call, the
    /// calling thread sees the reports of that thread.
    pub(crate) fn arm(&self, pass: impl FnOnce()) -> bool {
        let reports = self.reports();
        if self.seen.swap(reports, Ordering::AcqRel) != reports {
            return false;
        }
        self.is_armed.store(true, Ordering::SeqCst);
        if !cfg!(loom_mutation) {
            pass();
        }
        if self.reports() == reports {
            return true;
        }
        // There was a report after the first load of `reports`, so disarm and return false. But if
        // the descriptor is not armed any more, the thread that made the report has disarmed it
        // and makes it readable. In this case, return true.
        !self.is_armed.swap(false, Ordering::AcqRel)
    }

    /// If the descriptor is armed and there is a new report, disarms it and returns true. The
    /// caller must then make the descriptor readable. The calling thread must have left the engine.
    #[inline]
    pub(crate) fn fires(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
            && self.has_news()
            && self.is_armed.swap(false, Ordering::AcqRel)
    }

    /// Disarms the descriptor. Returns whether it was armed.
    pub(crate) fn disarm(&self) -> bool {
        self.is_armed.swap(false, Ordering::AcqRel)
    }

    #[cold]
    fn has_news(&self) -> bool {
        self.reports() != self.seen.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_armed_descriptor_fires_once_for_later_reports() {
        let arming = Arming::new();
        assert!(!arming.fires(), "no thread has armed");
        assert!(arming.arm(|| ()));
        assert!(!arming.fires(), "nothing was told");
        arming.publish(1);
        assert!(arming.fires());
        assert!(!arming.fires());
    }

    #[test]
    fn arming_fails_after_an_unread_report() {
        let arming = Arming::new();
        arming.publish(1);
        assert!(!arming.arm(|| ()));
        assert!(arming.arm(|| ()));
        arming.publish(2);
        assert!(arming.fires());
        assert!(!arming.arm(|| ()));
    }

    #[test]
    fn a_report_during_arming_disarms_or_fires() {
        let arming = Arming::new();
        assert!(!arming.arm(|| arming.publish(1)), "seen by who arms");
        assert!(!arming.fires());
        let arming = Arming::new();
        let reports = || {
            arming.publish(1);
            assert!(arming.fires());
        };
        assert!(arming.arm(reports), "seen by who tells: the descriptor is readable");
    }
}

/// Model: one thread arms while another reports, in every interleaving. To run it:
///
/// ```sh
/// ./x loom
/// ```
///
/// With `--cfg loom_mutation` in RUSTFLAGS, the thread that arms does not call `pass`, and the test
/// must fail.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;
    use crate::cell::ProgressCell;

    /// One thread takes the steps of [`crate::Runtime::arm`], the other makes turns.
    #[test]
    fn a_thread_that_armed_without_a_report_finds_the_descriptor_readable() {
        loom::model(|| {
            let shared = Arc::new((ProgressCell::new(0_u64), Arming::new(), AtomicUsize::new(0)));
            let other = Arc::clone(&shared);
            let teller = thread::spawn(move || {
                let (cell, arming, fired) = &*other;
                for _ in 0..2 {
                    cell.drive(1, |reports| {
                        *reports += 1;
                        arming.publish(*reports);
                        false
                    });
                    fired.fetch_add(usize::from(arming.fires()), Ordering::Relaxed);
                }
            });
            let (cell, arming, fired) = &*shared;
            let mut armed = false;
            for _ in 0..2 {
                armed = armed || arming.arm(|| cell.pass());
            }
            let seen = arming.seen.load(Ordering::Relaxed);
            teller.join().expect("no panic");
            let (reports, fired) =
                (arming.reports.load(Ordering::Relaxed), fired.load(Ordering::Relaxed));
            assert!(!armed || reports == seen || fired == 1, "it sleeps: seen {seen} of {reports}");
        });
    }
}
