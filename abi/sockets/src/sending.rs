//! Handles calls of the program that send.

use std::io::IoSlice;

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t,
};
use nix::errno::Errno;
use sockets::log::{LogLevel, note};
use sockets::{Connection, Direction, Reason, Route, SendFlags};

use crate::answering::{Answering, answering, borrowed};
use crate::next::{fail, interpose};
use crate::passing::{HOME_LIMIT, has_descriptors};
use crate::signals::{raise_broken_pipe, restarted};
use crate::table::is_known;
use crate::{connection_table, iovecs, passing, results};

interpose! {
    write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t,
        else -1, if is_known(fd), by one(fd, from, size, 0);
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t,
        else -1, if is_known(fd), by several(fd, from, iovecs::counted(count), 0);
    pwritev2(fd: c_int, from: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && at == -1, by several(fd, from, iovecs::counted(count), 0);
    pwritev64v2(fd: c_int, from: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && at == -1, by several(fd, from, iovecs::counted(count), 0);
    send(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by one(fd, from, size, flags);
    sendto(fd: c_int, from: *const c_void, size: size_t, flags: c_int, to: *const sockaddr,
        length: socklen_t) -> ssize_t,
        else -1, if is_known(fd), by one(fd, from, size, flags);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) || (connection_table::has_any() && has_descriptors(message)),
        by one_message(fd, message, flags);
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        else -1, if is_known(fd) || connection_table::has_any(),
        by many_messages(fd, messages, count, flags);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `send`.
unsafe fn one(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> Option<ssize_t> {
    send(fd, flags, |connection, flags| {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let slice = unsafe { iovecs::slice(from, size) };
        sent(connection, fd, &[slice], flags)
    })
}

/// # Safety
/// The arguments must satisfy the contract of the C function `writev`.
unsafe fn several(fd: c_int, from: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    send(fd, flags, |connection, flags| {
        let take = |slices: &[IoSlice<'_>]| sent(connection, fd, slices, flags);
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { iovecs::with(from, count, take) }.unwrap_or(Err(Errno::EINVAL))
    })
}

/// # Safety
/// The arguments must satisfy the contract of the C function `sendmsg`.
unsafe fn one_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_known(fd) {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { passing::give_away(message) };
        return None;
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let (list, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { several(fd, list, count, flags) }
}

/// # Safety
/// The arguments must satisfy the contract of the C function `sendmmsg`.
unsafe fn many_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Option<c_int> {
    let mut is_answered = true;
    for at in 0..count {
        // SAFETY: the caller passes `count` messages.
        let message = unsafe { &raw mut *messages.add(at as usize) };
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        match unsafe { one_message(fd, &raw const (*message).msg_hdr, flags) } {
            None => is_answered = false,
            Some(-1) if at == 0 => return Some(-1),
            Some(-1) => return Some(at.cast_signed()),
            // SAFETY: the caller fulfils the `# Safety` section of this function.
            Some(sent) => unsafe { (*message).msg_len = sent as c_uint },
        }
    }
    is_answered.then_some(count.cast_signed())
}

/// Lets the connection of a descriptor handle the call, if the connection has moved or has begun to
/// move. Returns `None` if the kernel must handle the call.
#[inline]
fn send(
    fd: c_int,
    flags: c_int,
    by: impl FnOnce(&Connection, c_int) -> Result<usize, Errno>,
) -> Option<ssize_t> {
    let connection = match answering(fd) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(counted) if flags & libc::MSG_OOB != 0 => {
            counted.stay(Reason::OutOfBand);
            return None;
        }
        Answering::Trial(counted) => {
            counted.pend(Some(Direction::Sent));
            return None;
        }
        Answering::Connection(connection) => connection,
    };
    if flags & libc::MSG_OOB != 0 {
        if connection.route() == Route::Undecided && connection.stay(Reason::OutOfBand) {
            return None;
        }
        if connection.go_home(HOME_LIMIT) {
            return None;
        }
        let what = format_args!("descriptor {fd} has moved: it carries no data out of band");
        note(LogLevel::Info, what);
        return Some(fail(libc::EOPNOTSUPP, -1));
    }
    let result = by(&connection, flags);
    if result == Err(Errno::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        raise_broken_pipe();
    }
    Some(results::counted(result))
}

#[inline]
fn sent(
    connection: &Connection,
    fd: c_int,
    from: &[IoSlice<'_>],
    flags: c_int,
) -> Result<usize, Errno> {
    let flags = SendFlags {
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        more: flags & libc::MSG_MORE != 0,
        no_signal: flags & libc::MSG_NOSIGNAL != 0,
    };
    restarted(|| connection.send(borrowed(fd), from, flags))
}
