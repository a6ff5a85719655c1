//! Waits for changes of interfaces and addresses.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::netlink::Socket;

/// Waits for changes of interfaces and their addresses.
///
/// The watch reports only that something changed; [`interfaces`](super::interfaces) returns the
/// current state. Lost events therefore do no harm.
#[derive(Debug)]
pub struct InterfaceWatch {
    socket: Socket,
    stop: Arc<OwnedFd>,
}

/// Stops the wait of an [`InterfaceWatch`] permanently.
#[derive(Clone, Debug)]
pub struct WatchStopper(Arc<OwnedFd>);

impl InterfaceWatch {
    /// Starts to watch interfaces.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let stop = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { socket: Socket::route(groups as u32)?, stop })
    }

    /// Returns a handle with which another thread can stop [`InterfaceWatch::wait`].
    pub fn stopper(&self) -> WatchStopper {
        WatchStopper(Arc::clone(&self.stop))
    }

    /// Waits until something changes or `limit` has passed, and discards all queued events. Returns
    /// whether there were any, or `None` if a [`WatchStopper`] has stopped the watch.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<Option<bool>> {
        let mut fds = [poll_for_input(self.socket.as_fd()), poll_for_input(self.stop.as_fd())];
        let limit_ms =
            limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: `fds` outlives the call and has the length given.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit_ms) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            let is_harmless = error.kind() == io::ErrorKind::Interrupted;
            return if is_harmless { Ok(Some(false)) } else { Err(error) };
        }
        let [_, stop] = fds;
        if stop.revents != 0 {
            return Ok(None);
        }
        self.socket.take_events().map(Some)
    }
}

impl WatchStopper {
    /// Stops the current wait and all later waits.
    pub fn stop(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` outlives the call and has the length given. If the counter is full, the
        // descriptor is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

fn poll_for_input(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_watch_returns_at_once() {
        let watch = InterfaceWatch::open().unwrap();
        watch.stopper().stop();
        assert_eq!(watch.wait(None).unwrap(), None);
        assert_eq!(watch.wait(None).unwrap(), None);
    }
}
