//! Whether the process has descriptors left for another connection that moves: the library takes none of the upper half, so
//! that the program's own are there.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

/// Descriptors that a connection is about to take, until it has taken them or stays on TCP.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    is_held: AtomicBool,
}

impl Reservation {
    /// Makes it. False if there is no room. `fd` is the number that the program has for the connection, and the library has
    /// `own` descriptors.
    pub(crate) fn make(&self, fd: c_int, own: impl FnOnce() -> u64) -> bool {
        let moving = MOVING.fetch_add(1, Ordering::SeqCst) + 1;
        let is_room = in_use(fd, own) + moving * EACH <= limit() / 2;
        if !is_room || self.is_held.swap(true, Ordering::SeqCst) {
            MOVING.fetch_sub(1, Ordering::SeqCst);
        }
        is_room
    }

    /// The connection has them, or wants none.
    pub(crate) fn release(&self) {
        if self.is_held.swap(false, Ordering::SeqCst) {
            MOVING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// In a forked child: what the parent was about to take is its own matter.
pub(crate) fn forget_in_child() {
    MOVING.store(0, Ordering::SeqCst);
}

/// Descriptors that the process has.
fn in_use(fd: c_int, own: impl FnOnce() -> u64) -> u64 {
    // Since Linux 6.2 the folder's size says how many there are.
    match fs::metadata("/proc/self/fd").map(|found| found.len()) {
        Ok(count @ 1..) => count,
        _ => u64::try_from(fd).unwrap_or(0) + 1 + own(),
    }
}

/// How many descriptors the process may have.
fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills `limit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// Connections that have begun to move and have not yet.
static MOVING: AtomicU64 = AtomicU64::new(0);

/// What one takes beside the program's own: a second of its TCP socket, the library's end of a pair, and for a moment the
/// socket at which the offer arrives, or the program's end.
const EACH: u64 = 3;
