//! Ranks that change different words of one page, for `ethernot dsm top`. Ends when the standard input
//! of rank 0 ends.
//!
//! `ethernot dsm run -n 2 -- target/debug/examples/false_sharing`, and beside it `ethernot dsm top`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dsm::{Dsm, Options};

fn main() -> Result<(), dsm::Error> {
    let dsm = Dsm::join(Options::new())?;
    let counts = dsm.alloc::<u64>(1024)?;
    let has_ended = dsm.alloc::<u64>(1024)?;
    let total = dsm.mutex::<u64>()?;
    let has_input_ended = Arc::new(AtomicBool::new(dsm.rank() != 0));
    if dsm.rank() == 0 {
        let has_input_ended = Arc::clone(&has_input_ended);
        thread::spawn(move || {
            // An error ends the input, too.
            let _error = io::copy(&mut io::stdin(), &mut io::sink());
            has_input_ended.store(true, Ordering::Relaxed);
        });
    }
    while has_ended.get(0) == 0 {
        counts.set(dsm.rank(), counts.get(dsm.rank()) + 1);
        *total.lock()? += 1;
        dsm.barrier()?;
        if dsm.rank() == 0 && has_input_ended.load(Ordering::Relaxed) {
            has_ended.set(0, 1);
        }
        dsm.barrier()?;
    }
    let rounds = counts.get(0);
    assert_eq!((counts.get(dsm.rank()), *total.lock()?), (rounds, rounds * dsm.size() as u64));
    dsm.finalize()
}
