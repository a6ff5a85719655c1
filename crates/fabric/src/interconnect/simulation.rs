//! A run: ranks on hosts that do a workload over a fabric, in virtual time.

use super::slab::Slab;
use super::statistics::{Histogram, Summary, mix};
use super::wheel::{Event, Wheel};
use super::workload::{Action, Actions, Received, Workload};

/// What carries messages from host to host.
pub trait Fabric {
    /// Takes a message that its host hands over now.
    fn inject(&mut self, context: &mut Context, message: u32);

    /// An event that the fabric scheduled; its place is below [`FABRIC_PLACES`].
    fn handle(&mut self, context: &mut Context, event: Event);

    /// Whether it wants to be told of the events that come next.
    const LOOKS_AHEAD: bool = false;

    /// Told of the events that come next (others may come between): a fabric may touch the memory that
    /// they need, all at once, so that the processor waits once and not for each.
    #[inline]
    fn look_ahead(&mut self, events: &[Event], messages: &Slab<Message>) {
        let _ = (events, messages);
    }

    /// Told when nothing will happen any more, with messages under way: what they wait for.
    fn diagnose(&self, context: &Context) -> Stuck;

    /// Packet-hops (flit-hops of a flit fabric) so far: links crossed.
    fn hops(&self) -> u64;

    /// Half the shortest time between scheduling and happening that is usual here, in picoseconds.
    fn slot_ps(&self) -> u64;
}

/// What a fabric shares with the run: the future, the messages under way and those that arrived.
#[derive(Debug)]
pub struct Context {
    /// Future events.
    pub wheel: Wheel,
    /// Messages under way.
    pub messages: Slab<Message>,
    delivered: Vec<u32>,
    dropped: u64,
    /// Added to the place of what is scheduled.
    place_base: u32,
    /// Messages that lost a part, if somebody asks.
    lost: Option<Vec<u32>>,
}

impl Context {
    /// Nothing under way at time 0; `slot_ps` is for the [`Wheel`].
    pub fn new(slot_ps: u64) -> Self {
        Self {
            wheel: Wheel::new(slot_ps),
            messages: Slab::new(),
            delivered: Vec::new(),
            dropped: 0,
            place_base: 0,
            lost: None,
        }
    }

    /// From now on so much is added to the place of what is scheduled: for a fabric made of several.
    pub const fn set_place_base(&mut self, place_base: u32) {
        self.place_base = place_base;
    }

    /// A message delivered since the last event, if there is one: for a fabric around another, which
    /// decides what is delivered further.
    pub fn take_delivered(&mut self) -> Option<u32> {
        self.delivered.pop()
    }

    /// A message that lost a part since the last call, if there is one: for a fabric around another,
    /// which repairs that. From the first call on they are remembered.
    pub fn take_lost(&mut self) -> Option<u32> {
        self.lost.get_or_insert_default().pop()
    }

    /// Schedules an event.
    #[inline]
    pub fn schedule(&mut self, time_ps: u64, place: u32, subject: u32) {
        let place = self.place_base | place;
        self.wheel.push(Event { time_ps, place, subject });
    }

    /// The last byte of a message has arrived, now.
    #[inline]
    pub fn deliver(&mut self, message: u32) {
        self.delivered.push(message);
    }

    /// A part of a message was lost for good.
    pub fn drop_packet(&mut self, message: u32) {
        self.dropped += 1;
        if let Some(lost) = &mut self.lost {
            lost.push(message);
        }
    }
}

/// A message from host to host.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// When the sender posted it, in picoseconds.
    pub posted_ps: u64,
    /// Host that sends.
    pub source: u32,
    /// Host that receives.
    pub destination: u32,
    /// Payload, in bytes.
    pub bytes: u32,
    /// What the workload calls it.
    pub tag: u32,
    /// Packets of it that have not arrived; the fabric's to use.
    pub remaining: u32,
}

/// Why a run stopped before its end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Stuck {
    /// Packets wait for each other in a circle.
    #[error("deadlock: {} packets wait for each other in a circle:\n{}", .circle.len(), .circle.join("\n"))]
    Deadlock {
        /// Each link of the circle: who holds it, and what that waits for.
        circle: Vec<String>,
    },
    /// Packets were lost, and the workload waits for them.
    #[error(
        "{packets} packets were lost in full queues, and the workload waits for their messages"
    )]
    Lost {
        /// How many.
        packets: u64,
    },
    /// More events than allowed.
    #[error(
        "not finished after {events} events, at {now_ps} ps with {messages} messages under way: the load is more than the network carries, or the workload is endless"
    )]
    Endless {
        /// Events handled.
        events: u64,
        /// Virtual time.
        now_ps: u64,
        /// Messages under way.
        messages: usize,
    },
    /// The workload waits although everything arrived.
    #[error("nothing will happen any more, but {what}")]
    Unfinished {
        /// What is not done.
        what: String,
    },
    /// Messages stopped on their way.
    #[error("{messages} messages are under way, and nothing will happen any more")]
    Silent {
        /// Messages under way.
        messages: usize,
    },
}

/// What messages cost the processor of a host.
///
/// The processor does one thing at a time, in the order of posting and arrival. Zero costs are
/// free: then it is not asked at all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostCosts {
    /// Per message sent, in picoseconds.
    pub send_ps: u64,
    /// Per byte sent, in picoseconds.
    pub send_ps_per_byte: u64,
    /// Per message received, in picoseconds.
    pub receive_ps: u64,
    /// Per byte received, in picoseconds.
    pub receive_ps_per_byte: u64,
}

impl HostCosts {
    /// The same costs for sending and receiving.
    #[must_use]
    pub const fn symmetric(per_message_ps: u64, per_byte_ps: u64) -> Self {
        Self {
            send_ps: per_message_ps,
            send_ps_per_byte: per_byte_ps,
            receive_ps: per_message_ps,
            receive_ps_per_byte: per_byte_ps,
        }
    }

    /// These costs times a factor, rounded to picoseconds.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let scale = |cost: u64| (cost as f64 * factor).round() as u64;
        Self {
            send_ps: scale(self.send_ps),
            send_ps_per_byte: scale(self.send_ps_per_byte),
            receive_ps: scale(self.receive_ps),
            receive_ps_per_byte: scale(self.receive_ps_per_byte),
        }
    }

    /// Cost of sending so many bytes, in picoseconds.
    pub const fn send(&self, bytes: u32) -> u64 {
        self.send_ps + self.send_ps_per_byte * bytes as u64
    }

    /// Cost of receiving so many bytes, in picoseconds.
    pub const fn receive(&self, bytes: u32) -> u64 {
        self.receive_ps + self.receive_ps_per_byte * bytes as u64
    }
}

/// How a run is bounded and what of it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages posted earlier are not measured, in picoseconds.
    pub warmup_ps: u64,
    /// The most events.
    pub events: u64,
}

impl Default for Limits {
    /// Everything is measured, and a run may take an hour.
    fn default() -> Self {
        Self { warmup_ps: 0, events: 1 << 36 }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last rank did its last thing, in picoseconds.
    pub completed_ps: u64,
    /// From posting a message to its last byte at the destination host.
    pub latency: Summary,
    /// The same as counts by size.
    pub histogram: Histogram,
    /// Messages delivered.
    pub delivered: u64,
    /// Payload delivered, in bytes.
    pub delivered_bytes: u64,
    /// Packets lost in full queues.
    pub dropped: u64,
    /// Events handled.
    pub events: u64,
    /// Links crossed by packets (by flits, of a flit fabric).
    pub hops: u64,
    /// Hash of all deliveries: when, from whom, to whom, what. Does not depend on the order in
    /// which they were recorded.
    pub hash: u64,
    /// The most messages under way at a time.
    pub messages_max: usize,
}

/// Ranks, hosts and a fabric.
#[derive(Debug)]
pub struct Simulation<F, W> {
    fabric: F,
    workload: W,
    costs: HostCosts,
    limits: Limits,
    context: Context,
    actions: Actions,
    /// Host of each rank.
    hosts: Vec<u32>,
    /// Rank on each host; [`NO_RANK`] on idle ones.
    ranks: Vec<u32>,
    /// When the processor of each rank's host is free.
    free_ps: Vec<u64>,
    outcome: Outcome,
}

impl<F: Fabric, W: Workload> Simulation<F, W> {
    /// A run whose rank r is on host `placement[r]`; no two ranks share a host.
    pub fn new(fabric: F, workload: W, placement: &[u32], costs: HostCosts) -> Self {
        let hosts_max = placement.iter().max().map_or(0, |&host| host as usize + 1);
        let mut ranks = vec![NO_RANK; hosts_max];
        for (rank, &host) in placement.iter().enumerate() {
            ranks[host as usize] = rank as u32;
        }
        let context = Context::new(fabric.slot_ps());
        Self {
            fabric,
            workload,
            costs,
            limits: Limits::default(),
            context,
            actions: Actions::default(),
            hosts: placement.to_vec(),
            free_ps: vec![0; placement.len()],
            ranks,
            outcome: Outcome::new(),
        }
    }

    /// Bounds the run.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs to the end.
    pub fn run(self) -> Result<Outcome, Stuck> {
        self.run_to_end().map(|(outcome, _)| outcome)
    }

    /// Runs to the end and returns the fabric too, for what it counted.
    pub fn run_to_end(mut self) -> Result<(Outcome, F), Stuck> {
        for rank in 0..self.hosts.len() as u32 {
            self.workload.start(rank, &mut self.actions);
            self.act(rank);
        }
        while let Some(event) = self.context.wheel.pop() {
            self.outcome.events += 1;
            if F::LOOKS_AHEAD {
                let Context { wheel, messages, .. } = &mut self.context;
                self.fabric.look_ahead(wheel.begun_slot(), messages);
            }
            if event.place < FABRIC_PLACES {
                self.fabric.handle(&mut self.context, event);
            } else {
                self.handle_own(event);
            }
            while let Some(message) = self.context.delivered.pop() {
                self.on_delivered(message);
            }
            if self.outcome.events >= self.limits.events || event.time_ps > END_PS {
                return Err(Stuck::Endless {
                    events: self.outcome.events,
                    now_ps: self.context.wheel.now_ps(),
                    messages: self.context.messages.len(),
                });
            }
        }
        self.finish()
    }

    fn finish(mut self) -> Result<(Outcome, F), Stuck> {
        self.outcome.dropped = self.context.dropped;
        self.outcome.hops = self.fabric.hops();
        self.outcome.messages_max = self.context.messages.len_max();
        let is_left = !self.context.messages.is_empty();
        if is_left && self.context.dropped == 0 {
            return Err(self.fabric.diagnose(&self.context));
        }
        match self.workload.is_finished() {
            true => Ok((self.outcome, self.fabric)),
            false if self.context.dropped > 0 => Err(Stuck::Lost { packets: self.context.dropped }),
            false => Err(Stuck::Unfinished { what: self.workload.awaits() }),
        }
    }

    /// A timer of a rank or its processor.
    fn handle_own(&mut self, event: Event) {
        let rank = event.place & RANK_MASK;
        match event.place & !RANK_MASK {
            WAKE => {
                self.outcome.completed_ps = self.outcome.completed_ps.max(event.time_ps);
                self.actions.now_ps = event.time_ps;
                self.workload.on_wake(rank, event.subject, &mut self.actions);
                self.act(rank);
            }
            INJECT => self.fabric.inject(&mut self.context, event.subject),
            _ => self.on_received(rank, event.subject),
        }
    }

    /// The last byte of a message is at its host.
    fn on_delivered(&mut self, index: u32) {
        let now_ps = self.context.wheel.now_ps();
        let message = *self.context.messages.get(index);
        if message.posted_ps >= self.limits.warmup_ps {
            self.outcome.latency.add(now_ps - message.posted_ps);
            self.outcome.histogram.add(now_ps - message.posted_ps);
        }
        self.outcome.delivered += 1;
        self.outcome.delivered_bytes += u64::from(message.bytes);
        let ends = u64::from(message.source) << 32 | u64::from(message.destination);
        let what = u64::from(message.tag) << 32 | u64::from(message.bytes);
        let hash = mix(mix(mix(message.posted_ps, now_ps), ends), what);
        self.outcome.hash = self.outcome.hash.wrapping_add(hash);

        let rank = self.ranks[message.destination as usize];
        let cost_ps = self.costs.receive(message.bytes);
        if cost_ps == 0 {
            self.on_received(rank, index);
            return;
        }
        let free = &mut self.free_ps[rank as usize];
        *free = (*free).max(now_ps) + cost_ps;
        self.context.schedule(*free, RECEIVED | rank, index);
    }

    /// A rank gets a message.
    fn on_received(&mut self, rank: u32, index: u32) {
        let message = self.context.messages.remove(index);
        let now_ps = self.context.wheel.now_ps();
        self.outcome.completed_ps = self.outcome.completed_ps.max(now_ps);
        self.actions.now_ps = now_ps;
        let received = Received {
            from: self.ranks[message.source as usize],
            bytes: message.bytes,
            tag: message.tag,
        };
        self.workload.on_received(rank, received, &mut self.actions);
        self.act(rank);
    }

    /// Does what a rank asked for.
    fn act(&mut self, rank: u32) {
        let now_ps = self.context.wheel.now_ps();
        let mut list = std::mem::take(&mut self.actions.list);
        for action in list.drain(..) {
            let free = &mut self.free_ps[rank as usize];
            match action {
                Action::Send { to, bytes, tag } => {
                    let source = self.hosts[rank as usize];
                    let destination = self.hosts[to as usize];
                    let message = Message {
                        posted_ps: now_ps,
                        source,
                        destination,
                        bytes,
                        tag,
                        remaining: 0,
                    };
                    let index = self.context.messages.insert(message);
                    let cost_ps = self.costs.send(bytes);
                    if source == destination {
                        self.context.schedule(
                            (*free).max(now_ps) + cost_ps,
                            RECEIVED | rank,
                            index,
                        );
                    } else if cost_ps == 0 {
                        self.fabric.inject(&mut self.context, index);
                    } else {
                        *free = (*free).max(now_ps) + cost_ps;
                        self.context.schedule(*free, INJECT | rank, index);
                    }
                }
                Action::Compute { time_ps, tag } => {
                    *free = (*free).max(now_ps) + time_ps;
                    self.context.schedule(*free, WAKE | rank, tag);
                }
                Action::Wake { time_ps, tag } => self.context.schedule(time_ps, WAKE | rank, tag),
            }
        }
        self.actions.list = list;
    }
}

impl Outcome {
    fn new() -> Self {
        Self {
            completed_ps: 0,
            latency: Summary::new(),
            histogram: Histogram::new(),
            delivered: 0,
            delivered_bytes: 0,
            dropped: 0,
            events: 0,
            hops: 0,
            hash: 0,
            messages_max: 0,
        }
    }
}

/// Two months of virtual time: no sum of times wraps before.
const END_PS: u64 = 1 << 62;

/// Places below this belong to the fabric.
pub const FABRIC_PLACES: u32 = 1 << 30;
const WAKE: u32 = 1 << 30;
const INJECT: u32 = 2 << 30;
const RECEIVED: u32 = 3 << 30;
const RANK_MASK: u32 = FABRIC_PLACES - 1;
const NO_RANK: u32 = u32::MAX;
