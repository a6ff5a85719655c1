use super::*;

/// A simulated host, and its reports with their times.
struct Run {
    scheduler: Scheduler,
    reports: Vec<(u64, Report)>,
}

enum Next {
    Work(u64),
    Sleep { for_ns: u64 },
    Yield,
}

impl Run {
    fn new(processors: usize, busy: usize) -> (Self, Vec<ThreadId>) {
        let mut scheduler = Scheduler::new(Settings::usual(processors));
        let busy = (0..busy).map(|_| scheduler.spawn_busy(0)).collect();
        (Self { scheduler, reports: Vec::new() }, busy)
    }

    /// Runs until `until_ns`. Whenever `thread` is ready, it performs the action that `next`
    /// returns.
    fn until(
        &mut self,
        until_ns: u64,
        thread: Option<ThreadId>,
        next: &mut dyn FnMut(u64) -> Next,
    ) {
        let mut wakes_at_ns = u64::MAX;
        if let Some(thread) = thread {
            self.scheduler.wake(0, thread);
        }
        loop {
            let now_ns = self.scheduler.next_at().min(wakes_at_ns);
            if now_ns > until_ns {
                break;
            }
            if let Some(thread) = thread.filter(|_| wakes_at_ns <= now_ns) {
                wakes_at_ns = u64::MAX;
                self.scheduler.wake(now_ns, thread);
            }
            while let Some(report) = self.scheduler.advance(now_ns) {
                self.reports.push((now_ns, report));
                let Report::Ready { thread } = report else { continue };
                match next(now_ns) {
                    Next::Work(work_ns) => self.scheduler.work(now_ns, thread, work_ns),
                    Next::Yield => self.scheduler.yield_now(now_ns, thread),
                    Next::Sleep { for_ns } => {
                        wakes_at_ns = now_ns + for_ns;
                        self.scheduler.sleep(now_ns, thread);
                    }
                }
            }
        }
        self.scheduler.account(until_ns);
    }

    fn share(&self, thread: ThreadId, of_ns: u64) -> f64 {
        self.scheduler.ran_ns(thread) as f64 / of_ns as f64
    }

    /// Returns the times for which a thread waited for a processor after it was preempted.
    fn absences_ns(&self, of: ThreadId) -> Vec<u64> {
        let absence = |&(_, report): &(u64, Report)| match report {
            Report::Resumed { thread, away_ns } => (thread == of).then_some(away_ns),
            Report::Ready { .. } => None,
        };
        self.reports.iter().filter_map(absence).collect()
    }
}

const SECOND_NS: u64 = 1_000_000_000;
const SLICE: u64 = SLICE_NS;

#[test]
fn busy_threads_share_their_processor_evenly() {
    for (processors, busy) in [(1, 1), (1, 3), (1, 5), (2, 3), (2, 4), (2, 8), (2, 9), (4, 8)] {
        let (mut run, threads) = Run::new(processors, busy);
        run.until(SECOND_NS, None, &mut |_| Next::Work(1));
        for &thread in &threads {
            let fair = processors as f64 / busy as f64;
            let share = run.share(thread, SECOND_NS);
            assert!((share / fair - 1.0).abs() < 0.03, "{share} of {processors} with {busy}");
        }
    }
}

#[test]
fn a_processor_is_not_idle_while_threads_wait() {
    for busy in [2, 3, 5] {
        let (mut run, threads) = Run::new(2, busy);
        run.until(SECOND_NS, None, &mut |_| Next::Work(1));
        let ran: u64 = threads.iter().map(|&thread| run.scheduler.ran_ns(thread)).sum();
        assert_eq!(ran, 2 * SECOND_NS, "{busy} threads");
    }
}

#[test]
fn a_thread_without_competitors_keeps_its_processor() {
    let (mut run, _) = Run::new(1, 0);
    let thread = run.scheduler.spawn();
    run.until(SECOND_NS, Some(thread), &mut |_| Next::Work(1_000));
    assert_eq!(run.absences_ns(thread), []);
    assert!(run.share(thread, SECOND_NS) > 0.999);
}

#[test]
fn a_thread_that_never_sleeps_is_preempted_for_the_slices_of_the_others() {
    let (mut run, _) = Run::new(1, 4);
    let thread = run.scheduler.spawn();
    run.until(SECOND_NS, Some(thread), &mut |_| Next::Work(1_000));
    let share = run.share(thread, SECOND_NS);
    assert!((0.18..0.22).contains(&share), "{share}");
    let absences_ns = run.absences_ns(thread);
    let usual =
        absences_ns.iter().filter(|&&away_ns| away_ns.abs_diff(4 * SLICE) < SLICE / 10).count();
    assert!(usual * 10 > absences_ns.len() * 9, "{absences_ns:?}");
}

/// If a thread needs less than its share, it runs soon after its wake-up. The number of other
/// runnable threads does not matter.
#[test]
fn a_sleeper_below_its_fair_share_preempts_a_busy_thread() {
    for busy in [1, 2, 4] {
        let (mut run, _) = Run::new(1, busy);
        let thread = run.scheduler.spawn();
        let (mut woken_ns, mut is_rested, mut waits_ns) = (0, true, Vec::new());
        run.until(SECOND_NS, Some(thread), &mut |now_ns| {
            is_rested = !is_rested;
            if is_rested {
                woken_ns = now_ns + 100_000;
                return Next::Sleep { for_ns: 100_000 };
            }
            waits_ns.push(now_ns - woken_ns);
            Next::Work(5_000)
        });
        waits_ns.sort_unstable();
        let (median_ns, worst_ns) = (waits_ns[waits_ns.len() / 2], waits_ns[waits_ns.len() - 1]);
        assert!(median_ns < 10_000, "{median_ns} ns beside {busy}");
        assert!(waits_ns[waits_ns.len() * 95 / 100] < 10_000, "beside {busy}: {waits_ns:?}");
        assert!(worst_ns < 2 * (busy as u64 + 1) * SLICE, "{worst_ns} ns beside {busy}");
    }
}

/// Sleeping does not give a thread more than its share.
#[test]
fn a_thread_that_sleeps_between_long_work_gets_no_more_than_its_share() {
    let (mut run, _) = Run::new(1, 1);
    let thread = run.scheduler.spawn();
    let mut sleeps = false;
    run.until(SECOND_NS, Some(thread), &mut |_| {
        sleeps = !sleeps;
        if sleeps { Next::Sleep { for_ns: 10_000 } } else { Next::Work(500_000) }
    });
    let share = run.share(thread, SECOND_NS);
    assert!((0.4..0.55).contains(&share), "{share}");
}

#[test]
fn a_yield_beside_a_busy_thread_costs_a_slice() {
    let (mut run, _) = Run::new(1, 1);
    let thread = run.scheduler.spawn();
    let mut yields = false;
    run.until(SECOND_NS, Some(thread), &mut |_| {
        yields = !yields;
        if yields { Next::Yield } else { Next::Work(1_000) }
    });
    let absences_ns = run.absences_ns(thread);
    assert!(absences_ns.len() > 100, "{absences_ns:?}");
    let of_a_slice = absences_ns.iter().filter(|&&away_ns| away_ns >= SLICE * 9 / 10).count();
    assert!(of_a_slice * 10 > absences_ns.len() * 9, "{absences_ns:?}");
    let share = run.share(thread, SECOND_NS);
    assert!(share < 0.05, "{share} is left of a processor");
}

#[test]
fn a_yield_without_competitors_returns_at_once() {
    let (mut run, _) = Run::new(1, 0);
    let thread = run.scheduler.spawn();
    let mut ready = 0;
    run.until(1_000_000, Some(thread), &mut |_| {
        ready += 1;
        if ready % 2 == 0 { Next::Yield } else { Next::Work(1_000) }
    });
    assert_eq!(run.absences_ns(thread), []);
    assert!(ready > 1_900, "{ready}");
}

#[test]
fn a_sleep_costs_the_configured_time() {
    let settings = Settings::usual(1);
    for busy in [0, 1] {
        let (mut run, _) = Run::new(1, busy);
        let thread = run.scheduler.spawn();
        let mut ready_at_ns = Vec::new();
        run.until(10_000_000, Some(thread), &mut |now_ns| {
            ready_at_ns.push(now_ns);
            Next::Sleep { for_ns: 50_000 }
        });
        let latency_ns = if busy == 0 {
            settings.idle_latency_ns
        } else {
            settings.busy_latency_ns + settings.switch_ns
        };
        let expected_ns = 50_000 + latency_ns + settings.wake_ns;
        let found_ns = ready_at_ns[2] - ready_at_ns[1];
        assert_eq!(found_ns, expected_ns, "beside {busy}");
    }
}

#[test]
fn a_wake_up_while_falling_asleep_is_not_lost() {
    let mut scheduler = Scheduler::new(Settings::usual(1));
    let thread = scheduler.spawn();
    scheduler.wake(0, thread);
    let mut now_ns = scheduler.next_at();
    while scheduler.advance(now_ns).is_none() {
        now_ns = scheduler.next_at();
    }
    scheduler.sleep(now_ns, thread);
    scheduler.wake(now_ns + 1, thread);
    let later_ns = scheduler.next_at();
    assert_eq!(later_ns, now_ns + Settings::usual(1).sleep_ns);
    assert_eq!(scheduler.advance(later_ns), Some(Report::Ready { thread }));
}

#[test]
fn repeated_work_ends_at_the_time_of_uninterrupted_work() {
    let mut scheduler = Scheduler::new(Settings { switch_ns: 0, wake_ns: 0, ..Settings::usual(1) });
    let thread = scheduler.spawn();
    scheduler.wake(0, thread);
    let start_ns = scheduler.next_at();
    assert_eq!(scheduler.advance(start_ns), Some(Report::Ready { thread }));
    scheduler.work(start_ns, thread, 600 * 1_000_000);
    scheduler.finish_repetition(start_ns + 1_000, thread, 600);
    assert_eq!(scheduler.next_at(), start_ns + 1_200);
}
