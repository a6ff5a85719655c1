//! Builds the frames of connections. Only this code encodes these frames and assigns their packet
//! numbers.

use delivery::{Instant, LinkId, SentPool, TxBatch};
use mem::PayloadSlice;
use semantics::Carried;
use wire_edge::{
    ConnectionId, Epoch, Flags, HEADER_BYTES_MAX, Header, PeerAddr, Prefix, encode_header,
};

use crate::ack_bytes::AckBytes;
use crate::connection::Connection;
use crate::links::Links;
use crate::new_frame::{Emit, Emitted, NewFrame, append_body};
use crate::path::Path;
use crate::purpose::Purpose;
use crate::tails::Tails;

/// Scratch memory in which the engine builds frames, about 50 KiB. The memory contains no state
/// between two calls.
///
/// An engine that [allocates ahead](crate::EngineConfig::allocates_ahead) has its own scratch
/// memory. Several engines in one process can use the same scratch memory if the process calls one
/// engine at a time.
///
/// When the engine has written acknowledgements into the scratch memory, the next frame carries
/// them. Later frames do not repeat them.
#[derive(Debug)]
pub struct Scratch {
    batch: Batch,
    /// The batches of the other links, if a connection has several links, by position of the link.
    spare_batches: Vec<Batch>,
    acks: AckBytes,
    /// Fragments that the engine deferred to the end of the batch.
    pub(crate) tails: Tails,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            batch: Batch::usual(),
            spare_batches: Vec::new(),
            acks: AckBytes::allocated(),
            tails: Tails::allocated(),
        }
    }
}

impl Scratch {
    /// Creates scratch memory without allocating. The first use allocates.
    pub(crate) fn without_room() -> Self {
        let batch = Batch::new(0, 0);
        Self {
            batch,
            spare_batches: Vec::new(),
            acks: AckBytes::default(),
            tails: Tails::default(),
        }
    }

    /// Begins a batch of frames to one peer.
    #[inline]
    pub(crate) fn begin(&mut self, to: PeerAddr) {
        self.batch.frames.reset(to);
        self.batch.open_at = NONE_OPEN;
    }

    /// Returns the number of frames in the batch.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.batch.frames.len()
    }

    /// Returns whether the batch has no frame.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.batch.frames.is_empty()
    }

    /// Returns the maximum number of frames in a batch.
    pub(crate) fn room(&self) -> usize {
        self.batch.frames.room()
    }

    /// Returns the purpose of the frames in the batch.
    pub(crate) const fn purpose(&self) -> Purpose {
        self.batch.purpose
    }

    /// Returns the total number of bytes of the frames with index `first` or higher.
    pub(crate) fn bytes_from(&self, first: usize) -> u64 {
        (first..self.len()).map(|index| self.batch.frames.frame(index).len() as u64).sum()
    }

    /// Provides spare batches for `links` links.
    pub(crate) fn provide(&mut self, links: usize) {
        while self.spare_batches.len() < links {
            self.spare_batches.push(Batch::usual());
        }
    }

    /// Swaps the current batch with the batch of the link at `position`.
    pub(crate) fn exchange(&mut self, position: usize) {
        if let Some(spare) = self.spare_batches.get_mut(position) {
            core::mem::swap(&mut self.batch, spare);
        }
    }

    /// Writes the pending acknowledgements for the next frame, at most `limit` bytes.
    pub(crate) fn write_acks(&mut self, now: Instant, connection: &mut Connection, limit: usize) {
        self.acks.fill(now, connection, limit);
    }

    /// Writes a report of the deliveries of a connection that has ended, for the next frame.
    pub(crate) fn write_last_acks(&mut self, connection: &Connection) {
        self.acks.fill_last(connection);
    }

    /// Returns the number of bytes of the acknowledgements that were written for the next frame.
    #[inline]
    pub(crate) const fn acks_len(&self) -> usize {
        self.acks.len()
    }

    /// Drops the acknowledgements written for the next frame. Returns whether there were any. If
    /// the result is true, the caller must report these acknowledgements later.
    #[inline]
    pub(crate) const fn drop_acks(&mut self) -> bool {
        self.acks.clear()
    }

    /// Appends a frame as the next packet of the link. The frame carries the acknowledgements that
    /// were written for it. `connection` and `epoch` are the id and epoch that the peer chose.
    ///
    /// Returns the bytes of the frame. Returns `None` if the memory of the payload does not exist
    /// any more. In that case, the caller must discard the batch.
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        sent: &mut SentPool<Carried>,
        (connection, epoch): (ConnectionId, Epoch),
        path: &mut Path,
        frame: &NewFrame<'_>,
    ) -> Option<u32> {
        self.batch.close();
        let Self { batch, acks, .. } = self;
        let acks = acks.take();
        let has_acks = !acks.is_empty();
        let prefix = Prefix {
            kind: frame.header.kind(),
            link: path.index(),
            flags: if has_acks { frame.flags.with(Flags::ACK) } else { frame.flags },
            epoch,
            connection,
            packet: path.send().next_packet().truncate(),
        };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = encode_header(&prefix, frame.header, &mut bytes);
        let out = batch.frames.header_mut();
        let start = out.len();
        // Copy a fixed length and truncate afterwards, because a copy of fixed length needs only a
        // few store instructions.
        out.extend_from_slice(&bytes);
        out.truncate(start + len);
        if has_acks {
            out.extend_from_slice(acks);
        }
        (batch.open_at, batch.flags) = (start as u32, Flags(bytes[FLAGS_OFFSET]));
        batch.purpose = frame.purpose;
        let outside = append_body(out, start, &frame.body)?;
        let bytes = (out.len() - start) as u32 + outside.len;
        // The source of a write or send of this end does not change until the operation is
        // complete. In contrast, the memory that a peer reads may change right after the read.
        if matches!(
            frame.header,
            Header::Write { .. } | Header::Send { .. } | Header::SendInvalidate { .. }
        ) {
            batch.frames.finish_lasting_frame(outside);
        } else {
            batch.frames.finish_frame(outside);
        }
        path.on_sent(sent, now, bytes, frame.purpose, frame.carried, has_acks);
        Some(bytes)
    }

    /// Makes the last frame of the batch ask for an acknowledgement. The batch must not be empty.
    pub(crate) const fn ask_with_last(&mut self) {
        self.batch.flags = self.batch.flags.with(Flags::ACK_NOW);
    }

    /// Appends a datagram to the batch. `frame` is the header with the copied payload, and
    /// `outside` is the remaining payload.
    #[inline]
    pub(crate) fn push_datagram(&mut self, frame: &[u8], outside: PayloadSlice<'_>) {
        self.batch.purpose = Purpose::Data;
        self.batch.frames.header_mut().extend_from_slice(frame);
        self.batch.frames.finish_frame(outside);
    }

    /// Passes one encoded frame that belongs to no connection to a driver. Returns false if the
    /// driver has no room for the frame.
    pub(crate) fn send_encoded(
        &mut self,
        links: &mut Links,
        link: LinkId,
        to: PeerAddr,
        frame: &[u8],
        emit: Emit<'_>,
    ) -> bool {
        self.begin(to);
        self.batch.frames.header_mut().extend_from_slice(frame);
        self.batch.frames.finish_frame(PayloadSlice::EMPTY);
        !matches!(
            self.emit(links, link, emit),
            Emitted::Taken(0) | Emitted::Doubtful { taken: 0, .. }
        )
    }

    /// Passes the batch to the driver of a link. If the link is down, drops the frames as if the
    /// network had lost them.
    pub(crate) fn emit(&mut self, links: &mut Links, link: LinkId, emit: Emit<'_>) -> Emitted {
        self.batch.close();
        let (to, frames) = (self.batch.frames.to(), self.len());
        if !links.is_usable(link) {
            return Emitted::Taken(frames);
        }
        if links.is_full(link, to) {
            return Emitted::Taken(0);
        }
        match emit(link, &self.batch.frames) {
            Emitted::Taken(taken) if taken < frames => {
                links.on_refused(link, to);
                Emitted::Taken(taken)
            }
            Emitted::Doubtful { taken, doubtful } if taken + doubtful <= frames && doubtful > 0 => {
                links.on_refused(link, to);
                Emitted::Doubtful { taken, doubtful }
            }
            unmapped @ Emitted::PayloadUnmapped(_) if self.batch.purpose == Purpose::Data => {
                unmapped
            }
            // These frames have no payload that could be unmapped. If a driver still reports an
            // unmapped payload, treat the frames as lost.
            Emitted::Taken(_) | Emitted::Doubtful { .. } | Emitted::PayloadUnmapped(_) => {
                Emitted::Taken(frames)
            }
        }
    }
}

/// Frames that the engine passes to a driver together.
///
/// The flags of a frame depend on whether the frame is the last one of its batch. So the flags of
/// the newest frame are written only when the next frame begins or the engine passes the batch to a
/// driver. Until then, the frame is "open". A closed frame does not change.
#[derive(Debug)]
struct Batch {
    frames: TxBatch,
    /// The offset of the open frame, or [`NONE_OPEN`] if no frame is open. `flags` contains the
    /// flags of the open frame.
    open_at: u32,
    flags: Flags,
    /// The purpose of all frames of the batch.
    purpose: Purpose,
}

impl Batch {
    /// Creates a batch with room for `frames` frames and `header_bytes` bytes of headers.
    fn new(frames: usize, header_bytes: usize) -> Self {
        let frames = TxBatch::new(frames, header_bytes);
        Self { frames, open_at: NONE_OPEN, flags: Flags::NONE, purpose: Purpose::Data }
    }

    /// Creates a batch of the usual size.
    fn usual() -> Self {
        Self::new(BATCH_FRAMES, BATCH_HEADER_BYTES)
    }

    /// Encodes the flags of the open frame. Does nothing if no frame is open.
    #[inline]
    fn close(&mut self) {
        let at = self.open_at as usize + FLAGS_OFFSET;
        if let Some(byte) = self.frames.header_mut().get_mut(at) {
            *byte = self.flags.bits();
        }
        self.open_at = NONE_OPEN;
    }
}

/// Maximum number of bytes in a batch. A UDP payload cannot be longer, so segmentation offload
/// accepts every batch.
pub(crate) const BATCH_BYTES_MAX: u32 = 65_507;

/// Maximum number of frames in a batch. Every kernel with UDP segmentation offload (GSO) accepts 64
/// frames in a call.
const BATCH_FRAMES: usize = 64;

/// Header bytes of a batch. Each frame has at most 52 bytes of header and 256 copied bytes, and one
/// frame has an ack section.
const BATCH_HEADER_BYTES: usize = BATCH_FRAMES * 320 + 1400;

/// Offset of the flags in a frame.
const FLAGS_OFFSET: usize = 1;

/// Value of `open_at` if no frame is open: an offset beyond all headers of a batch.
const NONE_OPEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semantics::StatusTable;
    use wire_edge::{Frame, LinkIndex, decode};

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::new_frame::Body;
    use crate::phase::Phase;
    use crate::sending::tests::{CAPS, PARAMETERS, pool};

    const LINK: LinkId = LinkId(0);
    const NAMES: (ConnectionId, Epoch) = (ConnectionId(2), Epoch(1));

    fn path() -> Path {
        let (index, pair) = (LinkIndex(0), (LINK, PeerAddr::default()));
        Path::new(Instant(0), index, pair, &CAPS, &EngineConfig::default(), &PARAMETERS)
    }

    fn connection() -> Box<Connection> {
        let status = Arc::new(StatusTable::new(1));
        let mut engine = Engine::new(EngineConfig::default(), [1; 32], status).unwrap();
        engine.fresh_connection(Phase::Established).unwrap()
    }

    /// A control message without effect.
    const PADDING: [u8; 4] = [0, 2, 0, 0];

    fn control() -> NewFrame<'static> {
        NewFrame {
            purpose: Purpose::Ask,
            header: &Header::Control,
            flags: Flags::NONE,
            body: Body::Bytes(&PADDING),
            carried: Carried::default(),
        }
    }

    fn links() -> Links {
        let mut links = Links::new(0);
        links.attach(LINK, CAPS).unwrap();
        links
    }

    /// Calls `look` with each frame, decoded, that the driver of the link receives. The link is up.
    fn emitted(scratch: &mut Scratch, mut look: impl FnMut(usize, &Frame<'_>)) {
        let emit: Emit<'_> = &mut |_, batch| {
            for index in 0..batch.len() {
                look(index, &decode(batch.frame(index).header).unwrap());
            }
            Emitted::Taken(batch.len())
        };
        scratch.emit(&mut links(), LINK, emit);
    }

    #[test]
    fn acknowledgements_are_sent_with_the_next_frame_only() {
        let (mut scratch, mut connection) = (Scratch::without_room(), connection());
        let (mut path, mut sent) = (path(), pool());
        scratch.begin(path.peer());
        scratch.write_acks(Instant(0), &mut connection, 1000);
        assert!(scratch.acks_len() > 0);
        for _ in 0..2 {
            scratch.push(Instant(0), &mut sent, NAMES, &mut path, &control());
            assert_eq!(scratch.acks_len(), 0);
        }
        assert!(!scratch.drop_acks());
        let mut have_acks = Vec::new();
        emitted(&mut scratch, |_, frame| have_acks.push(frame.acks.is_some()));
        assert_eq!(have_acks, [true, false]);
        scratch.write_acks(Instant(0), &mut connection, 1000);
        assert!(scratch.drop_acks(), "they are still to be reported");
        assert_eq!(scratch.acks_len(), 0);
    }

    #[test]
    fn only_the_last_frame_of_a_batch_requests_an_acknowledgement() {
        let (mut scratch, mut path, mut sent) = (Scratch::default(), path(), pool());
        scratch.begin(path.peer());
        for _ in 0..3 {
            scratch.push(Instant(0), &mut sent, NAMES, &mut path, &control());
        }
        scratch.ask_with_last();
        emitted(&mut scratch, |index, frame| {
            assert_eq!(frame.prefix.flags.contains(Flags::ACK_NOW), index == 2);
            assert_eq!(frame.prefix.packet, index as u32);
        });
    }

    #[test]
    fn a_full_driver_is_not_called_again_in_the_same_turn() {
        let (mut scratch, mut links) = (Scratch::default(), links());
        let to = PeerAddr::default();
        let mut calls = 0;
        let mut send = |links: &mut Links, scratch: &mut Scratch, taken| {
            let mut emit = |_, _: &TxBatch| {
                calls += 1;
                Emitted::Taken(taken)
            };
            scratch.send_encoded(links, LINK, to, &[1; 24], &mut emit)
        };
        assert!(!send(&mut links, &mut scratch, 0));
        assert!(!send(&mut links, &mut scratch, 1));
        links.begin_turn();
        assert!(send(&mut links, &mut scratch, 1));
        // If a link is down, the engine drops its frames without a call of the driver.
        links.on_down(LINK);
        assert!(send(&mut links, &mut scratch, 0));
        assert_eq!(calls, 2);
    }
}
