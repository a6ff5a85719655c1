//! The waiting policy.

use delivery::Instant;

/// What a waiting thread does after a look that found nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Looks again at once.
    Spin,
    /// Sleeps until a frame, a timer or a notification wakes it.
    SleepUntilEvent,
    /// Sleeps until this time, whatever arrives meanwhile.
    SleepUntil(Instant),
}

/// How long threads may spin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spinning {
    /// As long as spinning has cost less than sleeping, as measured.
    Learned,
    /// For this long after the last work, in nanoseconds; 0: never, `u64::MAX`: always.
    AtMost(u64),
}

/// Cost of one measured sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WakeUp {
    /// How much later than asked the thread ran, in nanoseconds.
    pub late_ns: u64,
    /// Processor time of going to sleep and waking up, in nanoseconds.
    pub spent_ns: u64,
}

/// Cost of an undisturbed sleep, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SleepCost {
    /// Latency plus processor time.
    pub total_ns: u64,
    /// Processor time of going to sleep and waking up.
    pub spent_ns: u64,
}

/// State of the application, as the progress thread sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Application {
    /// A thread is inside the engine.
    pub is_inside: bool,
    /// How long ago the application last polled or posted, in nanoseconds; `u64::MAX` if never.
    pub polled_ns_ago: u64,
}

/// State of the policy: measurements so far, and what they mean for the next wait.
///
/// A sleep costs the latency and processor time of a wake-up; a spin costs processor time. A
/// nanosecond of latency counts as much as a nanosecond of processor time. A thread that spins for
/// at most as long as a sleep costs never spends more than twice what it would spend if it knew the
/// future (A. Karlin, K. Li, M. Manasse, S. Owicki: Empirical studies of competitive spinning, SOSP
/// 1991). The policy therefore has two ways to wait: spin for at most that long and then sleep, or
/// sleep at once. It uses the way that has cost less, and tries the other now and then. The cost of
/// spinning is measured as it happens, so it includes answers that cannot arrive because this
/// thread holds the processor that the peer needs.
///
/// An application that polls asks for spinning. It sleeps only while processors are short, which it
/// learns from being descheduled, and only after it has spun for as long as a waiting thread would.
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    spinning: Spinning,
    /// Factor by which the cost of a sleep is multiplied.
    weight: u64,
    /// How late threads ran after a timer; once frames have woken threads, after such frames
    /// instead.
    late_ns: Latest,
    /// Processor time of going to sleep and waking up.
    spent_ns: Latest,
    /// `late_ns` is measured from frames.
    knows_frames: bool,
    /// Latency and processor time of an undisturbed sleep, in nanoseconds.
    sleep_cost_ns: u64,
    /// Mean cost of a wait that began with a spin, in nanoseconds.
    spin_cost_ns: u64,
    /// Waits without a spin since the last wait with one.
    waits_slept: u32,
    /// Processors count as short until this time.
    short_until: Instant,
    /// How long a thread was descheduled when processors were last short, in nanoseconds.
    away_ns: u64,
    /// Looks of the progress thread in a row, up to the latest, that found the application polling.
    looks_polling: u32,
    /// From this time on, an application that polled counts as doing something else, unless it is
    /// seen polling again.
    alone_from: Instant,
    /// How long the application has been polling, as seen by looks, in nanoseconds.
    polling_ns: u64,
    /// Times in a row that work waited for the progress thread, although the application had just
    /// posted or polled.
    found_waiting: u32,
}

impl WaitPolicy {
    /// Creates a policy for threads that wait in a call or serve peers. Nothing is measured yet; a
    /// sleep is assumed to cost `assumed_ns`.
    pub fn new(spinning: Spinning, assumed_ns: u64) -> Self {
        Self {
            spinning,
            weight: 1,
            late_ns: Latest::default(),
            spent_ns: Latest::default(),
            knows_frames: false,
            sleep_cost_ns: assumed_ns,
            spin_cost_ns: assumed_ns / 2,
            waits_slept: 0,
            short_until: Instant(0),
            away_ns: 0,
            looks_polling: 0,
            alone_from: Instant(0),
            polling_ns: 0,
            found_waiting: 0,
        }
    }

    /// Creates a policy for threads that poll. It does not depend on the setting, because an
    /// application that polls asks for low latency.
    pub fn for_polling(assumed_ns: u64) -> Self {
        let policy = Self::new(Spinning::Learned, assumed_ns);
        Self { weight: POLL_WEIGHT, spin_cost_ns: policy.spin_cost_ns * POLL_WEIGHT, ..policy }
    }

    /// Returns the cost of an undisturbed sleep: latency plus processor time, in nanoseconds.
    pub const fn sleep_cost_ns(&self) -> u64 {
        self.sleep_cost_ns
    }

    /// Returns the cost of an undisturbed sleep and the part of it that is processor time; before
    /// any measurement, all of it.
    pub fn sleep_cost(&self) -> SleepCost {
        let total_ns = self.sleep_cost_ns;
        let spent_ns =
            if self.spent_ns.count == 0 { total_ns } else { self.spent_ns.undisturbed() };
        SleepCost { total_ns, spent_ns }
    }

    /// Returns how long the next wait spins, in nanoseconds.
    pub const fn spin_limit_ns(&self) -> u64 {
        match self.spinning {
            Spinning::AtMost(limit_ns) => limit_ns,
            Spinning::Learned => self.learned_limit_ns(),
        }
    }

    const fn learned_limit_ns(&self) -> u64 {
        let is_cheaper = self.spin_cost_ns < self.worth_ns();
        if is_cheaper || self.waits_slept >= WAITS_PER_TRIAL { self.worth_ns() } else { 0 }
    }

    /// Returns how long a thread should spin at most to avoid a sleep, in nanoseconds.
    const fn worth_ns(&self) -> u64 {
        self.weight * self.sleep_cost_ns
    }

    /// Returns the time until which processors count as short.
    pub const fn short_until(&self) -> Instant {
        self.short_until
    }

    /// Records a sleep that a timer ended.
    pub fn on_wake_up(&mut self, wake_up: WakeUp) {
        self.spent_ns.add(wake_up.spent_ns);
        if !self.knows_frames {
            self.late_ns.add(wake_up.late_ns);
        }
        self.learn_sleep_cost();
    }

    /// Records a sleep that a frame ended: the thread read the frame `late_ns` after the kernel had
    /// received it. On a virtual machine, a frame from another processor wakes a thread several
    /// times later than a timer of its own processor does.
    pub fn on_woken_by_frame(&mut self, late_ns: u64) {
        if !self.knows_frames {
            self.knows_frames = true;
            self.late_ns = Latest::default();
        }
        self.late_ns.add(late_ns);
        self.learn_sleep_cost();
    }

    fn learn_sleep_cost(&mut self) {
        let cost_ns = self.late_ns.undisturbed() + self.spent_ns.undisturbed();
        self.sleep_cost_ns = cost_ns.clamp(1, SLEEP_COST_NS_MAX);
    }

    /// Records a wait that has ended after `took_ns`. It began with a spin of at most `limit_ns`;
    /// `has_slept`: the thread was asleep at the end.
    pub fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        if limit_ns == 0 {
            self.waits_slept = self.waits_slept.saturating_add(1);
            return;
        }
        // A thread that was descheduled while it spun lost a time slice that it would have lost
        // anyway.
        let failed_ns = limit_ns.min(self.worth_ns()) + self.worth_ns();
        let cost_ns = if has_slept { failed_ns } else { took_ns.min(failed_ns) };
        self.spin_cost_ns = self.spin_cost_ns - self.spin_cost_ns / SAMPLES + cost_ns / SAMPLES;
        // Repeat a trial that paid at once, so that the policy soon believes a peer that begins to
        // send requests in quick succession.
        self.waits_slept = if cost_ns < self.worth_ns() { WAITS_PER_TRIAL } else { 0 };
    }

    /// Records that the calling thread was preempted for `away_ns` until now.
    pub fn on_descheduled(&mut self, now: Instant, away_ns: u64) {
        if away_ns >= SHORT_SLEEPS * self.sleep_cost_ns {
            self.away_ns = away_ns.min(AWAY_NS_MAX);
            self.short_until = now.after_ns(self.away_ns * SHORT_FACTOR);
        }
    }

    /// Returns how long a polling application sleeps at most, in nanoseconds: as long as other
    /// threads kept its processor.
    pub fn poll_sleep_ns(&self) -> u64 {
        self.away_ns.max(self.sleep_cost_ns)
    }

    /// Decides for a thread in a call that waits, `idle_ns` after the wait began.
    pub const fn while_waiting(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.spin_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Decides for a polling application whose call found nothing, after polling for `idle_ns`
    /// without finding anything. It sleeps for at most [`WaitPolicy::poll_sleep_ns`].
    pub fn while_polling(&self, now: Instant, idle_ns: u64) -> Outcome {
        // The application may poll several queues in turn, and must reach each of them before it
        // sleeps.
        let limit_ns = self.spin_limit_ns().max(self.sleep_cost_ns / 4);
        if now >= self.short_until || idle_ns < limit_ns {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Decides as [`WaitPolicy::while_polling`] does, but for a thread of a real-time class, which
    /// the kernel does not preempt for threads of other classes. It sleeps for at most
    /// [`WaitPolicy::real_time_sleep_ns`].
    pub const fn while_polling_in_real_time(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.real_time_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Returns how long a thread of a real-time class polls without finding anything before it
    /// sleeps, in nanoseconds.
    pub const fn real_time_limit_ns(&self) -> u64 {
        REAL_TIME_SPINS * self.sleep_cost_ns
    }

    /// Returns how long a thread of a real-time class then sleeps at most, in nanoseconds.
    pub const fn real_time_sleep_ns(&self) -> u64 {
        REAL_TIME_SLEEPS * self.sleep_cost_ns
    }

    /// Decides for the progress thread, `idle_ns` after the last work. While the application polls,
    /// the progress thread leaves the links to it: each frame would wake the progress thread for
    /// nothing, and spinning beside the application would take processor time from it.
    pub fn while_serving(
        &mut self,
        now: Instant,
        idle_ns: u64,
        application: Application,
    ) -> Outcome {
        let Application { is_inside, polled_ns_ago } = application;
        let away_after_ns = self.away_after_ns(now);
        if is_inside || polled_ns_ago < away_after_ns {
            let aside_ns = self.aside_ns(now, away_after_ns, polled_ns_ago);
            self.looks_polling = self.looks_polling.saturating_add(1);
            if self.looks_polling >= POLLING_LOOKS_MIN {
                self.alone_from = now.after_ns(APPLICATION_GONE_NS);
            }
            return Outcome::SleepUntil(now.after_ns(aside_ns));
        }
        self.looks_polling = 0;
        // Only halved: a single look may find the application between two turns.
        self.polling_ns /= 2;
        let limit_ns = self.spin_limit_ns();
        let is_alone = now >= self.alone_from;
        if idle_ns < if is_alone { limit_ns } else { limit_ns.min(self.sleep_cost_ns) } {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Returns for how long from now on the progress thread leaves the links to a polling
    /// application, in nanoseconds: the longer the application has polled, the longer.
    fn aside_ns(&mut self, now: Instant, away_after_ns: u64, polled_ns_ago: u64) -> u64 {
        let cost_ns = self.sleep_cost_ns;
        if self.waits_in_memory() {
            if self.looks_polling == 0 {
                return cost_ns / 4;
            }
            // The application does not only post its next request; it polls.
            self.found_waiting = 0;
        }
        // A look costs less than a sleep, so the first looks take at most half of a processor.
        let least_ns = 2 * cost_ns;
        if now < self.short_until {
            return away_after_ns.saturating_sub(polled_ns_ago).max(least_ns);
        }
        let aside_ns = (self.polling_ns / ASIDE_DIVISOR).max(least_ns).min(ASIDE_NS_MAX);
        self.polling_ns = (self.polling_ns + aside_ns).min(ASIDE_NS_MAX * ASIDE_DIVISOR);
        aside_ns
    }

    /// Records that the progress thread looked at the links, and whether work was waiting there.
    pub fn on_served(&mut self, found: bool, polled_ns_ago: u64) {
        // If the application does something else, it is normal that work waits.
        if found && polled_ns_ago < APPLICATION_GONE_NS {
            self.found_waiting = self.found_waiting.saturating_add(1);
        }
    }

    /// Returns after how long without a poll the application no longer serves the links, in
    /// nanoseconds.
    fn away_after_ns(&self, now: Instant) -> u64 {
        if self.waits_in_memory() {
            self.sleep_cost_ns / 4
        } else if now < self.short_until {
            (SHORT_ASIDE * self.sleep_cost_ns).min(ASIDE_NS_MAX)
        } else {
            self.sleep_cost_ns
        }
    }

    /// Whether the application posts and then waits for bytes in its memory, so that it needs the
    /// progress thread at once.
    const fn waits_in_memory(&self) -> bool {
        self.found_waiting >= FOUND_WAITING_MIN
    }
}

/// The latest measurements of one quantity.
#[derive(Clone, Debug, Default)]
struct Latest {
    values: [u64; WAKE_UPS],
    count: usize,
}

impl Latest {
    fn add(&mut self, value: u64) {
        if self.count == 0 {
            self.values = [value; WAKE_UPS];
        }
        if let Some(slot) = self.values.get_mut(self.count % WAKE_UPS) {
            *slot = value;
        }
        self.count += 1;
    }

    /// Returns the third smallest of the eight values: in slower ones, the thread had to wait for a
    /// processor.
    fn undisturbed(&self) -> u64 {
        let mut sorted = self.values;
        sorted.sort_unstable();
        sorted.get(WAKE_UPS / 4).copied().unwrap_or_default()
    }
}

/// Number of wake-ups that are remembered, and measured when a progress thread starts. The cost of
/// a sleep is the third smallest of them, which is right as long as three in eight did not have to
/// wait for a processor.
pub const WAKE_UPS: usize = 8;

/// Largest cost of a sleep that is believed, in nanoseconds: ten times the cost on the hosts
/// measured so far. If all measured wake-ups waited for a processor, the measurement is
/// meaningless.
const SLEEP_COST_NS_MAX: u64 = 500_000;

/// Waits without a spin after which one spins as a trial. A trial costs at most as much as a sleep,
/// so trials add at most 6 % to the cost of waiting.
const WAITS_PER_TRIAL: u32 = 16;

/// The mean cost of a spin covers about this many waits: few enough to stop spinning after some
/// failures in a row, enough not to stop after one.
const SAMPLES: u64 = 4;

/// Factor for the spins of a polling thread, which may last this many times the cost of a sleep.
/// The thread so loses a few per cent of a time slice, and saves the rest for when its peer runs
/// again. With 1, answers that take as long as a sleep, such as answers to requests of 16 KiB,
/// would find it asleep.
const POLL_WEIGHT: u64 = 2;

/// A thread of a real-time class polls without finding anything for this many times the cost of a
/// sleep before it sleeps once. An answer that arrives after that long is delayed by at most 2 %.
const REAL_TIME_SPINS: u64 = 64;

/// A thread of a real-time class sleeps for at most this many times the cost of a sleep. That
/// leaves 6 % of the processor to threads of other classes, as the kernel leaves them 5 % where it
/// throttles. With 1, a peer of the lowest class is interrupted inside its engine so often that an
/// answer takes 100 ms.
const REAL_TIME_SLEEPS: u64 = 4;

/// A thread that was away for less than this many times the cost of a sleep has not lost a time
/// slice: a progress thread or the kernel ran for a moment.
const SHORT_SLEEPS: u64 = 4;

/// Processors count as short for this many times as long as a thread was descheduled. Trying to
/// spin then costs one time slice in this many.
const SHORT_FACTOR: u64 = 64;

/// Longest time for which a thread counts as descheduled, in nanoseconds: a time slice of the
/// kernel. Without this limit, the policy would consider processors short for an hour after the host
/// was suspended for a minute.
const AWAY_NS_MAX: u64 = 4_000_000;

/// While an application polls, the progress thread stays away for the time that the application has
/// polled, divided by this. An application that polls and computes for 5 ms in turn is then left
/// alone for at most 0.5 ms, half of a peer's shortest probe timeout.
const ASIDE_DIVISOR: u64 = 12;

/// Longest time for which the links are left to a polling application, in nanoseconds: 250 looks a
/// second. With twice as many looks, the application loses 4 %, because the looks evict its data
/// from the caches.
const ASIDE_NS_MAX: u64 = 4_000_000;

/// While processors are short, the links are left to a polling application for at most this many
/// times the cost of a sleep. Peers of an application that was descheduled wait no longer than
/// that. A look takes a processor, perhaps that of the application, and ends the time slice of the
/// thread that ran there: with a factor of 4, looks took half of the time of ranks that share
/// processors.
const SHORT_ASIDE: u64 = 16;

/// If work has waited this often in a row, the application waits for bytes in its memory.
const FOUND_WAITING_MIN: u32 = 4;

/// An application that was seen polling in this many looks in a row polls, and does not only post.
const POLLING_LOOKS_MIN: u32 = 4;

/// An application that polled and has not polled for this long, in nanoseconds, does something
/// else. Until then it may be runnable and waiting for its processor. A progress thread that spins
/// without limit would take that processor: for a time slice beside each of thirty competitors.
const APPLICATION_GONE_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests;
