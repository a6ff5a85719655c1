//! Handles calls of the program that receive.

use std::io::IoSliceMut;

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};
use nix::errno::Errno;
use sockets::{Connection, Direction, ReceiveFlags, Route};

use crate::answering::{Answering, answering, borrowed};
use crate::handling::outside;
use crate::next::{call_next, fail, interpose};
use crate::passing::has_descriptors;
use crate::signals::restarted;
use crate::table::is_known;
use crate::{iovecs, opening, passing, results};

interpose! {
    read(fd: c_int, into: *mut c_void, size: size_t) -> ssize_t,
        else -1, if is_known(fd), by one(fd, into, size, 0);
    __read_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by one(fd, into, size, 0);
    readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t,
        else -1, if is_known(fd), by several(fd, into, iovecs::counted(count), 0);
    preadv2(fd: c_int, into: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && at == -1, by several(fd, into, iovecs::counted(count), 0);
    preadv64v2(fd: c_int, into: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && at == -1, by several(fd, into, iovecs::counted(count), 0);
    recv(fd: c_int, into: *mut c_void, size: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by one(fd, into, size, flags);
    __recv_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by one(fd, into, size, flags);
    recvfrom(fd: c_int, into: *mut c_void, size: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t) -> ssize_t,
        else -1, if is_known(fd), by one_from(fd, into, size, flags, length);
    __recvfrom_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, length: *mut socklen_t) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by one_from(fd, into, size, flags, length);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) || has_descriptors(message), by one_message(fd, message, flags);
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec)
        -> c_int,
        else -1, if is_known(fd), by many_messages(fd, messages, count, flags);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `recv`.
unsafe fn one(fd: c_int, into: *mut c_void, size: size_t, flags: c_int) -> Option<ssize_t> {
    receive(fd, flags, |connection, flags| {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let slice = unsafe { iovecs::slice_mut(into, size) };
        received(connection, fd, &mut [slice], flags)
    })
}

/// # Safety
/// The arguments must satisfy the contract of the C function `readv`.
unsafe fn several(fd: c_int, into: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    receive(fd, flags, |connection, flags| {
        let fill = |slices: &mut [IoSliceMut<'_>]| received(connection, fd, slices, flags);
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe { iovecs::with_mut(into, count, fill) }.unwrap_or(Err(Errno::EINVAL))
    })
}

/// # Safety
/// The arguments must satisfy the contract of the C function `recvfrom`.
unsafe fn one_from(
    fd: c_int,
    into: *mut c_void,
    size: size_t,
    flags: c_int,
    length: *mut socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let answer = unsafe { one(fd, into, size, flags) };
    if answer.is_some_and(|count| count >= 0) && !length.is_null() {
        // Report an address of length 0, like TCP.
        // SAFETY: the caller passes null or a valid pointer, and it is not null here.
        unsafe { length.write(0) };
    }
    answer
}

/// # Safety
/// The arguments must satisfy the contract of the C function `recvmsg`.
unsafe fn one_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_known(fd) {
        let count = outside(|| {
            call_next!(
                recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, else -1
            )
        });
        if count >= 0 {
            // SAFETY: the kernel has written the message.
            unsafe {
                passing::of_message(message, |fd| {
                    opening::made(fd);
                });
            }
        }
        return Some(count);
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let (list, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let answer = unsafe { several(fd, list, count, flags) };
    if answer.is_some_and(|count| count >= 0) {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
    }
    answer
}

/// # Safety
/// The arguments must satisfy the contract of the C function `recvmmsg`.
unsafe fn many_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Option<c_int> {
    let mut flags = flags & !libc::MSG_WAITFORONE;
    for at in 0..count {
        // SAFETY: the caller passes `count` messages.
        let message = unsafe { &raw mut *messages.add(at as usize) };
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let answer = unsafe { one_message(fd, &raw mut (*message).msg_hdr, flags) };
        match answer {
            None if at == 0 => return None,
            Some(-1) if at == 0 => return Some(-1),
            None | Some(-1) => return Some(at.cast_signed()),
            // SAFETY: the caller fulfils the `# Safety` section of this function.
            Some(received) => unsafe { (*message).msg_len = received as c_uint },
        }
        // Do not wait for a further message, because the first message contains all bytes that have
        // arrived.
        flags |= libc::MSG_DONTWAIT;
    }
    Some(count.cast_signed())
}

/// Lets the connection of a descriptor handle the call, if the connection has moved or has begun to
/// move. Returns `None` if the kernel must handle the call.
#[inline]
fn receive(
    fd: c_int,
    flags: c_int,
    by: impl FnOnce(&Connection, c_int) -> Result<usize, Errno>,
) -> Option<ssize_t> {
    let connection = match answering(fd) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(counted) => {
            let is_of_bytes = flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
            counted.pend(is_of_bytes.then_some(Direction::Received));
            return None;
        }
        Answering::Connection(connection) => connection,
    };
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        if connection.route() == Route::Undecided {
            // The call does not receive bytes of the stream, so the kernel can handle it.
            return None;
        }
        // Fail, because the edge has no out-of-band data and no error queue.
        let has_none = if flags & libc::MSG_OOB != 0 { libc::EINVAL } else { libc::EAGAIN };
        return Some(fail(has_none, -1));
    }
    Some(results::counted(by(&connection, flags)))
}

#[inline]
fn received(
    connection: &Connection,
    fd: c_int,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<usize, Errno> {
    let flags = ReceiveFlags {
        peek: flags & libc::MSG_PEEK != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        discard: flags & libc::MSG_TRUNC != 0,
    };
    restarted(|| connection.receive(borrowed(fd), into, flags))
}
