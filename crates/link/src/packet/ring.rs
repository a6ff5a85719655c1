//! The ring that the kernel receives to: shared memory, read without system calls.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket;
use crate::ethernet::{ETHERNET_BYTES, HEADERS_BYTES_MAX};

/// Slots that the kernel fills in order (`PACKET_RX_RING`, version 2). Each begins with a header of
/// the kernel's, whose first word says whose the slot is.
///
/// Version 3 packs frames into blocks, but passes a block on only when it is full or a timer of at
/// least a millisecond has fired.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    memory: NonNull<u8>,
    bytes: usize,
    slot_bytes: usize,
    /// Where each slot begins, in bytes from the start of the memory.
    offsets: Box<[u32]>,
    /// Index of the slot that the kernel fills next or has filled longest ago.
    next: usize,
}

/// One received Ethernet frame, lent by the ring.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    /// The Ethernet frame without its tag, as far as the slot could hold it.
    pub(crate) bytes: &'a mut [u8],
    /// Bytes did not fit the slot.
    pub(super) is_truncated: bool,
    /// Frames before this one have found the ring full.
    pub(super) is_losing: bool,
    /// What the tag said that the kernel has taken off; [`VLAN_UNKNOWN`] if it has forgotten.
    pub(super) tag: Option<u16>,
    /// When it arrived, on the wall clock.
    pub(super) wall_ns: u64,
}

impl ReceiveRing {
    /// A ring of about `ring_bytes` for frames of `frame_bytes_max` behind their headers.
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
        // SAFETY: maps new memory at an address of the kernel's choice.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let slot_bytes = layout.slot_bytes as usize;
        Ok(Self { memory, bytes, slot_bytes, offsets: layout.offsets(), next: 0 })
    }

    /// Slots of the ring.
    pub(super) fn slots(&self) -> usize {
        self.offsets.len()
    }

    /// The frame that has waited longest, until it is given back by [`ReceiveRing::release`].
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<Received<'_>> {
        let offset = *self.offsets.get(self.next)? as usize;
        // SAFETY: the slot is inside the mapping, as the kernel has agreed to the layout, and
        // begins on a multiple of `ALIGNMENT_BYTES`.
        let slot = unsafe { self.memory.add(offset) };
        // SAFETY: the first word of a slot is only ever accessed atomically, by us and the kernel.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) }.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: a header begins each slot; the kernel wrote it before the word that was loaded
        // with acquire semantics, and leaves the slot alone until that is cleared.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_mac).min(self.slot_bytes);
        let length = (header.tp_snaplen as usize).min(self.slot_bytes - start);
        // SAFETY: the range is inside the slot, which is ours until `release`; nothing else has a reference to it, as
        // `self` is borrowed for as long as this one lives.
        let bytes = unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().add(start), length) };
        // SAFETY: an address follows the header, which the kernel wrote with it.
        let kind = unsafe { slot.add(ADDRESS_AT).cast::<libc::sockaddr_ll>().read() }.sll_pkttype;
        let tag = if status & libc::TP_STATUS_VLAN_VALID != 0 {
            Some(header.tp_vlan_tci)
        } else {
            // The filter passes what is addressed to us or to all: that the kernel calls it another
            // host's means that it has come with a tag for a VLAN which the host is not in.
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

    /// Gives the slot of the last [`ReceiveRing::peek`] back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        let Some(&offset) = self.offsets.get(self.next) else { return };
        // SAFETY: as in `peek`.
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
        // SAFETY: the mapping was made in `new`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the memory belongs to the ring alone, as far as this process is concerned.
unsafe impl Send for ReceiveRing {}

/// How many slots of which size are where.
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

/// A number that no VLAN has.
const VLAN_UNKNOWN: u16 = 4095;

/// Where the kernel says from whom a frame is (`tpacket_rcv`).
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

/// Slots are whole cache lines.
const ALIGNMENT_BYTES: u32 = 64;

/// Bytes that the kernel allocates at a time: a multiple of any page size, and room for the largest
/// jumbo frame. A slot does not cross the border of two.
const BLOCK_BYTES: u32 = 1 << 16;

/// Fewest slots: what a quarter of a millisecond of the smallest frames at 1 Gb/s fills.
const SLOTS_MIN: u32 = 512;

/// Most slots: 4 × the frames that a connection has in flight.
const SLOTS_MAX: u32 = 8192;

/// Where an Ethernet frame begins in its slot, at most: behind the kernel's header and an address,
/// so that what follows the Ethernet header is aligned to 16 (`TPACKET2_HDRLEN` and `tpacket_rcv`).
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
