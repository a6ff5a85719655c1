//! Divides the memory for frames into receive chunks and send slots.

use super::config::XdpConfig;
use super::socket::SocketShape;
use crate::ethernet::HEADERS_BYTES_MAX;

/// The division of a socket's memory: receive chunks, then send slots.
///
/// The kernel receives into single chunks anywhere in the memory, and leaves room at the start of
/// each chunk. A received frame that is larger than a chunk takes several chunks. A frame to send
/// must be contiguous, so each slot has as many adjacent chunks as the largest frame needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Shape {
    /// Largest Ethernet frame, in bytes without the frame check sequence.
    pub(crate) ethernet_bytes_max: u32,
    /// Size of a chunk, in bytes.
    pub(crate) chunk_bytes: u32,
    /// Number of receive chunks, a power of two.
    pub(crate) receive_chunks: u32,
    /// Number of send slots.
    pub(crate) slots: u32,
    /// Number of chunks per slot.
    pub(crate) slot_chunks: u32,
}

impl Shape {
    /// Computes the division for edge frames of up to `frame_bytes_max` bytes.
    pub(crate) fn new(config: &XdpConfig, frame_bytes_max: u32) -> Self {
        let ethernet_bytes_max = frame_bytes_max + HEADERS_BYTES_MAX as u32;
        let fits = ethernet_bytes_max <= CHUNK_BYTES_MIN - HEADROOM_BYTES;
        let chunk_bytes = if fits { CHUNK_BYTES_MIN } else { CHUNK_BYTES_MAX };
        let chunks = ethernet_bytes_max.div_ceil(chunk_bytes - HEADROOM_BYTES);
        Self {
            ethernet_bytes_max,
            chunk_bytes,
            receive_chunks: (config.receive_frames * chunks).next_power_of_two(),
            slots: config.transmit_frames,
            slot_chunks: ethernet_bytes_max.div_ceil(chunk_bytes),
        }
    }

    /// Returns whether a received frame may take more than one chunk.
    pub(crate) const fn has_fragments(&self) -> bool {
        self.ethernet_bytes_max > self.chunk_bytes - HEADROOM_BYTES
    }

    /// Returns the size of a slot, in bytes.
    pub(crate) const fn slot_bytes(&self) -> u32 {
        self.slot_chunks * self.chunk_bytes
    }

    /// Returns the offset of the first slot, in bytes.
    pub(crate) const fn slots_at(&self) -> u64 {
        self.receive_chunks as u64 * self.chunk_bytes as u64
    }

    /// Returns the number of bytes of received frames that fit into the receive chunks.
    pub(crate) const fn receive_bytes(&self) -> u32 {
        self.receive_chunks * (self.chunk_bytes - HEADROOM_BYTES)
    }

    /// Returns the sizes of the socket's rings and memory.
    pub(crate) const fn socket(&self) -> SocketShape {
        SocketShape {
            chunk_bytes: self.chunk_bytes,
            chunks: self.receive_chunks + self.slots * self.slot_chunks,
            // The ring has twice as many entries as there are chunks, because the kernel reports
            // with a delay which entries it has taken.
            fill_entries: 2 * self.receive_chunks,
            receive_entries: self.receive_chunks,
            transmit_entries: (self.slots * self.slot_chunks).next_power_of_two(),
        }
    }
}

/// The kernel's limits on the size of a chunk, in bytes.
const CHUNK_BYTES_MIN: u32 = 2048;
const CHUNK_BYTES_MAX: u32 = 4096;
/// Number of bytes that the kernel leaves free before a received frame.
pub(crate) const HEADROOM_BYTES: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_frames_of_usual_size_take_one_small_chunk() {
        let shape = Shape::new(&XdpConfig::new("eth0"), 1488);
        assert_eq!((shape.chunk_bytes, shape.slot_chunks), (2048, 1));
        assert!(!shape.has_fragments());
        assert_eq!((shape.receive_chunks, shape.slots), (2048, 512));
    }

    #[test]
    fn jumbo_frames_take_several_chunks() {
        let shape = Shape::new(&XdpConfig::new("eth0"), 8988);
        assert_eq!((shape.chunk_bytes, shape.slot_chunks), (4096, 3));
        assert!(shape.has_fragments());
        assert_eq!(shape.receive_chunks, 8192);
        assert!(shape.receive_bytes() >= 2048 * 9018);
    }

    #[test]
    fn slots_follow_the_chunks_and_stay_inside_the_memory() {
        for frame_bytes in [256, 1488, 1732, 3498, 8988, 9200] {
            let shape = Shape::new(&XdpConfig::new("eth0"), frame_bytes);
            let socket = shape.socket();
            let end = shape.slots_at() + u64::from(shape.slots) * u64::from(shape.slot_bytes());
            assert_eq!(end, u64::from(socket.chunks) * u64::from(socket.chunk_bytes));
            assert!(shape.slot_bytes() >= shape.ethernet_bytes_max);
        }
    }
}
