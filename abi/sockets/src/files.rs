//! Handles functions that transfer bytes between descriptors, for example files and pipes.

use libc::{c_int, c_uint, off_t, off64_t, size_t, ssize_t};
use nix::errno::Errno;
use sockets::Direction;

use crate::answering::{Answering, answering, borrowed};
use crate::next::{fail, interpose};
use crate::signals::{raise_broken_pipe, restarted};
use crate::table::is_known;
use crate::{passing, results};

interpose! {
    sendfile(to: c_int, from: c_int, at: *mut off_t, size: size_t) -> ssize_t,
        else -1, if is_known(to), by file(to, from, at, size);
    sendfile64(to: c_int, from: c_int, at: *mut off64_t, size: size_t) -> ssize_t,
        else -1, if is_known(to), by file(to, from, at, size);
    splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, size: size_t,
        flags: c_uint) -> ssize_t,
        else -1, if is_known(from) || is_known(to), by spliced(from, to);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `sendfile`.
unsafe fn file(to: c_int, from: c_int, at: *mut off64_t, size: size_t) -> Option<ssize_t> {
    let connection = match answering(to) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(counted) => {
            counted.pend(Some(Direction::Sent));
            return None;
        }
        Answering::Connection(connection) => connection,
    };
    if from < 0 {
        return Some(fail(libc::EBADF, -1));
    }
    // SAFETY: the caller passes null or a valid pointer.
    let place = unsafe { at.as_mut() };
    let mut offset = match place.as_deref().map(|&at| u64::try_from(at)) {
        None => None,
        Some(Ok(at)) => Some(at),
        Some(Err(_)) => return Some(fail(libc::EINVAL, -1)),
    };
    let result =
        restarted(|| connection.send_file(borrowed(to), borrowed(from), offset.as_mut(), size));
    if let (Some(place), Some(offset)) = (place, offset) {
        *place = off64_t::try_from(offset).unwrap_or(off64_t::MAX);
    }
    if result == Err(Errno::EPIPE) {
        raise_broken_pipe();
    }
    Some(results::counted(result))
}

/// Makes the connections among `from` and `to` stay on TCP or return to TCP, because `splice` is
/// possible only in the kernel.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `splice`.
unsafe fn spliced(from: c_int, to: c_int) -> Option<ssize_t> {
    for fd in [from, to].into_iter().filter(|&fd| is_known(fd)) {
        if matches!(answering(fd), Answering::NoDescriptor) {
            return Some(fail(libc::EBADF, -1));
        }
        passing::leave_to_kernel(fd);
    }
    None
}
