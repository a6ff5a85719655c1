//! Data that the parts of a divided network exchange: frames on links between two parts, the
//! messages of these frames, and pauses.
//!
//! A message is stored in the part that contains its receiver. The sending part chooses a number,
//! the *name*, under which the receiving part finds the message. The name is an index of a table,
//! so the receiving part needs no search. When the message is complete, the sending part can use
//! the name again.

use std::sync::Arc;

use super::super::simulation::{Context, Message};
use super::super::wheel::Event;
use super::homa::Packet;
use super::queues::Queues;
use super::transport::Segment;
use super::{Ethernet, Frame, FrameState, NOWHERE};

/// Data that one part sends to another at the end of a time window.
#[derive(Debug, Default)]
pub struct Parcel {
    arrivals: Vec<Crossing>,
    /// Messages whose frames will arrive in the other part, each with the name that its frames
    /// carry.
    messages: Vec<(u32, Message)>,
    /// Names of complete messages. The part that gets this parcel chose these names.
    retired: Vec<u32>,
    /// Events for port queues that are in the part that gets this parcel.
    events: Vec<Event>,
    /// Transport headers of the arriving frames; empty without a transport.
    segments: Vec<Segment>,
    /// Homa headers of the arriving frames; empty if hosts do not use Homa.
    packets: Vec<Packet>,
}

/// A frame that crosses a link between two parts.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    time_ps: u64,
    link: u32,
    frame: Frame,
    state: Option<FrameState>,
}

/// The borders of a part with all other parts.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    own: u32,
    /// For each node, its part.
    parts: Arc<[u8]>,
    borders: Vec<Border>,
}

/// The border with one other part.
#[derive(Clone, Debug, Default)]
struct Border {
    parcel: Parcel,
    /// Names for messages to the other part. `vacant` contains names that can be reused; `next` is
    /// the first name that was never used.
    vacant: Vec<u32>,
    next: u32,
    /// For each name that the other part uses, the index of the message in this part.
    arriving: Vec<u32>,
}

impl Exchange {
    /// Returns the name that the frames of a message carry. If the receiver is in this part, the
    /// name contains the message's index. Otherwise moves the message to the receiver's part.
    pub(super) fn name(&mut self, context: &mut Context, index: u32) -> u32 {
        let destination = context.messages.get(index).destination;
        let part = self.parts[destination as usize];
        if u32::from(part) == self.own {
            return self.own << NAME_BITS | index;
        }
        let message = context.messages.remove(index);
        let border = &mut self.borders[usize::from(part)];
        let name = border.vacant.pop().unwrap_or_else(|| {
            border.next += 1;
            border.next - 1
        });
        border.parcel.messages.push((name, message));
        self.own << NAME_BITS | name
    }

    /// Returns the index of the message whose frames carry `name`.
    pub(super) fn message(&self, name: u32) -> u32 {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part == self.own { name } else { self.borders[part as usize].arriving[name as usize] }
    }

    /// Gives the name of a complete message back to the part that chose the name.
    pub(super) fn retire(&mut self, name: u32) {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part != self.own {
            self.borders[part as usize].parcel.retired.push(name);
        }
    }

    /// Returns the number of this part.
    pub(super) const fn own_part(&self) -> u8 {
        // The number is less than `PARTS_MAX`.
        self.own as u8
    }

    fn foreign(&self, node: u32) -> Option<usize> {
        let part = self.parts[node as usize];
        (u32::from(part) != self.own).then_some(usize::from(part))
    }
}

impl Clone for Parcel {
    /// Returns an empty parcel. A network is cloned only to create its parts. At that time, all of
    /// its parcels are empty.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Ethernet {
    /// Returns a copy of this network as one of several parts. `parts` contains the part of each
    /// node. The run must not have started.
    pub(in super::super) fn part(&self, parts: &Arc<[u8]>, own: u32) -> Self {
        let count = parts.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let mut part = self.clone();
        let borders = vec![Border::default(); count];
        part.exchange = Some(Box::new(Exchange { own, parts: Arc::clone(parts), borders }));
        part.is_plain = part.can_be_plain();
        part
    }

    /// Returns the minimum time after which an event in a part can affect another part, in
    /// picoseconds. Each host must be in the part of its switch.
    pub(in super::super) fn lookahead_ps(&self) -> u64 {
        if self.cables.is_empty() {
            return self.lookahead_of_ps(self.byte_times[1], self.configuration.propagation_ps);
        }
        let trunks = (0..self.links).filter(|&port| self.ends[port as usize].is_trunk());
        let of = |port: u32| self.lookahead_of_ps(self.byte_time(port), self.propagation_ps(port));
        trunks.map(of).min().unwrap_or(1)
    }

    /// Returns the lookahead if all trunks are equal.
    fn lookahead_of_ps(&self, byte_time: u32, propagation_ps: u64) -> u64 {
        let configuration = &self.configuration;
        let trunk = u64::from(byte_time);
        let time_ps = |bytes: u32| (u64::from(bytes) * trunk) >> 8;
        let smallest = configuration.frame_bytes_min();
        let first_ps = match configuration.forwarding {
            super::Forwarding::StoreAndForward => time_ps(smallest),
            super::Forwarding::CutThrough { header_bytes } => time_ps(header_bytes.min(smallest)),
        };
        let frame_ps = first_ps + propagation_ps;
        match &self.queues {
            // With stored queues, a switch schedules the arrival of a frame at the next node only
            // when the frame leaves the queue. The latency of the switch has passed at that time.
            // Without stored queues, the switch schedules the arrival before the latency.
            Some(_) => frame_ps.min(Queues::pause_ps(trunk) + propagation_ps),
            None => frame_ps + configuration.latency_ps,
        }
    }

    /// Moves a frame to the part in which its link ends. Returns false if the link ends in this
    /// part.
    pub(super) fn cross(&mut self, time_ps: u64, link: u32, index: u32) -> bool {
        let Some(exchange) = &mut self.exchange else { return false };
        let Some(part) = exchange.foreign(self.ends[link as usize].node()) else { return false };
        let state = self.states.get(index as usize).copied();
        let frame = self.frames.remove(index);
        let parcel = &mut exchange.borders[part].parcel;
        parcel.arrivals.push(Crossing { time_ps, link, frame, state });
        if let Some(transport) = &self.transport {
            parcel.segments.push(transport.segment(index));
        }
        if let Some(homa) = &self.homa {
            parcel.packets.push(homa.packet(index));
        }
        true
    }

    /// Schedules an event of a port's queue, in the part that contains the port.
    pub(super) fn schedule_at(&mut self, context: &mut Context, event: Event, node: u32) {
        let part = self.exchange.as_ref().and_then(|exchange| exchange.foreign(node));
        match (part, &mut self.exchange) {
            (Some(part), Some(exchange)) => exchange.borders[part].parcel.events.push(event),
            _ => context.schedule(event.time_ps, event.place, event.subject),
        }
    }

    /// Removes and returns the data for another part.
    pub(in super::super) fn parcel(&mut self, to: usize) -> Parcel {
        let border = self.exchange.as_mut().and_then(|exchange| exchange.borders.get_mut(to));
        border.map(|border| std::mem::take(&mut border.parcel)).unwrap_or_default()
    }

    /// Accepts the data from another part.
    pub(in super::super) fn accept(
        &mut self,
        context: &mut Context,
        from: usize,
        mut parcel: Parcel,
    ) {
        let Some(exchange) = &mut self.exchange else { return };
        let border = &mut exchange.borders[from];
        for (name, message) in parcel.messages.drain(..) {
            if border.arriving.len() <= name as usize {
                border.arriving.resize(name as usize + 1, NOWHERE);
            }
            border.arriving[name as usize] = context.messages.insert(message);
        }
        border.vacant.append(&mut parcel.retired);
        let mut segments = parcel.segments.drain(..);
        let mut packets = parcel.packets.drain(..);
        for crossing in parcel.arrivals.drain(..) {
            let index = self.frames.insert(crossing.frame);
            if let (Some(transport), Some(segment)) = (&mut self.transport, segments.next()) {
                transport.set_segment(index, segment);
            }
            if let (Some(homa), Some(packet)) = (&mut self.homa, packets.next()) {
                homa.set_packet(index, packet);
            }
            if let Some(state) = crossing.state {
                self.set_state(index, state);
            }
            context.schedule(crossing.time_ps, crossing.link, index);
        }
        for event in parcel.events.drain(..) {
            context.wheel.push(event);
        }
    }
}

/// Maximum number of parts.
pub(in super::super) const PARTS_MAX: u32 = 1 << (32 - NAME_BITS);
/// Number of bits of a message's name, enough for 64 million messages in flight between two parts.
const NAME_BITS: u32 = 26;
const NAME: u32 = (1 << NAME_BITS) - 1;
