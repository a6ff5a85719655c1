//! The bottleneck, the flows and the event loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use delivery::{Fate, Instant, PacketClass, SendConfig, SendHalf, SentPool, TimeoutOutcome};
use wire_edge::{AckBlock, AckDelay};

/// A bottleneck with a drop-tail queue, a rate and a delay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    /// Rate in bytes per second.
    pub(crate) rate: u64,
    /// Later rates. Each entry is the time in nanoseconds from which a rate applies, and the rate.
    pub(crate) steps: [(u64, u64); 2],
    pub(crate) one_way_ns: u64,
    pub(crate) queue_bytes: u64,
    /// Queue length in bytes above which frames are marked.
    pub(crate) mark_bytes: Option<u64>,
    /// Fraction of data frames that the link loses at random. `ack_loss` is the same for
    /// acknowledgements.
    pub(crate) loss: f64,
    pub(crate) ack_loss: f64,
    /// Interval at which the sender polls its link, in nanoseconds.
    pub(crate) host_ns: u64,
    /// Processor time of the sender for each frame, in nanoseconds.
    pub(crate) frame_ns: u64,
    /// Absences of the sender: the period, and the part of each period in which the sender does not
    /// run, both in nanoseconds.
    pub(crate) away: Option<(u64, u64)>,
}

impl Link {
    fn rate_at(&self, now: u64) -> u64 {
        let step = self.steps.iter().rev().find(|(from, rate)| *rate > 0 && now >= *from);
        step.map_or(self.rate, |(_, rate)| *rate)
    }
}

/// Number of data frames for each acknowledgement. `ACK_DELAY_NS` is the longest time without an
/// acknowledgement, in nanoseconds.
const ACK_FRAMES: u32 = 128;
const ACK_DELAY_NS: u64 = 1_000_000;

struct Flow {
    half: SendHalf<[u64; 2]>,
    next_content: u64,
    again: VecDeque<u64>,
    /// Time from which the sender's processor is idle, in nanoseconds.
    ready_at: u64,
    wakes_at: u64,
    /// Ring of bits for the last 4096 packet numbers.
    received: Vec<u64>,
    received_end: u64,
    largest_at: u64,
    marked: u16,
    unacked: u32,
    /// Number of frames sent since the sender last asked for an acknowledgement.
    unasked: u32,
    ack_due: u64,
    delivered: HashSet<u64>,
    goodput: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    /// Whether the frame asks for an acknowledgement.
    asks: bool,
    flow: usize,
    packet: u64,
    content: u64,
    bytes: u64,
    queued_at: u64,
    marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Served,
    Arrived(Frame),
    AckDue(usize),
    /// An acknowledgement arrived. The fields: index of the flow, index of the acknowledgement's
    /// block in the list of all blocks, and arrival time at the host in nanoseconds.
    AckArrived(usize, usize, u64),
    Wake(usize),
    Sample,
}

/// The measurements of a run.
pub(crate) struct Outcome {
    elapsed_ns: u64,
    goodputs: Vec<u64>,
    queue_ns_sum: u64,
    pub(crate) queue_ns_max: u64,
    served: u64,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    pub(crate) probes: u64,
    /// For each millisecond: the bytes received so far, and the rate that the first flow estimates.
    samples: Vec<(u64, u64)>,
}

impl Outcome {
    pub(crate) fn goodput(&self) -> f64 {
        self.goodputs.iter().sum::<u64>() as f64 / (self.elapsed_ns as f64 / 1e9)
    }

    pub(crate) fn queue_ns_mean(&self) -> f64 {
        self.queue_ns_sum as f64 / self.served as f64
    }

    pub(crate) fn loss_share(&self) -> f64 {
        self.dropped as f64 / self.sent as f64
    }

    /// Returns Jain's fairness index.
    pub(crate) fn fairness(&self) -> f64 {
        let sum: f64 = self.goodputs.iter().map(|&bytes| bytes as f64).sum();
        let squares: f64 = self.goodputs.iter().map(|&bytes| (bytes as f64).powi(2)).sum();
        sum * sum / squares / self.goodputs.len() as f64
    }

    pub(crate) fn rate_at(&self, ms: usize) -> f64 {
        self.samples[ms].1 as f64
    }

    /// Returns the goodput of the 20 ms that begin at `ms`.
    pub(crate) fn goodput_at(&self, ms: usize) -> f64 {
        (self.samples[ms + 20].0 - self.samples[ms].0) as f64 / 0.02
    }

    pub(crate) fn print(&self, name: &str) {
        println!(
            "{name:42} goodput {:8.2} Mb/s, queue mean {:6.1} us max {:6.1} us, sent {} lost {} \
             dropped {} spurious {} probes {} fairness {:.3}",
            self.goodput() * 8e-6,
            self.queue_ns_mean() * 1e-3,
            self.queue_ns_max as f64 * 1e-3,
            self.sent,
            self.lost,
            self.dropped,
            self.spurious,
            self.probes,
            self.fairness()
        );
    }
}

pub(crate) struct Simulation {
    link: Link,
    frame_bytes: u64,
    now: u64,
    flows: Vec<Flow>,
    pool: SentPool<[u64; 2]>,
    queue: VecDeque<Frame>,
    queued_bytes: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    blocks: Vec<AckBlock>,
    random: u64,
    outcome: Outcome,
}

impl Simulation {
    pub(crate) fn new(link: Link, config: SendConfig, flows: usize, seed: u64) -> Self {
        let flow = |_| Flow {
            half: SendHalf::new(&config, Instant(0)),
            next_content: 0,
            again: VecDeque::new(),
            ready_at: 0,
            wakes_at: u64::MAX,
            received: vec![0; 64],
            received_end: 0,
            largest_at: 0,
            marked: 0,
            unacked: 0,
            unasked: 0,
            ack_due: u64::MAX,
            delivered: HashSet::new(),
            goodput: 0,
        };
        Self {
            link,
            frame_bytes: u64::from(config.frame_bytes),
            now: 0,
            flows: (0..flows).map(flow).collect(),
            pool: SentPool::new(flows, SentPool::<()>::RECORDS),
            queue: VecDeque::new(),
            queued_bytes: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            blocks: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            outcome: Outcome {
                elapsed_ns: 0,
                goodputs: Vec::new(),
                queue_ns_sum: 0,
                queue_ns_max: 0,
                served: 0,
                sent: 0,
                dropped: 0,
                lost: 0,
                spurious: 0,
                probes: 0,
                samples: Vec::new(),
            },
        }
    }

    pub(crate) fn run(mut self, until_ns: u64) -> Outcome {
        self.at(0, Event::Sample);
        for flow in 0..self.flows.len() {
            self.at(flow as u64 * 37_000, Event::Wake(flow));
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > until_ns {
                break;
            }
            self.now = at;
            self.handle(event);
        }
        self.outcome.elapsed_ns = until_ns;
        self.outcome.goodputs = self.flows.iter().map(|flow| flow.goodput).collect();
        self.outcome
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Served => self.on_served(),
            Event::Arrived(frame) => self.on_arrived(frame),
            Event::AckDue(flow) => {
                if self.flows[flow].ack_due <= self.now {
                    self.acknowledge(flow);
                }
            }
            Event::AckArrived(flow, block, at) => self.on_ack_arrived(flow, block, at),
            Event::Wake(flow) => {
                if self.flows[flow].wakes_at <= self.now {
                    self.flows[flow].wakes_at = u64::MAX;
                }
                self.turn(flow);
            }
            Event::Sample => {
                let received = self.flows.iter().map(|flow| flow.goodput).sum();
                let rate = self.flows[0].half.rate_bytes_per_second().unwrap_or(0);
                self.outcome.samples.push((received, rate));
                self.at(self.now + 1_000_000, Event::Sample);
            }
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn chance(&mut self, share: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) as f64 / (1u64 << 53) as f64) < share
    }

    /// Returns the earliest time from `at` on at which the sender's host runs.
    fn host_runs(&self, at: u64) -> u64 {
        let at = at.next_multiple_of(self.link.host_ns.max(1));
        match self.link.away {
            Some((period, away)) if at % period < away => at - at % period + away,
            _ => at,
        }
    }

    fn enqueue(&mut self, mut frame: Frame) {
        self.outcome.sent += 1;
        if self.queued_bytes + frame.bytes > self.link.queue_bytes {
            self.outcome.dropped += 1;
            return;
        }
        frame.marked = self.link.mark_bytes.is_some_and(|mark| self.queued_bytes > mark);
        self.queued_bytes += frame.bytes;
        self.queue.push_back(frame);
        if self.queue.len() == 1 {
            self.serve(frame);
        }
    }

    fn serve(&mut self, frame: Frame) {
        let ns = frame.bytes * 1_000_000_000 / self.link.rate_at(self.now);
        self.at(self.now + ns, Event::Served);
    }

    fn on_served(&mut self) {
        let frame = self.queue.pop_front().expect("a frame was being served");
        self.queued_bytes -= frame.bytes;
        let waited = self.now - frame.queued_at;
        self.outcome.queue_ns_sum += waited;
        self.outcome.queue_ns_max = self.outcome.queue_ns_max.max(waited);
        self.outcome.served += 1;
        if !self.chance(self.link.loss) {
            self.at(self.now + self.link.one_way_ns, Event::Arrived(frame));
        }
        if let Some(&next) = self.queue.front() {
            self.serve(next);
        }
    }

    fn on_arrived(&mut self, frame: Frame) {
        let now = self.now;
        let bytes = self.frame_bytes;
        let flow = &mut self.flows[frame.flow];
        flow.marked = flow.marked.wrapping_add(u16::from(frame.marked));
        let gap = frame.packet > flow.received_end;
        if frame.packet >= flow.received_end {
            for number in flow.received_end..frame.packet {
                flow.received[number as usize / 64 % 64] &= !(1 << (number % 64));
            }
            flow.received_end = frame.packet + 1;
            flow.largest_at = now;
        }
        flow.received[frame.packet as usize / 64 % 64] |= 1 << (frame.packet % 64);
        if flow.delivered.insert(frame.content) {
            flow.goodput += bytes;
        }
        flow.unacked += 1;
        if flow.unacked >= ACK_FRAMES || frame.asks || gap || frame.marked {
            self.acknowledge(frame.flow);
        } else if flow.ack_due == u64::MAX {
            flow.ack_due = now + ACK_DELAY_NS;
            self.at(now + ACK_DELAY_NS, Event::AckDue(frame.flow));
        }
    }

    fn acknowledge(&mut self, flow_index: usize) {
        let flow = &mut self.flows[flow_index];
        flow.unacked = 0;
        flow.ack_due = u64::MAX;
        let largest = flow.received_end - 1;
        let received = |number: Option<u64>| {
            number.is_some_and(|it| flow.received[it as usize / 64 % 64] >> (it % 64) & 1 == 1)
        };
        let run = (1..1024).find(|&run| !received(largest.checked_sub(run))).unwrap_or(1024);
        let mut bitmap = [0; 8];
        for bit in 0..512 {
            if received(largest.checked_sub(run + 1 + bit)) {
                bitmap[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        let block = AckBlock {
            link: wire_edge::LinkIndex(0),
            marked: flow.marked,
            delay: AckDelay(((self.now - flow.largest_at) / 64).min(65535) as u16),
            run: run as u16,
            largest: largest as u32,
            words: 8,
            bitmap,
        };
        if self.chance(self.link.ack_loss) {
            return;
        }
        self.blocks.push(block);
        let arrives = self.now + self.link.one_way_ns;
        let handled = self.host_runs(arrives);
        self.at(handled, Event::AckArrived(flow_index, self.blocks.len() - 1, arrives));
    }

    fn on_ack_arrived(&mut self, flow_index: usize, block: usize, arrived_at: u64) {
        let flow = &mut self.flows[flow_index];
        let again = &mut flow.again;
        let summary = flow
            .half
            .on_ack(
                &mut self.pool,
                Instant(self.now),
                Instant(arrived_at),
                &self.blocks[block],
                &mut |fate, content| {
                    if fate == Fate::Lost {
                        again.push_back(content[0]);
                    }
                },
            )
            .expect("only sent packets are acknowledged");
        self.outcome.lost += u64::from(summary.newly_lost);
        self.outcome.spurious += u64::from(summary.spurious);
        self.turn(flow_index);
    }

    /// Runs one turn of a sender: timers, then as many frames as the window and the processor
    /// allow.
    fn turn(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        if flow.half.deadline().0 <= self.now {
            let (again, lost) = (&mut flow.again, &mut self.outcome.lost);
            let outcome =
                flow.half.on_timeout(&mut self.pool, Instant(self.now), &mut |_, content| {
                    again.push_back(content[0]);
                    *lost += 1;
                });
            if let TimeoutOutcome::Probe { .. } = outcome {
                self.outcome.probes += 1;
                let content = flow.half.retire_oldest_for_probe().expect("something is in flight");
                flow.again.push_front(content[0]);
                self.send(index);
            }
        }
        let bytes = self.frame_bytes as u32;
        let opens_at = |flow: &Flow, now| flow.half.opens_at(Instant(now), bytes).0;
        while opens_at(&self.flows[index], self.now) <= self.now
            && self.flows[index].ready_at <= self.now
        {
            self.send(index);
        }
        let mut wakes = self.host_runs_at(index).max(self.now + 1);
        let opens_at = opens_at(&self.flows[index], self.now);
        if opens_at < u64::MAX {
            wakes = wakes.min(self.host_runs(self.flows[index].ready_at.max(opens_at)));
        }
        let flow = &mut self.flows[index];
        if wakes < flow.wakes_at {
            flow.wakes_at = wakes;
            self.at(wakes, Event::Wake(index));
        }
    }

    fn host_runs_at(&self, index: usize) -> u64 {
        let deadline = self.flows[index].half.deadline().0;
        if deadline == u64::MAX { deadline } else { self.host_runs(deadline) }
    }

    fn send(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        let content = flow.again.pop_front().unwrap_or_else(|| {
            flow.next_content += 1;
            flow.next_content
        });
        let bytes = self.frame_bytes;
        let packet = flow.half.on_sent(
            &mut self.pool,
            Instant(self.now),
            bytes as u32,
            PacketClass::Data,
            [content, 0],
        );
        flow.ready_at = self.now.max(flow.ready_at) + self.link.frame_ns;
        let queued_at = self.now;
        flow.unasked += 1;
        let asks = flow.unasked >= flow.half.ask_frames();
        if asks {
            flow.unasked = 0;
        }
        self.enqueue(Frame {
            asks,
            flow: index,
            packet: packet.0,
            content,
            bytes,
            queued_at,
            marked: false,
        });
    }
}
