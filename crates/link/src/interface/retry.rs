//! A timer descriptor that wakes a sleeping thread. Meant for a link that must open its queue
//! again.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Wakes a sleeping thread periodically, so that the link retries. Without the timer, no thread
/// would retry while all threads sleep.
#[derive(Debug)]
pub(super) struct RetryTimer(OwnedFd);

impl RetryTimer {
    /// Creates a timer that becomes readable every `interval_ns`, which is less than a second.
    pub(super) fn new(interval_ns: u64) -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero bytes are a valid `itimerspec`.
        let mut times: libc::itimerspec = unsafe { zeroed() };
        times.it_interval.tv_nsec = interval_ns.min(NS_MAX).cast_signed();
        times.it_value = times.it_interval;
        // SAFETY: `times` outlives the call, and the null pointer declines the old times.
        if unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const times, null_mut()) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(timer))
    }

    /// Makes the timer unreadable until it expires again.
    pub(super) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: the kernel writes at most the eight bytes of `count`. If the timer has not
        // expired, the read fails without effect.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl AsFd for RetryTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Largest number of nanoseconds below one second.
const NS_MAX: u64 = 999_999_999;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::wait_readable;

    #[test]
    fn a_sleeper_is_woken_repeatedly() {
        let timer = RetryTimer::new(1_000_000).unwrap();
        for _ in 0..3 {
            // This limit is far longer than the timer needs. A timer that does not expire only
            // delays the test.
            wait_readable(&[timer.as_fd()], Duration::from_secs(20));
            timer.clear();
        }
    }
}
