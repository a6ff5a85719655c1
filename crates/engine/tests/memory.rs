//! Links over shared memory lose nothing. The tests check which packets are acknowledged, and when.

mod pair;

use engine::EngineConfig;
use pair::{LinkPlan, Pair, share_memory};

/// A ping-pong of small writes. Each answer reports deliveries. Acknowledgements of packets are
/// rare, but at the end all packets are acknowledged.
#[test]
fn an_answer_reports_deliveries_at_once_and_packets_eventually() {
    let mut pair = near_pair();
    let sent_before = pair.hosts.each_ref().map(|host| host.info().paths[0].counters);
    let mut unacknowledged = 0;
    for round in 1..=ROUNDS {
        for host in [0, 1] {
            pair.hosts[host].buffer.store_u64(host as u64 * 8, round);
            pair.write(host, host as u64 * 8, 8, round);
            pair.run_until(100_000, "a write", |pair| {
                pair.hosts[1 - host].buffer.load_u64(host as u64 * 8) == round
            });
        }
        let done = pair.done(0);
        assert_eq!(done.iter().map(|c| c.context).collect::<Vec<_>>(), [round], "with the answer");
        let in_flight = pair.hosts[0].info().paths[0].in_flight_bytes;
        assert!(in_flight <= 17 * 80, "{in_flight} bytes in flight after round {round}");
        unacknowledged += u64::from(in_flight > 0);
    }
    assert!(unacknowledged > ROUNDS / 2, "{unacknowledged} answers acknowledged no packet");
    pair.run_for(1_000_000);
    for (host, before) in pair.hosts.iter().zip(sent_before) {
        let path = &host.info().paths[0];
        let now = path.counters;
        assert_eq!(path.in_flight_bytes, 0);
        assert_eq!((now.retransmissions, now.packets_lost), (0, 0));
        assert_eq!(now.data_frames_sent - before.data_frames_sent, ROUNDS);
        let alone = now.explicit_acks_sent - before.explicit_acks_sent;
        assert!(alone <= 2, "{alone} frames with nothing but acknowledgements");
    }
    pair.assert_idle();
}

#[test]
fn a_write_without_an_answer_completes_after_the_usual_delay() {
    let mut pair = near_pair();
    let before = pair.hosts[0].info().paths[0].counters;
    for round in 1..=20 {
        let posted_at = pair.now;
        pair.write(0, 0, 8, round);
        let completes = |pair: &Pair| !pair.hosts[0].queue.is_empty();
        pair.run_until(100_000, "a completion", completes);
        assert!(pair.now.since_ns(posted_at) <= 25_000 + 4 * NEAR_NS);
        assert_eq!(pair.done(0).len(), 1);
    }
    let after = pair.hosts[0].info().paths[0].counters;
    assert_eq!(after.probe_timeouts, before.probe_timeouts);
    pair.run_for(1_000_000);
    pair.assert_idle();
}

fn near_pair() -> Pair {
    share_memory();
    let plan =
        LinkPlan { frame_bytes_max: 65_504, frame_bytes_safe: 65_504, rate: None, offloads: false };
    let mut pair = Pair::with(&[plan], EngineConfig::default());
    for channels in &mut pair.channels {
        for channel in channels {
            channel.delay_ns = NEAR_NS;
        }
    }
    pair.establish();
    pair
}

/// Delay of a frame over shared memory, in nanoseconds.
const NEAR_NS: u64 = 500;

const ROUNDS: u64 = 200;
