//! Two hosts whose threads share their processors with others: the engine, an application thread and a
//! progress thread on each, as in the runtime, in virtual time.
//!
//! A thread of a host works only while the [scheduler](crate::scheduler) gives it a processor. It can lose the
//! processor anywhere, also inside the engine, where it then keeps the other thread out. When a thread spins
//! and when it sleeps is decided by a [`WaitRule`].

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
use crate::LinkModel;
use crate::scenario::TransferError;
use crate::scheduler::Settings;
use machine::Machine;

pub use busy::share_left;
pub use rule::{Policies, SpinAtMost, WaitRule};

/// How the application waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// It polls: completions, or its memory.
    Polls,
    /// It calls a function that returns when there is something for it.
    Waits,
}

impl Mode {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Polls => "polls",
            Self::Waits => "waits",
        }
    }
}

/// Two hosts, the other threads on them, and what they do.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    /// Both directions of each link.
    pub links: &'a [LinkModel],
    /// What is done.
    pub exercise: Exercise,
    /// How both applications wait.
    pub mode: Mode,
    /// Bytes of a write, at least 8.
    pub message_bytes: u32,
    /// Writes in flight in a stream.
    pub in_flight: u32,
    /// What the engine's work costs.
    pub costs: Costs,
    /// Processors of a host, and what switching between threads costs.
    pub processors: Settings,
    /// Threads of other programs on each host, each always busy.
    pub busy: usize,
    /// How long is measured, in nanoseconds, after a fifth of that.
    pub measured_ns: u64,
    /// Seed of the engines and of the busy threads.
    pub seed: u64,
}

/// What a trial came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Round trips, or writes of both directions together.
    pub operations: u64,
    /// The same per second.
    pub operations_per_second: f64,
    /// Of a ping-pong: half of each round trip, in nanoseconds, from the shortest to the longest.
    pub latencies_ns: Vec<u64>,
    /// Longest time without an operation, in nanoseconds.
    pub longest_gap_ns: u64,
    /// Processor time of each host's application and progress thread, in percent of one processor.
    pub processor_percent: [[f64; 2]; 2],
    /// Sleeps of the threads of both hosts.
    pub sleeps: u64,
    /// Times that a thread found another inside the engine.
    pub kept_out: u64,
}

impl Outcome {
    /// Returns the latency that so many in a hundred round trips did not exceed, in nanoseconds.
    pub fn latency_ns(&self, percent: usize) -> Option<u64> {
        let last = self.latencies_ns.len().checked_sub(1)?;
        self.latencies_ns.get(last * percent.min(100) / 100).copied()
    }
}

/// Runs a trial in virtual time. `rule` makes what each host's threads wait by.
///
/// # Errors
/// The connection cannot be made or ends, or nothing moves for ten seconds.
pub fn run(
    trial: &Trial<'_>,
    rule: &dyn Fn() -> Box<dyn WaitRule>,
) -> Result<Outcome, TransferError> {
    let mut machine = Machine::new(trial, rule)?;
    machine.connect()?;
    machine.measure(trial.busy, trial.measured_ns)
}
