//! A fabric of flits with credits and virtual channels.
//!
//! A flit takes one event per hop, and one more if it waits for a link. Routers have no clock, so a
//! router without flits causes no events. Credits cause no events: the sender stores the time when
//! each buffer slot at the other end becomes free. Only a sender that waits for a credit causes an
//! event.

mod allocator;
mod recording;
mod router;

use std::collections::VecDeque;

use super::routing::{LaneChoice, Paths};
use super::simulation::{Context, Fabric, Stuck};
use super::slab::Slab;
use super::topology::Topology;
use super::wheel::Event;

pub use allocator::Allocator;
pub use router::{RouterConfiguration, RouterFabric};

/// Settings of a flit fabric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlitConfiguration {
    /// Time in which a link sends one flit, in picoseconds.
    pub flit_ps: u64,
    /// Latency between routers, in picoseconds: from the time when a flit starts on the link until
    /// the next router can forward it.
    pub hop_ps: u64,
    /// Latency from a host's port to the router, in picoseconds: from the time when a flit starts
    /// at the port until the router can forward it.
    pub entry_ps: u64,
    /// Latency from a router to a host's port, in picoseconds: from the time when a flit starts at
    /// the router until it is at the port.
    pub exit_ps: u64,
    /// Latency of a credit, in picoseconds: from the time when a flit leaves a buffer until the
    /// sender can use the credit.
    pub credit_ps: u64,
    /// Payload of one flit, in bytes.
    pub flit_payload_bytes: u32,
    /// Bytes that a packet carries through the fabric besides its payload.
    pub packet_overhead_bytes: u32,
    /// Number of virtual channels per link, at most 16.
    pub channels: u8,
    /// Buffer of each virtual channel, in flits.
    pub buffer_flits: u16,
    /// Clock period of the hosts' ports, in picoseconds. Packets start at a clock edge. 0 means no
    /// clock.
    pub clock_ps: u64,
    /// The links between hosts and their ports.
    pub ports: PortConfiguration,
    /// Settings of routers with a clock ([`RouterFabric`]). If this is `None`, routers add no
    /// latency, and each link serves flits in the order of arrival.
    pub router: Option<RouterConfiguration>,
}

/// Settings of the link between a host and its port. A port stores each frame completely before it
/// forwards the frame, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortConfiguration {
    /// Rate, in bits per second; 0 if the hosts are directly part of the fabric.
    pub rate_bps: u64,
    /// Largest payload of a frame, in bytes.
    pub mtu_bytes: u32,
    /// Smallest payload of a frame, in bytes.
    pub payload_min_bytes: u32,
    /// Bytes that a frame adds to its payload on the wire.
    pub overhead_bytes: u32,
    /// Gap between frames: minimum idle time of the link after each frame, in bytes.
    pub gap_bytes: u32,
}

/// A fabric of flits, with the packets in flight.
#[derive(Debug)]
pub struct FlitFabric {
    configuration: FlitConfiguration,
    paths: Paths,
    links: Vec<Output>,
    /// The sending end of each virtual channel. Channel c of link l has index l · channels + c.
    outputs: Vec<OutputChannel>,
    /// The receiving end of each virtual channel, followed by the queues of the hosts.
    inputs: Vec<Input>,
    /// Flits in the buffers, `buffer_flits` entries for each virtual channel. The entry of a flit
    /// is 2 × the index of its packet, plus 1 if the flit is a tail.
    buffers: Vec<u32>,
    /// For each buffer slot, the time when the sender can use it again; [`NEVER`] while it is
    /// occupied.
    slots_ps: Vec<u64>,
    sources: Vec<FlitSource>,
    packets: Slab<Packet>,
    host_links: Vec<u32>,
    names: Vec<String>,
    hops: u64,
}

/// The sending end of a link.
#[derive(Clone, Debug)]
struct Output {
    free_ps: u64,
    /// Inputs with flits for this link, in the order in which the link serves them.
    requests: VecDeque<u32>,
    /// Time of the link's next scheduled event; [`NEVER`] if none is scheduled.
    wake_ps: u64,
    latency_ps: u64,
    is_to_host: bool,
}

#[derive(Clone, Copy, Debug)]
struct OutputChannel {
    /// Input whose packet owns the channel; [`NONE`] if no packet does.
    owner: u32,
    /// Buffer slot of the next flit.
    slot: u16,
}

/// The buffer of a virtual channel.
#[derive(Clone, Copy, Debug)]
struct Input {
    /// Link and channel through which the packet at the front leaves.
    link: u32,
    channel: u8,
    has_channel: bool,
    is_requesting: bool,
    first: u16,
    len: u16,
}

/// Packets that wait at a host.
#[derive(Clone, Debug, Default)]
struct FlitSource {
    packets: VecDeque<u32>,
    /// Time when the link from the host to its port is free.
    free_ps: u64,
    /// Time when the link from the port to the host is free.
    exit_free_ps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    message: u32,
    source: u32,
    destination: u32,
    /// Index of the packet's next hop, and the index at which its hops between routers end.
    path: u32,
    path_end: u32,
    /// Length of the frame on the link to the host, in bytes.
    frame_bytes: u32,
    /// Number of flits that have not left the source.
    flits: u32,
    /// Class of virtual channels that the packet uses.
    lane: u8,
}

impl FlitFabric {
    /// Creates a flit fabric over a topology.
    pub fn new(topology: &Topology, paths: Paths, configuration: FlitConfiguration) -> Self {
        let channels = usize::from(configuration.channels.clamp(1, CHANNELS_MAX));
        let configuration = FlitConfiguration {
            channels: channels as u8,
            buffer_flits: configuration.buffer_flits.max(1),
            ..configuration
        };
        let hosts = topology.hosts();
        let output = |link: &super::topology::Link| Output {
            free_ps: 0,
            requests: VecDeque::new(),
            wake_ps: NEVER,
            latency_ps: match (topology.is_host(link.from), topology.is_host(link.to)) {
                (true, _) => configuration.entry_ps,
                (_, true) => configuration.exit_ps,
                _ => configuration.hop_ps,
            },
            is_to_host: topology.is_host(link.to),
        };
        let count = topology.links().len() * channels;
        let slots = count * usize::from(configuration.buffer_flits);
        let idle = Input {
            link: NONE,
            channel: 0,
            has_channel: false,
            is_requesting: false,
            first: 0,
            len: 0,
        };
        Self {
            configuration,
            paths,
            links: topology.links().iter().map(output).collect(),
            outputs: vec![OutputChannel { owner: NONE, slot: 0 }; count],
            inputs: vec![idle; count + hosts as usize],
            buffers: vec![0; slots],
            slots_ps: vec![0; slots],
            sources: vec![FlitSource::default(); hosts as usize],
            packets: Slab::new(),
            host_links: (0..hosts).map(|host| topology.host_link(host)).collect(),
            names: (0..topology.links().len() as u32)
                .map(|link| topology.link_name(link))
                .collect(),
            hops: 0,
        }
    }

    fn aligned(&self, time_ps: u64) -> u64 {
        match self.configuration.clock_ps {
            0 => time_ps,
            clock => time_ps.next_multiple_of(clock),
        }
    }

    /// Returns the time in which a host's link sends `bytes` bytes, in picoseconds.
    fn port_ps(&self, bytes: u32) -> u64 {
        match self.configuration.ports.rate_bps {
            0 => 0,
            rate => u64::from(bytes) * 8_000_000_000_000 / rate,
        }
    }

    /// Handles a frame that its port has stored completely: queues the frame's packet for the
    /// fabric.
    fn enter(&mut self, context: &mut Context, index: u32) {
        let host = self.packets.get(index).source;
        let source = &mut self.sources[host as usize];
        source.packets.push_back(index);
        if source.packets.len() == 1 {
            self.request(context, self.outputs.len() as u32 + host);
        }
    }

    /// Returns the packet to which the first flit of an input belongs, and whether the flit is the
    /// tail. Returns `None` if the input is empty.
    #[inline]
    fn first(&self, input: u32) -> Option<(u32, bool)> {
        if let Some(host) = (input as usize).checked_sub(self.outputs.len()) {
            let packet = *self.sources[host].packets.front()?;
            return Some((packet, self.packets.get(packet).flits == 1));
        }
        let Input { first, len, .. } = self.inputs[input as usize];
        if len == 0 {
            return None;
        }
        let start = input as usize * usize::from(self.configuration.buffer_flits);
        let flit = self.buffers[start + usize::from(first)];
        Some((flit >> 1, flit & 1 == 1))
    }

    /// Requests a link for the flit at the front of an input.
    #[inline]
    fn request(&mut self, context: &mut Context, input: u32) {
        let Some((packet, _)) = self.first(input) else { return };
        if self.inputs[input as usize].link == NONE {
            let link = self.next_link(input, packet);
            self.inputs[input as usize].link = link;
        }
        let link = self.inputs[input as usize].link;
        let output = &self.links[link as usize];
        let now_ps = context.wheel.now_ps();
        if output.free_ps <= now_ps && output.requests.is_empty() {
            let wait = self.try_send(context, input, link);
            if wait == Wait::Sent {
                if input as usize >= self.outputs.len() && self.inputs[input as usize].has_channel {
                    self.send_burst(context, input, link, packet);
                }
                if self.first(input).is_some() {
                    self.request(context, input);
                }
                return;
            }
            self.ask(input, link);
            if let Wait::Until(time_ps) = wait {
                self.wake(context, link, time_ps);
            }
            return;
        }
        let time_ps = output.free_ps.max(now_ps);
        self.ask(input, link);
        self.wake(context, link, time_ps);
    }

    fn ask(&mut self, input: u32, link: u32) {
        if !std::mem::replace(&mut self.inputs[input as usize].is_requesting, true) {
            self.links[link as usize].requests.push_back(input);
        }
    }

    /// Sends flits of a host's packet as long as there are credits. No other host uses this link,
    /// so the times of all these flits can be computed now. Each flit then takes one event instead
    /// of two.
    fn send_burst(&mut self, context: &mut Context, input: u32, link: u32, index: u32) {
        let channels = u32::from(self.configuration.channels);
        let channel = link * channels + u32::from(self.inputs[input as usize].channel);
        let depth = usize::from(self.configuration.buffer_flits);
        let Self { configuration, links, outputs, slots_ps, packets, .. } = self;
        let (output, end) = (&mut links[link as usize], &mut outputs[channel as usize]);
        let flits = &mut packets.get_mut(index).flits;
        // The loop does not send the tail. `try_send` sends it, because the tail must release the
        // channel and start the next packet.
        while *flits > 1 {
            let slot = channel as usize * depth + usize::from(end.slot);
            if slots_ps[slot] == NEVER {
                break;
            }
            let start_ps = output.free_ps.max(slots_ps[slot]).max(context.wheel.now_ps());
            slots_ps[slot] = NEVER;
            end.slot = if usize::from(end.slot) + 1 == depth { 0 } else { end.slot + 1 };
            output.free_ps = start_ps + configuration.flit_ps;
            if let Some(recorder) = &mut context.recorder
                && configuration.ports.rate_bps == 0
            {
                recorder.on_busy(link, start_ps, output.free_ps);
            }
            context.schedule(start_ps + output.latency_ps, channel, index << 1);
            *flits -= 1;
            self.hops += 1;
        }
    }

    /// Schedules an event of a link at `time_ps`, or when the link becomes free if this is later.
    #[inline]
    fn wake(&mut self, context: &mut Context, link: u32, time_ps: u64) {
        let output = &mut self.links[link as usize];
        let time_ps = time_ps.max(output.free_ps).max(context.wheel.now_ps());
        if time_ps < output.wake_ps {
            output.wake_ps = time_ps;
            context.schedule(time_ps, WAKE | link, 0);
        }
    }

    fn next_link(&self, input: u32, index: u32) -> u32 {
        let packet = self.packets.get(index);
        if input as usize >= self.outputs.len() {
            self.host_links[packet.source as usize]
        } else if packet.path == packet.path_end {
            self.host_links[packet.destination as usize] ^ 1
        } else {
            self.paths.hop(packet.path).link
        }
    }

    /// Serves the inputs that request a link, one after the other.
    fn serve(&mut self, context: &mut Context, link: u32) {
        let now_ps = context.wheel.now_ps();
        let output = &mut self.links[link as usize];
        if output.wake_ps <= now_ps {
            output.wake_ps = NEVER;
        }
        if output.requests.is_empty() {
            return;
        }
        if output.free_ps > now_ps {
            let free_ps = output.free_ps;
            self.wake(context, link, free_ps);
            return;
        }
        let mut earliest_ps = NEVER;
        for turn in 0..self.links[link as usize].requests.len() {
            let input = self.links[link as usize].requests[turn];
            match self.try_send(context, input, link) {
                Wait::Until(time_ps) => earliest_ps = earliest_ps.min(time_ps),
                Wait::ForOther => {}
                Wait::Sent => {
                    self.links[link as usize].requests.remove(turn);
                    self.inputs[input as usize].is_requesting = false;
                    earliest_ps = if self.links[link as usize].requests.is_empty() {
                        NEVER
                    } else {
                        self.links[link as usize].free_ps
                    };
                    self.request(context, input);
                    break;
                }
            }
        }
        if earliest_ps != NEVER {
            self.wake(context, link, earliest_ps);
        }
    }

    /// Sends the first flit of an input over a free link, if the flit has a channel and a credit.
    /// Otherwise returns what the flit waits for.
    #[inline]
    fn try_send(&mut self, context: &mut Context, input: u32, link: u32) -> Wait {
        let now_ps = context.wheel.now_ps();
        let Some((index, is_tail)) = self.first(input) else { return Wait::ForOther };
        if !self.inputs[input as usize].has_channel {
            if let Err(wait) = self.allocate(now_ps, input, index, link) {
                return wait;
            }
            if context.recorder.is_some() {
                self.record_head(context, input, index, link);
            }
        }
        let channel = link * u32::from(self.configuration.channels)
            + u32::from(self.inputs[input as usize].channel);
        let depth = usize::from(self.configuration.buffer_flits);
        let output = &mut self.outputs[channel as usize];
        let slot = channel as usize * depth + usize::from(output.slot);
        let is_to_host = self.links[link as usize].is_to_host;
        if !is_to_host {
            match self.slots_ps[slot] {
                NEVER => return Wait::ForOther,
                time_ps if time_ps > now_ps => return Wait::Until(time_ps),
                _ => self.slots_ps[slot] = NEVER,
            }
            output.slot = if usize::from(output.slot) + 1 == depth { 0 } else { output.slot + 1 };
        }
        if is_tail {
            output.owner = NONE;
        }
        if context.recorder.is_some() {
            self.record_flit(context, channel, index, is_tail);
        }
        let output = &mut self.links[link as usize];
        output.free_ps = now_ps + self.configuration.flit_ps;
        self.hops += 1;
        if !is_to_host || is_tail {
            let subject = index << 1 | u32::from(is_tail);
            context.schedule(now_ps + output.latency_ps, channel, subject);
        }
        self.take(context, input, index, is_tail);
        Wait::Sent
    }

    /// Allocates a channel of a link to the packet at the front of an input.
    fn allocate(&mut self, now_ps: u64, input: u32, index: u32, link: u32) -> Result<(), Wait> {
        let channels = self.configuration.channels;
        let depth = usize::from(self.configuration.buffer_flits);
        let packet = self.packets.get(index);
        let is_between = (input as usize) < self.outputs.len() && packet.path < packet.path_end;
        let class = match is_between.then(|| self.paths.hop(packet.path).lane) {
            None | Some(LaneChoice::Any | LaneChoice::Drawn) => None,
            Some(LaneChoice::Fixed(class)) => Some(class),
            Some(LaneChoice::Same) => Some(packet.lane),
        };
        let usable = match class {
            Some(0) => 0..channels.div_ceil(2),
            Some(_) => channels.div_ceil(2)..channels,
            None => 0..channels,
        };
        let mut wait = Wait::ForOther;
        for channel in usable {
            let at = link as usize * usize::from(channels) + usize::from(channel);
            let output = &mut self.outputs[at];
            if output.owner != NONE {
                continue;
            }
            let slot_ps = if self.links[link as usize].is_to_host {
                0
            } else {
                self.slots_ps[at * depth + usize::from(output.slot)]
            };
            if slot_ps <= now_ps {
                output.owner = input;
                let own = &mut self.inputs[input as usize];
                (own.channel, own.has_channel) = (channel, true);
                let packet = self.packets.get_mut(index);
                packet.lane = u8::from(channel >= channels.div_ceil(2));
                packet.path += u32::from(is_between);
                return Ok(());
            }
            if slot_ps != NEVER {
                wait = wait.or_at(slot_ps);
            }
        }
        Err(wait)
    }

    /// Removes the first flit of an input, and gives a credit back to the sender.
    #[inline]
    fn take(&mut self, context: &mut Context, input: u32, index: u32, is_tail: bool) {
        if is_tail {
            let own = &mut self.inputs[input as usize];
            (own.link, own.has_channel) = (NONE, false);
        }
        if let Some(host) = (input as usize).checked_sub(self.outputs.len()) {
            self.packets.get_mut(index).flits -= 1;
            if is_tail {
                self.sources[host].packets.pop_front();
            }
            return;
        }
        let depth = self.configuration.buffer_flits;
        let own = &mut self.inputs[input as usize];
        let slot = input as usize * usize::from(depth) + usize::from(own.first);
        own.first = if own.first + 1 == depth { 0 } else { own.first + 1 };
        own.len -= 1;
        let time_ps = context.wheel.now_ps() + self.configuration.credit_ps;
        self.slots_ps[slot] = time_ps;
        // A sender can be waiting for this credit.
        let upstream = input / u32::from(self.configuration.channels);
        if !self.links[upstream as usize].requests.is_empty() {
            self.wake(context, upstream, time_ps);
        }
    }

    /// Handles a flit that reached the end of a link.
    #[inline]
    fn arrive(&mut self, context: &mut Context, channel: u32, flit: u32) {
        let link = channel / u32::from(self.configuration.channels);
        if self.links[link as usize].is_to_host {
            self.leave(context, flit >> 1);
            return;
        }
        let depth = self.configuration.buffer_flits;
        let own = &mut self.inputs[channel as usize];
        let end = own.first + own.len;
        let at = if end < depth { end } else { end - depth };
        own.len += 1;
        let (is_first, is_requesting) = (own.len == 1, own.is_requesting);
        self.buffers[channel as usize * usize::from(depth) + usize::from(at)] = flit;
        if is_first && !is_requesting {
            self.request(context, channel);
        }
    }

    /// Sends the frame of a packet from the port to the host. The packet's tail has reached the
    /// port.
    fn leave(&mut self, context: &mut Context, index: u32) {
        let packet = *self.packets.get(index);
        let now_ps = context.wheel.now_ps();
        let frame_ps = self.port_ps(packet.frame_bytes);
        let gap_ps = self.port_ps(self.configuration.ports.gap_bytes);
        let free_ps = self.sources[packet.destination as usize].exit_free_ps;
        let start_ps = self.aligned(now_ps.max(free_ps));
        self.sources[packet.destination as usize].exit_free_ps = start_ps + frame_ps + gap_ps;
        let end_ps = start_ps + self.aligned(frame_ps);
        let link = self.host_links[packet.destination as usize] ^ 1;
        self.record_port(context, (link, index), (now_ps, start_ps, end_ps), false);
        context.schedule(end_ps, DELIVERED | packet.destination, index);
    }

    fn describe(&self, input: u32) -> String {
        let channels = u32::from(self.configuration.channels);
        let place = if let Some(host) = (input as usize).checked_sub(self.outputs.len()) {
            format!("queue of h{host}")
        } else {
            let name = &self.names[(input / channels) as usize];
            format!("buffer of {name}, channel {}", input % channels)
        };
        let link = self.inputs[input as usize].link;
        let name = self.names.get(link as usize).map_or("nothing", String::as_str);
        format!("  {place} waits for {name}")
    }

    /// Returns the input whose flits must move before the first flit of `input` can move; `None` if
    /// the flit's link is not known.
    fn awaited(&self, input: u32) -> Option<u32> {
        let own = self.inputs[input as usize];
        if own.link == NONE {
            return None;
        }
        let channels = u32::from(self.configuration.channels);
        if own.has_channel {
            return Some(own.link * channels + u32::from(own.channel));
        }
        // If a packet owns the channel, the flit waits for the input of this packet. If no packet
        // owns the channel, a credit is missing: the flit waits for the buffer at the other end,
        // which is full.
        let ends = own.link * channels..(own.link + 1) * channels;
        let owners = ends.map(|end| (end, self.outputs[end as usize].owner));
        let mut waits = owners.map(|(end, owner)| if owner == NONE { end } else { owner });
        waits.next()
    }
}

/// What a flit waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wait {
    /// Nothing, because the flit was sent.
    Sent,
    /// A credit that becomes usable at this time, in picoseconds.
    Until(u64),
    /// Another flit or packet. When that flit or packet moves, it schedules an event of the link.
    ForOther,
}

impl Wait {
    fn or_at(self, time_ps: u64) -> Self {
        match self {
            Self::Until(other) => Self::Until(other.min(time_ps)),
            _ => Self::Until(time_ps),
        }
    }
}

impl Fabric for FlitFabric {
    fn inject(&mut self, context: &mut Context, index: u32) {
        let PortConfiguration { mtu_bytes, payload_min_bytes, overhead_bytes, gap_bytes, .. } =
            self.configuration.ports;
        let message = context.messages.get_mut(index);
        let (source, destination) = (message.source, message.destination);
        let mut left = message.bytes;
        let mtu = mtu_bytes.max(1);
        message.remaining = left.div_ceil(mtu).max(1);
        let (path, path_end) = self.paths.between(source, destination);
        loop {
            let payload = left.min(mtu);
            let padded = payload.max(payload_min_bytes);
            let packet = self.packets.insert(Packet {
                message: index,
                source,
                destination,
                path,
                path_end,
                frame_bytes: padded + overhead_bytes,
                flits: (padded + self.configuration.packet_overhead_bytes)
                    .div_ceil(self.configuration.flit_payload_bytes.max(1))
                    .max(1),
                lane: 0,
            });
            let frame_ps = self.port_ps(padded + overhead_bytes);
            let gap_ps = self.port_ps(gap_bytes);
            let free_ps = self.sources[source as usize].free_ps;
            let start_ps = self.aligned(context.wheel.now_ps().max(free_ps));
            self.sources[source as usize].free_ps = start_ps + frame_ps + gap_ps;
            let stored_ps = start_ps + self.aligned(frame_ps);
            if self.configuration.ports.rate_bps == 0 {
                self.enter(context, packet);
            } else {
                let now_ps = context.wheel.now_ps();
                let link = self.host_links[source as usize];
                self.record_port(context, (link, packet), (now_ps, start_ps, stored_ps), true);
                context.schedule(stored_ps, ENTER | source, packet);
            }
            left -= payload;
            if left == 0 {
                break;
            }
        }
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        let Event { place, subject, .. } = event;
        match place & KINDS {
            0 => self.arrive(context, place, subject),
            WAKE => self.serve(context, place & !KINDS),
            ENTER => self.enter(context, subject),
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
        let silent = Stuck::Silent { messages: context.messages.len() };
        let blocked = |input: &u32| self.inputs[*input as usize].is_requesting;
        let Some(mut input) = (0..self.inputs.len() as u32).find(blocked) else { return silent };
        let mut way: Vec<u32> = Vec::new();
        loop {
            if let Some(start) = way.iter().position(|&before| before == input) {
                let circle = way[start..].iter().map(|&input| self.describe(input)).collect();
                return Stuck::Deadlock { circle };
            }
            way.push(input);
            let Some(next) = self.awaited(input) else { return silent };
            input = next;
        }
    }

    fn hops(&self) -> u64 {
        self.hops
    }

    fn slot_ps(&self) -> u64 {
        self.configuration.hop_ps.min(self.configuration.flit_ps) / 2
    }
}

const NEVER: u64 = u64::MAX;
const NONE: u32 = u32::MAX;
/// Maximum number of virtual channels of a link. No router has more than 16. With 16 channels per
/// link, the numbers of all channels of the largest topology still fit in `Event::place`.
const CHANNELS_MAX: u8 = 16;
/// Mask of the bits of `Event::place` that contain the kind of the event. Kind 0 is the arrival of
/// a flit at the end of a channel.
const KINDS: u32 = 3 << 28;
const WAKE: u32 = 1 << 28;
const ENTER: u32 = 2 << 28;
const DELIVERED: u32 = 3 << 28;
