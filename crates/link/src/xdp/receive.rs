//! Receiving: passes the chunks that the kernel has filled to the engine, without copying them.

use std::slice;

use super::shape::{HEADROOM_BYTES, Shape};
use super::socket::XdpSocket;

/// State that the link keeps between two frames, and a buffer in which it reassembles a frame that
/// arrives in several chunks.
#[derive(Debug)]
pub(super) struct Receiver {
    chunk_mask: u64,
    /// If a frame arrives in several chunks: the bytes of its chunks that have arrived. Never
    /// longer than its initial capacity.
    assembled: Vec<u8>,
    /// True if the frame that is being reassembled exceeds the maximum size.
    is_too_long: bool,
    ethernet_bytes_max: usize,
}

/// A consumer of received Ethernet frames.
pub(super) trait Consumer {
    /// Handles a frame. The frame is borrowed until this returns.
    fn take(&mut self, bytes: &mut [u8]);
    /// Handles the loss of a frame because the frame exceeded the maximum size.
    fn refuse_too_long(&mut self);
    /// Returns whether the consumer wants no more frames.
    fn is_full(&self) -> bool;
}

impl Receiver {
    /// Creates a receiver, and puts all receive chunks into the fill ring.
    pub(super) fn new(shape: &Shape, socket: &mut XdpSocket) -> Self {
        for chunk in 0..shape.receive_chunks {
            socket.fill.push(u64::from(chunk) * u64::from(shape.chunk_bytes));
        }
        socket.fill.submit();
        Self {
            chunk_mask: !u64::from(shape.chunk_bytes - 1),
            assembled: Vec::with_capacity(shape.ethernet_bytes_max as usize),
            is_too_long: false,
            ethernet_bytes_max: shape.ethernet_bytes_max as usize,
        }
    }

    /// Passes frames to the consumer until no frame waits or the consumer is full. Returns whether
    /// there was any chunk.
    #[inline]
    pub(super) fn receive(&mut self, socket: &mut XdpSocket, consumer: &mut impl Consumer) -> bool {
        let mut any = false;
        while !consumer.is_full() {
            if !socket.receive.has_entry() {
                break;
            }
            // Chunks return in nearly the same order in which they were pushed. Prefetch the
            // expected chunk, so that the frame comes from the other processor's cache at the same
            // time as its descriptor.
            let expected = socket.fill.pushed(socket.receive.taken());
            socket.memory.prefetch((expected & self.chunk_mask) + u64::from(HEADROOM_BYTES));
            let Some(descriptor) = socket.receive.take() else { break };
            any = true;
            let length = u64::from(descriptor.len);
            assert!(socket.memory.holds(descriptor.addr, length), "chunk outside of the memory");
            // SAFETY: the bytes are inside the memory, as just checked. The kernel has returned the
            // chunk and does not access it before it is in the fill ring again.
            let bytes = unsafe {
                let start = socket.memory.start().add(descriptor.addr as usize);
                slice::from_raw_parts_mut(start.as_ptr(), descriptor.len as usize)
            };
            let continues = descriptor.options & libc::XDP_PKT_CONTD != 0;
            if continues || !self.assembled.is_empty() || self.is_too_long {
                self.assemble(bytes, continues, consumer);
            } else {
                consumer.take(bytes);
            }
            socket.fill.push(descriptor.addr & self.chunk_mask);
        }
        if any {
            socket.receive.release();
            socket.fill.submit();
        }
        any
    }

    fn assemble(&mut self, bytes: &[u8], continues: bool, consumer: &mut impl Consumer) {
        self.is_too_long |= self.assembled.len() + bytes.len() > self.ethernet_bytes_max;
        if !self.is_too_long {
            self.assembled.extend_from_slice(bytes);
        }
        if continues {
            return;
        }
        if self.is_too_long {
            consumer.refuse_too_long();
        } else {
            consumer.take(&mut self.assembled);
        }
        self.assembled.clear();
        self.is_too_long = false;
    }
}
