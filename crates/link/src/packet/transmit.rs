//! Sending: frames are built in slots of our own and handed to the kernel many at a time.
//!
//! A ring shared with the kernel (`PACKET_TX_RING`) would save it a copy and costs twice as much a frame, and what it
//! sends must stay unchanged for longer than the kernel reports.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use delivery::TxBatch;
use libc::{c_uint, iovec, mmsghdr};
use wire_edge::EnvelopeKind;

use crate::ethernet::{Framing, HEADERS_BYTES_MAX, Station};
use crate::payload::{CopyError, PayloadCopier};

/// Most frames in one system call.
pub(super) const FRAMES_MAX: usize = 32;

/// Slots for frames, and the descriptions of them that the kernel reads. Allocates only when made.
#[derive(Debug)]
pub(super) struct Transmitter {
    slots: Vec<u8>,
    slot_bytes: usize,
    /// Bytes of the frame in each slot; 0 if it did not fit.
    lengths: Vec<usize>,
    vectors: Vec<iovec>,
    messages: Vec<mmsghdr>,
    copier: PayloadCopier,
}

/// Frames that lie ready in slots.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// Frames of the batch that have been looked at, those that are lost because they do not fit
    /// included.
    pub(super) frames: usize,
    /// Of these, the ones that do not fit.
    pub(super) too_big: usize,
    /// Why the frame behind them could not be built.
    pub(super) failed: Option<CopyError>,
}

impl Transmitter {
    /// For frames of at most `frame_bytes_max`.
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

    /// Builds the frames of the batch from `first` on, at most [`FRAMES_MAX`].
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
            // SAFETY: the slot has room for the payload, and nothing uses it before `copy` below.
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

    /// Builds one frame without content and describes it to the kernel.
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

    /// Frames from `first` on before the one whose payload is number `payload` among those copied.
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

    /// Writes the headers of the first `count` frames and describes those that fit to the kernel.
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

    /// Describes frames to the kernel; one by itself is [sent](Self::send) without.
    fn describe(&mut self) {
        self.messages.clear();
        if self.vectors.len() == 1 {
            return;
        }
        for vector in &mut self.vectors {
            // SAFETY: all-zero bytes are a valid `mmsghdr`: without an address, as the socket is bound.
            let mut message: mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = ptr::from_mut(vector);
            message.msg_hdr.msg_iovlen = 1;
            self.messages.push(message);
        }
    }

    /// Frames of the last build in front of described frame `index`, lost ones included.
    #[cold]
    pub(super) fn frames_before(&self, index: usize) -> usize {
        let fitting = self.lengths.iter().enumerate().filter(|(_, length)| **length > 0);
        fitting.map(|(frame, _)| frame).nth(index).unwrap_or(self.lengths.len())
    }

    /// Frames described to the kernel by the last build.
    pub(super) fn described(&self) -> usize {
        self.vectors.len()
    }

    /// Bytes of described frame `index`, headers included.
    pub(super) fn bytes_of(&self, index: usize) -> usize {
        self.vectors.get(index).map_or(0, |vector| vector.iov_len)
    }

    /// Hands described frames from `first` on to the kernel; returns how many it took, at least 1.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        if let Some([piece]) = self.vectors.get(first..) {
            // Without a description to copy and check, the call is cheaper; and not through the C
            // library, whose function is a point of cancellation, which costs two atomic operations
            // in a program with threads.
            let no_address: *const libc::sockaddr = ptr::null();
            let nothing: libc::c_ulong = 0;
            // SAFETY: the piece describes a frame in `slots`, which the kernel only reads.
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
        // SAFETY: each message has one piece, a frame in `slots`, which the kernel only reads; it
        // writes only the `msg_len` of each message.
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

// SAFETY: the pieces are addresses in `slots` and `vectors`, which are never reallocated and move
// with the transmitter without changing their place.
unsafe impl Send for Transmitter {}

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Slots begin on cache lines as far as the allocator does.
const CACHE_LINE_BYTES: usize = 64;
