//! Tests the policy on simulated hosts. The slowest host has a quarter of the speed of the host on
//! which the costs were first measured, and the fastest host has four times that speed.

use super::*;

/// Costs on a host, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Time from a frame or the expiry of a timer until a thread runs that slept until this event.
    wake_up: u64,
    /// Processor time that a thread needs to go to sleep and wake up.
    spent: u64,
    /// Time from an answer until the next request, if the peer sends the next request immediately.
    again: u64,
    serve: u64,
    poll: u64,
}

impl Costs {
    const fn sleep(self) -> u64 {
        self.wake_up + self.spent
    }
}

fn hosts() -> [Costs; 5] {
    [1, 2, 4, 8, 16].map(|quarters| {
        let of = |ns: u64| ns * quarters / 4;
        Costs {
            wake_up: of(30_000),
            spent: of(15_000),
            again: of(13_000),
            serve: of(3_000),
            poll: of(2_000),
        }
    })
}

// Cost of a sleep that the policy assumes before any measurement. The value is wrong on most of the
// hosts.
const ASSUMED_NS: u64 = 10_000;

fn on(costs: Costs) -> WaitPolicy {
    measured(WaitPolicy::new(Spinning::Learned, ASSUMED_NS), costs)
}

fn polling_on(costs: Costs) -> WaitPolicy {
    measured(WaitPolicy::for_polling(ASSUMED_NS), costs)
}

fn measured(mut policy: WaitPolicy, costs: Costs) -> WaitPolicy {
    for _ in 0..WAKE_UPS {
        policy.on_wake_up(WakeUp { late_ns: costs.wake_up, spent_ns: costs.spent });
    }
    policy
}

/// Measured costs of a series of waits.
#[derive(Debug, Default)]
struct Bill {
    /// Number of waits at whose end the thread was asleep.
    slept: u64,
    spun_ns: u64,
    total_ns: u64,
}

/// A rule that decides how long a wait spins.
trait Rule {
    fn limit_ns(&self) -> u64;
    fn on_waited(&mut self, _took_ns: u64, _limit_ns: u64, _has_slept: bool) {}
}

impl Rule for WaitPolicy {
    fn limit_ns(&self) -> u64 {
        self.spin_limit_ns()
    }

    fn on_waited(&mut self, took_ns: u64, limit_ns: u64, has_slept: bool) {
        self.on_waited(took_ns, limit_ns, has_slept);
    }
}

/// Spins for a fixed time, in nanoseconds. A fixed time suits only some hosts.
struct Fixed(u64);

impl Rule for Fixed {
    fn limit_ns(&self) -> u64 {
        self.0
    }
}

/// Serves requests. Each value of `gaps` is the time from an answer until the next request, in
/// nanoseconds.
fn serve(rule: &mut impl Rule, costs: Costs, gaps: impl Iterator<Item = u64>) -> Bill {
    let mut bill = Bill::default();
    for gap in gaps {
        let limit = rule.limit_ns();
        let has_slept = gap >= limit;
        bill.spun_ns += gap.min(limit);
        bill.slept += u64::from(has_slept);
        let late = if has_slept { costs.wake_up } else { 0 };
        rule.on_waited(gap + late, limit, has_slept);
        bill.total_ns += gap + late + costs.serve;
    }
    bill
}

/// Returns whether the rule suits two kinds of peers:
///
/// * If the peer sends its next request immediately, the thread must not sleep.
/// * If the peer sends requests at a fortieth of that rate, the thread must use less than 3 % of a
///   processor.
fn suits(rule: &mut impl Rule, costs: Costs) -> bool {
    serve(rule, costs, std::iter::repeat_n(costs.again, 200));
    let busy = serve(rule, costs, std::iter::repeat_n(costs.again, 10_000));
    let rare = serve(rule, costs, std::iter::repeat_n(40 * costs.again, 10_000));
    busy.slept < 50 && rare.spun_ns * 100 < rare.total_ns * 3
}

#[test]
fn a_thread_spins_for_frequent_requests_and_sleeps_for_rare_ones_on_every_host() {
    for costs in hosts() {
        assert!(suits(&mut on(costs), costs), "{costs:?}");
    }
}

#[test]
fn no_fixed_time_suits_every_host() {
    for us in [0, 5, 10, 20, 50, 100, 200] {
        let failures = hosts().into_iter().filter(|&costs| !suits(&mut Fixed(us * 1000), costs));
        assert_ne!(failures.count(), 0, "{us} us");
    }
}

/// Checks the table of `docs/waiting.md`. Each step sets up a situation and checks the outcome.
#[test]
fn the_table_of_outcomes_holds() {
    let now = Instant(1_000_000_000);
    let gone = Application { is_inside: false, polled_ns_ago: u64::MAX };
    for costs in hosts() {
        let cost = costs.sleep();
        let policy = on(costs);
        assert_eq!(policy.sleep_cost_ns(), cost);
        // The next lines check a thread that waits in a call.
        assert_eq!(policy.while_waiting(0), Outcome::Spin);
        assert_eq!(policy.while_waiting(cost), Outcome::SleepUntilEvent);
        // The next lines check a thread that polls.
        let mut policy = polling_on(costs);
        assert_eq!(policy.while_polling(now, u64::MAX), Outcome::Spin);
        policy.on_descheduled(now, 3_000_000);
        assert_eq!(policy.while_polling(now, 0), Outcome::Spin);
        assert_eq!(policy.while_polling(now, POLL_WEIGHT * cost - 1), Outcome::Spin);
        assert_eq!(policy.while_polling(now, POLL_WEIGHT * cost), Outcome::SleepUntilEvent);
        // The next lines check a thread of a real-time class that polls.
        let spins_for_ns = policy.real_time_limit_ns();
        assert_eq!(policy.while_polling_in_real_time(spins_for_ns - 1), Outcome::Spin);
        assert_eq!(policy.while_polling_in_real_time(spins_for_ns), Outcome::SleepUntilEvent);
        // The next lines check the progress thread.
        let mut policy = on(costs);
        assert_eq!(policy.while_serving(now, 0, gone), Outcome::Spin);
        assert_eq!(policy.while_serving(now, cost, gone), Outcome::SleepUntilEvent);
        for application in [
            Application { is_inside: true, polled_ns_ago: 10 * cost },
            Application { is_inside: false, polled_ns_ago: cost - 1 },
        ] {
            let outcome = policy.while_serving(now, 0, application);
            assert_eq!(outcome, Outcome::SleepUntil(now.after_ns(2 * cost)));
        }
    }
}

#[test]
fn fixed_times_are_kept() {
    let always = WaitPolicy::new(Spinning::AtMost(u64::MAX), 10_000);
    assert_eq!(always.while_waiting(u64::MAX - 1), Outcome::Spin);
    let never = WaitPolicy::new(Spinning::AtMost(0), 10_000);
    assert_eq!(never.while_waiting(0), Outcome::SleepUntilEvent);
    let some = WaitPolicy::new(Spinning::AtMost(50_000), 10_000);
    assert_eq!(some.while_waiting(49_999), Outcome::Spin);
    assert_eq!(some.while_waiting(50_000), Outcome::SleepUntilEvent);
}

#[test]
fn the_policy_soon_adapts_to_a_peer_that_begins_to_send_requests_at_once() {
    for costs in hosts() {
        let mut policy = on(costs);
        serve(&mut policy, costs, std::iter::repeat_n(100 * costs.wake_up, 1000));
        let learning = serve(&mut policy, costs, std::iter::repeat_n(costs.again, 1000));
        assert!(learning.slept <= 2 * u64::from(WAITS_PER_TRIAL), "{learning:?}: {costs:?}");
    }
}

/// One request in a hundred is late, because the peer runs other work. The thread must still be
/// awake when almost any other request arrives.
#[test]
fn pauses_of_a_peer_do_not_reset_the_policy() {
    for costs in hosts() {
        let mut policy = on(costs);
        let gaps = (0..10_000).map(|n| {
            let late = n % 100 == 99;
            if late { 1000 * costs.again } else { costs.again + n % 7 * costs.again / 7 }
        });
        let bill = serve(&mut policy, costs, gaps);
        assert!(bill.slept < 110, "{bill:?}: {costs:?}");
    }
}

/// One request in fifty arrives slightly later than the others. To sleep for such a request would
/// cost more than to spin.
#[test]
fn a_thread_spins_for_requests_that_are_rarely_slightly_late() {
    for costs in hosts() {
        let mut policy = on(costs);
        let gaps =
            (0..10_000).map(|n| if n % 50 == 49 { costs.again * 5 / 2 } else { costs.again });
        let bill = serve(&mut policy, costs, gaps);
        assert!(bill.slept < 10, "{bill:?}: {costs:?}");
    }
}

/// Checks the competitive bound: for all gaps, the policy spends at most twice the least possible
/// cost, plus a few per cent while it learns. The gaps are pseudo-random, in five ranges.
#[test]
fn spinning_and_sleeping_cost_at_most_twice_the_minimum() {
    for costs in hosts() {
        for (scale, seed) in [1, 2, 4, 8, 16].into_iter().flat_map(|s| [(s, 3), (s, 11), (s, 27)]) {
            let mut policy = on(costs);
            let gaps = || {
                (0..10_000_u64).map(move |n| {
                    let mixed = (n * n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                    mixed % (costs.wake_up * scale / 4)
                })
            };
            let bill = serve(&mut policy, costs, gaps());
            let cost = bill.spun_ns + bill.slept * costs.sleep();
            let least: u64 = gaps().map(|gap| gap.min(costs.sleep())).sum();
            assert!(cost * 100 <= least * 210, "{cost} ns, {least} at least: {scale}, {costs:?}");
        }
    }
}

/// The peer needs the processor on which this thread spins. So the answer of the peer arrives only
/// after this thread has gone to sleep, but soon after that. The policy must not conclude from
/// these short waits that the thread should spin.
#[test]
fn a_thread_does_not_spin_on_the_processor_that_its_peer_needs() {
    for costs in hosts() {
        let mut policy = on(costs);
        let (mut spun, waits) = (0, 10_000);
        for _ in 0..waits {
            let limit = policy.spin_limit_ns();
            spun += limit;
            policy.on_waited(limit + costs.serve + costs.wake_up, limit, true);
        }
        assert!(spun * 15 <= waits * costs.sleep(), "{spun} ns: {costs:?}");
    }
}

/// From time to time, another program takes a time slice while the thread spins. Without spinning,
/// the thread would have lost the slice too.
#[test]
fn a_thread_that_loses_its_processor_once_continues_to_spin() {
    for costs in hosts() {
        let mut policy = on(costs);
        serve(&mut policy, costs, std::iter::repeat_n(costs.again, 100));
        let gaps = (0..10_000).map(|n| if n % 100 == 99 { 3_000_000 } else { costs.again });
        for gap in gaps {
            let limit = policy.spin_limit_ns();
            assert_ne!(limit, 0, "{costs:?}");
            policy.on_waited(gap, limit, false);
        }
    }
}

#[test]
fn an_idle_endpoint_uses_no_processor_time() {
    for costs in hosts() {
        assert_eq!(on(costs).while_waiting(costs.sleep()), Outcome::SleepUntilEvent);
    }
}

/// In half of the wake-ups, the thread had to wait for a processor. These waits must not increase
/// the measured cost of a sleep.
#[test]
fn wake_ups_delayed_by_other_threads_do_not_count() {
    let mut policy = WaitPolicy::new(Spinning::Learned, 1);
    for late_ns in [30_000, 3_000_000, 32_000, 8_000_000, 29_000, 31_000, 3_000_000, 4_000_000] {
        policy.on_wake_up(WakeUp { late_ns, spent_ns: 5_000 });
    }
    assert!((34_000..=37_000).contains(&policy.sleep_cost_ns()));
}

/// A frame that another processor delivers wakes the thread with more delay than the thread's own
/// timer does.
#[test]
fn frames_that_wake_a_thread_count_more_than_timers() {
    for costs in hosts() {
        let mut policy = on(costs);
        for _ in 0..WAKE_UPS {
            policy.on_woken_by_frame(3 * costs.wake_up);
            policy.on_wake_up(WakeUp { late_ns: costs.wake_up, spent_ns: costs.spent });
        }
        let cost = (3 * costs.wake_up + costs.spent).min(SLEEP_COST_NS_MAX);
        assert_eq!(policy.sleep_cost_ns(), cost, "{costs:?}");
        // The thread spins for an answer that arrives sooner than a sleeping thread would wake up.
        let bill = serve(&mut policy, costs, std::iter::repeat_n(2 * costs.wake_up, 1000));
        assert!(bill.slept < 50, "{bill:?}: {costs:?}");
    }
}

#[test]
fn wake_ups_that_all_waited_for_a_processor_do_not_extend_spinning_to_slices() {
    let mut policy = WaitPolicy::new(Spinning::Learned, 1);
    for _ in 0..WAKE_UPS {
        policy.on_wake_up(WakeUp { late_ns: 6_000_000, spent_ns: 5_000 });
    }
    assert_eq!(policy.spin_limit_ns(), SLEEP_COST_NS_MAX);
}

/// A processor that a thread shares with one busy thread of another program. The thread that has
/// run for less time gets the next slice. When the polling thread wakes up, it preempts the busy
/// thread. When it wakes up, it is at most one slice behind the busy thread, however long it slept.
struct Processor {
    thread_ran: u64,
    neighbour_ran: u64,
    has_thread: bool,
    left: u64,
    sleeps: bool,
    /// How long the thread has polled without finding anything.
    idle: u64,
}

impl Processor {
    const SLICE: u64 = 3_000_000;

    fn new(left: u64) -> Self {
        let has_thread = left == Self::SLICE;
        Self { thread_ran: 0, neighbour_ran: 0, has_thread, left, sleeps: false, idle: 0 }
    }

    fn runs(&self) -> bool {
        self.has_thread && !self.sleeps
    }

    fn step(&mut self, now: u64, step: u64, peer_runs: bool, policy: Option<&mut WaitPolicy>) {
        if self.sleeps {
            self.neighbour_ran += step;
            if peer_runs {
                let least = self.neighbour_ran.saturating_sub(Self::SLICE);
                self.thread_ran = self.thread_ran.max(least);
                (self.sleeps, self.has_thread, self.left) = (false, true, Self::SLICE);
                self.idle = 0;
            }
            return;
        }
        let ran = if self.has_thread { &mut self.thread_ran } else { &mut self.neighbour_ran };
        *ran += step;
        self.left = self.left.saturating_sub(step);
        let has_ended = self.left == 0;
        if has_ended {
            let is_turn = self.thread_ran < self.neighbour_ran;
            let is_back = is_turn && !self.has_thread;
            (self.has_thread, self.left) = (is_turn, Self::SLICE);
            self.idle = 0;
            if is_back && let Some(policy) = policy {
                policy.on_descheduled(Instant(now), Self::SLICE);
            }
            return;
        }
        if self.has_thread {
            self.idle = if peer_runs { 0 } else { self.idle + step };
            let outcome = policy.map(|policy| policy.while_polling(Instant(now), self.idle));
            self.sleeps = outcome.is_some_and(|outcome| outcome != Outcome::Spin);
        }
    }
}

/// Simulates two hosts that exchange small messages by polling. Each host also has one busy thread
/// of another program. Returns the percentage of time in which both polling threads ran.
fn polled_beside_neighbours(costs: Costs, policies: Option<[WaitPolicy; 2]>) -> u64 {
    let mut hosts = [Processor::new(Processor::SLICE), Processor::new(Processor::SLICE / 2)];
    let mut policies = policies.map_or([None, None], |policies| policies.map(Some));
    let (mut both, mut now) = (0, 0);
    while now < 3_000_000_000 {
        now += costs.poll;
        let runs = [hosts[0].runs(), hosts[1].runs()];
        both += if runs == [true; 2] { costs.poll } else { 0 };
        for (host, peer_runs) in [(0, runs[1]), (1, runs[0])] {
            hosts[host].step(now, costs.poll, peer_runs, policies[host].as_mut());
        }
    }
    both * 100 / now
}

/// If the polling threads never sleep, the slices of the two hosts rarely coincide. If a thread
/// sleeps while its peer is descheduled, it keeps its slice for the moment when the peer runs
/// again.
#[test]
fn polling_hosts_beside_busy_neighbours_lose_only_their_share_of_time() {
    for costs in hosts() {
        let without = polled_beside_neighbours(costs, None);
        let with = polled_beside_neighbours(costs, Some([polling_on(costs), polling_on(costs)]));
        assert!(without <= 30, "{without} %: {costs:?}");
        assert!(with >= 45, "{with} %: {costs:?}");
    }
}

/// The polling thread stalls for a long time, for example because the host is suspended. Processors
/// must count as short only for a short time after that.
#[test]
fn a_long_stall_does_not_make_processors_short_for_long() {
    for costs in hosts() {
        let mut policy = polling_on(costs);
        let now = Instant(3_600_000_000_000);
        policy.on_descheduled(now, now.0);
        assert_eq!(
            policy.while_polling(now, POLL_WEIGHT * costs.sleep()),
            Outcome::SleepUntilEvent
        );
        assert_eq!(policy.while_polling(now.after_ns(300_000_000), u64::MAX), Outcome::Spin);
    }
}

/// The progress thread reads the links on the processor of a polling thread, which therefore does
/// not run for a moment. Processors must not count as short because of this moment.
#[test]
fn a_processor_that_is_lost_for_a_moment_is_not_short() {
    for costs in hosts() {
        let mut policy = polling_on(costs);
        policy.on_descheduled(Instant(1), costs.spent + costs.serve);
        assert_eq!(policy.while_polling(Instant(2), u64::MAX), Outcome::Spin, "{costs:?}");
        policy.on_descheduled(Instant(3), 3_000_000);
        assert_ne!(policy.while_polling(Instant(4), u64::MAX), Outcome::Spin, "{costs:?}");
    }
}

/// The answer to a request of 16 KiB takes about as long as a sleep.
#[test]
fn a_polling_thread_spins_for_answers_that_take_as_long_as_a_sleep() {
    for costs in hosts() {
        let mut policy = polling_on(costs);
        policy.on_descheduled(Instant(1), 3_000_000);
        let bill = serve(&mut policy, costs, std::iter::repeat_n(costs.sleep() * 3 / 2, 1000));
        assert_eq!(bill.slept, 0, "{costs:?}");
    }
}

/// A program has more ranks than there are processors, and the peer needs the processor on which
/// this thread spins. So the answer arrives only after this thread has gone to sleep.
#[test]
fn a_polling_thread_rarely_spins_on_the_processor_that_its_peer_needs() {
    for costs in hosts() {
        let mut policy = polling_on(costs);
        let (mut spun, waits) = (0, 10_000);
        for _ in 0..waits {
            let limit = policy.spin_limit_ns();
            spun += limit;
            policy.on_waited(limit + costs.serve + costs.wake_up, limit, true);
        }
        assert!(spun * 3 <= waits * costs.sleep(), "{spun} ns: {costs:?}");
    }
}

/// The kernel does not preempt a real-time thread for a thread of another class. The peer may be a
/// thread of another class on the same processor. So a real-time thread that polls must sleep now
/// and then.
#[test]
fn a_polling_real_time_thread_yields_processor_time_and_hardly_delays_answers() {
    for costs in hosts() {
        let policy = polling_on(costs);
        let (spins_for_ns, sleeps_for_ns) =
            (policy.real_time_limit_ns(), policy.real_time_sleep_ns());
        assert!(sleeps_for_ns * 20 > spins_for_ns, "less than the kernel leaves: {costs:?}");
        assert!(costs.sleep() * 50 <= spins_for_ns, "an answer is 2 % later: {costs:?}");
    }
}

/// An answer reaches a real-time thread only when this thread sleeps, because the peer needs the
/// same processor. The runtime then reports the thread to the policy as descheduled. After that,
/// the thread must sleep as early as a thread that the kernel has descheduled.
#[test]
fn a_real_time_thread_whose_peer_needs_its_processor_soon_sleeps() {
    for costs in hosts() {
        let (mut policy, now) = (polling_on(costs), Instant(1_000_000_000));
        assert_eq!(policy.while_polling(now, u64::MAX), Outcome::Spin);
        policy.on_descheduled(now, policy.real_time_limit_ns());
        assert_eq!(
            policy.while_polling(now, POLL_WEIGHT * costs.sleep()),
            Outcome::SleepUntilEvent
        );
    }
}

/// A clock with a low resolution has only 250 ticks a second, so a timer may end 4 ms too late.
#[test]
fn timers_that_end_4_ms_late_make_threads_neither_spin_for_long_nor_wake_often() {
    let gone = Application { is_inside: false, polled_ns_ago: u64::MAX };
    let beside = Application { is_inside: false, polled_ns_ago: 0 };
    for costs in hosts() {
        let mut policy = on(costs);
        for _ in 0..WAKE_UPS {
            policy.on_wake_up(WakeUp { late_ns: 4_000_000, spent_ns: costs.spent });
        }
        assert_eq!(policy.sleep_cost_ns(), SLEEP_COST_NS_MAX);
        let now = Instant(1_000_000_000);
        assert_eq!(policy.while_waiting(SLEEP_COST_NS_MAX), Outcome::SleepUntilEvent);
        assert_eq!(policy.while_serving(now, SLEEP_COST_NS_MAX, gone), Outcome::SleepUntilEvent);
        let aside = policy.while_serving(now, 0, beside);
        assert_eq!(aside, Outcome::SleepUntil(now.after_ns(2 * SLEEP_COST_NS_MAX)));
        // After a frame has woken a thread, the policy forgets the delays of sleeps that a timer
        // ended, and keeps only the delays of sleeps that a frame ended.
        for _ in 0..WAKE_UPS {
            policy.on_woken_by_frame(costs.wake_up);
        }
        assert_eq!(policy.sleep_cost_ns(), costs.sleep());
    }
}

/// The progress thread of an application that also polls or posts.
mod beside {
    use super::*;

    const IDLE: u64 = u64::MAX;

    fn outside(polled_ns_ago: u64) -> Application {
        Application { is_inside: false, polled_ns_ago }
    }

    /// Simulates the progress thread of an application that polls for `total_ns` nanoseconds,
    /// beginning at `start`. Returns the times at which the progress thread read the links. The
    /// progress thread reads the links right before a poll of the application.
    fn beside_poller(policy: &mut WaitPolicy, costs: Costs, start: u64, total_ns: u64) -> Vec<u64> {
        let (mut now, mut looks) = (start, Vec::new());
        while now < start + total_ns {
            looks.push(now - start);
            match policy.while_serving(Instant(now), IDLE, outside(costs.poll - 1)) {
                Outcome::SleepUntil(time) => now = time.0 + costs.wake_up,
                outcome => panic!("{outcome:?} beside an application that polls: {costs:?}"),
            }
        }
        looks
    }

    /// Simulates 200 rounds of an application that posts and then waits until its peer has written
    /// an answer to its memory. Returns how long each answer waited for the progress thread, in
    /// nanoseconds.
    fn beside_memory_poller(policy: &mut WaitPolicy, costs: Costs, start: u64) -> Vec<u64> {
        let answer = costs.wake_up / 5;
        let (mut now, mut posted_at, mut waits) = (start, start, Vec::new());
        for _ in 0..200 {
            let arrives_at = posted_at + answer;
            loop {
                match policy.while_serving(Instant(now), IDLE, outside(now - posted_at)) {
                    Outcome::SleepUntil(time) => now = time.0 + costs.wake_up,
                    _ if now < arrives_at => {
                        policy.on_served(false, now - posted_at);
                        now = arrives_at + costs.wake_up;
                    }
                    _ => break,
                }
            }
            policy.on_served(true, now - posted_at);
            now += costs.serve;
            waits.push(now - arrives_at);
            posted_at = now;
        }
        waits
    }

    #[test]
    fn an_application_that_polls_is_left_alone_on_every_host() {
        for costs in hosts() {
            let looks = beside_poller(&mut on(costs), costs, 1, 1_000_000_000);
            assert!(looks.len() < 350, "{} looks a second: {costs:?}", looks.len());
            let soon = looks.iter().filter(|&&at| at < 10_000_000).count();
            let soon_ns = soon as u64 * costs.spent;
            assert!(soon_ns < 1_500_000, "{soon} looks in the first 10 ms: {costs:?}");
        }
    }

    /// If messages are large, the application polls only every 40 µs on the slowest of the hosts.
    /// It must still count as polling.
    #[test]
    fn an_application_that_sends_large_messages_between_polls_is_left_alone() {
        for costs in hosts() {
            let costs = Costs { poll: 5 * costs.poll, ..costs };
            let looks = beside_poller(&mut on(costs), costs, 1, 1_000_000_000);
            assert!(looks.len() < 350, "{} looks a second: {costs:?}", looks.len());
        }
    }

    /// A turn takes long if it handles the frames of 64 small writes, and longer if it handles the
    /// frames of a window of 1 MiB.
    #[test]
    fn an_application_that_takes_long_turns_is_left_alone() {
        for (costs, turn) in
            hosts().into_iter().flat_map(|costs| [(costs, 70_000), (costs, 300_000)])
        {
            let mut policy = on(costs);
            let (mut now, mut looks, mut served) = (1_u64, 0, 0);
            while now < 1_000_000_000 {
                looks += 1;
                // Between two turns, the application posts for a moment.
                let polled_ns_ago = now % (turn + 500);
                let application = Application { is_inside: polled_ns_ago < turn, polled_ns_ago };
                let outcome = policy.while_serving(Instant(now), IDLE, application);
                if let Outcome::SleepUntil(time) = outcome {
                    now = time.0 + costs.wake_up;
                } else {
                    served += 1;
                    policy.on_served(true, polled_ns_ago);
                    now += costs.serve;
                }
            }
            assert!(looks < 700 && served < 20, "{looks} looks, {served} times: {costs:?}");
        }
    }

    #[test]
    fn an_application_that_left_the_links_earlier_is_served_at_the_next_poll() {
        for costs in hosts() {
            let mut policy = on(costs);
            beside_poller(&mut policy, costs, 1, 100_000_000);
            let outcome = policy.while_serving(Instant(200_000_000), IDLE, outside(costs.sleep()));
            assert_eq!(outcome, Outcome::SleepUntilEvent, "{costs:?}");
        }
    }

    #[test]
    fn an_application_that_polls_again_after_a_pause_does_not_count_as_waiting_in_memory() {
        for costs in hosts() {
            let mut policy = on(costs);
            for _ in 0..1000 {
                assert_eq!(
                    policy.while_serving(Instant(1), IDLE, outside(u64::MAX)),
                    Outcome::SleepUntilEvent
                );
                policy.on_served(true, u64::MAX);
            }
            let outcome = policy.while_serving(Instant(1), IDLE, outside(costs.sleep() - 1));
            assert_ne!(outcome, Outcome::SleepUntilEvent, "{costs:?}");
        }
    }

    #[test]
    fn an_application_that_waits_in_memory_is_soon_served_at_wake_up_speed() {
        for costs in hosts() {
            let mut policy = on(costs);
            beside_poller(&mut policy, costs, 1, 100_000_000);
            let waits = beside_memory_poller(&mut policy, costs, 200_000_000);
            let (learning, learned) = waits.split_at(20);
            let lost_ns: u64 = learning.iter().sum();
            assert!(lost_ns < 4 * ASIDE_NS_MAX, "{lost_ns} ns until it is learned: {costs:?}");
            let slowest = learned.iter().max().copied().unwrap_or_default();
            let bound = 2 * costs.wake_up + costs.sleep() / 4 + 2 * costs.serve;
            assert!(slowest <= bound, "{slowest} ns, more than {bound}: {costs:?}");
        }
    }

    #[test]
    fn an_application_that_polls_after_waiting_in_memory_is_left_alone_again() {
        for costs in hosts() {
            let mut policy = on(costs);
            beside_memory_poller(&mut policy, costs, 1);
            let looks = beside_poller(&mut policy, costs, 1_000_000_000, 1_000_000_000);
            assert!(looks.len() < 350, "{} looks a second: {costs:?}", looks.len());
        }
    }

    /// The application alternately polls for 5 ms and computes for 5 ms, while peers send requests.
    #[test]
    fn an_application_that_polls_and_computes_is_left_alone_for_half_a_probe_timeout_at_most() {
        for costs in hosts() {
            let mut policy = on(costs);
            let (mut now, mut longest) = (1_u64, 0);
            while now < 1_000_000_000 {
                let into_period = now % 10_000_000;
                let polled_ns_ago = into_period.saturating_sub(5_000_000) + now % costs.poll;
                let outcome = policy.while_serving(Instant(now), IDLE, outside(polled_ns_ago));
                if let Outcome::SleepUntil(time) = outcome {
                    longest = longest.max(time.0 - now);
                    now = time.0 + costs.wake_up;
                } else {
                    policy.on_served(true, polled_ns_ago);
                    now += costs.serve + 100_000 + costs.wake_up;
                }
            }
            assert!(longest <= 500_000, "{longest}: {costs:?}");
        }
    }

    #[test]
    fn with_scarce_processors_peers_do_not_wait_for_a_descheduled_application() {
        for costs in hosts() {
            let mut policy = on(costs);
            policy.on_descheduled(Instant(1), 3_000_000);
            let looks = beside_poller(&mut policy, costs, 1, 100_000_000);
            let longest = looks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            assert!(longest <= SHORT_ASIDE * costs.sleep() + costs.wake_up, "{longest}: {costs:?}");
        }
    }

    /// Ranks share a processor and yield between two polls. So each rank polls again only after the
    /// turns of the other ranks.
    #[test]
    fn with_scarce_processors_a_yielding_application_is_left_alone() {
        for (costs, turns) in
            hosts().into_iter().flat_map(|costs| [1, 3, 6, 12].map(|turns| (costs, turns)))
        {
            let mut policy = on(costs);
            let gap = turns * costs.sleep();
            let (mut now, mut spent) = (1_u64, 0);
            while now < 1_000_000_000 {
                policy.on_descheduled(Instant(now), 3_000_000);
                let polled_ns_ago = now % gap;
                spent += costs.spent;
                now = match policy.while_serving(Instant(now), IDLE, outside(polled_ns_ago)) {
                    Outcome::SleepUntil(time) => time.0 + costs.wake_up,
                    Outcome::Spin | Outcome::SleepUntilEvent => {
                        spent += costs.serve;
                        policy.on_served(false, polled_ns_ago);
                        // A message arrives in each turn.
                        now + costs.sleep()
                    }
                };
            }
            assert!(spent < 40_000_000, "{spent} ns of a second, {turns} turns: {costs:?}");
        }
    }

    /// `Polling::ALWAYS` asks for a progress thread that always spins. But if the application is
    /// only descheduled, a spinning progress thread would take the application's processor.
    #[test]
    fn a_thread_that_always_spins_does_not_spin_beside_an_application_that_was_descheduled() {
        for costs in hosts() {
            let mut policy = on(costs);
            policy.spinning = Spinning::AtMost(u64::MAX);
            let spun = 2 * costs.sleep();
            let mut outcome = |now, ago| policy.while_serving(Instant(now), spun, outside(ago));
            // The application posts from time to time.
            for now in [1_000_000, 2_000_000, 3_000_000, 4_000_000] {
                assert_ne!(outcome(now, 0), Outcome::Spin, "{costs:?}");
                assert_eq!(outcome(now, 300_000), Outcome::Spin, "{costs:?}");
            }
            // The application polls, and then stops polling.
            for now in [5_000_000, 6_000_000, 7_000_000, 8_000_000] {
                assert_ne!(outcome(now, 0), Outcome::Spin, "{costs:?}");
            }
            assert_eq!(outcome(58_000_000, 50_000_000), Outcome::SleepUntilEvent, "{costs:?}");
            assert_eq!(outcome(108_000_000, 100_000_000), Outcome::Spin, "{costs:?}");
        }
    }
}
