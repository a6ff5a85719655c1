//! Polls the links and sleeps on them, for the thread on watch.

use std::io;
use std::sync::atomic::Ordering;

use delivery::Instant;

use crate::cell::Drive;
use crate::runtime::Shared;
use crate::sleep::{Others, Slept, processor_ns, sleep_precisely_once};
use crate::waits::Looking;

impl Shared {
    /// Sleeps on the links and drives the engine, until `ready` returns a value or `deadline`
    /// passes. The caller has just driven the engine and is on watch. If frames have arrived since
    /// then, they end the first sleep at once.
    ///
    /// Checks before the first sleep. Another thread may have woken this thread before this thread
    /// was on watch, and that wake-up does not end a sleep on the links.
    pub(crate) fn watch_until<R>(
        &self,
        deadline: Instant,
        ready: &mut impl FnMut() -> Option<R>,
    ) -> Option<R> {
        if let Some(result) = ready() {
            return Some(result);
        }
        let mut looking = Looking::default();
        let mut outcome = Drive::Drove;
        while self.host.clock.now() < deadline {
            match outcome {
                Drive::Drove if self.spins_on_watch() => std::hint::spin_loop(),
                Drive::Drove => {
                    let slept = self.sleep_on_links(Some(deadline));
                    self.on_slept(&mut looking, slept);
                }
                Drive::HandedOver => self.make_way(),
                Drive::Exhausted => {}
            }
            outcome = self.look(&mut looking).0;
            if let Some(result) = ready() {
                return Some(result);
            }
        }
        None
    }

    /// Flushes pending acknowledgements and sleeps until a link has frames or room, a timer
    /// expires, another thread wakes this thread, or `deadline` passes. Only the thread on watch
    /// may call this, right after it drove the engine.
    pub(crate) fn sleep_on_links(&self, deadline: Option<Instant>) -> Slept {
        // Whatever ends the sleep, including an error, the caller drives the engine again.
        self.sleep_on_links_beside(deadline, &mut Others::none()).unwrap_or(Slept::Come)
    }

    /// Sleeps like [`Shared::sleep_on_links`], but the sleep also ends when one of `others` is
    /// ready.
    ///
    /// # Errors
    /// Returns the errors of `ppoll`.
    pub(crate) fn sleep_on_links_beside(
        &self,
        deadline: Option<Instant>,
        others: &mut Others<'_>,
    ) -> io::Result<Slept> {
        let interval_ns = self.interval_ns();
        let is_moderated = interval_ns.is_some();
        let was_moderated = self.host.is_moderated.swap(is_moderated, Ordering::Relaxed);
        if !(is_moderated && was_moderated) {
            self.host.is_parting.store(true, Ordering::Relaxed);
            let (outcome, worked) = self.drive_all();
            // The event for which this thread waits may have occurred in this turn. No other thread
            // would wake this thread for it.
            if outcome != Drive::Drove || worked && deadline.is_some() {
                return Ok(Slept::Not);
            }
        }
        let own = deadline.unwrap_or(Instant::NEVER);
        let due = Instant(self.host.turn_due.load(Ordering::Relaxed));
        let interval_ends = interval_ns.map(|ns| self.host.clock.now().after_ns(ns));
        let until = due.min(own).min(interval_ends.unwrap_or(Instant::NEVER));
        self.host.armed_until.store(until.0.max(1), Ordering::SeqCst);
        // Other threads may have left the engine before they could see `armed_until`, and did not
        // wake this thread. After this call, this thread sees the values of `is_unfinished` and
        // `turn_due` that those threads stored.
        self.cell.pass();
        let must_turn = self.host.must_look.swap(false, Ordering::Relaxed)
            | self.host.is_unfinished.swap(false, Ordering::SeqCst)
            || self.host.turn_due.load(Ordering::Relaxed) < until.0
            || self.is_stopping.load(Ordering::SeqCst);
        let mut slept = Ok(Slept::Not);
        if !must_turn {
            // Do not measure sleeps with a deadline: they belong to threads of the application,
            // whose sleeps end imprecisely. Read the processor time only if the last sleep ended by
            // its timeout. The reading is a system call, and it is of no use if frames end the
            // sleep.
            let is_measured = until != Instant::NEVER
                && deadline.is_none()
                && !is_moderated
                && self.host.timers_end_sleeps.load(Ordering::Relaxed);
            let spent_ns = is_measured.then(processor_ns);
            let sleeper = &self.host.sleeper;
            slept = if is_moderated {
                let limit_ns = until.since_ns(self.host.clock.now());
                sleep_precisely_once(|| sleeper.sleep_without_links(limit_ns, others))
            } else {
                sleeper.sleep_until(&self.host.clock, until, others)
            };
            self.outside.count_wakeup();
            if is_moderated {
                self.on_interval(until);
            }
            let has_come = !matches!(slept, Ok(Slept::Limit));
            self.host.timers_end_sleeps.store(!has_come, Ordering::Relaxed);
            if let Some(spent_ns) = spent_ns.filter(|_| !has_come) {
                self.on_wake_up(until, spent_ns);
            }
        }
        self.host.armed_until.store(0, Ordering::SeqCst);
        slept
    }
}
