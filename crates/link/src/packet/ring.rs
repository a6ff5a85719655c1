//! The kernel's receive ring: shared memory that this process reads without system calls.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket;
use crate::ethernet::{ETHERNET_BYTES, HEADERS_BYTES_MAX};

/// Slots that the kernel fills in order (`PACKET_RX_RING`, version 2). Each slot starts with a
/// header of the kernel. The first word of the header shows whether the kernel or this process owns
/// the slot.
///
/// Version 3 of the ring would pack frames into blocks. But the kernel passes a block to the
/// process only when the block is full, or when a timer of at least a millisecond expires.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    memory: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    /// Offset of each slot from the start of the memory, in bytes.
    offsets: Box<[u32]>,
    /// Index of the slot to read next: the oldest filled slot. If no slot is filled, the kernel
    /// fills this slot next.
    next: usize,
}

/// One received Ethernet frame, borrowed from the ring.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    /// The Ethernet frame without its tag, truncated to the slot.
    pub(crate) bytes: &'a mut [u8],
    /// True if the frame was longer than the slot.
    pub(super) is_truncated: bool,
    /// True if earlier frames were lost because the ring was full.
    pub(super) is_losing: bool,
    /// The VLAN tag that the kernel removed. [`VLAN_UNKNOWN`] if the kernel did not keep the tag.
    pub(super) tag: Option<u16>,
    /// Arrival time on the wall clock, in nanoseconds since 1970.
    pub(super) wall_ns: u64,
}

impl ReceiveRing {
    /// Creates a ring of about `ring_bytes` for frames of at most `frame_bytes_max`, not counting
    /// their headers.
    pub(super) fn new(
        socket: BorrowedFd<'_>,
        ring_bytes: u32,
        frame_bytes_max: u16,
    ) -> io::Result<Self> {
        let layout = RingLayout::new(ring_bytes, frame_bytes_max);
        socket::set_packet_option(
            socket,
            libc::PACKET_VERSION,
            libc::tpacket_versions::TPACKET_V2 as i32,
        )?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES,
            tp_block_nr: layout.blocks,
            tp_frame_size: layout.slot_bytes,
            tp_frame_nr: layout.blocks * layout.slots_per_block(),
        };
        // SAFETY: the request is plain data without pointers.
        unsafe {
            socket::set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        }
        let bytes = layout.blocks as usize * BLOCK_BYTES as usize;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: maps new memory at an address that the kernel chooses.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let slot_bytes = layout.slot_bytes as usize;
        Ok(Self { memory, bytes, slot_bytes, offsets: layout.offsets(), next: 0 })
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.offsets.len()
    }

    /// Returns the oldest frame in the ring. [`ReceiveRing::release`] returns its slot to the
    /// kernel.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Received<'_>> {
        let offset = *self.offsets.get(self.next)? as usize;
        // SAFETY: the slot is inside the mapping, because the kernel accepted the layout, and is
        // aligned to `ALIGNMENT_BYTES`.
        let slot = unsafe { self.memory.add(offset) };
        // SAFETY: this process and the kernel access the first word of a slot only with atomic
        // operations.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) }.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: each slot starts with a header. The kernel wrote it before the word that was
        // loaded with acquire ordering, and does not touch the slot until the word is cleared.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_mac).min(self.slot_bytes);
        let length = (header.tp_snaplen as usize).min(self.slot_bytes - start);
        // SAFETY: the range is inside the slot, which this process owns until `release`. There is
        // no other reference to the range, because this reference borrows `self` mutably.
        let bytes = unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().add(start), length) };
        // SAFETY: an address follows the header; the kernel wrote both.
        let kind = unsafe { slot.add(ADDRESS_AT).cast::<libc::sockaddr_ll>().read() }.sll_pkttype;
        let tag = if status & libc::TP_STATUS_VLAN_VALID != 0 {
            Some(header.tp_vlan_tci)
        } else {
            // The filter passes only broadcasts and frames to our station. If the kernel
            // nevertheless reports "for another host", it has removed a tag for a VLAN that this
            // host does not use.
            (kind == libc::PACKET_OTHERHOST).then_some(VLAN_UNKNOWN)
        };
        Some(Received {
            bytes,
            is_truncated: header.tp_len as usize > length,
            is_losing: status & libc::TP_STATUS_LOSING != 0,
            tag,
            wall_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
        })
    }

    /// Returns the slot of the last [`ReceiveRing::peek`] to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        let Some(&offset) = self.offsets.get(self.next) else { return };
        // SAFETY: the slot is inside the mapping and aligned. This process and the kernel access
        // its first word only with atomic operations.
        let status =
            unsafe { AtomicU32::from_ptr(self.memory.add(offset as usize).as_ptr().cast()) };
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next += 1;
        if self.next == self.offsets.len() {
            self.next = 0;
        }
    }
}

impl Drop for ReceiveRing {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and no borrow of it remains.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: in this process only the ring accesses the memory.
unsafe impl Send for ReceiveRing {}

/// The number and size of slots.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct RingLayout {
    slot_bytes: u32,
    blocks: u32,
}

impl RingLayout {
    fn new(ring_bytes: u32, frame_bytes_max: u16) -> Self {
        let frame_bytes = u32::from(frame_bytes_max) + HEADERS_BYTES_MAX as u32;
        let slot_bytes =
            (FRAME_AT + frame_bytes).next_multiple_of(ALIGNMENT_BYTES).min(BLOCK_BYTES);
        let mut layout = Self { slot_bytes, blocks: 1 };
        let slots = (ring_bytes / slot_bytes).clamp(SLOTS_MIN, SLOTS_MAX);
        layout.blocks = slots.div_ceil(layout.slots_per_block());
        layout
    }

    const fn slots_per_block(self) -> u32 {
        BLOCK_BYTES / self.slot_bytes
    }

    fn offsets(self) -> Box<[u32]> {
        let slots = 0..self.slots_per_block();
        (0..self.blocks)
            .flat_map(|block| {
                slots.clone().map(move |slot| block * BLOCK_BYTES + slot * self.slot_bytes)
            })
            .collect()
    }
}

/// A number that is not a valid VLAN, for a tag that the kernel did not keep.
const VLAN_UNKNOWN: u16 = 4095;

/// Offset of the sender's address in a slot (`tpacket_rcv`).
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

/// Alignment of slots in bytes: a cache line.
const ALIGNMENT_BYTES: u32 = 64;

/// Bytes of a block, which the kernel allocates contiguously. This is a multiple of every page
/// size, and holds the largest jumbo frame. A slot does not cross a block boundary.
const BLOCK_BYTES: u32 = 1 << 16;

/// Minimum number of slots. They hold a quarter of a millisecond of the smallest frames at 1 Gb/s.
const SLOTS_MIN: u32 = 512;

/// Maximum number of slots: four times the largest number of frames that a connection has in
/// flight.
const SLOTS_MAX: u32 = 8192;

/// Largest offset of an Ethernet frame in its slot, in bytes. The frame follows the kernel's header
/// and an address. The kernel aligns the bytes after the Ethernet header to 16 (`TPACKET2_HDRLEN`
/// and `tpacket_rcv`).
const FRAME_AT: u32 =
    (libc::TPACKET2_HDRLEN as u32 + 16).next_multiple_of(16) - ETHERNET_BYTES as u32;

const _: () = assert!(size_of::<libc::tpacket2_hdr>() < FRAME_AT as usize);
const _: () = assert!(FRAME_AT + HEADERS_BYTES_MAX as u32 + 9216 <= BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_the_largest_frame_and_stay_inside_their_block() {
        for frame_bytes in [256, 1488, 8988, 9204, 60_000] {
            let layout = RingLayout::new(4 << 20, frame_bytes);
            let needed = FRAME_AT + HEADERS_BYTES_MAX as u32 + u32::from(frame_bytes);
            assert!(layout.slot_bytes >= needed && layout.slot_bytes.is_multiple_of(16));
            let offsets = layout.offsets();
            assert!(offsets.len() >= SLOTS_MIN as usize);
            for pair in offsets.windows(2) {
                assert!(pair[0] + layout.slot_bytes <= pair[1]);
            }
            for offset in offsets {
                assert!(offset % BLOCK_BYTES + layout.slot_bytes <= BLOCK_BYTES);
            }
        }
    }
}
