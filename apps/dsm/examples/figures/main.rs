//! Measures the shared memory against what it stands on, in one run and in turn, for
//! `tests/processes/speeds.rs`. Each rank is started with the name of the measurement; rank 0 prints figures.

#![expect(clippy::disallowed_methods, reason = "measures")]

mod fetches;
mod latencies;
mod native;
mod ratios;
mod sparse;
mod stencil;

use std::env;
use std::error::Error;

use dsm::{Dsm, Options};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = env::args().skip(1);
    let what = arguments.next().ok_or("usage: figures MEASUREMENT")?;
    if what == "sparse" {
        return sparse::run();
    }
    let dsm = Dsm::join(Options::new())?;
    match what.as_str() {
        "fetch" => fetches::run(&dsm)?,
        "lock" => latencies::locks(&dsm)?,
        "barrier" => latencies::barriers(&dsm)?,
        "stencil" => stencil::run(&dsm)?,
        other => return Err(format!("there is no measurement `{other}`").into()),
    }
    dsm.finalize()?;
    Ok(())
}
