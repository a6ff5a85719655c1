//! The frames of one batch: the one place where frames are made, numbered and counted.

use delivery::{Instant, LinkId, SentPool, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, Fragment, FragmentPayload, Pools};
use wire_edge::{
    CONTROL_BYTES_MAX, ConnectionId, Control, Epoch, Flags, HEADER_BYTES_MAX, Header, PeerAddr,
    Prefix, encode_header,
};

use crate::links::Links;
use crate::path::Path;
use crate::purpose::Purpose;

/// What became of a batch of frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Emitted {
    /// The link took so many of the first frames; fewer than all means that it is full: over shared memory
    /// for this peer, else for all.
    Taken(usize),
    /// Payload of the frame with this index is not mapped: the application unmapped registered memory. The
    /// link took the frames before it.
    PayloadUnmapped(usize),
}

/// How a link driver takes frames.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(LinkId, &TxBatch) -> Emitted;

/// A frame to be made.
pub(crate) struct NewFrame<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) header: &'a Header,
    pub(crate) flags: Flags,
    pub(crate) body: Body<'a>,
    /// What comes back if the frame is lost.
    pub(crate) carried: Carried,
}

/// What follows the headers of a frame.
pub(crate) enum Body<'a> {
    Bytes(&'a [u8]),
    /// Zeros up to so many bytes of frame.
    PaddingTo(u16),
    /// What the fragment of an operation says.
    Of(&'a Fragment<'a>, &'a Pools, &'a MemoryAccess<'a>),
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    All,
    Nothing,
    Blocked,
    Failed,
}

/// Puts the frames of one batch together.
///
/// The last frame stays open: its flags are encoded when the next one begins or the batch is handed over,
/// since only then it is known which frame is the last. Nothing of a closed frame changes.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    batch: TxBatch,
    /// Where the open frame begins, [`NONE_OPEN`] if there is none, and its flags.
    open_at: u32,
    flags: Flags,
    /// All frames of a batch are for the same.
    purpose: Purpose,
}

impl FrameWriter {
    /// With room for so many frames and bytes of headers.
    pub(crate) fn new(frames: usize, header_bytes: usize) -> Self {
        let batch = TxBatch::new(frames, header_bytes);
        Self { batch, open_at: NONE_OPEN, flags: Flags::NONE, purpose: Purpose::Data }
    }

    /// Begins a batch of frames to one peer.
    pub(crate) fn reset(&mut self, to: PeerAddr) {
        self.batch.reset(to);
        self.open_at = NONE_OPEN;
    }

    /// Frames in the batch.
    pub(crate) const fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether the batch has no frame.
    pub(crate) const fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// The last frame of the batch, which there is, asks for an acknowledgement.
    pub(crate) const fn ask_with_last(&mut self) {
        self.flags = self.flags.with(Flags::ACK_NOW);
    }

    /// Appends a frame of a connection whose peer has these names, with an ack section or an empty slice
    /// for none: it is the next packet of the link. Returns its bytes; nothing if the memory it was to be
    /// taken from is gone, and then the batch is of no use any more.
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        sent: &mut SentPool<Carried>,
        (epoch, connection): (Epoch, ConnectionId),
        path: &mut Path,
        acks: &[u8],
        frame: &NewFrame<'_>,
    ) -> Option<u32> {
        self.close();
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
        let out = self.batch.header_mut();
        let start = out.len();
        out.extend_from_slice(&bytes[..len]);
        out.extend_from_slice(acks);
        (self.open_at, self.flags) = (start as u32, Flags(bytes[FLAGS_OFFSET]));
        self.purpose = frame.purpose;
        let outside = append_body(out, start, &frame.body)?;
        let bytes = (out.len() - start) as u32 + outside.len;
        // The source of an own operation stays as it is until that is complete; what a peer reads may
        // change as soon as it was read.
        if matches!(frame.header, Header::Write { .. } | Header::Send { .. }) {
            self.batch.finish_lasting_frame(outside);
        } else {
            self.batch.finish_frame(outside);
        }
        path.on_sent(sent, now, bytes, frame.purpose, frame.carried, has_acks);
        Some(bytes)
    }

    /// Makes a batch of an encoded frame of no connection and hands it to a driver; false if that has no
    /// room for it.
    pub(crate) fn send_encoded(
        &mut self,
        links: &mut Links,
        link: LinkId,
        to: PeerAddr,
        frame: &[u8],
        emit: Emit<'_>,
    ) -> bool {
        self.reset(to);
        self.batch.header_mut().extend_from_slice(frame);
        self.batch.finish_frame(PayloadSlice::EMPTY);
        self.emit(links, link, emit) != Emitted::Taken(0)
    }

    /// Hands the batch to the driver of a link. What one that is down does not carry is lost on the way.
    pub(crate) fn emit(&mut self, links: &mut Links, link: LinkId, emit: Emit<'_>) -> Emitted {
        self.close();
        let (to, frames) = (self.batch.to(), self.batch.len());
        if !links.is_usable(link) {
            return Emitted::Taken(frames);
        }
        if links.is_full(link, to) {
            return Emitted::Taken(0);
        }
        match emit(link, &self.batch) {
            Emitted::Taken(taken) if taken < frames => {
                links.on_refused(link, to);
                Emitted::Taken(taken)
            }
            unmapped @ Emitted::PayloadUnmapped(_) if self.purpose == Purpose::Data => unmapped,
            // Other frames have no payload that could be unmapped: a driver that says so has lost them.
            Emitted::Taken(_) | Emitted::PayloadUnmapped(_) => Emitted::Taken(frames),
        }
    }

    /// What the frames are for.
    pub(crate) const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// How many frames it has room for.
    pub(crate) fn room(&self) -> usize {
        self.batch.room()
    }

    /// Encodes the flags of the open frame, if there is one.
    #[inline]
    fn close(&mut self) {
        let at = self.open_at as usize + FLAGS_OFFSET;
        if let Some(byte) = self.batch.header_mut().get_mut(at) {
            *byte = self.flags.bits();
        }
        self.open_at = NONE_OPEN;
    }

    /// Bytes of the frames from this one on.
    pub(crate) fn bytes_from(&self, first: usize) -> u64 {
        (first..self.batch.len()).map(|index| self.batch.frame(index).len() as u64).sum()
    }
}

/// Copies a small body behind the headers, or says where a large one is; nothing if its memory is gone.
/// The frame begins at `start`.
#[inline]
fn append_body<'a>(out: &mut Vec<u8>, start: usize, body: &Body<'a>) -> Option<PayloadSlice<'a>> {
    let (fragment, pools, memory) = match *body {
        Body::Of(fragment, pools, memory) => (fragment, pools, memory),
        Body::Bytes(bytes) => {
            out.extend_from_slice(bytes);
            return Some(PayloadSlice::EMPTY);
        }
        Body::PaddingTo(size) => {
            out.resize(start + usize::from(size), 0);
            return Some(PayloadSlice::EMPTY);
        }
    };
    let at = out.len();
    let copied = match fragment.payload {
        FragmentPayload::Outside(slice) => return Some(slice),
        FragmentPayload::None => Ok(()),
        FragmentPayload::Gone(operation) => {
            let mut bytes = [0; CONTROL_BYTES_MAX];
            let len = Control::Gone(operation).encode(&mut bytes);
            out.extend_from_slice(&bytes[..len]);
            pad(out, len);
            Ok(())
        }
        FragmentPayload::Inline => {
            out.extend_from_slice(pools.inline_payload(&fragment.carried));
            Ok(())
        }
        FragmentPayload::Region(region, offset, len) => {
            out.resize(at + len as usize, 0);
            memory.copy_out(region, offset, &mut out[at..])
        }
        FragmentPayload::Target(target, offset, len) => {
            out.resize(at + len as usize, 0);
            memory.copy_from(&target, offset, &mut out[at..])
        }
    };
    copied.ok().map(|()| PayloadSlice::EMPTY)
}

//= protocol.md: news.2
/// Brings the body of a control frame, of which `len` bytes are at the end of `out`, to the least
/// length.
pub(crate) fn pad(out: &mut Vec<u8>, len: usize) {
    if let Some(missing) = CONTROL_BODY_MIN.checked_sub(len).filter(|&bytes| bytes > 0) {
        out.extend_from_slice(&[PADDING, missing as u8]);
        out.resize(out.len() + missing, 0);
    }
}

/// Bytes of the common header, and where its flags are.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;
const FLAGS_OFFSET: usize = 1;

/// Beyond every header of a batch.
const NONE_OPEN: u32 = u32::MAX;

/// Shortest body of a control frame: 12 bytes behind the common header make the 24 of a reset.
pub(crate) const CONTROL_BODY_MIN: usize = 12;

/// Type of the control message that means nothing (protocol.md §3.5).
const PADDING: u8 = 0;
