//! The report of a torture run.

use core::fmt;

use delivery::Instant;

use super::plan::Plan;
use crate::host::HostEngine;
use crate::network::Counters;
use crate::oracle::Violation;
use crate::trace::TraceEntry;

/// Options for running a seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether each seed runs twice. The trace hashes of the two runs are then compared.
    pub twice: bool,
    /// Number of trace events that are kept to report a failure.
    pub tail_entries: usize,
    /// Number of runs of engines between two comparisons of all memory of a host with the model; at
    /// least 1. Only runs in which a host has handled a frame count.
    pub compare_interval_turns: u64,
    /// Whether seeds select classes of scenario in addition to their plan. False for seeds that
    /// were recorded before classes existed.
    pub classes: bool,
    /// Whether connections are queue pairs.
    pub queue_pairs: bool,
    /// Number of busy threads per processor. These threads share the processors with the engine
    /// thread of each host. With `None`, the engine thread always has a processor.
    pub load: Option<u8>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            twice: true,
            tail_entries: 40,
            compare_interval_turns: 64,
            classes: true,
            queue_pairs: false,
            load: None,
        }
    }
}

impl Options {
    /// Returns the command that runs a seed with these options again.
    pub(super) fn again(&self, seed: u64) -> String {
        let mode = if self.queue_pairs { " --queue-pairs" } else { "" };
        let load = self.load.map_or_else(String::new, |load| format!(" --load {load}"));
        format!("ethernot sim torture --seeds {seed}..{}{mode}{load}", seed + 1)
    }
}

/// Results of one seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash of the trace.
    pub trace_hash: u64,
    /// Number of events in the trace.
    pub events: u64,
    /// Virtual time at the end, in nanoseconds.
    pub virtual_ns: u64,
    /// Classes of scenario that the seed has selected in addition to its plan.
    pub classes: Vec<&'static str>,
    /// Number of operations posted.
    pub operations: u64,
    /// Number of operations that succeeded.
    pub completed: u64,
    /// Number of messages and notifications delivered.
    pub delivered: u64,
    /// Number of connections established. Each is counted once, at the requesting side.
    pub connections: u64,
    /// Counters of the network.
    pub network: Counters,
    /// The failure; `None` if the run succeeded.
    pub failure: Option<Failure>,
}

/// A violated guarantee, and the data to reproduce the violation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The violation.
    pub violation: Violation,
    /// Virtual time when the violation was found.
    pub time: Instant,
    /// The command that repeats the run.
    pub again: String,
    /// The plan of the run, as text.
    pub plan: String,
    /// The last events before the violation, oldest first.
    pub tail: Vec<TraceEntry>,
}

impl Failure {
    pub(super) fn without_tail(
        seed: u64,
        options: &Options,
        violation: Violation,
        time_ns: u64,
    ) -> Self {
        let plan = format!("{:?}", Plan::of_seed(seed, options));
        let again = options.again(seed);
        Self { violation, time: Instant(time_ns), again, plan, tail: Vec::new() }
    }
}

impl Report {
    /// Creates the report of a seed that failed without a result, for example after a panic.
    pub(super) fn of_failure(seed: u64, options: &Options, failure: Failure) -> Self {
        Self {
            seed,
            classes: Plan::of_seed(seed, options).classes.names(),
            trace_hash: 0,
            events: 0,
            virtual_ns: 0,
            operations: 0,
            completed: 0,
            delivered: 0,
            connections: 0,
            network: Counters::default(),
            failure: Some(failure),
        }
    }
}

impl Report {
    /// Returns the names of the selected classes as text.
    fn drawn(&self) -> String {
        if self.classes.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.classes.join(", "))
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(failure) = &self.failure else {
            return write!(
                f,
                "seed {}: {} operations, {} delivered, {} frames, {} events, {:.3} s, trace {:016x}{}",
                self.seed,
                self.completed,
                self.delivered,
                self.network.sent,
                self.events,
                self.virtual_ns as f64 / 1e9,
                self.trace_hash,
                self.drawn()
            );
        };
        let Self { seed, .. } = self;
        let Failure { time, violation, .. } = failure;
        writeln!(f, "seed {seed} failed at {time:?}: {violation}{}", self.drawn())?;
        writeln!(f, "again: {}", failure.again)?;
        writeln!(f, "plan: {}", failure.plan)?;
        writeln!(f, "last events:")?;
        for entry in &failure.tail {
            writeln!(f, "  {entry}")?;
        }
        Ok(())
    }
}

/// Totals over many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of seeds run.
    pub seeds: u64,
    /// Number of operations that succeeded.
    pub completed: u64,
    /// Number of messages and notifications delivered.
    pub delivered: u64,
    /// Number of frames sent.
    pub frames: u64,
    /// Virtual time in nanoseconds.
    pub virtual_ns: u64,
    /// Reports of the seeds that failed.
    pub failures: Vec<Report>,
}

impl Tally {
    /// Adds the report of a seed.
    pub fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.completed += report.completed;
        self.delivered += report.delivered;
        self.frames += report.network.sent;
        self.virtual_ns += report.virtual_ns;
        if report.failure.is_some() {
            self.failures.push(report);
        }
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.completed += other.completed;
        self.delivered += other.delivered;
        self.frames += other.frames;
        self.virtual_ns += other.virtual_ns;
        self.failures.extend(other.failures);
    }
}

/// Runs seeds one after another, and passes each report to `progress`. A caller with several
/// threads gives each thread a range of seeds, and merges the tallies.
pub fn run_range_with<E: HostEngine>(
    seeds: core::ops::Range<u64>,
    options: &Options,
    make: &super::MakeEngine<'_, E>,
    progress: &mut dyn FnMut(&Report),
) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let report = super::run_with(seed, options, make);
        progress(&report);
        tally.add(report);
    }
    tally
}
