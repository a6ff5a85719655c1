//! Tests that each fault has the effect that its documentation describes, and no other effect.

use delivery::{Evidence, Instant, LinkEvent};

use crate::channel::{Corruption, Faults, Jitter, LinkModel};
use crate::network::{Arrival, Network, NetworkEvent, PortId, Segment, SendOutcome, port_address};
use crate::queue::EventQueue;
use crate::random::Random;
use crate::trace::Trace;

#[test]
fn frames_arrive_at_the_exact_time_and_in_order() {
    let mut pair = Pair::new(1, LinkModel::ethernet(1_000_000_000, 5_000));
    for number in 0..10 {
        pair.send(&[number; 1472]);
    }
    let arrivals = pair.run();
    for (index, (time, arrival)) in arrivals.iter().enumerate() {
        assert_eq!(*time, Instant(12_304 * (index as u64 + 1) + 5_000));
        assert_eq!(arrival.bytes, [index as u8; 1472]);
        assert_eq!(arrival.from, port_address(0, 0));
    }
}

#[test]
fn jitter_keeps_the_order() {
    for jitter in [Jitter::Uniform { most_ns: 50_000 }, Jitter::Exponential { mean_ns: 20_000 }] {
        let model = LinkModel { jitter, ..LinkModel::ethernet(10_000_000_000, 5_000) };
        let mut pair = Pair::new(2, model);
        pair.send_numbered(500);
        let arrivals = pair.run();
        assert!(arrivals.is_sorted_by_key(|(_, arrival)| number_of(&arrival.bytes)));
        let gaps: Vec<u64> =
            arrivals.windows(2).map(|pair| pair[1].0.since_ns(pair[0].0)).collect();
        assert!(gaps.contains(&0) && gaps.iter().any(|&gap| gap > 1_000));
    }
}

#[test]
fn equal_seeds_give_equal_hashes_and_different_seeds_different_ones() {
    assert_eq!(hash_of_a_stormy_run(5), hash_of_a_stormy_run(5));
    assert_ne!(hash_of_a_stormy_run(5), hash_of_a_stormy_run(6));
}

#[test]
fn the_loss_rate_is_the_configured_one() {
    let (arrivals, pair) = run_with(Faults { loss_ppm: 100_000, ..Faults::default() }, 10_000);
    let lost = pair.network.counters().lost;
    assert!((900..1_100).contains(&lost), "{lost}");
    assert_eq!(arrivals.len() as u64, 10_000 - lost);
    assert!(arrivals.is_sorted_by_key(|(_, arrival)| number_of(&arrival.bytes)));
}

#[test]
fn duplicates_are_equal_and_arrive_later() {
    let faults = Faults { duplicate_ppm: 100_000, late_ns_max: 100_000, ..Faults::default() };
    let (arrivals, pair) = run_with(faults, 1_000);
    let duplicated = pair.network.counters().duplicated;
    assert!(duplicated > 50);
    assert_eq!(arrivals.len() as u64, 1_000 + duplicated);
    let mut times = [0; 1_000];
    for (_, arrival) in &arrivals {
        times[number_of(&arrival.bytes)] += 1;
        assert_eq!(arrival.bytes.len(), 100);
    }
    assert!(times.iter().all(|&times| times == 1 || times == 2));
}

#[test]
fn reordering_delays_some_frames_and_loses_none() {
    let faults = Faults { reorder_ppm: 50_000, late_ns_max: 50_000, ..Faults::default() };
    let (arrivals, pair) = run_with(faults, 1_000);
    assert!(pair.network.counters().reordered > 20);
    let mut numbers: Vec<usize> =
        arrivals.iter().map(|(_, arrival)| number_of(&arrival.bytes)).collect();
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..1_000));
}

#[test]
fn corruption_is_dropped_or_delivered() {
    let faults = Faults { corrupt_ppm: 100_000, ..Faults::default() };
    let (arrivals, pair) = run_with(faults, 1_000);
    let corrupted = pair.network.counters().corrupted;
    assert!(corrupted > 50);
    assert_eq!(arrivals.len() as u64, 1_000 - corrupted);
    assert!(arrivals.iter().all(|(_, arrival)| is_intact(&arrival.bytes)));

    let (arrivals, pair) = run_with(Faults { corruption: Corruption::Delivered, ..faults }, 1_000);
    assert_eq!(arrivals.len(), 1_000);
    let broken = arrivals.iter().filter(|(_, arrival)| !is_intact(&arrival.bytes)).count();
    // Two flips can hit the same bit, so that the frame is intact again. Fewer frames can therefore
    // be broken than the counter says.
    assert!(broken as u64 <= pair.network.counters().corrupted && broken > 50);
}

#[test]
fn replay_delivers_old_frames() {
    let (arrivals, pair) = run_with(Faults { replay_ppm: 20_000, ..Faults::default() }, 5_000);
    assert!(pair.network.counters().replayed > 50);
    let (mut newest, mut oldest_replay) = (0, 0);
    for (_, arrival) in &arrivals {
        newest = newest.max(number_of(&arrival.bytes));
        oldest_replay = oldest_replay.max(newest - number_of(&arrival.bytes));
    }
    assert!(oldest_replay > 500, "{oldest_replay}");
}

#[test]
fn a_cut_affects_one_direction() {
    let mut pair = Pair::new(3, LinkModel::ethernet(1_000_000_000, 5_000));
    pair.network.set_cut(pair.ports[0], true);
    assert!(!pair.network.passes(pair.ports[0], pair.ports[1]));
    assert!(pair.network.passes(pair.ports[1], pair.ports[0]));
    pair.send(b"there");
    pair.send_from(1, b"back");
    let arrivals = pair.run();
    assert_eq!(arrivals.len(), 1);
    assert_eq!(arrivals[0].1.bytes, b"back");
    pair.network.set_cut(pair.ports[0], false);
    pair.send(b"there");
    assert_eq!(pair.run().len(), 1);
}

#[test]
fn link_down_loses_frames_in_flight_and_notifies_the_host() {
    let mut pair = Pair::new(4, LinkModel::ethernet(1_000_000_000, 5_000));
    pair.send(b"in flight");
    pair.network.set_up(pair.ports[1], false);
    pair.send(b"into the void");
    assert!(pair.run().is_empty());
    assert_eq!(pair.network.counters().cut, 2);
    let notice = pair.network.poll_notice().expect("the host is notified");
    assert!(matches!(notice.event, LinkEvent::Down) && notice.port == pair.ports[1]);
    pair.network.set_up(pair.ports[1], true);
    let notice = pair.network.poll_notice().expect("the host is notified");
    assert!(matches!(notice.event, LinkEvent::Changed(caps) if caps.local == port_address(1, 0)));
    pair.send(b"again");
    assert_eq!(pair.run().len(), 1);
}

#[test]
fn frames_above_the_mtu_disappear_with_or_without_a_report() {
    let mut pair = Pair::new(5, LinkModel::ethernet(1_000_000_000, 5_000));
    pair.network.set_frame_bytes_max(pair.ports[0], 1_000);
    pair.send(&[0; 1_001]);
    pair.send(&[0; 1_000]);
    assert_eq!(pair.run().len(), 1);
    assert!(pair.network.poll_notice().is_none());

    let model = LinkModel { reports_too_big: true, ..LinkModel::ethernet(1_000_000_000, 0) };
    let mut pair = Pair::new(5, model);
    pair.send(&[0; 1_473]);
    let notice = pair.network.poll_notice().expect("the sender is notified");
    assert!(
        matches!(notice.event, LinkEvent::TooBig(to, 1_472, Evidence::Local) if to == port_address(1, 0)),
        "{notice:?}"
    );
}

#[test]
fn a_driver_takes_only_what_fits_and_later_the_rest() {
    let model = LinkModel { driver_bytes: Some(3_000), ..LinkModel::ethernet(1_000_000_000, 0) };
    let mut pair = Pair::new(6, model);
    let mut taken = 0;
    let ready_at = loop {
        match pair.send(&[0; 1_472]) {
            SendOutcome::Accepted => taken += 1,
            SendOutcome::Refused(ready_at) | SendOutcome::RefusedForPeer(ready_at) => {
                break ready_at;
            }
        }
    };
    assert_eq!((taken, ready_at), (2, Instant(12_304)));
    pair.run();
    assert_eq!(pair.send(&[0; 1_472]), SendOutcome::Accepted);
}

#[test]
fn switch_queues_two_senders_in_front_of_one_port() {
    let mut network = Network::new(7);
    let segment = network.add_segment(Segment::Switched { latency_ns: 1_000 });
    let model = LinkModel { mark_bytes: Some(2_000), ..LinkModel::ethernet(1_000_000_000, 500) };
    let ports: Vec<PortId> =
        (0..3).map(|host| network.add_port(segment, port_address(host, 0), model)).collect();
    let mut pair = Pair { queue: EventQueue::new(), trace: Trace::new(0), network, ports };
    for sender in [0, 1] {
        for _ in 0..4 {
            let Pair { queue, trace, network, ports } = &mut pair;
            network.send(queue, trace, ports[sender], port_address(2, 0), &[&[0; 1_472]]);
        }
    }
    let arrivals = pair.run();
    let first = 12_304 + 500 + 1_000 + 12_304 + 500;
    for (index, (time, arrival)) in arrivals.iter().enumerate() {
        assert_eq!(*time, Instant(first + 12_304 * index as u64));
        assert_eq!(arrival.port, pair.ports[2]);
    }
    assert_eq!(arrivals.len(), 8);
    assert!(arrivals.iter().any(|(_, arrival)| arrival.marked));
}

#[test]
fn frames_without_a_receiver_are_counted() {
    let mut pair = Pair::new(8, LinkModel::ethernet(1_000_000_000, 0));
    let Pair { queue, trace, network, ports } = &mut pair;
    network.send(queue, trace, ports[0], port_address(9, 0), &[b"hello"]);
    assert_eq!(network.counters().unreachable, 1);
    assert!(pair.run().is_empty());
}

#[test]
fn buffers_are_reused() {
    let mut pair = Pair::new(9, LinkModel::ethernet(1_000_000_000, 0));
    for _ in 0..1_000 {
        pair.send(&[0; 100]);
        for (_, arrival) in pair.run() {
            pair.network.recycle(arrival.bytes);
        }
    }
    assert_eq!(pair.network.in_flight(), 0);
}

struct Pair {
    queue: EventQueue<NetworkEvent>,
    trace: Trace,
    network: Network,
    ports: Vec<PortId>,
}

impl Pair {
    fn new(seed: u64, model: LinkModel) -> Self {
        let mut network = Network::new(seed);
        let segment = network.add_segment(Segment::Direct);
        let ports =
            (0..2).map(|host| network.add_port(segment, port_address(host, 0), model)).collect();
        Self { queue: EventQueue::new(), trace: Trace::new(0), network, ports }
    }

    fn send(&mut self, bytes: &[u8]) -> SendOutcome {
        self.send_from(0, bytes)
    }

    fn send_from(&mut self, host: u8, bytes: &[u8]) -> SendOutcome {
        let port = self.ports[usize::from(host)];
        let to = port_address(1 - host, 0);
        self.network.send(&mut self.queue, &mut self.trace, port, to, &[bytes])
    }

    /// Sends frames of 100 bytes. Each frame contains its number 25 times.
    fn send_numbered(&mut self, frames: u32) {
        for number in 0..frames {
            let bytes = number.to_le_bytes().repeat(25);
            self.send(&bytes);
        }
    }

    fn run(&mut self) -> Vec<(Instant, Arrival)> {
        let mut arrivals = Vec::new();
        while let Some(event) = self.queue.pop_until(Instant::NEVER) {
            if let Some(arrival) = self.network.handle(&mut self.queue, &mut self.trace, event) {
                arrivals.push((self.queue.now(), arrival));
            }
        }
        arrivals
    }
}

fn run_with(faults: Faults, frames: u32) -> (Vec<(Instant, Arrival)>, Pair) {
    let model = LinkModel { queue_bytes: u32::MAX, ..LinkModel::ethernet(1_000_000_000, 5_000) };
    let mut pair = Pair::new(42, model);
    pair.network.set_faults(pair.ports[0], faults);
    pair.send_numbered(frames);
    let arrivals = pair.run();
    (arrivals, pair)
}

fn hash_of_a_stormy_run(seed: u64) -> u64 {
    let model = LinkModel {
        jitter: Jitter::Exponential { mean_ns: 10_000 },
        ..LinkModel::ethernet(1_000_000_000, 5_000)
    };
    let mut pair = Pair::new(seed, model);
    let faults = Faults {
        loss_ppm: 50_000,
        loss_burst_frames: 2,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        late_ns_max: 100_000,
        corrupt_ppm: 50_000,
        corruption: Corruption::Delivered,
        replay_ppm: 50_000,
        cut: false,
    };
    let mut random = Random::new(seed);
    for host in 0..2 {
        pair.network.set_faults(pair.ports[host], faults);
    }
    for _ in 0..20 {
        pair.send_numbered(random.between(1, 50) as u32);
        pair.run();
    }
    pair.trace.hash()
}

fn number_of(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

fn is_intact(bytes: &[u8]) -> bool {
    bytes.chunks(4).all(|copy| copy == &bytes[..4])
}
