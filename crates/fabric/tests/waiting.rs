//! Tests the wait policy on simulated hosts with a scheduler. Uses the combinations of settings of
//! `ethernot sim waiting --quick`.

use fabric::polling::Exercise;
use fabric::polling::scheduled::Mode;
use fabric::polling::scheduled::scenarios::{Comparison, Setting, measure, quick};

/// The test uses several seeds. With a single seed, a result can be up to 8 % below its bound by
/// chance.
const SETTING: Setting = Setting { processors: 2, measured_ns: 400_000_000, seeds: 3 };

fn measured(mode: Mode, exercise: Exercise, message_bytes: u32) -> Vec<Comparison> {
    let mut points = quick();
    points.retain(|point| {
        (point.mode, point.exercise, point.message_bytes) == (mode, exercise, message_bytes)
    });
    assert!(!points.is_empty(), "no point of this kind");
    let measure = |point| measure(point, &SETTING, false).expect("nothing is in the way");
    points.iter().map(measure).collect()
}

/// Checks the policy next to busy threads and alone. The busy threads leave the policy a fraction
/// of each processor; the policy must reach at least `least` times the result that this fraction
/// permits. On hosts without busy threads, it must reach at least [`ALONE_LEAST`] times the result
/// of the better simple rule.
fn check(mode: Mode, exercise: Exercise, message_bytes: u32, least: f64) {
    let mut short = Vec::new();
    for found in measured(mode, exercise, message_bytes) {
        let least = if found.point.load == 0 { ALONE_LEAST } else { least };
        if found.ratio() < least {
            short.push(format!("{}: {:.3} instead of {least}", found.point, found.ratio()));
        }
    }
    assert!(short.is_empty(), "{short:#?}");
}

#[test]
fn a_small_ping_pong_that_polls_keeps_its_share() {
    check(Mode::Polls, Exercise::PingPong, 8, 0.75);
}

#[test]
fn a_ping_pong_that_polls_keeps_its_share() {
    check(Mode::Polls, Exercise::PingPong, 16 << 10, 0.79);
}

#[test]
fn a_stream_that_polls_keeps_its_share() {
    check(Mode::Polls, Exercise::OneWay, 16 << 10, 0.78);
}

#[test]
fn streams_both_ways_that_poll_keep_their_share() {
    check(Mode::Polls, Exercise::TwoWay, 16 << 10, 0.74);
}

#[test]
fn a_small_ping_pong_that_waits_keeps_its_share() {
    check(Mode::Waits, Exercise::PingPong, 8, 0.52);
}

#[test]
fn a_ping_pong_that_waits_keeps_its_share() {
    check(Mode::Waits, Exercise::PingPong, 16 << 10, 0.38);
}

#[test]
fn a_stream_that_waits_keeps_its_share() {
    check(Mode::Waits, Exercise::OneWay, 16 << 10, 0.5);
}

#[test]
fn streams_both_ways_that_wait_keep_their_share() {
    check(Mode::Waits, Exercise::TwoWay, 16 << 10, 0.72);
}

#[test]
fn a_measurement_repeats_itself() {
    let setting = Setting { measured_ns: 20_000_000, ..SETTING };
    let points = quick();
    let crowded = points.iter().find(|point| point.load > 0).expect("some are");
    assert_eq!(measure(crowded, &setting, true), measure(crowded, &setting, true));
}

/// On hosts without busy threads, the policy must reach at least this fraction of the better result
/// of two rules: always spin, and never spin. The rest is the cost of one test spin in 17 waits.
const ALONE_LEAST: f64 = 0.94;
