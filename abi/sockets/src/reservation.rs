//! Checks whether the process has enough descriptors for another connection to move. The library uses none of the upper
//! half, so that they are left for the program.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

/// Reserves the descriptors that a connection needs, until it has them or stays on TCP.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    is_held: AtomicBool,
}

impl Reservation {
    /// Makes the reservation; returns false if there are not enough. `fd` is the program's number of the connection,
    /// and `own` returns how many descriptors the library has.
    pub(crate) fn make(&self, fd: c_int, own: impl FnOnce() -> u64) -> bool {
        let moving = MOVING.fetch_add(1, Ordering::SeqCst) + 1;
        let is_room = in_use(fd, own) + moving * EACH <= limit() / 2;
        if !is_room || self.is_held.swap(true, Ordering::SeqCst) {
            MOVING.fetch_sub(1, Ordering::SeqCst);
        }
        is_room
    }

    /// Ends the reservation: the connection has its descriptors, or needs none.
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

/// In a forked child: resets the reservations, which are those of the parent.
pub(crate) fn forget_in_child() {
    MOVING.store(0, Ordering::SeqCst);
}

/// Returns how many descriptors the process has.
fn in_use(fd: c_int, own: impl FnOnce() -> u64) -> u64 {
    // Since Linux 6.2 the size of this folder is their number.
    match fs::metadata("/proc/self/fd").map(|found| found.len()) {
        Ok(count @ 1..) => count,
        _ => u64::try_from(fd).unwrap_or(0) + 1 + own(),
    }
}

/// Returns how many descriptors the process may have.
fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills `limit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// Connections that are moving.
static MOVING: AtomicU64 = AtomicU64::new(0);

/// Descriptors of a moving connection beside the program's own: a duplicate of its TCP socket, the library's end of the
/// pair, and for a moment the rendezvous socket or the program's end.
const EACH: u64 = 3;
