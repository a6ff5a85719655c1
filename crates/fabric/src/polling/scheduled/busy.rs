//! Busy threads of other programs.

use crate::queue::EventQueue;
use crate::random::Random;
use crate::scheduler::{Report, Scheduler, Settings};
use delivery::Instant;

/// The next action of a busy thread. After some slices of work, the thread sometimes sleeps
/// briefly. Without these sleeps, the slices of the two hosts could stay aligned.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Works for this time, in nanoseconds.
    Work(u64),
    /// Sleeps for this time, in nanoseconds.
    Sleep(u64),
}

impl Next {
    pub(super) fn draw(random: &mut Random) -> Self {
        if random.chance_ppm(500_000) {
            Self::Sleep(random.exponential(SLEEP_NS))
        } else {
            Self::Work(random.exponential(WORK_NS).max(1))
        }
    }
}

/// Returns the fraction of one processor that a thread gets if it always has work. It shares the
/// processors with `busy` other busy threads.
pub fn share_left(processors: Settings, busy: usize) -> f64 {
    let mut scheduler = Scheduler::new(processors);
    let mut random = Random::new(0);
    let mut queue = EventQueue::new();
    let thread = scheduler.spawn();
    for other in (0..busy).map(|_| scheduler.spawn()).chain([thread]) {
        queue.push(Instant(random.below(processors.slice_ns)), other);
    }
    loop {
        let wakes_at_ns = queue.next_time().map_or(u64::MAX, |time| time.0);
        let now_ns = scheduler.next_at().min(wakes_at_ns).min(SHARE_NS);
        while let Some(woken) = queue.pop_until(Instant(now_ns)) {
            scheduler.wake(now_ns, woken);
        }
        while let Some(report) = scheduler.advance(now_ns) {
            let Report::Ready { thread: ready } = report else { continue };
            match Next::draw(&mut random) {
                _ if ready == thread => scheduler.work(now_ns, ready, SHARE_NS),
                Next::Work(work_ns) => scheduler.work(now_ns, ready, work_ns),
                Next::Sleep(sleep_ns) => {
                    scheduler.sleep(now_ns, ready);
                    queue.push(Instant(now_ns + sleep_ns), ready);
                }
            }
        }
        if now_ns == SHARE_NS {
            return scheduler.ran_ns(thread) as f64 / SHARE_NS as f64;
        }
    }
}

/// Mean time for which busy threads work, in nanoseconds. `SLEEP_NS` is the mean time for which
/// they sleep. With these values, a busy thread works for 99 % of the time.
const WORK_NS: u64 = 10_000_000;
const SLEEP_NS: u64 = 100_000;

/// Simulated time in nanoseconds, long enough for many slices of many threads.
const SHARE_NS: u64 = 10_000_000_000;
