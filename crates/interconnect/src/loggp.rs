//! The LogGP model: fixed costs per message, without a network.
//!
//! A message of k bytes leaves its sender when both processor and interface are free. At the
//! sender, the message occupies the processor for the overhead o
//! ([`HostCosts`](super::simulation::HostCosts)) and the interface for `g + (k − 1) G`. Its first
//! byte reaches the receiver after `o + L`. The receiver accepts the message when both its
//! processor and its interface are free. At the receiver, the message occupies the interface for
//! `g + (k − 1) G` and the processor for o. If [`LogGpConfiguration::holds_receiver`] is set, the
//! message also occupies the receiver's processor for `(k − 1) G` before o. These rules are the
//! model of `LogGOPSim`. If several tasks could start, the task that was created first starts
//! first, as in that simulator.
//!
//! Without `holds_receiver`, the processor works for o after the last byte has arrived, as in the
//! model of Alexandrov and others. The model is fast enough for traces that are too long for other
//! models.

use super::simulation::{Context, Fabric, Stuck};
use super::wheel::Event;

/// Parameters of the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogGpConfiguration {
    /// L: time from sending a byte to receiving it, in picoseconds.
    pub latency_ps: u64,
    /// g: minimum time between the starts of two messages at one interface, in picoseconds. Applies
    /// separately to sent and to received messages.
    pub gap_ps: u64,
    /// G: time of each byte after the first, in picoseconds.
    pub byte_ps: u64,
    /// Whether the receiving processor is busy while bytes arrive.
    pub holds_receiver: bool,
}

impl LogGpConfiguration {
    /// Returns the model of `LogGOPSim` with L, g and G, in picoseconds.
    pub const fn new(latency_ps: u64, gap_ps: u64, byte_ps: u64) -> Self {
        Self { latency_ps, gap_ps, byte_ps, holds_receiver: true }
    }

    /// Returns the time between the first and the last byte of a message, in picoseconds.
    pub(super) const fn body_ps(&self, bytes: u32) -> u64 {
        self.byte_ps * bytes.saturating_sub(1) as u64
    }

    /// Returns how long a message occupies an interface, in picoseconds.
    pub(super) const fn occupied_ps(&self, bytes: u32) -> u64 {
        self.gap_ps + self.body_ps(bytes)
    }
}

/// Hosts with a latency between them and no network. If `holds_receiver` is set, the run itself
/// orders sends and receptions, and messages do not pass through this fabric ([`Fabric::loggp`]).
/// Otherwise messages pass through this fabric.
#[derive(Debug)]
pub struct LogGp {
    configuration: LogGpConfiguration,
    /// For each host, the time when its interface can receive the next message.
    free_ps: Vec<u64>,
}

impl LogGp {
    /// Creates `hosts` hosts.
    pub fn new(hosts: u32, configuration: LogGpConfiguration) -> Self {
        Self { configuration, free_ps: vec![0; hosts as usize] }
    }
}

impl Fabric for LogGp {
    fn inject(&mut self, context: &mut Context, index: u32) {
        let source = context.messages.get(index).source;
        let arrived_ps = context.wheel.now_ps() + self.configuration.latency_ps;
        context.schedule(arrived_ps, source, index);
    }

    fn handle(&mut self, context: &mut Context, event: Event) {
        if event.place & LAST_BYTE != 0 {
            context.deliver(event.subject);
            return;
        }
        let message = context.messages.get(event.subject);
        let free = &mut self.free_ps[message.destination as usize];
        let start_ps = (*free).max(event.time_ps);
        *free = start_ps + self.configuration.occupied_ps(message.bytes);
        let end_ps = start_ps + self.configuration.body_ps(message.bytes);
        context.schedule(end_ps, LAST_BYTE | event.place, event.subject);
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        Stuck::Silent { messages: context.messages.len() }
    }

    fn loggp(&self) -> Option<LogGpConfiguration> {
        Some(self.configuration)
    }

    fn hops(&self) -> u64 {
        0
    }

    fn slot_ps(&self) -> u64 {
        self.configuration.latency_ps / 256
    }
}

/// Flag in `Event::place`: the event is the arrival of a message's last byte. Without the flag, the
/// event is the arrival of a message's first byte.
const LAST_BYTE: u32 = 1 << 29;

#[cfg(test)]
mod tests;
