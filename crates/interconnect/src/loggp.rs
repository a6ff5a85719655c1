//! The LogGP model: no network at all, only what a message costs.
//!
//! A message of k bytes leaves when the interface of its sender is free, occupies that for the gap g
//! and G for each byte, and arrives L after its first byte, with G for each further one. The
//! overheads o of the hosts are [`HostCosts`](super::simulation::HostCosts). Two events a message:
//! good for quick answers and for traces too long for anything finer.

use super::simulation::{Context, Fabric, Stuck};
use super::wheel::Event;

/// Parameters of the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogGpConfiguration {
    /// L, from the first byte sent to the first byte received, in picoseconds.
    pub latency_ps: u64,
    /// g, least time between two messages of one host, in picoseconds.
    pub gap_ps: u64,
    /// G, time of each byte, in picoseconds.
    pub byte_ps: u64,
}

/// Hosts with a latency between them, and no network.
#[derive(Debug)]
pub struct LogGp {
    configuration: LogGpConfiguration,
    free_ps: Vec<u64>,
    messages: u64,
}

impl LogGp {
    /// So many hosts.
    pub fn new(hosts: u32, configuration: LogGpConfiguration) -> Self {
        Self { configuration, free_ps: vec![0; hosts as usize], messages: 0 }
    }
}

impl Fabric for LogGp {
    fn inject(&mut self, context: &mut Context, index: u32) {
        let LogGpConfiguration { latency_ps, gap_ps, byte_ps } = self.configuration;
        let message = context.messages.get(index);
        let (source, bytes) = (message.source, u64::from(message.bytes));
        let free = &mut self.free_ps[source as usize];
        let start_ps = (*free).max(context.wheel.now_ps());
        let body_ps = byte_ps * bytes.saturating_sub(1);
        *free = start_ps + gap_ps.max(byte_ps * bytes);
        self.messages += 1;
        context.schedule(start_ps + latency_ps + body_ps, source, index);
    }

    fn handle(&mut self, context: &mut Context, event: Event) {
        context.deliver(event.subject);
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        Stuck::Silent { messages: context.messages.len() }
    }

    fn hops(&self) -> u64 {
        self.messages
    }

    fn slot_ps(&self) -> u64 {
        self.configuration.latency_ps / 256
    }
}
