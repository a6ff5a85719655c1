//! Received bytes: FPDUs, in any cut of the stream.

use wire_iwarp::{
    CRC_BYTES, Cause, Crc, FpduLayout, LENGTH_BYTES, Opcode, Run, SegmentStart, decode_segment,
    decode_segment_start,
};

use crate::event::{EndCause, SetupFault};
use crate::framing::{Streamed, TAIL_BYTES, fpdu_length, ulpdu_length};
use crate::memory::{Access, Memory, Piece};
use crate::placement::Fault;
use crate::planted::{Planted, is_planted};
use crate::stream::{Phase, Stream};

/// Where the next bytes of the stream belong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DirectSink {
    /// The next bytes of the stream, which are as many as those of the piece, are its content.
    pub piece: Piece,
    /// The access for which the stream has checked the piece.
    pub access: Access,
}

impl Stream {
    /// Handles the next bytes of the TCP stream, in any cut. Places payload, and reports what
    /// completes as events.
    ///
    /// Costs one copy of the payload, and a second one of those FPDUs that arrive in parts while
    /// CRCs are in use.
    pub fn handle_received(&mut self, bytes: &[u8], memory: &mut impl Memory) {
        if bytes.is_empty() {
            return;
        }
        self.counters.bytes_received += bytes.len() as u64;
        let used = match self.phase {
            Phase::AwaitingReply => self.receive_reply(bytes, memory),
            Phase::AwaitingRequest => {
                self.receive_request(bytes);
                bytes.len()
            }
            Phase::AwaitingAnswer | Phase::Replying { .. } => {
                self.end(EndCause::Setup(SetupFault::EarlyBytes));
                bytes.len()
            }
            Phase::Operating => {
                self.nudges.on_heard(self.terms.peer_to_peer);
                0
            }
            Phase::Ended => bytes.len(),
        };
        let bytes = bytes.get(used..).unwrap_or_default();
        if self.terms.receives_markers {
            self.receive_marked(bytes, memory);
            return;
        }
        let used = if self.input.is_waiting { 0 } else { self.receive_unmarked(bytes, memory) };
        if self.waits_for_receive() {
            self.input.held.extend_from_slice(bytes.get(used..).unwrap_or_default());
        }
    }

    /// Returns whether a message of the peer waits for a receive, with all that follows it. Then the
    /// driver should read no more bytes, which the stream would have to keep. It calls
    /// [`Stream::handle_receives`] when receives were posted, and [`Stream::give_up_waiting`] after
    /// its limit of time.
    ///
    /// Only if [`Config::waits_for_receives`](crate::Config::waits_for_receives) is set, a message
    /// waits.
    pub fn waits_for_receive(&self) -> bool {
        self.input.is_waiting && self.phase == Phase::Operating
    }

    /// Handles that receives may have been posted: goes on with the message that waits.
    pub fn handle_receives(&mut self, memory: &mut impl Memory) {
        if !self.waits_for_receive() {
            return;
        }
        self.input.is_waiting = false;
        if self.input.buffer.len() == self.input.needed {
            let buffer = std::mem::take(&mut self.input.buffer);
            self.handle_buffer(buffer, memory);
        }
        if !self.input.is_waiting {
            let mut held = std::mem::take(&mut self.input.held);
            let used = self.receive_unmarked(&held, memory);
            held.drain(..used);
            if self.waits_for_receive() {
                self.input.held = held;
            }
        }
    }

    /// Ends the stream as if messages could not wait, if one still has no receive.
    pub fn give_up_waiting(&mut self, memory: &mut impl Memory) {
        self.input.is_given_up = true;
        self.handle_receives(memory);
        self.input.is_given_up = false;
    }

    /// Handles bytes of a stream without markers. Returns how many. The others belong behind a
    /// message that waits.
    fn receive_unmarked(&mut self, bytes: &[u8], memory: &mut impl Memory) -> usize {
        let mut left = bytes;
        while self.phase == Phase::Operating && !self.input.is_waiting && !left.is_empty() {
            let used = self.receive_some(left, memory);
            left = left.get(used..).unwrap_or_default();
        }
        bytes.len() - left.len()
    }

    /// Returns where the next bytes of the stream belong, if a driver can read them straight into
    /// memory. Without CRC and without markers, this is the rest of the payload of an FPDU whose
    /// first bytes have arrived, except the last word of a tagged message.
    ///
    /// After the driver has stored a prefix of the bytes there, it calls [`Stream::handle_placed`]
    /// before any other call.
    pub fn direct_sink(&self) -> Option<DirectSink> {
        let streamed = self.input.streamed.as_ref().filter(|_| self.phase == Phase::Operating)?;
        let left = streamed.body_bytes().checked_sub(streamed.done)?;
        let access = streamed.placement.access();
        let piece = self.pieces_of(&streamed.placement, streamed.done, left).next()?;
        Some(DirectSink { piece, access })
    }

    /// Handles that the next `bytes` bytes of the stream have been stored in
    /// [`Stream::direct_sink`].
    pub fn handle_placed(&mut self, bytes: u32) {
        self.counters.bytes_received += u64::from(bytes);
        if let Some(streamed) = &mut self.input.streamed {
            let left = streamed.body_bytes().saturating_sub(streamed.done);
            streamed.done += bytes.min(left);
        }
    }

    /// Handles the first of the bytes. Returns how many: at least 1, unless their message waits.
    fn receive_some(&mut self, bytes: &[u8], memory: &mut impl Memory) -> usize {
        if let Some(streamed) = self.input.streamed.take() {
            return self.receive_streamed(streamed, bytes, memory);
        }
        if self.input.buffer.is_empty()
            && let Some(fpdu) = fpdu_length(bytes).and_then(|length| bytes.get(..length))
        {
            self.handle_fpdu(fpdu, memory);
            return if self.input.is_waiting { 0 } else { fpdu.len() };
        }
        let missing = self.input.needed - self.input.buffer.len();
        let taken = bytes.get(..missing).unwrap_or(bytes);
        self.input.buffer.extend_from_slice(taken);
        if taken.len() == missing {
            let buffer = std::mem::take(&mut self.input.buffer);
            self.handle_buffer(buffer, memory);
        }
        taken.len()
    }

    /// Handles the first bytes of an FPDU, which are as many as needed.
    fn handle_buffer(&mut self, buffer: Vec<u8>, memory: &mut impl Memory) {
        let Some(length) = ulpdu_length(&buffer) else { return };
        let total = FpduLayout::of(length).total;
        if buffer.len() >= total {
            self.handle_fpdu(&buffer, memory);
            self.keep_or_restart(buffer);
            return;
        }
        let ulpdu = buffer.get(LENGTH_BYTES..).unwrap_or_default();
        let start = if self.terms.crc {
            None
        } else {
            match decode_segment_start(usize::from(length), ulpdu) {
                Ok(start) => Some(start),
                Err(error) => {
                    self.fail(Fault::Peer(error.cause()), ulpdu, length, memory);
                    return;
                }
            }
        };
        match start {
            Some(SegmentStart::Incomplete { needed }) => {
                self.input.needed = LENGTH_BYTES + needed;
            }
            Some(SegmentStart::Complete { segment, header_bytes })
                if !matches!(segment.opcode, Opcode::ReadRequest | Opcode::Terminate) =>
            {
                let bytes = u32::from(length) - header_bytes as u32;
                match self.begin_segment(&segment, bytes, memory) {
                    Ok(placement) => {
                        let trailer = FpduLayout::of(length).pad + CRC_BYTES;
                        let (done, tail) = (0, [0; TAIL_BYTES]);
                        let placement = placement.with_header(ulpdu, length);
                        self.input.streamed = Some(Streamed { placement, done, tail, trailer });
                    }
                    Err(fault) => self.fail(fault, ulpdu, length, memory),
                }
                self.keep_or_restart(buffer);
                return;
            }
            _ => self.input.needed = total,
        }
        self.input.buffer = buffer;
    }

    /// Keeps the bytes of a message that waits; otherwise begins with the next FPDU.
    fn keep_or_restart(&mut self, buffer: Vec<u8>) {
        if self.input.is_waiting {
            self.input.buffer = buffer;
        } else {
            self.input.restart(buffer);
        }
    }

    /// Handles a whole FPDU without markers.
    fn handle_fpdu(&mut self, fpdu: &[u8], memory: &mut impl Memory) {
        if self.terms.crc {
            let Some((covered, received)) = fpdu.split_last_chunk() else { return };
            let mut crc = Crc::new();
            crc.update(covered);
            if crc.check(*received).is_err() && !is_planted(Planted::IgnoresCrc) {
                self.fail(Fault::Peer(Cause::MpaCrc), &[], 0, memory);
                return;
            }
        }
        self.handle_ulpdu(fpdu, memory);
    }

    //= RFC 5044 section 4.4: an FPDU with a wrong CRC is not passed to DDP
    /// Handles the ULPDU of a whole FPDU whose CRC is right.
    fn handle_ulpdu(&mut self, fpdu: &[u8], memory: &mut impl Memory) {
        let Some(length) = ulpdu_length(fpdu) else { return };
        let ulpdu = fpdu.get(LENGTH_BYTES..LENGTH_BYTES + usize::from(length)).unwrap_or_default();
        let handled = match decode_segment(ulpdu) {
            Err(error) => Err(Fault::Peer(error.cause())),
            Ok((segment, payload)) => {
                let payload = ulpdu.get(payload).unwrap_or_default();
                self.handle_segment(&segment, payload, memory)
            }
        };
        match handled {
            Ok(()) => self.counters.fpdus_received += 1,
            Err(fault) => self.fail(fault, ulpdu, length, memory),
        }
    }

    /// Handles bytes of an FPDU whose payload is placed while it arrives. Returns how many.
    fn receive_streamed(
        &mut self,
        mut streamed: Streamed,
        bytes: &[u8],
        memory: &mut impl Memory,
    ) -> usize {
        let body = streamed.body_bytes();
        let placement = streamed.placement;
        let (mut used, mut result) = (0, Ok(()));
        if streamed.done < body {
            let left = (body - streamed.done) as usize;
            let now = bytes.get(..left).unwrap_or(bytes);
            result = self.place(&placement, streamed.done, now, false, memory);
            streamed.done += now.len() as u32;
            used = now.len();
        }
        let rest = bytes.get(used..).unwrap_or_default();
        if streamed.done >= body && streamed.done < placement.bytes {
            let at = (streamed.done - body) as usize;
            let places = streamed.tail.iter_mut().take((placement.bytes - body) as usize).skip(at);
            for (place, byte) in places.zip(rest) {
                *place = *byte;
                streamed.done += 1;
                used += 1;
            }
            if streamed.done == placement.bytes && result.is_ok() {
                let tail = streamed.tail.get(..(placement.bytes - body) as usize);
                let tail = tail.unwrap_or_default();
                result = self.place(&placement, body, tail, true, memory);
            }
        }
        if let Err(fault) = result {
            let (header, length) = (placement.header(), placement.ulpdu_length);
            self.fail(fault, header, length, memory);
            return used.max(1);
        }
        if streamed.done == placement.bytes {
            let skipped = streamed.trailer.min(bytes.len() - used);
            streamed.trailer -= skipped;
            used += skipped;
            if streamed.trailer == 0 {
                match self.finish_segment(&placement, memory) {
                    Ok(()) => self.counters.fpdus_received += 1,
                    Err(fault) => {
                        let (header, length) = (placement.header(), placement.ulpdu_length);
                        self.fail(fault, header, length, memory);
                    }
                }
                return used;
            }
        }
        self.input.streamed = Some(streamed);
        used
    }

    //= RFC 5044 section 4.4: the CRC covers the markers inside of the FPDU
    /// Handles bytes of a stream with markers. FPDUs are handled when they are complete.
    fn receive_marked(&mut self, mut bytes: &[u8], memory: &mut impl Memory) {
        while self.phase == Phase::Operating && !bytes.is_empty() {
            let run = match self.input.stripper.next_run(bytes) {
                Ok(run) => run,
                Err(error) => {
                    self.fail(Fault::Peer(error.cause()), &[], 0, memory);
                    return;
                }
            };
            let length = match run {
                Run::Marker(length) => {
                    self.input.is_in_marker = true;
                    self.input.marked_crc.update(bytes.get(..length).unwrap_or_default());
                    length
                }
                Run::Bytes(length) => {
                    self.receive_unmarked_run(bytes.get(..length).unwrap_or_default(), memory);
                    length
                }
            };
            bytes = bytes.get(length..).unwrap_or_default();
        }
    }

    /// Handles bytes between two markers.
    fn receive_unmarked_run(&mut self, mut bytes: &[u8], memory: &mut impl Memory) {
        while self.phase == Phase::Operating && !bytes.is_empty() {
            let total = fpdu_length(&self.input.buffer);
            let covered = total.map_or(LENGTH_BYTES, |total| total - CRC_BYTES);
            let have = self.input.buffer.len();
            // The CRC does not cover its own field, so the bytes before it are a step of their own.
            let end = total.filter(|_| have >= covered).unwrap_or(covered);
            let taken = bytes.get(..end - have).unwrap_or(bytes);
            if have < covered {
                self.input.marked_crc.update(taken);
            }
            self.input.buffer.extend_from_slice(taken);
            bytes = bytes.get(taken.len()..).unwrap_or_default();
            if total.is_none_or(|total| self.input.buffer.len() < total) {
                continue;
            }
            let fpdu = std::mem::take(&mut self.input.buffer);
            let received = fpdu.last_chunk().copied().unwrap_or_default();
            if self.terms.crc && self.input.marked_crc.check(received).is_err() {
                self.fail(Fault::Peer(Cause::MpaCrc), &[], 0, memory);
                return;
            }
            self.handle_ulpdu(&fpdu, memory);
            self.input.restart(fpdu);
        }
    }
}
