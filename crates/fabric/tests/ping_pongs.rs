//! Short messages over unequal links: how a slow link next to a fast one affects latency.

use fabric::EdgeCosts;
use fabric::polling::{Costs, Exercise, Length, Pauses, Trial, run};
use fabric::stream::{raw_link, shaped};
use fabric::{Jitter, LinkModel, TokenBucket};

/// Costs close to those of virtual Ethernet on a small virtual machine.
const COSTS: Costs = Costs {
    host: EdgeCosts {
        frame_send_ps: 2_800_000,
        frame_send_ps_per_byte: 100,
        frame_receive_ps: 500_000,
        frame_receive_ps_per_byte: 50,
        post_ps: 100_000,
        completion_ps: 0,
    },
    call_ps: 300_000,
    gather_ps: 800_000,
    poll_ps: 600_000,
    return_ps: 1_300_000,
    segment_ps: 0,
    spread_ps: 0,
    timer_ps: 0,
};

/// Returns a link with a token bucket. The burst of the bucket is 250 µs or four frames, whichever
/// is larger.
fn link(rate: u64) -> LinkModel {
    let model = LinkModel { jitter: Jitter::Constant, ..shaped(raw_link(rate, 0)) };
    let burst_ns = (4 * 1514 * 8_000_000_000 / rate).max(250_000);
    let bucket = model.bucket.map(|bucket| TokenBucket { burst_ns, ..bucket });
    LinkModel { bucket, ..model }
}

fn half_round_trip_us(links: &[LinkModel], message_bytes: u32, seed: u64) -> f64 {
    with_pauses_us(links, message_bytes, seed, Pauses::default())
}

fn with_pauses_us(links: &[LinkModel], message_bytes: u32, seed: u64, pauses: Pauses<'_>) -> f64 {
    let trial = Trial {
        links,
        exercise: Exercise::PingPong,
        message_bytes,
        in_flight: 1,
        in_order: false,
        costs: COSTS,
        pauses,
        length: Length::Frames(12_000),
        seed,
    };
    let outcome = run(&trial).expect("nothing is in the way");
    outcome.latency_ns.expect("it is a ping-pong") / 1e3
}

/// If the bucket of the slow link is full, the link passes a frame immediately. The arrival of such
/// a frame does not show the link's rate. The engine must learn the rate from messages that were
/// sent after a pause of the link.
#[test]
fn a_slow_link_does_not_delay_short_messages_that_a_fast_one_delivers_first() {
    let (fast, slow) = (link(1_000_000_000), link(100_000_000));
    for message_bytes in [4 << 10, 16 << 10] {
        let alone_us = half_round_trip_us(&[fast], message_bytes, 1);
        for seed in 1..=12 {
            let both_us = half_round_trip_us(&[fast, slow], message_bytes, seed);
            assert!(
                both_us < 1.1 * alone_us,
                "{message_bytes} bytes, seed {seed}: {both_us} us, and {alone_us} over the fast link alone"
            );
        }
    }
}

/// If a host pauses, its answers are late. The engine must not blame the link for this delay.
#[test]
fn host_pauses_do_not_make_the_engine_prefer_a_slow_link() {
    let (fast, slow) = (link(1_000_000_000), link(100_000_000));
    let pauses =
        Pauses { every_ns: 40_000_000, lengths_ns: &[200_000, 400_000, 1_000_000, 3_000_000] };
    for message_bytes in [4 << 10, 16 << 10] {
        let alone_us = with_pauses_us(&[fast], message_bytes, 1, pauses);
        for seed in 1..=12 {
            let both_us = with_pauses_us(&[fast, slow], message_bytes, seed, pauses);
            assert!(
                both_us < 1.1 * alone_us,
                "{message_bytes} bytes, seed {seed}: {both_us} us, and {alone_us} over the fast link alone"
            );
        }
    }
}

#[test]
fn a_slow_link_speeds_up_long_messages() {
    let (fast, slow) = (link(1_000_000_000), link(100_000_000));
    let alone_us = half_round_trip_us(&[fast], 128 << 10, 1);
    for seed in 1..=6 {
        let both_us = half_round_trip_us(&[fast, slow], 128 << 10, seed);
        assert!(
            both_us < alone_us,
            "seed {seed}: {both_us} us, and {alone_us} over the fast link alone"
        );
    }
}

#[test]
fn equal_links_share_messages_of_several_frames() {
    let both = [link(100_000_000); 2];
    for message_bytes in [4 << 10, 16 << 10, 128 << 10] {
        let alone_us = half_round_trip_us(&both[..1], message_bytes, 1);
        for seed in 1..=6 {
            let both_us = half_round_trip_us(&both, message_bytes, seed);
            assert!(
                both_us < 0.65 * alone_us,
                "{message_bytes} bytes, seed {seed}: {both_us} us, and {alone_us} over one link"
            );
        }
    }
}

/// At the start, the engine knows only the rates of short messages that passed while the bucket was
/// full. It learns the lasting rate when queues grow. Until then, neither end may starve the other.
#[test]
fn a_starting_stream_gets_the_rate_of_slow_links() {
    let both = [link(100_000_000); 2];
    for (exercise, bytes_per_second) in [(Exercise::OneWay, 23.5e6), (Exercise::TwoWay, 42.5e6)] {
        for seed in 1..=6 {
            let trial = Trial {
                links: &both,
                exercise,
                message_bytes: 1 << 20,
                in_flight: 16,
                in_order: false,
                costs: COSTS,
                pauses: Pauses::default(),
                length: Length::Operations { warm_up: 1, measured: 4 },
                seed,
            };
            let outcome = run(&trial).expect("nothing is in the way");
            assert!(
                outcome.bytes_per_second > bytes_per_second,
                "{exercise:?}, seed {seed}: {outcome:?}"
            );
        }
    }
}
