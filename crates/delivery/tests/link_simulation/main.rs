//! Simulates flows over one bottleneck, to test how the sending half reacts to random loss, rate
//! steps, slow hosts and competition. Time is virtual, and a run depends only on its parameters and
//! seed.
//!
//! `cargo test -p ethernot-delivery --test link_simulation -- --nocapture` prints the figures.

mod model;

use delivery::{CongestionAlgorithm, SendConfig};
use model::{Link, Outcome, Simulation};

const MS: u64 = 1_000_000;
const GIGABIT: u64 = 125_000_000;

fn gigabit_link() -> Link {
    Link { rate: GIGABIT, one_way_ns: 50_000, queue_bytes: 256 * 1024, ..Link::default() }
}

fn config() -> SendConfig {
    SendConfig {
        probe_timeout_min_ns: 200_000,
        ack_delay_max_ns: 1_000_000,
        ..SendConfig::default()
    }
}

fn run(name: &str, link: Link, flows: usize, ms: u64) -> Outcome {
    let outcome = Simulation::new(link, config(), flows, 1).run(ms * MS);
    outcome.print(name);
    outcome
}

#[test]
fn one_flow_fills_the_link_with_a_short_queue() {
    let outcome = run("1 Gb/s, 50 us", gigabit_link(), 1, 200);
    assert!(outcome.goodput() > 0.97 * GIGABIT as f64);
    // The peer sends one acknowledgement for 64 frames. The bound of the mean queue is half of the
    // time in which the link carries the data that may be in flight until that acknowledgement
    // arrives.
    assert!(outcome.queue_ns_mean() < 420_000.0);
    assert_eq!(outcome.lost, 0);
}

#[test]
fn random_loss_hardly_reduces_goodput() {
    let clean = run("no loss", gigabit_link(), 1, 500).goodput();
    for (loss, least) in [(0.01, 0.95), (0.05, 0.88), (0.1, 0.8)] {
        let lossy = Link { loss, ..gigabit_link() };
        let outcome = run(&format!("{} % loss", loss * 100.0), lossy, 1, 500);
        assert!(outcome.goodput() >= least * clean);
        assert!(outcome.queue_ns_mean() < 360_000.0);
        assert_eq!(outcome.spurious, 0);
    }
}

#[test]
fn random_loss_on_fast_and_long_links_hardly_reduces_goodput() {
    for (rate, one_way_ns) in [(10 * GIGABIT, 20_000), (10 * GIGABIT, 500_000), (GIGABIT, MS * 5)] {
        let link = Link { rate, one_way_ns, queue_bytes: 1 << 20, ..Link::default() };
        let name =
            |loss: f64| format!("{} Gb/s, {} us, loss {loss}", rate / GIGABIT, one_way_ns / 1000);
        let clean = run(&name(0.0), link, 1, 1000).goodput();
        assert!(clean > 0.9 * rate as f64);
        let one = run(&name(0.01), Link { loss: 0.01, ..link }, 1, 1000).goodput();
        assert!(one > 0.93 * clean);
        let five = run(&name(0.05), Link { loss: 0.05, ..link }, 1, 1000).goodput();
        assert!(five > 0.85 * clean);
    }
}

#[test]
fn lost_acknowledgements_hardly_reduce_goodput() {
    let link = Link { loss: 0.01, ack_loss: 0.1, ..gigabit_link() };
    assert!(run("1 % loss, 10 % of acks lost", link, 1, 300).goodput() > 0.93 * GIGABIT as f64);
}

#[test]
fn rate_steps_are_followed_down_and_up() {
    let link = Link { steps: [(100 * MS, GIGABIT / 10), (300 * MS, GIGABIT)], ..gigabit_link() };
    let outcome = run("1 G, 100 M, 1 G", link, 1, 500);
    for (ms, rate) in [(60, GIGABIT), (290, GIGABIT / 10), (320, GIGABIT)] {
        let believed = outcome.rate_at(ms);
        println!(
            "  after {ms} ms: rate {believed:.0} B/s, goodput {:.0} B/s",
            outcome.goodput_at(ms)
        );
        assert!((0.8..1.3).contains(&(believed / rate as f64)));
        assert!(outcome.goodput_at(ms) > 0.9 * rate as f64);
    }
}

#[test]
fn an_overflowing_queue_drains() {
    let link = Link { queue_bytes: 16 * 1472, ..gigabit_link() };
    let outcome = run("4 flows, queue of 16 frames", link, 4, 500);
    assert!(outcome.goodput() > 0.85 * GIGABIT as f64);
    assert!(outcome.loss_share() < 0.25);
}

#[test]
fn competing_flows_share_the_link_and_none_starves() {
    for flows in [2, 4, 16] {
        let outcome = run(&format!("{flows} flows"), gigabit_link(), flows, 1000);
        assert!(outcome.goodput() > 0.95 * GIGABIT as f64);
        assert!(outcome.fairness() > 0.8);
    }
}

#[test]
fn marks_keep_the_queue_at_the_threshold() {
    let link = Link { mark_bytes: Some(30_000), ..gigabit_link() };
    for flows in [1, 4] {
        let outcome = run(&format!("{flows} flows, marks above 30 kB"), link, flows, 500);
        assert!(outcome.goodput() > 0.95 * GIGABIT as f64);
        assert!(outcome.queue_ns_mean() < 330_000.0);
        assert_eq!(outcome.lost, 0);
    }
}

#[test]
fn slow_hosts_do_not_spiral_down() {
    // The sender polls the link only every 200 us, ten times the round trip of the idle link.
    let link =
        Link { rate: 10 * GIGABIT, one_way_ns: 10_000, queue_bytes: 4 << 20, ..Link::default() };
    let outcome =
        run("10 Gb/s, sender looks every 200 us", Link { host_ns: 200_000, ..link }, 1, 500);
    assert!(outcome.goodput() > 0.75 * 10.0 * GIGABIT as f64);
    // The sender needs 2 us for each frame.
    let outcome =
        run("10 Gb/s, sender takes 2 us a frame", Link { frame_ns: 2_000, ..link }, 1, 200);
    assert!(outcome.goodput() > 0.95 * 1472.0 / 2_000e-9);
    // The sender needs 2 us for each frame and does not run for 3 ms of every 10 ms.
    let link = Link { frame_ns: 2_000, away: Some((10 * MS, 3 * MS)), ..link };
    let outcome = run("the same, away 3 ms of 10 ms", link, 1, 500);
    assert!(outcome.goodput() > 0.9 * 0.7 * 1472.0 / 2_000e-9);
}

#[test]
fn the_delay_algorithm_keeps_its_target() {
    let config =
        SendConfig { algorithm: CongestionAlgorithm::Delay { target_ns: 50_000 }, ..config() };
    let outcome = Simulation::new(gigabit_link(), config, 1, 1).run(300 * MS);
    outcome.print("delay-based, target 50 us");
    assert!(outcome.goodput() > 0.95 * GIGABIT as f64);
    assert!(outcome.queue_ns_mean() < 80_000.0);
}

#[test]
fn the_fixed_window_is_bandwidth_delay_limited() {
    let config = SendConfig { algorithm: CongestionAlgorithm::Fixed { frames: 4 }, ..config() };
    let outcome = Simulation::new(gigabit_link(), config, 1, 1).run(100 * MS);
    outcome.print("fixed, 4 frames");
    assert!(outcome.goodput() < 0.6 * GIGABIT as f64);
}
