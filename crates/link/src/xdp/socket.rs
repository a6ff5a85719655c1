//! Sockets of the address family `AF_XDP`.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, socklen_t, xdp_desc, xdp_mmap_offsets, xdp_statistics, xdp_umem_reg};

use super::rings::{ConsumerRing, Mapping, ProducerRing, RingKind};

/// Sizes of a socket's rings and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketShape {
    /// Size of one chunk of memory, in bytes: 2048 or 4096.
    pub(crate) chunk_bytes: u32,
    /// Total number of chunks.
    pub(crate) chunks: u32,
    /// Number of entries of the fill ring, a power of two.
    pub(crate) fill_entries: u32,
    /// Number of entries of the receive ring, a power of two.
    pub(crate) receive_entries: u32,
    /// Number of entries of the transmit ring and of the completion ring, a power of two.
    pub(crate) transmit_entries: u32,
}

/// A socket with its rings and memory. The socket may be unbound.
#[derive(Debug)]
pub(crate) struct XdpSocket {
    pub(crate) fill: ProducerRing<u64>,
    pub(crate) completion: ConsumerRing<u64>,
    pub(crate) receive: ConsumerRing<xdp_desc>,
    pub(crate) transmit: ProducerRing<xdp_desc>,
    // This field is dropped before the memory of its frames is unmapped.
    fd: OwnedFd,
    pub(crate) memory: Mapping,
}

impl XdpSocket {
    /// Creates an unbound socket with rings and memory of these sizes.
    pub(crate) fn new(shape: &SocketShape) -> io::Result<Self> {
        let fd = open()?;
        let socket = fd.as_fd();
        let memory = Mapping::anonymous(shape.chunk_bytes as usize * shape.chunks as usize)?;
        // SAFETY: all-zero bytes are a valid registration.
        let mut registration: xdp_umem_reg = unsafe { zeroed() };
        registration.addr = memory.start().as_ptr().addr() as u64;
        registration.len = memory.bytes() as u64;
        registration.chunk_size = shape.chunk_bytes;
        set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)?;
        set_ring(socket, libc::XDP_UMEM_FILL_RING, shape.fill_entries)?;
        set_ring(socket, libc::XDP_UMEM_COMPLETION_RING, shape.transmit_entries)?;
        set_ring(socket, libc::XDP_RX_RING, shape.receive_entries)?;
        set_ring(socket, libc::XDP_TX_RING, shape.transmit_entries)?;
        // SAFETY: all-zero bytes are valid offsets.
        let mut offsets: xdp_mmap_offsets = unsafe { zeroed() };
        get_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
        let (filled, received) = (shape.fill_entries, shape.receive_entries);
        let sent = shape.transmit_entries;
        Ok(Self {
            fill: ProducerRing::map(socket, RingKind::Fill, filled, &offsets.fr)?,
            completion: ConsumerRing::map(socket, RingKind::Completion, sent, &offsets.cr)?,
            receive: ConsumerRing::map(socket, RingKind::Receive, received, &offsets.rx)?,
            transmit: ProducerRing::map(socket, RingKind::Transmit, sent, &offsets.tx)?,
            fd,
            memory,
        })
    }

    /// Binds the socket to a queue of an interface.
    pub(crate) fn bind(&self, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address is a local variable of the length given.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as socklen_t,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns whether the driver moves frames without a copy.
    pub(crate) fn is_zero_copy(&self) -> bool {
        let mut options = libc::xdp_options { flags: 0 };
        get_option(self.fd.as_fd(), libc::XDP_OPTIONS, &mut options).is_ok()
            && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
    }

    /// Returns the kernel's counters of the socket.
    pub(crate) fn statistics(&self) -> io::Result<xdp_statistics> {
        // SAFETY: all-zero bytes are valid counters.
        let mut statistics: xdp_statistics = unsafe { zeroed() };
        get_option(self.fd.as_fd(), libc::XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }

    /// Makes the kernel send frames of the transmit ring. The kernel sends all or some of them.
    #[inline]
    pub(crate) fn kick(&self) -> io::Result<()> {
        // The raw system call avoids the C library's function, which is a cancellation point.
        // SAFETY: no bytes are sent, and no address is passed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.fd.as_raw_fd(),
                ptr::null::<u8>(),
                0_usize,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                ptr::null::<u8>(),
                0_usize,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the driver read the fill ring and, with busy polling, poll for frames.
    #[inline]
    pub(crate) fn wake_receiver(&self) {
        // SAFETY: no bytes are received, and no address is requested. An error is ignored, because
        // the caller polls the ring again.
        unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                self.fd.as_raw_fd(),
                ptr::null_mut::<u8>(),
                0_usize,
                libc::MSG_DONTWAIT,
                ptr::null_mut::<u8>(),
                ptr::null_mut::<u8>(),
            )
        };
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a socket without rings.
pub(crate) fn open() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the size of one of the rings.
pub(crate) fn set_ring(socket: BorrowedFd<'_>, option: c_int, entries: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_XDP, option, &entries)
}

pub(crate) fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value has the length given, and the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option that consists of numbers.
fn get_option<T: Copy>(socket: BorrowedFd<'_>, option: c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to the value, which consists of numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            ptr::from_mut(value).cast(),
            &raw mut bytes,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
