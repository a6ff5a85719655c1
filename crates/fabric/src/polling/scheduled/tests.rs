use waiting::Spinning;

use super::*;
use crate::polling::policies::{CALIBRATED, scaled};
use crate::stream::raw_link;

const LINKS: [LinkModel; 1] = [raw_link(100_000_000_000, 0)];
const PROCESSORS: Settings = Settings::usual(2);
const SLEEP_COST_NS: u64 = PROCESSORS.sleep_cost_ns();

fn trial(exercise: Exercise, mode: Mode, message_bytes: u32, busy: usize) -> Trial<'static> {
    Trial {
        links: &LINKS,
        exercise,
        mode,
        message_bytes,
        in_flight: 16,
        costs: CALIBRATED,
        processors: PROCESSORS,
        busy,
        measured_ns: 200_000_000,
        seed: 1,
    }
}

fn outcome(trial: &Trial<'_>, rule: SpinAtMost) -> Outcome {
    run(trial, &|| Box::new(rule)).expect("nothing is in the way")
}

const SPIN: SpinAtMost = SpinAtMost::always(SLEEP_COST_NS);
const SLEEP: SpinAtMost = SpinAtMost::never(SLEEP_COST_NS);

/// Compares two simulations with the same engine and the same costs. In one, a scheduler assigns
/// processors to threads. In the other, a thread always has a processor.
#[test]
fn idle_hosts_that_poll_are_as_fast_as_hosts_without_a_scheduler() {
    for (exercise, message_bytes) in
        [(Exercise::PingPong, 8), (Exercise::PingPong, 16 << 10), (Exercise::OneWay, 16 << 10)]
    {
        let found = outcome(&trial(exercise, Mode::Polls, message_bytes, 0), SPIN);
        let plain = super::super::run(&super::super::Trial {
            links: &LINKS,
            exercise,
            message_bytes,
            in_flight: 16,
            in_order: false,
            costs: CALIBRATED,
            pauses: super::super::Pauses::default(),
            length: super::super::Length::Frames(8_000),
            seed: 1,
        });
        let plain = plain.expect("nothing is in the way");
        let directions = if exercise == Exercise::PingPong { 2.0 } else { 1.0 };
        let bytes = found.operations_per_second * f64::from(message_bytes) * directions;
        let ratio = bytes / plain.bytes_per_second;
        assert!((0.9..1.1).contains(&ratio), "{}: {ratio}", exercise.name());
    }
}

#[test]
fn an_idle_sleeping_application_uses_little_processor_time_and_has_more_latency() {
    let spins = outcome(&trial(Exercise::PingPong, Mode::Waits, 8, 0), SPIN);
    let sleeps = outcome(&trial(Exercise::PingPong, Mode::Waits, 8, 0), SLEEP);
    let [spins_ns, sleeps_ns] = [&spins, &sleeps].map(|found| found.latency_ns(50).expect("some"));
    assert!(spins.processor_percent[0][0] > 99.0, "{spins:?}");
    assert!(sleeps.processor_percent[0][0] < 30.0, "{:?}", sleeps.processor_percent);
    // Half of a round trip includes one wake-up.
    let wake_up_ns = PROCESSORS.idle_latency_ns + PROCESSORS.wake_ns;
    assert!(sleeps_ns >= spins_ns + wake_up_ns - 2_000, "{sleeps_ns} and {spins_ns}");
    assert!(sleeps_ns < spins_ns + 2 * SLEEP_COST_NS, "{sleeps_ns} and {spins_ns}");
}

/// Reproduces a measurement of the real engine next to busy threads. If the endpoint always spins,
/// it completes far fewer operations than its share of the processors permits. If the endpoint
/// sleeps while no frames arrive, it completes most of these operations.
#[test]
fn endless_spinning_beside_busy_threads_loses_more_than_its_share() {
    let left = share_left(PROCESSORS, 8);
    let ratio = |mode, rule| {
        let rate = |busy| {
            let trial = trial(Exercise::PingPong, mode, 16 << 10, busy);
            outcome(&trial, rule).operations_per_second
        };
        rate(8) / rate(0) / left
    };
    let (spins, spins_briefly) = (
        ratio(Mode::Polls, SPIN),
        ratio(Mode::Waits, SpinAtMost { limit_ns: SLEEP_COST_NS, ..SLEEP }),
    );
    assert!(spins < 0.4, "{spins}");
    assert!(spins_briefly > 0.6, "{spins_briefly}");
}

#[test]
fn a_thread_descheduled_inside_the_engine_blocks_the_other_thread() {
    let alone = outcome(&trial(Exercise::TwoWay, Mode::Polls, 16 << 10, 0), SPIN);
    let crowded = outcome(&trial(Exercise::TwoWay, Mode::Polls, 16 << 10, 8), SPIN);
    assert!(crowded.kept_out > 100 + alone.kept_out, "{crowded:?}");
    // A gap of this length shows that the thread lost its processor: four busy threads share this
    // processor, and each of them runs for a slice.
    assert!(crowded.longest_gap_ns > 4 * PROCESSORS.slice_ns / 2, "{crowded:?}");
}

#[test]
fn the_remaining_share_is_the_fair_share() {
    for (busy, fair) in [(0, 1.0), (1, 1.0), (2, 2.0 / 3.0), (4, 0.4), (8, 2.0 / 9.0)] {
        let share = share_left(PROCESSORS, busy);
        // The thread can get a little more than its fair share, because the busy threads sometimes
        // sleep.
        assert!((0.97..1.08).contains(&(share / fair)), "{share} beside {busy}");
    }
}

#[test]
fn a_trial_repeats_itself() {
    for mode in [Mode::Polls, Mode::Waits] {
        let trial = Trial { measured_ns: 30_000_000, ..trial(Exercise::TwoWay, mode, 16 << 10, 4) };
        assert_eq!(outcome(&trial, SLEEP), outcome(&trial, SLEEP));
    }
}

/// Compares the processor time of waiting threads under two policies. With one policy, the thread
/// that watches the links reads frames only at intervals. With the other, the thread reads each
/// frame immediately.
#[test]
fn streams_over_slow_links_use_less_processor_time_with_intervals_on_every_host() {
    const LINKS: [LinkModel; 1] = [LinkModel { offloads: true, ..raw_link(1_000_000_000, 0) }];
    const SEEDS: u64 = 8;
    for quarters in scenarios::SPEEDS {
        // On a slow host, the work for both directions leaves no time to sleep, so only one
        // direction is tested.
        let exercises = [(Exercise::OneWay, 0.75), (Exercise::TwoWay, 0.85)];
        for (exercise, most) in exercises.into_iter().take(if quarters < 4 { 1 } else { 2 }) {
            let processors = PROCESSORS.scaled(quarters);
            let trial = Trial {
                links: &LINKS,
                costs: scaled(&CALIBRATED, quarters),
                processors,
                ..trial(exercise, Mode::Waits, 64 << 10, 0)
            };
            let policies = || Policies::measured(Spinning::Learned, &processors);
            let outcome = |rule: &dyn Fn() -> Box<dyn WaitRule>| {
                let mut sums = (0.0, 0.0);
                for seed in 0..SEEDS {
                    let found = run(&Trial { seed, ..trial.clone() }, rule);
                    let found = found.expect("nothing is in the way");
                    sums.0 += found.operations_per_second / SEEDS as f64;
                    sums.1 += found.processor_percent.iter().flatten().sum::<f64>() / SEEDS as f64;
                }
                sums
            };
            let (rate, percent) = outcome(&|| Box::new(policies()));
            let without = outcome(&|| Box::new(policies().unmoderated()));
            let name = format!("x{quarters} {}: {rate} {percent}, {without:?}", exercise.name());
            assert!(rate >= 0.96 * without.0, "{name}");
            assert!(percent <= most * without.1, "{name}");
        }
    }
}
