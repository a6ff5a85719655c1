//! The memory of a large region of which little is touched.

use std::error::Error;
use std::fs;

use dsm::{Dsm, Options};

use crate::ratios;

/// Bytes of the region.
const REGION: u64 = 4 << 30;

/// One group of pages in so many is touched.
const ONE_IN: usize = 100;

/// Pages of a group, as of an array of 256 KiB.
const GROUP: usize = 64;

/// Elements of a page.
const STEP: usize = 4096 / 8;

/// Rank 0 writes groups of pages all over the region, and all ranks read and write them.
pub(super) fn run() -> Result<(), Box<dyn Error>> {
    let before = memory_bytes()?;
    let dsm = Dsm::join(Options::new().region_bytes(REGION))?;
    let elements = REGION as usize / 8;
    let values = dsm.alloc::<u64>(elements)?;
    let groups = || (0..elements / STEP / GROUP).step_by(ONE_IN);
    let pages = || groups().flat_map(|group| group * GROUP..(group + 1) * GROUP);
    if dsm.rank() == 0 {
        pages().for_each(|page| values.set(page * STEP, page as u64));
    }
    dsm.barrier()?;
    for page in pages() {
        assert_eq!(values.get(page * STEP), page as u64);
        values.set(page * STEP + 1 + dsm.rank(), 1);
    }
    dsm.barrier()?;
    let touched = pages().count() as f64 * 4096.0;
    let used = memory_bytes()? - before;
    let ratio = used / touched;
    println!("rank {}: {:.1} MiB of {:.1} MiB", dsm.rank(), used / MIB, touched / MIB);
    let mapped = fs::read_to_string("/proc/self/maps")?;
    let mappings = mapped.lines().filter(|line| line.contains("page-faults")).count();
    ratios::print("memory against what was touched", &mut [ratio, ratio]);
    println!("figure: mappings of the region: {mappings}");
    dsm.barrier()?;
    dsm.finalize()?;
    Ok(())
}

/// Returns the memory of this process, and of the kernel's tables for it, in bytes. A page that is
/// mapped twice counts once.
fn memory_bytes() -> Result<f64, Box<dyn Error>> {
    let field = |path: &str, name: &str| -> Result<f64, Box<dyn Error>> {
        let text = fs::read_to_string(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such field")?;
        Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
    };
    Ok(field("/proc/self/smaps_rollup", "Pss")? + field("/proc/self/status", "VmPTE")?)
}

const MIB: f64 = 1_048_576.0;
