//! Blocks a thread until a descriptor is readable.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits until one of at most [`DESCRIPTORS_MAX`] descriptors is readable, `limit` has passed, or a
/// signal arrives. Uses `limit` in whole milliseconds, rounded up.
pub(crate) fn wait_readable(descriptors: &[BorrowedFd<'_>], limit: Duration) {
    const NONE: libc::pollfd = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
    let mut polled = [NONE; DESCRIPTORS_MAX];
    for (entry, descriptor) in polled.iter_mut().zip(descriptors) {
        entry.fd = descriptor.as_raw_fd();
    }
    // Round up. Otherwise the last part of a wait would become many waits of zero length.
    let limit_ms = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the array has the length given and outlives the call.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) };
}

/// Maximum number of descriptors in one wait.
const DESCRIPTORS_MAX: usize = 2;
