//! Calls that receive.

use libc::{
    c_int, c_void, iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use crate::closing::refused;
use crate::next::interpose;
use crate::table::is_known;

interpose! {
    read(fd: c_int, into: *mut c_void, size: size_t) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    __read_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by refused(fd);
    readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    preadv2(fd: c_int, into: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    preadv64v2(fd: c_int, into: *const iovec, count: c_int, at: off64_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    recv(fd: c_int, into: *mut c_void, size: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    __recv_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t, flags: c_int) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by refused(fd);
    recvfrom(fd: c_int, into: *mut c_void, size: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    __recvfrom_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, length: *mut socklen_t) -> ssize_t,
        else -1, if is_known(fd) && size <= room, by refused(fd);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
        else -1, if is_known(fd), by refused(fd);
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, limit: *mut timespec)
        -> c_int,
        else -1, if is_known(fd), by refused(fd);
}
