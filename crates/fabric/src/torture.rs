//! The torture harness: real engines, a hostile network, an oracle that knows what must hold.
//!
//! From a seed come hosts, links, faults, disasters and applications. First everything goes wrong
//! for a while and the oracle watches (*safety*); then all faults end and everything must converge:
//! every connection usable, every operation completed exactly once, every message delivered, memory
//! equal to the model (*liveness*). An operation may fail only with its connection, and a connection
//! may end only for a reason: a host restarted, no path for long, an access that is not allowed.

mod causes;
mod churn;
mod classes;
mod datagrams;
mod emptiness;
mod end;
mod faulty;
mod forging;
mod full;
mod gates;
mod healing;
mod holes;
mod lies;
mod life;
mod load;
mod plan;
mod progress;
mod queue_pairs;
mod report;
mod run;
mod strangers;
mod turns;
mod unlike;
mod wrap;

pub use churn::{SoakReport, soak, soak_with};
pub use report::{Failure, Options, Report, Tally, run_range_with};
pub use run::run_with;

use crate::EdgeHost;
use crate::host::Tuning;

/// Runs `seed` with the real engine.
pub fn run(seed: u64, options: &Options) -> Report {
    run_with(seed, options, &|_, tuning| EdgeHost::new(&tuning))
}

/// Runs seeds one after the other with the real engine; see [`run_range_with`].
pub fn run_range(
    seeds: core::ops::Range<u64>,
    options: &Options,
    progress: &mut dyn FnMut(&Report),
) -> Tally {
    run_range_with(seeds, options, &|_, tuning| EdgeHost::new(&tuning), progress)
}

/// Makes the engine of a host; the first argument is the host's number.
pub type MakeEngine<'a, E> = dyn Fn(usize, Tuning) -> E + 'a;

#[cfg(test)]
mod bent;
#[cfg(test)]
pub(crate) mod plain;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod tests;
