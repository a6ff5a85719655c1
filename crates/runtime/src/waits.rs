//! For how long threads and tasks look for what they wait for before they sleep.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use delivery::Instant;

use crate::lookout::{Lookout, WakeUp};
use crate::runtime::{Shared, YIELDS, lock};

/// What waits of the application took so far, and hence for how long to look on in the next: by the same rule as
/// [who serves peers](Lookout).
#[derive(Debug)]
pub(crate) struct Waits {
    lookout: Mutex<Lookout>,
    /// What `lookout` says, to be read without the lock.
    limit_ns: AtomicU64,
    /// Processors are short until then, in nanoseconds.
    short_until: AtomicU64,
    /// Threads that look on at the moment.
    looking: AtomicU32,
}

impl Waits {
    /// `cost_ns` is what a sleep is taken to cost until some were measured.
    pub(crate) fn new(cost_ns: u64) -> Self {
        Self {
            lookout: Mutex::new(Lookout::new(cost_ns)),
            limit_ns: AtomicU64::new(cost_ns),
            short_until: AtomicU64::new(0),
            looking: AtomicU32::new(0),
        }
    }

    /// The calling thread looks on for as long as it keeps this.
    pub(crate) fn enter(&self) -> LooksOn<'_> {
        self.looking.fetch_add(1, Ordering::Relaxed);
        LooksOn(&self.looking)
    }

    /// Whether one of the threads that look on would do.
    fn are_several_looking(&self) -> bool {
        self.looking.load(Ordering::Relaxed) > 1
    }

    /// For how long a wait that begins now looks on.
    pub(crate) fn limit_ns(&self, now: Instant) -> u64 {
        let is_short = now.0 < self.short_until.load(Ordering::Relaxed);
        if is_short { 0 } else { self.limit_ns.load(Ordering::Relaxed) }
    }

    /// A thread slept until a time.
    pub(crate) fn on_wake_up(&self, now: Instant, wake_up: WakeUp) {
        self.learn(&mut lock(&self.lookout), |lookout| lookout.on_wake_up(now, wake_up));
    }

    /// A wait took so long. Of several threads that say so at a time, one is heard.
    pub(crate) fn on_wait(&self, took_ns: u64, has_slept: bool) {
        if let Ok(mut lookout) = self.lookout.try_lock() {
            self.learn(&mut lookout, |lookout| lookout.on_work(took_ns, has_slept));
        }
    }

    /// A thread offered its processor to others while it looked on, and has been away for so long.
    fn on_offer(&self, now: Instant, away_ns: u64) {
        let short_until = {
            let mut lookout = lock(&self.lookout);
            lookout.on_offer(now, away_ns);
            lookout.short_until()
        };
        self.short_until.store(short_until.0, Ordering::Relaxed);
    }

    fn learn(&self, lookout: &mut Lookout, what: impl FnOnce(&mut Lookout)) {
        what(lookout);
        self.limit_ns.store(lookout.limit_ns(), Ordering::Relaxed);
    }
}

/// A thread is among those that look on.
#[derive(Debug)]
pub(crate) struct LooksOn<'a>(&'a AtomicU32);

impl Drop for LooksOn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The part of a wait in which a thread looks on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    started_at: Instant,
    now: Instant,
    /// For how long it looks on.
    limit_ns: u64,
    deadline: Instant,
    looks: u32,
    yields: u8,
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    Look,
    Sleep,
}

impl Spin {
    /// Of a wait of at most `limit`.
    pub(crate) fn begin(shared: &Shared, limit: Option<Duration>) -> Self {
        let now = shared.host.clock.now();
        let deadline = limit.map_or(Instant::NEVER, |limit| now + limit);
        let limit_ns = shared.spin_ns(now);
        Self { started_at: now, now, limit_ns, deadline, looks: 0, yields: 0 }
    }

    /// When the wait is over.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether there is no time left at all.
    pub(crate) fn is_over(&self) -> bool {
        self.now >= self.deadline
    }

    /// Looks so far that found nothing.
    pub(crate) fn looks(&self) -> u32 {
        self.looks
    }

    pub(crate) fn next(&mut self, shared: &Shared) -> Next {
        self.looks = self.looks.saturating_add(1);
        self.now = shared.host.clock.now();
        shared.demand_sound();
        let is_adaptive = shared.polling.is_adaptive();
        // What one of several finds, it finds for all.
        let is_offered = self.looks >= LOOKS_PER_OFFER && self.looks.is_power_of_two()
            || shared.waits.are_several_looking();
        if is_adaptive && is_offered {
            let since = self.now;
            thread::yield_now();
            self.now = shared.host.clock.now();
            shared.waits.on_offer(self.now, self.now.since_ns(since));
            self.limit_ns = self.limit_ns.min(shared.spin_ns(self.now));
        }
        if self.now < self.started_at.after_ns(self.limit_ns).min(self.deadline) {
            std::hint::spin_loop();
            return Next::Look;
        }
        // Who follows the rule has offered it already.
        if is_adaptive || self.limit_ns == 0 || self.yields == YIELDS {
            return Next::Sleep;
        }
        self.yields += 1;
        thread::yield_now();
        Next::Look
    }

    /// A look has found what the thread waits for.
    pub(crate) fn found(&self, shared: &Shared) {
        // What was there at once says nothing of how long to look for it.
        if self.looks > 0 && shared.polling.is_adaptive() {
            shared.waits.on_wait(self.now.since_ns(self.started_at), false);
        }
    }

    /// It has come, by now, and may have found the thread asleep.
    #[cold]
    pub(crate) fn came(&self, shared: &Shared, has_slept: bool) {
        if shared.polling.is_adaptive() {
            let took_ns = shared.host.clock.now().since_ns(self.started_at);
            shared.waits.on_wait(took_ns, has_slept);
        }
    }
}

impl Shared {
    /// For how long a wait that begins now looks on.
    pub(crate) fn spin_ns(&self, now: Instant) -> u64 {
        if self.polling.is_adaptive() { self.waits.limit_ns(now) } else { self.spin_ns }
    }
}

/// Looks before the processor is offered to others, and then twice as many, and so on: an offer costs as much as a
/// look, and most answers have come by then if no processor is short.
const LOOKS_PER_OFFER: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookout::tests::{Costs, Fixed, Rule, hosts, suits};
    use crate::lookout::{REPENT, WAKE_UPS};

    impl Rule for Waits {
        fn limit_ns(&self) -> u64 {
            self.limit_ns(Instant(1))
        }

        fn found(&mut self, after_ns: u64, has_slept: bool) {
            self.on_wait(after_ns, has_slept);
        }
    }

    fn on(costs: Costs) -> Waits {
        let waits = Waits::new(10_000);
        for _ in 0..WAKE_UPS {
            let wake_up = WakeUp { late_ns: costs.wake_up, spent_ns: costs.spent };
            waits.on_wake_up(Instant(1), wake_up);
        }
        waits
    }

    /// A wait lasts as long as the peer takes to answer.
    #[test]
    fn answers_that_come_soon_find_the_thread_awake_and_late_ones_cost_nothing_on_every_host() {
        for costs in hosts() {
            assert!(suits(on(costs), costs), "{costs:?}");
        }
    }

    /// With fewer than 4 processors, and with more.
    #[test]
    fn the_times_that_were_fixed_before_do_not_suit_every_host() {
        for ns in [10_000, 50_000] {
            assert!(hosts().into_iter().any(|costs| !suits(Fixed(ns), costs)), "{ns}");
        }
    }

    #[test]
    fn who_was_kept_from_the_processor_sleeps_at_once_for_a_while() {
        for costs in hosts() {
            let waits = on(costs);
            let away = 100 * costs.wake_up;
            waits.on_offer(Instant(away), away);
            assert_eq!(waits.limit_ns(Instant(away)), 0);
            assert_ne!(waits.limit_ns(Instant(away * (1 + REPENT))), 0);
        }
    }
}
