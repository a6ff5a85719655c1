//! `rsocket` and its like: sockets of the kernel, by another name.
//!
//! What programs ask for here is a stream or datagrams by the calls of sockets. The kernel gives them that, and its
//! descriptors are ones that can be polled; so each call goes on to the one of the same name without the `r`.
//! What sockets have not, writing to memory of the peer (`riomap`, `riounmap` and `riowrite`), goes by a queue pair beside
//! the socket, if the program has asked for it (`RDMA_IOMAPSIZE`). All that was written so is placed before anything
//! that is sent later, as the sender waits for it.

mod mappings;
mod meeting;
mod pages;
mod side;

use std::ffi::{c_int, c_long, c_void};
use std::net::SocketAddr;

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use super::addresses::{of_c, storage};
use crate::failure::{invalid, number, set_errno, signed};

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
    "rbind" rbind = bind(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    "rrecv" rrecv = recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    "rrecvfrom" rrecvfrom = recvfrom(
        socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t
    ) -> ssize_t;
    "rrecvmsg" rrecvmsg = recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    "rread" rread = read(socket: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    "rreadv" rreadv = readv(socket: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
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

/// Calls that send, which what was written to mapped memory goes before.
macro_rules! sends {
    ($($name:literal $function:ident = $call:ident($($argument:ident: $kind:ty),*), $flags:expr;)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            ///
            /// # Safety
            /// As the manual page of the socket call says.
            #[unsafe(export_name = concat!("ethernot_", $name))]
            pub(crate) unsafe extern "C" fn $function(socket: c_int, $($argument: $kind),*) -> ssize_t {
                if number($name, || mappings::before_sending(socket, $flags).map(|()| 0)) != 0 {
                    return -1;
                }
                // SAFETY: as the caller says.
                unsafe { libc::$call(socket, $($argument),*) }
            }
        )*
    };
}

sends! {
    "rsend" rsend = send(buffer: *const c_void, len: size_t, flags: c_int), flags;
    "rsendto" rsendto = sendto(
        buffer: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t
    ), flags;
    "rsendmsg" rsendmsg = sendmsg(message: *const msghdr, flags: c_int), flags;
    "rwrite" rwrite = write(buffer: *const c_void, len: size_t), 0;
    "rwritev" rwritev = writev(pieces: *const iovec, count: c_int), 0;
}

/// `rsocket`.
#[unsafe(export_name = "ethernot_rsocket")]
pub(crate) extern "C" fn rsocket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: a call with numbers.
    let made = unsafe { libc::socket(family, kind, protocol) };
    if made >= 0 {
        mappings::forget(made);
    }
    made
}

/// `rlisten`.
#[unsafe(export_name = "ethernot_rlisten")]
pub(crate) extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    // SAFETY: a call with numbers.
    if unsafe { libc::listen(socket, backlog) } != 0 {
        return -1;
    }
    number("rlisten", || mappings::on_listen(socket).map(|()| 0))
}

/// `raccept`.
///
/// # Safety
/// As the manual page of `accept` says.
#[unsafe(export_name = "ethernot_raccept")]
pub(crate) unsafe extern "C" fn raccept(
    socket: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller says.
    let made = unsafe { libc::accept(socket, address, len) };
    if made >= 0 {
        mappings::on_accept(socket, made);
    }
    made
}

/// `rconnect`.
///
/// # Safety
/// As the manual page of `connect` says.
#[unsafe(export_name = "ethernot_rconnect")]
pub(crate) unsafe extern "C" fn rconnect(
    socket: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: as the caller says.
    let connected = unsafe { libc::connect(socket, address, len) };
    let number = errno();
    if connected == 0 || number == libc::EINPROGRESS {
        mappings::on_connect(socket);
        set_errno(number);
    }
    connected
}

/// `rshutdown`.
#[unsafe(export_name = "ethernot_rshutdown")]
pub(crate) extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    if how != libc::SHUT_RD {
        mappings::on_last(socket);
    }
    // SAFETY: a call with numbers.
    unsafe { libc::shutdown(socket, how) }
}

/// `rclose`.
#[unsafe(export_name = "ethernot_rclose")]
pub(crate) extern "C" fn rclose(socket: c_int) -> c_int {
    mappings::on_close(socket);
    // SAFETY: a call with a number.
    unsafe { libc::close(socket) }
}

/// `rsetsockopt`. Options of queue pairs are taken and of no effect, but for the number of mappings.
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
    if level == LEVEL_RDMA && name == IO_MAP_SIZE {
        // SAFETY: as the caller says.
        let maps = unsafe { value.cast::<c_int>().as_ref() };
        let enough = len as usize >= size_of::<c_int>();
        return number("rsetsockopt", || match maps {
            Some(maps) if enough => mappings::want(socket, *maps).map(|()| 0),
            _ => invalid("there is no number of mappings"),
        });
    }
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
    let number = if name == IO_MAP_SIZE { mappings::wanted(socket) } else { *usual };
    // SAFETY: there is room for a number, as was just seen.
    unsafe {
        value.cast::<c_int>().write_unaligned(number);
        *len = size_of::<c_int>() as socklen_t;
    }
    0
}

/// `riomap`.
#[unsafe(export_name = "ethernot_riomap")]
pub(crate) extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    // What is mapped is memory of the program, which peers may write to from now on.
    let address = buffer.expose_provenance();
    signed("riomap", || mappings::map(socket, address, len, protection, offset))
}

/// `riounmap`.
#[unsafe(export_name = "ethernot_riounmap")]
pub(crate) extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, len: size_t) -> c_int {
    number("riounmap", || mappings::unmap(socket, buffer.addr(), len).map(|()| 0))
}

/// `riowrite`.
///
/// # Safety
/// The buffer is memory of `count` bytes that may be read.
#[unsafe(export_name = "ethernot_riowrite")]
pub(crate) unsafe extern "C" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let count = count.min(isize::MAX as usize);
    let written = signed("riowrite", || {
        // SAFETY: as the caller says.
        let written = unsafe { mappings::write(socket, buffer.cast(), count, offset, flags) };
        written.map(|written| written.cast_signed() as i64)
    });
    written as ssize_t
}

/// The address of a socket, by `getsockname` or `getpeername`.
fn address_of(
    socket: c_int,
    call: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    let mut address = storage(None);
    let mut len = size_of_val(&address) as socklen_t;
    // SAFETY: there is room for any address.
    if unsafe { call(socket, (&raw mut address).cast(), &raw mut len) } != 0 {
        return None;
    }
    // SAFETY: it was just written, or is of no family.
    let known = unsafe { of_c((&raw const address).cast()) }.ok()??;
    Some(SocketAddr::new(known.ip().to_canonical(), known.port()))
}

/// The address of a socket's peer.
fn peer_of(socket: c_int) -> Option<SocketAddr> {
    address_of(socket, libc::getpeername)
}

/// The number of the last error of this thread.
fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// `SOL_RDMA`.
const LEVEL_RDMA: c_int = 0x10000;

/// `RDMA_IOMAPSIZE`.
const IO_MAP_SIZE: c_int = 3;

/// `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE`, `RDMA_IOMAPSIZE`.
const USUAL: [c_int; 4] = [384, 384, 64, 0];
