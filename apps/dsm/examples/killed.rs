//! What the other ranks do when one is killed: each prints which rank has died, and ends.

use std::process;

use dsm::{Dsm, Options};

fn main() -> Result<(), dsm::Error> {
    let dsm = Dsm::join(Options::new())?;
    let values = dsm.alloc::<u64>(1024)?;
    values.set(dsm.rank(), 1);
    dsm.barrier()?;
    if dsm.rank() == 1 {
        // Ends as by a crash: no destructor runs.
        process::abort();
    }
    dsm.barrier()?;
    unreachable!("rank 1 does not come to the barrier");
}
