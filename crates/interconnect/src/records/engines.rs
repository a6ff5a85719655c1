//! Records of hosts with the real engine. For the network, each frame of these hosts is a message.
//!
//! A crossing is attributed to the oldest message from its sender to its receiver that has not
//! arrived. If there is no such message, for example for acknowledgements, only the link counts the
//! crossing. The latency of a message is determined by the last frame that arrived before the
//! message was complete.

use std::collections::{HashMap, VecDeque};

use super::{Grant, NONE, Recorder, slot};

/// State of the recorder that only hosts with engines need.
#[derive(Clone, Debug, Default)]
pub(super) struct Engines {
    /// Number of rails (copies of the topology), and number of links of each rail.
    rails: u32,
    links: u32,
    /// Rail of the Ethernet that reports to the recorder now.
    rail: u32,
    /// For each two hosts, the messages from one to the other that have not arrived, oldest first.
    /// This map is used for look-ups only. The order of iteration differs between runs, so
    /// iterating the map would make runs differ.
    in_flight: HashMap<(u32, u32), VecDeque<u32>>,
    /// Last crossings of frames that have just arrived. Each entry has the frame's index among the
    /// messages of the network, and its last crossing.
    arrived: Vec<(u32, u32)>,
}

impl Engines {
    pub(super) fn on_arrived(&mut self, frame: u32, crossing: u32) {
        self.arrived.push((frame, crossing));
    }
}

impl Recorder {
    /// Prepares the recorder for hosts with the real engine, on `rails` rails with `links` links
    /// each.
    #[must_use]
    pub fn with_engines(mut self, rails: u32, links: u32) -> Self {
        self.engines = Some(Box::new(Engines { rails, links, ..Engines::default() }));
        self
    }

    /// Sets the rail to which later reports belong.
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

    /// Records that an engine sends a frame. `frame` is the frame's index among the messages of the
    /// network.
    #[cold]
    pub(in super::super) fn on_frame(&mut self, frame: u32, hosts: (u32, u32)) {
        let Some(engines) = &self.engines else { return };
        let oldest = engines.in_flight.get(&hosts).and_then(VecDeque::front);
        let record = oldest.and_then(|&message| self.record_of.get(message as usize).copied());
        *slot(&mut self.record_of, frame) = record.unwrap_or(NONE);
    }

    /// Records the end of a frame at its destination: the host has received the frame, or the frame
    /// was lost. `hosts` are the source and the destination of a received frame; `None` means that
    /// the frame was lost.
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

    /// Records that an engine has reported the arrival of a message.
    #[cold]
    pub(in super::super) fn on_notified(&mut self, message: u32, hosts: (u32, u32)) {
        let Some(engines) = &mut self.engines else { return };
        let Some(queue) = engines.in_flight.get_mut(&hosts) else { return };
        let is_first = queue.front() == Some(&message);
        queue.retain(|&other| other != message);
        let next = queue.front().copied().filter(|_| is_first);
        // Earlier frames were attributed to this message, but they can also have carried parts of
        // the next message. If no frame is attributed to the next message, that message therefore
        // gets the last of these frames.
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

    /// Returns the time when a packet started to cross its first link.
    fn first_start_ps(&self, last: u32) -> Option<u64> {
        let mut crossing = self.crossings.get(last as usize)?;
        while let Some(previous) = crossing.previous {
            crossing = self.crossings.get(previous as usize)?;
        }
        Some(crossing.started_ps)
    }

    /// Returns the grant with packet and link numbers that are unique among all rails.
    pub(super) fn of_rail(&self, grant: Grant) -> Grant {
        let Some(engines) = &self.engines else { return grant };
        Grant {
            packet: self.packet_of_rail(grant.packet),
            link: grant.link + engines.rail * engines.links,
            ..grant
        }
    }

    /// Returns a number for a packet that is unique among all rails.
    pub(super) fn packet_of_rail(&self, packet: u32) -> u32 {
        self.engines.as_ref().map_or(packet, |engines| packet * engines.rails + engines.rail)
    }
}
