//! Decides how the progress thread waits while another thread sleeps on the links.

use delivery::Instant;

/// Measures how long the progress thread has found another thread on watch. The thread on watch
/// looks and sleeps on the links.
///
/// A thread that blocks for each operation is on watch for many short times. Between these times,
/// that thread is inside the engine or has just posted. If the progress thread runs at such a
/// moment, it cannot know whether that thread will soon be on watch again. So the progress thread
/// leaves the links to that thread, and does not restart the measurement.
#[derive(Clone, Debug, Default)]
pub struct Standby {
    since: Option<Instant>,
}

impl Standby {
    /// Records that another thread is on watch. Returns the time until which the progress thread
    /// should sleep. The sleep lasts as long as other threads have been on watch so far, but at
    /// least `sleep_cost_ns` nanoseconds, the cost of a sleep. Returns `None` if the progress
    /// thread should sleep until the thread on watch wakes it.
    pub fn on_watched(&mut self, now: Instant, sleep_cost_ns: u64) -> Option<Instant> {
        let watched_ns = now.since_ns(*self.since.get_or_insert(now));
        if watched_ns < REST_NS {
            Some(now.after_ns(watched_ns.max(sleep_cost_ns)))
        } else {
            self.since = None;
            None
        }
    }

    /// Records that the progress thread itself is on watch. The measurement starts again.
    pub fn on_served(&mut self) {
        self.since = None;
    }
}

/// If other threads have been on watch for this time, in nanoseconds, the progress thread sleeps
/// until the thread on watch wakes it. Each such wake-up costs the thread on watch a system call.
/// The time is long, so that a thread that blocks for each operation does not make a system call
/// for each operation.
const REST_NS: u64 = 16_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_policy::{Application, Outcome, Spinning, WaitPolicy, WakeUp};

    /// Simulates the progress thread while an application waits in a call for each answer. Returns
    /// how many times per second the progress thread wakes up, and how many of these wake-ups the
    /// application causes by a call.
    fn beside_blocking(sleep_ns: u64, answer_ns: u64) -> (u64, u64) {
        let mut policy = WaitPolicy::new(Spinning::AtMost(0), sleep_ns);
        policy.on_wake_up(WakeUp { late_ns: sleep_ns / 2, spent_ns: sleep_ns / 2 });
        let mut standby = Standby::default();
        let (mut now, mut looks, mut calls) = (Instant(1), 0, 0);
        while now.0 < 1_000_000_000 {
            looks += 1;
            // The application posts. After that, the application is on watch until the answer
            // arrives.
            let polled_ns_ago = now.0 % answer_ns;
            let application = Application { is_inside: false, polled_ns_ago };
            now = match policy.while_serving(now, sleep_ns, application) {
                Outcome::SleepUntil(time) => time,
                Outcome::Spin | Outcome::SleepUntilEvent => {
                    standby.on_watched(now, sleep_ns).unwrap_or_else(|| {
                        calls += 1;
                        Instant(now.0 - polled_ns_ago + answer_ns)
                    })
                }
            };
            now = now.after_ns(sleep_ns / 2);
        }
        (looks, calls)
    }

    #[test]
    fn the_progress_thread_rarely_wakes_up_beside_a_thread_that_blocks_for_each_operation() {
        for quarters in [1, 2, 4, 8, 16] {
            let sleep_ns = 45_000 * quarters / 4;
            for answer_ns in [sleep_ns, 3 * sleep_ns / 2, 2 * sleep_ns, 5 * sleep_ns, 2_000_000] {
                let (looks, calls) = beside_blocking(sleep_ns, answer_ns);
                let figures = format!("{looks} looks, {calls} calls: {sleep_ns}, {answer_ns}");
                assert!(looks < 1_000 && calls <= 63, "{figures}");
            }
        }
    }

    #[test]
    fn the_progress_thread_leaves_the_links_to_a_long_watcher_until_it_is_notified() {
        let mut standby = Standby::default();
        assert_eq!(standby.on_watched(Instant(1_000), 50), Some(Instant(1_050)));
        assert_eq!(standby.on_watched(Instant(1_200), 50), Some(Instant(1_400)));
        assert_eq!(standby.on_watched(Instant(1_000 + REST_NS), 50), None);
        assert!(standby.on_watched(Instant(2_000 + REST_NS), 50).is_some(), "it starts again");
        standby.on_served();
        let later = Instant(5 * REST_NS);
        assert_eq!(standby.on_watched(later, 50), Some(later.after_ns(50)));
    }
}
