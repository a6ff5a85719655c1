//! A fabric of flits whose routers have a clock, allocators and a pipeline.
//!
//! A router with flits to move works once per cycle. A cycle is the time of a flit on a link. Idle
//! routers cause no events. A router whose flits all wait for credits causes no events either.
//! Other routers see the effects of a cycle only in later cycles, so the routers can work in any
//! order within a cycle.

mod recording;
mod stages;
mod waiting;

use std::collections::VecDeque;

use super::allocator::{Allocator, Matching, Request, Turns};
use super::{DELIVERED, FlitConfiguration, KINDS, NEVER, NONE};
use crate::routing::{LaneChoice, Paths};
use crate::simulation::{Context, Fabric, Stuck};
use crate::slab::Slab;
use crate::statistics::mix;
use crate::topology::Topology;
use crate::wheel::Event;

/// What a router can do in a cycle, and how long its stages take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouterConfiguration {
    /// Maximum number of flits of one input that cross the switch in a cycle. Flits that cross in
    /// the same cycle come from different virtual channels.
    pub input_speedup: u8,
    /// Allocator that assigns virtual channels to packets.
    pub channel_allocator: Allocator,
    /// Allocator that assigns outputs of the switch to inputs.
    pub switch_allocator: Allocator,
    /// Number of iSLIP rounds per cycle.
    pub rounds: u8,
    /// Time from the arrival of a head to its request for a channel, in cycles.
    pub routing_cycles: u8,
    /// Time from the request for a channel to the request for the switch, in cycles; at least 1.
    pub channel_cycles: u8,
    /// Time from the request for the switch to the crossing, in cycles; at least 1.
    pub switch_cycles: u8,
    /// Time of crossing the switch, in cycles.
    pub crossing_cycles: u8,
    /// Whether a head requests a channel and the switch in the same cycle. Otherwise it requests
    /// the switch when it has a channel.
    pub is_speculative: bool,
}

impl RouterConfiguration {
    /// The defaults of `BookSim2` (`iq_router`): iSLIP with one round, and one cycle per stage.
    pub const BOOKSIM2: Self = Self {
        input_speedup: 1,
        channel_allocator: Allocator::Islip,
        switch_allocator: Allocator::Islip,
        rounds: 1,
        routing_cycles: 1,
        channel_cycles: 1,
        switch_cycles: 1,
        crossing_cycles: 1,
        is_speculative: false,
    };
}

/// A fabric of flits whose routers have a clock, with the packets in flight.
#[derive(Debug)]
pub struct RouterFabric {
    configuration: FlitConfiguration,
    router: RouterConfiguration,
    /// Alternative sets of paths; each packet chooses one of them at random. The sets differ only
    /// for pairs of hosts that are equally far apart in both directions of a ring. One set then
    /// uses one direction, and the other set uses the opposite direction.
    paths: Vec<Paths>,
    wires: Vec<Wire>,
    /// The sending end of each virtual channel. Channel c of link l has index l · channels + c.
    outputs: Vec<OutputChannel>,
    /// The receiving end of each virtual channel at a router.
    inputs: Vec<InputChannel>,
    /// Flits in the buffers, `buffer_flits` entries for each virtual channel. The entry of a flit
    /// is 2 × the index of its packet, plus 1 if the flit is a tail.
    buffers: Vec<u32>,
    routers: Vec<Router>,
    sources: Vec<RouterSource>,
    packets: Slab<Packet>,
    /// Number of packets that have entered the fabric.
    entered: u64,
    host_links: Vec<u32>,
    names: Vec<String>,
    hops: u64,
    work: Work,
}

/// A link, with its flits and credits in flight.
#[derive(Clone, Debug)]
struct Wire {
    from: End,
    to: End,
    /// Latency of a flit, from crossing the switch to the buffer at the other end, in cycles.
    /// `credit_cycles` is the latency of a credit in the opposite direction.
    flit_cycles: u64,
    credit_cycles: u64,
    /// Flits in flight, each with its arrival cycle, flit and channel.
    flits: VecDeque<(u64, u32, u8)>,
    /// Credits in flight, each with its arrival cycle and channel.
    credits: VecDeque<(u64, u8)>,
}

/// One end of a link: a router and its port number, or a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Router(u32, u16),
    Host(u32),
}

#[derive(Clone, Copy, Debug)]
struct OutputChannel {
    /// Whether a packet owns the channel.
    is_taken: bool,
    /// Number of free slots in the buffer at the other end, according to the credits that have
    /// arrived.
    credits: u16,
    /// Input channel whose packet owns the channel. Used for diagnoses.
    owner: u32,
}

/// The buffer of a virtual channel.
#[derive(Clone, Copy, Debug)]
struct InputChannel {
    stage: Stage,
    /// First cycle in which the packet can request what its stage needs.
    ready: u64,
    /// Link and channel through which the packet leaves, and the channels that it may use.
    link: u32,
    channel: u8,
    usable: (u8, u8),
    /// Whether the packet's head has not left yet.
    has_head: bool,
    first: u16,
    len: u16,
}

/// Stage of the packet at the front of a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// The buffer has no packet.
    Idle,
    /// The packet knows its link and waits for a channel.
    Routed,
    /// The packet has a channel, and its flits request the switch.
    Active,
}

#[derive(Clone, Debug)]
struct Router {
    /// Incoming link of each port. The port sends on the opposite direction of the same cable.
    arriving: Vec<u32>,
    channel_turns: Turns,
    switch_turns: Turns,
    /// For each input of the switch, the virtual channel with the highest priority.
    turns: Vec<u8>,
    /// Cycle for which the router's next event is scheduled; [`NEVER`] if none is scheduled.
    next: u64,
    /// Number of flits in the router's buffers.
    flits: u32,
}

/// Packets that wait at a host.
#[derive(Clone, Debug, Default)]
struct RouterSource {
    packets: VecDeque<u32>,
    /// Channel of the current packet. Before its head is sent, the channel of the previous packet.
    channel: u8,
    has_channel: bool,
    /// Cycle in which the host's link becomes free.
    free: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    message: u32,
    destination: u32,
    /// Three indices: the packet's set of paths, its next hop, and the end of its hops between
    /// routers.
    way: u32,
    path: u32,
    path_end: u32,
    bytes: u32,
    /// Number of flits that have not left the source.
    flits: u32,
    /// Serial number of the packet, from which its random numbers are derived.
    serial: u64,
    /// Class of virtual channels that the packet uses.
    lane: u8,
}

/// Lists that a router uses during a cycle, kept to reuse their memory.
#[derive(Debug, Default)]
struct Work {
    channel: Vec<Request>,
    switch: Vec<Request>,
    /// For each request for the switch, the virtual channel that requests.
    bids: Vec<Bid>,
    channel_matching: Matching,
    switch_matching: Matching,
}

/// The bid of a virtual channel for the switch, at an input of the switch.
#[derive(Clone, Copy, Debug)]
struct Bid {
    input: u16,
    output: u16,
    channel: u8,
    port: u16,
    is_speculative: bool,
}

impl RouterFabric {
    /// Creates routers over a topology. Each packet chooses one set of `paths` at random. The paths
    /// of all sets have equal lengths.
    pub fn new(
        topology: &Topology,
        paths: Vec<Paths>,
        configuration: FlitConfiguration,
        router: RouterConfiguration,
    ) -> Self {
        let channels = usize::from(configuration.channels.clamp(1, super::CHANNELS_MAX));
        let configuration = FlitConfiguration {
            channels: channels as u8,
            buffer_flits: configuration.buffer_flits.max(1),
            flit_ps: configuration.flit_ps.max(1),
            ..configuration
        };
        let router = RouterConfiguration {
            input_speedup: router.input_speedup.clamp(1, channels as u8),
            channel_cycles: router.channel_cycles.max(1),
            switch_cycles: router.switch_cycles.max(1),
            ..router
        };
        let hosts = topology.hosts();
        let mut work = Work::default();
        let switches = hosts..topology.nodes();
        let routers = switches.map(|node| {
            let outgoing = topology.outgoing(node);
            let (rows, ports) = (outgoing.len() * channels, outgoing.len());
            let speedup = usize::from(router.input_speedup);
            work.channel_matching.reserve(rows, rows);
            work.switch_matching.reserve(ports * speedup, ports);
            let first = |row: usize| (row % speedup) as u8;
            Router {
                arriving: outgoing.iter().map(|link| link ^ 1).collect(),
                channel_turns: Turns::new(router.channel_allocator, router.rounds, rows, rows),
                switch_turns: Turns::new(
                    router.switch_allocator,
                    router.rounds,
                    ports * speedup,
                    ports,
                ),
                turns: (0..ports * speedup).map(first).collect(),
                next: NEVER,
                flits: 0,
            }
        });
        let routers: Vec<Router> = routers.collect();
        let count = topology.links().len() * channels;
        let depth = configuration.buffer_flits;
        let output = OutputChannel { is_taken: false, credits: depth, owner: NONE };
        Self {
            wires: wires(topology, &configuration),
            outputs: vec![output; count],
            inputs: vec![InputChannel::IDLE; count],
            buffers: vec![0; count * usize::from(depth)],
            routers,
            sources: vec![RouterSource { next: NEVER, ..RouterSource::default() }; hosts as usize],
            packets: Slab::new(),
            entered: 0,
            host_links: (0..hosts).map(|host| topology.host_link(host)).collect(),
            names: (0..topology.links().len() as u32)
                .map(|link| topology.link_name(link))
                .collect(),
            hops: 0,
            work,
            configuration,
            router,
            paths,
        }
    }

    /// Returns the cycle that starts now, or the next cycle if none starts now.
    fn cycle(&self, context: &Context) -> u64 {
        context.wheel.now_ps().div_ceil(self.configuration.flit_ps)
    }

    const fn time_ps(&self, cycle: u64) -> u64 {
        cycle * self.configuration.flit_ps
    }

    /// Schedules a router to work in a cycle. Does nothing if the router is scheduled for an
    /// earlier cycle.
    fn wake(&mut self, context: &mut Context, index: u32, cycle: u64) {
        let time_ps = self.time_ps(cycle);
        let router = &mut self.routers[index as usize];
        if cycle < router.next {
            router.next = cycle;
            context.schedule(time_ps, ROUTER | index, 0);
        }
    }

    /// Schedules a host to send in a cycle. Does nothing if the host is scheduled for an earlier
    /// cycle.
    fn wake_source(&mut self, context: &mut Context, host: u32, cycle: u64) {
        let source = &mut self.sources[host as usize];
        let cycle = cycle.max(source.free);
        if cycle < source.next {
            source.next = cycle;
            context.schedule(self.time_ps(cycle), SOURCE | host, 0);
        }
    }

    /// Sends a flit on a link in a cycle.
    fn send(&mut self, context: &mut Context, (link, channel): (u32, u8), flit: u32, cycle: u64) {
        self.hops += 1;
        let wire = &mut self.wires[link as usize];
        let there = cycle + wire.flit_cycles;
        match wire.to {
            End::Router(router, _) => {
                wire.flits.push_back((there, flit, channel));
                self.wake(context, router, there);
            }
            End::Host(host) => {
                // The host consumes a flit on arrival, so the arrival of its credit is known now.
                wire.credits.push_back((there + wire.credit_cycles, channel));
                if flit & 1 == 1 {
                    context.schedule(self.time_ps(there), DELIVERED | host, flit >> 1);
                }
            }
        }
    }

    /// Returns the port through which a link leaves its router.
    fn out_port(&self, link: u32) -> u16 {
        match self.wires[link as usize].from {
            End::Router(_, port) => port,
            End::Host(_) => unreachable!("routers send on their own links"),
        }
    }

    /// Gives a credit back to the sending end of a link, in a cycle.
    fn credit(&mut self, context: &mut Context, link: u32, channel: u8, cycle: u64) {
        let wire = &mut self.wires[link as usize];
        let there = cycle + wire.credit_cycles;
        wire.credits.push_back((there, channel));
        match wire.from {
            End::Router(router, _) if self.routers[router as usize].flits > 0 => {
                self.wake(context, router, there);
            }
            End::Host(host) if !self.sources[host as usize].packets.is_empty() => {
                self.wake_source(context, host, there);
            }
            End::Router(..) | End::Host(_) => {}
        }
    }

    /// Adds the credits that have arrived at a link by `cycle`.
    fn take_credits(&mut self, link: u32, cycle: u64) {
        let channels = usize::from(self.configuration.channels);
        let wire = &mut self.wires[link as usize];
        while let Some(&(there, channel)) = wire.credits.front()
            && there <= cycle
        {
            wire.credits.pop_front();
            self.outputs[link as usize * channels + usize::from(channel)].credits += 1;
        }
    }

    /// Sends a flit of a host's first packet, if the packet has a channel and a credit.
    fn inject_flit(&mut self, context: &mut Context, host: u32) {
        let cycle = self.cycle(context);
        if self.sources[host as usize].next != cycle {
            // The host was later scheduled for an earlier cycle, so this event is outdated.
            return;
        }
        self.sources[host as usize].next = NEVER;
        let Some(&index) = self.sources[host as usize].packets.front() else { return };
        let link = self.host_links[host as usize];
        self.take_credits(link, cycle);
        let channels = self.configuration.channels;
        let base = link as usize * usize::from(channels);
        let is_head = !self.sources[host as usize].has_channel;
        if is_head {
            let last = self.sources[host as usize].channel;
            let free = (1..=channels).map(|step| (last + step) % channels).find(|channel| {
                let output = self.outputs[base + usize::from(*channel)];
                !output.is_taken && output.credits > 0
            });
            let Some(channel) = free else {
                self.await_credit(context, host, link);
                return;
            };
            let source = &mut self.sources[host as usize];
            (source.channel, source.has_channel) = (channel, true);
            self.outputs[base + usize::from(channel)].is_taken = true;
        }
        let channel = self.sources[host as usize].channel;
        let output = &mut self.outputs[base + usize::from(channel)];
        if output.credits == 0 {
            self.await_credit(context, host, link);
            return;
        }
        output.credits -= 1;
        let packet = self.packets.get_mut(index);
        packet.flits -= 1;
        let is_tail = packet.flits == 0;
        let source = &mut self.sources[host as usize];
        source.free = cycle + 1;
        if is_tail {
            source.has_channel = false;
            source.packets.pop_front();
            output.is_taken = false;
        }
        if context.recorder.is_some() {
            self.record(context, (link, channel), index, (is_head, is_tail), cycle);
        }
        self.send(context, (link, channel), index << 1 | u32::from(is_tail), cycle);
        if !self.sources[host as usize].packets.is_empty() {
            self.wake_source(context, host, cycle + 1);
        }
    }

    /// Schedules a host for the arrival of the next credit in flight. If no credit is in flight,
    /// the next credit that a router returns schedules the host.
    fn await_credit(&mut self, context: &mut Context, host: u32, link: u32) {
        if let Some(&(there, _)) = self.wires[link as usize].credits.front() {
            self.wake_source(context, host, there);
        }
    }
}

impl InputChannel {
    const IDLE: Self = Self {
        stage: Stage::Idle,
        ready: 0,
        link: NONE,
        channel: 0,
        usable: (0, 0),
        has_head: false,
        first: 0,
        len: 0,
    };
}

/// Returns the links of a topology, with latencies in cycles. A credit to a host takes as long as a
/// flit from the host.
fn wires(topology: &Topology, configuration: &FlitConfiguration) -> Vec<Wire> {
    let port_of = |node: u32, link: u32| {
        if topology.is_host(node) {
            return End::Host(node);
        }
        let ports = topology.outgoing(node).iter();
        let port = ports.take_while(|&&other| other != link).count();
        End::Router(node - topology.hosts(), port as u16)
    };
    let wire = |(number, link): (usize, &crate::topology::Link)| {
        let (flit_ps, credit_ps) = match (topology.is_host(link.from), topology.is_host(link.to)) {
            (true, _) => (configuration.entry_ps, configuration.entry_ps),
            (_, true) => (configuration.exit_ps, configuration.exit_ps),
            _ => (configuration.hop_ps, configuration.credit_ps),
        };
        let cycles = |time_ps: u64| time_ps.div_ceil(configuration.flit_ps).max(1);
        Wire {
            from: port_of(link.from, number as u32),
            to: port_of(link.to, number as u32 ^ 1),
            flit_cycles: cycles(flit_ps),
            credit_cycles: cycles(credit_ps),
            flits: VecDeque::new(),
            credits: VecDeque::new(),
        }
    };
    topology.links().iter().enumerate().map(wire).collect()
}

impl Fabric for RouterFabric {
    const CARRIES_OWN: bool = true;

    fn inject(&mut self, context: &mut Context, index: u32) {
        let message = context.messages.get_mut(index);
        let (source, destination) = (message.source, message.destination);
        let mtu = self.configuration.ports.mtu_bytes.max(1);
        let mut left = message.bytes;
        message.remaining = left.div_ceil(mtu).max(1);
        loop {
            let payload = left.min(mtu);
            let padded = payload.max(self.configuration.ports.payload_min_bytes);
            let serial = self.entered;
            self.entered += 1;
            let way = (mix(serial, WAY) % self.paths.len() as u64) as u32;
            let (path, path_end) = self.paths[way as usize].between(source, destination);
            let packet = self.packets.insert(Packet {
                message: index,
                destination,
                way,
                path,
                path_end,
                bytes: padded,
                flits: (padded + self.configuration.packet_overhead_bytes)
                    .div_ceil(self.configuration.flit_payload_bytes.max(1))
                    .max(1),
                serial,
                lane: 0,
            });
            self.sources[source as usize].packets.push_back(packet);
            left -= payload;
            if left == 0 {
                break;
            }
        }
        let cycle = self.cycle(context);
        self.wake_source(context, source, cycle);
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        let Event { place, subject, .. } = event;
        match place & KINDS {
            ROUTER => self.work(context, place & !KINDS),
            SOURCE => self.inject_flit(context, place & !KINDS),
            _ => {
                let message = self.packets.remove(subject).message;
                if let Some(recorder) = &mut context.recorder {
                    recorder.on_arrived(subject, message);
                }
                let remaining = &mut context.messages.get_mut(message).remaining;
                *remaining -= 1;
                if *remaining == 0 {
                    context.deliver(message);
                }
            }
        }
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        self.find_circle(context)
    }

    fn hops(&self) -> u64 {
        self.hops
    }

    fn slot_ps(&self) -> u64 {
        self.configuration.flit_ps / 2
    }
}

const ROUTER: u32 = 1 << 28;
const SOURCE: u32 = 2 << 28;
/// Number of the random draw that chooses a set of paths. Draws for a packet's hops have smaller
/// numbers.
const WAY: u64 = 1 << 40;
