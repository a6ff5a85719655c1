//! `rsocket` and the calls that belong to it, implemented with kernel sockets.
//!
//! Programs use `rsocket` for streams and datagrams. The kernel's sockets provide both, with
//! descriptors that programs can poll. So the library forwards each call to the socket call whose
//! name lacks the `r`.
//!
//! Kernel sockets have no remote writes to mapped memory (`riomap`, `riounmap` and `riowrite`). For
//! these calls, the library uses a queue pair in addition to the socket. The queue pair exists only
//! if the program sets `RDMA_IOMAPSIZE`. The bytes of a `riowrite` are in the peer's memory before
//! the bytes of all later sends arrive, because each send first waits for the completion of earlier
//! writes.

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

/// Defines calls that the library forwards to the kernel.
macro_rules! forwards {
    ($($name:literal $function:ident = $call:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            ///
            /// # Safety
            /// The arguments must meet the requirements of the manual page of the socket call.
            #[unsafe(export_name = concat!("ethernot_", $name))]
            pub(crate) unsafe extern "C" fn $function($($argument: $kind),*) -> $result {
                // SAFETY: the caller meets the requirements of this function.
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

/// Defines calls that send. Each call first waits until earlier writes to mapped memory are in the
/// peer's memory, and then sends.
macro_rules! sends {
    ($($name:literal $function:ident = $call:ident($($argument:ident: $kind:ty),*), $flags:expr;)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            ///
            /// # Safety
            /// The arguments must meet the requirements of the manual page of the socket call.
            #[unsafe(export_name = concat!("ethernot_", $name))]
            pub(crate) unsafe extern "C" fn $function(socket: c_int, $($argument: $kind),*) -> ssize_t {
                if number($name, || mappings::before_sending(socket, $flags).map(|()| 0)) != 0 {
                    return -1;
                }
                // SAFETY: the caller meets the requirements of this function.
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

/// Implements `rsocket`.
#[unsafe(export_name = "ethernot_rsocket")]
pub(crate) extern "C" fn rsocket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: all arguments are numbers, so no memory is accessed.
    let made = unsafe { libc::socket(family, kind, protocol) };
    if made >= 0 {
        mappings::forget(made);
    }
    made
}

/// Implements `rlisten`.
#[unsafe(export_name = "ethernot_rlisten")]
pub(crate) extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    // SAFETY: all arguments are numbers, so no memory is accessed.
    if unsafe { libc::listen(socket, backlog) } != 0 {
        return -1;
    }
    number("rlisten", || mappings::on_listen(socket).map(|()| 0))
}

/// Implements `raccept`.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `accept`.
#[unsafe(export_name = "ethernot_raccept")]
pub(crate) unsafe extern "C" fn raccept(
    socket: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    let made = unsafe { libc::accept(socket, address, len) };
    if made >= 0 {
        mappings::on_accept(socket, made);
    }
    made
}

/// Implements `rconnect`.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `connect`.
#[unsafe(export_name = "ethernot_rconnect")]
pub(crate) unsafe extern "C" fn rconnect(
    socket: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    let connected = unsafe { libc::connect(socket, address, len) };
    let number = errno();
    if connected == 0 || number == libc::EINPROGRESS {
        mappings::on_connect(socket);
        set_errno(number);
    }
    connected
}

/// Implements `rshutdown`.
#[unsafe(export_name = "ethernot_rshutdown")]
pub(crate) extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    if how != libc::SHUT_RD {
        mappings::on_last(socket);
    }
    // SAFETY: all arguments are numbers, so no memory is accessed.
    unsafe { libc::shutdown(socket, how) }
}

/// Implements `rclose`.
#[unsafe(export_name = "ethernot_rclose")]
pub(crate) extern "C" fn rclose(socket: c_int) -> c_int {
    mappings::on_close(socket);
    // SAFETY: the argument is a number, so no memory is accessed.
    unsafe { libc::close(socket) }
}

/// Implements `rsetsockopt`. Of the options of level `SOL_RDMA`, only `RDMA_IOMAPSIZE`, the number
/// of mappings, has an effect.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `setsockopt`.
#[unsafe(export_name = "ethernot_rsetsockopt")]
pub(crate) unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == LEVEL_RDMA && name == IO_MAP_SIZE {
        // SAFETY: the caller meets the requirements of this function.
        let maps = unsafe { value.cast::<c_int>().as_ref() };
        let enough = len as usize >= size_of::<c_int>();
        return number("rsetsockopt", || match maps {
            Some(maps) if enough => mappings::want(socket, *maps).map(|()| 0),
            _ => invalid("the value of RDMA_IOMAPSIZE is null or too short"),
        });
    }
    if level == LEVEL_RDMA {
        return 0;
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe { libc::setsockopt(socket, level, name, value, len) }
}

/// Implements `rgetsockopt`. For the number of mappings, returns the value of the socket. For other
/// options of level `SOL_RDMA`, returns the default values of librdmacm.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `getsockopt`.
#[unsafe(export_name = "ethernot_rgetsockopt")]
pub(crate) unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if level != LEVEL_RDMA {
        // SAFETY: the caller meets the requirements of this function.
        return unsafe { libc::getsockopt(socket, level, name, value, len) };
    }
    let Some(usual) = usize::try_from(name).ok().and_then(|name| USUAL.get(name)) else {
        set_errno(libc::ENOTSUP);
        return -1;
    };
    // SAFETY: the caller meets the requirements of this function.
    if value.is_null() || len.is_null() || unsafe { *len } < size_of::<c_int>() as socklen_t {
        set_errno(libc::EINVAL);
        return -1;
    }
    let number = if name == IO_MAP_SIZE { mappings::wanted(socket) } else { *usual };
    // SAFETY: the check above guarantees room for a number.
    unsafe {
        value.cast::<c_int>().write_unaligned(number);
        *len = size_of::<c_int>() as socklen_t;
    }
    0
}

/// Implements `riomap`.
#[unsafe(export_name = "ethernot_riomap")]
pub(crate) extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    // After this call, peers may write to the mapped memory, so expose the provenance of its
    // address.
    let address = buffer.expose_provenance();
    signed("riomap", || mappings::map(socket, address, len, protection, offset))
}

/// Implements `riounmap`.
#[unsafe(export_name = "ethernot_riounmap")]
pub(crate) extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, len: size_t) -> c_int {
    number("riounmap", || mappings::unmap(socket, buffer.addr(), len).map(|()| 0))
}

/// Implements `riowrite`.
///
/// # Safety
/// `buffer` must have `count` readable bytes.
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
        // SAFETY: the caller meets the requirements of this function.
        let written = unsafe { mappings::write(socket, buffer.cast(), count, offset, flags) };
        written.map(|written| written.cast_signed() as i64)
    });
    written as ssize_t
}

/// Returns the address that `call` reports for a socket. `call` is `getsockname` or `getpeername`.
fn address_of(
    socket: c_int,
    call: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    let mut address = storage(None);
    let mut len = size_of_val(&address) as socklen_t;
    // SAFETY: the buffer has room for an address of any family.
    if unsafe { call(socket, (&raw mut address).cast(), &raw mut len) } != 0 {
        return None;
    }
    // SAFETY: the call has written an address, or it has left the family unspecified.
    let known = unsafe { of_c((&raw const address).cast()) }.ok()??;
    Some(SocketAddr::new(known.ip().to_canonical(), known.port()))
}

/// Returns the address of a socket's peer.
fn peer_of(socket: c_int) -> Option<SocketAddr> {
    address_of(socket, libc::getpeername)
}

/// Returns the `errno` of this thread.
fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// Value of `SOL_RDMA`.
const LEVEL_RDMA: c_int = 0x10000;

/// Value of `RDMA_IOMAPSIZE`.
const IO_MAP_SIZE: c_int = 3;

/// Default values of `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE` and `RDMA_IOMAPSIZE`.
const USUAL: [c_int; 4] = [384, 384, 64, 0];
