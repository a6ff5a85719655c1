//! Takes memory of the region away, as a program with a mistake does, and then needs it.

use std::fs::File;
use std::ops::Range;
use std::{env, fs, io, process, ptr};

use dsm::{Dsm, Error, Options};

/// Elements of a page.
const STEP: usize = 512;

const PAGE: usize = 4096;

const REGION: usize = 0x2000_0000_0000;

/// Largest length of a region.
const REGION_BYTES_MAX: usize = 1 << 36;

fn main() -> Result<(), Error> {
    let argument = |index| env::args().nth(index).unwrap_or_default();
    let (mapping, change, user) = (argument(1), argument(2), argument(3));
    let dsm = Dsm::join(Options::new())?;
    let values = dsm.alloc::<u64>(8 * STEP)?;
    if dsm.rank() == 0 {
        (0..8).for_each(|page| values.set(page * STEP, 7));
    }
    dsm.barrier()?;
    let loser = usize::from(user == "release");
    if dsm.rank() == loser {
        if user == "release" {
            values.set(2 * STEP, 8);
        }
        let first = values.slice(2 * STEP..).as_ptr().addr() / PAGE * PAGE;
        let frames = frames();
        let taken = if mapping == "view" { first } else { frames.start + (first - REGION) };
        match change.as_str() {
            "truncated" => truncate(&frames),
            _ => take(taken, &change),
        }
        println!("{first:#x} to ");
    }
    match user.as_str() {
        "own-read" if dsm.rank() == 0 => println!("read {}", values.get(2 * STEP)),
        "atomic" if dsm.rank() == 0 => println!("atomic {}", dsm.fetch_add(values, 2 * STEP, 1)?),
        "peer-read" => {
            dsm.barrier()?;
            if dsm.rank() == 1 {
                println!("read {}", values.get(2 * STEP));
            }
        }
        _ => {}
    }
    dsm.barrier()?;
    dsm.finalize()
}

/// Unmaps or protects two pages.
fn take(address: usize, change: &str) {
    let start = ptr::with_exposed_provenance_mut(address);
    // SAFETY: none: this is the mistake.
    let done = unsafe {
        match change {
            "unmapped" => libc::munmap(start, 2 * PAGE),
            _ => libc::mprotect(start, 2 * PAGE, libc::PROT_NONE),
        }
    };
    assert_eq!(done, 0);
}

/// Cuts off the file of a mapping, so that its pages are missing, as on a host without memory.
fn truncate(mapping: &Range<usize>) {
    let path = format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let file = File::options().read(true).write(true).open(path);
    let truncated: io::Result<()> = file.and_then(|file| file.set_len(0));
    if let Err(error) = truncated {
        println!("skipped: the file of a mapping cannot be opened: {error}");
        process::exit(0);
    }
}

/// Returns the mapping of the region that the library has for itself.
fn frames() -> Range<usize> {
    let mappings = fs::read_to_string("/proc/self/maps").expect("the kernel lists mappings");
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let addresses = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(number(start)?..number(end)?)
    };
    let ours = mappings.lines().filter(|line| line.contains("/memfd:page-faults"));
    let region = REGION..REGION + REGION_BYTES_MAX;
    let mut found = ours.filter_map(addresses).filter(|found| !region.contains(&found.start));
    found.next().expect("the library has mapped the region twice")
}
