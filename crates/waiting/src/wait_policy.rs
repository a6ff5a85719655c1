//! The waiting policy: measures the costs of spinning and sleeping, and chooses between them.

use delivery::Instant;

/// The action of a waiting thread after a look (a pass through the engine) that found no work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Look again immediately.
    Spin,
    /// Sleep until a frame, a timer or a notification wakes the thread.
    SleepUntilEvent,
    /// Sleep until this time. Frames do not end the sleep.
    SleepUntil(Instant),
}

/// How long threads may spin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spinning {
    /// Threads spin while measurements show that spinning is cheaper than sleeping.
    Learned,
    /// Threads spin for at most this time after their last work, in nanoseconds. 0 turns spinning
    /// off; `u64::MAX` sets no limit.
    AtMost(u64),
}

/// Cost of one measured sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WakeUp {
    /// Time from the planned wake-up until the thread ran, in nanoseconds.
    pub late_ns: u64,
    /// Processor time for going to sleep and waking up, in nanoseconds.
    pub spent_ns: u64,
}

/// Cost of a sleep after which the thread did not wait for a processor, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SleepCost {
    /// Latency of the wake-up plus processor time of the sleep, in nanoseconds.
    pub total_ns: u64,
    /// Processor time for going to sleep and waking up, in nanoseconds.
    pub spent_ns: u64,
}

/// State of the application, which the progress thread observes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Application {
    /// True if a thread of the application is inside the engine.
    pub is_inside: bool,
    /// Nanoseconds since the application last polled or posted. `u64::MAX` if the application has
    /// never polled or posted.
    pub polled_ns_ago: u64,
}

/// State of the policy: measurements, and the values for the next wait that the policy computes
/// from them.
///
/// A sleep costs the latency and the processor time of a wake-up. A spin costs processor time. A
/// nanosecond of latency counts as much as a nanosecond of processor time.
///
/// If a thread spins for at most the cost of a sleep, it never spends more than twice the cost of a
/// thread that knows the future (A. Karlin, K. Li, M. Manasse, S. Owicki: Empirical studies of
/// competitive spinning, SOSP 1991). So there are two ways to wait: to spin for at most the cost of
/// a sleep and then sleep, or to sleep immediately. The policy uses the way that has been cheaper,
/// and tries the other way from time to time.
///
/// The measured cost of a spin is the cost of the whole wait. So the measurement also shows if the
/// answer cannot arrive during the spin, because this thread occupies the processor that the peer
/// needs.
///
/// An application that polls wants to spin. A polling thread sleeps only if processors are short,
/// which means that more threads want to run than there are processors. Even then, it first spins
/// for as long as a waiting thread would spin. Processors count as short for some time after the
/// kernel has descheduled a polling thread.
#[derive(Clone, Debug)]
pub struct WaitPolicy {
    spinning: Spinning,
    /// Factor by which the policy multiplies the cost of a sleep before it compares that cost with
    /// the cost of a spin.
    weight: u64,
    /// Delays of threads at the end of their last sleeps. Until a frame has woken a thread for the
    /// first time, these are sleeps that a timer ended. After that, they are only sleeps that a
    /// frame ended.
    late_ns: Latest,
    /// Processor time that threads needed to go to sleep and wake up.
    spent_ns: Latest,
    /// True if `late_ns` contains delays after frames, and no delays after timers.
    knows_frames: bool,
    /// Cost of an undisturbed sleep (after which the thread gets a processor at once), in
    /// nanoseconds: latency plus processor time.
    sleep_cost_ns: u64,
    /// Mean cost of a wait that began with a spin, in nanoseconds.
    spin_cost_ns: u64,
    /// Number of waits without a spin after the last wait that began with a spin.
    waits_slept: u32,
    /// Processors count as short (more threads want to run than there are processors) until this
    /// time.
    short_until: Instant,
    /// How long the kernel had descheduled a thread when the policy last found that processors are
    /// short, in nanoseconds.
    away_ns: u64,
    /// How many times in a row, up to its latest look, the progress thread has found that the
    /// application was polling.
    looks_polling: u32,
    /// An application that has stopped polling counts as possibly descheduled until this time, and
    /// as busy with other work after this time. Each look that finds the application polling moves
    /// this time forward.
    alone_from: Instant,
    /// How long the application has been polling, according to looks of the progress thread, in
    /// nanoseconds.
    polling_ns: u64,
    /// How often the first look of the progress thread on watch found work, although the
    /// application had polled or posted in the last [`APPLICATION_GONE_NS`]. If such a look
    /// finds no work, the number stays unchanged. [`WaitPolicy::aside_ns`] sets it to 0 when the
    /// application turns out to poll.
    found_waiting: u32,
}

impl WaitPolicy {
    /// Creates a policy for threads that wait in a call or serve peers. Before the first
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

    /// Creates a policy for threads that poll. An application that polls wants low latency, so the
    /// setting [`Spinning`] does not apply to this policy. `assumed_ns` has the same meaning as in
    /// [`WaitPolicy::new`].
    pub fn for_polling(assumed_ns: u64) -> Self {
        let policy = Self::new(Spinning::Learned, assumed_ns);
        Self { weight: POLL_WEIGHT, spin_cost_ns: policy.spin_cost_ns * POLL_WEIGHT, ..policy }
    }

    /// Returns the cost of an undisturbed sleep (after which the thread gets a processor at once):
    /// latency plus processor time, in nanoseconds.
    pub const fn sleep_cost_ns(&self) -> u64 {
        self.sleep_cost_ns
    }

    /// Returns the cost of an undisturbed sleep (after which the thread gets a processor at once),
    /// and the part of it that is processor time. Before any measurement, the whole cost counts as
    /// processor time.
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

    /// Returns how long a thread may spin to avoid a sleep, in nanoseconds: `weight` times the cost
    /// of the sleep.
    const fn worth_ns(&self) -> u64 {
        self.weight * self.sleep_cost_ns
    }

    /// Returns the time until which processors count as short, because the kernel has descheduled a
    /// polling thread.
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
    /// the kernel had received it. On a virtual machine, another processor may deliver the frame.
    /// In this case, `late_ns` is several times the delay after a timer.
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

    /// Records that a wait has ended after `took_ns` nanoseconds. The wait began with a spin of at
    /// most `limit_ns` nanoseconds. `has_slept` says whether the thread was asleep at the end.
    pub fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        if limit_ns == 0 {
            self.waits_slept = self.waits_slept.saturating_add(1);
            return;
        }
        // A successful spin costs at most as much as a failed spin. If the wait took longer, the
        // kernel descheduled the thread. Without spinning, the thread would have lost that time
        // slice too.
        let failed_ns = limit_ns.min(self.worth_ns()) + self.worth_ns();
        let cost_ns = if has_slept { failed_ns } else { took_ns.min(failed_ns) };
        self.spin_cost_ns = self.spin_cost_ns - self.spin_cost_ns / SAMPLES + cost_ns / SAMPLES;
        // If this spin saved time, also spin in the next wait. With this rule, the policy soon
        // changes to spinning when a peer begins to send requests in quick succession.
        self.waits_slept = if cost_ns < self.worth_ns() { WAITS_PER_TRIAL } else { 0 };
    }

    /// Records that the kernel preempted the calling thread for `away_ns` nanoseconds until now.
    pub fn on_descheduled(&mut self, now: Instant, away_ns: u64) {
        if away_ns >= SHORT_SLEEPS * self.sleep_cost_ns {
            self.away_ns = away_ns.min(AWAY_NS_MAX);
            self.short_until = now.after_ns(self.away_ns * SHORT_FACTOR);
        }
    }

    /// Returns the longest sleep of a polling application, in nanoseconds. The result is the time
    /// for which other threads last used the application's processor, or the cost of a sleep if
    /// that is longer.
    pub fn poll_sleep_ns(&self) -> u64 {
        self.away_ns.max(self.sleep_cost_ns)
    }

    /// Decides how a thread that waits in a call continues, `idle_ns` nanoseconds after the wait
    /// began.
    pub const fn while_waiting(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.spin_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Decides how a polling application continues after a call that found nothing. The application
    /// has polled for `idle_ns` nanoseconds without finding anything. If the result is a sleep, the
    /// sleep must last at most [`WaitPolicy::poll_sleep_ns`].
    pub fn while_polling(&self, now: Instant, idle_ns: u64) -> Outcome {
        // The application may poll several queues, one after the other. Without a minimum for the
        // spin, it would sleep before it has polled each of them.
        let limit_ns = self.spin_limit_ns().max(self.sleep_cost_ns / 4);
        if now >= self.short_until || idle_ns < limit_ns {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Decides how a polling thread of a real-time class continues. The thread has polled for
    /// `idle_ns` nanoseconds without finding anything. Because the kernel does not preempt a
    /// real-time thread for threads of other classes, [`WaitPolicy::while_polling`] does not suit
    /// this thread. If the result is a sleep, the sleep must last at most
    /// [`WaitPolicy::real_time_sleep_ns`].
    pub const fn while_polling_in_real_time(&self, idle_ns: u64) -> Outcome {
        if idle_ns < self.real_time_limit_ns() { Outcome::Spin } else { Outcome::SleepUntilEvent }
    }

    /// Returns how long a thread of a real-time class polls without finding anything before it
    /// sleeps, in nanoseconds.
    pub const fn real_time_limit_ns(&self) -> u64 {
        REAL_TIME_SPINS * self.sleep_cost_ns
    }

    /// Returns the longest sleep of a thread of a real-time class that has polled for
    /// [`WaitPolicy::real_time_limit_ns`], in nanoseconds.
    pub const fn real_time_sleep_ns(&self) -> u64 {
        REAL_TIME_SLEEPS * self.sleep_cost_ns
    }

    /// Decides how the progress thread continues, `idle_ns` nanoseconds after its last work.
    ///
    /// While the application polls, the progress thread leaves the links to the application.
    /// Otherwise each frame would also wake the progress thread, or a spinning progress thread
    /// would take processor time from the application.
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
        // Halve the time instead of setting it to 0, because a single look may come between two
        // turns of an application that still polls.
        self.polling_ns /= 2;
        let limit_ns = self.spin_limit_ns();
        let is_alone = now >= self.alone_from;
        if idle_ns < if is_alone { limit_ns } else { limit_ns.min(self.sleep_cost_ns) } {
            Outcome::Spin
        } else {
            Outcome::SleepUntilEvent
        }
    }

    /// Returns how long the progress thread leaves the links to a polling application after this
    /// look, in nanoseconds. This time grows with the time for which the application has polled.
    fn aside_ns(&mut self, now: Instant, away_after_ns: u64, polled_ns_ago: u64) -> u64 {
        let cost_ns = self.sleep_cost_ns;
        if self.waits_in_memory() {
            if self.looks_polling == 0 {
                return cost_ns / 4;
            }
            // Two looks in a row have found that the application had just posted or polled. An
            // application that posts and then waits for bytes in its memory would not have done
            // this before the second look.
            self.found_waiting = 0;
        }
        // A look costs less than a sleep, and the time between two looks is at least twice the cost
        // of a sleep. So even the first looks take at most half of a processor.
        let least_ns = 2 * cost_ns;
        if now < self.short_until {
            return away_after_ns.saturating_sub(polled_ns_ago).max(least_ns);
        }
        let aside_ns = (self.polling_ns / ASIDE_DIVISOR).max(least_ns).min(ASIDE_NS_MAX);
        self.polling_ns = (self.polling_ns + aside_ns).min(ASIDE_NS_MAX * ASIDE_DIVISOR);
        aside_ns
    }

    /// Records the first look of the progress thread after it has gone on watch. `found` says
    /// whether this look found work. The application last polled or posted `polled_ns_ago`
    /// nanoseconds ago.
    pub fn on_served(&mut self, found: bool, polled_ns_ago: u64) {
        // If the application is busy with other work, the progress thread normally finds work. This
        // says nothing about polling, so do not count it.
        if found && polled_ns_ago < APPLICATION_GONE_NS {
            self.found_waiting = self.found_waiting.saturating_add(1);
        }
    }

    /// Returns the time without a poll after which the application counts as not serving the links,
    /// in nanoseconds.
    fn away_after_ns(&self, now: Instant) -> u64 {
        if self.waits_in_memory() {
            self.sleep_cost_ns / 4
        } else if now < self.short_until {
            (SHORT_ASIDE * self.sleep_cost_ns).min(ASIDE_NS_MAX)
        } else {
            self.sleep_cost_ns
        }
    }

    /// Returns whether the application posts and then waits for bytes in its memory without
    /// polling. Such an application needs the progress thread immediately.
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

    /// Returns the third smallest of the eight values. In the wake-ups with larger values, the
    /// thread may have waited for a processor.
    fn undisturbed(&self) -> u64 {
        let mut sorted = self.values;
        sorted.sort_unstable();
        sorted.get(WAKE_UPS / 4).copied().unwrap_or_default()
    }
}

/// Number of wake-ups that the policy remembers, and that a progress thread measures when it
/// starts. The policy takes the third smallest value as the cost of a sleep. This is correct if the
/// thread got a processor immediately in at least three of eight wake-ups.
pub const WAKE_UPS: usize = 8;

/// Largest cost of a sleep that the policy accepts, in nanoseconds: ten times the cost on the hosts
/// measured so far. A larger value means that the thread waited for a processor in all measured
/// wake-ups, so the measurement shows nothing about sleeps.
const SLEEP_COST_NS_MAX: u64 = 500_000;

/// Number of waits without a spin after which the policy tries a spin. Such a trial costs at most
/// as much as a sleep, so trials add at most 6 % to the cost of waiting.
const WAITS_PER_TRIAL: u32 = 16;

/// Number of waits (about) from which the mean cost of a spin is computed. With this number, the
/// policy stops spinning after some consecutive failures, but not after a single failure.
const SAMPLES: u64 = 4;

/// Longest spin of a polling thread, as a multiple of the cost of a sleep.
///
/// With this factor, the thread spends a few per cent of its time slice on a spin, and keeps the
/// rest of the slice for the moment when its peer runs again. With a factor of 1, the thread would
/// be asleep when some answers arrive: those that take as long as a sleep, such as answers to
/// requests of 16 KiB.
const POLL_WEIGHT: u64 = 2;

/// Time for which a thread of a real-time class polls without finding anything before it sleeps
/// once, as a multiple of the cost of a sleep. If an answer arrives during this sleep, the sleep
/// delays the answer by at most 2 % of the time for which the thread has polled.
const REAL_TIME_SPINS: u64 = 64;

/// Longest sleep of a thread of a real-time class, as a multiple of the cost of a sleep.
///
/// With this factor, 6 % of the processor is left for threads of other classes. A kernel that
/// throttles real-time threads leaves 5 %. With a factor of 1, a peer of the lowest class would be
/// interrupted inside its engine so often that an answer takes 100 ms.
const REAL_TIME_SLEEPS: u64 = 4;

/// Shortest absence from the processor that counts as a lost time slice, as a multiple of the cost
/// of a sleep. If a thread was descheduled for less time, a progress thread or the kernel used the
/// processor for a moment.
const SHORT_SLEEPS: u64 = 4;

/// If the kernel has descheduled a thread, processors count as short for 64 times as long as the
/// thread was descheduled. After that, a polling thread spins again. If processors are still short,
/// the spin costs the thread one time slice. So the thread loses at most one in 64 time slices.
const SHORT_FACTOR: u64 = 64;

/// Longest time for which a thread counts as descheduled, in nanoseconds: a time slice of the
/// kernel. Without this limit, processors would count as short for an hour if the host was
/// suspended for a minute.
const AWAY_NS_MAX: u64 = 4_000_000;

/// While an application polls, the progress thread leaves the links to the application for this
/// fraction (1/12) of the time for which the application has polled.
///
/// If an application alternately polls for 5 ms and computes for 5 ms, the progress thread leaves
/// the links for at most 0.5 ms. This is half of the shortest probe timeout of a peer.
const ASIDE_DIVISOR: u64 = 12;

/// Longest time for which the progress thread leaves the links to a polling application, in
/// nanoseconds. With this limit, the progress thread makes 250 looks a second. With 500 looks a
/// second, the application runs 4 % slower, because the looks evict its data from the caches.
const ASIDE_NS_MAX: u64 = 4_000_000;

/// Longest time for which the progress thread leaves the links to a polling application while
/// processors are short, as a multiple of the cost of a sleep. If the kernel has descheduled the
/// application, its peers wait for at most this time.
///
/// Each look takes a processor, perhaps the processor of the application, and ends the time slice
/// of the thread that ran on this processor. With a factor of 4, looks took half of the time of
/// ranks that share processors.
const SHORT_ASIDE: u64 = 16;

/// If the first look of the progress thread on watch has found work this many times, although the
/// application had recently polled or posted, the policy concludes that the application waits for
/// bytes in its memory. The looks need not be consecutive.
const FOUND_WAITING_MIN: u32 = 4;

/// Number of consecutive looks in which the progress thread must find the application polling
/// before the policy concludes that the application really polls, and does not only post.
const POLLING_LOOKS_MIN: u32 = 4;

/// If an application that polled has not polled for this time, in nanoseconds, the policy concludes
/// that the application is busy with other work.
///
/// During this time, the application may be runnable and waiting for its processor. A progress
/// thread that spins without limit would take that processor. The time suffices for one time slice
/// of each of thirty competing threads.
const APPLICATION_GONE_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests;
