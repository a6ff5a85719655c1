//! Frames going out: the one place where they are made, numbered, counted and handed to drivers.
//!
//! There is one rule for what a driver does not take: it was never sent. Its packet number is that of the
//! next frame, it is not counted, and what it carried is due again: data and acknowledgements are given
//! back here, control messages are pending until their frame is taken.

use delivery::{Instant, LINKS_MAX, LinkCounters, LinkId, PacketClass, SentPool, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, Fragment, FragmentPayload, LocalFault, Pools};
use wire_edge::{
    CONTROL_BYTES_MAX, ConnectionId, Control, Epoch, Flags, HEADER_BYTES_MAX, Header, PeerAddr,
    Prefix, encode_header,
};

use crate::connection::Connection;
use crate::engine::{Emitted, Engine};
use crate::path::Path;
use crate::tell::pad;

/// How a link driver takes frames.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(LinkId, &TxBatch) -> Emitted;

/// What a frame is sent for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// Bytes of operations, or what stands for them.
    Data,
    /// An acknowledgement and nothing else.
    Acknowledge,
    /// To tell the peer what it has to know: repeated if it is lost.
    Tell,
    /// To ask or to answer: whoever asks repeats that.
    Ask,
    /// To find out whether frames of this size arrive.
    ProbeMtu,
}

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
            link: path.index,
            flags: if has_acks { frame.flags.with(Flags::ACK) } else { frame.flags },
            epoch,
            connection,
            packet: path.send.next_packet().truncate(),
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
        path.send.on_sent(sent, now, bytes, frame.purpose.class(), frame.carried);
        let counters = &mut path.counters;
        counters.frames_sent += 1;
        counters.bytes_sent += u64::from(bytes);
        counters.payload_bytes_sent += u64::from(frame.carried.length);
        *frame.purpose.counter(counters) += 1;
        let rides = has_acks && frame.purpose != Purpose::Acknowledge;
        counters.piggybacked_acks_sent += u64::from(rides);
        Some(bytes)
    }

    /// Appends a frame that belongs to no connection, and is encoded already.
    fn push_encoded(&mut self, frame: &[u8]) {
        self.close();
        self.batch.header_mut().extend_from_slice(frame);
        self.batch.finish_frame(PayloadSlice::EMPTY);
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
    fn bytes_from(&self, first: usize) -> u64 {
        (first..self.batch.len()).map(|index| self.batch.frame(index).len() as u64).sum()
    }
}

impl Purpose {
    /// What loss detection makes of such a packet.
    const fn class(self) -> PacketClass {
        match self {
            Self::Data | Self::Tell => PacketClass::Data,
            Self::Acknowledge | Self::Ask => PacketClass::Unacknowledged,
            Self::ProbeMtu => PacketClass::MtuProbe,
        }
    }

    /// Which counter counts such frames.
    const fn counter(self, counters: &mut LinkCounters) -> &mut u64 {
        match self {
            Self::Data => &mut counters.data_frames_sent,
            Self::Acknowledge => &mut counters.explicit_acks_sent,
            Self::Tell | Self::Ask => &mut counters.control_frames_sent,
            Self::ProbeMtu => &mut counters.mtu_probes_sent,
        }
    }
}

impl Engine {
    /// Makes a batch of one frame on the link at `position` and hands it over; false if the link is full.
    pub(crate) fn send_alone(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        frame: &NewFrame<'_>,
        emit: Emit<'_>,
    ) -> bool {
        let names = (connection.peer_epoch, connection.peer_id);
        let path = &mut connection.paths[position];
        let has_acks = frame.purpose == Purpose::Acknowledge;
        let acks = if has_acks { self.acks.as_slice() } else { &[] };
        self.batch.reset(path.peer);
        let pushed = self.batch.push(now, &mut self.sent, names, path, acks, frame);
        pushed.is_some() && self.hand_over(now, connection, position, has_acks, emit) == Sent::All
    }

    /// Hands the batch, of which the first frame may have acknowledgements, to the driver of the link at
    /// `position`.
    pub(crate) fn hand_over(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        has_acks: bool,
        emit: Emit<'_>,
    ) -> Sent {
        let link = connection.paths[position].link;
        match self.emit(link, emit) {
            Emitted::Taken(taken) if taken == self.batch.len() => Sent::All,
            Emitted::Taken(taken) => {
                self.take_back(connection, position, has_acks, taken);
                Sent::Blocked
            }
            Emitted::PayloadUnmapped(frame) => {
                let first = frame.min(self.batch.len() - 1);
                let unmapped = self.take_back(connection, position, has_acks, first);
                self.local_memory_gone(now, connection, LocalFault::of(&unmapped));
                Sent::Failed
            }
        }
    }

    /// Hands an encoded frame of no connection to a driver; false if that has no room for it.
    pub(crate) fn send_encoded(
        &mut self,
        link: LinkId,
        to: PeerAddr,
        frame: &[u8],
        emit: Emit<'_>,
    ) -> bool {
        self.batch.reset(to);
        self.batch.push_encoded(frame);
        self.emit(link, emit) != Emitted::Taken(0)
    }

    /// What a link that is down does not carry is lost on the way.
    fn emit(&mut self, link: LinkId, emit: Emit<'_>) -> Emitted {
        self.batch.close();
        let (to, frames) = (self.batch.batch.to(), self.batch.len());
        if !self.is_usable(link) {
            return Emitted::Taken(frames);
        }
        if self.has_no_room(link, to) {
            return Emitted::Taken(0);
        }
        match emit(link, &self.batch.batch) {
            Emitted::Taken(taken) if taken < frames => {
                self.block(link, to);
                Emitted::Taken(taken)
            }
            unmapped @ Emitted::PayloadUnmapped(_) if self.batch.purpose == Purpose::Data => {
                unmapped
            }
            // Other frames have no payload that could be unmapped: a driver that says so has lost them.
            Emitted::Taken(_) | Emitted::PayloadUnmapped(_) => Emitted::Taken(frames),
        }
    }

    /// The driver has taken only the first frames of the batch: the others were never sent. Returns what
    /// the first of these carried.
    #[cold]
    fn take_back(
        &mut self,
        connection: &mut Connection,
        position: usize,
        has_acks: bool,
        taken: usize,
    ) -> Carried {
        let Self { batch, sent, pools, .. } = self;
        let Connection { paths, outbound, report_now, .. } = connection;
        let path = &mut paths[position];
        let frames = batch.len() - taken;
        let (mut first, mut payload_bytes) = (Carried::default(), 0);
        path.send.unsend(sent, frames, &mut |carried| {
            payload_bytes += u64::from(carried.length);
            first = carried;
            if batch.purpose == Purpose::Data {
                outbound.on_returned(pools, carried);
            }
        });
        if batch.purpose == Purpose::ProbeMtu {
            path.mtu.on_probe_unsent();
        }
        let counters = &mut path.counters;
        counters.frames_sent -= frames as u64;
        counters.bytes_sent -= batch.bytes_from(taken);
        counters.payload_bytes_sent -= payload_bytes;
        *batch.purpose.counter(counters) -= frames as u64;
        if has_acks && taken == 0 {
            counters.piggybacked_acks_sent -= u64::from(batch.purpose != Purpose::Acknowledge);
            *report_now = true;
        }
        first
    }

    /// Frames of a batch that a driver takes at once.
    pub(crate) fn segments(&self, link: LinkId) -> usize {
        let known = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        let segments = known.map_or(1, |link| usize::from(link.caps.segments));
        // A batch that was lent without room grows.
        segments.clamp(1, self.batch.batch.room().max(1))
    }

    /// Whether frames handed over at once cost as little as one.
    pub(crate) fn offloads(&self, link: LinkId) -> bool {
        let known = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        known.is_some_and(|link| link.caps.offloads)
    }

    /// Whether nothing can be sent on a link of a connection now.
    pub(crate) fn is_blocked(&self, path: &Path) -> bool {
        !self.is_usable(path.link) || self.has_no_room(path.link, path.peer)
    }

    /// Whether a link of the connection is full: its driver has room again soon, and nobody will say
    /// so. A link that is down says so when it is back.
    pub(crate) fn is_full(&self, path: &Path) -> bool {
        self.is_usable(path.link) && self.has_no_room(path.link, path.peer)
    }

    /// Whether a driver has refused frames for a peer in this turn.
    fn has_no_room(&self, link: LinkId, to: PeerAddr) -> bool {
        self.blocked >> link.0 & 1 != 0 || self.blocked_peers.contains(&(link, to))
    }

    fn block(&mut self, link: LinkId, to: PeerAddr) {
        if is_full_alone(to) {
            self.blocked_peers.push((link, to));
        } else if usize::from(link.0) < LINKS_MAX {
            self.blocked |= 1 << link.0;
        }
    }
}

/// Whether the driver that reaches a peer has room for that one apart from others: memory is shared with
/// each, and one that does not read fills only its own. Other drivers have one queue for all.
pub(crate) const fn is_full_alone(to: PeerAddr) -> bool {
    to.is_shared_memory()
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

/// Bytes of the common header, and where its flags are.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;
const FLAGS_OFFSET: usize = 1;

/// Beyond every header of a batch.
const NONE_OPEN: u32 = u32::MAX;
