//! The timer that ends sleeps on the links.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use delivery::Instant;

/// A `timerfd`, which is readable after it has expired. If something else ends the sleep, the timer
/// stays set.
///
/// The timeout of `ppoll` would cost more, because `ppoll` sets and cancels it in each sleep. If
/// that timeout is the earliest timer of the processor, setting and cancelling it costs 9 µs of
/// processor time on a virtual machine, half as much as the rest of a sleep. A thread that sleeps
/// until each answer arrives would pay this in each sleep. Its earliest timer is the probe timeout
/// of its connection, which moves with each answer.
///
/// Because the timer stays set, it may expire too early for a later sleep. That sleep then reads
/// the clock once and continues.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// Time in nanoseconds at which the timer expires or has expired; 0 if it was never set. Only
    /// the thread on watch uses this value.
    expires_at: AtomicU64,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, expires_at: AtomicU64::new(0) })
    }

    /// Makes the timer expire after `now` and no later than `until`, which must be later than
    /// `now`. Returns false if the kernel refuses; the timer then does not expire.
    pub(crate) fn set(&self, now: Instant, until: Instant) -> bool {
        let expires_at = Instant(self.expires_at.load(Ordering::Relaxed));
        if now < expires_at && expires_at <= until {
            return true;
        }
        let after_ns = until.since_ns(now);
        let value = libc::timespec {
            tv_sec: (after_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (after_ns % 1_000_000_000).cast_signed(),
        };
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: once, it_value: value };
        // SAFETY: the kernel reads `setting` during the call. The null pointer means that it does
        // not return the old setting.
        let set = unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const setting, ptr::null_mut())
        };
        self.expires_at.store(if set == 0 { until.0 } else { 0 }, Ordering::Relaxed);
        set == 0
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_set_again_only_for_an_earlier_time_or_after_it_expired() {
        let timer = Timer::new().expect("a descriptor");
        let set = |now, until| {
            assert!(timer.set(Instant(now), Instant(until)));
            timer.expires_at.load(Ordering::Relaxed)
        };
        assert_eq!(set(1_000, 901_000), 901_000);
        assert_eq!(set(2_000, 902_000), 901_000, "it may expire early");
        assert_eq!(set(3_000, 500_000), 500_000);
        assert_eq!(set(500_000, 1_400_000), 1_400_000, "it has expired");
    }
}
