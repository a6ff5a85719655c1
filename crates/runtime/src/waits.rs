//! Applies the waiting policy to the threads of a process: takes the measurements that the policy
//! needs, and carries out its decisions.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use delivery::Instant;
use waiting::{Application, Moderation, Outcome, SleepCost, Spinning, WaitPolicy, WakeUp};

use crate::cell::Drive;
use crate::runtime::{Shared, lock};
use crate::sleep::{Slept, is_real_time, preemptions, processor_ns};

/// The waiting policies of an endpoint. Each kind of thread has a policy of its own, because
/// threads that wait for their own operations measure other times than threads that serve peers.
#[derive(Debug)]
pub(crate) struct Waits {
    /// The policy for threads of the application in calls that wait.
    application: Published,
    /// The policy for threads of the application that poll.
    polling: Published,
    /// The policy for the thread on watch, which serves peers.
    server: Published,
    /// Decides from the arrival of frames whether the thread on watch receives them at intervals.
    moderation: Mutex<Moderation>,
    spinning: Spinning,
    /// Time, in nanoseconds, since which all polls of the application have found nothing; 0 if
    /// unknown.
    polls_idle_since: AtomicU64,
    /// Earliest time in nanoseconds at which a polling thread that finds nothing checks whether it
    /// is in a real-time scheduling class.
    real_time_due: AtomicU64,
    /// Time in nanoseconds at which a thread of the application first found another thread inside
    /// the engine; 0 after a thread of the application has entered the engine.
    kept_out_since: AtomicU64,
}

impl Waits {
    pub(crate) fn new(spinning: Spinning) -> Self {
        Self {
            application: Published::new(WaitPolicy::new(spinning, SLEEP_COST_ASSUMED_NS)),
            polling: Published::new(WaitPolicy::for_polling(SLEEP_COST_ASSUMED_NS)),
            server: Published::new(WaitPolicy::new(spinning, SLEEP_COST_ASSUMED_NS)),
            moderation: Mutex::default(),
            spinning,
            polls_idle_since: AtomicU64::new(0),
            real_time_due: AtomicU64::new(0),
            kept_out_since: AtomicU64::new(0),
        }
    }

    /// Returns the cost of an undisturbed sleep on this host, in nanoseconds.
    pub(crate) fn sleep_cost_ns(&self) -> u64 {
        self.application.sleep_cost_ns.load(Ordering::Relaxed)
    }

    /// Records that a thread of the application has entered the engine.
    #[inline]
    pub(crate) fn on_entered(&self) {
        if self.kept_out_since.load(Ordering::Relaxed) != 0 {
            self.kept_out_since.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a poll of the application found something. Called for a poll that did not drive
    /// the engine, because the engine does not notice such a poll.
    #[inline]
    pub(crate) fn on_found(&self) {
        if self.polls_idle_since.load(Ordering::Relaxed) != 0 {
            self.polls_idle_since.store(0, Ordering::Relaxed);
        }
    }

    /// Applies a change to each policy.
    fn for_all(&self, change: impl Fn(&mut WaitPolicy)) {
        for published in [&self.application, &self.polling, &self.server] {
            published.change(&change);
        }
    }
}

/// A policy, with copies of the values that threads read without its lock.
#[derive(Debug)]
struct Published {
    policy: Mutex<WaitPolicy>,
    spin_limit_ns: AtomicU64,
    sleep_cost_ns: AtomicU64,
    /// The part of `sleep_cost_ns` that is processor time.
    sleep_spent_ns: AtomicU64,
    short_until: AtomicU64,
}

impl Published {
    fn new(policy: WaitPolicy) -> Self {
        Self {
            spin_limit_ns: AtomicU64::new(policy.spin_limit_ns()),
            sleep_cost_ns: AtomicU64::new(policy.sleep_cost_ns()),
            sleep_spent_ns: AtomicU64::new(policy.sleep_cost().spent_ns),
            short_until: AtomicU64::new(policy.short_until().0),
            policy: Mutex::new(policy),
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut WaitPolicy) -> R) -> R {
        self.publish(&mut lock(&self.policy), change)
    }

    /// Records a wait. If several threads call this at the same time, records only one of their
    /// waits.
    fn on_waited(&self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        if let Ok(mut policy) = self.policy.try_lock() {
            self.publish(&mut policy, |policy| policy.on_waited(took_ns, limit_ns, has_slept));
        }
    }

    fn publish<R>(&self, policy: &mut WaitPolicy, change: impl FnOnce(&mut WaitPolicy) -> R) -> R {
        let result = change(policy);
        self.spin_limit_ns.store(policy.spin_limit_ns(), Ordering::Relaxed);
        let SleepCost { total_ns, spent_ns } = policy.sleep_cost();
        self.sleep_cost_ns.store(total_ns, Ordering::Relaxed);
        self.sleep_spent_ns.store(spent_ns, Ordering::Relaxed);
        self.short_until.store(policy.short_until().0, Ordering::Relaxed);
        result
    }

    fn spin_limit_ns(&self) -> u64 {
        self.spin_limit_ns.load(Ordering::Relaxed)
    }
}

/// The part of a wait in which a thread of the application spins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    started_at: Instant,
    now: Instant,
    /// Longest time for which the thread spins, in nanoseconds.
    limit_ns: u64,
    deadline: Instant,
    looks: u32,
}

impl Spin {
    /// Begins a wait of at most `limit`.
    pub(crate) fn begin(shared: &Shared, limit: Option<Duration>) -> Self {
        let now = shared.host.clock.now();
        let deadline = limit.map_or(Instant::NEVER, |limit| now + limit);
        let limit_ns = shared.waits.application.spin_limit_ns();
        Self { started_at: now, now, limit_ns, deadline, looks: 0 }
    }

    /// Returns the time at which the wait ends.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn has_ended(&self) -> bool {
        self.now >= self.deadline
    }

    /// Returns whether the thread goes to sleep without driving the engine first. If a frame has
    /// already arrived, it ends the sleep at once.
    pub(crate) fn sleeps_at_once(&self, shared: &Shared) -> bool {
        if self.limit_ns > 0 || self.has_ended() {
            return false;
        }
        // Going to sleep at once counts as a poll.
        shared.host.polled_at.store(self.now.0, Ordering::Relaxed);
        shared.host.looked_at.store(self.now.0, Ordering::Relaxed);
        true
    }

    /// Returns the number of looks (passes through the engine) that have found nothing so far.
    pub(crate) fn looks(&self) -> u32 {
        self.looks
    }

    /// Counts a look (a pass through the engine) that found nothing. Returns whether to look again
    /// before going to sleep.
    pub(crate) fn goes_on(&mut self, shared: &Shared) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.now = shared.host.clock.now();
        shared.demand_sound();
        let goes_on = self.now < self.started_at.after_ns(self.limit_ns).min(self.deadline);
        if goes_on {
            std::hint::spin_loop();
        }
        goes_on
    }

    /// Records that a look has found the event for which the thread waits.
    pub(crate) fn found(&self, shared: &Shared) {
        // If the first look found the event, the thread did not wait. Do not record such a wait,
        // because it does not show how long to spin.
        if self.looks > 0 {
            let took_ns = self.now.since_ns(self.started_at);
            shared.waits.application.on_waited(took_ns, self.limit_ns, false);
        }
    }

    /// Records that the event for which the thread waits has occurred. `has_slept`: the thread
    /// slept during the wait.
    #[cold]
    pub(crate) fn came(&self, shared: &Shared, has_slept: bool) {
        let took_ns = shared.host.clock.now().since_ns(self.started_at);
        shared.waits.application.on_waited(took_ns, self.limit_ns, has_slept);
    }
}

/// State of a thread on watch between two looks (passes through the engine).
#[derive(Debug, Default)]
pub(crate) struct Looking {
    /// Nanoseconds for which the thread spins; `None` until its first look that finds no work.
    limit_ns: Option<u64>,
    has_slept: bool,
    /// True if the last sleep was an interval in which frames stay unread.
    slept_interval: bool,
}

impl Shared {
    /// Records that a thread on watch has slept, or was about to sleep.
    pub(crate) fn on_slept(&self, looking: &mut Looking, slept: Slept) {
        looking.slept_interval = slept == Slept::Interval;
        looking.has_slept |= !matches!(slept, Slept::Not | Slept::Interval);
        if looking.has_slept {
            // If the thread slept before its first look, `limit_ns` is not set yet.
            looking.limit_ns.get_or_insert_with(|| self.waits.server.spin_limit_ns());
        }
    }

    /// Drives the engine once for the thread on watch, which serves peers. Also returns whether
    /// there was work.
    pub(crate) fn look(&self, looking: &mut Looking) -> (Drive, bool) {
        let worked_at = Instant(self.host.worked_at.load(Ordering::Relaxed));
        if looking.has_slept {
            self.host.frame_waited_ns.store(0, Ordering::Relaxed);
        }
        let frames_before = self.host.frames.load(Ordering::Relaxed);
        let (outcome, worked) = self.drive_all();
        // After this call, the caller checks for the event for which it waits. So clear the flag
        // that requests this check.
        self.host.must_look.store(false, Ordering::Relaxed);
        let frames = self.host.frames.load(Ordering::Relaxed) - frames_before;
        self.on_looked(frames, std::mem::take(&mut looking.slept_interval));
        let server = &self.waits.server;
        if !worked {
            looking.limit_ns.get_or_insert_with(|| server.spin_limit_ns());
            return (outcome, worked);
        }
        let Looking { limit_ns, has_slept, .. } = std::mem::take(looking);
        // The value is 0 if the driver of the link reports no time of arrival.
        let waited_ns = self.host.frame_waited_ns.load(Ordering::Relaxed);
        if has_slept && waited_ns != 0 {
            self.waits.for_all(|policy| policy.on_woken_by_frame(waited_ns));
        }
        if let Some(limit_ns) = limit_ns {
            let now = Instant(self.host.worked_at.load(Ordering::Relaxed));
            server.on_waited(now.since_ns(worked_at), limit_ns, has_slept);
        }
        (outcome, worked)
    }

    /// Records how many frames a thread on watch found, and whether its last sleep was an interval
    /// in which frames stay unread.
    fn on_looked(&self, frames: u64, slept_interval: bool) {
        if frames == 0 && !slept_interval {
            return;
        }
        let now = self.host.clock.now();
        let mut moderation = lock(&self.waits.moderation);
        if frames == 0 {
            moderation.on_silence(now);
        } else {
            // A peer waits for each answer, like the application waits for each notification. So
            // count answers as notifications.
            let answers = self.host.answers_begun.load(Ordering::Relaxed);
            let notified = self.host.arming.reports().wrapping_add(answers);
            moderation.on_frames(now, frames, notified, self.waits.sleep_cost_ns());
        }
    }

    /// Records the end of an interval that should have ended at `until`.
    pub(crate) fn on_interval(&self, until: Instant) {
        let now = self.host.clock.now();
        let late_ns = now.since_ns(until);
        lock(&self.waits.moderation).on_interval(now, late_ns, self.waits.sleep_cost_ns());
    }

    /// Returns for how many nanoseconds from now frames may stay unread; `None` if the thread
    /// should wait for the next frame.
    pub(crate) fn interval_ns(&self) -> Option<u64> {
        let active_at = Instant(self.host.polled_at.load(Ordering::Relaxed));
        let total_ns = self.waits.sleep_cost_ns();
        let spent_ns = self.waits.application.sleep_spent_ns.load(Ordering::Relaxed);
        let sleep = SleepCost { total_ns, spent_ns };
        let may_spin = self.waits.spinning == Spinning::Learned;
        let now = self.host.clock.now();
        lock(&self.waits.moderation).interval_ns(now, sleep, may_spin, active_at)
    }

    /// Returns whether a thread that would spin sleeps for an interval instead.
    pub(crate) fn moderates_instead(&self) -> bool {
        self.waits.spinning == Spinning::Learned && self.interval_ns().is_some()
    }

    /// Decides how the progress thread waits.
    pub(crate) fn while_serving(&self) -> Outcome {
        let application =
            Application { is_inside: self.is_driven(), polled_ns_ago: self.polled_ns_ago() };
        let (now, idle_ns) = self.idle_ns();
        self.waits.server.change(|policy| policy.while_serving(now, idle_ns, application))
    }

    /// Records whether the progress thread found work when it began to serve.
    pub(crate) fn on_served(&self, found: bool) {
        let polled_ns_ago = self.polled_ns_ago();
        self.waits.server.change(|policy| policy.on_served(found, polled_ns_ago));
    }

    /// Decides whether a thread of the application that is on watch spins. While another thread
    /// polls, the thread on watch does not spin.
    pub(crate) fn spins_on_watch(&self) -> bool {
        let (_, idle_ns) = self.idle_ns();
        idle_ns < self.waits.server.spin_limit_ns()
            && self.polled_ns_ago() >= self.waits.sleep_cost_ns()
            && !self.is_stopping.load(Ordering::Relaxed)
            && !self.moderates_instead()
    }

    /// Returns the current time, and the nanoseconds since the last turn that did work.
    fn idle_ns(&self) -> (Instant, u64) {
        let now = self.host.clock.now();
        (now, now.since_ns(Instant(self.host.worked_at.load(Ordering::Relaxed))))
    }

    /// Records the end of a poll of the application. `before`: time of the poll before this one.
    /// `worked`: the turn did work.
    ///
    /// While no thread lacks a processor, this costs four loads.
    #[inline]
    pub(crate) fn on_polled(&self, before: Instant, outcome: Drive, worked: bool) {
        let now = Instant(self.host.polled_at.load(Ordering::Relaxed));
        if now.0 >= self.waits.real_time_due.load(Ordering::Relaxed) {
            self.on_polled_for_long();
        }
        let is_late = now.since_ns(before) >= self.waits.sleep_cost_ns();
        if is_late || now.0 < self.waits.polling.short_until.load(Ordering::Relaxed) {
            self.on_polled_late_or_short(now, before, outcome == Drive::Drove && !worked);
        }
    }

    #[cold]
    fn on_polled_late_or_short(&self, now: Instant, before: Instant, found_nothing: bool) {
        let Waits { polling, polls_idle_since, .. } = &self.waits;
        let away_ns = now.since_ns(before);
        if away_ns >= self.waits.sleep_cost_ns() {
            // Between the two polls, the thread ran other code, or the kernel descheduled it.
            // Record only the second case.
            if was_preempted() && before != Instant(0) {
                self.waits.for_all(|policy| policy.on_descheduled(now, away_ns));
            }
            polls_idle_since.store(now.0, Ordering::Relaxed);
        }
        if now.0 >= polling.short_until.load(Ordering::Relaxed) {
            return;
        }
        let idle_since = Instant(polls_idle_since.load(Ordering::Relaxed));
        if idle_since == Instant(0) {
            polls_idle_since.store(now.0, Ordering::Relaxed);
            return;
        }
        let idle_ns = now.since_ns(idle_since);
        let sleeps_for_ns = polling.change(|policy| {
            let sleeps = found_nothing && policy.while_polling(now, idle_ns) != Outcome::Spin;
            if sleeps || !found_nothing {
                policy.on_waited(idle_ns, policy.spin_limit_ns(), sleeps);
            }
            sleeps.then(|| policy.poll_sleep_ns())
        });
        if let Some(sleeps_for_ns) = sleeps_for_ns {
            // The end of this sleep does not show how long to spin, so do not record it.
            polls_idle_since.store(0, Ordering::Relaxed);
            let _found = self.sleep_polling(sleeps_for_ns, self.waits.sleep_cost_ns());
        } else if !found_nothing {
            polls_idle_since.store(now.0, Ordering::Relaxed);
        }
    }

    /// Lets a thread in a real-time scheduling class sleep after it has polled without result for a
    /// long time. The reason: the kernel does not preempt a real-time thread for a thread in
    /// another class, for example a thread of a peer on the same host.
    #[cold]
    fn on_polled_for_long(&self) {
        let Waits { polling, real_time_due, .. } = &self.waits;
        let (now, idle_ns) = self.idle_ns();
        let (outcome, limit_ns, sleeps_for_ns) = polling.change(|policy| {
            let outcome = policy.while_polling_in_real_time(idle_ns);
            (outcome, policy.real_time_limit_ns(), policy.real_time_sleep_ns())
        });
        if outcome == Outcome::Spin {
            real_time_due.store(now.after_ns(limit_ns - idle_ns).0, Ordering::Relaxed);
            return;
        }
        if is_real_time() && self.sleep_polling(sleeps_for_ns, sleeps_for_ns) {
            // A frame rarely arrives during such a short sleep. If a frame has arrived, its sender
            // probably waited for the processor of this thread.
            let now = self.host.clock.now();
            self.waits.for_all(|policy| policy.on_descheduled(now, limit_ns));
        }
        real_time_due.store(self.host.clock.now().after_ns(limit_ns).0, Ordering::Relaxed);
    }

    /// Lets other threads use the processor of a polling thread: sleeps until an event, for at most
    /// `at_most_ns`. If another thread sleeps on the links, no event wakes this thread, so it
    /// sleeps for `unwoken_ns`. Returns whether a turn did work during the sleep.
    fn sleep_polling(&self, at_most_ns: u64, unwoken_ns: u64) -> bool {
        let worked_at = self.host.worked_at.load(Ordering::Relaxed);
        if self.host.waiters.take_watch() {
            let _slept = self.sleep_on_links(Some(self.host.clock.now().after_ns(at_most_ns)));
            self.look(&mut Looking { has_slept: true, ..Looking::default() });
            self.host.waiters.give_up_watch();
            self.delist();
        } else {
            std::thread::sleep(Duration::from_nanos(unwoken_ns));
        }
        self.host.polled_at.store(self.host.clock.now().0, Ordering::Relaxed);
        self.host.worked_at.load(Ordering::Relaxed) != worked_at
    }

    /// Lets another thread inside the engine continue, because the calling thread must wait for it.
    /// Spins briefly at first. If the other thread stays inside, the kernel has probably
    /// descheduled it, perhaps in favour of this thread. Therefore this thread then sleeps.
    #[cold]
    pub(crate) fn make_way(&self) {
        let (waits, now) = (&self.waits, self.host.clock.now());
        self.host.polled_at.store(now.0, Ordering::Relaxed);
        let since = waits.kept_out_since.load(Ordering::Relaxed);
        if since == 0 {
            waits.kept_out_since.store(now.0, Ordering::Relaxed);
        } else if now.since_ns(Instant(since)) >= waits.sleep_cost_ns() {
            waits.kept_out_since.store(0, Ordering::Relaxed);
            std::thread::sleep(Duration::from_nanos(waits.sleep_cost_ns()));
            return;
        }
        std::hint::spin_loop();
    }

    /// Records a sleep that should have ended at `until`. The thread must have precise sleeps
    /// ([`sleep_precisely`](crate::sleep::sleep_precisely)). `spent_before_ns`: processor time that
    /// the thread had used before the sleep.
    pub(crate) fn on_wake_up(&self, until: Instant, spent_before_ns: u64) {
        let late_ns = self.host.clock.now().since_ns(until);
        let spent_ns = processor_ns().saturating_sub(spent_before_ns);
        self.waits.for_all(|policy| policy.on_wake_up(WakeUp { late_ns, spent_ns }));
    }
}

/// Returns whether the kernel has preempted the calling thread since the last call.
fn was_preempted() -> bool {
    thread_local! {
        static SEEN: Cell<Option<u64>> = const { Cell::new(None) };
    }
    let now = preemptions();
    SEEN.replace(Some(now)).is_some_and(|before| before != now)
}

/// Assumed cost of a sleep in nanoseconds, until the progress thread has measured one. Without a
/// progress thread, this value stays.
const SLEEP_COST_ASSUMED_NS: u64 = 30_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::runtime::{Runtime, RuntimeConfig};

    /// Read requests for one word may arrive at the rate of a stream, but a peer waits for each
    /// answer. So the thread must read these requests at once, and not only after an interval.
    #[test]
    fn requests_with_waiting_peers_are_not_moderated_as_a_stream() {
        let mut config = RuntimeConfig::from_entropy().expect("the kernel has entropy");
        config.progress_thread = false;
        let runtime = Runtime::start(config, Vec::new(), Box::new(|_event| {})).expect("it starts");
        let shared = &runtime.shared;
        let is_moderated = |answers: u64, looks: u32| {
            (0..looks).any(|_| {
                let begun = shared.host.answers_begun.load(Ordering::Relaxed);
                shared.host.answers_begun.store(begun + answers, Ordering::Relaxed);
                shared.on_looked(1, false);
                let until = shared.host.clock.now().after_ns(5_000);
                while shared.host.clock.now() < until {}
                shared.interval_ns().is_some()
            })
        };
        assert!(!is_moderated(1, 200));
        assert!(is_moderated(0, 100_000), "acknowledgements are a stream");
    }

    /// While a thread of the application is on watch, the progress thread stays parked until that
    /// thread wakes it.
    #[test]
    fn a_polling_thread_hands_the_links_to_the_progress_thread_after_its_sleep() {
        let mut config = RuntimeConfig::from_entropy().expect("the kernel has entropy");
        config.progress_thread = false;
        let runtime = Runtime::start(config, Vec::new(), Box::new(|_event| {})).expect("it starts");
        runtime.shared.is_resting.store(true, Ordering::SeqCst);
        assert!(!runtime.shared.sleep_polling(1, 1), "nothing has come");
        assert!(!runtime.shared.is_resting.load(Ordering::SeqCst), "no thread serves the links");
    }
}
