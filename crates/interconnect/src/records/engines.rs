//! Records of hosts with the real engine, whose frames are messages for the network.
//!
//! A crossing is attributed to the oldest message from its sender to its receiver that has not
//! arrived. Crossings without such a message, such as those of acknowledgements, count for links
//! only. The frame that arrived last before a message was complete determines the message's
//! latency.

use std::collections::{HashMap, VecDeque};

use super::{Grant, NONE, Recorder, slot};

/// The recorder's state for engines.
#[derive(Clone, Debug, Default)]
pub(super) struct Engines {
    /// Number of copies of the topology, and number of links of each.
    rails: u32,
    links: u32,
    /// The rail of the following reports.
    rail: u32,
    /// Messages from one host to another that have not arrived, oldest first. Never iterated.
    in_flight: HashMap<(u32, u32), VecDeque<u32>>,
    /// Last crossings of frames that have just arrived, by the index of the frame among messages.
    arrived: Vec<(u32, u32)>,
}

impl Engines {
    pub(super) fn on_arrived(&mut self, frame: u32, crossing: u32) {
        self.arrived.push((frame, crossing));
    }
}

impl Recorder {
    /// Adds records of hosts with the real engine, on `rails` rails with `links` links each.
    #[must_use]
    pub fn with_engines(mut self, rails: u32, links: u32) -> Self {
        self.engines = Some(Box::new(Engines { rails, links, ..Engines::default() }));
        self
    }

    /// Sets the rail of the following reports.
    #[cold]
    pub(in super::super) fn set_rail(&mut self, rail: u32) {
        if let Some(engines) = &mut self.engines {
            engines.rail = rail;
        }
    }

    /// Records that an engine accepts a message.
    #[cold]
    pub(in super::super) fn on_taken(&mut self, message: u32, hosts: (u32, u32)) {
        if let Some(engines) = &mut self.engines {
            engines.in_flight.entry(hosts).or_default().push_back(message);
        }
    }

    /// Records that an engine sends a frame, which has the index `frame` among messages.
    #[cold]
    pub(in super::super) fn on_frame(&mut self, frame: u32, hosts: (u32, u32)) {
        let Some(engines) = &self.engines else { return };
        let oldest = engines.in_flight.get(&hosts).and_then(VecDeque::front);
        let record = oldest.and_then(|&message| self.record_of.get(message as usize).copied());
        *slot(&mut self.record_of, frame) = record.unwrap_or(NONE);
    }

    /// Records that a frame arrived at a host. If the frame was lost, `hosts` is `None`.
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

    /// Records that an engine reports a message as arrived.
    #[cold]
    pub(in super::super) fn on_notified(&mut self, message: u32, hosts: (u32, u32)) {
        let Some(engines) = &mut self.engines else { return };
        let Some(queue) = engines.in_flight.get_mut(&hosts) else { return };
        let is_first = queue.front() == Some(&message);
        queue.retain(|&other| other != message);
        let next = queue.front().copied().filter(|_| is_first);
        // Earlier frames were attributed to this message. They may have carried parts of the next
        // message too.
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

    /// Returns when a packet started to cross its first link.
    fn first_start_ps(&self, last: u32) -> Option<u64> {
        let mut crossing = self.crossings.get(last as usize)?;
        while let Some(previous) = crossing.previous {
            crossing = self.crossings.get(previous as usize)?;
        }
        Some(crossing.started_ps)
    }

    /// Returns the grant with numbers that are unique among rails.
    pub(super) fn of_rail(&self, grant: Grant) -> Grant {
        let Some(engines) = &self.engines else { return grant };
        Grant {
            packet: self.packet_of_rail(grant.packet),
            link: grant.link + engines.rail * engines.links,
            ..grant
        }
    }

    /// Returns the number of a packet that is unique among rails.
    pub(super) fn packet_of_rail(&self, packet: u32) -> u32 {
        self.engines.as_ref().map_or(packet, |engines| packet * engines.rails + engines.rail)
    }
}
