//! Ethernet with output-queued switches that store and forward or cut through.
//!
//! A frame takes one event per hop. When a frame reaches a switch, it joins the queue of its output
//! immediately. The simulation can then compute when the frame will have crossed the next link. The
//! transmission starts when the frame is ready and the port is free, and it lasts for the
//! serialisation time. The queue itself is not stored, because its length follows from the time
//! until the port is free.
//!
//! Shared buffers, marks, priorities and pauses need stored queues
//! ([`QueueConfiguration::is_needed`]). A hop then takes two events or more.

mod adaptive;
mod backlog;
mod cables;
mod configuration;
mod counters;
mod exchange;
mod homa;
mod jitter;
mod queues;
mod rail;
mod service;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use mem::prefetch;

use super::records::Grant;
use super::routing::{Choice, RouteTable};
use super::simulation::{Context, Fabric, Stuck};
use super::slab::Slab;
use super::statistics::mix;
use super::topology::{LinkKind, Topology};
use super::wheel::Event;
use adaptive::Adaptive;
use backlog::Backlog;
use cables::CableLimits;
use exchange::Exchange;
use homa::Homa;
use jitter::Jitter;
use queues::{Pool, Queues};
use transport::Transport;

pub use configuration::{
    CLASSES_MAX, ClassBy, EthernetConfiguration, Forwarding, NicConfiguration, QueueConfiguration,
    RAILS_MAX, Striping,
};
pub use counters::PortCounters;
pub(super) use counters::Wait;
pub(super) use exchange::PARTS_MAX;
pub use exchange::Parcel;
pub use homa::{CUTOFFS_MAX, HomaConfiguration};
pub use transport::{
    Congestion, DcqcnConfiguration, Recovery, TransportConfiguration, TransportCounts,
};

/// A network of Ethernet switches, with the frames in flight.
#[derive(Clone, Debug)]
pub struct Ethernet {
    configuration: EthernetConfiguration,
    hosts: u32,
    /// Number of switches of one rail. In tables of switches, the index of switch s of rail r is
    /// `r * switches + s`.
    switches: u32,
    /// Number of links of one rail. Link l of rail r is port r · links + l.
    links: u32,
    routes: Arc<RouteTable>,
    /// The receiving end of each port's link. The ends never change. They are stored separately
    /// from `ports`, so that they stay in the cache.
    ends: Arc<[End]>,
    ports: Vec<Port>,
    frames: Slab<Frame>,
    /// Output ports that were computed before the frames arrive. The frame that arrives first is
    /// the last entry.
    foreseen: Vec<Foreseen>,
    /// The part of each frame's state that only stored queues and detours need. Empty if the
    /// network has neither.
    states: Vec<FrameState>,
    /// Serialisation time of a byte on links to hosts and on links between switches, in 1/256 ps.
    byte_times: [u32; 2],
    /// Limits of the cable at each port; empty if no cable has its own settings.
    cables: Arc<[CableLimits]>,
    /// Names of the nodes; `None` if nodes have only numbers.
    names: Option<Arc<[String]>>,
    /// For each switch, the time when its engine can start the next frame from a host. The engine
    /// limits the rate of such frames.
    engines_ps: Vec<u64>,
    nics: Vec<Nic>,
    adaptive: Option<Box<Adaptive>>,
    queues: Option<Box<Queues>>,
    /// Backlog of each port, if buffers are limited and queues are not stored; otherwise empty.
    backlogs: Vec<Backlog>,
    exchange: Option<Box<Exchange>>,
    transport: Option<Box<Transport>>,
    homa: Option<Box<Homa>>,
    jitter: Option<Box<Jitter>>,
    /// Index of this network among several networks with the same seed.
    rail: u8,
    /// Number of frames lost at each port; ports without losses have no entry.
    dropped: BTreeMap<u32, u64>,
    /// Whether the link of each port is down; empty until the first link fails.
    down: Vec<bool>,
    hops: u64,
    /// Whether the state of the network is too large for the fastest caches.
    is_large: bool,
    /// Whether the network uses no optional feature, so that the short code suffices
    /// ([`Ethernet::can_be_plain`]).
    is_plain: bool,
}

/// The sending end of a link.
#[derive(Clone, Copy, Debug)]
struct Port {
    /// Time when the last queued frame will have left, including its gap.
    free_ps: u64,
    /// Number of bytes sent, without gaps.
    bytes: u64,
}

/// The receiving end of a link. The low bits are the node; the higher bits are the lane and the
/// kind of link.
#[derive(Clone, Copy, Debug)]
struct End(u32);

/// A frame in flight.
#[derive(Clone, Copy, Debug)]
struct Frame {
    message: u32,
    destination: u32,
    /// Value that chooses between equal routes: a hash, or the number of the source.
    flow: u32,
    /// Length on the wire, without the gap.
    bytes: u32,
}

/// The output port of a frame, computed in advance. The frame arrives during the current slot of
/// the event wheel.
#[derive(Clone, Copy, Debug)]
struct Foreseen {
    frame: u32,
    /// Port through which the frame will leave the switch where it arrives.
    link: u32,
}

/// The part of a frame's state that only stored queues and detours need.
#[derive(Clone, Copy, Debug)]
struct FrameState {
    /// Host at whose switch the detour ends. [`DIRECT`] on the shortest route; [`UNDECIDED`] before
    /// the first switch.
    via: u32,
    /// Port of the link on which the frame arrived; [`NOWHERE`] at the sender.
    input: u32,
    class: u8,
    is_marked: bool,
    /// The buffer that stores the frame; `None` if no buffer does.
    pool: Option<Pool>,
}

/// The network card of a host.
#[derive(Clone, Copy, Debug, Default)]
struct Nic {
    /// Time when the card can fetch the next frame.
    free_ps: u64,
    /// Number of messages that the card has sent, or of frames if each frame uses the next port.
    /// This number modulo the number of ports is the port of the next message or frame.
    turn: u32,
}

const _: () = assert!(size_of::<Frame>() + size_of::<super::simulation::Message>() <= 64);
const _: () = assert!(size_of::<Port>() + size_of::<End>() <= 32);

impl Ethernet {
    /// Creates an Ethernet over a topology. Each rail is a copy of the switches and cables, and
    /// each host has a port to each rail.
    pub fn new(
        topology: &Topology,
        routes: RouteTable,
        configuration: EthernetConfiguration,
    ) -> Self {
        let links = topology.links().len() as u32;
        let rails = configuration.nic.rails.clamp(1, RAILS_MAX);
        let rails = rails.min((PORTS_MAX / links.max(1)).max(1));
        let ports = (links * rails) as usize;
        let ends = topology.links().iter().map(|link| End::new(topology, link));
        let ends: Vec<End> = ends.collect();
        let has_detours = configuration.choice == Choice::Ugal;
        let is_adaptive = has_detours || matches!(configuration.choice, Choice::Flowlet { .. });
        let switches = topology.switches();
        let nic = NicConfiguration { rails, ..configuration.nic };
        let has_nics = nic != NicConfiguration::SINGLE;
        let mut ethernet = Self {
            configuration: EthernetConfiguration { nic, ..configuration },
            hosts: topology.hosts(),
            switches,
            links,
            routes: Arc::new(routes),
            ends: ends.repeat(rails as usize).into(),
            ports: vec![Port { free_ps: 0, bytes: 0 }; ports],
            frames: Slab::new(),
            foreseen: Vec::new(),
            states: Vec::new(),
            byte_times: [configuration.host_rate_bps, configuration.trunk_rate_bps].map(byte_time),
            cables: CableLimits::of_links(topology, &configuration).repeat(rails as usize).into(),
            names: topology.names().cloned(),
            engines_ps: vec![0; (switches * rails) as usize],
            nics: vec![Nic::default(); if has_nics { topology.hosts() as usize } else { 0 }],
            adaptive: is_adaptive
                .then(|| Box::new(Adaptive::new(&configuration, switches * rails))),
            queues: None,
            backlogs: Vec::new(),
            exchange: None,
            transport: None,
            homa: None,
            jitter: None,
            rail: 0,
            dropped: BTreeMap::new(),
            down: Vec::new(),
            hops: 0,
            is_large: false,
            is_plain: false,
        };
        ethernet.is_large = ethernet.bytes() > CACHED_BYTES;
        if configuration.queues.is_needed() {
            ethernet.queues = Some(Box::new(Queues::new(&ethernet)));
        } else if ethernet.has_buffer_limits() {
            ethernet.backlogs = vec![Backlog::default(); ports];
        }
        if let Some(transport) = configuration.transport {
            assert_eq!(rails, 1, "a transport has one rail");
            let classes = configuration.queues.classes;
            let transport = Transport::new(transport, topology.hosts(), classes);
            ethernet.transport = Some(Box::new(transport));
        }
        if let Some(homa) = configuration.homa {
            assert_eq!(rails, 1, "a transport has one rail");
            let ends = (topology.hosts(), configuration.queues.classes);
            ethernet.homa = Some(Box::new(Homa::new(homa, ends, configuration.mtu_bytes)));
        }
        ethernet.reset_jitter();
        ethernet.is_plain = ethernet.can_be_plain();
        ethernet
    }

    /// Returns the number of bytes that left through each link, without gaps. Links are ordered by
    /// rail.
    pub fn link_bytes(&self) -> impl Iterator<Item = u64> {
        self.ports.iter().map(|port| port.bytes)
    }

    /// Returns the memory that the network uses, in bytes. Does not count frames.
    pub fn bytes(&self) -> usize {
        self.routes.bytes()
            + self.ports.len() * (size_of::<Port>() + size_of::<End>())
            + self.engines_ps.len() * size_of::<u64>()
            + self.nics.len() * size_of::<Nic>()
    }

    /// Chooses the port through which a frame leaves a switch, and sends the frame through it.
    /// `base` is the first port of the switch's rail. If the frame has just arrived, `input` is the
    /// port of the link on which it arrived.
    #[inline]
    fn forward(&mut self, context: &mut Context, at: (u32, u32), index: u32, input: Option<u32>) {
        let frame = *self.frames.get(index);
        let link = if self.adaptive.is_some() {
            self.adapt(context.wheel.now_ps(), at, index)
        } else {
            match self.foreseen.pop_if(|way| way.frame == index) {
                Some(way) if self.down.is_empty() => way.link,
                _ => self.way(at, &frame),
            }
        };
        let latency_ps = if self.arrives_ready() { 0 } else { self.configuration.latency_ps };
        let slack_ps = input.map_or(0, |input| self.slack_ps(input, link, index));
        let ready_ps = context.wheel.now_ps() + latency_ps + slack_ps;
        self.transmit(context, link, index, frame, ready_ps);
    }

    /// Returns the port through which a frame leaves a switch. `base` is the first port of the
    /// switch's rail.
    #[inline]
    fn way(&self, (switch, base): (u32, u32), frame: &Frame) -> u32 {
        match self.routes.candidates(switch, frame.destination) {
            [only] => base + *only,
            several => base + self.choose(several, switch, base, frame),
        }
    }

    #[inline]
    fn choose(&self, candidates: &[u32], switch: u32, base: u32, frame: &Frame) -> u32 {
        if self.configuration.choice == Choice::LeastLoaded {
            return self.least_loaded(candidates, base);
        }
        let at = self.configuration.choice.place(frame.flow, switch, candidates.len());
        let link = candidates[at];
        if !self.is_down(base + link) {
            return link;
        }
        let ways = candidates.iter().cycle().skip(at).take(candidates.len());
        ways.copied().find(|&way| !self.is_down(base + way)).unwrap_or(link)
    }

    /// Returns the candidate that becomes free first. If several become free at the same time,
    /// returns the first of these. Candidates whose link is up take precedence over links that are
    /// down.
    fn least_loaded(&self, candidates: &[u32], base: u32) -> u32 {
        let free_ps = |link: &u32| (self.is_down(base + *link), self.drained_ps(base + *link));
        candidates.iter().copied().min_by_key(free_ps).unwrap_or_default()
    }

    /// Returns the time when all frames that now wait for a link will have left.
    #[inline]
    fn drained_ps(&self, port: u32) -> u64 {
        let waiting_ps = self.queues.as_ref().map_or(0, |queues| {
            (queues.waiting_bytes(port) * u64::from(self.byte_time(port))) >> 8
        });
        self.ports[port as usize].free_ps + waiting_ps
    }

    /// Sends a frame through a port, at `ready_ps` or later, and schedules its arrival.
    #[inline]
    fn transmit(
        &mut self,
        context: &mut Context,
        link: u32,
        index: u32,
        frame: Frame,
        ready_ps: u64,
    ) {
        if self.is_down(link) {
            self.lose(context, link, index);
            return;
        }
        if self.queues.is_some() {
            self.enqueue(context, link, index, ready_ps);
            return;
        }
        let end = self.ends[link as usize];
        let start_ps = self.ports[link as usize].free_ps.max(ready_ps);
        let byte_time = self.byte_time(link);
        let most_bytes = if self.backlogs.is_empty() || end.is_from_host() {
            0
        } else {
            self.buffer_bytes(link)
        };
        let has_limit = most_bytes > 0;
        if has_limit {
            let backlog = &mut self.backlogs[link as usize];
            if !backlog.has_room(ready_ps, frame.bytes, most_bytes) {
                self.lose(context, link, index);
                return;
            }
        }
        let serialisation_ps = self.occupy(link, byte_time, frame.bytes, start_ps);
        if has_limit {
            let left_ps = self.ports[link as usize].free_ps;
            self.backlogs[link as usize].add(left_ps, frame.bytes);
        }
        let first_ps = match self.configuration.forwarding {
            Forwarding::CutThrough { header_bytes } if end.node() >= self.hosts => {
                (u64::from(header_bytes.min(frame.bytes)) * u64::from(byte_time)) >> 8
            }
            _ => serialisation_ps,
        };
        let arrived_ps = start_ps + first_ps + self.propagation_ps(link);
        let arrived_ps = self.jittered_ps(link, frame.bytes, arrived_ps);
        if context.recorder.is_some() {
            let free_ps = start_ps + serialisation_ps;
            self.record(
                context,
                link,
                index,
                ready_ps,
                [start_ps, start_ps + first_ps, arrived_ps, free_ps],
            );
        }
        if self.exchange.is_some() && self.cross(arrived_ps, link, index) {
            return;
        }
        context.schedule(arrived_ps, link, index);
    }

    /// Occupies a link with a frame that starts at `start_ps`. Returns the serialisation time, in
    /// picoseconds.
    #[inline]
    fn occupy(&mut self, link: u32, byte_time: u32, bytes: u32, start_ps: u64) -> u64 {
        let byte_time = u64::from(byte_time);
        let serialisation_ps = (u64::from(bytes) * byte_time) >> 8;
        let gap_ps = (u64::from(self.configuration.gap_bytes) * byte_time) >> 8;
        let port = &mut self.ports[link as usize];
        port.free_ps = start_ps + serialisation_ps + gap_ps;
        port.bytes += u64::from(bytes);
        serialisation_ps
    }

    /// Handles a frame at the end of a link, in a network without optional features. Does the same
    /// as [`Fabric::handle`], but without the checks for these features.
    #[inline]
    fn pass(&mut self, context: &mut Context, place: u32, index: u32) {
        self.hops += 1;
        let Some(switch) = self.ends[place as usize].node().checked_sub(self.hosts) else {
            self.arrive(context, index);
            return;
        };
        let frame = *self.frames.get(index);
        let link = match self.foreseen.pop_if(|way| way.frame == index) {
            Some(way) => way.link,
            None => self.way((switch, 0), &frame),
        };
        let end = self.ends[link as usize];
        let ready_ps = context.wheel.now_ps() + self.configuration.latency_ps;
        let start_ps = self.ports[link as usize].free_ps.max(ready_ps);
        let byte_time = self.byte_times[usize::from(end.is_trunk())];
        let serialisation_ps = self.occupy(link, byte_time, frame.bytes, start_ps);
        let arrived_ps = start_ps + serialisation_ps + self.configuration.propagation_ps;
        context.schedule(arrived_ps, link, index);
    }

    /// Records that a frame crosses a link. The times, in picoseconds, are:
    ///
    /// * when the first bit leaves;
    /// * when the last bit for which the next switch waits has left;
    /// * when the frame is at the other end;
    /// * when the link is free.
    #[cold]
    fn record(
        &self,
        context: &mut Context,
        port: u32,
        index: u32,
        ready_ps: u64,
        [started_ps, sent_ps, arrived_ps, free_ps]: [u64; 4],
    ) {
        let frame = self.frames.get(index);
        let message = self.message(frame.message);
        let Some(recorder) = &mut context.recorder else { return };
        recorder.on_granted(Grant {
            packet: index,
            message,
            link: if self.configuration.nic.rails == 1 { port } else { port % self.links },
            channel: 0,
            is_first: self.ends[port as usize].is_from_host(),
            bytes: frame.bytes,
            ready_ps: Some(ready_ps),
            started_ps,
            sent_ps,
            arrived_ps,
            busy_until_ps: Some(free_ps),
            is_counted: true,
        });
    }

    /// Drops a frame that found no buffer, or whose link is down.
    #[cold]
    fn lose(&mut self, context: &mut Context, link: u32, index: u32) {
        // A frame contains the `name` of its message. In an undivided run, the name equals the
        // message's index. In a divided run, they differ, but `drop_packet` then does not use the
        // name.
        let name = self.frames.remove(index).message;
        *self.dropped.entry(link).or_default() += 1;
        context.drop_packet(name);
    }

    /// Returns how long a frame must wait after its header has arrived, in picoseconds. Without
    /// this delay, a faster output would send bytes before the slower input has received them.
    #[inline]
    fn slack_ps(&self, input: u32, output: u32, index: u32) -> u64 {
        let Forwarding::CutThrough { header_bytes } = self.configuration.forwarding else {
            return 0;
        };
        let frame = self.frames.get(index);
        let [input, output] = [input, output].map(|port| u64::from(self.byte_time(port)));
        let body = u64::from(frame.bytes.saturating_sub(header_bytes));
        (body * input.saturating_sub(output)) >> 8
    }

    fn arrive(&mut self, context: &mut Context, index: u32) {
        let name = self.frames.remove(index).message;
        let message = self.message(name);
        if let Some(recorder) = &mut context.recorder {
            recorder.on_arrived(index, message);
        }
        let arrived = context.messages.get_mut(message);
        if self.queues.is_some() {
            arrived.is_marked |= self.states[index as usize].is_marked;
        }
        arrived.remaining -= 1;
        if arrived.remaining == 0 {
            if let Some(exchange) = &mut self.exchange {
                exchange.retire(name);
            }
            context.deliver(message);
        }
    }

    /// Returns the index of a message. `name` is the number with which frames refer to this
    /// message.
    #[inline]
    fn message(&self, name: u32) -> u32 {
        self.exchange.as_ref().map_or(name, |exchange| exchange.message(name))
    }

    /// Returns the first port of the rail to which a port belongs.
    #[inline]
    fn base(&self, port: u32) -> u32 {
        if self.configuration.nic.rails == 1 { 0 } else { port - port % self.links }
    }

    /// Returns the index of a switch in tables that contain all rails.
    #[inline]
    fn switch_place(&self, switch: u32, base: u32) -> u32 {
        if base == 0 { switch } else { switch + base / self.links * self.switches }
    }

    /// Passes a frame from a host through the engine of a switch, which limits the rate of such
    /// frames. Returns true if the engine handles the frame now. Otherwise schedules the frame and
    /// returns false.
    fn pass_engine(&mut self, context: &mut Context, place: u32, index: u32) -> bool {
        let engine = &mut self.engines_ps[place as usize];
        let start_ps = (*engine).max(context.wheel.now_ps());
        *engine = start_ps + self.configuration.host_frame_interval_ps;
        let is_now = start_ps == context.wheel.now_ps();
        if !is_now {
            context.schedule(start_ps, ENGINE | place, index);
        }
        is_now
    }

    /// Returns the value by which a frame chooses between equal routes, if the frame leaves a host
    /// through `link`.
    #[inline]
    fn flow(&self, source: u32, destination: u32, link: u32) -> u32 {
        let EthernetConfiguration { choice, salt, .. } = self.configuration;
        let flow = choice.flow(source, destination, salt);
        match choice {
            Choice::Spray | Choice::Ugal => {
                let waiting = self.queues.as_ref().map_or(0, |queues| queues.waiting_bytes(link));
                let sent = self.ports[link as usize].bytes + waiting;
                mix(u64::from(flow), mix(sent, 1)) as u32
            }
            _ => flow,
        }
    }

    /// Returns the time when a host's card has fetched a frame, and the first port of the frame's
    /// rail.
    fn pass_nic(&mut self, source: u32, bytes: u32, now_ps: u64) -> (u64, u32) {
        let NicConfiguration { rails, striping, rate_bps, frame_interval_ps } =
            self.configuration.nic;
        let Some(nic) = self.nics.get_mut(source as usize) else { return (now_ps, 0) };
        let base = nic.turn % rails * self.links;
        if striping == Striping::PerPacket {
            nic.turn = nic.turn.wrapping_add(1);
        }
        let fetch_ps = match rate_bps {
            0 => 0,
            rate => (u64::from(bytes) * u64::from(byte_time(rate))) >> 8,
        };
        let ready_ps = nic.free_ps.max(now_ps) + fetch_ps;
        nic.free_ps = nic.free_ps.max(now_ps) + fetch_ps.max(frame_interval_ps);
        (ready_ps, base)
    }

    /// Stores a frame at its sender, with its traffic class. Returns its index.
    fn insert_at_host(&mut self, frame: Frame, class: u8) -> u32 {
        let index = self.frames.insert(frame);
        if self.has_states() {
            self.set_state(index, FrameState::at_host(class));
        }
        index
    }

    fn set_state(&mut self, index: u32, state: FrameState) {
        if self.states.len() <= index as usize {
            self.states.resize(index as usize + 1, state);
        }
        self.states[index as usize] = state;
    }

    /// Returns whether the hosts retransmit lost frames.
    const fn has_transport(&self) -> bool {
        self.transport.is_some() || self.homa.is_some()
    }

    /// Returns the length on the wire of a frame with `payload` bytes, without the gap.
    fn frame_bytes(&self, payload: u32) -> u32 {
        payload.max(self.configuration.payload_min_bytes) + self.configuration.overhead_bytes
    }

    const fn has_states(&self) -> bool {
        self.queues.is_some() || matches!(self.configuration.choice, Choice::Ugal)
    }

    /// Accepts a message that its host hands over at `handed_ps`, which must not be in the past.
    /// `handed_ps` must not be earlier than in the previous call.
    pub fn inject_at(&mut self, context: &mut Context, index: u32, handed_ps: u64) {
        let mtu = self.configuration.mtu_bytes.max(1);
        let message = context.messages.get_mut(index);
        message.remaining = message.bytes.div_ceil(mtu).max(1);
        let message = *message;
        let (source, destination) = (message.source, message.destination);
        let name = match &mut self.exchange {
            Some(exchange) => exchange.name(context, index),
            None => index,
        };
        let mut left = message.bytes;
        let host_link = self.routes.host_link(source) ^ 1;
        loop {
            let payload = left.min(mtu);
            let bytes = payload.max(self.configuration.payload_min_bytes)
                + self.configuration.overhead_bytes;
            let (ready_ps, base) = self.pass_nic(source, bytes, handed_ps);
            let link = base + host_link;
            let flow = self.flow(source, destination, link);
            let frame = Frame { message: name, destination, flow, bytes };
            let frame_index = self.frames.insert(frame);
            if self.has_states() {
                let queues = &self.configuration.queues;
                let class = queues.class_of(&message);
                self.set_state(frame_index, FrameState::at_host(class));
            }
            self.transmit(context, link, frame_index, frame, ready_ps);
            left -= payload;
            if left == 0 {
                break;
            }
        }
        if self.configuration.nic.striping == Striping::PerMessage
            && let Some(nic) = self.nics.get_mut(source as usize)
        {
            nic.turn = nic.turn.wrapping_add(1);
        }
    }
}

impl Fabric for Ethernet {
    fn inject(&mut self, context: &mut Context, index: u32) {
        if self.transport.is_some() {
            self.post(context, index);
            return;
        }
        if self.homa.is_some() {
            self.post_message(context, index);
            return;
        }
        let now_ps = context.wheel.now_ps();
        self.inject_at(context, index, now_ps);
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        let Event { place, subject, .. } = event;
        if self.is_plain && place < QUEUE && context.recorder.is_none() {
            self.pass(context, place, subject);
            return;
        }
        if place & QUEUE != 0 {
            if place & ENGINE != 0 {
                if self.homa.is_some() {
                    self.handle_homa(context, event);
                } else {
                    self.handle_transport(context, event);
                }
                return;
            }
            self.handle_queue(context, place & !QUEUE, subject);
            return;
        }
        if place & ENGINE != 0 {
            let place = place & !ENGINE;
            let (rail, switch) = (place / self.switches, place % self.switches);
            self.forward(context, (switch, rail * self.links), subject, None);
            return;
        }
        self.hops += 1;
        if self.is_down(place) {
            self.lose(context, place, subject);
            return;
        }
        let end = self.ends[place as usize];
        if end.node() < self.hosts {
            if self.transport.is_some() {
                self.arrive_at_host(context, place, subject);
            } else if self.homa.is_some() {
                self.take_packet(context, subject);
            } else {
                self.arrive(context, subject);
            }
            return;
        }
        let switch = end.node() - self.hosts;
        let base = self.base(place);
        if self.queues.is_some() {
            self.states[subject as usize].input = place;
        }
        if self.configuration.host_frame_interval_ps > 0
            && end.is_from_host()
            && !self.pass_engine(context, self.switch_place(switch, base), subject)
        {
            return;
        }
        self.forward(context, (switch, base), subject, Some(place));
    }

    fn foresee(&mut self, context: &Context) {
        self.foreseen.clear();
        let is_plain = self.queues.is_none() && !self.has_transport();
        if !self.is_large || !is_plain || self.adaptive.is_some() {
            return;
        }
        // With `LeastLoaded`, the output port is known only when the frame arrives.
        let is_fixed = self.configuration.choice != Choice::LeastLoaded;
        for event in context.wheel.due().iter().filter(|event| event.place < QUEUE) {
            let frame = self.frames.get(event.subject);
            let Some(switch) = self.ends[event.place as usize].node().checked_sub(self.hosts)
            else {
                context.messages.prefetch(self.message(frame.message));
                continue;
            };
            let link = self.way((switch, self.base(event.place)), frame);
            prefetch(&self.ports[link as usize]);
            if is_fixed {
                self.foreseen.push(Foreseen { frame: event.subject, link });
            }
        }
    }

    #[inline]
    fn foresee_event(&self, event: &Event) {
        if event.place < QUEUE {
            self.frames.prefetch(event.subject);
        }
    }

    #[inline]
    fn foresee_sender(&self, host: u32) {
        if let Some(port) = self.ports.get((self.routes.host_link(host) ^ 1) as usize) {
            prefetch(port);
        }
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        self.stuck(&self.waits(), context.messages.len())
    }

    fn port_counters(&self) -> Vec<PortCounters> {
        self.counters()
    }

    fn transport_counts(&self) -> Option<TransportCounts> {
        let homa = self.homa.as_ref().map(|homa| *homa.counts());
        homa.or_else(|| self.transport.as_ref().map(|transport| *transport.counts()))
    }

    fn hops(&self) -> u64 {
        self.hops
    }

    fn slot_ps(&self) -> u64 {
        let smallest = self.configuration.frame_bytes_min();
        let [host, trunk] = self.byte_times;
        let fastest =
            if self.cables.is_empty() { host.min(trunk) } else { self.byte_time_bounds().0 };
        (u64::from(smallest) * u64::from(fastest)) >> 9
    }
}

impl FrameState {
    /// Returns the initial state of a frame, at its sender.
    const fn at_host(class: u8) -> Self {
        Self { via: UNDECIDED, input: NOWHERE, class, is_marked: false, pool: None }
    }
}

impl End {
    fn new(topology: &Topology, link: &super::topology::Link) -> Self {
        let from_host = if topology.is_host(link.from) { FROM_HOST } else { 0 };
        let trunk = match link.kind {
            LinkKind::Host => 0,
            LinkKind::Switch { .. } => TRUNK,
        };
        Self(link.to | from_host | trunk | u32::from(link.lane) << LANE_SHIFT)
    }

    /// Returns the node at this end.
    #[inline]
    const fn node(self) -> u32 {
        self.0 & NODE
    }

    #[inline]
    const fn is_from_host(self) -> bool {
        self.0 & FROM_HOST != 0
    }

    /// Returns whether the link joins two switches.
    #[inline]
    const fn is_trunk(self) -> bool {
        self.0 & TRUNK != 0
    }

    /// Returns the index of the cable among parallel cables.
    const fn lane(self) -> u32 {
        (self.0 & !(FROM_HOST | TRUNK)) >> LANE_SHIFT
    }
}

/// Returns the serialisation time of a byte, in 1/256 ps. The time is exact for the usual rates.
/// Rates below 0.5 Mb/s do not fit.
fn byte_time(rate_bps: u64) -> u32 {
    u32::try_from(8_000_000_000_000 * 256 / rate_bps.max(1)).unwrap_or(u32::MAX)
}

/// Returns a rate in bits per second: the inverse of [`byte_time`].
fn rate_bps(byte_time: u32) -> u64 {
    8_000_000_000_000 * 256 / u64::from(byte_time.max(1))
}

/// Maximum size of a network's state, in bytes, with which the state and the frames fit in the
/// caches together. A network of this size has a few hundred ports.
const CACHED_BYTES: usize = 1 << 16;
/// Flag in `Event::place`: the engine of a switch handles the event. It limits the rate of frames
/// from hosts. Without a flag, the place is the number of a link.
const ENGINE: u32 = 1 << 29;
/// Flag in `Event::place`: the queue of a link handles the event. Both flags together mean an event
/// of a host with a transport. An Ethernet inside an edge fabric has no transport, so the edge
/// fabric can use places with both flags.
const QUEUE: u32 = 1 << 28;
const PORTS_MAX: u32 = QUEUE;
/// Mask of the node. A topology has at most 2^20 hosts and at most 2^20 switches.
const NODE: u32 = (1 << LANE_SHIFT) - 1;
const LANE_SHIFT: u32 = 22;
const TRUNK: u32 = 1 << 30;
const FROM_HOST: u32 = 1 << 31;
const DIRECT: u32 = u32::MAX;
const UNDECIDED: u32 = u32::MAX - 1;
const NOWHERE: u32 = u32::MAX;
