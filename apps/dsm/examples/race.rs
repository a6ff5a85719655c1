//! A program with a data race, and the same without, for the race detector.
//!
//! `ethernot dsm run -n 3 -- target/debug/examples/race` has a race: the ranks count without a lock.
//! With the argument `locked` it has none.

use std::env;

use dsm::{Dsm, Options};

fn main() -> Result<(), dsm::Error> {
    let is_locked = env::args().nth(1).as_deref() == Some("locked");
    let dsm = Dsm::join(Options::new().detect_races())?;
    let counts = dsm.alloc::<u32>(2048)?;
    let own = 16 + dsm.rank();
    for round in 0..10 {
        // Each rank has an element of its own, in pages that all ranks change.
        counts.set(own, round);
        counts.set(own + 1024, round);
        dsm.fetch_add(dsm.slice_at(counts.as_ptr().addr() + 4096, 1)?, 0, 1)?;
        if is_locked {
            dsm.lock(1)?;
        }
        counts.set(3, counts.get(3) + dsm.rank() as u32 + 1);
        if is_locked {
            dsm.unlock(1)?;
        }
    }
    dsm.barrier()?;
    // Changes that a barrier orders are no race.
    if dsm.rank() == 0 {
        counts.set(17, 1000);
    }
    dsm.barrier()?;
    if is_locked {
        assert_eq!(counts.get(3) as usize, 10 * dsm.size() * (dsm.size() + 1) / 2);
    }
    assert_eq!((counts.get(17), counts.get(16 + 1024)), (1000, 9));
    assert_eq!(counts.get(1024) as usize, 10 * dsm.size());
    if dsm.rank() == 0 {
        println!("done ({})", dsm.method());
    }
    dsm.finalize()
}
