//! Simulates streams over links of several rates. The slowest simulated host has a quarter of the
//! speed of the host on which the costs were first measured, and the fastest has four times that
//! speed.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Costs on a host, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Time from a frame or the expiry of a timer until a thread runs that slept until this event.
    wake_up: u64,
    /// Processor time that a thread needs to go to sleep, to wake up and to read the links.
    spent: u64,
    /// Processor time for one frame.
    frame: u64,
}

impl Costs {
    const fn sleep(self) -> SleepCost {
        SleepCost { total_ns: self.wake_up + self.spent, spent_ns: self.spent }
    }
}

fn hosts() -> [Costs; 5] {
    [1, 2, 4, 8, 16].map(|quarters| {
        let of = |ns: u64| ns * quarters / 4;
        Costs { wake_up: of(8_000), spent: of(4_000), frame: of(300) }
    })
}

/// Measured costs of receiving a stream of messages.
#[derive(Debug, Default)]
struct Bill {
    wake_ups: u64,
    busy_ns: u64,
    /// For each message, the time from its last frame to the notification of the application.
    late_ns: Vec<u64>,
    total_ns: u64,
}

/// Simulates the reception of messages by a thread that sleeps between looks. A message has
/// `frames` frames, `gap_ns` apart. Between messages, there is a pause of `pause_ns`. If
/// `moderates` is true, the thread sleeps for intervals, otherwise until the next frame.
fn receive(costs: Costs, gap_ns: u64, frames: u64, pause_ns: u64, moderates: bool) -> Bill {
    const MESSAGES: u64 = 50;
    let cost_ns = costs.wake_up + costs.spent;
    let message_ns = frames * gap_ns + pause_ns;
    let arrival = |index: u64| index / frames * message_ns + (index % frames + 1) * gap_ns;
    let (mut moderation, mut bill) = (Moderation::default(), Bill::default());
    let (mut now, mut taken, mut notified) = (Instant(0), 0, 0);
    while taken < MESSAGES * frames {
        let before = taken;
        while taken < MESSAGES * frames && arrival(taken) <= now.0 {
            taken += 1;
            if taken % frames == 0 {
                bill.late_ns.push(now.0 - arrival(taken - 1));
                notified += 1;
            }
        }
        let count = taken - before;
        let worked_ns = costs.spent + count * costs.frame;
        (now, bill.busy_ns) = (now.after_ns(worked_ns), bill.busy_ns + worked_ns);
        if count > 0 {
            moderation.on_frames(now, count, notified, cost_ns);
        } else {
            moderation.on_silence(now);
        }
        let interval_ns = moderation.interval_ns(now, costs.sleep(), false, Instant(0));
        let wakes_at = match interval_ns.filter(|_| moderates) {
            Some(interval_ns) => now.after_ns(interval_ns),
            None => now.max(Instant(arrival(taken))),
        };
        // The wake-up takes time only if the thread was asleep.
        now = if wakes_at > now { wakes_at.after_ns(costs.wake_up) } else { now };
        bill.wake_ups += 1;
    }
    bill.total_ns = now.0;
    bill
}

const SLEEP: SleepCost = SleepCost { total_ns: 10_000, spent_ns: 4_000 };

/// Time in which a link of 1 Gb/s carries a frame of 1500 bytes, in nanoseconds.
const AT_1_GB: u64 = 12_300;

#[test]
fn a_stream_at_1_gb_is_polled_at_intervals_on_every_host() {
    for costs in hosts() {
        let [with, without] =
            [true, false].map(|moderates| receive(costs, AT_1_GB, 700, 0, moderates));
        // Slow hosts find several frames at each wake-up even without moderation.
        if costs.wake_up + costs.spent < AT_1_GB {
            assert!(with.wake_ups * 4 < without.wake_ups, "{costs:?}: {with:?} {without:?}");
        }
        assert!(with.busy_ns <= without.busy_ns, "{costs:?}");
    }
}

#[test]
fn intervals_delay_messages_by_at_most_a_quarter_and_less_than_100_us() {
    for costs in hosts() {
        for frames in [1, 2, 11, 44, 700] {
            for pause_ns in [0, 50_000, 2_000_000] {
                let bill = receive(costs, AT_1_GB, frames, pause_ns, true);
                // The thread cannot distinguish a short pause from a slow link. So the bound adds
                // a short pause to the duration of the message.
                let message_ns = frames * AT_1_GB + pause_ns.min(PAUSE_NS);
                let undisturbed_ns = 2 * (costs.wake_up + costs.spent) + 8 * costs.frame;
                let most_ns = undisturbed_ns + (message_ns / 4).min(INTERVAL_NS_MAX);
                let worst_ns = bill.late_ns.iter().max().copied();
                assert!(worst_ns <= Some(most_ns), "{costs:?} {frames} {pause_ns}: {worst_ns:?}");
            }
        }
    }
}

#[test]
fn an_interval_delays_no_more_frames_than_the_sender_tolerates() {
    for costs in hosts() {
        for gap_ns in [400, 1_230, 4_000, AT_1_GB, 123_000] {
            let mut moderation = Moderation::default();
            for index in 0..2_000 {
                moderation.on_frames(Instant(index * gap_ns), 1, 0, 10_000);
                let now = Instant(index * gap_ns + costs.frame);
                let cost_ns = costs.wake_up + costs.spent;
                if let Some(interval_ns) =
                    moderation.interval_ns(now, costs.sleep(), false, Instant(0))
                {
                    let frames = (interval_ns + cost_ns) / gap_ns;
                    assert!((1..=FRAMES_MAX + 1).contains(&frames), "{costs:?} {gap_ns}");
                    assert!(interval_ns >= costs.spent, "{costs:?} {gap_ns}");
                }
            }
        }
    }
}

#[test]
fn requests_and_answers_are_never_delayed_by_an_interval() {
    let mut moderation = Moderation::default();
    for turn in 1..1_000 {
        let now = Instant(turn * 16_000);
        moderation.on_frames(now, 1, turn, 10_000);
        assert_eq!(moderation.interval_ns(now.after_ns(1_000), SLEEP, false, Instant(0)), None);
    }
}

#[test]
fn an_interval_instead_of_a_spin_delays_messages_by_a_quarter_including_the_wake_up() {
    for costs in hosts() {
        let mut moderation = Moderation::default();
        for index in 0..700 {
            let now = Instant(index * AT_1_GB);
            moderation.on_frames(now, 1, 0, costs.wake_up + costs.spent);
            if let Some(interval_ns) = moderation.interval_ns(now, costs.sleep(), true, Instant(0))
            {
                assert!(4 * (interval_ns + costs.wake_up) <= now.0, "{costs:?} {index}");
            } else {
                assert!(
                    now.0 < 5 * (costs.wake_up + costs.spent + 2 * AT_1_GB),
                    "{costs:?} {index}"
                );
            }
        }
    }
}

#[test]
fn an_active_application_is_served_at_once() {
    let mut moderation = Moderation::default();
    for index in 0..100 {
        moderation.on_frames(Instant(index * AT_1_GB), 1, 0, 10_000);
    }
    let now = Instant(100 * AT_1_GB);
    assert_eq!(moderation.interval_ns(now, SLEEP, false, Instant(0)), Some(INTERVAL_NS_MAX));
    assert_eq!(moderation.interval_ns(now, SLEEP, false, now), None, "it has just posted");
}

#[test]
fn an_empty_interval_or_a_pause_ends_a_stream() {
    let mut moderation = Moderation::default();
    for index in 0..100 {
        moderation.on_frames(Instant(index * AT_1_GB), 1, 0, 10_000);
    }
    let mut paused = moderation.clone();
    let now = Instant(101 * AT_1_GB);
    moderation.on_silence(now);
    assert_eq!(moderation.interval_ns(now.after_ns(1_000_000), SLEEP, false, Instant(0)), None);
    let later = now.after_ns(1_000_000);
    paused.on_frames(later, 1, 0, 10_000);
    assert_eq!(paused.interval_ns(later, SLEEP, false, Instant(0)), None);
}

/// If the clock has a low resolution, an interval of 56 µs may end 4 ms too late. If the thread
/// still used intervals all the time, it would receive a stream in batches that are 4 ms apart.
#[test]
fn intervals_are_tried_for_2_percent_of_the_time_with_late_timers() {
    let mut moderation = Moderation::default();
    let run = |moderation: &mut Moderation, from: u64, late_ns: u64| {
        let (mut now, mut slept_ns) = (Instant(from), 0);
        while now.0 < from + 10_000_000_000 {
            now = now.after_ns(AT_1_GB);
            moderation.on_frames(now, 1, 0, 10_000);
            if let Some(interval_ns) = moderation.interval_ns(now, SLEEP, false, Instant(0)) {
                now = now.after_ns(interval_ns + late_ns);
                slept_ns += interval_ns + late_ns;
                moderation.on_interval(now, late_ns, 10_000);
            }
        }
        slept_ns
    };
    let slept_ns = run(&mut moderation, 0, 4_000_000);
    assert!(slept_ns <= 10_000_000_000 / 50, "{slept_ns} ns");
    // After an interval that ends on time, the thread uses intervals again.
    let slept_ns = run(&mut moderation, 20_000_000_000, 10_000);
    assert!(slept_ns >= 10_000_000_000 / 2, "{slept_ns} ns");
}

proptest! {
    /// A peer chooses how many frames arrive and when. For every choice, the interval stays within
    /// its bounds.
    #[test]
    fn an_interval_stays_within_its_bounds_whatever_arrives(
        events in vec((0_u8..4, 0_u64..200_000_000, 0_u64..=u64::from(u32::MAX), any::<bool>()), 0..100),
        spent_ns in 0_u64..500_000,
        latency_ns in 0_u64..500_000,
    ) {
        let sleep = SleepCost { total_ns: spent_ns + latency_ns, spent_ns };
        let (mut moderation, mut now, mut notified) = (Moderation::default(), Instant(0), 0);
        for (kind, gap_ns, frames, may_spin) in events {
            now = now.after_ns(gap_ns);
            match kind {
                0 => moderation.on_frames(now, frames, notified, sleep.total_ns),
                1 => {
                    notified += 1;
                    moderation.on_frames(now, frames, notified, sleep.total_ns);
                }
                2 => moderation.on_silence(now),
                _ => moderation.on_interval(now, gap_ns, sleep.total_ns),
            }
            let later = now.after_ns(frames);
            if let Some(interval_ns) = moderation.interval_ns(later, sleep, may_spin, now) {
                prop_assert!((spent_ns..=INTERVAL_NS_MAX).contains(&interval_ns));
                prop_assert!(interval_ns <= later.since_ns(now) / QUIET_DIVISOR);
            }
        }
    }
}
