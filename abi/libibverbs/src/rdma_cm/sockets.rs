//! `rsocket` and its like: sockets of the kernel, by another name.
//!
//! What programs ask for here is a stream or datagrams by the calls of sockets. The kernel gives them that, and its
//! descriptors are ones that can be polled; so each call goes on to the one of the same name without the `r`.
//! What sockets have not, writing to memory of the peer, is not there: `riomap`, `riounmap` and `riowrite` fail with
//! `ENOSYS`.

use std::ffi::{c_int, c_long, c_void};

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use crate::failure::set_errno;

/// Calls that are those of the kernel.
macro_rules! forwards {
    ($($name:literal $function:ident = $call:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            ///
            /// # Safety
            /// As the manual page of the socket call says.
            #[unsafe(export_name = concat!("ethernot_", $name))]
            pub(crate) unsafe extern "C" fn $function($($argument: $kind),*) -> $result {
                // SAFETY: as the caller says.
                unsafe { libc::$call($($argument),*) }
            }
        )*
    };
}

forwards! {
    "rsocket" rsocket = socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    "rbind" rbind = bind(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    "rlisten" rlisten = listen(socket: c_int, backlog: c_int) -> c_int;
    "raccept" raccept = accept(socket: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    "rconnect" rconnect = connect(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    "rshutdown" rshutdown = shutdown(socket: c_int, how: c_int) -> c_int;
    "rclose" rclose = close(socket: c_int) -> c_int;
    "rrecv" rrecv = recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    "rrecvfrom" rrecvfrom = recvfrom(
        socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t
    ) -> ssize_t;
    "rrecvmsg" rrecvmsg = recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    "rsend" rsend = send(socket: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    "rsendto" rsendto = sendto(
        socket: c_int, buffer: *const c_void, len: size_t, flags: c_int, to: *const sockaddr,
        to_len: socklen_t
    ) -> ssize_t;
    "rsendmsg" rsendmsg = sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    "rread" rread = read(socket: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    "rreadv" rreadv = readv(socket: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    "rwrite" rwrite = write(socket: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    "rwritev" rwritev = writev(socket: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    "rpoll" rpoll = poll(wanted: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    "rselect" rselect = select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    "rgetpeername" rgetpeername = getpeername(
        socket: c_int, address: *mut sockaddr, len: *mut socklen_t
    ) -> c_int;
    "rgetsockname" rgetsockname = getsockname(
        socket: c_int, address: *mut sockaddr, len: *mut socklen_t
    ) -> c_int;
    "rfcntl" rfcntl = fcntl(socket: c_int, command: c_int, argument: c_long) -> c_int;
    "repoll_create" repoll_create = epoll_create(size: c_int) -> c_int;
    "repoll_create1" repoll_create1 = epoll_create1(flags: c_int) -> c_int;
    "repoll_ctl" repoll_ctl = epoll_ctl(
        set: c_int, operation: c_int, socket: c_int, event: *mut epoll_event
    ) -> c_int;
    "repoll_wait" repoll_wait = epoll_wait(
        set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int
    ) -> c_int;
}

/// `rsetsockopt`. Options of queue pairs are taken and of no effect.
///
/// # Safety
/// As the manual page of `setsockopt` says.
#[unsafe(export_name = "ethernot_rsetsockopt")]
pub(crate) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == LEVEL_RDMA {
        return 0;
    }
    // SAFETY: as the caller says.
    unsafe { libc::setsockopt(socket, level, name, value, len) }
}

/// `rgetsockopt`. Options of queue pairs are those that others have.
///
/// # Safety
/// As the manual page of `getsockopt` says.
#[unsafe(export_name = "ethernot_rgetsockopt")]
pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level != LEVEL_RDMA {
        // SAFETY: as the caller says.
        return unsafe { libc::getsockopt(socket, level, name, value, len) };
    }
    let Some(usual) = usize::try_from(name).ok().and_then(|name| USUAL.get(name)) else {
        set_errno(libc::ENOTSUP);
        return -1;
    };
    // SAFETY: as the caller says.
    if value.is_null() || len.is_null() || unsafe { *len } < size_of::<c_int>() as socklen_t {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: there is room for a number, as was just seen.
    unsafe {
        value.cast::<c_int>().write_unaligned(*usual);
        *len = size_of::<c_int>() as socklen_t;
    }
    0
}

/// `riomap`: nothing of the peer can be written to.
#[unsafe(export_name = "ethernot_riomap")]
pub(crate) extern "C" fn riomap(
    _socket: c_int,
    _buffer: *mut c_void,
    _len: size_t,
    _protection: c_int,
    _flags: c_int,
    _offset: off_t,
) -> off_t {
    set_errno(libc::ENOSYS);
    -1
}

/// `riounmap`: the same.
#[unsafe(export_name = "ethernot_riounmap")]
pub(crate) extern "C" fn riounmap(_socket: c_int, _buffer: *mut c_void, _len: size_t) -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// `riowrite`: the same.
#[unsafe(export_name = "ethernot_riowrite")]
pub(crate) extern "C" fn riowrite(
    _socket: c_int,
    _buffer: *const c_void,
    _count: size_t,
    _offset: off_t,
    _flags: c_int,
) -> ssize_t {
    set_errno(libc::ENOSYS);
    -1
}

/// `SOL_RDMA`.
const LEVEL_RDMA: c_int = 0x10000;

/// `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE`, `RDMA_IOMAPSIZE`.
const USUAL: [c_int; 4] = [384, 384, 64, 0];
