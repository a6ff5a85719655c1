//! Receiving: buffers the kernel fills and what it says about them.

use std::alloc::{self, Layout};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use libc::{c_uint, iovec, mmsghdr};

use super::address::SocketName;
use super::control::{Ancillary, CONTROL_BYTES, ControlBuffer};

/// Most messages one system call receives: beyond it the call itself is below 2 % of the cost.
pub(super) const MESSAGES_MAX: usize = 16;

/// Bytes of one buffer: the kernel coalesces up to the largest IP packet, 65535 bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Buffers for one system call's messages, and the descriptions of them that the kernel reads and
/// writes.
///
/// All of it lies behind raw pointers because the descriptions point at the buffers and at each
/// other: it is set up once, and a call resets only what the call before has changed.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    arena: NonNull<Arena>,
    /// Messages whose description the last call has changed.
    used: usize,
    /// Messages in one call, 1 to [`MESSAGES_MAX`].
    messages_max: usize,
    /// Frames in the fullest of the latest messages; forgets by a quarter per call.
    frames_per_message: usize,
    /// Calls in a row that found something.
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

/// One received message, lent by the ring.
#[derive(Debug)]
pub(super) struct Received<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) from: &'a SocketName,
    pub(super) ancillary: Ancillary,
    /// Whether bytes are missing.
    pub(super) is_truncated: bool,
}

impl ReceiveRing {
    /// A ring for `messages_max` messages per call, brought into its range.
    pub(super) fn new(messages_max: usize) -> Self {
        // Zeroed by the allocator, so that buffers never used cost no memory.
        let layout = Layout::new::<Arena>();
        // SAFETY: the layout is not empty.
        #[expect(clippy::cast_ptr_alignment, reason = "the allocator aligns as the layout asks")]
        let arena = unsafe { alloc::alloc_zeroed(layout) }.cast::<Arena>();
        let Some(owned) = NonNull::new(arena) else { alloc::handle_alloc_error(layout) };
        for index in 0..MESSAGES_MAX {
            // SAFETY: `arena` points to a live allocation nothing else knows, all of whose fields may be zero; the
            // index is below the length of each of its arrays.
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

    /// Messages to ask for when `frames` frames are wanted.
    ///
    /// One while single frames come now and then, as in an exchange of small messages: a call for
    /// more would look again behind the one that came, and that look, which finds nothing, costs as
    /// much as the reception itself.
    pub(super) fn messages_for(&self, frames: usize) -> usize {
        if self.frames_per_message == 1 && self.streak < STREAK_MIN {
            return 1;
        }
        frames.div_ceil(self.frames_per_message).clamp(1, self.messages_max)
    }

    /// Notes whether the latest call found anything.
    pub(super) fn note_found(&mut self, found: bool) {
        self.streak = if found { self.streak.saturating_add(1) } else { 0 };
    }

    /// Calls in a row that found something.
    pub(super) const fn streak(&self) -> u8 {
        self.streak
    }

    /// Notes that the latest call's fullest message held `frames` frames.
    pub(super) fn note_fullest(&mut self, frames: usize) {
        self.frames_per_message =
            frames.max(self.frames_per_message - self.frames_per_message / 4).max(1);
    }

    /// Receives up to `messages` messages; fewer mean that no more wait.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>, messages: usize) -> io::Result<usize> {
        assert!(messages <= self.messages_max);
        self.reset();
        let arena = self.arena.as_ptr();
        if messages == 1 {
            // The C library's function is a point of cancellation, which costs two atomic operations in a program with
            // threads; no thread is cancelled here. SAFETY: the description, set up in `new`, points into the arena,
            // which lives as long as `self`; nothing borrows from it because `self` is borrowed mutably.
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
            // SAFETY: as above.
            unsafe { (*arena).headers[0].msg_len = received as c_uint };
            self.used = 1;
            return Ok(1);
        }
        // SAFETY: as above, for the first `messages` descriptions.
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

    /// Message `index` of the latest call.
    pub(super) fn message(&mut self, index: usize) -> Received<'_> {
        assert!(index < self.used);
        let arena = self.arena.as_ptr();
        // SAFETY: the arena lives as long as `self`, from which the result borrows mutably; `index`
        // is in range; each reference is to a part of its own. The kernel has written at most
        // BUFFER_BYTES bytes and zeroes were there before it.
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

    /// Undoes what the last call did to the descriptions.
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
        // SAFETY: it was allocated in `new` with this layout and is given back once; it holds
        // nothing that wants dropping.
        unsafe { alloc::dealloc(self.arena.as_ptr().cast(), Layout::new::<Arena>()) };
    }
}

// SAFETY: the ring owns what its pointers point to.
unsafe impl Send for ReceiveRing {}

/// A datagram that failed, as the error queue reports.
pub(super) struct Failed {
    /// Where it was sent.
    pub(super) name: SocketName,
    /// Length of the control data.
    pub(super) control_bytes: usize,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
}

impl Failed {
    /// How it began, as far as the report quotes it.
    pub(super) fn head(&self) -> &[u8] {
        self.head.get(..self.head_bytes).unwrap_or(&self.head)
    }
}

/// Reads one message from the error queue, its control data into `control`.
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
    // SAFETY: every pointer in `header` is to a local or to `control`, with its length.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let control_bytes = header.msg_controllen.min(CONTROL_BYTES);
    Ok(Failed { name, control_bytes, head, head_bytes: received.unsigned_abs() })
}

/// Bytes of a failed datagram that are read: more than it takes to know it.
const HEAD_BYTES: usize = 64;
const _: () = assert!(HEAD_BYTES >= delivery::QUOTED_BYTES);

const _: () = assert!(size_of::<SocketName>() >= SocketName::BYTES as usize);
/// Calls in a row that find something after which more than one message is asked for: with fewer it
/// is an exchange of small messages, with more a stream.
const STREAK_MIN: u8 = 2;
