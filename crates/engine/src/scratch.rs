//! Buffers that an engine needs only during a call, which engines of one process can share.

use crate::acknowledge::AckBytes;
use crate::engine::Engine;
use crate::frames::FrameWriter;

/// Where frames are put together, some 50 KiB: nothing of it matters between two calls.
///
/// An engine that [allocates ahead](crate::EngineConfig::allocates_ahead) has its own. Many engines in
/// one process, of which one at a time is called, can share one.
#[derive(Debug)]
pub struct Scratch {
    batch: FrameWriter,
    spare_batches: Vec<FrameWriter>,
    acks: AckBytes,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { batch: batch(), spare_batches: Vec::new(), acks: AckBytes::allocated() }
    }
}

impl Engine {
    /// Gives the engine this scratch memory for its own, and its own for this. To be called before
    /// [`Engine::poll_transmit`] and after it.
    pub fn exchange_scratch(&mut self, scratch: &mut Scratch) {
        core::mem::swap(&mut self.batch, &mut scratch.batch);
        core::mem::swap(&mut self.spare_batches, &mut scratch.spare_batches);
        core::mem::swap(&mut self.acks, &mut scratch.acks);
    }
}

/// A batch of the usual size.
pub(crate) fn batch() -> FrameWriter {
    FrameWriter::new(BATCH_FRAMES, BATCH_HEADER_BYTES)
}

/// Frames in one batch: a GSO send takes 64 segments on every kernel that has it.
const BATCH_FRAMES: usize = 64;

/// Header bytes of a batch: each frame at most 52 bytes of header, 256 copied, and one ack section.
const BATCH_HEADER_BYTES: usize = BATCH_FRAMES * 320 + 1400;
