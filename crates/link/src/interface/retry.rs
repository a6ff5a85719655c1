//! A timer as a descriptor: it wakes a sleeping thread, so that a link without its queue tries to take
//! it again.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

/// Wakes a thread that sleeps on it, again and again, so that what could not be done is tried again: while all threads
/// sleep, none looks at a clock.
#[derive(Debug)]
pub(super) struct RetryTimer(OwnedFd);

impl RetryTimer {
    /// Readable once in `interval_ns`, less than a second, from now on.
    pub(super) fn new(interval_ns: u64) -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nothing else has it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero bytes are a valid `itimerspec`.
        let mut times: libc::itimerspec = unsafe { zeroed() };
        times.it_interval.tv_nsec = interval_ns.min(NS_MAX).cast_signed();
        times.it_value = times.it_interval;
        // SAFETY: `times` is read during the call, and the old times are not asked for.
        if unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const times, null_mut()) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(timer))
    }

    /// Makes it readable only when the interval has passed again.
    pub(super) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: the kernel writes at most the eight bytes of `count`. That nothing is there to read
        // is as good.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

impl AsFd for RetryTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Nanoseconds of a time that are not seconds.
const NS_MAX: u64 = 999_999_999;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::wait_readable;

    #[test]
    fn a_sleeper_is_woken_again_and_again() {
        let timer = RetryTimer::new(1_000_000).unwrap();
        for _ in 0..3 {
            // Far longer than it takes: a timer that does not come would make the test hang, no more.
            wait_readable(&[timer.as_fd()], Duration::from_secs(20));
            timer.clear();
        }
    }
}
