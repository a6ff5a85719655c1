//! Rules that decide when threads spin and when they sleep.

use core::fmt;

use delivery::Instant;
use waiting::{Application, Moderation, Outcome, Spinning, WAKE_UPS, WaitPolicy, WakeUp};

use crate::scheduler::Settings;

/// Decides when the threads of one role on one host spin and sleep. The two roles are the
/// application's threads and the progress thread.
pub trait WaitRule: fmt::Debug {
    /// Returns the cost of a sleep that no other thread delays, in nanoseconds.
    fn sleep_cost_ns(&self) -> u64;
    /// Returns how long a thread spins in a waiting call, in nanoseconds.
    fn spin_limit_ns(&self) -> u64;
    /// Returns the maximum sleep of an application that polls, in nanoseconds.
    fn poll_sleep_ns(&self) -> u64;
    /// Returns the next action of an application that polls. Its polls have found nothing for
    /// `idle_ns`.
    fn while_polling(&mut self, now: Instant, idle_ns: u64) -> Outcome;
    /// Returns the next action of the progress thread, `idle_ns` after the last work.
    fn while_serving(&mut self, now: Instant, idle_ns: u64, application: Application) -> Outcome;
    /// Records that a wait has ended after `took_ns`. At its start, the thread spun for at most
    /// `limit_ns`.
    fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool);
    /// Records that the application had work, but no processor for `away_ns`.
    fn on_descheduled(&mut self, now: Instant, away_ns: u64);
    /// Records a poll of the links by the progress thread. `found` is true if the poll found work.
    /// The application last polled `polled_ns_ago` nanoseconds earlier.
    fn on_served(&mut self, found: bool, polled_ns_ago: u64);
    /// Records that the thread on watch (the thread that polls the links) has found this number of
    /// frames. If `slept_interval` is true, the thread slept for an interval before it polled.
    /// `notified` is the number of notifications to the application so far.
    fn on_looked(&mut self, now: Instant, frames: u64, notified: u64, slept_interval: bool) {
        let _ = (now, frames, notified, slept_interval);
    }
    /// Returns the time for which the thread that watches the links may leave frames unread, in
    /// nanoseconds. Returns `None` if the thread must read frames immediately. The application was
    /// last active at `active_at`.
    fn interval_ns(&self, now: Instant, active_at: Instant) -> Option<u64> {
        let _ = (now, active_at);
        None
    }
    /// Records the end of a series of polls by the application. The polls found nothing for
    /// `idle_ns`. If `sleeps` is true, the application then sleeps; if not, its last poll found
    /// something.
    fn on_polled(&mut self, now: Instant, idle_ns: u64, sleeps: bool);
}

/// The wait policies of the runtime. One is for threads that wait or serve, the other for threads
/// that poll.
#[derive(Debug)]
pub struct Policies {
    waiting: WaitPolicy,
    polling: WaitPolicy,
    moderation: Option<Moderation>,
}

impl Policies {
    /// Creates the rule of a host whose cost of a sleep has been measured.
    pub fn measured(spinning: Spinning, processors: &Settings) -> Self {
        let Settings { sleep_ns, wake_ns, switch_ns, idle_latency_ns, .. } = *processors;
        let late_ns = idle_latency_ns + switch_ns + wake_ns;
        let measured = |mut policy: WaitPolicy| {
            for _ in 0..WAKE_UPS {
                policy.on_wake_up(WakeUp { late_ns, spent_ns: sleep_ns + wake_ns });
            }
            policy
        };
        Self {
            waiting: measured(WaitPolicy::new(spinning, SLEEP_COST_ASSUMED_NS)),
            polling: measured(WaitPolicy::for_polling(SLEEP_COST_ASSUMED_NS)),
            moderation: (spinning == Spinning::Learned).then(Moderation::default),
        }
    }

    /// Returns the rule without intervals: threads then read each frame immediately.
    #[must_use]
    pub fn unmoderated(self) -> Self {
        Self { moderation: None, ..self }
    }
}

impl WaitRule for Policies {
    fn sleep_cost_ns(&self) -> u64 {
        self.waiting.sleep_cost_ns()
    }

    fn spin_limit_ns(&self) -> u64 {
        self.waiting.spin_limit_ns()
    }

    fn poll_sleep_ns(&self) -> u64 {
        self.polling.poll_sleep_ns()
    }

    fn while_polling(&mut self, now: Instant, idle_ns: u64) -> Outcome {
        self.polling.while_polling(now, idle_ns)
    }

    fn while_serving(&mut self, now: Instant, idle_ns: u64, application: Application) -> Outcome {
        self.waiting.while_serving(now, idle_ns, application)
    }

    fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        self.waiting.on_waited(took_ns, limit_ns, has_slept);
    }

    fn on_descheduled(&mut self, now: Instant, away_ns: u64) {
        self.waiting.on_descheduled(now, away_ns);
        self.polling.on_descheduled(now, away_ns);
    }

    fn on_served(&mut self, found: bool, polled_ns_ago: u64) {
        self.waiting.on_served(found, polled_ns_ago);
    }

    fn on_looked(&mut self, now: Instant, frames: u64, notified: u64, slept_interval: bool) {
        let cost_ns = self.sleep_cost_ns();
        match &mut self.moderation {
            Some(moderation) if frames > 0 => moderation.on_frames(now, frames, notified, cost_ns),
            Some(moderation) if slept_interval => moderation.on_silence(now),
            _ => {}
        }
    }

    fn interval_ns(&self, now: Instant, active_at: Instant) -> Option<u64> {
        self.moderation.as_ref()?.interval_ns(now, self.waiting.sleep_cost(), true, active_at)
    }

    fn on_polled(&mut self, now: Instant, idle_ns: u64, sleeps: bool) {
        // While there are enough processors, the runtime does not record polls, so this rule does
        // not record them either.
        if now < self.polling.short_until() {
            self.polling.on_waited(idle_ns, self.polling.spin_limit_ns(), sleeps);
        }
    }
}

/// A rule that does not learn. After the last work, a thread spins for at most a fixed time, and
/// then sleeps. While the application polls, the progress thread polls the links at fixed
/// intervals.
#[derive(Clone, Copy, Debug)]
pub struct SpinAtMost {
    /// Time to spin, in nanoseconds.
    pub limit_ns: u64,
    /// Cost of a sleep, in nanoseconds.
    pub sleep_cost_ns: u64,
    /// Interval at which the progress thread polls the links while the application polls, in
    /// nanoseconds.
    pub aside_ns: u64,
}

impl SpinAtMost {
    /// Creates a rule with which threads always spin. While the application polls, the progress
    /// thread polls the links every millisecond.
    pub const fn always(sleep_cost_ns: u64) -> Self {
        Self { limit_ns: u64::MAX, sleep_cost_ns, aside_ns: 1_000_000 }
    }

    /// Creates a rule with which threads never spin: they sleep immediately.
    pub const fn never(sleep_cost_ns: u64) -> Self {
        Self { limit_ns: 0, ..Self::always(sleep_cost_ns) }
    }
}

impl WaitRule for SpinAtMost {
    fn sleep_cost_ns(&self) -> u64 {
        self.sleep_cost_ns
    }

    fn spin_limit_ns(&self) -> u64 {
        self.limit_ns
    }

    fn poll_sleep_ns(&self) -> u64 {
        u64::MAX
    }

    fn while_polling(&mut self, _now: Instant, idle_ns: u64) -> Outcome {
        if idle_ns < self.limit_ns { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    fn while_serving(&mut self, now: Instant, idle_ns: u64, application: Application) -> Outcome {
        let Application { is_inside, polled_ns_ago } = application;
        if is_inside || polled_ns_ago < self.sleep_cost_ns {
            return Outcome::SleepUntil(now.after_ns(self.aside_ns));
        }
        if idle_ns < self.limit_ns { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    fn on_waited(&mut self, _took_ns: u64, _limit_ns: u64, _has_slept: bool) {}

    fn on_descheduled(&mut self, _now: Instant, _away_ns: u64) {}

    fn on_served(&mut self, _found: bool, _polled_ns_ago: u64) {}

    fn on_polled(&mut self, _now: Instant, _idle_ns: u64, _sleeps: bool) {}
}

/// Cost of a sleep that the runtime assumes before it has measured sleeps, in nanoseconds.
const SLEEP_COST_ASSUMED_NS: u64 = 30_000;
