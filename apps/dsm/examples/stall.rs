//! A rank that waits for a change of plain memory, which it never sees, for the watchdog.
//!
//! `ethernot dsm run -n 2 -- target/debug/examples/stall` reports the page. With the argument `event`
//! the program waits as it should; with `busy` a rank is only late.

use std::env;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dsm::{Allocation, Dsm, Home, Options};

/// Whether the watchdog has reported a stall of this rank.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

fn main() -> Result<(), dsm::Error> {
    let case = env::args().nth(1).unwrap_or_default();
    let options = Options::new().watchdog(Some(Duration::from_millis(300)));
    let dsm = Dsm::join(options.on_stall(|stall| {
        eprintln!("watchdog: {stall}");
        IS_REPORTED.store(true, Ordering::Relaxed);
    }))?;
    // If rank 1 were the home, it would see the changes of rank 0 at once.
    let home = Allocation::new().home(Home::Rank(0));
    let flags = dsm.alloc_with::<u64>(1024, home)?;
    let other = dsm.alloc_with::<u64>(1024, home)?;
    let is_set = dsm.event()?;
    // In the second barrier at the latest, rank 0 learns that it shares the pages, and the copies of
    // rank 1 become invalid once more. After that they stay valid.
    for _ in 0..3 {
        if dsm.rank() == 1 {
            assert_eq!((flags.get(0), other.get(0)), (0, 0));
        }
        dsm.barrier()?;
    }
    if dsm.rank() == 0 {
        flags.set(0, 1);
        other.set(0, 1);
        is_set.set()?;
    } else {
        match case.as_str() {
            "event" => {
                is_set.wait()?;
                assert_eq!(flags.get(0), 1);
            }
            "busy" => wait_for(|| false),
            _ => wait_for(|| flags.get(0) == 1),
        }
    }
    dsm.barrier()?;
    assert_eq!(flags.get(0), 1);
    if dsm.rank() == 0 {
        println!("done ({})", dsm.method());
    }
    dsm.finalize()
}

/// Spins until a condition is met, or until the watchdog has reported this.
fn wait_for(is_met: impl Fn() -> bool) {
    while !is_met() && !IS_REPORTED.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
}
