//! A pure model of Linux's EEVDF scheduler: the processors of a simulated host and the threads that
//! share them.
//!
//! Each processor has a queue of runnable threads, all with the same weight. The comments use these
//! terms:
//!
//! * The *virtual runtime* of a thread is the processor time that it has received. The *fair share*
//!   of a queue's threads is the average of their virtual runtimes.
//! * A thread is *eligible* if it has received at most the fair share.
//! * The *deadline* of a thread is the virtual runtime at which it has used its current slice.
//! * The *lag* of a thread is the fair share minus its virtual runtime. If a thread with a positive
//!   lag sleeps, its lag stays the same. If a thread with a negative lag sleeps, its lag decays
//!   while other threads run.
//!
//! The eligible thread with the earliest deadline runs. It stops running in two cases:
//!
//! * It has used its slice.
//! * It has received more than the fair share, and an eligible thread with an earlier deadline
//!   enters the queue.
//!
//! Sources: I. Stoica, H. Abdel-Wahab: Earliest Eligible Virtual Deadline First, 1995, and
//! `kernel/sched/fair.c`.
//!
//! The caller decides what each thread does next: work for some time, sleep, or yield.
//! [`Scheduler::next_at`] returns the time at which [`Scheduler::advance`] has something to report.

mod queue;

#[cfg(test)]
mod tests;

use queue::Queue;

/// The processors of a host, and the cost of switching between threads. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Number of processors, at least 1.
    pub processors: usize,
    /// Length of a slice. After this processor time, a running thread lets the next thread run.
    pub slice_ns: u64,
    /// Processor time to switch to another thread.
    pub switch_ns: u64,
    /// Processor time that a thread needs to fall asleep.
    pub sleep_ns: u64,
    /// Processor time that a thread needs to wake up.
    pub wake_ns: u64,
    /// Time between a wake-up and the thread's entry into the queue of an idle processor. The
    /// processor must first leave its idle state.
    pub idle_latency_ns: u64,
    /// Time between a wake-up and the thread's entry into the queue of a busy processor. The
    /// processor must first be interrupted.
    pub busy_latency_ns: u64,
}

impl Settings {
    /// Returns settings with `processors` processors like those of a small virtual machine. If a
    /// thread of this host sleeps until a frame arrives, the sleep costs about 25 µs on an idle
    /// processor, and 8 µs on a busy one.
    pub const fn usual(processors: usize) -> Self {
        Self {
            processors,
            slice_ns: SLICE_NS,
            switch_ns: 1_500,
            sleep_ns: 2_000,
            wake_ns: 2_000,
            idle_latency_ns: 20_000,
            busy_latency_ns: 3_000,
        }
    }

    /// Returns these settings for processors with `quarters`/4 of the speed. The length of a slice
    /// stays the same.
    #[must_use]
    pub fn scaled(self, quarters: u32) -> Self {
        let scaled = |ns: u64| ns * 4 / u64::from(quarters.max(1));
        Self {
            switch_ns: scaled(self.switch_ns),
            sleep_ns: scaled(self.sleep_ns),
            wake_ns: scaled(self.wake_ns),
            idle_latency_ns: scaled(self.idle_latency_ns),
            busy_latency_ns: scaled(self.busy_latency_ns),
            ..self
        }
    }

    /// Returns the cost of a sleep that ends immediately, in nanoseconds. The cost is the thread's
    /// own processor time, plus the time until the thread runs again.
    pub const fn sleep_cost_ns(&self) -> u64 {
        self.sleep_ns + self.wake_ns + self.switch_ns + self.idle_latency_ns
    }
}

/// A thread of one [`Scheduler`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ThreadId(usize);

/// What [`Scheduler::advance`] reports to the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Report {
    /// A running thread has finished its work or has woken up. The caller must give it new work.
    Ready {
        /// The thread.
        thread: ThreadId,
    },
    /// A thread that was preempted during its work runs again.
    Resumed {
        /// The thread.
        thread: ThreadId,
        /// Time for which the thread waited for a processor, in nanoseconds.
        away_ns: u64,
    },
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// The thread sleeps until it is woken up.
    Asleep,
    /// The thread was woken up, but has not entered a queue yet.
    Waking,
    /// The thread waits for a processor.
    Runnable,
    /// The thread has a processor.
    Running,
}

/// The processors of one host. Their behaviour depends only on the calls: there is no randomness
/// and no clock.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: Settings,
    now_ns: u64,
    threads: Vec<Thread>,
    queues: Vec<Queue>,
    balance_at_ns: u64,
}

#[derive(Clone, Debug)]
struct Thread {
    state: State,
    /// The processor on which the thread runs or waits. If the thread sleeps, the processor on
    /// which it last ran.
    processor: usize,
    /// Processor time that the thread's work still needs, in nanoseconds. If it is 0 and
    /// `is_reported` is true, the scheduler does not report the thread again.
    left_ns: u64,
    /// Whether the thread falls asleep at the end of its work.
    falls_asleep: bool,
    /// Whether the end of the thread's work was reported, and the caller has given it no new work.
    is_reported: bool,
    /// Virtual runtime in nanoseconds, relative to the queue of its processor.
    runtime_ns: i64,
    /// Virtual runtime at which the thread will have used its slice, in nanoseconds.
    deadline_ns: i64,
    /// Lag of a thread that is not in a queue: the average virtual runtime of its last queue minus
    /// its own virtual runtime, in nanoseconds.
    lag_ns: i64,
    /// Average virtual runtime of the queue when the thread left the queue, in nanoseconds.
    left_at_ns: i64,
    /// Time when a waking thread enters a queue.
    wakes_at_ns: u64,
    /// Time at which a runnable thread began to wait for a processor.
    waits_since_ns: u64,
    /// Whether the thread was preempted during its work.
    was_preempted: bool,
    /// Processor time that the thread has received, in nanoseconds.
    ran_ns: u64,
}

impl Scheduler {
    /// Creates idle processors at time 0.
    pub fn new(settings: Settings) -> Self {
        let count = settings.processors.max(1);
        let queues = vec![Queue::default(); count];
        Self { settings, now_ns: 0, threads: Vec::new(), queues, balance_at_ns: BALANCE_NS }
    }

    /// Adds a sleeping thread.
    pub fn spawn(&mut self) -> ThreadId {
        let thread = ThreadId(self.threads.len());
        self.threads.push(Thread {
            state: State::Asleep,
            processor: thread.0 % self.queues.len(),
            left_ns: 0,
            falls_asleep: false,
            is_reported: true,
            runtime_ns: 0,
            deadline_ns: 0,
            lag_ns: 0,
            left_at_ns: 0,
            wakes_at_ns: 0,
            waits_since_ns: 0,
            was_preempted: false,
            ran_ns: 0,
        });
        thread
    }

    /// Adds a thread that always has work. The thread enters a queue immediately.
    pub fn spawn_busy(&mut self, now_ns: u64) -> ThreadId {
        self.account(now_ns);
        let thread = self.spawn();
        self.threads[thread.0].left_ns = FOREVER_NS;
        self.threads[thread.0].is_reported = false;
        self.enqueue(thread);
        thread
    }

    /// Returns the state of a thread.
    pub fn state(&self, thread: ThreadId) -> State {
        self.threads[thread.0].state
    }

    /// Returns the processor time that a thread has received, in nanoseconds. Counts it until the
    /// last call that had a time as an argument.
    pub fn ran_ns(&self, thread: ThreadId) -> u64 {
        self.threads[thread.0].ran_ns
    }

    /// Returns the processor time that a thread's work still needs, in nanoseconds. The result
    /// applies to the time of the last call that had a time as an argument.
    pub fn left_ns(&self, thread: ThreadId) -> u64 {
        self.threads[thread.0].left_ns
    }

    /// Returns how long a runnable thread has waited for a processor, in nanoseconds. The result
    /// applies to the time of the last call that had a time as an argument.
    pub fn waits_ns(&self, thread: ThreadId) -> u64 {
        self.now_ns - self.threads[thread.0].waits_since_ns
    }

    /// Gives a running thread `work_ns` of work, which replaces its current work.
    pub fn work(&mut self, now_ns: u64, thread: ThreadId, work_ns: u64) {
        self.account(now_ns);
        let state = &mut self.threads[thread.0];
        (state.left_ns, state.falls_asleep, state.is_reported) = (work_ns, false, false);
    }

    /// Makes a thread stop at the end of its current repetition. The thread must be running or
    /// runnable, and its work must consist of repetitions of `every_ns` each.
    pub fn finish_repetition(&mut self, now_ns: u64, thread: ThreadId, every_ns: u64) {
        self.account(now_ns);
        let state = &mut self.threads[thread.0];
        if !state.falls_asleep && !state.is_reported {
            state.left_ns %= every_ns.max(1);
        }
    }

    /// Makes a running thread fall asleep. If it is woken up before it sleeps, it stays awake.
    pub fn sleep(&mut self, now_ns: u64, thread: ThreadId) {
        self.work(now_ns, thread, self.settings.sleep_ns);
        self.threads[thread.0].falls_asleep = true;
    }

    /// Makes a running thread yield. The thread loses the rest of its slice, as if it had used it
    /// up, and its deadline moves by a whole slice. When the thread gets a processor again,
    /// [`Scheduler::advance`] reports it as [ready](Report::Ready).
    pub fn yield_now(&mut self, now_ns: u64, thread: ThreadId) {
        self.work(now_ns, thread, 0);
        let state = &mut self.threads[thread.0];
        let queue = &mut self.queues[state.processor];
        // In Linux 6.18, a thread that yields after it has received more than its fair share does
        // not lose the rest of its slice.
        if state.runtime_ns <= queue.average_ns {
            state.runtime_ns = state.runtime_ns.max(state.deadline_ns);
        }
        state.deadline_ns += self.settings.slice_ns.cast_signed();
        let processor = state.processor;
        queue.note_average(&self.threads);
        self.reschedule(processor);
    }

    /// Wakes a thread up. Does nothing if the thread is awake.
    pub fn wake(&mut self, now_ns: u64, thread: ThreadId) {
        self.account(now_ns);
        let has_idle = self.queues.iter().any(|queue| queue.running.is_none());
        let Settings { idle_latency_ns, busy_latency_ns, .. } = self.settings;
        let state = &mut self.threads[thread.0];
        // A thread that is falling asleep notices the wake-up before it sleeps, and stays awake.
        state.falls_asleep = false;
        if state.state == State::Asleep {
            state.state = State::Waking;
            state.wakes_at_ns =
                self.now_ns + if has_idle { idle_latency_ns } else { busy_latency_ns };
        }
    }

    /// Returns the time at which the caller must call [`Scheduler::advance`]; `u64::MAX` if no such
    /// call is necessary. Each call of another function can change the result.
    pub fn next_at(&self) -> u64 {
        let waking = self.threads.iter().filter(|thread| thread.state == State::Waking);
        let first = waking.map(|thread| thread.wakes_at_ns).min().unwrap_or(u64::MAX);
        let mut next_ns = first;
        for queue in &self.queues {
            let Some(running) = queue.running else { continue };
            let thread = &self.threads[running.0];
            if !thread.is_reported {
                next_ns = next_ns.min(self.now_ns.saturating_add(thread.left_ns));
            }
            if !queue.waiting.is_empty() {
                let slice_ns = (thread.deadline_ns - thread.runtime_ns).max(0).cast_unsigned();
                next_ns = next_ns.min(self.now_ns + slice_ns);
            }
        }
        if self.is_unbalanced() { next_ns.min(self.balance_at_ns) } else { next_ns }
    }

    /// Advances the time to `now_ns`, which must not be later than [`Scheduler::next_at`]. The
    /// caller must repeat this call until it returns `None`.
    pub fn advance(&mut self, now_ns: u64) -> Option<Report> {
        self.account(now_ns);
        self.take_woken();
        self.balance();
        for processor in 0..self.queues.len() {
            self.end_slice(processor);
            if let Some(report) = self.report(processor) {
                return Some(report);
            }
        }
        None
    }

    /// Adds the time since the last call to the runtimes of the running threads.
    fn account(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        if passed_ns == 0 {
            return;
        }
        self.now_ns = now_ns;
        for queue in &mut self.queues {
            if let Some(running) = queue.running {
                let thread = &mut self.threads[running.0];
                thread.runtime_ns += passed_ns.cast_signed();
                thread.ran_ns += passed_ns;
                thread.left_ns = thread.left_ns.saturating_sub(passed_ns);
            }
            queue.note_average(&self.threads);
        }
    }

    fn take_woken(&mut self) {
        for index in 0..self.threads.len() {
            let thread = &mut self.threads[index];
            if thread.state == State::Waking && thread.wakes_at_ns <= self.now_ns {
                (thread.left_ns, thread.is_reported) = (self.settings.wake_ns, false);
                self.enqueue(ThreadId(index));
            }
        }
    }

    /// Adds a thread to the queue with the fewest threads. If several queues are equally short,
    /// prefers the queue of the thread's last processor.
    fn enqueue(&mut self, thread: ThreadId) {
        let last = self.threads[thread.0].processor;
        let best = (0..self.queues.len())
            .min_by_key(|&processor| (self.queues[processor].len(), processor != last));
        let processor = best.unwrap_or(last);
        let forgiven_ns = self.queues[last].average_ns - self.threads[thread.0].left_at_ns;
        let state = &mut self.threads[thread.0];
        if state.lag_ns < 0 {
            state.lag_ns = (state.lag_ns + forgiven_ns.max(0)).min(0);
        }
        self.place(thread, processor);
        self.preempt(processor, thread);
    }

    /// Adds a thread to a queue so that its lag stays the same.
    fn place(&mut self, thread: ThreadId, processor: usize) {
        let queue = &mut self.queues[processor];
        let count = queue.len().cast_signed() as i64;
        let state = &mut self.threads[thread.0];
        // The thread itself changes the average of the queue. Without this correction, the thread
        // would lose a part of its lag.
        let lag_ns = if count > 0 { state.lag_ns * (count + 1) / count } else { 0 };
        state.runtime_ns = queue.average_ns - lag_ns;
        state.deadline_ns = state.runtime_ns + self.settings.slice_ns.cast_signed();
        (state.processor, state.state) = (processor, State::Runnable);
        state.waits_since_ns = self.now_ns;
        queue.waiting.push(thread);
        queue.note_average(&self.threads);
    }

    /// Removes a thread from its queue and records its lag.
    fn remove(&mut self, thread: ThreadId) {
        let most_ns = 2 * self.settings.slice_ns.cast_signed();
        let state = &mut self.threads[thread.0];
        let queue = &mut self.queues[state.processor];
        state.lag_ns = (queue.average_ns - state.runtime_ns).clamp(-most_ns, most_ns);
        queue.waiting.retain(|&other| other != thread);
        queue.running = queue.running.filter(|&other| other != thread);
        queue.note_average(&self.threads);
        let average_ns = self.queues[self.threads[thread.0].processor].average_ns;
        self.threads[thread.0].left_at_ns = average_ns;
    }

    /// Decides whether a thread that has entered the queue of `processor` runs now. The thread runs
    /// now in two cases: the processor is idle; or the running thread has received more than its
    /// share and the new thread has the earliest deadline.
    fn preempt(&mut self, processor: usize, thread: ThreadId) {
        let queue = &self.queues[processor];
        let Some(running) = queue.running else { return self.reschedule(processor) };
        let has_more = self.threads[running.0].runtime_ns > queue.average_ns;
        if has_more && queue.pick(&self.threads) == Some(thread) {
            self.reschedule(processor);
        }
    }

    /// If the running thread has used its slice, ends the slice.
    fn end_slice(&mut self, processor: usize) {
        let queue = &self.queues[processor];
        let Some(running) = queue.running else { return self.pull(processor) };
        let slice_ns = self.settings.slice_ns.cast_signed();
        let thread = &mut self.threads[running.0];
        if thread.runtime_ns >= thread.deadline_ns {
            thread.deadline_ns = thread.runtime_ns + slice_ns;
            self.reschedule(processor);
        }
    }

    /// Switches a processor to the thread that should run now.
    fn reschedule(&mut self, processor: usize) {
        let queue = &mut self.queues[processor];
        let Some(next) = queue.pick(&self.threads) else { return };
        let before = queue.running;
        if before == Some(next) {
            return;
        }
        queue.waiting.retain(|&other| other != next);
        queue.running = Some(next);
        if let Some(before) = before {
            queue.waiting.push(before);
            let thread = &mut self.threads[before.0];
            (thread.state, thread.waits_since_ns) = (State::Runnable, self.now_ns);
            thread.was_preempted = true;
        }
        let is_other = queue.ran_last.replace(next) != Some(next);
        let thread = &mut self.threads[next.0];
        thread.state = State::Running;
        if is_other {
            thread.left_ns = thread.left_ns.saturating_add(self.settings.switch_ns);
        }
    }

    /// Gives a processor without threads a waiting thread of another processor.
    fn pull(&mut self, processor: usize) {
        if self.queues[processor].waiting.is_empty() {
            let most = (0..self.queues.len()).max_by_key(|&other| self.queues[other].waiting.len());
            let waiting = most.and_then(|other| self.queues[other].waiting.first().copied());
            let Some(thread) = waiting else { return };
            self.migrate(thread, processor);
        }
        self.reschedule(processor);
    }

    fn migrate(&mut self, thread: ThreadId, processor: usize) {
        let since_ns = self.threads[thread.0].waits_since_ns;
        self.remove(thread);
        self.place(thread, processor);
        self.threads[thread.0].waits_since_ns = since_ns;
    }

    /// Returns the processors with the longest and the shortest queue. Returns `None` if both are
    /// equally long or no thread waits.
    fn unbalanced(&self) -> Option<(usize, usize)> {
        let by_length = |&processor: &usize| self.queues[processor].len();
        let longest = (0..self.queues.len()).max_by_key(by_length)?;
        let shortest = (0..self.queues.len()).min_by_key(by_length)?;
        let differs = self.queues[longest].len() > self.queues[shortest].len();
        (differs && self.queues[longest].len() > 1).then_some((longest, shortest))
    }

    fn is_unbalanced(&self) -> bool {
        self.unbalanced().is_some()
    }

    /// Moves a thread from the longest to the shortest queue. With enough such moves, each thread
    /// gets its fair share of all processors.
    fn balance(&mut self) {
        if self.now_ns < self.balance_at_ns {
            return;
        }
        self.balance_at_ns = self.now_ns + BALANCE_NS;
        if let Some((longest, shortest)) = self.unbalanced()
            && let Some(&thread) = self.queues[longest].waiting.first()
        {
            self.migrate(thread, shortest);
            self.preempt(shortest, thread);
        }
    }

    /// Returns the next report about a processor's running thread.
    fn report(&mut self, processor: usize) -> Option<Report> {
        loop {
            let thread = self.queues[processor].running?;
            let state = &mut self.threads[thread.0];
            if std::mem::take(&mut state.was_preempted) && state.left_ns > 0 {
                let away_ns = self.now_ns - state.waits_since_ns;
                return Some(Report::Resumed { thread, away_ns });
            }
            if state.left_ns > 0 || state.is_reported {
                return None;
            }
            if !std::mem::take(&mut state.falls_asleep) {
                state.is_reported = true;
                return Some(Report::Ready { thread });
            }
            (state.state, state.is_reported) = (State::Asleep, true);
            self.remove(thread);
            self.pull(processor);
        }
    }
}

/// Length of a slice, in nanoseconds. On two processors, the base slice of Linux is 1.4 to 3 ms. A
/// slice ends at a scheduler tick; ticks are 1 to 4 ms apart.
const SLICE_NS: u64 = 3_000_000;

/// Time between two comparisons of the queues, in nanoseconds. Linux balances two processors every
/// 2 to 64 ms.
const BALANCE_NS: u64 = 16_000_000;

/// Work that no simulation can finish, in nanoseconds.
const FOREVER_NS: u64 = 1 << 60;
