//! Types passed between the engine and the drivers of its links.

use mem::{Payload, PayloadSlice};
use wire_edge::PeerAddr;

use crate::Instant;

/// Index of a link within one endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u8);

/// Capabilities of a link; read when the link is attached and after [`LinkEvent::Changed`].
#[derive(Clone, Copy, Debug)]
pub struct LinkCaps {
    /// Largest edge frame that the link carries now, in bytes, without link-layer, IP and UDP
    /// headers.
    pub frame_bytes_max: u16,
    /// Largest frame that may be sent without a path MTU probe, in bytes.
    pub frame_bytes_safe: u16,
    /// Frames of equal size to one peer that the driver accepts in one call; at least 1.
    pub segments: u16,
    /// Whether `segments` frames cost about as much as one (UDP GSO).
    pub offloads: bool,
    /// Bytes of frames that the driver's receive buffer holds before it drops frames.
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
    /// The carrier or the address came back, or a capability changed.
    Changed(LinkCaps),
    /// The link carries no frames until [`LinkEvent::Changed`].
    Down,
    /// Frames larger than this many bytes do not reach the peer.
    TooBig(PeerAddr, u16, Evidence),
    /// No process listens at the peer's address (ICMP port unreachable).
    Refused(PeerAddr, Evidence),
    /// The descriptors to wait for changed; nothing else did.
    Descriptors,
}

/// The evidence for what a link reports about a peer's address. Anyone can forge errors of the
/// network, but an attacker that does not see the frames cannot quote them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Evidence {
    /// This host detected it.
    Local,
    /// The network reported it and quoted a frame that began with these bytes.
    Quoted([u8; QUOTED_BYTES]),
    /// The network reported it without quoting a frame.
    Hearsay,
}

/// Bytes that identify a frame: the preamble of a handshake frame, or the header of another frame.
pub const QUOTED_BYTES: usize = 16;

impl Evidence {
    /// Classifies a report by the part of the frame that it quotes: [`Self::Hearsay`] if the part
    /// is too short.
    pub fn quoted(frame: &[u8]) -> Self {
        frame.first_chunk().map_or(Self::Hearsay, |head| Self::Quoted(*head))
    }
}

/// A received frame, borrowed from the driver for the duration of the callback.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The edge frame, or only its headers if the payload lies elsewhere. Mutable, so that it can
    /// be changed in place.
    pub bytes: &'a mut [u8],
    /// The payload if it lies in memory shared with another process; otherwise empty.
    pub outside: Payload<'a>,
    /// When the kernel or NIC received the frame, not when the driver read it.
    pub received_at: Instant,
    /// Whether the network marked the frame (ECN CE).
    pub congestion_experienced: bool,
    /// Address that the frame claims to come from.
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

/// An outgoing frame: header bytes written by the engine, then payload in registered memory.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Header, followed by the payload if that is small.
    pub header: &'a [u8],
    /// The rest of the payload, which no driver keeps:
    ///
    /// ```compile_fail
    /// fn keep(batch: &delivery::TxBatch) -> mem::PayloadSlice<'static> {
    ///     batch.frame(0).payload
    /// }
    /// ```
    pub payload: PayloadSlice<'a>,
    /// Whether the payload stays unchanged until the peer has acknowledged it or the operation has
    /// failed, so that the peer may read it in place. Otherwise it stays valid until the driver
    /// returns.
    pub is_lasting: bool,
}

impl TxFrame<'_> {
    /// Returns the size of the whole frame, in bytes.
    pub const fn len(&self) -> usize {
        self.header.len() + self.payload.len as usize
    }

    /// Returns whether the frame is empty; never true for a frame of the engine.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames to one peer, in order. The headers lie back to back in one buffer, so that a driver can
/// merge frames without outside payload into one piece. Only [`TxBatch::new`] allocates.
///
/// The batch is kept from turn to turn, so it outlives the memory access that covers its payloads.
/// Code that fills the batch passes it to the driver before that access ends, and
/// [resets](Self::reset) the batch before filling it again. The driver may use the payloads while
/// it borrows the batch.
#[derive(Debug)]
pub struct TxBatch {
    to: PeerAddr,
    headers: Vec<u8>,
    /// End of each header in `headers`, the payload behind it, and whether that payload is lasting.
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

    /// Empties the batch and sets the address of the next frames.
    pub fn reset(&mut self, to: PeerAddr) {
        self.to = to;
        self.headers.clear();
        self.frames.clear();
    }

    /// Returns the buffer to which header bytes of the next frame are appended, until [`TxBatch::finish_frame`].
    pub const fn header_mut(&mut self) -> &mut Vec<u8> {
        &mut self.headers
    }

    /// Completes the frame whose header was just appended.
    pub fn finish_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, false);
    }

    /// Completes a frame as [`TxBatch::finish_frame`] does. Its payload stays unchanged until the
    /// peer has acknowledged it.
    pub fn finish_lasting_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, true);
    }

    #[inline]
    fn finish(&mut self, payload: PayloadSlice<'_>, is_lasting: bool) {
        // This drops the lifetime of the memory access; `frame` binds the payload to the batch
        // instead.
        let kept = PayloadSlice::at(payload.start, payload.len);
        self.frames.push((self.headers.len() as u32, kept, is_lasting));
    }

    /// Returns the address of the frames.
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

    /// Returns the number of frames that still fit without an allocation.
    pub fn room(&self) -> usize {
        self.frames.capacity() - self.frames.len()
    }

    /// Returns frame `index`.
    ///
    /// # Panics
    /// If `index` is not below [`TxBatch::len`].
    pub fn frame(&self, index: usize) -> TxFrame<'_> {
        let start = if index == 0 { 0 } else { self.frames[index - 1].0 as usize };
        let (end, payload, is_lasting) = self.frames[index];
        TxFrame { header: &self.headers[start..end as usize], payload, is_lasting }
    }

    /// Returns all header bytes of the frames `range`, back to back.
    pub fn headers(&self, range: core::ops::Range<usize>) -> &[u8] {
        let start = if range.start == 0 { 0 } else { self.frames[range.start - 1].0 as usize };
        let end = if range.end == 0 { 0 } else { self.frames[range.end - 1].0 as usize };
        &self.headers[start..end]
    }
}
