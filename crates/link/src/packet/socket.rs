//! The packet socket and its options.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};

use super::filter;
use crate::ethernet::Framing;

/// Opens a socket that receives no frames before [`bind`].
pub(super) fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: `socket` takes no pointers. With protocol 0 the socket receives nothing.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds the socket to the interface, for frames of our `EtherType`.
///
/// If frames have a VLAN, binds the socket for all protocols, and the filter selects frames of our
/// `EtherType`. The reason: before the kernel passes a frame to sockets bound to one `EtherType`,
/// the kernel discards the VLAN of the frame.
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

/// Makes the kernel pass only frames that [`filter::program`] accepts. Replaces an earlier filter.
pub(super) fn set_filter(socket: BorrowedFd<'_>, framing: &Framing) -> io::Result<()> {
    let mut program = filter::program(framing);
    let description = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a description is plain data, and the program to which it points outlives the call.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &description) }
}

/// Sets a numeric option of packet sockets.
pub(super) fn set_packet_option(
    socket: BorrowedFd<'_>,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the option takes an integer, and the value is one.
    unsafe { set_option(socket, libc::SOL_PACKET, name, &value) }
}

/// Sets the size of the send buffer. If the process has `CAP_NET_ADMIN`, the size may exceed the
/// system's limit.
pub(super) fn set_send_buffer(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: the option takes an integer, and the value is one.
    unsafe {
        set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }
}

/// Reads and clears the socket's error, which a change of the interface has set.
pub(super) fn take_error(socket: BorrowedFd<'_>) {
    let mut error: c_int = 0;
    // SAFETY: every bit pattern is a valid number.
    let _ = unsafe { option(socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) };
}

/// Returns the number of frames since the last call that the kernel dropped because the ring was
/// full.
pub(super) fn take_drops(socket: BorrowedFd<'_>) -> u32 {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    // SAFETY: every bit pattern is valid for the numbers.
    let read =
        unsafe { option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut statistics) };
    read.map_or(0, |()| statistics.tp_drops)
}

/// # Safety
/// `value` must be plain data of the type that the option requires. If it contains a pointer, the
/// memory to which it points must outlive the call.
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
/// Every bit pattern must be a valid `T`.
unsafe fn option<T>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as socklen_t;
    let pointer: *mut c_void = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, and the caller guarantees that any
    // bytes are a valid `T`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Creates a socket with its filter and options, ready to be bound.
pub(super) fn prepare(
    framing: &Framing,
    send_buffer_bytes: u32,
    qdisc_bypass: bool,
) -> io::Result<OwnedFd> {
    let socket = open()?;
    let fd = socket.as_fd();
    set_filter(fd, framing)?;
    set_send_buffer(fd, send_buffer_bytes)?;
    // Kernels before 4.20 do not have this option. On these kernels, the socket also receives the
    // frames that we send. The filter drops these frames, except the broadcasts that look for an
    // endpoint (Discover). The check of received frames drops our own broadcasts.
    let _ = set_packet_option(fd, libc::PACKET_IGNORE_OUTGOING, 1);
    if qdisc_bypass {
        set_packet_option(fd, libc::PACKET_QDISC_BYPASS, 1)?;
    }
    Ok(socket)
}
