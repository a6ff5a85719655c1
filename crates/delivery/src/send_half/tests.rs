use wire_edge::{AckBlock, AckDelay, LinkIndex};

use super::*;
use crate::protocol_error::ProtocolError;

const US: u64 = 1_000;

/// A sending half with its pool and clock. The content of packet i is [i, 0].
struct Fixture {
    half: SendHalf<[u64; 2]>,
    pool: SentPool<[u64; 2]>,
    now: Instant,
    reports: Vec<(Fate, u64)>,
}

impl Fixture {
    fn new() -> Self {
        let config = SendConfig {
            probe_timeout_min_ns: 200 * US,
            ack_delay_max_ns: 0,
            initial_rtt_ns: 100 * US,
            ..SendConfig::default()
        };
        Self {
            half: SendHalf::new(&config, Instant(0)),
            pool: SentPool::new(1, 4096),
            now: Instant(0),
            reports: Vec::new(),
        }
    }

    fn send_as(&mut self, class: PacketClass, count: u64) {
        for _ in 0..count {
            let content = [self.half.next_packet().0, 0];
            self.half.on_sent(&mut self.pool, self.now, 1000, class, content);
        }
    }

    fn send(&mut self, count: u64) {
        self.send_as(PacketClass::Data, count);
    }

    fn ack(&mut self, largest: u32, run: u16, bitmap: u64) -> AckSummary {
        self.ack_after(largest, run, bitmap, 0)
    }

    fn ack_after(&mut self, largest: u32, run: u16, bitmap: u64, delay: u16) -> AckSummary {
        let block = AckBlock {
            link: LinkIndex(0),
            marked: 0,
            delay: AckDelay(delay),
            run,
            largest,
            words: 1,
            bitmap: [bitmap, 0, 0, 0, 0, 0, 0, 0],
        };
        let reports = &mut self.reports;
        self.half
            .on_ack(&mut self.pool, self.now, self.now, &block, &mut |fate, content| {
                reports.push((fate, content[0]));
            })
            .expect("what is acknowledged was sent")
    }

    fn advance_us(&mut self, us: u64) {
        self.now = self.now.after_ns(us * US);
    }

    fn time_out(&mut self) -> TimeoutOutcome {
        self.now = self.half.deadline();
        let reports = &mut self.reports;
        self.half.on_timeout(&mut self.pool, self.now, &mut |fate, content| {
            reports.push((fate, content[0]));
        })
    }

    fn reported(&mut self) -> Vec<(Fate, u64)> {
        core::mem::take(&mut self.reports)
    }
}

#[test]
fn an_idle_link_has_no_memory_of_packets_and_no_deadline() {
    let mut f = Fixture::new();
    assert_eq!(f.half.deadline(), Instant::NEVER);
    f.send(3);
    assert_eq!(f.pool.available(), 0);
    f.advance_us(100);
    f.ack(2, 3, 0);
    assert_eq!(f.pool.available(), 1);
    assert_eq!(f.half.deadline(), Instant::NEVER);
    assert_eq!(f.half.in_flight_bytes(), 0);
}

#[test]
fn the_bitmap_begins_below_the_gap() {
    let mut f = Fixture::new();
    f.send(8);
    f.advance_us(100);
    // Packets 7 and 6 arrived, and 5 did not. Bit 0 stands for packet 4, bit 2 for packet 2.
    f.ack(7, 2, 0b101);
    let acked: Vec<_> = f.reported().into_iter().filter(|(fate, _)| *fate == Fate::Acked).collect();
    assert_eq!(acked, [2, 4, 6, 7].map(|content| (Fate::Acked, content)));
}

#[test]
fn a_packet_overtaken_by_three_is_lost_at_once_and_one_overtaken_by_one_after_a_delay() {
    let mut f = Fixture::new();
    f.send(6);
    f.advance_us(100);
    // Packets 0 and 4 are missing.
    f.ack(5, 1, 0b111);
    assert_eq!(f.reported().last(), Some(&(Fate::Lost, 0)));
    assert_eq!(f.half.in_flight_bytes(), 1000);
    assert_eq!(f.half.deadline(), Instant(125 * US), "a quarter of a round trip more");
    assert_eq!(f.time_out(), TimeoutOutcome::Nothing);
    assert_eq!(f.reported(), [(Fate::Lost, 4)]);
}

//= protocol.md: ack.3
#[test]
fn the_round_trip_time_excludes_the_delay_of_the_peer() {
    let mut f = Fixture::new();
    f.send(1);
    f.advance_us(164);
    assert_eq!(f.ack_after(0, 1, 0, 1000).rtt_sample_ns, Some(100 * US));
    assert_eq!(f.half.srtt_ns(), 100 * US);
}

#[test]
fn a_late_acknowledgement_of_a_lost_packet_is_spurious_and_restores_the_window() {
    let mut f = Fixture::new();
    for packets in 0..20 {
        f.send(10);
        f.advance_us(100);
        f.ack(packets * 10 + 9, 10, 0);
    }
    f.reported();
    let window = f.half.window();
    f.send(10);
    f.advance_us(100);
    f.ack(209, 9, 0);
    assert_eq!(f.reported().last(), Some(&(Fate::Lost, 200)));
    f.send(1);
    f.advance_us(10);
    let summary = f.ack(209, 10, 0);
    assert_eq!((summary.spurious, summary.newly_lost), (1, 0));
    assert_eq!(f.reported(), [], "content was returned twice");
    assert!(f.half.window() >= window);
}

//= protocol.md: again.2
#[test]
fn probe_timeouts_back_off_until_an_answer() {
    let mut f = Fixture::new();
    f.send(2);
    let mut last = f.now;
    let mut waits = Vec::new();
    for count in 1..5 {
        assert_eq!(f.time_out(), TimeoutOutcome::Probe { count_so_far: count });
        waits.push(f.now.since_ns(last));
        last = f.now;
    }
    assert!(waits.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{waits:?}");
    assert_eq!(f.half.probe_count(), 4);
    f.ack(0, 1, 0);
    assert_eq!(f.half.probe_count(), 0);
}

#[test]
fn a_retired_packet_returns_its_content_once_and_still_yields_a_round_trip_sample() {
    let mut f = Fixture::new();
    f.send_as(PacketClass::MtuProbe, 1);
    f.send(1);
    assert!(matches!(f.time_out(), TimeoutOutcome::Probe { .. }));
    assert_eq!(f.half.retire_oldest_for_probe(), Some([1, 0]), "not the MTU probe");
    assert_eq!(f.half.retire_oldest_for_probe(), None);
    let elapsed_ns = f.now.0;
    let summary = f.ack(1, 1, 0);
    assert_eq!((summary.rtt_sample_ns, summary.spurious), (Some(elapsed_ns), 0));
    assert!(!f.reported().contains(&(Fate::Acked, 1)));
}

#[test]
fn a_packet_that_the_receiver_refused_is_neither_in_flight_nor_lost() {
    let mut f = Fixture::new();
    f.send(4);
    let window = f.half.window();
    let mut back = Vec::new();
    f.half.retire(&mut f.pool, &mut |content| content[0] % 2 == 1, &mut |content| {
        back.push(content[0]);
    });
    assert_eq!(back, [1, 3]);
    f.send(4);
    // The peer acknowledges all packets, also the refused ones.
    let summary = f.ack(7, 8, 0);
    assert_eq!((summary.newly_lost, summary.spurious), (0, 0));
    assert_eq!(f.half.in_flight_bytes(), 0);
    assert!(f.half.window() >= window);
    assert!(f.reported().iter().all(|(fate, _)| *fate == Fate::Acked));
}

//= protocol.md: size.3
#[test]
fn a_lost_mtu_probe_is_not_congestion() {
    let mut f = Fixture::new();
    f.send_as(PacketClass::MtuProbe, 1);
    f.send(4);
    f.advance_us(100);
    let window = f.half.window();
    assert_eq!(f.ack(4, 4, 0).newly_lost, 1);
    assert!(f.half.window() >= window);
    assert_eq!(f.reported().last(), Some(&(Fate::Lost, 0)));
}

#[test]
fn pure_acknowledgements_take_only_packet_numbers() {
    let mut f = Fixture::new();
    f.send_as(PacketClass::Unacknowledged, 5);
    assert_eq!(f.half.next_packet(), PacketNumber(5));
    assert_eq!((f.half.in_flight_bytes(), f.pool.available()), (0, 1));
    f.send(1);
    f.advance_us(50);
    f.ack(5, 6, 0);
    assert_eq!(f.reported(), [(Fate::Acked, 5)]);
}

//= protocol.md: packet.1
#[test]
fn unsend_releases_packet_numbers_and_returns_the_newest_first() {
    let mut f = Fixture::new();
    f.send(3);
    f.send_as(PacketClass::Unacknowledged, 1);
    f.send(1);
    let mut back = Vec::new();
    f.half.unsend(&mut f.pool, 4, &mut |content| back.push(content[0]));
    assert_eq!(back, [4, 2, 1]);
    assert_eq!(f.half.next_packet(), PacketNumber(1));
    assert_eq!(f.half.in_flight_bytes(), 1000);
}

//= protocol.md: packet.1
#[test]
fn numbers_of_possibly_sent_frames_are_not_reused_and_do_not_count_as_lost() {
    let mut f = Fixture::new();
    f.send(4);
    let mut back = Vec::new();
    f.half.disown(&mut f.pool, 2, &mut |content| back.push(content[0]));
    assert_eq!(back, [3, 2]);
    assert_eq!((f.half.next_packet(), f.half.in_flight_bytes()), (PacketNumber(4), 2000));
    // The contents are retransmitted. One of the original frames arrives nevertheless.
    f.send(2);
    f.ack(5, 6, 0);
    assert_eq!(f.reported(), [0, 1, 4, 5].map(|packet| (Fate::Acked, packet)));
    assert_eq!(f.half.in_flight_bytes(), 0);
    // Neither of the two frames arrives. The gap does not count as a loss.
    f.send(2);
    f.half.disown(&mut f.pool, 2, &mut |_| {});
    f.send(4);
    f.ack(11, 4, 0);
    assert_eq!(f.reported(), [8, 9, 10, 11].map(|packet| (Fate::Acked, packet)));
}

//= protocol.md: ack.11
#[test]
fn acknowledging_an_unsent_packet_is_an_error() {
    let mut f = Fixture::new();
    f.send(1);
    let block = AckBlock {
        link: LinkIndex(0),
        marked: 0,
        delay: AckDelay(0),
        run: 2,
        largest: 1,
        words: 0,
        bitmap: [0; 8],
    };
    let result = f.half.on_ack(&mut f.pool, f.now, f.now, &block, &mut |_, _| unreachable!());
    let (acknowledged, next) = (PacketNumber(1), PacketNumber(1));
    assert_eq!(result, Err(ProtocolError::AckOfUnsent { acknowledged, next }));
}

#[test]
fn drained_contents_are_not_reported_again() {
    let mut f = Fixture::new();
    f.send(3);
    let mut back = Vec::new();
    f.half.drain(&mut f.pool, &mut |content| back.push(content[0]));
    assert_eq!(back, [0, 1, 2]);
    assert_eq!((f.half.in_flight_bytes(), f.pool.available()), (0, 1));
    f.advance_us(100);
    assert_eq!(f.ack(2, 3, 0).newly_acked, 0);
    assert_eq!(f.reported(), []);
}

#[test]
fn packet_numbers_survive_the_wrap_of_their_low_bits() {
    let mut f = Fixture::new();
    f.half.next = PacketNumber(u64::from(u32::MAX) - 3);
    f.half.acked_end = f.half.next;
    f.send(10);
    f.advance_us(100);
    assert_eq!(f.ack(5, 10, 0).newly_acked, 10);
    assert_eq!(f.half.next_packet(), PacketNumber(u64::from(u32::MAX) + 7));
}

//= protocol.md: state.3
#[test]
fn a_restarted_link_is_measured_from_scratch() {
    let mut f = Fixture::new();
    for packets in 0..20 {
        f.send(10);
        f.advance_us(300);
        f.ack(packets * 10 + 9, 10, 0);
    }
    f.send(2);
    f.half.restart_measurement(&SendConfig::default(), f.now);
    assert_eq!((f.half.srtt_ns(), f.half.rate_bytes_per_second()), (1000 * US, None));
    assert_eq!((f.half.window(), f.half.in_flight_bytes()), (16 * 1472, 2000));
    f.advance_us(50);
    assert_eq!(f.ack(201, 12, 0).newly_acked, 2);
    assert_eq!(f.half.srtt_ns(), 50 * US);
}

/// Simulates a token bucket before a link of 125 MB/s: a few messages pass at once, and after them
/// 100 frames are in flight. The burst of the bucket must not raise the number of frames in flight.
#[test]
fn bursts_do_not_raise_the_frames_in_flight_on_a_busy_link() {
    let mut f = Fixture::new();
    for burst in 1..=6 {
        f.send(10);
        f.advance_us(10);
        f.ack(burst * 10 - 1, 10, 0);
    }
    f.send(100);
    for acked in 60..660 {
        f.advance_us(8);
        f.ack(acked, 1, u64::MAX);
        f.send(1);
    }
    let largest = f.half.rate_bytes_per_second().expect("it is measured");
    let steady = f.half.estimate().carried().expect("it is measured");
    assert!((110_000_000..150_000_000).contains(&steady), "{steady}");
    assert!(largest > steady * 5 / 4, "{largest}");
    assert!(f.half.estimate().has_queue(f.half.frame_bytes));
    assert_eq!(f.half.rate_in_flight(), Some(steady + steady / 4));
}

//= protocol.md: flight.1
#[test]
fn the_peers_buffer_bounds_the_window() {
    let config = SendConfig { receive_buffer_bytes: 5000, ..SendConfig::default() };
    let half = SendHalf::<[u64; 2]>::new(&config, Instant(0));
    assert_eq!(half.window_left(Instant(0)), 5000);
    let config = SendConfig { receive_buffer_bytes: 10, ..config };
    let half = SendHalf::<[u64; 2]>::new(&config, Instant(0));
    assert_eq!(half.window_left(Instant(0)), 1472, "one frame always fits");
}

#[test]
fn the_backlog_grows_with_sent_bytes_and_ends_when_all_are_acknowledged() {
    let config = SendConfig { nominal_rate: Some(1_000_000_000), ..SendConfig::default() };
    let mut f = Fixture::new();
    f.half = SendHalf::new(&config, Instant(0));
    f.send(10);
    assert_eq!(f.half.estimate().idle_at(f.now), Instant(10 * US));
    f.advance_us(5);
    f.ack(9, 10, 0);
    assert_eq!(f.half.estimate().idle_at(f.now), f.now);
}

#[test]
fn a_link_measured_slightly_slower_than_another_counts_as_equally_fast() {
    let config = SendConfig { nominal_rate: Some(1_000_000_000), ..SendConfig::default() };
    for (fastest, microseconds) in [(1_999_999_999, 5), (2_000_000_000, 5), (2_000_000_002, 10)] {
        let mut f = Fixture::new();
        f.half = SendHalf::new(&config, Instant(0));
        f.half.compare_with(fastest);
        f.send(10);
        assert_eq!(
            f.half.estimate().idle_at(f.now).0.div_ceil(US),
            microseconds,
            "beside {fastest} bytes/s"
        );
    }
}
