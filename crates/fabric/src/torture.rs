//! The torture harness: real engines on a hostile network, checked by an oracle.
//!
//! A seed determines hosts, links, faults, disasters and applications. A run has two phases. In the
//! first phase, faults occur, and the oracle checks *safety*. In the second phase, there are no
//! faults, and everything must converge (*liveness*):
//!
//! * Every connection is usable.
//! * Every operation has completed exactly once.
//! * Every message is delivered.
//! * Memory equals the model.
//!
//! An operation may fail only if its connection ends. A connection may end only for a known reason:
//! a host restarted, no path existed for a long time, or an access was not allowed.

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

use crate::edge_host::EdgeHost;
use crate::host::Tuning;

/// Runs `seed` with the real engine.
pub fn run(seed: u64, options: &Options) -> Report {
    run_with(seed, options, &|_, tuning| EdgeHost::new(&tuning))
}

/// Runs seeds one after another with the real engine; see [`run_range_with`].
pub fn run_range(
    seeds: core::ops::Range<u64>,
    options: &Options,
    progress: &mut dyn FnMut(&Report),
) -> Tally {
    run_range_with(seeds, options, &|_, tuning| EdgeHost::new(&tuning), progress)
}

/// Creates the engine of a host. The first argument is the index of the host.
pub type MakeEngine<'a, E> = dyn Fn(usize, Tuning) -> E + 'a;

#[cfg(test)]
mod bent;
#[cfg(test)]
pub(crate) mod plain;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod tests;
