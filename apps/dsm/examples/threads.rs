//! Three threads on each rank, allocations with given homes, and lists that a rank makes alone.
//!
//! `ethernot dsm run -n 2 -- target/debug/examples/threads` runs it with six threads. With the argument
//! `panic`, one of them panics.

use std::env;

use dsm::{Allocation, Dsm, DsmSlice, Home, Options};

/// Threads of each rank, and elements of each thread.
const THREADS: usize = 3;
const ELEMENTS: usize = 700;

type Outcome = Result<(), dsm::Error>;

fn main() -> Outcome {
    let options = Options::new().threads(THREADS).local_bytes(1 << 20);
    let dsm = Dsm::join(options)?;
    if env::args().nth(1).as_deref() == Some("panic") {
        dsm.scope(|thread| {
            assert!((dsm.rank(), thread) != (1, 2), "as the argument asks");
            dsm.barrier()
        });
    }
    homes(&dsm)?;
    let values = dsm.alloc::<u64>(dsm.size() * THREADS * ELEMENTS)?;
    let counts = dsm.alloc::<u64>(1024)?;
    let sum = dsm.mutex::<u64>()?;
    // Each thread of a scope is a new one; the numbers are used again.
    for round in 1..=3 {
        let outcomes = dsm.scope(|thread| -> Outcome {
            let own = (dsm.rank() * THREADS + thread) * ELEMENTS..;
            for (index, value) in own.zip((0..ELEMENTS as u64).map(|value| value * round)) {
                values.set(index, value);
            }
            dsm.barrier()?;
            // Each thread reads what the next one has written.
            let next = (dsm.rank() * THREADS + thread + 1) % (dsm.size() * THREADS);
            for index in 0..ELEMENTS {
                assert_eq!(values.get(next * ELEMENTS + index), index as u64 * round);
            }
            *sum.lock()? += round;
            dsm.fetch_add(counts, 0, 1)?;
            dsm.barrier()
        });
        outcomes.into_iter().collect::<Outcome>()?;
    }
    let all = (dsm.size() * THREADS) as u64;
    assert_eq!((*sum.lock()?, dsm.load(counts, 0)?), (all * (1 + 2 + 3), all * 3));
    local_lists(&dsm)?;
    if dsm.rank() == 0 {
        println!("{all} threads are right ({})", dsm.method());
    }
    dsm.finalize()
}

/// Checks that the pages of allocations have the homes that were asked for.
fn homes(dsm: &Dsm) -> Outcome {
    let size = dsm.size();
    let home_of = |slice: DsmSlice<'_, u8>, page: usize| {
        dsm.home_of(slice.as_ptr().addr() + page * 4096).map(Option::unwrap)
    };
    let at = |home| dsm.alloc_with::<u8>(8 * 4096 - 100, Allocation::new().home(home));
    let (last, turns, blocks) =
        (at(Home::Rank(size - 1))?, at(Home::Interleaved)?, at(Home::Blocks)?);
    for page in 0..8 {
        let expected = [size - 1, page % size, page * size / 8];
        for (slice, expected) in [last, turns, blocks].into_iter().zip(expected) {
            // A rank knows the homes of pages that it has used.
            assert_eq!(slice.get(page * 4096), 0);
            assert_eq!(home_of(slice, page)?, expected, "page {page} of {slice:?}");
        }
    }
    let aligned = dsm.alloc_with::<u8>(3, Allocation::new().align(1 << 16))?;
    assert!(aligned.as_ptr().addr().is_multiple_of(1 << 16));
    for align in [3, 1 << 46] {
        let allocation = Allocation::new().align(align);
        let error = dsm.alloc_with::<u8>(3, allocation).unwrap_err().to_string();
        assert!(error.contains("power of two up to 1 GiB"), "{error}");
    }
    let error = at(Home::Rank(size)).unwrap_err().to_string();
    assert!(error.contains(&format!("rank below {size}")), "{error}");
    Ok(())
}

/// Each rank makes elements alone, and publishes their address.
fn local_lists(dsm: &Dsm) -> Outcome {
    let heads = dsm.alloc::<u64>(dsm.size())?;
    let own = dsm.alloc_local::<u64>(dsm.rank() + 1)?;
    for index in 0..own.len() {
        own.set(index, (dsm.rank() * 10 + index) as u64);
    }
    heads.set(dsm.rank(), own.as_ptr().addr() as u64);
    let meet = || dsm.barrier_named("lists", dsm.size() as u32);
    meet()?;
    for rank in 0..dsm.size() {
        let list = dsm.slice_at::<u64>(heads.get(rank) as usize, rank + 1)?;
        assert_eq!(list.get(rank), (rank * 10 + rank) as u64);
    }
    let error = dsm.alloc_local::<u64>(1 << 20).unwrap_err().to_string();
    assert!(error.contains("Options::local_bytes"), "{error}");
    meet()
}
