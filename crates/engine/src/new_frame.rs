//! A frame that is to be made: what it is for, and what is in it.

use delivery::{LinkId, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, Fragment, FragmentPayload, Pools};
use wire_edge::{CONTROL_BYTES_MAX, Control, Flags, Header};

use crate::purpose::Purpose;

/// What became of a batch of frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Emitted {
    /// The link took so many of the first frames; fewer than all means that it is full: over shared memory
    /// for this peer, else for all.
    Taken(usize),
    /// The same; but so many of the frames behind those that it took may have left the host: the kernel said that an
    /// interface has no room, as it also does when the interface got some of them.
    Doubtful {
        /// Frames that the link took, the first ones.
        taken: usize,
        /// Frames behind them of which nothing is known.
        doubtful: usize,
    },
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

/// Copies a small body behind the headers, or says where a large one is; nothing if its memory is gone.
/// The frame begins at `start`.
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
/// Brings the body of a control frame, of which `len` bytes are at the end of `out`, to the least
/// length.
pub(crate) fn pad(out: &mut Vec<u8>, len: usize) {
    if let Some(missing) = CONTROL_BODY_MIN.checked_sub(len).filter(|&bytes| bytes > 0) {
        out.extend_from_slice(&[PADDING, missing as u8]);
        out.resize(out.len() + missing, 0);
    }
}

/// Bytes of the common header.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;

/// Shortest body of a control frame: 12 bytes behind the common header make the 24 of a reset.
pub(crate) const CONTROL_BODY_MIN: usize = 12;

/// Type of the control message that means nothing (protocol.md §3.5).
const PADDING: u8 = 0;
