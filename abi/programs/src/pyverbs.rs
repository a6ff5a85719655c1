//! The suite of tests of pyverbs, which its package has as documentation.

use std::path::{Path, PathBuf};

use crate::libraries::target_folder;

/// Finds the folder of the suite: where the package puts it, or where `./x` has unpacked it on a host that has
/// packages without their documentation. Returns `None` and prints the reason if neither is there, or pyverbs
/// itself is not.
pub fn pyverbs_suite() -> Option<PathBuf> {
    if !Path::new(MODULE).is_dir() {
        println!("skipped: no {MODULE} (Debian's package python3-pyverbs)");
        return None;
    }
    let unpacked = target_folder().join("pyverbs").join(SUITE.trim_start_matches('/'));
    let found = [PathBuf::from(SUITE), unpacked].into_iter().find(|place| place.is_dir());
    if found.is_none() {
        println!("skipped: no {SUITE} (`./x test` takes it from the package python3-pyverbs)");
    }
    found
}

/// Where Debian puts it.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// Where Debian puts pyverbs.
const MODULE: &str = "/usr/lib/python3/dist-packages/pyverbs";
