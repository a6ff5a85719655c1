//! Records which process owns the tables.

use std::sync::atomic::{AtomicI32, Ordering};

/// Makes the calling process the owner. Called before `main`, and in a forked child.
pub(crate) fn begin() {
    HOME.store(pid(), Ordering::Relaxed);
}

/// Returns whether the calling process owns the tables. False if it shares the memory of the owner
/// (`vfork`), or is a copy that the library has not noticed (`clone`).
pub(crate) fn is_home() -> bool {
    HOME.load(Ordering::Relaxed) == pid()
}

fn pid() -> i32 {
    // SAFETY: takes no arguments.
    unsafe { libc::getpid() }
}

static HOME: AtomicI32 = AtomicI32::new(0);
