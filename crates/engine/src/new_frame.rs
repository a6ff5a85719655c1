//! A frame to build: its purpose and its content.

use delivery::{LinkId, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, Fragment, FragmentPayload, Pools};
use wire_edge::{CONTROL_BYTES_MAX, Control, Flags, Header};

use crate::purpose::Purpose;

/// The result of passing a batch of frames to a driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Emitted {
    /// The number of frames, from the start of the batch, that the link accepted. If the link did
    /// not accept all frames, it is full: over shared memory only for this peer, and over any other
    /// link for all peers.
    Taken(usize),
    /// The link accepted some frames. Further frames may have left the host, because the kernel can
    /// report a full interface after the interface has already sent some of the frames.
    Doubtful {
        /// Number of frames, from the start of the batch, that the link accepted.
        taken: usize,
        /// Number of frames, after the accepted frames, that may have left the host.
        doubtful: usize,
    },
    /// The payload of the frame with this index is not mapped, because the application unmapped
    /// registered memory. The link accepted all frames before this frame.
    PayloadUnmapped(usize),
}

/// The callback that passes frames to a link's driver.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(LinkId, &TxBatch) -> Emitted;

/// A frame to build.
pub(crate) struct NewFrame<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) header: &'a Header,
    pub(crate) flags: Flags,
    pub(crate) body: Body<'a>,
    /// The record of the content. If the frame is lost, the engine uses the record to retransmit
    /// the content.
    pub(crate) carried: Carried,
}

/// The bytes after the headers of a frame.
pub(crate) enum Body<'a> {
    Bytes(&'a [u8]),
    /// Zeros up to this frame size, in bytes.
    PaddingTo(u16),
    /// The payload of a fragment of an operation.
    Of(&'a Fragment<'a>, &'a Pools, &'a MemoryAccess<'a>),
}

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    All,
    Nothing,
    Blocked,
    Failed,
}

/// Appends a small body after the headers. For a large body, returns where its bytes are. Returns
/// `None` if the memory of the body does not exist any more. The frame begins at `start`.
#[inline]
pub(crate) fn append_body<'a>(
    out: &mut Vec<u8>,
    start: usize,
    body: &Body<'a>,
) -> Option<PayloadSlice<'a>> {
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
        FragmentPayload::Pieces => pools.gather(memory, &fragment.carried, out),
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
/// Pads the body of a control frame, which is the last `len` bytes of `out`, to the minimum length.
pub(crate) fn pad(out: &mut Vec<u8>, len: usize) {
    if let Some(missing) = CONTROL_BODY_MIN.checked_sub(len).filter(|&bytes| bytes > 0) {
        out.extend_from_slice(&[PADDING, missing as u8]);
        out.resize(out.len() + missing, 0);
    }
}

/// Bytes of the common header.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;

/// Shortest body of a control frame, in bytes. With the common header, the frame has 24 bytes,
/// which is the length of a Reset.
pub(crate) const CONTROL_BODY_MIN: usize = 12;

/// Type of the control message without effect (protocol.md §3.5).
const PADDING: u8 = 0;
