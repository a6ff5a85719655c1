//! Received segments: the checks of DDP and RDMAP, placement, and completion (RFC 5041 sections 5
//! and 7, RFC 5040 sections 5 and 7).

use wire_iwarp::{
    Cause, DdpHeader, Opcode, READ_REQUEST_BYTES, ReadRequest, Segment, Stag, decode_terminate,
};

use crate::config::Rtr;
use crate::event::{EndCause, Event, Status};
use crate::memory::{Access, Memory, Piece};
use crate::placement::{Answer, CurrentReceive, Fault, Pieces, Placement, Target};
use crate::planted::{Planted, is_planted};
use crate::stream::{Role, Stream};
use crate::work;

impl Stream {
    /// Handles a whole segment.
    pub(crate) fn handle_segment(
        &mut self,
        segment: &Segment,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        match (segment.opcode, segment.ddp) {
            (Opcode::ReadRequest, DdpHeader::Untagged { last, msn, mo, .. }) => {
                self.on_read_request(last, msn, mo, payload, memory)?;
                self.on_segment_accepted();
                Ok(())
            }
            (Opcode::Terminate, _) => {
                self.on_terminate(payload);
                Ok(())
            }
            _ => {
                let placement = self.begin_segment(segment, payload.len() as u32, memory)?;
                self.place(&placement, 0, payload, placement.is_tail, memory)?;
                self.finish_segment(&placement, memory)
            }
        }
    }

    /// Checks a segment of a Write, a Send or an answer, and returns where its payload belongs. No
    /// byte is placed before.
    pub(crate) fn begin_segment(
        &mut self,
        segment: &Segment,
        bytes: u32,
        memory: &mut impl Memory,
    ) -> Result<Placement, Fault> {
        let placement = match (segment.opcode, segment.ddp) {
            (Opcode::Write, DdpHeader::Tagged { last, stag, offset }) => {
                Placement::new(check_write(stag, offset, bytes)?, last, bytes)
            }
            (Opcode::ReadResponse, DdpHeader::Tagged { last, stag, offset }) => {
                Placement::new(self.check_answer(last, stag, offset, bytes)?, last, bytes)
            }
            (opcode, DdpHeader::Untagged { last, msn, mo, .. }) => {
                let stag = segment.invalidate_stag();
                if self.is_rtr(last, msn, bytes, opcode) {
                    Placement::new(Target::Rtr, last, bytes)
                } else {
                    let target = self.check_send(opcode, stag, msn, mo, bytes, memory)?;
                    Placement::new(target, last, bytes)
                }
            }
            // The decoder has checked which opcodes are tagged.
            _ => return Err(Fault::Peer(Cause::OperationOpcode)),
        };
        let access = placement.access();
        let refused = self
            .pieces_of(&placement, 0, bytes)
            .find_map(|piece| memory.check(piece, access).err());
        if let Some(refusal) = refused
            && !is_planted(Planted::PlacesUnchecked)
        {
            self.on_local_refusal(&placement);
            return Err(placement.fault(refusal));
        }
        Ok(placement)
    }

    //= RFC 5040 section 5.5: Read Responses answer the oldest outstanding read, in order
    /// Checks that a segment continues the answer to the oldest outstanding read.
    fn check_answer(
        &self,
        last: bool,
        stag: Stag,
        offset: u64,
        bytes: u32,
    ) -> Result<Target, Fault> {
        let read = self.reads.front().ok_or(Fault::Peer(Cause::OperationOpcode))?;
        if stag != read.sink_stag {
            return Err(Fault::Peer(Cause::TaggedStag));
        }
        let at = read.done;
        let is_next = offset.checked_sub(u64::from(at)) == Some(read.sink_offset);
        let left = read.size - at;
        if !is_next && !is_planted(Planted::IgnoresAnswerOffset)
            || bytes > left
            || last && bytes != left && !is_planted(Planted::AcceptsShortAnswer)
        {
            return Err(Fault::Peer(Cause::TaggedBounds));
        }
        Ok(Target::Answer { at })
    }

    /// Returns whether the segment is the RTR Send, which takes no receive.
    fn is_rtr(&self, last: bool, msn: u32, bytes: u32, opcode: Opcode) -> bool {
        let is_first = self.role == Role::Responder && !self.is_peer_heard;
        let is_empty_send = last && msn == 1 && bytes == 0 && opcode == Opcode::Send;
        is_first && is_empty_send && self.rtr == Some(Rtr::Send)
    }

    //= RFC 5041 section 7.1: the MSN of an untagged message is that of the next buffer
    //= RFC 5041 section 5.2: segments of an untagged message arrive with contiguous MOs
    /// Checks a segment of a Send, and takes a receive for its first segment.
    fn check_send(
        &mut self,
        opcode: Opcode,
        invalidate: Option<Stag>,
        msn: u32,
        mo: u32,
        bytes: u32,
        memory: &mut impl Memory,
    ) -> Result<Target, Fault> {
        if msn != self.send_msn {
            return Err(Fault::Peer(Cause::UntaggedMsn));
        }
        let done = self.receive.as_ref().map_or(0, |receive| receive.done);
        if mo != done {
            return Err(Fault::Peer(Cause::UntaggedMo));
        }
        if self.receive.is_none() {
            let mut pieces = std::mem::take(&mut self.spare_pieces);
            pieces.clear();
            let Some(id) = memory.take_receive(&mut pieces) else {
                self.spare_pieces = pieces;
                return Err(self.lack_of_receive());
            };
            let capacity = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
            let receive = CurrentReceive { id, pieces, capacity, done: 0, opcode, invalidate };
            self.receive = Some(receive);
        }
        let Some(receive) = &self.receive else {
            return Err(Fault::Peer(Cause::UntaggedNoBuffer));
        };
        if receive.opcode != opcode || receive.invalidate != invalidate {
            return Err(Fault::Peer(Cause::OperationOpcode));
        }
        if u64::from(mo) + u64::from(bytes) > receive.capacity {
            self.end_receive(Status::Length);
            return Err(Fault::Peer(Cause::UntaggedTooLong));
        }
        Ok(Target::Receive { at: mo })
    }

    //= RFC 5041 section 7.1: a message without a buffer ends the stream
    /// Returns what it means that a message has no receive.
    fn lack_of_receive(&self) -> Fault {
        let may_wait = self.config.waits_for_receives && !self.terms.receives_markers;
        if may_wait && !self.input.is_given_up {
            return Fault::NoReceiveYet;
        }
        Fault::Peer(Cause::UntaggedNoBuffer)
    }

    /// Places payload of a segment that has been checked. `offset` counts the payload of the segment.
    pub(crate) fn place(
        &mut self,
        placement: &Placement,
        offset: u32,
        mut bytes: &[u8],
        is_tail: bool,
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        let access = placement.access();
        let mut refused = None;
        for piece in self.pieces_of(placement, offset, bytes.len() as u32) {
            let (now, rest) = bytes.split_at_checked(piece.bytes as usize).unwrap_or((bytes, &[]));
            let is_tail = is_tail && rest.is_empty() && !is_planted(Planted::ForgetsTail);
            if let Err(refusal) = memory.place(piece, access, now, is_tail) {
                refused = Some(refusal);
                break;
            }
            bytes = rest;
        }
        match refused {
            None => Ok(()),
            Some(refusal) => {
                self.on_local_refusal(placement);
                Err(placement.fault(refusal))
            }
        }
    }

    /// Takes note that the payload of a segment is placed.
    pub(crate) fn finish_segment(
        &mut self,
        placement: &Placement,
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        match placement.target {
            Target::Write { .. } => self.is_write_open = !placement.is_last,
            Target::Answer { .. } => {
                if let Some(read) = self.reads.front_mut() {
                    read.done += placement.bytes;
                }
                if placement.is_last {
                    self.finish_read();
                }
            }
            Target::Receive { .. } => {
                if let Some(receive) = &mut self.receive {
                    receive.done += placement.bytes;
                }
                if placement.is_last {
                    self.finish_receive(memory)?;
                }
            }
            Target::Rtr => self.send_msn = self.send_msn.wrapping_add(1),
        }
        self.on_segment_accepted();
        Ok(())
    }

    /// Completes the oldest outstanding read.
    fn finish_read(&mut self) {
        let Some(read) = self.reads.pop_front() else { return };
        self.reads_answered = self.reads_answered.wrapping_add(1);
        if let Some(number) = read.number {
            self.work.finish(number, Status::Success);
        }
    }

    //= RFC 5040 section 5.3: a Send with Invalidate invalidates its STag before it is delivered
    /// Completes the current receive.
    fn finish_receive(&mut self, memory: &mut impl Memory) -> Result<(), Fault> {
        let Some(receive) = &self.receive else { return Ok(()) };
        let (invalidated, bytes) = (receive.invalidate, receive.done);
        let solicited = receive.opcode.is_solicited();
        if let Some(stag) = invalidated
            && memory.invalidate(stag).is_err()
        {
            return Err(Fault::Peer(Cause::ProtectionInvalidate));
        }
        let Some(receive) = self.receive.take() else { return Ok(()) };
        self.send_msn = self.send_msn.wrapping_add(1);
        self.spare_pieces = receive.pieces;
        let (id, status) = (receive.id, Status::Success);
        let completed = Event::ReceiveCompleted { id, status, bytes, solicited, invalidated };
        self.events.push_back(completed);
        Ok(())
    }

    /// Ends the current receive, if there is one, without its message.
    pub(crate) fn end_receive(&mut self, status: Status) {
        if let Some(CurrentReceive { id, .. }) = self.receive.take() {
            let (bytes, solicited, invalidated) = (0, false, None);
            let ended = Event::ReceiveCompleted { id, status, bytes, solicited, invalidated };
            self.events.push_back(ended);
        }
    }

    /// Takes note of the operation or receive whose memory cannot be used.
    fn on_local_refusal(&mut self, placement: &Placement) {
        match placement.target {
            Target::Answer { .. } => {
                if let Some(number) = self.reads.front().and_then(|read| read.number) {
                    self.work.finish(number, Status::LocalProtection);
                }
            }
            Target::Receive { .. } => self.end_receive(Status::LocalProtection),
            Target::Write { .. } | Target::Rtr => {}
        }
    }

    //= RFC 5040 section 5.2: a Read Request is one untagged segment, and at most IRD are outstanding
    //= RFC 5040 section 5.2: the source of a Read Request is checked before it is answered
    /// Checks and queues a Read Request.
    fn on_read_request(
        &mut self,
        last: bool,
        msn: u32,
        mo: u32,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), Fault> {
        if msn != self.read_msn {
            return Err(Fault::Peer(Cause::UntaggedMsn));
        }
        if self.answers.len() >= usize::from(self.terms.ird) {
            return Err(Fault::Peer(Cause::UntaggedNoBuffer));
        }
        if mo != 0 {
            return Err(Fault::Peer(Cause::UntaggedMo));
        }
        if payload.len() > READ_REQUEST_BYTES {
            return Err(Fault::Peer(Cause::UntaggedTooLong));
        }
        let request = ReadRequest::decode(payload).map_err(|error| Fault::Peer(error.cause()))?;
        if !last {
            return Err(Fault::Peer(Cause::UntaggedTooLong));
        }
        let size = u64::from(request.size);
        if [request.source_offset, request.sink_offset]
            .into_iter()
            .any(|offset| offset.checked_add(size).is_none())
        {
            return Err(Fault::Peer(Cause::ProtectionWrap));
        }
        let answer = Answer { request, msn };
        if request.size > 0 {
            let checked = memory.check(answer.source(), Access::RemoteRead);
            checked.map_err(|refusal| Fault::Peer(refusal.cause_of_read()))?;
        }
        self.read_msn = self.read_msn.wrapping_add(1);
        self.answers.push_back(answer);
        Ok(())
    }

    //= RFC 5040 section 5.4: a Terminate ends the stream, whatever it says
    /// Handles the payload of a Terminate.
    fn on_terminate(&mut self, payload: &[u8]) {
        // siw swaps layer and type. The errors of MPA alone come without a segment, which would show
        // the order; layer 2 in the low half of the first byte is siw's order.
        let is_swapped = payload.first() == Some(&0x02);
        let cause = match decode_terminate(payload, is_swapped) {
            Ok(terminate) => EndCause::Terminated(terminate.error),
            Err(_) => EndCause::Peer(Cause::OperationUnspecified),
        };
        self.end(cause);
    }

    /// Takes note that a segment was right. The first one allows a responder to send.
    fn on_segment_accepted(&mut self) {
        let is_first = !self.is_peer_heard;
        self.is_peer_heard = true;
        if is_first && self.role == Role::Responder && self.terms.peer_to_peer {
            self.events.push_back(Event::Established { private_data: Vec::new() });
        }
    }

    /// Returns the pieces that hold `bytes` bytes of the segment's payload from `offset` on.
    pub(crate) fn pieces_of(
        &self,
        placement: &Placement,
        offset: u32,
        bytes: u32,
    ) -> impl Iterator<Item = Piece> + use<'_> {
        match placement.target {
            Target::Write { stag, offset: start } => {
                let address = start.wrapping_add(u64::from(offset));
                let piece = Piece { key: stag.0, address, bytes };
                Pieces::One((bytes > 0).then_some(piece))
            }
            Target::Rtr => Pieces::One(None),
            Target::Answer { at } => {
                let number = self.reads.front().and_then(|read| read.number);
                match number.and_then(|number| self.work.get(number)) {
                    Some(entry) => Pieces::Read(self.work.parts(entry, at + offset, bytes)),
                    None => Pieces::One(None),
                }
            }
            Target::Receive { at } => {
                let pieces = self.receive.as_ref().map_or(&[][..], |receive| &receive.pieces);
                Pieces::Receive(work::parts(pieces.iter().copied(), at + offset, bytes))
            }
        }
    }
}

//= RFC 5041 section 7.1: the tagged offset of the payload must not wrap
/// Checks the fields of a Write. A Write without payload is not checked.
fn check_write(stag: Stag, offset: u64, bytes: u32) -> Result<Target, Fault> {
    if bytes > 0 && offset.checked_add(u64::from(bytes)).is_none() {
        return Err(Fault::Peer(Cause::TaggedWrap));
    }
    Ok(Target::Write { stag, offset })
}
