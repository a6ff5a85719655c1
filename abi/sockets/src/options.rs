//! Handles calls of the program that read and set the options and addresses of a connection.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;

use libc::{c_int, c_void, sockaddr, socklen_t};
use sockets::Reason;

use crate::answering::{Answering, answering, borrowed};
use crate::asking::{Asked, ask};
use crate::next::{call_next, fail, interpose};
use crate::socket::{Owner, Socket};
use crate::table::{self, is_known};
use crate::{addresses, information, results};

interpose! {
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int,
        else -1, if is_known(fd), by asked(fd, level, name, value, length);
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int,
        else -1, if is_known(fd), by set(fd, level, name, value, length);
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else -1, if is_known(fd), by local(fd, address, length);
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else -1, if is_known(fd), by peer(fd, address, length);
    shutdown(fd: c_int, how: c_int) -> c_int,
        else -1, if is_known(fd), by shut_down(fd, how);
}

/// # Safety
/// The arguments must satisfy the contract of the C function `getsockopt`.
unsafe fn asked(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Option<c_int> {
    let by_kernel = |fd: c_int| {
        call_next!(
            getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
                length: *mut socklen_t) -> c_int,
            else -1
        )
    };
    let connection = match ask(fd, || by_kernel(fd)) {
        Asked::Answered(result) => return Some(result),
        Asked::Moved(connection) => connection,
        Asked::Kernel => return None,
        Asked::NoDescriptor => return Some(fail(libc::EBADF, -1)),
    };
    let tcp = connection.tcp()?;
    let result = by_kernel(tcp.as_raw_fd());
    if result != 0 {
        return Some(result);
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let error = connection.take_error(borrowed(fd)).map_or(0, |error| error as c_int);
            // SAFETY: the kernel has written `length` bytes.
            unsafe {
                if *length as usize >= size_of::<c_int>()
                    && value.cast::<c_int>().read_unaligned() == 0
                {
                    value.cast::<c_int>().write_unaligned(error);
                }
            }
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            // SAFETY: the kernel has written `length` bytes.
            unsafe { information::correct(&connection, value, *length as usize) };
        }
        _ => {}
    }
    Some(result)
}

/// # Safety
/// The arguments must satisfy the contract of the C function `setsockopt`.
unsafe fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Option<c_int> {
    let on = || {
        let has_value = length as usize >= size_of::<c_int>() && !value.is_null();
        // SAFETY: the caller passes a value of `length` bytes.
        has_value.then(|| unsafe { value.cast::<c_int>().read_unaligned() } != 0)
    };
    if let Some(socket) = table::socket(fd).filter(|socket| socket.owner == Owner::Own) {
        let begun = socket.begun();
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                begun.zip(on()).inspect(|(connection, on)| connection.set_no_delay(*on));
            }
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                begun.zip(on()).inspect(|(connection, on)| connection.set_cork(*on));
            }
            // Out-of-band data, and notifications in the error queue of the kernel, exist only on
            // TCP.
            (libc::SOL_SOCKET, libc::SO_OOBINLINE | libc::SO_ZEROCOPY | libc::SO_TIMESTAMPING)
                if on() == Some(true) =>
            {
                match begun {
                    None => crate::passing::leave_to_kernel(fd),
                    Some(connection) => {
                        connection.stay(Reason::OnlyTcp);
                    }
                }
            }
            _ => {}
        }
    }
    let by_kernel = |fd: c_int| {
        call_next!(
            setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
                length: socklen_t) -> c_int,
            else -1
        )
    };
    let connection = match ask(fd, || by_kernel(fd)) {
        Asked::Answered(result) => return Some(result),
        Asked::Moved(connection) => connection,
        Asked::Kernel => return None,
        Asked::NoDescriptor => return Some(fail(libc::EBADF, -1)),
    };
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) && on() == Some(true) {
        return Some(fail(libc::EOPNOTSUPP, -1));
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK) && on().is_some() {
        // The library itself holds corked bytes back, so do not cork TCP.
        return Some(0);
    }
    let tcp = connection.tcp()?;
    Some(by_kernel(tcp.as_raw_fd()))
}

/// # Safety
/// The arguments must satisfy the contract of the C function `getsockname`.
unsafe fn local(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> Option<c_int> {
    let by_kernel = || {
        call_next!(
            getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
            else -1
        )
    };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { give_address(fd, address, length, by_kernel, |socket| socket.local) }
}

/// # Safety
/// The arguments must satisfy the contract of the C function `getpeername`.
unsafe fn peer(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> Option<c_int> {
    let by_kernel = || {
        call_next!(
            getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
            else -1
        )
    };
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { give_address(fd, address, length, by_kernel, |socket| socket.peer) }
}

/// Writes an address of a moved connection. Leaves other connections to the kernel.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `getsockname`.
unsafe fn give_address(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    by_kernel: impl Fn() -> c_int,
    which: impl FnOnce(&Socket) -> SocketAddr,
) -> Option<c_int> {
    let known = table::socket(fd);
    match ask(fd, by_kernel) {
        Asked::Answered(result) => return Some(result),
        Asked::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Asked::Moved(_) => {}
        // If another process relays the connection, the kernel does not know the TCP address,
        // because the descriptor is not a TCP socket. So return the stored address.
        Asked::Kernel if known.as_ref().is_some_and(|socket| socket.owner == Owner::Other) => {}
        Asked::Kernel => return None,
    }
    let socket = known?;
    if address.is_null() || length.is_null() {
        return None;
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe { addresses::give(which(&socket), address, length) };
    Some(0)
}

/// # Safety
/// The arguments must satisfy the contract of the C function `shutdown`.
unsafe fn shut_down(fd: c_int, how: c_int) -> Option<c_int> {
    let connection = match answering(fd) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(counted) => {
            // Make the connection stay on TCP. It can no longer move, because a switch marker
            // cannot follow the end of the TCP stream.
            counted.stay(Reason::Short);
            return None;
        }
        Answering::Connection(connection) => connection,
    };
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Some(fail(libc::EINVAL, -1)),
    };
    Some(results::done(connection.shutdown(borrowed(fd), how)))
}
