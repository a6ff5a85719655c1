//! Whether this is the process whose table this is.

use std::sync::atomic::{AtomicI32, Ordering};

/// It is, from now on: before `main`, and in a forked child.
pub(crate) fn begin() {
    HOME.store(pid(), Ordering::Relaxed);
}

/// Whether this is the process whose table this is: not one that shares its memory (`vfork`), nor a copy that
/// the library has not seen (`clone`).
pub(crate) fn is_home() -> bool {
    HOME.load(Ordering::Relaxed) == pid()
}

fn pid() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::getpid() }
}

static HOME: AtomicI32 = AtomicI32::new(0);
