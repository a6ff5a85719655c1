//! Simulates two hosts whose threads share processors with other threads, in virtual time. Each
//! host has the engine, an application thread and a progress thread, as in the runtime.
//!
//! A thread runs only when the [scheduler](crate::scheduler) gives it a processor. The thread can
//! lose its processor at any point, even inside the engine. Until it continues, the host's other
//! thread cannot enter the engine. A [`WaitRule`] decides when a thread spins and when it sleeps.

mod busy;
mod host;
mod machine;
mod program;
mod rule;
pub mod scenarios;
mod threads;

#[cfg(test)]
mod tests;

use super::{Costs, Exercise};
use crate::channel::LinkModel;
use crate::scenario::TransferError;
use crate::scheduler::Settings;
use machine::Machine;

pub use busy::share_left;
pub use rule::{Policies, SpinAtMost, WaitRule};

/// How the application waits for events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// The application polls for completions, or polls its memory.
    Polls,
    /// The application calls a function that returns when the application has an event.
    Waits,
}

impl Mode {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Polls => "polls",
            Self::Waits => "waits",
        }
    }
}

/// Two hosts, the other threads on them, and the transfer between the hosts.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// The links; each model applies to both directions.
    pub links: &'a [LinkModel],
    /// The transfer pattern.
    pub exercise: Exercise,
    /// How both applications wait.
    pub mode: Mode,
    /// Size of a write in bytes, at least 8.
    pub message_bytes: u32,
    /// Number of writes in flight in a stream.
    pub in_flight: u32,
    /// Processor costs of the engine's work.
    pub costs: Costs,
    /// Processors of a host, and the cost of switching between threads.
    pub processors: Settings,
    /// Number of threads of other programs on each host. These threads are always busy.
    pub busy: usize,
    /// Duration of the measurement, in nanoseconds. The warm-up before it takes a fifth of this
    /// time.
    pub measured_ns: u64,
    /// Seed of the engines and of the busy threads.
    pub seed: u64,
}

/// The results of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Number of round trips. For streams, the number of writes in both directions together.
    pub operations: u64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Half of each round-trip time of a ping-pong, in nanoseconds, in ascending order.
    pub latencies_ns: Vec<u64>,
    /// Longest time without a completed operation, in nanoseconds.
    pub longest_gap_ns: u64,
    /// Processor time of each host's application thread and progress thread, in percent of one
    /// processor.
    pub processor_percent: [[f64; 2]; 2],
    /// Number of times that threads of both hosts slept.
    pub sleeps: u64,
    /// Number of times that a thread found another thread inside the engine.
    pub kept_out: u64,
}

impl Outcome {
    /// Returns the latency that `percent` percent of the round trips do not exceed, in nanoseconds.
    pub fn latency_ns(&self, percent: usize) -> Option<u64> {
        let last = self.latencies_ns.len().checked_sub(1)?;
        self.latencies_ns.get(last * percent.min(100) / 100).copied()
    }
}

/// Runs a trial in virtual time. `rule` creates the wait rule of each host's threads.
///
/// # Errors
/// Returns [`TransferError`] if the connection cannot be established or ends, or if no operation
/// completes for ten seconds.
pub fn run(
    trial: &Trial<'_>,
    rule: &dyn Fn() -> Box<dyn WaitRule>,
) -> Result<Outcome, TransferError> {
    let mut machine = Machine::new(trial, rule)?;
    machine.connect()?;
    machine.measure(trial.busy, trial.measured_ns)
}
