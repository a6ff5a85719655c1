//! Sending: which message is next, and its FPDUs.

use delivery::Instant;
use wire_iwarp::{
    CRC_BYTES, Cause, Crc, DdpHeader, FpduLayout, LENGTH_BYTES, MARKER_BYTES, MARKER_INTERVAL,
    Opcode, QueueNumber, READ_REQUEST_BYTES, ReadRequest, SEGMENT_HEADER_BYTES_MAX, Segment, Stag,
    Trailer, encode_length,
};

use crate::config::{FPDU_BYTES_MAX, FPDU_BYTES_MIN, MSS_MIN, Rtr};
use crate::cursor::{Active, Cursor};
use crate::event::{EndCause, Status};
use crate::gather::{Gather, Part, Rest};
use crate::memory::{Access, Memory, Piece, Refusal};
use crate::placement::{Answer, OutstandingRead};
use crate::planted::{Planted, is_planted};
use crate::stream::{Phase, Role, Stream};
use crate::terminate_payload::Blamed;
use crate::work::{self, Entry, WorkKind, WorkRing};

/// Largest payload that is copied into the frame. A copy of so few bytes costs less than another
/// entry of the driver's gather list.
const COPIED_BYTES_MAX: u32 = 256;

/// Payload of an FPDU that may exceed a TCP segment. A multiple of a cache line, for which the FPDU
/// has less than 65,536 bytes with headers and markers.
const LONG_PAYLOAD_BYTES: u32 = 64_960;

/// The STag of empty messages, of which receivers check nothing. Linux siw has the same.
const EMPTY_STAG: Stag = Stag(1);

/// The message whose FPDU is next.
#[derive(Clone, Copy)]
enum Choice<'a> {
    Terminate(&'a [u8]),
    Rtr(Rtr),
    Nudge,
    Own(&'a Entry),
    Answer(&'a Answer),
}

/// Why an FPDU cannot be built.
#[derive(Clone, Copy)]
enum Failure {
    /// Memory of the operation with this number.
    Own { number: u64, refusal: Refusal },
    /// Memory that the peer reads.
    Answer { answer: Answer, refusal: Refusal },
    /// Other memory: that of an FPDU of which TCP has taken a part.
    Memory(Refusal),
}

/// The payload of an FPDU.
enum Source<'a> {
    Bytes(&'a [u8]),
    Inline { entry: &'a Entry, offset: u32, bytes: u32 },
    Pieces { entry: &'a Entry, offset: u32, bytes: u32 },
    Remote(Piece),
}

impl Source<'_> {
    fn bytes(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Inline { bytes, .. } | Self::Pieces { bytes, .. } => *bytes,
            Self::Remote(piece) => piece.bytes,
        }
    }
}

impl Stream {
    /// Fills `out` with the next bytes to write, at most about [`crate::TURN_BYTES`] and at least
    /// one FPDU. Leaves it empty if nothing is to be written. Call it after each other call, and
    /// when the socket takes bytes again. Call [`Stream::handle_written`] after each call that
    /// returns bytes.
    ///
    /// Allocates nothing once `out` has grown to the largest turn, except at the end of a stream.
    /// Costs a few steps for each FPDU and piece; a payload is copied if it is short, or if FPDUs
    /// have CRCs or markers.
    pub fn poll_transmit(&mut self, memory: &mut impl Memory, out: &mut Gather) {
        out.clear();
        if self.setup_written < self.setup_frame.len() {
            // No FPDU is ever written together with a set-up frame: siw refuses it.
            if self.phase != Phase::Ended {
                out.put(self.setup_frame.get(self.setup_written..).unwrap_or_default());
            }
            return;
        }
        let failure = match self.fill(memory, out) {
            Ok(()) => return,
            Err(failure) => failure,
        };
        // The FPDUs before the failure are written first. The next call meets the failure again.
        if !out.is_empty() {
            return;
        }
        self.on_failure(failure, memory);
        if self.fill(memory, out).is_err() {
            out.clear();
        }
    }

    fn on_failure(&mut self, failure: Failure, memory: &mut impl Memory) {
        match failure {
            Failure::Own { number, refusal } => {
                self.work.finish(number, Status::LocalProtection);
                let end = EndCause::Local(refusal);
                self.terminate(Cause::RdmapCatastrophic, end, None, memory);
            }
            Failure::Answer { answer, refusal } => {
                let cause = refusal.cause_of_read();
                let (ulpdu, length) = read_request_ulpdu(answer.msn, &answer.request);
                let ulpdu = ulpdu.get(..length).unwrap_or_default();
                let blamed = Some(Blamed { ulpdu, length: length as u16 });
                self.terminate(cause, EndCause::Peer(cause), blamed, memory);
            }
            Failure::Memory(refusal) => {
                self.rest = None;
                self.end(EndCause::Local(refusal));
            }
        }
    }

    /// Fills the turn.
    fn fill(&self, memory: &mut impl Memory, out: &mut Gather) -> Result<(), Failure> {
        let mut cursor = self.cursor;
        if let Some(rest) = &self.rest {
            put_rest(rest, memory, out)?;
            cursor = rest.after;
        }
        while out.has_room() {
            let Some(choice) = self.choose(&cursor) else { break };
            let mark = out.mark();
            if let Err(failure) = self.build(&mut cursor, choice, memory, out) {
                out.discard_to(mark);
                return Err(failure);
            }
            out.end_frame(cursor);
        }
        Ok(())
    }

    //= RFC 5044 section 7.1: a responder sends no FPDU before it has received one
    /// Returns the message whose FPDU is next.
    ///
    /// Own operations and answers take turns, message by message. Linux siw keeps one state for all
    /// tagged messages, so an answer must not divide a Write.
    fn choose(&self, cursor: &Cursor) -> Option<Choice<'_>> {
        if self.phase == Phase::Ended {
            let payload = self.terminate.as_ref().filter(|_| !cursor.is_terminated)?;
            return Some(Choice::Terminate(payload.as_bytes()));
        }
        let is_held = self.role == Role::Responder && !self.is_peer_heard && !self.is_hold_over;
        if self.phase != Phase::Operating || is_held && !is_planted(Planted::SpeaksFirst) {
            return None;
        }
        let own = self.work.get(cursor.own);
        let answer = cursor.answer.checked_sub(self.answers_base);
        let answer = answer.and_then(|index| self.answers.get(usize::try_from(index).ok()?));
        match cursor.active {
            Active::Own => return own.map(Choice::Own),
            Active::Answer => return answer.map(Choice::Answer),
            Active::None => {}
        }
        if self.role == Role::Initiator
            && let Some(rtr) = self.rtr.filter(|_| !cursor.is_rtr_sent)
        {
            return Some(Choice::Rtr(rtr));
        }
        if self.nudges.owed > cursor.nudges {
            return Some(Choice::Nudge);
        }
        let own = own.filter(|entry| self.may_start(cursor, entry));
        match (own, answer) {
            (Some(_), Some(answer)) if cursor.is_answer_next => Some(Choice::Answer(answer)),
            (Some(entry), _) => Some(Choice::Own(entry)),
            (None, answer) => answer.map(Choice::Answer),
        }
    }

    //= RFC 5040 section 5.2: at most ORD reads are outstanding
    /// Returns whether an operation can be sent now: a fence waits for all earlier reads, and a read
    /// for an answer to an earlier one.
    fn may_start(&self, cursor: &Cursor, entry: &Entry) -> bool {
        let outstanding = cursor.reads.wrapping_sub(self.reads_answered);
        if entry.fence && outstanding > 0 && !is_planted(Planted::IgnoresFence) {
            return false;
        }
        let is_read = matches!(entry.kind, WorkKind::Read { .. });
        !is_read || outstanding < u32::from(self.terms.ord) || is_planted(Planted::IgnoresOrd)
    }

    /// Appends the next FPDU of a message, and moves the cursor behind it.
    fn build(
        &self,
        cursor: &mut Cursor,
        choice: Choice<'_>,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        match choice {
            Choice::Terminate(payload) => {
                let queue = QueueNumber::Terminate;
                let segment = Segment::untagged(Opcode::Terminate, true, queue, 1, 0);
                cursor.is_terminated = true;
                self.put_fpdu(cursor, &segment, &Source::Bytes(payload), memory, out)
            }
            Choice::Rtr(rtr) => {
                cursor.is_rtr_sent = true;
                match rtr {
                    Rtr::Write => self.put_empty_write(cursor, memory, out),
                    Rtr::Read => {
                        let (sink_stag, source_stag) = (EMPTY_STAG, EMPTY_STAG);
                        let (sink_offset, source_offset, size) = (0, 0, 0);
                        let request = ReadRequest {
                            sink_stag,
                            sink_offset,
                            size,
                            source_stag,
                            source_offset,
                        };
                        self.put_read_request(cursor, &request, memory, out)
                    }
                    Rtr::Send => {
                        let (queue, msn) = (QueueNumber::Send, cursor.send_msn);
                        let segment = Segment::untagged(Opcode::Send, true, queue, msn, 0);
                        cursor.send_msn = cursor.send_msn.wrapping_add(1);
                        self.put_fpdu(cursor, &segment, &Source::Bytes(&[]), memory, out)
                    }
                }
            }
            Choice::Nudge => {
                cursor.nudges += 1;
                self.put_empty_write(cursor, memory, out)
            }
            Choice::Own(entry) => {
                let number = cursor.own;
                let built = self.build_own(cursor, entry, memory, out);
                built.map_err(|failure| match failure {
                    Failure::Memory(refusal) => Failure::Own { number, refusal },
                    other => other,
                })
            }
            Choice::Answer(answer) => {
                let built = self.build_answer(cursor, answer, memory, out);
                built.map_err(|failure| match failure {
                    Failure::Memory(refusal) => Failure::Answer { answer: *answer, refusal },
                    other => other,
                })
            }
        }
    }

    fn put_empty_write(
        &self,
        cursor: &mut Cursor,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let segment = Segment::tagged(Opcode::Write, true, EMPTY_STAG, 0);
        self.put_fpdu(cursor, &segment, &Source::Bytes(&[]), memory, out)
    }

    fn put_read_request(
        &self,
        cursor: &mut Cursor,
        request: &ReadRequest,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let segment = read_request_segment(cursor.read_msn);
        cursor.read_msn = cursor.read_msn.wrapping_add(1);
        cursor.reads = cursor.reads.wrapping_add(1);
        self.put_fpdu(cursor, &segment, &Source::Bytes(&request.encode()), memory, out)
    }

    /// Appends the next FPDU of an own operation.
    fn build_own(
        &self,
        cursor: &mut Cursor,
        entry: &Entry,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let offset = cursor.offset;
        let left = entry.bytes - offset;
        let (segment, bytes) = match entry.kind {
            WorkKind::Read { stag, offset } => {
                let request = self.request_of(entry, stag, offset);
                self.put_read_request(cursor, &request, memory, out)?;
                advance_own(cursor);
                return Ok(());
            }
            WorkKind::Write { stag, offset: start } => {
                let bytes = left.min(self.payload_max(wire_iwarp::TAGGED_HEADER_BYTES));
                let at = start.wrapping_add(u64::from(offset));
                let last = bytes == left && !is_planted(Planted::ForgetsLast);
                (Segment::tagged(Opcode::Write, last, stag, at), bytes)
            }
            WorkKind::Send { solicited, invalidate } => {
                let bytes = left.min(self.payload_max(wire_iwarp::UNTAGGED_HEADER_BYTES));
                let opcode = match (solicited, invalidate) {
                    (false, None) => Opcode::Send,
                    (false, Some(_)) => Opcode::SendInvalidate,
                    (true, None) => Opcode::SendSolicited,
                    (true, Some(_)) => Opcode::SendSolicitedInvalidate,
                };
                let ddp = DdpHeader::Untagged {
                    last: bytes == left,
                    queue: QueueNumber::Send,
                    msn: cursor.send_msn,
                    mo: offset,
                    upper_layer: invalidate.map_or(0, |stag| stag.0),
                };
                (Segment { ddp, opcode, reserved: 0 }, bytes)
            }
        };
        let source = if WorkRing::is_inline(entry) {
            Source::Inline { entry, offset, bytes }
        } else {
            Source::Pieces { entry, offset, bytes }
        };
        self.put_fpdu(cursor, &segment, &source, memory, out)?;
        if bytes < left {
            cursor.active = Active::Own;
            cursor.offset = offset + bytes;
        } else {
            if matches!(entry.kind, WorkKind::Send { .. }) {
                cursor.send_msn = cursor.send_msn.wrapping_add(1);
            }
            advance_own(cursor);
        }
        Ok(())
    }

    /// Returns the Read Request of an own read. Its sink is named by the first piece; the peer echoes
    /// the name, and the answer is placed into the pieces of the operation.
    fn request_of(&self, entry: &Entry, stag: Stag, offset: u64) -> ReadRequest {
        let first = self.work.first_piece(entry);
        let sink_stag = first.map_or(EMPTY_STAG, |piece| Stag(piece.key));
        let sink_offset = first.map_or(0, |piece| piece.address);
        // Further pieces count on from the first, and must not wrap.
        let is_wrapping = sink_offset.checked_add(u64::from(entry.bytes)).is_none();
        let sink_offset = if is_wrapping { 0 } else { sink_offset };
        ReadRequest {
            sink_stag,
            sink_offset,
            size: entry.bytes,
            source_stag: stag,
            source_offset: offset,
        }
    }

    //= RFC 5040 section 5.2: an answer has the STag and the offset that the Read Request names
    /// Appends the next FPDU of an answer.
    fn build_answer(
        &self,
        cursor: &mut Cursor,
        answer: &Answer,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let offset = cursor.offset;
        let left = answer.request.size - offset;
        let bytes = left.min(self.payload_max(wire_iwarp::TAGGED_HEADER_BYTES));
        let at = answer.request.sink_offset.wrapping_add(u64::from(offset));
        let (stag, last) = (answer.request.sink_stag, bytes == left);
        let segment = Segment::tagged(Opcode::ReadResponse, last, stag, at);
        let source = Source::Remote(answer.source().part(offset, bytes));
        self.put_fpdu(cursor, &segment, &source, memory, out)?;
        if last {
            cursor.active = Active::None;
            cursor.offset = 0;
            cursor.answer += 1;
            cursor.is_answer_next = false;
        } else {
            cursor.active = Active::Answer;
            cursor.offset = offset + bytes;
        }
        Ok(())
    }

    //= RFC 5044 section 5: an FPDU fits into a TCP segment unless the peer is known to take longer ones
    /// Returns the largest payload of an FPDU whose headers have this length.
    fn payload_max(&self, header_bytes: usize) -> u32 {
        let room = match self.config.fpdu_bytes {
            Some(bytes) => bytes.clamp(FPDU_BYTES_MIN, FPDU_BYTES_MAX),
            None if self.terms.long_fpdus => return LONG_PAYLOAD_BYTES,
            None => self.config.mss.max(MSS_MIN),
        };
        let room = usize::from(room);
        let markers = if self.terms.sends_markers {
            MARKER_BYTES * room.div_ceil(MARKER_INTERVAL)
        } else {
            0
        };
        // A multiple of 8 needs no pads, and siw rounds like this.
        let fpdu = (room - markers) & !7;
        (fpdu - LENGTH_BYTES - header_bytes - CRC_BYTES) as u32
    }

    /// Appends one FPDU.
    fn put_fpdu(
        &self,
        cursor: &mut Cursor,
        segment: &Segment,
        source: &Source<'_>,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
        let header_bytes = segment.encode(&mut header);
        let header = header.get(..header_bytes).unwrap_or_default();
        let payload_bytes = source.bytes();
        let length = (header_bytes as u32 + payload_bytes) as u16;
        if self.terms.sends_markers {
            return self.put_marked(cursor, length, header, source, memory, out);
        }
        let mut crc = Crc::new();
        let mut put = |out: &mut Gather, bytes: &[u8]| {
            out.put(bytes);
            crc.update(bytes);
        };
        put(out, &encode_length(length));
        put(out, header);
        if self.terms.crc || payload_bytes <= COPIED_BYTES_MAX {
            out.put_with(payload_bytes as usize, |place| {
                self.copy(source, memory, place)?;
                crc.update(place);
                Ok(())
            })?;
        } else {
            self.refer(source, memory, out)?;
        }
        let trailer = Trailer::new(length, self.terms.crc.then_some(crc));
        out.put(trailer.as_bytes());
        Ok(())
    }

    /// Appends one FPDU with markers.
    fn put_marked(
        &self,
        cursor: &mut Cursor,
        length: u16,
        header: &[u8],
        source: &Source<'_>,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        let layout = FpduLayout::of(length);
        let mut fpdu = std::mem::take(&mut out.unmarked);
        fpdu.clear();
        fpdu.extend_from_slice(&encode_length(length));
        fpdu.extend_from_slice(header);
        let start = fpdu.len();
        fpdu.resize(layout.total, 0);
        let payload = fpdu.get_mut(start..start + source.bytes() as usize).unwrap_or_default();
        let copied = self.copy(source, memory, payload);
        let covered = layout.total - CRC_BYTES;
        let mut crc = Crc::new();
        for part in cursor.markers.take_fpdu(layout) {
            match part {
                wire_iwarp::Part::Marker(marker) => {
                    crc.update(&marker);
                    out.put(&marker);
                }
                wire_iwarp::Part::Bytes(range) => {
                    let end = range.end.min(covered);
                    let bytes = fpdu.get(range.start..end).unwrap_or_default();
                    crc.update(bytes);
                    out.put(bytes);
                    // A marker never divides the CRC field, which ends the last part.
                    if range.end > covered {
                        let field = if self.terms.crc { crc.encode() } else { [0; CRC_BYTES] };
                        out.put(&field);
                    }
                }
            }
        }
        out.unmarked = fpdu;
        copied
    }

    /// Copies the payload of an FPDU.
    fn copy(
        &self,
        source: &Source<'_>,
        memory: &mut impl Memory,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        match *source {
            Source::Bytes(bytes) => {
                for (place, byte) in out.iter_mut().zip(bytes) {
                    *place = *byte;
                }
            }
            Source::Inline { entry, offset, .. } => self.work.copy_inline(entry, offset, out),
            Source::Pieces { entry, offset, bytes } => {
                let mut rest = out;
                for piece in self.work.parts(entry, offset, bytes) {
                    let (now, after) = rest
                        .split_at_mut_checked(piece.bytes as usize)
                        .unwrap_or((&mut [], &mut []));
                    memory.read(piece, work::PAYLOAD, now).map_err(Failure::Memory)?;
                    rest = after;
                }
            }
            Source::Remote(piece) if piece.bytes > 0 => {
                memory.read(piece, Access::RemoteRead, out).map_err(Failure::Memory)?;
            }
            Source::Remote(_) => {}
        }
        Ok(())
    }

    /// Appends references to the payload of an FPDU.
    fn refer(
        &self,
        source: &Source<'_>,
        memory: &mut impl Memory,
        out: &mut Gather,
    ) -> Result<(), Failure> {
        match *source {
            Source::Pieces { entry, offset, bytes } => {
                for piece in self.work.parts(entry, offset, bytes) {
                    memory.check(piece, work::PAYLOAD).map_err(Failure::Memory)?;
                    out.put_memory(piece, work::PAYLOAD);
                }
                Ok(())
            }
            Source::Remote(piece) => {
                memory.check(piece, Access::RemoteRead).map_err(Failure::Memory)?;
                out.put_memory(piece, Access::RemoteRead);
                Ok(())
            }
            // Other payloads are short enough to be copied.
            Source::Bytes(_) | Source::Inline { .. } => {
                out.put_with(source.bytes() as usize, |place| self.copy(source, memory, place))
            }
        }
    }

    /// Handles that TCP has taken the first `bytes` bytes of `out`, which the last call of
    /// [`Stream::poll_transmit`] has filled.
    pub fn handle_written(&mut self, now: Instant, bytes: usize, out: &Gather) {
        self.counters.bytes_sent += bytes as u64;
        if self.setup_written < self.setup_frame.len() {
            self.setup_written += bytes;
            if self.setup_written >= self.setup_frame.len() {
                self.on_setup_written(now);
            }
            return;
        }
        if bytes == 0 {
            return;
        }
        let mut start = 0;
        for (index, frame) in out.frames().iter().enumerate() {
            if frame.end <= bytes {
                self.rest = None;
                self.on_fpdu_written(now, frame.after);
            } else {
                if start < bytes {
                    self.rest = Rest::of(out, index, bytes);
                    if is_planted(Planted::RepeatsByte)
                        && let Some(rest) = &mut self.rest
                        && let Some(Part::Memory { piece, .. }) = rest.parts.first_mut()
                    {
                        piece.address = piece.address.wrapping_sub(1);
                    }
                }
                break;
            }
            start = frame.end;
        }
    }

    fn on_setup_written(&mut self, now: Instant) {
        match self.phase {
            Phase::Replying { accepts: true } => {
                self.phase = Phase::Operating;
                self.begin_hold(now);
            }
            Phase::Replying { accepts: false } => self.end(EndCause::Rejected),
            _ => {}
        }
    }

    /// Takes note that TCP has taken an FPDU, behind which the sender is at `after`.
    fn on_fpdu_written(&mut self, now: Instant, after: Cursor) {
        self.counters.fpdus_sent += 1;
        let before = std::mem::replace(&mut self.cursor, after);
        if self.phase == Phase::Ended {
            return;
        }
        if self.role == Role::Initiator && !is_planted(Planted::ForgetsNudge) {
            self.nudges.on_fpdu_sent(now);
        }
        self.counters.nudges = u64::from(after.nudges);
        if after.own > before.own {
            self.on_own_written(before.own);
        } else if after.reads != before.reads {
            let (number, size, done) = (None, 0, 0);
            let (sink_stag, sink_offset) = (EMPTY_STAG, 0);
            self.reads.push_back(OutstandingRead { number, sink_stag, sink_offset, size, done });
        }
        if after.answer > before.answer {
            self.answers.pop_front();
            self.answers_base += 1;
        }
    }

    /// Completes a Write or Send, or takes note of an outstanding read.
    fn on_own_written(&mut self, number: u64) {
        let Some(entry) = self.work.get(number) else { return };
        if let WorkKind::Read { stag, offset } = entry.kind {
            let request = self.request_of(entry, stag, offset);
            self.reads.push_back(OutstandingRead {
                number: Some(number),
                sink_stag: request.sink_stag,
                sink_offset: request.sink_offset,
                size: request.size,
                done: 0,
            });
            if is_planted(Planted::CompletesReadEarly) {
                self.work.finish(number, Status::Success);
            }
            return;
        }
        self.work.finish(number, Status::Success);
    }
}

fn advance_own(cursor: &mut Cursor) {
    cursor.active = Active::None;
    cursor.offset = 0;
    cursor.own += 1;
    cursor.is_answer_next = true;
}

fn read_request_segment(msn: u32) -> Segment {
    Segment::untagged(Opcode::ReadRequest, true, QueueNumber::ReadRequest, msn, 0)
}

/// Returns the ULPDU of a Read Request of the peer, and its length.
fn read_request_ulpdu(
    msn: u32,
    request: &ReadRequest,
) -> ([u8; SEGMENT_HEADER_BYTES_MAX + READ_REQUEST_BYTES], usize) {
    let mut ulpdu = [0; SEGMENT_HEADER_BYTES_MAX + READ_REQUEST_BYTES];
    let mut length = 0;
    if let Some(header) = ulpdu.first_chunk_mut() {
        length = read_request_segment(msn).encode(header);
    }
    for (place, byte) in ulpdu.iter_mut().skip(length).zip(request.encode()) {
        *place = byte;
        length += 1;
    }
    (ulpdu, length)
}

/// Appends the rest of an FPDU.
fn put_rest(rest: &Rest, memory: &mut impl Memory, out: &mut Gather) -> Result<(), Failure> {
    for part in &rest.parts {
        match part {
            Part::Bytes(range) => out.put(rest.bytes.get(range.clone()).unwrap_or_default()),
            Part::Memory { piece, access } => {
                if let Err(refusal) = memory.check(*piece, *access) {
                    out.clear();
                    return Err(Failure::Memory(refusal));
                }
                out.put_memory(*piece, *access);
            }
        }
    }
    out.end_frame(rest.after);
    Ok(())
}
