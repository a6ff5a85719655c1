//! Types that the engine and the drivers of its links exchange.

use mem::{Payload, PayloadSlice};
use wire_edge::PeerAddr;

use crate::time::Instant;

/// Index of a link within one endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u8);

/// Capabilities of a link. The engine reads them when the link is attached and after
/// [`LinkEvent::Changed`].
#[derive(Clone, Copy, Debug)]
pub struct LinkCaps {
    /// Largest edge frame that the link currently carries, in bytes, without link-layer, IP and UDP
    /// headers.
    pub frame_bytes_max: u16,
    /// Largest frame that may be sent without a path MTU probe, in bytes.
    pub frame_bytes_safe: u16,
    /// Number of equal-sized frames to one peer that the driver accepts in one call; at least 1.
    pub segments: u16,
    /// Whether sending `segments` frames costs about as much as sending one frame (UDP GSO).
    pub offloads: bool,
    /// Size of the driver's receive buffer, in bytes of frames. When the buffer is full, further
    /// frames are dropped.
    pub receive_buffer_bytes: u32,
    /// Nominal rate if known, in bits per second.
    pub rate: Option<u64>,
    /// Address at which peers reach this link.
    pub local: PeerAddr,
}

/// A change in the state of a link.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// The carrier or the address is available again, or a capability has changed.
    Changed(LinkCaps),
    /// The link carries no frames until [`LinkEvent::Changed`].
    Down,
    /// Frames with more than this many bytes do not reach the peer.
    TooBig(PeerAddr, u16, Evidence),
    /// No process listens at the peer's address (ICMP port unreachable).
    Refused(PeerAddr, Evidence),
    /// The descriptors to wait for have changed, and nothing else.
    Descriptors,
}

/// The evidence for a report of a link about a peer's address. Any host can forge errors of the
/// network. But an attacker that does not see the frames of this host cannot quote them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Evidence {
    /// This host itself detected the problem.
    Local,
    /// The network reported the problem, and its report quotes a frame that began with these bytes.
    Quoted([u8; QUOTED_BYTES]),
    /// The network reported the problem without quoting a frame.
    Hearsay,
}

/// Number of bytes that identify a frame: the preamble of a handshake frame, or the header of any
/// other frame.
pub const QUOTED_BYTES: usize = 16;

impl Evidence {
    /// Classifies a report by the part of the frame that it quotes. Returns [`Self::Hearsay`] if
    /// the part is too short.
    pub fn quoted(frame: &[u8]) -> Self {
        frame.first_chunk().map_or(Self::Hearsay, |head| Self::Quoted(*head))
    }
}

/// A received frame. The driver lends it for the duration of the callback.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The bytes of the edge frame, or only its headers if the payload is in `outside`. The bytes
    /// are mutable, so that the engine can change them in place.
    pub bytes: &'a mut [u8],
    /// The payload, if it is in memory shared with another process; otherwise empty.
    pub outside: Payload<'a>,
    /// Time at which the kernel or NIC received the frame. The driver may have read it later.
    pub received_at: Instant,
    /// Whether the network marked the frame (ECN CE).
    pub congestion_experienced: bool,
    /// Address from which the frame claims to come.
    pub from: PeerAddr,
}

impl RxFrame<'_> {
    /// Returns the size of the whole frame, in bytes.
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.outside.len()
    }

    /// Returns whether the frame is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a copy of the whole frame to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes);
        self.outside.append_to(out);
    }
}

/// An outgoing frame: header bytes that the engine wrote, then payload in registered memory.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The header. If the payload is small, the payload follows in the same slice.
    pub header: &'a [u8],
    /// The rest of the payload. The compiler prevents a driver from keeping this slice after the
    /// call:
    ///
    /// ```compile_fail
    /// fn keep(batch: &delivery::TxBatch) -> mem::PayloadSlice<'static> {
    ///     batch.frame(0).payload
    /// }
    /// ```
    pub payload: PayloadSlice<'a>,
    /// If true, the payload stays unchanged until the peer has acknowledged it or the operation has
    /// failed. The peer may therefore read the payload in place. If false, the payload is valid
    /// only until the driver returns.
    pub is_lasting: bool,
}

impl TxFrame<'_> {
    /// Returns the size of the whole frame, in bytes.
    pub const fn len(&self) -> usize {
        self.header.len() + self.payload.len as usize
    }

    /// Returns whether the frame is empty. A frame of the engine is never empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames to one peer, in order. The headers are back to back in one buffer. Therefore a driver can
/// send consecutive frames without outside payload as one range of bytes. Only [`TxBatch::new`]
/// allocates.
///
/// The engine reuses the batch in every turn, so the batch outlives the memory access that covers
/// its payloads. Therefore two rules apply to the code that fills the batch. It must pass the batch
/// to the driver before that access ends. It must [reset](Self::reset) the batch before it fills
/// the batch again. The driver may use the payloads while it borrows the batch.
#[derive(Debug)]
pub struct TxBatch {
    to: PeerAddr,
    headers: Vec<u8>,
    /// For each frame: the end of its header in `headers`, the payload that follows, and whether
    /// that payload is lasting.
    frames: Vec<(u32, PayloadSlice<'static>, bool)>,
}

impl TxBatch {
    /// Creates an empty batch with room for `frames` frames and `header_bytes` bytes of headers.
    pub fn new(frames: usize, header_bytes: usize) -> Self {
        Self {
            to: PeerAddr::default(),
            headers: Vec::with_capacity(header_bytes),
            frames: Vec::with_capacity(frames),
        }
    }

    /// Empties the batch and sets the destination of the next frames.
    pub fn reset(&mut self, to: PeerAddr) {
        self.to = to;
        self.headers.clear();
        self.frames.clear();
    }

    /// Returns the buffer for the header bytes of the next frame. The caller appends the header to
    /// this buffer, and then calls [`TxBatch::finish_frame`].
    pub const fn header_mut(&mut self) -> &mut Vec<u8> {
        &mut self.headers
    }

    /// Completes the frame whose header was just appended.
    pub fn finish_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, false);
    }

    /// Completes a frame like [`TxBatch::finish_frame`]. The payload must stay unchanged until the
    /// peer has acknowledged it or the operation has failed.
    pub fn finish_lasting_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, true);
    }

    #[inline]
    fn finish(&mut self, payload: PayloadSlice<'_>, is_lasting: bool) {
        // This slice no longer has the lifetime of the memory access. Instead, `frame` binds the
        // payload to the borrow of the batch.
        let kept = PayloadSlice::at(payload.start, payload.len);
        self.frames.push((self.headers.len() as u32, kept, is_lasting));
    }

    /// Returns the destination of the frames.
    pub const fn to(&self) -> PeerAddr {
        self.to
    }

    /// Returns the number of frames in the batch.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the batch has no frame.
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of frames that can be added without an allocation.
    pub fn room(&self) -> usize {
        self.frames.capacity() - self.frames.len()
    }

    /// Returns frame `index`.
    ///
    /// # Panics
    /// Panics if `index` is not below [`TxBatch::len`].
    pub fn frame(&self, index: usize) -> TxFrame<'_> {
        let start = if index == 0 { 0 } else { self.frames[index - 1].0 as usize };
        let (end, payload, is_lasting) = self.frames[index];
        TxFrame { header: &self.headers[start..end as usize], payload, is_lasting }
    }

    /// Returns the header bytes of all frames in `range` as one slice.
    pub fn headers(&self, range: core::ops::Range<usize>) -> &[u8] {
        let start = if range.start == 0 { 0 } else { self.frames[range.start - 1].0 as usize };
        let end = if range.end == 0 { 0 } else { self.frames[range.end - 1].0 as usize };
        &self.headers[start..end]
    }
}
