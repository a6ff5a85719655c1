//! Fetches of absent pages, against native reads of as many bytes.

use std::error::Error;
use std::time::Instant;

use dsm::Dsm;

use crate::native::Native;
use crate::ratios;

/// Rounds, and pages and reads of each.
const ROUNDS: usize = 60;
const PAGES: usize = 32;

/// Elements of a page.
const STEP: usize = 4096 / 8;

/// Rank 0 is the home of all pages. Rank 1 reads each page once, from the last to the first: nothing
/// is read ahead, so that each read faults.
pub(super) fn run(dsm: &Dsm) -> Result<(), Box<dyn Error>> {
    let count = ROUNDS * PAGES;
    let values = dsm.alloc::<u64>(count * STEP)?;
    let native = Native::connect(dsm)?;
    if dsm.rank() == 0 {
        for page in 0..count {
            values.set(page * STEP, page as u64 + 1);
        }
    }
    dsm.barrier()?;
    if dsm.rank() == 1 {
        let native = native.as_ref().ok_or("rank 1 is connected")?;
        let mut found = Vec::new();
        let (mut of_fetches, mut of_reads) = (Vec::new(), Vec::new());
        let before = dsm.counters();
        for round in 0..ROUNDS {
            // The first of each wakes the other end.
            let mut reads = (0..PAGES as u64).map(|index| native.time_of_read(index));
            let reads = reads.by_ref().collect::<Result<Vec<_>, _>>()?;
            let fetch = |page: usize| {
                let begin = Instant::now();
                let value = values.get(page * STEP);
                let time = begin.elapsed().as_nanos() as f64;
                assert_eq!(value, page as u64 + 1);
                time
            };
            let mut fetches: Vec<f64> =
                (0..PAGES).map(|page| fetch(count - 1 - round * PAGES - page)).collect();
            let (read, fetch) = (
                ratios::median(&mut reads.into_iter().skip(1).collect::<Vec<_>>()),
                ratios::median(&mut fetches[1..]),
            );
            found.push(fetch / read);
            of_reads.push(read);
            of_fetches.push(fetch);
        }
        let after = dsm.counters();
        if after.faults - before.faults != count as u64 {
            return Err(
                format!("{} faults, and {count} reads", after.faults - before.faults).into()
            );
        }
        println!(
            "fetch {:.0} ns, read {:.0} ns; {} faults, {} fetches",
            ratios::median(&mut of_fetches),
            ratios::median(&mut of_reads),
            after.faults - before.faults,
            after.fetches - before.fetches
        );
        ratios::print("fetch of an absent page against a native read", &mut found);
    }
    dsm.barrier()?;
    Ok(())
}
