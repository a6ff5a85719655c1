//! Sends frames: builds them in slots and passes them to the kernel in batches.
//!
//! A ring shared with the kernel (`PACKET_TX_RING`) would save a copy in the kernel, but costs
//! twice as much per frame. Also, the kernel may still read a frame in such a ring after it has
//! reported the frame as sent.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use delivery::TxBatch;
use libc::{c_uint, iovec, mmsghdr};
use wire_edge::EnvelopeKind;

use crate::ethernet::{Framing, HEADERS_BYTES_MAX, Station};
use crate::payload::{CopyError, PayloadCopier};

/// Maximum number of frames in one system call.
pub(super) const FRAMES_MAX: usize = 32;

/// Slots for frames, and the message headers for the kernel. Allocates only when created.
#[derive(Debug)]
pub(super) struct Transmitter {
    slots: Vec<u8>,
    slot_bytes: usize,
    /// Number of bytes of the frame in each slot; 0 if the frame did not fit into its slot.
    lengths: Vec<usize>,
    vectors: Vec<iovec>,
    messages: Vec<mmsghdr>,
    copier: PayloadCopier,
}

/// The result of building frames in slots.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// Number of frames of the batch that were processed. Frames that do not fit are included; they
    /// are lost.
    pub(super) frames: usize,
    /// Number of processed frames that do not fit into their slots.
    pub(super) too_big: usize,
    /// The error that prevented building the next frame.
    pub(super) failed: Option<CopyError>,
}

impl Transmitter {
    /// Creates slots for frames of at most `frame_bytes_max` bytes.
    pub(super) fn new(frame_bytes_max: u16) -> Self {
        let slot_bytes =
            (usize::from(frame_bytes_max) + HEADERS_BYTES_MAX).next_multiple_of(CACHE_LINE_BYTES);
        Self {
            slots: vec![0; slot_bytes * FRAMES_MAX],
            slot_bytes,
            lengths: Vec::with_capacity(FRAMES_MAX),
            vectors: Vec::with_capacity(FRAMES_MAX),
            messages: Vec::with_capacity(FRAMES_MAX),
            copier: PayloadCopier::new(FRAMES_MAX),
        }
    }

    /// Builds frames of the batch from frame `first` on, at most [`FRAMES_MAX`].
    pub(super) fn build(
        &mut self,
        framing: &Framing,
        to: (Station, u16),
        batch: &TxBatch,
        first: usize,
    ) -> Built {
        let front = framing.header_bytes();
        let count = FRAMES_MAX.min(batch.len() - first);
        let mut built = Built { frames: count, ..Built::default() };
        self.lengths.clear();
        self.copier.clear();
        for (slot, index) in self.slots.chunks_exact_mut(self.slot_bytes).zip(first..first + count)
        {
            let frame = batch.frame(index);
            let Some(room) = slot.get_mut(front..front + frame.len()) else {
                self.lengths.push(0);
                built.too_big += 1;
                continue;
            };
            let (header, payload) = room.split_at_mut(frame.header.len());
            header.copy_from_slice(frame.header);
            // SAFETY: the slot has room for the payload, and no code uses it before `copy` below.
            unsafe { self.copier.push(payload.as_mut_ptr(), frame.payload) };
            self.lengths.push(front + frame.len());
        }
        if let Err(error) = self.copier.copy() {
            built.frames = self.frames_of_payloads(batch, first, error.whole);
            built.failed = Some(error);
        }
        self.finish(framing, to, built.frames);
        built
    }

    /// Builds one frame without content, and the message header for it.
    pub(super) fn build_empty(
        &mut self,
        framing: &Framing,
        kind: EnvelopeKind,
        to: (Station, u16),
    ) {
        self.vectors.clear();
        if let Some(slot) = self.slots.get_mut(..framing.header_bytes())
            && framing.put(kind, to, slot)
        {
            self.vectors.push(iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() });
        }
        self.describe();
    }

    /// Finds the frame of the batch whose payload has the index `payload` among the payloads that
    /// were copied. Returns the number of frames from `first` up to that frame, without that frame.
    #[cold]
    fn frames_of_payloads(&self, batch: &TxBatch, first: usize, payload: usize) -> usize {
        let mut payloads = 0;
        for (index, &length) in self.lengths.iter().enumerate() {
            if length > 0 && batch.frame(first + index).payload.len > 0 {
                if payloads == payload {
                    return index;
                }
                payloads += 1;
            }
        }
        self.lengths.len()
    }

    /// Writes the headers of the first `count` frames. Also writes message headers for the frames
    /// that fit into their slots.
    fn finish(&mut self, framing: &Framing, to: (Station, u16), count: usize) {
        self.vectors.clear();
        let slots = self.slots.chunks_exact_mut(self.slot_bytes);
        for (slot, &length) in slots.zip(&self.lengths).take(count) {
            if length > 0
                && let Some(frame) = slot.get_mut(..length)
                && framing.put(EnvelopeKind::Frame, to, frame)
            {
                self.vectors.push(iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: length });
            }
        }
        self.describe();
    }

    /// Builds the message headers. A single frame needs no message header, because
    /// [`send`](Self::send) passes it directly.
    fn describe(&mut self) {
        self.messages.clear();
        if self.vectors.len() == 1 {
            return;
        }
        for vector in &mut self.vectors {
            // SAFETY: all-zero bytes are a valid `mmsghdr`. The message needs no address, because
            // the socket is bound.
            let mut message: mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = ptr::from_mut(vector);
            message.msg_hdr.msg_iovlen = 1;
            self.messages.push(message);
        }
    }

    /// Returns how many frames of the last build, including lost frames, come before sendable frame
    /// `index`.
    #[cold]
    pub(super) fn frames_before(&self, index: usize) -> usize {
        let fitting = self.lengths.iter().enumerate().filter(|(_, length)| **length > 0);
        fitting.map(|(frame, _)| frame).nth(index).unwrap_or(self.lengths.len())
    }

    /// Returns the number of sendable frames: those of the last build that [`send`](Self::send) can
    /// pass to the kernel.
    pub(super) fn described(&self) -> usize {
        self.vectors.len()
    }

    /// Returns the number of bytes of sendable frame `index`, including its headers.
    pub(super) fn bytes_of(&self, index: usize) -> usize {
        self.vectors.get(index).map_or(0, |vector| vector.iov_len)
    }

    /// Passes the sendable frames from frame `first` on to the kernel. Returns how many the kernel
    /// accepted, at least 1.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        if let Some([piece]) = self.vectors.get(first..) {
            // The call is cheaper without a message header, which the kernel would have to copy and
            // check. The raw system call avoids the C library's function, which is a cancellation
            // point and costs two atomic operations in a program with threads.
            let no_address: *const libc::sockaddr = ptr::null();
            let nothing: libc::c_ulong = 0;
            // SAFETY: `piece` describes a frame in `slots`, which the kernel only reads.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    socket.as_raw_fd(),
                    piece.iov_base,
                    piece.iov_len,
                    SEND_FLAGS,
                    no_address,
                    nothing,
                )
            };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        let Some(messages) = self.messages.get_mut(first..) else { return Ok(0) };
        // SAFETY: each message has one entry, a frame in `slots`, which the kernel only reads. The
        // kernel writes only the `msg_len` of each message.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as c_uint,
                SEND_FLAGS,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

// SAFETY: the pointers refer to `slots` and `vectors`. These are never reallocated, and moving the
// transmitter does not move their memory.
unsafe impl Send for Transmitter {}

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Size of a cache line in bytes. If the allocation starts at a cache line, each slot does, too.
const CACHE_LINE_BYTES: usize = 64;
