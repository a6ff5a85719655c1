//! Receiving: the buffers that the kernel fills, and the control data of messages.

use std::alloc::{self, Layout};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use libc::{c_uint, iovec, mmsghdr};

use super::address::SocketName;
use super::control::{Ancillary, CONTROL_BYTES, ControlBuffer};

/// Maximum number of messages received by one system call. With 16 messages, the system call itself
/// is already below 2 % of the cost of receiving them.
pub(super) const MESSAGES_MAX: usize = 16;

/// Size of one buffer, in bytes. The kernel coalesces frames up to the size of the largest IP
/// packet, 65535 bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Buffers for the messages of one system call, and the message headers that the kernel reads and
/// writes.
///
/// All of this memory is behind raw pointers, because the message headers point to the buffers and
/// to each other. The headers are set up once. Before a call, only the fields that the last call
/// has changed are reset.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    arena: NonNull<Arena>,
    /// Number of messages whose headers the last call has changed.
    used: usize,
    /// Maximum number of messages in one call, 1 to [`MESSAGES_MAX`].
    messages_max: usize,
    /// Estimate of the number of frames in the fullest message. The estimate decays by a quarter
    /// per call.
    frames_per_message: usize,
    /// Number of consecutive calls that found messages.
    streak: u8,
}

struct Arena {
    headers: [mmsghdr; MESSAGES_MAX],
    slots: [Slot; MESSAGES_MAX],
    buffers: [[u8; BUFFER_BYTES]; MESSAGES_MAX],
}

struct Slot {
    vector: iovec,
    name: SocketName,
    control: ControlBuffer,
}

/// One received message, borrowed from the ring.
#[derive(Debug)]
pub(super) struct Received<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) from: &'a SocketName,
    pub(super) ancillary: Ancillary,
    /// True if the message was longer than the buffer.
    pub(super) is_truncated: bool,
}

impl ReceiveRing {
    /// Creates a ring for `messages_max` messages per call, clamped to the valid range.
    pub(super) fn new(messages_max: usize) -> Self {
        // The allocator zeroes the memory, so the kernel allocates no pages for unused buffers.
        let layout = Layout::new::<Arena>();
        // SAFETY: the layout is not empty.
        #[expect(clippy::cast_ptr_alignment, reason = "the allocator aligns as the layout asks")]
        let arena = unsafe { alloc::alloc_zeroed(layout) }.cast::<Arena>();
        let Some(owned) = NonNull::new(arena) else { alloc::handle_alloc_error(layout) };
        for index in 0..MESSAGES_MAX {
            // SAFETY: `arena` points to a live allocation that no other code refers to; all its
            // fields may be zero. The index is below the length of each array.
            unsafe {
                let slot = &raw mut (*arena).slots[index];
                (*slot).vector.iov_base = (&raw mut (*arena).buffers[index]).cast();
                (*slot).vector.iov_len = BUFFER_BYTES;
                let header = &raw mut (*arena).headers[index].msg_hdr;
                (*header).msg_name = (&raw mut (*slot).name).cast();
                (*header).msg_iov = &raw mut (*slot).vector;
                (*header).msg_iovlen = 1;
                (*header).msg_control = (&raw mut (*slot).control).cast();
            }
        }
        Self {
            arena: owned,
            used: MESSAGES_MAX,
            messages_max: messages_max.clamp(1, MESSAGES_MAX),
            frames_per_message: 1,
            streak: 0,
        }
    }

    /// Returns the number of messages to request when `frames` frames are wanted.
    ///
    /// Returns 1 while single frames arrive with pauses between them, like in an exchange of small
    /// messages. With a larger request, the kernel would search for a second message. This search
    /// would cost as much as the receive itself.
    pub(super) fn messages_for(&self, frames: usize) -> usize {
        if self.frames_per_message == 1 && self.streak < STREAK_MIN {
            return 1;
        }
        frames.div_ceil(self.frames_per_message).clamp(1, self.messages_max)
    }

    /// Records whether the latest call found messages.
    pub(super) fn note_found(&mut self, found: bool) {
        self.streak = if found { self.streak.saturating_add(1) } else { 0 };
    }

    /// Returns the number of consecutive calls that found messages.
    pub(super) const fn streak(&self) -> u8 {
        self.streak
    }

    /// Records that the fullest message of the latest call had `frames` frames.
    pub(super) fn note_fullest(&mut self, frames: usize) {
        self.frames_per_message =
            frames.max(self.frames_per_message - self.frames_per_message / 4).max(1);
    }

    /// Receives up to `messages` messages and returns their number. A lower number than requested
    /// means that no more messages wait.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>, messages: usize) -> io::Result<usize> {
        assert!(messages <= self.messages_max);
        self.reset();
        let arena = self.arena.as_ptr();
        if messages == 1 {
            // The raw system call avoids the C library's function, which is a cancellation point
            // and costs two atomic operations in a program with threads. This library cancels no
            // threads. SAFETY: the header, set up in `new`, points into the arena, which lives as
            // long as `self`. The arena has no other borrow, because `self` is borrowed mutably.
            let received = unsafe {
                libc::syscall(
                    libc::SYS_recvmsg,
                    socket.as_raw_fd(),
                    &raw mut (*arena).headers[0].msg_hdr,
                    libc::MSG_DONTWAIT,
                )
            };
            if received < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the header is in the arena, which lives as long as `self`. The arena has no
            // other borrow, because `self` is borrowed mutably.
            unsafe { (*arena).headers[0].msg_len = received as c_uint };
            self.used = 1;
            return Ok(1);
        }
        // SAFETY: the first `messages` headers, set up in `new`, point into the arena, which lives
        // as long as `self`. The arena has no other borrow, because `self` is borrowed mutably.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                (&raw mut (*arena).headers).cast::<mmsghdr>(),
                messages as c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        self.used = received as usize;
        Ok(self.used)
    }

    /// Returns message `index` of the latest call.
    pub(super) fn message(&mut self, index: usize) -> Received<'_> {
        assert!(index < self.used);
        let arena = self.arena.as_ptr();
        // SAFETY: the arena lives as long as `self`, from which the result borrows mutably. `index`
        // is in range, and the references are to distinct parts. The kernel has written at most
        // `BUFFER_BYTES` bytes, and all bytes were initialised to zero before.
        unsafe {
            let header = &(*arena).headers[index];
            let slot = &(*arena).slots[index];
            let len = (header.msg_len as usize).min(BUFFER_BYTES);
            let bytes = (&raw mut (*arena).buffers[index]).cast::<u8>();
            let control_len = (header.msg_hdr.msg_controllen).min(CONTROL_BYTES);
            Received {
                bytes: core::slice::from_raw_parts_mut(bytes, len),
                from: &slot.name,
                ancillary: Ancillary::parse(&slot.control.0[..control_len]),
                is_truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            }
        }
    }

    /// Resets the message headers that the last call has changed.
    fn reset(&mut self) {
        let arena = self.arena.as_ptr();
        for index in 0..self.used {
            // SAFETY: the arena lives as long as `self` and `used` is at most MESSAGES_MAX.
            unsafe {
                let header = &raw mut (*arena).headers[index].msg_hdr;
                (*header).msg_namelen = SocketName::BYTES;
                (*header).msg_controllen = CONTROL_BYTES as _;
                (*header).msg_flags = 0;
            }
        }
        self.used = 0;
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: the arena was allocated in `new` with this layout and is freed once. Its content
        // needs no drop.
        unsafe { alloc::dealloc(self.arena.as_ptr().cast(), Layout::new::<Arena>()) };
    }
}

// SAFETY: the ring owns the memory to which its pointers point.
unsafe impl Send for ReceiveRing {}

/// A failed datagram in the error queue.
pub(super) struct Failed {
    /// The destination of the datagram.
    pub(super) name: SocketName,
    /// Length of the control data, in bytes.
    pub(super) control_bytes: usize,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
}

impl Failed {
    /// Returns the start of the failed datagram, which the kernel's error report quotes.
    pub(super) fn head(&self) -> &[u8] {
        self.head.get(..self.head_bytes).unwrap_or(&self.head)
    }
}

/// Reads one message from the error queue, and writes its control data to `control`.
pub(super) fn receive_error(
    socket: BorrowedFd<'_>,
    control: &mut ControlBuffer,
) -> io::Result<Failed> {
    let mut name = SocketName::default();
    let mut head = [0_u8; HEAD_BYTES];
    let mut vector = iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = SocketName::BYTES;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in `header` points to a local variable or to `control`, with its
    // length.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let control_bytes = header.msg_controllen.min(CONTROL_BYTES);
    Ok(Failed { name, control_bytes, head, head_bytes: received.unsigned_abs() })
}

/// Number of bytes of a failed datagram that are read. Fewer bytes would be enough to identify its
/// frame.
const HEAD_BYTES: usize = 64;
const _: () = assert!(HEAD_BYTES >= delivery::QUOTED_BYTES);

const _: () = assert!(size_of::<SocketName>() >= SocketName::BYTES as usize);
/// Number of consecutive calls that must find messages before the link requests more than one
/// message per call. A shorter series is typical of an exchange of small messages, a longer series
/// of a stream.
const STREAK_MIN: u8 = 2;
