//! The LogGP model: no network at all, only what a message costs.
//!
//! A message of k bytes leaves its sender when both the processor and the interface there are free.
//! It takes the overhead o of the processor ([`HostCosts`](super::simulation::HostCosts)) and
//! g + (k − 1) G of the interface. Its first byte is at the receiver after o + L. It is received when
//! both are free there, too; then it takes the interface as long again, and the processor o and, if
//! [`LogGpConfiguration::holds_receiver`], all the (k − 1) G before. That is what `LogGOPSim` does,
//! with the same order where several things could begin: that which came about first, does.
//!
//! Without `holds_receiver` the processor works for o when the last byte is there, as in the model of
//! Alexandrov and others. Good for quick answers and for traces too long for anything finer.

use super::simulation::{Context, Fabric, Stuck};
use super::wheel::Event;

/// Parameters of the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogGpConfiguration {
    /// L, from the first byte sent to the first byte received, in picoseconds.
    pub latency_ps: u64,
    /// g, least time between the first bytes of two messages that one host sends, or receives, in
    /// picoseconds.
    pub gap_ps: u64,
    /// G, time of each byte but the first, in picoseconds.
    pub byte_ps: u64,
    /// The processor of the receiver does nothing else while bytes come in.
    pub holds_receiver: bool,
}

impl LogGpConfiguration {
    /// Returns the model of `LogGOPSim` with L, g and G, in picoseconds.
    pub const fn new(latency_ps: u64, gap_ps: u64, byte_ps: u64) -> Self {
        Self { latency_ps, gap_ps, byte_ps, holds_receiver: true }
    }

    /// From the first to the last byte of a message, in picoseconds.
    pub(super) const fn body_ps(&self, bytes: u32) -> u64 {
        self.byte_ps * bytes.saturating_sub(1) as u64
    }

    /// How long an interface is occupied by a message, in picoseconds.
    pub(super) const fn occupied_ps(&self, bytes: u32) -> u64 {
        self.gap_ps + self.body_ps(bytes)
    }
}

/// Hosts with a latency between them, and no network. Who sends and receives what when is the run's
/// ([`Fabric::loggp`]); messages go through here where processors are not held while bytes come in.
#[derive(Debug)]
pub struct LogGp {
    configuration: LogGpConfiguration,
    /// When the interface of each host can receive.
    free_ps: Vec<u64>,
}

impl LogGp {
    /// Creates so many hosts.
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

/// Marks places where the last byte of a message arrives; others are those of the first.
const LAST_BYTE: u32 = 1 << 29;

#[cfg(test)]
mod tests;
