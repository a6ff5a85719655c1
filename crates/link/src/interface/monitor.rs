//! News from the kernel that an interface has changed.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A socket that is readable when something about any interface of the host's network namespace
/// has changed: MTU, carrier, address, existence.
///
/// What has changed is not read from the messages but asked for afterwards: messages can be lost
/// when many come at once, and the answer is then still right.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: OwnedFd,
}

impl Monitor {
    /// Listens from now on.
    pub(crate) fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: `socket` takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero bytes are a valid `sockaddr_nl`.
        let mut name: libc::sockaddr_nl = unsafe { zeroed() };
        name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        name.nl_groups = libc::RTMGRP_LINK as u32;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `name` is `len` initialised bytes, which the kernel only reads.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket })
    }

    /// Whether anything has changed since the last call; if so, ask the interface how it is.
    pub(crate) fn has_changed(&mut self) -> bool {
        let mut changed = false;
        // Messages are discarded unread, so one byte of room is enough for each.
        for _ in 0..MESSAGES_MAX {
            let mut byte = 0_u8;
            // SAFETY: the kernel writes at most the one byte that `byte` has.
            let received = unsafe {
                libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT)
            };
            if received < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // Messages were lost, which is news as well.
                    Some(libc::ENOBUFS) => {}
                    _ => break,
                }
            }
            changed = true;
        }
        changed
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Messages read in one go; more stay readable for the next.
const MESSAGES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_host_has_no_news_for_long() {
        let mut monitor = Monitor::new().unwrap();
        // Whatever happens on the host meanwhile, reading ends.
        let _ = monitor.has_changed();
        assert!(monitor.as_fd().as_raw_fd() >= 0);
    }
}
