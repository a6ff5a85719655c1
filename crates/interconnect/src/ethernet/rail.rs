//! Functions for a fabric that uses Ethernets as rails: links that fail, the backlog of hosts, and
//! restarts.

use super::adaptive::Adaptive;
use super::backlog::Backlog;
use super::queues::Queues;
use super::{ENGINE, Ethernet, EthernetConfiguration, Forwarding, Nic, QUEUE};

impl Ethernet {
    /// Sets a link of the first rail down or up. A link that is down loses the frames that would
    /// enter or leave it. The sending node uses another of its equal routes, if there is one.
    pub fn set_link(&mut self, link: u32, is_up: bool) {
        self.down.resize(self.ports.len(), false);
        self.down[link as usize] = !is_up;
        self.is_plain = self.can_be_plain();
    }

    /// Returns whether the network uses no optional feature. Frames then meet only links and
    /// unlimited queues.
    pub(super) fn can_be_plain(&self) -> bool {
        let EthernetConfiguration { forwarding, buffer_bytes, host_frame_interval_ps, nic, .. } =
            self.configuration;
        self.queues.is_none()
            && self.adaptive.is_none()
            && self.exchange.is_none()
            && !self.has_transport()
            && self.down.is_empty()
            && nic.rails == 1
            && self.jitter.is_none()
            && buffer_bytes == 0
            && self.cables.is_empty()
            && host_frame_interval_ps == 0
            && forwarding == Forwarding::StoreAndForward
    }

    #[inline]
    pub(super) fn is_down(&self, port: u32) -> bool {
        !self.down.is_empty() && self.down[port as usize]
    }

    /// Returns the time when all frames that a host has handed to its first port will have left, in
    /// picoseconds. The time assumes that no pause delays the frames.
    #[inline]
    pub fn host_free_ps(&self, host: u32) -> u64 {
        self.drained_ps(self.routes.host_link(host) ^ 1)
    }

    /// Resets the rail to its state at the start of the run: queues are empty, all links are up,
    /// and counters are 0.
    ///
    /// # Panics
    /// Panics if a frame is in flight.
    pub fn restart(&mut self) {
        assert!(self.frames.is_empty(), "{} frames are still in flight", self.frames.len());
        for port in &mut self.ports {
            port.free_ps = 0;
            port.bytes = 0;
        }
        self.engines_ps.fill(0);
        self.nics.fill(Nic::default());
        if self.adaptive.is_some() {
            let switches = self.engines_ps.len() as u32;
            self.adaptive = Some(Box::new(Adaptive::new(&self.configuration, switches)));
        }
        self.backlogs.fill(Backlog::default());
        if self.queues.is_some() {
            self.queues = Some(Box::new(Queues::new(self)));
        }
        self.reset_jitter();
        self.dropped.clear();
        self.down.clear();
        self.is_plain = self.can_be_plain();
        self.hops = 0;
    }

    /// Loads the memory that an event needs into the cache. Returns a value from this memory, and
    /// the frame's message if the frame is at its destination.
    #[inline]
    pub(in super::super) fn touch(&self, place: u32, subject: u32) -> (u32, Option<u32>) {
        if place & (ENGINE | QUEUE) != 0 {
            return (0, None);
        }
        let frame = self.frames.get(subject);
        let is_last = self.ends[place as usize].node() < self.hosts;
        (frame.bytes, is_last.then_some(frame.message))
    }
}
