//! Calls that send.

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t,
    ssize_t,
};

use crate::closing::refused;
use crate::next::interpose;
use crate::table::is_known;

interpose! {
    write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    pwritev2(fd: c_int, from: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    pwritev64v2(fd: c_int, from: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    send(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    sendto(fd: c_int, from: *const c_void, size: size_t, flags: c_int, to: *const sockaddr,
        length: socklen_t) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    sendfile(to: c_int, from: c_int, at: *mut off_t, size: size_t) -> ssize_t,
        else -1, if is_known(to), by refused(to);
    sendfile64(to: c_int, from: c_int, at: *mut off64_t, size: size_t) -> ssize_t,
        else -1, if is_known(to), by refused(to);
    splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, size: size_t,
        flags: c_uint) -> ssize_t,
        else -1, if is_known(from) || is_known(to), by refused(if is_known(from) { from } else { to });
}
