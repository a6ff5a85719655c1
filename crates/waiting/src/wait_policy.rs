//! The waiting policy: measures the costs of spinning and sleeping, and chooses between them.

use delivery::Instant;

/// What a waiting thread does after a look that found no work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Look again at once.
    Spin,
    /// Sleep until a frame, a timer or a notification wakes the thread.
    SleepUntilEvent,
    /// Sleep until this time. Frames do not end the sleep.
    SleepUntil(Instant),
}

/// How long threads may spin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spinning {
    /// As long as spinning is cheaper than sleeping, according to measurements.
    Learned,
    /// For at most this time after the last work, in nanoseconds. 0 turns spinning off; `u64::MAX`
    /// sets no limit.
    AtMost(u64),
}

/// Cost of one measured sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WakeUp {
    /// How much later than planned the thread ran, in nanoseconds.
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
    /// Whether a thread of the application is inside the engine.
    pub is_inside: bool,
    /// Time since the application last polled or posted, in nanoseconds; `u64::MAX` if it never
    /// did.
    pub polled_ns_ago: u64,
}

/// State of the policy: measurements, and values derived from them for the next wait.
///
/// A sleep costs the latency and the processor time of a wake-up. A spin costs processor time. A
/// nanosecond of latency counts as much as a nanosecond of processor time.
///
/// A thread that spins for at most the cost of a sleep never spends more than twice what it would
/// spend if it knew the future (A. Karlin, K. Li, M. Manasse, S. Owicki: Empirical studies of
/// competitive spinning, SOSP 1991). So the policy has two ways to wait: spin for at most that long
/// and then sleep, or sleep at once. The policy uses the way that has been cheaper, and tries the
/// other way from time to time.
///
/// The measured cost of a spin is that of the whole wait. So it also covers answers that cannot
/// arrive because this thread occupies the processor that the peer needs.
///
/// An application that polls asks for spinning. A polling thread sleeps only if processors are
/// short and it has spun for as long as a waiting thread would. Processors count as short after the
/// kernel has descheduled a polling thread.
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    spinning: Spinning,
    /// The policy multiplies the cost of a sleep by this factor.
    weight: u64,
    /// How late threads ran after a timer. After the first frame that woke a thread, how late they
    /// ran after such frames.
    late_ns: Latest,
    /// Processor time that threads took to go to sleep and wake up.
    spent_ns: Latest,
    /// Whether `late_ns` is measured at frames.
    knows_frames: bool,
    /// Latency and processor time of an undisturbed sleep, in nanoseconds.
    sleep_cost_ns: u64,
    /// Mean cost of a wait that began with a spin, in nanoseconds.
    spin_cost_ns: u64,
    /// Number of waits without a spin since the last wait that began with one.
    waits_slept: u32,
    /// Processors count as short until this time.
    short_until: Instant,
    /// For how long a thread was descheduled when processors were last short, in nanoseconds.
    away_ns: u64,
    /// Number of consecutive looks of the progress thread, up to the latest one, that found the
    /// application polling.
    looks_polling: u32,
    /// From this time, an application that has polled counts as doing something else. A look that
    /// finds it polling again sets a later time.
    alone_from: Instant,
    /// For how long the application has been polling, according to looks of the progress thread, in
    /// nanoseconds.
    polling_ns: u64,
    /// Number of consecutive times that work was waiting for the progress thread, although the
    /// application had just posted or polled.
    found_waiting: u32,
}

impl WaitPolicy {
    /// Creates a policy for threads that wait in a call or serve peers. Until the first
    /// measurement, the policy assumes that a sleep costs `assumed_ns` nanoseconds.
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

    /// Creates a policy for threads that poll. The setting of an application does not affect this
    /// policy, because an application that polls asks for low latency. `assumed_ns` has the same
    /// meaning as in [`WaitPolicy::new`].
    pub fn for_polling(assumed_ns: u64) -> Self {
        let policy = Self::new(Spinning::Learned, assumed_ns);
        Self { weight: POLL_WEIGHT, spin_cost_ns: policy.spin_cost_ns * POLL_WEIGHT, ..policy }
    }

    /// Returns the cost of an undisturbed sleep: latency plus processor time, in nanoseconds.
    pub const fn sleep_cost_ns(&self) -> u64 {
        self.sleep_cost_ns
    }

    /// Returns the cost of an undisturbed sleep, and how much of it is processor time. Before any
    /// measurement, all of it counts as processor time.
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

    /// Returns for how long a spin may last to avoid a sleep, in nanoseconds.
    const fn worth_ns(&self) -> u64 {
        self.weight * self.sleep_cost_ns
    }

    /// Returns until when processors count as short.
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

    /// Records a sleep that a frame ended. The thread read the frame `late_ns` nanoseconds after
    /// the kernel had received it. On a virtual machine, a thread wakes several times later after a
    /// frame from another processor than after a timer of its own processor.
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

    /// Records that a wait has ended after `took_ns` nanoseconds. It began with a spin of at most
    /// `limit_ns` nanoseconds. `has_slept` says whether the thread was asleep at the end.
    pub fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        if limit_ns == 0 {
            self.waits_slept = self.waits_slept.saturating_add(1);
            return;
        }
        // A spin that succeeds costs at most as much as one that fails. If it took longer, the
        // thread was descheduled, and would also have lost that time slice without spinning.
        let failed_ns = limit_ns.min(self.worth_ns()) + self.worth_ns();
        let cost_ns = if has_slept { failed_ns } else { took_ns.min(failed_ns) };
        self.spin_cost_ns = self.spin_cost_ns - self.spin_cost_ns / SAMPLES + cost_ns / SAMPLES;
        // If a trial saved time, repeat it at once. So the policy soon changes to spinning when a
        // peer begins to send requests in quick succession.
        self.waits_slept = if cost_ns < self.worth_ns() { WAITS_PER_TRIAL } else { 0 };
    }

    /// Records that the calling thread was preempted for `away_ns` nanoseconds until now.
    pub fn on_descheduled(&mut self, now: Instant, away_ns: u64) {
        if away_ns >= SHORT_SLEEPS * self.sleep_cost_ns {
            self.away_ns = away_ns.min(AWAY_NS_MAX);
            self.short_until = now.after_ns(self.away_ns * SHORT_FACTOR);
        }
    }

    /// Returns how long a polling application sleeps at most, in nanoseconds. This is the time for
    /// which other threads kept its processor.
    pub fn poll_sleep_ns(&self) -> u64 {
        self.away_ns.max(self.sleep_cost_ns)
    }

    /// Decides for a thread that waits in a call, `idle_ns` nanoseconds after the wait began.
    pub const fn while_waiting(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.spin_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Decides for a polling application whose call found nothing. The application has polled for
    /// `idle_ns` nanoseconds without finding anything. If it should sleep, it sleeps for at most
    /// [`WaitPolicy::poll_sleep_ns`].
    pub fn while_polling(&self, now: Instant, idle_ns: u64) -> Outcome {
        // The application may poll several queues, one after the other. It must reach all of them
        // before it sleeps.
        let limit_ns = self.spin_limit_ns().max(self.sleep_cost_ns / 4);
        if now >= self.short_until || idle_ns < limit_ns {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Decides for a polling thread of a real-time class, as [`WaitPolicy::while_polling`] does for
    /// other threads. The kernel does not preempt such a thread for threads of other classes. If
    /// the thread should sleep, it sleeps for at most [`WaitPolicy::real_time_sleep_ns`].
    pub const fn while_polling_in_real_time(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.real_time_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Returns how long a thread of a real-time class polls before it sleeps if it finds nothing,
    /// in nanoseconds.
    pub const fn real_time_limit_ns(&self) -> u64 {
        REAL_TIME_SPINS * self.sleep_cost_ns
    }

    /// Returns how long a thread of a real-time class sleeps at most after such polling, in
    /// nanoseconds.
    pub const fn real_time_sleep_ns(&self) -> u64 {
        REAL_TIME_SLEEPS * self.sleep_cost_ns
    }

    /// Decides for the progress thread, `idle_ns` nanoseconds after its last work.
    ///
    /// While the application polls, the progress thread leaves the links to the application.
    /// Otherwise each frame would wake the progress thread without need, and a spinning progress
    /// thread would take processor time from the application.
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
        // Only halve the time, because a single look may find the application between two of its
        // turns.
        self.polling_ns /= 2;
        let limit_ns = self.spin_limit_ns();
        let is_alone = now >= self.alone_from;
        if idle_ns < if is_alone { limit_ns } else { limit_ns.min(self.sleep_cost_ns) } {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Returns for how long the progress thread leaves the links to a polling application after
    /// this look, in nanoseconds. This time grows with the time for which the application has
    /// polled.
    fn aside_ns(&mut self, now: Instant, away_after_ns: u64, polled_ns_ago: u64) -> u64 {
        let cost_ns = self.sleep_cost_ns;
        if self.waits_in_memory() {
            if self.looks_polling == 0 {
                return cost_ns / 4;
            }
            // Two consecutive looks show that the application polls and does not only post its next
            // request.
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
        // If the application does something else, waiting work is normal and does not count.
        if found && polled_ns_ago < APPLICATION_GONE_NS {
            self.found_waiting = self.found_waiting.saturating_add(1);
        }
    }

    /// Returns for how long the application may not poll until it counts as no longer serving the
    /// links, in nanoseconds.
    fn away_after_ns(&self, now: Instant) -> u64 {
        if self.waits_in_memory() {
            self.sleep_cost_ns / 4
        } else if now < self.short_until {
            (SHORT_ASIDE * self.sleep_cost_ns).min(ASIDE_NS_MAX)
        } else {
            self.sleep_cost_ns
        }
    }

    /// Returns whether the application posts and then waits for bytes in its memory. Such an
    /// application needs the progress thread at once.
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

    /// Returns the third smallest of the eight values. After the slower wake-ups, the thread had to
    /// wait for a processor.
    fn undisturbed(&self) -> u64 {
        let mut sorted = self.values;
        sorted.sort_unstable();
        sorted.get(WAKE_UPS / 4).copied().unwrap_or_default()
    }
}

/// Number of wake-ups that the policy remembers, and that a progress thread measures when it
/// starts. The third smallest of them is the cost of a sleep. That is correct if in at least three
/// of eight wake-ups the thread did not wait for a processor.
pub const WAKE_UPS: usize = 8;

/// Largest cost of a sleep that the policy accepts, in nanoseconds: ten times the cost on the hosts
/// measured so far. If the thread waited for a processor in all measured wake-ups, the measurement
/// is meaningless.
const SLEEP_COST_NS_MAX: u64 = 500_000;

/// Number of waits without a spin until the next one spins as a trial. A trial costs at most as
/// much as a sleep, so trials add at most 6 % to the cost of waiting.
const WAITS_PER_TRIAL: u32 = 16;

/// The mean cost of a spin covers about this many waits. So the policy stops spinning after some
/// consecutive failures, but not after one.
const SAMPLES: u64 = 4;

/// A polling thread may spin for this many times the cost of a sleep.
///
/// With this factor, the thread loses a few per cent of a time slice and keeps the rest for when
/// its peer runs again. With a factor of 1, the thread would be asleep when answers arrive that
/// take as long as a sleep, such as answers to requests of 16 KiB.
const POLL_WEIGHT: u64 = 2;

/// A thread of a real-time class that finds nothing polls for this many times the cost of a sleep
/// before it sleeps once. An answer that arrives later than that is delayed by at most 2 %.
const REAL_TIME_SPINS: u64 = 64;

/// A thread of a real-time class sleeps for at most this many times the cost of a sleep.
///
/// This leaves 6 % of the processor to threads of other classes; the kernel leaves them 5 % if it
/// throttles. With a factor of 1, a peer of the lowest class is interrupted inside its engine so
/// often that an answer takes 100 ms.
const REAL_TIME_SLEEPS: u64 = 4;

/// A thread that was away for less than this many times the cost of a sleep has not lost a time
/// slice. In such a case, a progress thread or the kernel ran for a moment.
const SHORT_SLEEPS: u64 = 4;

/// Processors count as short for this many times the time for which a thread was descheduled. If
/// the policy tries to spin after that, the trial costs at most one in this many time slices.
const SHORT_FACTOR: u64 = 64;

/// Longest time for which a thread counts as descheduled, in nanoseconds: a time slice of the
/// kernel. Without this limit, processors would count as short for an hour after the host was
/// suspended for a minute.
const AWAY_NS_MAX: u64 = 4_000_000;

/// While an application polls, the progress thread stays away from the links for this fraction
/// (1/12) of the time for which the application has polled.
///
/// If an application alternately polls and computes for 5 ms, the progress thread stays away for at
/// most 0.5 ms. That is half of the shortest probe timeout of a peer.
const ASIDE_DIVISOR: u64 = 12;

/// Longest time for which the progress thread leaves the links to a polling application, in
/// nanoseconds: 250 looks a second. With twice as many looks, the application loses 4 %, because
/// the looks evict its data from the caches.
const ASIDE_NS_MAX: u64 = 4_000_000;

/// While processors are short, the progress thread leaves the links to a polling application for at
/// most this many times the cost of a sleep. If the application was descheduled, its peers wait at
/// most that long.
///
/// Each look takes a processor, perhaps that of the application, and ends the time slice of the
/// thread that ran there. With a factor of 4, looks took half of the time of ranks that share
/// processors.
const SHORT_ASIDE: u64 = 16;

/// If work was waiting in this many consecutive looks, the application waits for bytes in its
/// memory.
const FOUND_WAITING_MIN: u32 = 4;

/// If this many consecutive looks found the application polling, it polls and does not only post.
const POLLING_LOOKS_MIN: u32 = 4;

/// If an application that polled has not polled for this time, in nanoseconds, it does something
/// else.
///
/// Before that, the application may be runnable and waiting for its processor, and a progress
/// thread that spins without limit would take that processor. This time suffices for one time slice
/// of each of thirty competing threads.
const APPLICATION_GONE_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests;
