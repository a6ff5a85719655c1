//! What the parts of a divided network send each other: frames whose link leads to another part,
//! pauses, and the messages they belong to.
//!
//! A message lives where its receiver is. Its sender gives it a name there, which comes back when
//! the message is complete, so that names are places in a table and nothing is searched.

use std::sync::Arc;

use super::super::simulation::{Context, Message};
use super::super::wheel::Event;
use super::homa::Packet;
use super::queues::Queues;
use super::transport::Segment;
use super::{Ethernet, Frame, FrameState, NOWHERE};

/// What one part sends another at the end of a window of time.
#[derive(Debug, Default)]
pub struct Parcel {
    arrivals: Vec<Crossing>,
    /// Messages that will arrive, with their names.
    messages: Vec<(u32, Message)>,
    /// Names of messages that are complete, given by the receiver of the parcel.
    retired: Vec<u32>,
    /// Events of queues.
    events: Vec<Event>,
    /// What the arriving frames carry for a transport, if there is one.
    segments: Vec<Segment>,
    /// The same for Homa.
    packets: Vec<Packet>,
}

/// A frame on a link between two parts.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    time_ps: u64,
    link: u32,
    frame: Frame,
    state: Option<FrameState>,
}

/// The border of a part.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    own: u32,
    /// Part of each node.
    parts: Arc<[u8]>,
    borders: Vec<Border>,
}

/// The border with one other part.
#[derive(Clone, Debug, Default)]
struct Border {
    parcel: Parcel,
    /// Names for messages to there that can be given again, and the first that never was.
    vacant: Vec<u32>,
    next: u32,
    /// Messages from there by name: their place here.
    arriving: Vec<u32>,
}

impl Exchange {
    /// What a message is called by frames: its place if its receiver is in this part; else it goes
    /// there, and it is its name there.
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

    /// Where a message is whose frames call it so.
    pub(super) fn message(&self, name: u32) -> u32 {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part == self.own { name } else { self.borders[part as usize].arriving[name as usize] }
    }

    /// A message is complete: its name can be given again.
    pub(super) fn retire(&mut self, name: u32) {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part != self.own {
            self.borders[part as usize].parcel.retired.push(name);
        }
    }

    /// The number of this part.
    pub(super) const fn own_part(&self) -> u8 {
        // At most PARTS_MAX.
        self.own as u8
    }

    fn foreign(&self, node: u32) -> Option<usize> {
        let part = self.parts[node as usize];
        (u32::from(part) != self.own).then_some(usize::from(part))
    }
}

impl Clone for Parcel {
    /// Parts are made before anything happens: what is cloned is empty.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Ethernet {
    /// This network as one of several parts: `parts` names the part of each node. Nothing must have happened yet.
    pub(in super::super) fn part(&self, parts: &Arc<[u8]>, own: u32) -> Self {
        let count = parts.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let mut part = self.clone();
        let borders = vec![Border::default(); count];
        part.exchange = Some(Box::new(Exchange { own, parts: Arc::clone(parts), borders }));
        part.is_plain = part.can_be_plain();
        part
    }

    /// The least time between an event in a part and what it makes happen in another, in
    /// picoseconds. Hosts must be in the part of their switch.
    pub(in super::super) fn lookahead_ps(&self) -> u64 {
        if self.cables.is_empty() {
            return self.lookahead_of_ps(self.byte_times[1], self.configuration.propagation_ps);
        }
        let trunks = (0..self.links).filter(|&port| self.ends[port as usize].is_trunk());
        let of = |port: u32| self.lookahead_of_ps(self.byte_time(port), self.propagation_ps(port));
        trunks.map(of).min().unwrap_or(1)
    }

    /// The same where all trunks are alike.
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
            // With queues, the way of a frame is known when it leaves, and not before.
            Some(_) => frame_ps.min(Queues::pause_ps(trunk) + propagation_ps),
            None => frame_ps + configuration.latency_ps,
        }
    }

    /// Hands a frame to the part where its link ends, if that is another.
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

    /// Schedules an event of the queue of a port, in the part where the port is.
    pub(super) fn schedule_at(&mut self, context: &mut Context, event: Event, node: u32) {
        let part = self.exchange.as_ref().and_then(|exchange| exchange.foreign(node));
        match (part, &mut self.exchange) {
            (Some(part), Some(exchange)) => exchange.borders[part].parcel.events.push(event),
            _ => context.schedule(event.time_ps, event.place, event.subject),
        }
    }

    /// What is to be sent to a part.
    pub(in super::super) fn parcel(&mut self, to: usize) -> Parcel {
        let border = self.exchange.as_mut().and_then(|exchange| exchange.borders.get_mut(to));
        border.map(|border| std::mem::take(&mut border.parcel)).unwrap_or_default()
    }

    /// Takes what a part has sent.
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

/// Parts there can be.
pub(in super::super) const PARTS_MAX: u32 = 1 << (32 - NAME_BITS);
/// Names of messages: 64 million in flight between two parts.
const NAME_BITS: u32 = 26;
const NAME: u32 = (1 << NAME_BITS) - 1;
