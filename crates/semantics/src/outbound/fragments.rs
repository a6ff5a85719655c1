//! Cuts operations into fragments. Decides which fragment to send next, and which operations must
//! wait for the peer.

use mem::{AccessError, MemoryAccess, PayloadSlice, RegionId, Target};
use wire_edge::{Flags, Header, OperationNumber};

use super::answers::Content;
use super::{Bytes, OutKind, OutOperation, Outbound, own_operation};
use crate::lists::Lists;
use crate::pools::Pools;
use crate::slab::NIL;
use work::{Piece, PieceList};

/// The content of a packet, in 16 bytes. When the packet is acknowledged or lost, the engine passes
/// this value back to this crate.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Carried {
    /// Slot of the operation's or answer's record. For [`CarriedKind::Control`], a value of the
    /// engine.
    pub slot: u32,
    /// Number of the operation.
    pub number: OperationNumber,
    /// Offset of the first byte within the operation.
    pub offset: u32,
    /// Number of bytes.
    pub length: u16,
    /// Kind of content.
    pub kind: CarriedKind,
    /// Whether the fragment is the last one of its operation.
    pub last: bool,
}

/// Kind of content of a packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CarriedKind {
    /// Content that is never retransmitted.
    #[default]
    Nothing,
    /// A fragment of an operation of this side.
    Request,
    /// A fragment of an answer to the peer.
    Answer,
    /// Control messages of the engine.
    Control,
}

/// The part of an operation for one frame. The fragment borrows the memory access with which it was
/// cut, and is valid only as long as this access.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// The header that follows the common header of the packet.
    pub header: Header,
    /// The flags of the operation; the last fragment also has `LAST`.
    pub flags: Flags,
    /// The location of the payload bytes.
    pub payload: FragmentPayload<'a>,
    /// The description of the content, which the engine passes back when the packet is acknowledged
    /// or lost.
    pub carried: Carried,
}

/// Location of the payload of a fragment.
#[derive(Clone, Copy, Debug)]
pub enum FragmentPayload<'a> {
    /// The fragment has no payload.
    None,
    /// The payload is in registered memory. The driver reads it there.
    Outside(PayloadSlice<'a>),
    /// The payload is in a local region, and is so short that it is copied behind the header.
    Region(RegionId, u64, u32),
    /// The payload is in memory that the peer reads, and is so short that it is copied behind the
    /// header.
    Target(Target, u64, u32),
    /// The payload is in the record of the operation. [`Pools::inline_payload`] returns it. The
    /// payload is valid until the next call of a method of [`Outbound`].
    Inline,
    /// The payload is in several pieces (scatter/gather entries) of the operation's list.
    /// [`Pools::gather`] copies it behind the header. This must happen before the next call of a
    /// method of [`Outbound`].
    Pieces,
    /// A part of the answer to this read of the peer cannot be retransmitted, because the memory of
    /// the answer is gone. The caller must send a Control message instead.
    Gone(OperationNumber),
}

/// A fault: local memory that a frame needs is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LocalFault {
    /// The memory belongs to an operation of this side.
    Operation(OperationNumber),
    /// The memory holds the answer to this read of the peer.
    Answer(OperationNumber),
}

impl LocalFault {
    /// Returns the fault of a packet whose memory is gone. `carried` is the content of the packet.
    pub const fn of(carried: &Carried) -> Self {
        match carried.kind {
            CarriedKind::Answer => Self::Answer(carried.number),
            _ => Self::Operation(carried.number),
        }
    }
}

/// Maximum payload in bytes that is copied behind the header. If all payloads of a batch of small
/// frames are copied, the batch is one range of memory for the kernel. Each further range costs the
/// kernel 15–20 ns; a copy of 256 bytes costs about 10 ns.
const COPY_BYTES_MAX: u32 = 256;

impl Outbound {
    /// Returns the next fragment to send. Returns `None` if no fragment may be sent now.
    ///
    /// The payload and the header that follows the common header have at most `room` bytes
    /// together; `room` is at least [`Outbound::room_bytes_min`].
    ///
    /// Lost fragments come first. If there are none, answers and requests alternate.
    ///
    /// # Errors
    /// Returns an error if the local memory of a fragment is gone. The connection must then end.
    pub fn next_fragment<'a>(
        &mut self,
        memory: &'a MemoryAccess<'_>,
        pools: &mut Pools,
        room: u32,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let room = room.min(u32::from(u16::MAX));
        while !self.again.is_empty() {
            if let Some(fragment) = self.next_retransmission(memory, pools, room)? {
                return Ok(Some(fragment));
            }
        }
        self.answer_turn = !self.answer_turn;
        let request_possible = self.cursor != NIL && !self.blocked;
        if self.answer_cursor != NIL && (self.answer_turn || !request_possible) {
            return self.next_answer(memory, pools, room).map(Some);
        }
        if request_possible {
            let mut cut = self.cut_request(memory, pools, room);
            if cut.is_none() && self.queue_pair && self.pass_local(memory, pools) {
                cut = self.cut_request(memory, pools, room);
            }
            if let Some(cut) = cut {
                return self.next_request(memory, pools, &cut);
            }
        }
        if self.answer_cursor != NIL {
            return self.next_answer(memory, pools, room).map(Some);
        }
        Ok(None)
    }

    /// Returns again a fragment of an operation of this side. The fragment was cut before, as
    /// `carried`, but was not sent. Returns `None` if no operation needs the fragment any more.
    ///
    /// # Errors
    /// Returns an error if the local memory of the fragment is gone. The connection must then end.
    pub fn cut_again<'a>(
        &self,
        memory: &'a MemoryAccess<'_>,
        pools: &mut Pools,
        carried: &Carried,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let Pools { operations, lists, .. } = pools;
        let Some(operation) = own_operation(operations, self.owner.index(), carried) else {
            return Ok(None);
        };
        let end = carried.offset + u32::from(carried.length);
        let cut = operation.cut(lists, memory, carried.offset, end, u32::from(u16::MAX));
        operation.fragment(lists, memory, carried.slot, &cut)
    }

    /// Returns whether the next fragment begins a write that is longer than `bytes` bytes and
    /// independent of the last fragment. The peer may place such a write before earlier operations
    /// are delivered. The peer therefore never holds the write, and this side may send it at once.
    #[inline]
    pub fn is_next_independent(&self, pools: &Pools, bytes: u32) -> bool {
        let is_independent = |operation: &OutOperation| {
            operation.sent == 0
                && operation.length > bytes
                && matches!(operation.kind, OutKind::Write { takes_receive: false, .. })
                && !operation.flags.intersects(Flags::STRICT.with(Flags::FENCE_BEFORE))
                && self.may_begin(operation)
        };
        self.again.is_empty()
            && self.answer_cursor == NIL
            && self.last_fence.is_none()
            && !self.blocked
            && !self.queue_pair
            && pools.operations.get(self.cursor).is_some_and(is_independent)
    }

    /// Returns the fragment that has waited longest for its retransmission. Returns `None` if no
    /// operation needs the fragment any more.
    fn next_retransmission<'a>(
        &mut self,
        memory: &'a MemoryAccess<'_>,
        pools: &mut Pools,
        room: u32,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let node = self.again.head;
        let carried = pools.retransmissions[node].carried;
        let Carried { slot, offset, length, kind, .. } = carried;
        let end = offset + u32::from(length);
        let fragment = if !self.is_wanted(pools, &carried) {
            None
        } else if kind == CarriedKind::Answer {
            Self::answer_again(memory, pools, carried, room)
        } else {
            let Pools { operations, lists, .. } = pools;
            match own_operation(operations, self.owner.index(), &carried) {
                Some(operation) => {
                    let cut = operation.cut(lists, memory, offset, end, room);
                    operation.fragment(lists, memory, slot, &cut)?
                }
                None => None,
            }
        };
        let taken = fragment.as_ref().map_or(length, |fragment| fragment.carried.length);
        self.backlog_bytes = self.backlog_bytes.saturating_sub(u64::from(taken));
        if taken < length {
            let rest = &mut pools.retransmissions[node].carried;
            rest.offset += u32::from(taken);
            rest.length -= taken;
            return Ok(fragment);
        }
        self.again.take_first(pools);
        Ok(fragment)
    }

    fn next_answer<'a>(
        &mut self,
        memory: &'a MemoryAccess<'_>,
        pools: &mut Pools,
        room: u32,
    ) -> Result<Fragment<'a>, LocalFault> {
        let slot = self.answer_cursor;
        let (sent, length) = (pools.responses[slot].sent, pools.responses[slot].length);
        let fragment = Self::answer_fragment(memory, pools, slot, sent, length, room)?
            .ok_or(LocalFault::Answer(pools.responses[slot].number))?;
        let response = &mut pools.responses[slot];
        response.sent += u32::from(fragment.carried.length);
        if fragment.carried.last {
            self.answer_cursor = response.next;
        }
        let bytes = u64::from(fragment.carried.length.max(u16::from(length == 0)));
        self.backlog_bytes = self.backlog_bytes.saturating_sub(bytes);
        Ok(fragment)
    }

    fn answer_fragment<'a>(
        memory: &'a MemoryAccess<'_>,
        pools: &Pools,
        slot: u32,
        offset: u32,
        end: u32,
        room: u32,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let Some(response) = pools.responses.get(slot) else { return Ok(None) };
        let number = response.number;
        let fault = LocalFault::Answer(number);
        let (header, payload, len) = match response.content {
            Content::Atomic(value) => {
                (Header::AtomicResponse { operation: number, value }, FragmentPayload::None, 0)
            }
            Content::NoBytes => {
                let header = Header::ReadResponse { operation: number, offset: 0 };
                (header, FragmentPayload::None, 0)
            }
            Content::Read(target) => {
                let len = (end - offset).min(room - READ_RESPONSE_BYTES);
                let payload = match len {
                    0 => FragmentPayload::None,
                    1..=COPY_BYTES_MAX => FragmentPayload::Target(target, u64::from(offset), len),
                    _ => FragmentPayload::Outside(
                        memory.source_of(&target, u64::from(offset), len).map_err(|_| fault)?,
                    ),
                };
                (Header::ReadResponse { operation: number, offset }, payload, len)
            }
        };
        let last = offset + len == response.length;
        let flags = if last { Flags::LAST } else { Flags::default() };
        let carried =
            Carried { slot, number, offset, length: len as u16, kind: CarriedKind::Answer, last };
        Ok(Some(Fragment { header, flags, payload, carried }))
    }

    //= protocol.md: answer.7
    /// Returns again a part of an answer that was sent before. Returns `None` if the answer is not
    /// needed any more.
    ///
    /// If the peer has received the part, but the acknowledgement has not arrived here, the
    /// application of this side may already have freed the memory, because the application of the
    /// peer allowed it. If the memory is gone, returns a fragment that reports the missing memory
    /// to the peer. Only the peer knows whether a part is missing.
    fn answer_again<'a>(
        memory: &'a MemoryAccess<'_>,
        pools: &Pools,
        carried: Carried,
        room: u32,
    ) -> Option<Fragment<'a>> {
        let Carried { slot, number, offset, length, .. } = carried;
        let end = offset + u32::from(length);
        let is_there = |fragment: &Fragment<'_>| match fragment.payload {
            FragmentPayload::Target(target, offset, len) => {
                memory.source_of(&target, offset, len).is_ok()
            }
            _ => true,
        };
        match Self::answer_fragment(memory, pools, slot, offset, end, room) {
            Ok(fragment) if fragment.as_ref().is_none_or(is_there) => fragment,
            _ => Some(Fragment {
                header: Header::Control,
                flags: Flags::default(),
                payload: FragmentPayload::Gone(number),
                carried,
            }),
        }
    }

    /// Returns the part of the operation at the cursor that may be sent now. Returns `None` if the
    /// operation must wait for the peer.
    #[inline]
    fn cut_request(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        room: u32,
    ) -> Option<Cut> {
        let Pools { operations, lists, .. } = pools;
        let operation = &mut operations[self.cursor];
        if operation.sent == 0 && self.last_fence.is_some() {
            operation.flags = operation.flags.with(Flags::FENCE_BEFORE);
        }
        let cut = operation.cut(lists, memory, operation.sent, operation.length, room);
        let may_send =
            (operation.sent > 0 || self.may_begin(operation)) && self.may_risk(operation, cut);
        self.blocked = !may_send;
        may_send.then_some(cut)
    }

    //= protocol.md: operation.10, fence.3
    /// Returns the fragment `cut` of the operation at the cursor and advances the cursor.
    #[inline]
    fn next_request<'a>(
        &mut self,
        memory: &'a MemoryAccess<'_>,
        pools: &mut Pools,
        cut: &Cut,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let slot = self.cursor;
        let operation = &mut pools.operations[slot];
        if operation.sent == 0 {
            if operation.flags.contains(Flags::FENCE_AFTER) {
                self.last_fence = Some(operation.number);
            }
            if operation.is_question() {
                self.asked += 1;
                pools.reads_index.insert(self.owner.index(), operation.number, slot);
            }
        }
        let risk = if operation.is_at_risk(*cut) { cut.len } else { 0 };
        self.at_risk_bytes += risk;
        operation.at_risk += risk;
        operation.sent += cut.len;
        operation.all_sent = cut.last;
        if cut.last {
            self.cursor = operation.next;
        }
        let handed_out = if cut.len == 0 { operation.backlog_bytes() } else { cut.len };
        self.backlog_bytes = self.backlog_bytes.saturating_sub(u64::from(handed_out));
        operation.fragment(&pools.lists, memory, slot, cut)
    }

    //= protocol.md: operation.9, fence.2, fence.4, answer.10, credit.2, queue-pair.1
    /// Returns whether the first fragment of an operation may be sent now.
    fn may_begin(&self, operation: &OutOperation) -> bool {
        let in_window =
            (operation.number.since(self.delivered) as u32) < self.peer.operation_window;
        // The peer delivers a read when it begins to answer, but the bytes leave the peer's memory
        // later. An operation with a fence after the read therefore waits here for the answer.
        let is_fenced =
            operation.flags.contains(Flags::FENCE_BEFORE) || operation.waits_for_answers;
        let fence_holds = self.asked > 0 && is_fenced;
        let granted = match operation.kind {
            OutKind::Write { takes_receive: false, .. } | OutKind::Patch { .. } => true,
            OutKind::Write { message, .. } | OutKind::Send { message, .. } => {
                message.since(self.peer.credit) < 0
            }
            OutKind::Read { .. } | OutKind::Atomic { .. } => {
                self.asked < u32::from(self.peer.read_depth)
            }
            OutKind::Local { .. } => false,
        };
        in_window && granted && !fence_holds
    }

    //= protocol.md: pool.2, pool.3
    /// Returns whether the fragment `cut` may be sent now. If the peer may have to hold the
    /// fragment, the peer must have room for it. Fragments of the oldest operation need not wait
    /// for room, because the peer never holds them.
    fn may_risk(&self, operation: &OutOperation, cut: Cut) -> bool {
        cut.len == 0
            || !operation.is_at_risk(cut)
            || operation.number == self.delivered
            || self.at_risk_bytes.saturating_add(cut.len) <= self.peer.order_pool_bytes
    }
}

/// The part of an operation that goes into one fragment.
#[derive(Clone, Copy)]
struct Cut {
    offset: u32,
    len: u32,
    /// Whether this part ends the operation. If so, the fragment carries the immediate.
    last: bool,
}

impl Pools {
    /// Returns the bytes of a fragment whose payload is [`FragmentPayload::Inline`]. Returns no
    /// bytes for other fragments.
    #[inline]
    pub fn inline_payload(&self, carried: &Carried) -> &[u8] {
        let operation = self.operations.get(carried.slot).map(|operation| &operation.kind);
        let Some(
            OutKind::Write { source, .. }
            | OutKind::Send { source, .. }
            | OutKind::Patch { source },
        ) = operation
        else {
            return &[];
        };
        let Bytes::Inline(bytes) = source else { return &[] };
        let start = carried.offset as usize;
        bytes.get(start..start + usize::from(carried.length)).unwrap_or(&[])
    }

    /// Appends the bytes of a fragment whose payload is [`FragmentPayload::Pieces`] to `out`.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::copy_out`].
    pub fn gather(
        &self,
        memory: &MemoryAccess<'_>,
        carried: &Carried,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessError> {
        let operation = self.operations.get(carried.slot).map(|operation| &operation.kind);
        let Some(
            OutKind::Write { source: Bytes::Pieces(list), .. }
            | OutKind::Send { source: Bytes::Pieces(list), .. },
        ) = operation
        else {
            return Ok(());
        };
        let list = self.lists.get(*list);
        for Piece { region, offset, length } in list.cut(carried.offset, carried.length.into()) {
            let at = out.len();
            out.resize(at + length as usize, 0);
            memory.copy_out(region, offset, &mut out[at..])?;
        }
        Ok(())
    }
}

impl OutOperation {
    /// Returns the part of `[offset, end)` that fits into a fragment. The fragment has `room` bytes
    /// for header and payload.
    #[inline]
    fn cut(
        &self,
        lists: &Lists,
        memory: &MemoryAccess<'_>,
        offset: u32,
        end: u32,
        room: u32,
    ) -> Cut {
        let (header_bytes, source) = match &self.kind {
            OutKind::Write { source, .. } => (WRITE_BYTES, source),
            OutKind::Send { source, .. } => (SEND_BYTES, source),
            OutKind::Patch { source } => return self.cut_patch(memory, source, offset, end, room),
            OutKind::Read { .. } | OutKind::Atomic { .. } | OutKind::Local { .. } => {
                return Cut { offset: 0, len: 0, last: true };
            }
        };
        let mut len = (end - offset).min(room - header_bytes);
        if let Bytes::Pieces(list) = source {
            len = stretch(lists.get(*list), offset, len);
        }
        let mut last = offset + len == self.length;
        if last && self.has_tail() && header_bytes + IMMEDIATE_BYTES + len > room {
            // The fragment has room for all remaining bytes, but not for the immediate or the key
            // behind them. Leave a few bytes for another fragment, which will be the last one.
            len -= IMMEDIATE_BYTES;
            last = false;
        }
        Cut { offset, len, last }
    }

    //= protocol.md: patch.2
    /// Returns the part of `[offset, end)` of a patch that fits into a fragment, like
    /// [`OutOperation::cut`]. The part consists of whole records. It is empty if the local bytes
    /// are not readable, or if they are not records any more.
    #[inline(never)]
    fn cut_patch(
        &self,
        memory: &MemoryAccess<'_>,
        source: &Bytes,
        offset: u32,
        end: u32,
        room: u32,
    ) -> Cut {
        let ends = end == self.length;
        let tail = if ends && self.has_tail() { IMMEDIATE_BYTES } else { 0 };
        if WRITE_BYTES + (end - offset) + tail <= room {
            return Cut { offset, len: end - offset, last: ends };
        }
        // At least one record stays for another fragment, which has the immediate.
        let most = room.saturating_sub(WRITE_BYTES).min((end - offset).saturating_sub(1));
        Cut { offset, len: source.whole_records(memory, offset, most), last: false }
    }

    /// Returns whether the last fragment carries an immediate, or a key in place of the immediate.
    const fn has_tail(&self) -> bool {
        self.immediate.is_some() || matches!(self.kind, OutKind::Send { invalidates: true, .. })
    }

    //= protocol.md: pool.2
    /// Returns whether the peer may have to hold the fragment. This is the case for every fragment
    /// of a fenced operation, and for the last fragment of a strict operation.
    #[inline]
    const fn is_at_risk(&self, cut: Cut) -> bool {
        self.flags.contains(Flags::FENCE_BEFORE) || (cut.last && self.flags.contains(Flags::STRICT))
    }

    //= protocol.md: operation.2
    /// Returns the fragment for a part; never `None`. The callers also return an `Option`, so the
    /// compiler can construct the fragment in place and need not move it.
    #[inline]
    fn fragment<'a>(
        &self,
        lists: &Lists,
        memory: &'a MemoryAccess<'_>,
        slot: u32,
        cut: &Cut,
    ) -> Result<Option<Fragment<'a>>, LocalFault> {
        let operation = self.number;
        let Cut { offset, len, last } = *cut;
        let (OutKind::Write { source, .. }
        | OutKind::Send { source, .. }
        | OutKind::Patch { source }) = &self.kind
        else {
            return Ok(Some(self.question(slot)));
        };
        let payload = match *source {
            // The payload of a patch is always copied, because its target checks it in the frame. A
            // copy of 1400 bytes takes about 50 ns.
            Bytes::Region { region, offset: start }
                if matches!(self.kind, OutKind::Patch { .. }) && self.length > 0 =>
            {
                if len == 0 {
                    return Err(LocalFault::Operation(operation));
                }
                FragmentPayload::Region(region, start + u64::from(offset), len)
            }
            _ if len == 0 => FragmentPayload::None,
            Bytes::Inline(_) => FragmentPayload::Inline,
            Bytes::Region { region, offset: start } => {
                in_region(memory, region, start + u64::from(offset), len)
                    .map_err(|_| LocalFault::Operation(operation))?
            }
            Bytes::Pieces(list) => match lists.get(list).cut(offset, len).next() {
                Some(piece) if piece.length == len => {
                    in_region(memory, piece.region, piece.offset, len)
                        .map_err(|_| LocalFault::Operation(operation))?
                }
                _ => FragmentPayload::Pieces,
            },
        };
        let immediate = if last { self.immediate } else { None };
        let header = match self.kind {
            OutKind::Send { message, invalidates: true, .. } => {
                let key = last.then_some(self.key);
                Header::SendInvalidate { operation, offset, message, key }
            }
            OutKind::Send { message, .. } => Header::Send { operation, offset, message, immediate },
            OutKind::Patch { .. } => {
                Header::Patch { operation, offset, key: self.key, address: self.address, immediate }
            }
            _ => Header::Write {
                operation,
                offset,
                key: self.key,
                address: self.address.wrapping_add(u64::from(offset)),
                immediate,
            },
        };
        let flags = if last { self.flags.with(Flags::LAST) } else { self.flags };
        let carried = Carried {
            slot,
            number: operation,
            offset,
            length: len as u16,
            kind: CarriedKind::Request,
            last,
        };
        Ok(Some(Fragment { header, flags, payload, carried }))
    }

    /// Returns the number of payload bytes that will be cut into fragments. If there are no bytes,
    /// returns 1, because one fragment must be sent in any case.
    pub(super) const fn backlog_bytes(&self) -> u32 {
        if self.is_question() || self.length == 0 { 1 } else { self.length }
    }

    /// Returns whether the operation completes only with an answer of the peer.
    pub(super) const fn is_question(&self) -> bool {
        matches!(self.kind, OutKind::Read { .. } | OutKind::Atomic { .. })
    }

    /// Returns the only fragment of a read request or atomic.
    fn question(&self, slot: u32) -> Fragment<'static> {
        let operation = self.number;
        let (key, address) = (self.key, self.address);
        let header = match self.kind {
            OutKind::Atomic { opcode, operand, compare, .. } => {
                Header::Atomic { operation, opcode, key, address, operand, compare }
            }
            _ => Header::ReadRequest { operation, length: self.length, key, address },
        };
        let carried = Carried {
            slot,
            number: operation,
            offset: 0,
            length: 0,
            kind: CarriedKind::Request,
            last: true,
        };
        let flags = self.flags.with(Flags::LAST);
        Fragment { header, flags, payload: FragmentPayload::None, carried }
    }
}

/// Returns a payload from one region. A short payload is copied behind the header.
#[inline]
fn in_region<'a>(
    memory: &'a MemoryAccess<'_>,
    region: RegionId,
    at: u64,
    len: u32,
) -> Result<FragmentPayload<'a>, AccessError> {
    if len <= COPY_BYTES_MAX {
        return Ok(FragmentPayload::Region(region, at, len));
    }
    memory.source(region, at, len).map(FragmentPayload::Outside)
}

/// Returns how many of the `len` bytes at `offset` go into one fragment.
///
/// A fragment within one piece (scatter/gather entry) is sent without a copy. A fragment that
/// covers several pieces must be copied. To avoid the copy, the fragment ends with the first piece
/// if this piece has enough bytes.
#[cold]
fn stretch(list: PieceList<'_>, offset: u32, len: u32) -> u32 {
    match list.cut(offset, len).next() {
        Some(piece) if piece.length > GATHERED_BYTES_MAX => piece.length,
        _ => len,
    }
}

/// Length of the first piece, in bytes, above which a fragment ends with this piece and covers no
/// other piece. An additional frame then costs less than a copy of the bytes. Payloads of Ethernet
/// frames are shorter than this length, or not much longer.
const GATHERED_BYTES_MAX: u32 = 4096;

/// Sizes of the headers that follow the common header, in bytes (protocol.md §3.2).
const WRITE_BYTES: u32 = 20;
const SEND_BYTES: u32 = 12;
const READ_RESPONSE_BYTES: u32 = 8;
const IMMEDIATE_BYTES: u32 = 4;
