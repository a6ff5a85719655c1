//! Safe wrappers of socket calls.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};

use super::address::{Family, SocketName};

/// Opens a non-blocking UDP socket that is closed on exec.
pub(super) fn open(family: Family) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(family.number(), kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds the socket to an address.
pub(super) fn bind(socket: BorrowedFd<'_>, name: &SocketName) -> io::Result<()> {
    // SAFETY: `name` points to `name.len()` initialised bytes during the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), name.as_ptr(), name.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Connects the socket to a peer. The socket then receives from this peer only, and sends without
/// an address.
pub(super) fn connect(socket: BorrowedFd<'_>, name: &SocketName) -> io::Result<()> {
    // SAFETY: `name` points to `name.len()` initialised bytes during the call.
    let result = unsafe { libc::connect(socket.as_raw_fd(), name.as_ptr(), name.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the address to which the socket is bound.
pub(super) fn local_name(socket: BorrowedFd<'_>) -> io::Result<SocketName> {
    let mut name = SocketName::default();
    let mut len = SocketName::BYTES;
    // SAFETY: `name` has room for `len` bytes, and the kernel does not write more.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), name.as_mut_ptr(), &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(name) }
}

/// Sets an integer option.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an integer option.
pub(super) fn option(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
