//! Ethernet: output-queued switches that store and forward or cut through.
//!
//! One event per frame and hop. A frame that reaches a switch is put into the queue of its output
//! at once, and the time when it will have crossed the next link is known then: departure = the
//! later of "ready" and "port free", plus its serialisation. The queue itself need not exist; its
//! length is the time until the port is free.

use super::routing::{Choice, RouteTable};
use super::simulation::{Context, Fabric, Message, Stuck};
use super::slab::Slab;
use super::statistics::mix;
use super::topology::{LinkKind, Topology};
use super::wheel::Event;

/// What an Ethernet is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EthernetConfiguration {
    /// Rate of the links to hosts, in bits per second.
    pub host_rate_bps: u64,
    /// Rate of the links between switches, in bits per second.
    pub trunk_rate_bps: u64,
    /// Largest payload of a frame, in bytes.
    pub mtu_bytes: u32,
    /// Smallest payload of a frame; shorter ones are padded.
    pub payload_min_bytes: u32,
    /// What a frame adds to its payload on the wire: preamble, header, check sequence.
    pub overhead_bytes: u32,
    /// Silence after each frame, in bytes.
    pub gap_bytes: u32,
    /// Propagation on each link, in picoseconds.
    pub propagation_ps: u64,
    /// From the last bit of a frame in (the header, cutting through) to its first bit out of an
    /// idle switch, in picoseconds.
    pub latency_ps: u64,
    /// Least time between two frames from hosts that the engine of a switch forwards, in
    /// picoseconds; 0 for no limit. A rate, not a latency.
    pub host_frame_interval_ps: u64,
    /// Queue of each output, in bytes; frames that find no room are lost. 0 for no limit.
    pub buffer_bytes: u64,
    /// When a switch begins to send a frame on.
    pub forwarding: Forwarding,
    /// Which of equal ways a frame takes.
    pub choice: Choice,
}

/// When a switch begins to send a frame on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forwarding {
    /// When it has all of it.
    StoreAndForward,
    /// When it has so many bytes of it.
    CutThrough {
        /// Bytes that decide where it goes, preamble included.
        header_bytes: u32,
    },
}

impl EthernetConfiguration {
    /// Ethernet of a rate with usual sizes, unlimited queues and no latency of switches.
    pub const fn with_rate(rate_bps: u64) -> Self {
        Self {
            host_rate_bps: rate_bps,
            trunk_rate_bps: rate_bps,
            mtu_bytes: 1500,
            payload_min_bytes: 46,
            overhead_bytes: 26,
            gap_bytes: 12,
            propagation_ps: 0,
            latency_ps: 0,
            host_frame_interval_ps: 0,
            buffer_bytes: 0,
            forwarding: Forwarding::StoreAndForward,
            choice: Choice::PerFlow,
        }
    }
}

/// An Ethernet with its frames.
#[derive(Debug)]
pub struct Ethernet {
    configuration: EthernetConfiguration,
    hosts: u32,
    routes: RouteTable,
    ports: Vec<Port>,
    frames: Slab<Frame>,
    /// When the engine of each switch is free for the next frame from a host.
    engines_ps: Vec<u64>,
    /// Which links carry nothing now; empty until the first fails.
    down: Vec<bool>,
    hops: u64,
    /// Means nothing: without it, nobody would need what is touched ahead.
    touched: u32,
}

/// A link and the queue before it.
#[derive(Clone, Copy, Debug)]
struct Port {
    /// When all that is queued will have left, gap included.
    free_ps: u64,
    bytes: u64,
    to: u32,
    /// Serialisation of a byte, in 1/256 ps.
    byte_time: u32,
    is_from_host: bool,
}

/// A frame under way.
#[derive(Clone, Copy, Debug)]
struct Frame {
    message: u32,
    source: u32,
    destination: u32,
    /// Hash that chooses between equal ways.
    flow: u32,
    /// On the wire without the gap.
    bytes: u32,
}

const _: () = assert!(size_of::<Frame>() + size_of::<Message>() <= 64);

impl Ethernet {
    /// An Ethernet over a topology.
    pub fn new(
        topology: &Topology,
        routes: RouteTable,
        configuration: EthernetConfiguration,
    ) -> Self {
        let port = |link: &super::topology::Link| Port {
            free_ps: 0,
            bytes: 0,
            to: link.to,
            byte_time: byte_time(match link.kind {
                LinkKind::Host => configuration.host_rate_bps,
                LinkKind::Switch { .. } => configuration.trunk_rate_bps,
            }),
            is_from_host: topology.is_host(link.from),
        };
        Self {
            configuration,
            hosts: topology.hosts(),
            routes,
            ports: topology.links().iter().map(port).collect(),
            frames: Slab::new(),
            engines_ps: vec![0; topology.switches() as usize],
            down: Vec::new(),
            hops: 0,
            touched: 0,
        }
    }

    /// A link fails, or carries frames again. Frames that would enter or leave it meanwhile are lost;
    /// the node before it takes another of equal ways, if there is one.
    pub fn set_link(&mut self, link: u32, is_up: bool) {
        self.down.resize(self.ports.len(), false);
        self.down[link as usize] = !is_up;
    }

    /// When all that a host has handed over will have left it, in picoseconds.
    #[inline]
    pub fn host_free_ps(&self, host: u32) -> u64 {
        self.ports[(self.routes.host_link(host) ^ 1) as usize].free_ps
    }

    /// As at the start of time: no queue is occupied, all links are up. Nothing may be under way.
    ///
    /// # Panics
    /// If a frame is under way.
    pub fn restart(&mut self) {
        assert!(self.frames.is_empty(), "{} frames are under way", self.frames.len());
        for port in &mut self.ports {
            port.free_ps = 0;
            port.bytes = 0;
        }
        self.engines_ps.fill(0);
        self.down.clear();
        self.hops = 0;
    }

    /// Touches the memory that an event needs; returns its message, if it is the end of its way.
    #[inline]
    pub(super) fn touch(&mut self, place: u32, subject: u32) -> Option<u32> {
        if place & ENGINE != 0 {
            return None;
        }
        let frame = self.frames.get(subject);
        self.touched = self.touched.wrapping_add(frame.bytes);
        let is_last = self.ports[place as usize].to < self.hosts;
        is_last.then_some(frame.message)
    }

    #[inline]
    fn is_down(&self, link: u32) -> bool {
        !self.down.is_empty() && self.down[link as usize]
    }

    /// A frame is lost.
    #[cold]
    fn lose(&mut self, context: &mut Context, index: u32) {
        context.drop_packet(self.frames.remove(index).message);
    }

    /// Bytes that left through each link, gaps excluded.
    pub fn link_bytes(&self) -> impl Iterator<Item = u64> {
        self.ports.iter().map(|port| port.bytes)
    }

    /// Memory of the network itself, frames excluded, in bytes.
    pub fn bytes(&self) -> usize {
        self.routes.bytes()
            + self.ports.len() * size_of::<Port>()
            + self.engines_ps.len() * size_of::<u64>()
    }

    /// A frame has reached a switch and been looked up.
    #[inline]
    fn forward(&mut self, context: &mut Context, switch: u32, index: u32, slack_ps: u64) {
        let frame = *self.frames.get(index);
        let candidates = self.routes.candidates(switch, frame.destination);
        let link = match candidates {
            [only] => *only,
            several => self.choose(several, switch, &frame),
        };
        let ready_ps = context.wheel.now_ps() + self.configuration.latency_ps + slack_ps;
        self.transmit(context, link, index, frame, ready_ps);
    }

    #[inline]
    fn choose(&self, candidates: &[u32], switch: u32, frame: &Frame) -> u32 {
        let count = candidates.len() as u64;
        let at = match self.configuration.choice {
            Choice::PerFlow | Choice::Spray => {
                // The switch is part of the hash: else all switches would choose alike.
                let hash = mix(u64::from(frame.flow), u64::from(switch)) >> 32;
                (hash * count) >> 32
            }
            Choice::PerSource => u64::from(frame.source) % count,
            Choice::LeastLoaded => {
                let free = |link: &u32| self.ports[*link as usize].free_ps;
                let up = candidates.iter().filter(|&&link| !self.is_down(link));
                return up.min_by_key(|link| free(link)).copied().unwrap_or(candidates[0]);
            }
        };
        let link = candidates[at as usize];
        if !self.is_down(link) {
            return link;
        }
        let ways = candidates.iter().cycle().skip(at as usize).take(candidates.len());
        ways.copied().find(|&way| !self.is_down(way)).unwrap_or(link)
    }

    /// Queues a frame that can leave at `ready_ps`, and schedules its arrival.
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
            return self.lose(context, index);
        }
        let Self { configuration, hosts, ports, .. } = self;
        let port = &mut ports[link as usize];
        let start_ps = port.free_ps.max(ready_ps);
        let byte_time = u64::from(port.byte_time);
        if configuration.buffer_bytes > 0 && !port.is_from_host {
            let queued = ((start_ps - ready_ps) << 8) / byte_time.max(1);
            if queued + u64::from(frame.bytes) > configuration.buffer_bytes {
                return self.lose(context, index);
            }
        }
        let serialisation_ps = (u64::from(frame.bytes) * byte_time) >> 8;
        let gap_ps = (u64::from(configuration.gap_bytes) * byte_time) >> 8;
        port.free_ps = start_ps + serialisation_ps + gap_ps;
        port.bytes += u64::from(frame.bytes);
        let first_ps = match configuration.forwarding {
            Forwarding::CutThrough { header_bytes } if port.to >= *hosts => {
                (u64::from(header_bytes.min(frame.bytes)) * byte_time) >> 8
            }
            _ => serialisation_ps,
        };
        context.schedule(start_ps + first_ps + configuration.propagation_ps, link, index);
    }

    /// How much later than its header a frame could leave at the rate at which it comes in, so that
    /// a faster output does not run ahead of the input, in picoseconds.
    #[inline]
    fn slack_ps(&self, link: u32, index: u32) -> u64 {
        let Forwarding::CutThrough { header_bytes } = self.configuration.forwarding else {
            return 0;
        };
        let frame = self.frames.get(index);
        let links =
            self.routes.candidates(self.ports[link as usize].to - self.hosts, frame.destination);
        let input = u64::from(self.ports[link as usize].byte_time);
        let output =
            links.first().map_or(input, |&link| u64::from(self.ports[link as usize].byte_time));
        let body = u64::from(frame.bytes.saturating_sub(header_bytes));
        (body * input.saturating_sub(output)) >> 8
    }

    fn arrive(&mut self, context: &mut Context, index: u32) {
        let message = self.frames.remove(index).message;
        let remaining = &mut context.messages.get_mut(message).remaining;
        *remaining -= 1;
        if *remaining == 0 {
            context.deliver(message);
        }
    }

    /// Takes a message that its host will hand over at `ready_ps`, not earlier than those before.
    pub fn inject_at(&mut self, context: &mut Context, index: u32, ready_ps: u64) {
        let message = context.messages.get_mut(index);
        let (source, destination) = (message.source, message.destination);
        let mut left = message.bytes;
        let mtu = self.configuration.mtu_bytes.max(1);
        message.remaining = left.div_ceil(mtu).max(1);
        let link = self.routes.host_link(source) ^ 1;
        loop {
            let payload = left.min(mtu);
            let ends = mix(u64::from(source), u64::from(destination));
            let flow = match self.configuration.choice {
                Choice::Spray => mix(ends, mix(self.ports[link as usize].bytes, 1)),
                _ => ends,
            };
            let frame = Frame {
                message: index,
                source,
                destination,
                flow: flow as u32,
                bytes: payload.max(self.configuration.payload_min_bytes)
                    + self.configuration.overhead_bytes,
            };
            let frame_index = self.frames.insert(frame);
            self.transmit(context, link, frame_index, frame, ready_ps);
            left -= payload;
            if left == 0 {
                break;
            }
        }
    }
}

impl Fabric for Ethernet {
    fn inject(&mut self, context: &mut Context, index: u32) {
        let now_ps = context.wheel.now_ps();
        self.inject_at(context, index, now_ps);
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        let Event { time_ps, place, subject } = event;
        if place & ENGINE != 0 {
            self.forward(context, place & !ENGINE, subject, 0);
            return;
        }
        self.hops += 1;
        if self.is_down(place) {
            return self.lose(context, subject);
        }
        let port = self.ports[place as usize];
        if port.to < self.hosts {
            self.arrive(context, subject);
            return;
        }
        let switch = port.to - self.hosts;
        let interval_ps = self.configuration.host_frame_interval_ps;
        if interval_ps > 0 && port.is_from_host {
            let engine = &mut self.engines_ps[switch as usize];
            let start_ps = (*engine).max(time_ps);
            *engine = start_ps + interval_ps;
            if start_ps > time_ps {
                context.schedule(start_ps, ENGINE | switch, subject);
                return;
            }
        }
        let slack_ps = self.slack_ps(place, subject);
        self.forward(context, switch, subject, slack_ps);
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        Stuck::Silent { messages: context.messages.len() }
    }

    fn hops(&self) -> u64 {
        self.hops
    }

    fn slot_ps(&self) -> u64 {
        let smallest = self.configuration.payload_min_bytes + self.configuration.overhead_bytes;
        let fastest = self.configuration.host_rate_bps.max(self.configuration.trunk_rate_bps);
        (u64::from(smallest) * u64::from(byte_time(fastest))) >> 9
    }
}

/// Serialisation of a byte in 1/256 ps. Exact for the usual rates; the slowest that fits is 0.5 Mb/s.
fn byte_time(rate_bps: u64) -> u32 {
    u32::try_from(8_000_000_000_000 * 256 / rate_bps.max(1)).unwrap_or(u32::MAX)
}

/// Marks places that are engines of switches; others are links.
const ENGINE: u32 = 1 << 29;
