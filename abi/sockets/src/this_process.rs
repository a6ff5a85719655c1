//! Records the process to which the descriptor table and the connection table belong.

use std::sync::atomic::{AtomicI32, Ordering};

/// Makes the calling process the owner of the tables. Called before `main`, and in a forked child.
pub(crate) fn begin() {
    HOME.store(pid(), Ordering::Relaxed);
}

/// Returns true if the tables belong to the calling process. Returns false if this process shares
/// the memory of the owner (`vfork`), or if `clone` created this process and the library did not
/// notice.
pub(crate) fn is_home() -> bool {
    HOME.load(Ordering::Relaxed) == pid()
}

fn pid() -> i32 {
    // SAFETY: takes no arguments.
    unsafe { libc::getpid() }
}

static HOME: AtomicI32 = AtomicI32::new(0);
