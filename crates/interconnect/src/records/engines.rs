//! Recording hosts with the real engine, whose frames the network takes for messages.
//!
//! A crossing is put down to the oldest message from its sender to its receiver that is not there yet; what
//! there is none for, as acknowledgements, counts for links only. A message was made late by the frame
//! that came last before it was there.

use std::collections::{HashMap, VecDeque};

use super::{Grant, NONE, Recorder, slot};

/// What the recorder knows of engines.
#[derive(Clone, Debug, Default)]
pub(super) struct Engines {
    /// Copies of the topology, and links of each.
    rails: u32,
    links: u32,
    /// The rail of the next reports.
    rail: u32,
    /// Messages from one host to another that are not there yet, the oldest first. Never iterated.
    in_flight: HashMap<(u32, u32), VecDeque<u32>>,
    /// Last crossings of frames that have just arrived, by their numbers among messages.
    arrived: Vec<(u32, u32)>,
}

impl Engines {
    pub(super) fn on_arrived(&mut self, frame: u32, crossing: u32) {
        self.arrived.push((frame, crossing));
    }
}

impl Recorder {
    /// Adds records of hosts with the real engine on so many rails of so many links each.
    #[must_use]
    pub fn with_engines(mut self, rails: u32, links: u32) -> Self {
        self.engines = Some(Box::new(Engines { rails, links, ..Engines::default() }));
        self
    }

    /// The next reports are of this rail.
    #[cold]
    pub(in super::super) fn set_rail(&mut self, rail: u32) {
        if let Some(engines) = &mut self.engines {
            engines.rail = rail;
        }
    }

    /// An engine takes a message.
    #[cold]
    pub(in super::super) fn on_taken(&mut self, message: u32, hosts: (u32, u32)) {
        if let Some(engines) = &mut self.engines {
            engines.in_flight.entry(hosts).or_default().push_back(message);
        }
    }

    /// An engine sends a frame, which has this number among messages.
    #[cold]
    pub(in super::super) fn on_frame(&mut self, frame: u32, hosts: (u32, u32)) {
        let Some(engines) = &self.engines else { return };
        let oldest = engines.in_flight.get(&hosts).and_then(VecDeque::front);
        let record = oldest.and_then(|&message| self.record_of.get(message as usize).copied());
        *slot(&mut self.record_of, frame) = record.unwrap_or(NONE);
    }

    /// A host has a frame; or loses it, then `hosts` is nothing.
    #[cold]
    pub(in super::super) fn on_frame_arrived(&mut self, frame: u32, hosts: Option<(u32, u32)>) {
        let Some(engines) = &mut self.engines else { return };
        let Some(at) = engines.arrived.iter().position(|&(of, _)| of == frame) else { return };
        let (_, crossing) = engines.arrived.swap_remove(at);
        let queue = hosts.and_then(|hosts| engines.in_flight.get(&hosts));
        let oldest = queue.and_then(VecDeque::front).copied();
        if let Some(message) = oldest.and_then(|message| self.message(message))
            && crossing != NONE
        {
            message.last_crossing = Some(crossing);
        }
    }

    /// An engine reports that a message is there.
    #[cold]
    pub(in super::super) fn on_notified(&mut self, message: u32, hosts: (u32, u32)) {
        let Some(engines) = &mut self.engines else { return };
        let Some(queue) = engines.in_flight.get_mut(&hosts) else { return };
        let is_first = queue.front() == Some(&message);
        queue.retain(|&other| other != message);
        let next = queue.front().copied().filter(|_| is_first);
        // Frames that came before were put down to this one; they may have brought the next one, too.
        let last = self.message(message).and_then(|message| message.last_crossing);
        let started_ps = last.and_then(|last| self.first_start_ps(last));
        if let (Some(message), Some(started_ps)) = (self.message(message), started_ps) {
            message.started_ps = message.started_ps.min(started_ps);
        }
        if let Some(next) = next.and_then(|next| self.message(next))
            && next.last_crossing.is_none()
        {
            next.last_crossing = last;
        }
    }

    /// When a packet began to cross its first link.
    fn first_start_ps(&self, last: u32) -> Option<u64> {
        let mut crossing = self.crossings.get(last as usize)?;
        while let Some(previous) = crossing.previous {
            crossing = self.crossings.get(previous as usize)?;
        }
        Some(crossing.started_ps)
    }

    /// The same grant, with numbers that no other rail has.
    pub(super) fn of_rail(&self, grant: Grant) -> Grant {
        let Some(engines) = &self.engines else { return grant };
        Grant {
            packet: self.packet_of_rail(grant.packet),
            link: grant.link + engines.rail * engines.links,
            ..grant
        }
    }

    /// The number of a packet that no other rail has.
    pub(super) fn packet_of_rail(&self, packet: u32) -> u32 {
        self.engines.as_ref().map_or(packet, |engines| packet * engines.rails + engines.rail)
    }
}
