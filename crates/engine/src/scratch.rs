//! Where frames are put together before a driver takes them.

use delivery::{Instant, LinkId, SentPool};
use semantics::Carried;
use wire_edge::{ConnectionId, Epoch, PeerAddr};

use crate::ack_bytes::AckBytes;
use crate::connection::Connection;
use crate::frame_writer::{Emit, Emitted, FrameWriter, NewFrame};
use crate::links::Links;
use crate::path::Path;

/// Where frames are put together, some 50 KiB: nothing of it matters between two calls.
///
/// An engine that [allocates ahead](crate::EngineConfig::allocates_ahead) has its own. Many engines in
/// one process, of which one at a time is called, can share one.
///
/// Acknowledgements that are written go with the next frame, and with no other.
#[derive(Debug)]
pub struct Scratch {
    batch: FrameWriter,
    /// Batches for the links of a connection that has several, by position.
    spare_batches: Vec<FrameWriter>,
    acks: AckBytes,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { batch: batch(), spare_batches: Vec::new(), acks: AckBytes::allocated() }
    }
}

impl Scratch {
    /// Without room: it makes some when it is needed.
    pub(crate) fn without_room() -> Self {
        let batch = FrameWriter::new(0, 0);
        Self { batch, spare_batches: Vec::new(), acks: AckBytes::default() }
    }

    /// Begins a batch of frames to one peer.
    #[inline]
    pub(crate) fn begin(&mut self, to: PeerAddr) {
        self.batch.reset(to);
    }

    /// The batch as it is.
    #[inline]
    pub(crate) const fn batch(&self) -> &FrameWriter {
        &self.batch
    }

    /// Makes sure that there are batches for so many links, beside the one.
    pub(crate) fn provide(&mut self, links: usize) {
        while self.spare_batches.len() < links {
            self.spare_batches.push(batch());
        }
    }

    /// Exchanges the batch for that of the link at `position`.
    pub(crate) fn exchange(&mut self, position: usize) {
        if let Some(spare) = self.spare_batches.get_mut(position) {
            core::mem::swap(&mut self.batch, spare);
        }
    }

    /// Writes what is to be acknowledged, at most `limit` bytes of it: the next frame carries it.
    pub(crate) fn write_acks(&mut self, now: Instant, connection: &mut Connection, limit: usize) {
        self.acks.fill(now, connection, limit);
    }

    /// Bytes of acknowledgements that the next frame carries.
    #[inline]
    pub(crate) const fn acks_len(&self) -> usize {
        self.acks.len()
    }

    /// The next frame carries no acknowledgements. Whether some were written for it, which are still to
    /// be told.
    #[inline]
    pub(crate) const fn drop_acks(&mut self) -> bool {
        self.acks.clear()
    }

    /// Appends a frame to the batch, with the acknowledgements that were written for it: see
    /// [`FrameWriter::push`].
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        sent: &mut SentPool<Carried>,
        names: (ConnectionId, Epoch),
        path: &mut Path,
        frame: &NewFrame<'_>,
    ) -> Option<u32> {
        let pushed = self.batch.push(now, sent, names, path, self.acks.as_slice(), frame);
        self.acks.clear();
        pushed
    }

    /// The last frame of the batch, which there is, asks for an acknowledgement.
    pub(crate) const fn ask_with_last(&mut self) {
        self.batch.ask_with_last();
    }

    /// Hands the batch to the driver of a link.
    pub(crate) fn emit(&mut self, links: &mut Links, link: LinkId, emit: Emit<'_>) -> Emitted {
        self.batch.emit(links, link, emit)
    }

    /// Hands an encoded frame of no connection to a driver; false if that has no room for it.
    pub(crate) fn send_encoded(
        &mut self,
        links: &mut Links,
        link: LinkId,
        to: PeerAddr,
        frame: &[u8],
        emit: Emit<'_>,
    ) -> bool {
        self.batch.send_encoded(links, link, to, frame, emit)
    }
}

/// A batch of the usual size.
fn batch() -> FrameWriter {
    FrameWriter::new(BATCH_FRAMES, BATCH_HEADER_BYTES)
}

/// Frames in one batch: a GSO send takes 64 segments on every kernel that has it.
const BATCH_FRAMES: usize = 64;

/// Header bytes of a batch: each frame at most 52 bytes of header, 256 copied, and one ack section.
const BATCH_HEADER_BYTES: usize = BATCH_FRAMES * 320 + 1400;
