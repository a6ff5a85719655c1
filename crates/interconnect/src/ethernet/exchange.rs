//! Exchange between the parts of a divided network: frames whose link leads to another part,
//! pauses, and the messages to which the frames belong.
//!
//! A message is stored in the part of its receiver. The sending part gives it a name there, which
//! is returned when the message is complete. Names are therefore indices of a table, and no search
//! is needed.

use std::sync::Arc;

use super::super::simulation::{Context, Message};
use super::super::wheel::Event;
use super::homa::Packet;
use super::queues::Queues;
use super::transport::Segment;
use super::{Ethernet, Frame, FrameState, NOWHERE};

/// Data from one part to another at the end of a window of time.
#[derive(Debug, Default)]
pub struct Parcel {
    arrivals: Vec<Crossing>,
    /// Messages that will arrive, with their names.
    messages: Vec<(u32, Message)>,
    /// Names of complete messages. The part that receives the parcel gave these names.
    retired: Vec<u32>,
    /// Events of queues.
    events: Vec<Event>,
    /// Transport headers of the arriving frames, if there is a transport.
    segments: Vec<Segment>,
    /// Homa headers of the arriving frames, if hosts use Homa.
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

/// The borders of a part with all other parts.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    own: u32,
    /// The part of each node.
    parts: Arc<[u8]>,
    borders: Vec<Border>,
}

/// The border with one other part.
#[derive(Clone, Debug, Default)]
struct Border {
    parcel: Parcel,
    /// Names for messages to that part: names that can be used again, and the first that was never
    /// used.
    vacant: Vec<u32>,
    next: u32,
    /// Index here of each message from that part, by name.
    arriving: Vec<u32>,
}

impl Exchange {
    /// Returns the name of a message for its frames: its index if its receiver is in this part.
    /// Otherwise moves the message to the receiver's part, and returns its name there.
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

    /// Returns the index of the message that frames call `name`.
    pub(super) fn message(&self, name: u32) -> u32 {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part == self.own { name } else { self.borders[part as usize].arriving[name as usize] }
    }

    /// Retires the name of a complete message, so that it can be used again.
    pub(super) fn retire(&mut self, name: u32) {
        let (part, name) = (name >> NAME_BITS, name & NAME);
        if part != self.own {
            self.borders[part as usize].parcel.retired.push(name);
        }
    }

    /// Returns the number of this part.
    pub(super) const fn own_part(&self) -> u8 {
        // Less than `PARTS_MAX`.
        self.own as u8
    }

    fn foreign(&self, node: u32) -> Option<usize> {
        let part = self.parts[node as usize];
        (u32::from(part) != self.own).then_some(usize::from(part))
    }
}

impl Clone for Parcel {
    /// Returns an empty parcel: parts are created before anything happens.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Ethernet {
    /// Returns this network as one of several parts. `parts` has the part of each node. The run
    /// must not have started.
    pub(in super::super) fn part(&self, parts: &Arc<[u8]>, own: u32) -> Self {
        let count = parts.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let mut part = self.clone();
        let borders = vec![Border::default(); count];
        part.exchange = Some(Box::new(Exchange { own, parts: Arc::clone(parts), borders }));
        part.is_plain = part.can_be_plain();
        part
    }

    /// Returns the minimum time between an event in a part and its effect in another, in
    /// picoseconds. A host must be in the part of its switch.
    pub(in super::super) fn lookahead_ps(&self) -> u64 {
        if self.cables.is_empty() {
            return self.lookahead_of_ps(self.byte_times[1], self.configuration.propagation_ps);
        }
        let trunks = (0..self.links).filter(|&port| self.ends[port as usize].is_trunk());
        let of = |port: u32| self.lookahead_of_ps(self.byte_time(port), self.propagation_ps(port));
        trunks.map(of).min().unwrap_or(1)
    }

    /// Returns the lookahead for trunks that are all equal.
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
            // With stored queues, the route of a frame is known only when the frame leaves.
            Some(_) => frame_ps.min(Queues::pause_ps(trunk) + propagation_ps),
            None => frame_ps + configuration.latency_ps,
        }
    }

    /// Moves a frame to the part in which its link ends, if that is another part. Returns whether
    /// it was moved.
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

    /// Schedules an event of a port's queue, in the part of the port.
    pub(super) fn schedule_at(&mut self, context: &mut Context, event: Event, node: u32) {
        let part = self.exchange.as_ref().and_then(|exchange| exchange.foreign(node));
        match (part, &mut self.exchange) {
            (Some(part), Some(exchange)) => exchange.borders[part].parcel.events.push(event),
            _ => context.schedule(event.time_ps, event.place, event.subject),
        }
    }

    /// Removes and returns the data for a part.
    pub(in super::super) fn parcel(&mut self, to: usize) -> Parcel {
        let border = self.exchange.as_mut().and_then(|exchange| exchange.borders.get_mut(to));
        border.map(|border| std::mem::take(&mut border.parcel)).unwrap_or_default()
    }

    /// Accepts the data from a part.
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
/// Bits of a message's name: 64 million messages in flight between two parts.
const NAME_BITS: u32 = 26;
const NAME: u32 = (1 << NAME_BITS) - 1;
