//! Checks whether the process has enough free descriptors to move another connection. The library
//! leaves half of the process's limit to the program.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

/// The reservation of the descriptors that one connection needs to move to the edge. The
/// reservation ends when the connection has got these descriptors or stays on TCP.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    is_held: AtomicBool,
}

impl Reservation {
    /// Makes the reservation. Returns false if the process has too few free descriptors. `fd` is
    /// the program's descriptor number of the connection. `own` returns the number of descriptors
    /// that this library uses.
    pub(crate) fn make(&self, fd: c_int, own: impl FnOnce() -> u64) -> bool {
        let moving = MOVING.fetch_add(1, Ordering::SeqCst) + 1;
        let is_room = in_use(fd, own) + moving * EACH <= limit() / 2;
        if !is_room || self.is_held.swap(true, Ordering::SeqCst) {
            MOVING.fetch_sub(1, Ordering::SeqCst);
        }
        is_room
    }

    /// Ends the reservation, because the connection has its descriptors or no longer needs them.
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

/// Clears the count of reservations in a forked child, because the child has inherited the parent's
/// count.
pub(crate) fn forget_in_child() {
    MOVING.store(0, Ordering::SeqCst);
}

/// Returns the number of open descriptors of the process. If the kernel does not report it, returns
/// an estimate.
fn in_use(fd: c_int, own: impl FnOnce() -> u64) -> u64 {
    // Since Linux 6.2, the size of this folder is the number of open descriptors.
    match fs::metadata("/proc/self/fd").map(|found| found.len()) {
        Ok(count @ 1..) => count,
        _ => u64::try_from(fd).unwrap_or(0) + 1 + own(),
    }
}

/// Returns the maximum number of open descriptors of the process.
fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes `limit`, which is valid during the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

/// Number of connections that have a reservation.
static MOVING: AtomicU64 = AtomicU64::new(0);

/// Number of descriptors that a connection needs to move, in addition to the program's own. Two are
/// permanent: a duplicate of the TCP socket, and the library's end of the socket pair that replaces
/// the TCP socket. One is temporary: the UDP socket for the start of the move, or the program's end
/// of the pair.
const EACH: u64 = 3;
