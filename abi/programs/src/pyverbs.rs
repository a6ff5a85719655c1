//! The test suite of pyverbs, which its package installs as documentation.

use std::path::{Path, PathBuf};

use testbed::built::target_folder;

/// Returns the folder of the suite. If the host has installed its packages without documentation,
/// this is the folder into which `./x` has unpacked the suite. Returns `None` and prints the reason
/// if the suite or pyverbs itself is missing.
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

/// The suite's folder in Debian's package.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// The pyverbs module's folder in Debian's package.
const MODULE: &str = "/usr/lib/python3/dist-packages/pyverbs";
