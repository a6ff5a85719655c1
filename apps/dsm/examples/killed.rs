//! What the other ranks do when one is killed: each prints which rank has died, and ends.
//!
//! The argument says where rank 1 dies: in a `barrier`, when it `holds` a lock, when it `waits` for
//! a lock, or in the `release` of many changes. With `stopped`, rank 1 does not answer any more.

#![expect(clippy::disallowed_methods, reason = "a rank dies while others wait")]

use std::time::Duration;
use std::{env, thread};

use dsm::{Dsm, Options};

/// Pages of 4 KiB that rank 1 changes: 16 MiB, whose release takes longer than rank 1 lives.
const PAGES: usize = 4096;
const WORDS: usize = 1024;

fn main() -> Result<(), dsm::Error> {
    let place = env::args().nth(1).unwrap_or_default();
    let dsm = Dsm::join(Options::new())?;
    let rank = dsm.rank();
    let values = dsm.alloc::<u32>(PAGES * WORDS)?;
    let count = dsm.mutex::<u64>()?;
    let pages = if place == "release" && rank == 0 { PAGES } else { 0 };
    // Rank 0 becomes the home of the pages.
    (0..pages).for_each(|page| values.set(page * WORDS, 1));
    let holder = usize::from(place == "holds");
    let guard = (rank == holder).then(|| count.lock()).transpose()?;
    dsm.barrier()?;
    match (place.as_str(), rank) {
        ("holds", 1) => {
            // Meanwhile, the others come to the lock.
            thread::sleep(AT_WORK);
            end(libc::SIGKILL);
        }
        ("stopped", 1) => end(libc::SIGSTOP),
        ("waits", 1) => {
            end_soon(AT_WORK);
            drop(count.lock()?);
        }
        ("release", 1) => {
            dsm.prefetch(values)?;
            for index in (0..PAGES * WORDS).step_by(2) {
                values.set(index, 2);
            }
            end_soon(Duration::from_millis(3));
            dsm.barrier()?;
        }
        ("barrier", 1) => {
            end_soon(AT_WORK);
            dsm.barrier()?;
        }
        ("holds" | "waits", 2) => drop(count.lock()?),
        // Rank 0 comes to the barrier when rank 1 is dead.
        ("barrier" | "waits", 0) => thread::sleep(AT_WORK * 10),
        _ => {}
    }
    drop(guard);
    dsm.barrier()?;
    unreachable!("rank 1 does not come to the barrier");
}

/// Kills this process after a time, in which it is busy with a call.
fn end_soon(time: Duration) {
    thread::spawn(move || {
        thread::sleep(time);
        end(libc::SIGKILL);
    });
}

/// Ends by a signal, such as that of `kill -9`: no destructor runs.
fn end(signal: i32) {
    // SAFETY: the call takes numbers only.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Time until rank 1 dies.
const AT_WORK: Duration = Duration::from_millis(200);
