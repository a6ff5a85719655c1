//! What passes between the engine and the drivers of its links.

use mem::{Payload, PayloadSlice};
use wire_edge::PeerAddr;

use crate::Instant;

/// Index of a link within one endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u8);

/// What a link can do; read when the link is attached and after [`LinkEvent::Changed`].
#[derive(Clone, Copy, Debug)]
pub struct LinkCaps {
    /// Largest edge frame the link carries now, in bytes, without link-layer, IP and UDP headers.
    pub frame_bytes_max: u16,
    /// Largest frame that needs no path MTU probe first, in bytes.
    pub frame_bytes_safe: u16,
    /// Equal-sized frames to one peer that the driver takes at once; at least 1.
    pub segments: u16,
    /// So many cost about as much as one (UDP GSO).
    pub offloads: bool,
    /// Bytes of frames the driver's receive buffer holds before it drops.
    pub receive_buffer_bytes: u32,
    /// Nominal rate if known, in bits per second.
    pub rate: Option<u64>,
    /// Where peers can send to reach this link.
    pub local: PeerAddr,
}

/// A change in the state of a link.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// Carrier or address came back, or a capability changed.
    Changed(LinkCaps),
    /// The link can carry nothing until further notice.
    Down,
    /// Frames of more than this many bytes do not reach the peer.
    TooBig(PeerAddr, u16, Evidence),
    /// Nothing listens at the peer's address (ICMP port unreachable).
    Refused(PeerAddr, Evidence),
    /// Waiting for the link now needs other descriptors; nothing else has changed.
    Descriptors,
}

/// How it is known what a link reports of a peer's address. Errors that the network reports can be forged
/// by anybody; who does not see the frames that are sent cannot quote them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Evidence {
    /// This host found out by itself.
    Local,
    /// The network reports it of a frame that began with these bytes.
    Quoted([u8; QUOTED_BYTES]),
    /// The network reports it of a frame that it does not show.
    Hearsay,
}

/// Bytes of a frame that identify it: the preamble of a handshake frame, the header of another.
pub const QUOTED_BYTES: usize = 16;

impl Evidence {
    /// Takes what the network shows of a frame: its beginning, if that is long enough.
    pub fn quoted(frame: &[u8]) -> Self {
        frame.first_chunk().map_or(Self::Hearsay, |head| Self::Quoted(*head))
    }
}

/// One received frame, borrowed from the driver for the length of the callback.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The edge frame, or its headers if the payload lies elsewhere. Mutable so that it can be opened
    /// in place.
    pub bytes: &'a mut [u8],
    /// The payload if it lies elsewhere: in memory that another process shares. Empty otherwise.
    pub outside: Payload<'a>,
    /// When the kernel or NIC received it, not when it was read.
    pub received_at: Instant,
    /// Whether the network marked congestion (ECN CE).
    pub congestion_experienced: bool,
    /// Whom it claims to be from.
    pub from: PeerAddr,
}

impl RxFrame<'_> {
    /// Returns the number of bytes of the whole frame.
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.outside.len()
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the whole frame to `out`, for a caller that keeps it.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes);
        self.outside.append_to(out);
    }
}

/// One outgoing frame: header bytes the engine wrote, then payload that lies in registered memory.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Header, with small payloads already copied behind it.
    pub header: &'a [u8],
    /// The rest of the payload, which no driver keeps:
    ///
    /// ```compile_fail
    /// fn keep(batch: &delivery::TxBatch) -> mem::PayloadSlice<'static> {
    ///     batch.frame(0).payload
    /// }
    /// ```
    pub payload: PayloadSlice<'a>,
    /// The payload stays as it is until the peer has acknowledged it or the operation has failed, so
    /// that the peer may read it where it lies. Otherwise it is good until the driver returns.
    pub is_lasting: bool,
}

impl TxFrame<'_> {
    /// Returns the number of bytes of the whole frame.
    pub const fn len(&self) -> usize {
        self.header.len() + self.payload.len as usize
    }

    /// Whether there is nothing to send; never true for a frame the engine made.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames to one peer, in order. Headers lie back to back in one arena, so that a driver can merge
/// frames without outside payload into one piece. Allocates only in [`TxBatch::new`].
///
/// It is kept from turn to turn, and so outlives the access to memory that its payloads are of: code that
/// fills it hands it over before that ends, and [resets](Self::reset) it before it is filled again. Who is
/// handed it has the payloads for as long as the batch is lent.
#[derive(Debug)]
pub struct TxBatch {
    to: PeerAddr,
    headers: Vec<u8>,
    /// End of each header in `headers`, and the payload behind it, which may be lasting.
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

    /// Empties the batch and sets where the next frames go.
    pub fn reset(&mut self, to: PeerAddr) {
        self.to = to;
        self.headers.clear();
        self.frames.clear();
    }

    /// Returns the buffer to which header bytes of the next frame are appended, until [`TxBatch::finish_frame`].
    pub const fn header_mut(&mut self) -> &mut Vec<u8> {
        &mut self.headers
    }

    /// Ends the frame whose header was just appended.
    pub fn finish_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, false);
    }

    /// Finishes a frame as [`TxBatch::finish_frame`] does, with payload that stays as it is until the peer has
    /// acknowledged it.
    pub fn finish_lasting_frame(&mut self, payload: PayloadSlice<'_>) {
        self.finish(payload, true);
    }

    #[inline]
    fn finish(&mut self, payload: PayloadSlice<'_>, is_lasting: bool) {
        // The tie to the access ends here; `frame` ties it to the batch again.
        let kept = PayloadSlice::at(payload.start, payload.len);
        self.frames.push((self.headers.len() as u32, kept, is_lasting));
    }

    /// Returns the address to which the frames go.
    pub const fn to(&self) -> PeerAddr {
        self.to
    }

    /// Returns the number of frames in the batch.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether the batch has no frame.
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns how many frames still fit without an allocation.
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
