//! Runs one sending half through random sequences of events, and checks properties that must hold
//! in every sequence.

use std::collections::{BTreeMap, BTreeSet};

use delivery::{
    ASK_FRAMES_MAX, CongestionAlgorithm, Fate, Instant, PacketClass, ProtocolError, SendConfig,
    SendHalf, SentPool, TimeoutOutcome,
};
use proptest::prelude::*;
use wire_edge::{AckBlock, AckDelay};

/// Largest number of frames that may be presumed delivered before they are acknowledged.
const AHEAD_FRAMES_MAX: u32 = 144;

#[derive(Clone, Debug)]
enum Step {
    /// Sends packets of a class and size, regardless of the window.
    Send(u8, u16, u8),
    /// Sends while the window has room.
    Fill(u16),
    /// Takes the last packets back.
    Unsend(u8),
    /// The network delivers a packet in flight, in order or out of order.
    Deliver(u8),
    /// The network loses a packet in flight.
    Drop(u8),
    /// The peer acknowledges packets. The test stores the acknowledgement, so that [`Self::Repeat`]
    /// can repeat it.
    Acknowledge {
        words: u8,
        delay: u16,
        marked: u8,
    },
    /// An old acknowledgement arrives late or again.
    Repeat(u8),
    /// The peer acknowledges a packet that was never sent.
    Lie(u32),
    Advance(u32),
    /// Time advances to the deadline.
    Timeout,
    Retire,
    Drain,
    Limited(bool),
    FrameBytes(u16),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3u8, 64..9000u16, 1..20u8).prop_map(|(c, b, n)| Step::Send(c, b, n)),
        4 => (64..9000u16).prop_map(Step::Fill),
        1 => (0..8u8).prop_map(Step::Unsend),
        12 => any::<u8>().prop_map(Step::Deliver),
        3 => any::<u8>().prop_map(Step::Drop),
        6 => (0..=8u8, 0..500u16, 0..4u8)
            .prop_map(|(words, delay, marked)| Step::Acknowledge { words, delay, marked }),
        2 => any::<u8>().prop_map(Step::Repeat),
        1 => prop_oneof![Just(0), 0..1000u32].prop_map(Step::Lie),
        4 => (0..300_000u32).prop_map(Step::Advance),
        3 => Just(Step::Timeout),
        1 => Just(Step::Retire),
        1 => Just(Step::Drain),
        1 => any::<bool>().prop_map(Step::Limited),
        1 => (256..9000u16).prop_map(Step::FrameBytes),
        1 => Just(Step::Restart),
    ]
}

fn algorithm() -> impl Strategy<Value = CongestionAlgorithm> {
    prop_oneof![
        Just(CongestionAlgorithm::Aimd),
        Just(CongestionAlgorithm::Fixed { frames: 8 }),
        Just(CongestionAlgorithm::Delay { target_ns: 50_000 }),
    ]
}

/// The environment of a sending half: the contents that the half holds, and the packets that the
/// network and the peer hold.
struct World {
    half: SendHalf<[u64; 2]>,
    pool: SentPool<[u64; 2]>,
    now: Instant,
    next_content: u64,
    /// Contents that the half has not returned yet, with their sizes.
    out: BTreeMap<u64, u32>,
    /// Numbers of the packets in flight.
    travelling: Vec<u64>,
    received: BTreeSet<u64>,
    blocks: Vec<AckBlock>,
    marked: u16,
}

impl World {
    fn new(algorithm: CongestionAlgorithm) -> Self {
        let config = SendConfig { algorithm, packets_max: 256, ..SendConfig::default() };
        Self {
            half: SendHalf::new(&config, Instant(0)),
            pool: SentPool::new(1, 256),
            now: Instant(0),
            next_content: 0,
            out: BTreeMap::new(),
            travelling: Vec::new(),
            received: BTreeSet::new(),
            blocks: Vec::new(),
            marked: 0,
        }
    }

    fn send(&mut self, class: PacketClass, bytes: u32) {
        let content = self.next_content;
        self.next_content += 1;
        let expected = self.half.next_packet();
        let packet = self.half.on_sent(&mut self.pool, self.now, bytes, class, [content, !content]);
        assert_eq!(packet, expected);
        self.travelling.push(packet.0);
        if class != PacketClass::Unacknowledged {
            self.out.insert(content, bytes);
        }
    }

    /// Checks that the content of a packet is unchanged, and that the half returns it for the first
    /// time.
    fn back(out: &mut BTreeMap<u64, u32>, content: [u64; 2]) {
        assert_eq!(content[1], !content[0]);
        assert!(out.remove(&content[0]).is_some(), "content {} came back twice", content[0]);
    }

    fn acknowledge(&mut self, words: u8, delay: u16, marked: u8) {
        self.marked = self.marked.wrapping_add(u16::from(marked));
        let Some(&largest) = self.received.last() else { return };
        let mut run = 1;
        while run < 60 && largest >= run && self.received.contains(&(largest - run)) {
            run += 1;
        }
        let mut bitmap = [0; 8];
        for bit in 0..u64::from(words) * 64 {
            if largest > run + bit && self.received.contains(&(largest - run - 1 - bit)) {
                bitmap[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        let block = AckBlock {
            link: wire_edge::LinkIndex(0),
            marked: self.marked,
            delay: AckDelay(delay),
            run: run as u16,
            largest: largest as u32,
            words,
            bitmap,
        };
        self.blocks.push(block);
        self.hear(block);
    }

    fn hear(&mut self, block: AckBlock) {
        let before = self.half.in_flight_bytes();
        let (mut acked, mut lost) = (0, 0);
        let (out, received) = (&mut self.out, self.received.len());
        let summary = self
            .half
            .on_ack(&mut self.pool, self.now, self.now, &block, &mut |fate, content| {
                match fate {
                    Fate::Acked => acked += 1,
                    Fate::Lost => lost += 1,
                }
                Self::back(out, content);
            })
            .expect("only received packets are acknowledged");
        assert!(acked <= summary.newly_acked && acked as usize <= received);
        assert_eq!(lost, summary.newly_lost);
        assert!(self.half.in_flight_bytes() <= before);
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Send(class, bytes, count) => {
                let class = [PacketClass::Data, PacketClass::MtuProbe, PacketClass::Unacknowledged]
                    [class as usize];
                for _ in 0..count {
                    self.send(class, u32::from(bytes));
                }
            }
            Step::Fill(bytes) => {
                while self.half.window_left(self.now) >= u32::from(bytes) {
                    self.send(PacketClass::Data, u32::from(bytes));
                }
                assert!(self.half.in_flight_bytes() < u32::MAX / 2);
            }
            Step::Unsend(count) => self.unsend(count),
            Step::Deliver(which) if !self.travelling.is_empty() => {
                // Mostly take the oldest packet, because links keep the order.
                let index = if which < 200 { 0 } else { which as usize % self.travelling.len() };
                let packet = self.travelling.remove(index);
                self.received.insert(packet);
            }
            Step::Drop(which) if !self.travelling.is_empty() => {
                self.travelling.remove(which as usize % self.travelling.len());
            }
            Step::Acknowledge { words, delay, marked } => self.acknowledge(words, delay, marked),
            Step::Repeat(which) if !self.blocks.is_empty() => {
                let block = self.blocks[which as usize % self.blocks.len()];
                self.hear(block);
            }
            Step::Lie(beyond) => self.lie(beyond),
            Step::Advance(ns) => self.now = self.now.after_ns(u64::from(ns)),
            Step::Timeout => self.time_out(),
            Step::Retire => {
                if let Some(content) = self.half.retire_oldest_for_probe() {
                    Self::back(&mut self.out, content);
                }
            }
            Step::Drain => {
                let out = &mut self.out;
                self.half.drain(&mut self.pool, &mut |content| Self::back(out, content));
                assert!(self.out.is_empty());
                assert_eq!(self.pool.available(), 1);
            }
            Step::Limited(limited) => self.half.set_application_limited(limited),
            Step::Restart => self.half.restart_measurement(&SendConfig::default(), self.now),
            Step::FrameBytes(bytes) => self.half.set_frame_bytes(u32::from(bytes)),
            Step::Deliver(_) | Step::Drop(_) | Step::Repeat(_) => {}
        }
    }

    /// Takes packets back, but only if the network has neither delivered nor lost any of them.
    fn unsend(&mut self, count: u8) {
        let next = self.half.next_packet().0;
        let first = next.saturating_sub(u64::from(count));
        let untouched = (first..next).all(|packet| self.travelling.contains(&packet));
        if !untouched || self.received.last().is_some_and(|&largest| largest >= first) {
            return;
        }
        let (out, mut newest) = (&mut self.out, u64::MAX);
        self.half.unsend(&mut self.pool, (next - first) as usize, &mut |content| {
            assert!(content[0] < newest, "newest first");
            newest = content[0];
            Self::back(out, content);
        });
        assert_eq!(self.half.next_packet().0, first);
        self.travelling.retain(|&packet| packet < first);
    }

    fn lie(&mut self, beyond: u32) {
        let block = AckBlock {
            link: wire_edge::LinkIndex(0),
            marked: 0,
            delay: AckDelay(0),
            run: 1,
            largest: self.half.next_packet().truncate().wrapping_add(beyond),
            words: 0,
            bitmap: [0; 8],
        };
        let result = self.half.on_ack(&mut self.pool, self.now, self.now, &block, &mut |_, _| {
            panic!("a lie changed something")
        });
        assert!(matches!(result, Err(ProtocolError::AckOfUnsent { .. })));
    }

    fn time_out(&mut self) {
        let deadline = self.half.deadline();
        if deadline == Instant::NEVER {
            return;
        }
        self.now = self.now.max(deadline);
        let (out, count) = (&mut self.out, self.half.probe_count());
        let outcome = self.half.on_timeout(&mut self.pool, self.now, &mut |fate, content| {
            assert_eq!(fate, Fate::Lost);
            Self::back(out, content);
        });
        if let TimeoutOutcome::Probe { count_so_far } = outcome {
            assert_eq!(count_so_far, count + 1);
        }
        assert!(self.half.deadline() > self.now, "a timeout makes progress");
    }

    fn check(&self) {
        assert_eq!(
            u64::from(self.half.in_flight_bytes()),
            self.out.values().map(|&it| u64::from(it)).sum::<u64>()
        );
        assert!(self.half.window() > 0);
        let ahead = AHEAD_FRAMES_MAX * u32::from(u16::MAX);
        let fits = self.half.window().saturating_add(ahead);
        let fits = fits.saturating_sub(self.half.in_flight_bytes());
        assert!(self.half.window_left(self.now) <= fits);
        let opens_at = self.half.opens_at(self.now, 1);
        assert_eq!(opens_at <= self.now, self.half.window_left(self.now) > 0);
        if opens_at < Instant::NEVER {
            assert!(self.half.window_left(opens_at) > 0, "the window opens when it was said to");
        }
        assert!((1..=ASK_FRAMES_MAX).contains(&self.half.ask_frames()));
        if self.out.is_empty() {
            assert_eq!(self.half.in_flight_bytes(), 0);
        } else {
            assert!(self.half.deadline() < Instant::NEVER, "what is in flight has a deadline");
        }
        assert!(self.half.estimate().idle_at(self.now) >= self.now);
        assert!(self.half.quantum_bytes() > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    //= protocol.md: again.1
    #[test]
    fn every_content_is_returned_exactly_once(
        algorithm in algorithm(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut world = World::new(algorithm);
        for step in &steps {
            world.take(step);
            world.check();
        }
        // The network works again. After one acknowledgement, and then only timeouts, the half must
        // have returned every content.
        for _ in 0..1000 {
            if world.half.deadline() == Instant::NEVER {
                break;
            }
            world.time_out();
            if let Some(content) = world.half.retire_oldest_for_probe() {
                World::back(&mut world.out, content);
            } else {
                world.take(&Step::Drain);
            }
            world.check();
        }
        prop_assert!(world.out.is_empty());
        prop_assert_eq!(world.pool.available(), 1);
    }

    #[test]
    fn any_ack_block_is_handled(
        sent in 0..100u64,
        blocks in prop::collection::vec(
            (any::<[u64; 8]>(), any::<u16>(), 0..200u32, any::<u8>(), any::<u16>()), 1..20),
    ) {
        let mut world = World::new(CongestionAlgorithm::Aimd);
        for _ in 0..sent {
            world.send(PacketClass::Data, 1472);
        }
        for (bitmap, run, below, words, delay) in blocks {
            world.now = world.now.after_ns(1000);
            let largest = world.half.next_packet().truncate().wrapping_add(50).wrapping_sub(below);
            let block = AckBlock {
                link: wire_edge::LinkIndex(0), marked: run, delay: AckDelay(delay), run, largest, words, bitmap,
            };
            let out = &mut world.out;
            let _ = world.half.on_ack(&mut world.pool, world.now, Instant(0), &block, &mut |_, content| {
                World::back(out, content);
            });
            world.check();
        }
    }
}
