//! The packet socket: opening it, and the options that the link needs.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};

use super::filter;
use crate::ethernet::Framing;

/// A socket that receives nothing before [`bind`].
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `socket` takes no pointers. Protocol 0 receives nothing.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives from now on frames of our `EtherType` on the interface, and sends there.
///
/// With a VLAN, frames of all kinds are the filter's to look at: before the kernel passes a frame to
/// those who want one `EtherType`, it forgets of which VLAN the frame was.
pub(super) fn bind(
    socket: BorrowedFd<'_>,
    interface_index: u32,
    framing: &Framing,
) -> io::Result<()> {
    let protocol = match framing.vlan {
        Some(_) => libc::ETH_P_ALL as u16,
        None => framing.ethertype,
    };
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`.
    let mut name: libc::sockaddr_ll = unsafe { zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = protocol.to_be();
    name.sll_ifindex = interface_index.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as socklen_t;
    // SAFETY: `name` is `len` initialised bytes, which the kernel only reads.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the kernel pass only what [`filter::program`] passes, instead of what passed before.
pub(super) fn set_filter(socket: BorrowedFd<'_>, framing: &Framing) -> io::Result<()> {
    let mut program = filter::program(framing);
    let description = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a description is plain data; the program it points at outlives the call.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &description) }
}

/// Sets a numeric option of packet sockets.
pub(super) fn set_packet_option(
    socket: BorrowedFd<'_>,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: a number is plain data.
    unsafe { set_option(socket, libc::SOL_PACKET, name, &value) }
}

/// Asks for a send buffer, beyond the system's limit if that is permitted.
pub(super) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: a number is plain data.
    unsafe {
        set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }
}

/// Reads, and forgets, the error of what has happened to the interface.
pub(super) fn take_error(socket: BorrowedFd<'_>) {
    let mut error: c_int = 0;
    // SAFETY: a number may hold any bytes.
    let _ = unsafe { option(socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) };
}

/// Frames that found the ring full since the last call.
pub(super) fn take_drops(socket: BorrowedFd<'_>) -> u32 {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    // SAFETY: the numbers may hold any bytes.
    let read =
        unsafe { option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics) };
    read.map_or(0, |()| statistics.tp_drops)
}

/// # Safety
/// `value` is plain data that the option takes, and what it points at, if anything, outlives the
/// call.
pub(super) unsafe fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let pointer: *const c_void = std::ptr::from_ref(value).cast();
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, pointer, size_of_val(value) as socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
/// Any bytes are a valid `T`.
unsafe fn option<T>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as socklen_t;
    let pointer: *mut c_void = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the caller answers for them.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket, with the ring and the filter that belong to it, that is ready to be bound.
pub(super) fn prepare(
    framing: &Framing,
    send_buffer_bytes: u32,
    qdisc_bypass: bool,
) -> io::Result<OwnedFd> {
    let socket = open()?;
    let fd = socket.as_fd();
    set_filter(fd, framing)?;
    set_send_buffer(fd, send_buffer_bytes)?;
    // Kernels before 4.20 do not know it; the filter then drops all of our own but questions by
    // broadcast, which the check drops.
    let _ = set_packet_option(fd, libc::PACKET_IGNORE_OUTGOING, 1);
    if qdisc_bypass {
        set_packet_option(fd, libc::PACKET_QDISC_BYPASS, 1)?;
    }
    Ok(socket)
}
