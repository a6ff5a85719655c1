//! What the thread on watch does between its last work and its sleep.

use std::sync::atomic::Ordering;
use std::thread;

use delivery::Instant;

use crate::cell::Drive;
use crate::lookout::WakeUp;
use crate::runtime::{Shared, lock};
use crate::sleep::processor_ns;

/// What a thread on watch remembers between two looks that found nothing.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    /// It has just slept.
    has_slept: bool,
    looks: u32,
}

impl Looking {
    pub(crate) fn after_sleep() -> Self {
        Self { has_slept: true, ..Self::default() }
    }
}

impl Shared {
    /// Whether the thread on watch looks on for work rather than sleep, when a look has found nothing. Not while the
    /// application polls, which this one would only keep out: not if it did so in the last `quiet_ns`.
    pub(crate) fn looks_on(&self, quiet_ns: u64) -> bool {
        let now = self.host.clock.now();
        let idle_ns = now.since_ns(Instant(self.host.worked_at.load(Ordering::Relaxed)));
        let is_worth_it = if self.polling.is_adaptive() {
            lock(&self.lookout).looks_on(now, idle_ns)
        } else {
            idle_ns < self.spin_ns
        };
        is_worth_it && self.polled_ns_ago() >= quiet_ns && !self.is_stopping.load(Ordering::Relaxed)
    }

    /// One look more, on behalf of a thread that is on watch and serves peers. Tells, too, whether it found work.
    pub(crate) fn look(&self, looking: &mut Looking) -> (Drive, bool) {
        let worked_at = Instant(self.host.worked_at.load(Ordering::Relaxed));
        let (outcome, worked) = self.drive_all();
        if worked && self.polling.is_adaptive() {
            let now = Instant(self.host.worked_at.load(Ordering::Relaxed));
            lock(&self.lookout).on_work(now.since_ns(worked_at), looking.has_slept);
        }
        if worked {
            *looking = Looking::default();
        }
        (outcome, worked)
    }

    /// Lets a moment pass between two looks, and offers the processor to others after the first, second, fourth and so
    /// on: where they keep it, processors are short.
    pub(crate) fn pause(&self, looking: &mut Looking) {
        looking.looks = looking.looks.saturating_add(1);
        if !self.polling.is_adaptive() || !looking.looks.is_power_of_two() {
            std::hint::spin_loop();
            return;
        }
        let since = self.host.clock.now();
        thread::yield_now();
        let now = self.host.clock.now();
        lock(&self.lookout).on_offer(now, now.since_ns(since));
    }

    /// A thread whose sleeps end precisely slept until a time. It had spent so much processor time before.
    pub(crate) fn on_wake_up(&self, until: Instant, spent_before_ns: u64) {
        let now = self.host.clock.now();
        let spent_ns = processor_ns().saturating_sub(spent_before_ns);
        let wake_up = WakeUp { late_ns: now.since_ns(until), spent_ns };
        lock(&self.lookout).on_wake_up(now, wake_up);
        self.waits.on_wake_up(now, wake_up);
    }
}
