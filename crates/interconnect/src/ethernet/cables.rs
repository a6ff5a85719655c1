//! Rates, propagation delays and buffers of cables that have their own settings.

use super::super::topology::{LinkKind, Topology};
use super::{Ethernet, EthernetConfiguration, byte_time};

/// Limits of a link, from the settings of its cable.
#[derive(Clone, Copy, Debug)]
pub(super) struct CableLimits {
    /// Serialisation time of a byte, in 1/256 ps.
    byte_time: u32,
    propagation_ps: u64,
    /// Buffer of the output port, in bytes, as in [`EthernetConfiguration::buffer_bytes`].
    buffer_bytes: u64,
}

impl CableLimits {
    /// Returns the limits of each link of a topology; empty if no cable has its own settings.
    pub(super) fn of_links(
        topology: &Topology,
        configuration: &EthernetConfiguration,
    ) -> Vec<Self> {
        if !topology.has_cable_settings() {
            return Vec::new();
        }
        let links = (0..).zip(topology.links());
        let of = |(number, link): (u32, &super::super::topology::Link)| {
            let settings = topology.cable_settings(number);
            let rate_bps = match link.kind {
                LinkKind::Host => configuration.host_rate_bps,
                LinkKind::Switch { .. } => configuration.trunk_rate_bps,
            };
            Self {
                byte_time: byte_time(settings.rate_bps.unwrap_or(rate_bps)),
                propagation_ps: settings.propagation_ps.unwrap_or(configuration.propagation_ps),
                buffer_bytes: settings.buffer_bytes.unwrap_or(configuration.buffer_bytes),
            }
        };
        links.map(of).collect()
    }
}

impl Ethernet {
    /// Returns the serialisation time of a byte at a port, in 1/256 ps.
    #[inline]
    pub(super) fn byte_time(&self, port: u32) -> u32 {
        match self.cables.get(port as usize) {
            Some(cable) => cable.byte_time,
            None => self.byte_times[usize::from(self.ends[port as usize].is_trunk())],
        }
    }

    /// Returns the propagation delay of a port's link, in picoseconds.
    #[inline]
    pub(super) fn propagation_ps(&self, port: u32) -> u64 {
        let cable = self.cables.get(port as usize);
        cable.map_or(self.configuration.propagation_ps, |cable| cable.propagation_ps)
    }

    /// Returns the buffer limit of an output port, in bytes; 0 means no limit.
    #[inline]
    pub(super) fn buffer_bytes(&self, port: u32) -> u64 {
        let cable = self.cables.get(port as usize);
        cable.map_or(self.configuration.buffer_bytes, |cable| cable.buffer_bytes)
    }

    /// Returns whether any output port has a buffer limit.
    pub(super) fn has_buffer_limits(&self) -> bool {
        self.configuration.buffer_bytes > 0
            || self.cables.iter().any(|cable| cable.buffer_bytes > 0)
    }

    /// Returns the serialisation times of a byte, in 1/256 ps: on the fastest link, and on the
    /// slowest link.
    pub(super) fn byte_time_bounds(&self) -> (u32, u32) {
        let times = || (0..self.ports.len() as u32).map(|port| self.byte_time(port));
        (times().min().unwrap_or_default(), times().max().unwrap_or_default())
    }
}
