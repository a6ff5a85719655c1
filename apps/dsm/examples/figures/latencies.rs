//! Locks and barriers, against the latency of a native write of 8 bytes.

use std::error::Error;
use std::thread;
use std::time::Instant;

use dsm::Dsm;

use crate::native::Native;
use crate::ratios;

/// Rounds; each has so many round trips of native writes.
const ROUNDS: u64 = 30;
const ROUND_TRIPS: u64 = 500;

/// Locks and barriers of a round.
const CALLS: u64 = 500;

/// Ranks 0 and 1 hand a lock to each other: each holds it until the other waits for it. The time
/// of a handover is that from the release to the acquisition by the other rank.
pub(super) fn locks(dsm: &Dsm) -> Result<(), Box<dyn Error>> {
    let native = Native::connect(dsm)?;
    let held = dsm.alloc::<f64>(2 * 512)?;
    let mut found = Vec::new();
    let (mut of_locks, mut of_writes) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let one_way = one_way_time(dsm, native.as_ref(), round)?;
        dsm.barrier()?;
        let before = dsm.counters().handovers;
        let mut held_ns = 0.0;
        let begin = Instant::now();
        for call in 1..=CALLS {
            dsm.lock(LOCK)?;
            let acquired = Instant::now();
            // After the last call of this rank, the other rank may have none.
            while call < CALLS && !dsm.is_lock_awaited(LOCK) {
                // The other rank may need the processor.
                thread::yield_now();
            }
            held_ns += acquired.elapsed().as_nanos() as f64;
            dsm.unlock(LOCK)?;
        }
        let handovers = (dsm.counters().handovers - before) as f64;
        held.set(dsm.rank() * 512, held_ns);
        dsm.barrier()?;
        let elapsed = begin.elapsed().as_nanos() as f64;
        let both = held.get(0) + held.get(512);
        // The other rank hands the lock over as often.
        let time = (elapsed - both) / (2.0 * handovers);
        dsm.barrier()?;
        found.push(time / one_way);
        of_locks.push(time);
        of_writes.push(one_way);
        if handovers < (CALLS - 1) as f64 {
            return Err(format!("the lock was handed over {handovers} times in {CALLS}").into());
        }
    }
    if dsm.rank() == 0 {
        let (lock, write) = (ratios::median(&mut of_locks), ratios::median(&mut of_writes));
        println!("lock {lock:.0} ns, write {write:.0} ns");
        ratios::print("lock from node to node against a write", &mut found);
    }
    Ok(())
}

/// All ranks wait at barriers.
pub(super) fn barriers(dsm: &Dsm) -> Result<(), Box<dyn Error>> {
    let native = Native::connect(dsm)?;
    let mut found = Vec::new();
    let (mut of_barriers, mut of_writes) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let one_way = one_way_time(dsm, native.as_ref(), round)?;
        dsm.barrier()?;
        let begin = Instant::now();
        for _ in 0..CALLS {
            dsm.barrier()?;
        }
        let time = begin.elapsed().as_nanos() as f64 / CALLS as f64;
        found.push(time / one_way);
        of_barriers.push(time);
        of_writes.push(one_way);
    }
    if dsm.rank() == 0 {
        let (barrier, write) = (ratios::median(&mut of_barriers), ratios::median(&mut of_writes));
        println!("barrier {barrier:.0} ns, write {write:.0} ns");
        let figure = format!("barrier of {} nodes against a write", dsm.size());
        ratios::print(&figure, &mut found);
    }
    Ok(())
}

/// Returns the time of a native write of 8 bytes on ranks 0 and 1, and 1 on others, which wait
/// meanwhile.
fn one_way_time(dsm: &Dsm, native: Option<&Native>, round: u64) -> Result<f64, Box<dyn Error>> {
    dsm.barrier()?;
    let Some(native) = native else { return Ok(1.0) };
    let first = 1 + round * ROUND_TRIPS;
    native.one_way_time(dsm.rank() == 0, first..first + ROUND_TRIPS)
}

const LOCK: u64 = 64;
