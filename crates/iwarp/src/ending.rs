//! The end of a stream: Terminate, flush, and the end of the TCP connection.

use wire_iwarp::Cause;

use crate::blamed::BlamedSegment;
use crate::event::{EndCause, SetupFault, Status};
use crate::gather::{Part, Rest};
use crate::memory::Memory;
use crate::placement::Fault;
use crate::stream::{Phase, Stream};
use crate::terminate_payload::{Blamed, payload};

impl Stream {
    /// Handles the end of the peer's direction of the TCP connection. There is no half-close: the
    /// stream ends, and all outstanding operations are flushed.
    pub fn handle_end(&mut self) {
        let cause = match self.phase {
            Phase::Operating if self.is_between_messages() => EndCause::Closed,
            Phase::Operating => EndCause::Truncated,
            Phase::Replying { accepts: false } => EndCause::Rejected,
            _ => EndCause::Setup(SetupFault::Closed),
        };
        self.end(cause);
        self.abandon_output();
    }

    /// Handles that the TCP connection was reset, or failed in another way.
    pub fn handle_reset(&mut self) {
        self.end(EndCause::Reset);
        self.abandon_output();
    }

    /// Closes the stream. Outstanding operations are flushed. An FPDU of which TCP has taken a part
    /// is still written.
    pub fn close(&mut self, memory: &mut impl Memory) {
        self.keep_rest(memory);
        self.end(EndCause::ClosedHere);
    }

    fn is_between_messages(&self) -> bool {
        let is_read_begun = self.reads.front().is_some_and(|read| read.done > 0);
        self.input.is_at_boundary()
            && self.receive.is_none()
            && !self.is_write_open
            && !is_read_begun
    }

    //= RFC 5040 section 4.8: the Terminate has the headers of the segment at fault
    /// Ends the stream because of a fault in a segment, and sends a Terminate. `ulpdu` are the first
    /// bytes of the ULPDU, or none.
    pub(crate) fn fail(
        &mut self,
        fault: Fault,
        ulpdu: &[u8],
        length: u16,
        memory: &mut impl Memory,
    ) {
        if fault == Fault::NoReceiveYet {
            self.input.is_waiting = true;
            return;
        }
        self.blamed = BlamedSegment::new(ulpdu, length);
        match fault {
            Fault::NoReceiveYet => {}
            Fault::Peer(cause) => {
                let blamed = Some(Blamed { ulpdu, length });
                self.terminate(cause, EndCause::Peer(cause), blamed, memory);
            }
            Fault::Local(refusal) => {
                let end = EndCause::Local(refusal);
                self.terminate(Cause::RdmapCatastrophic, end, None, memory);
            }
        }
    }

    //= RFC 5040 section 5.4: no message follows a Terminate
    /// Ends the stream, and sends a Terminate.
    pub(crate) fn terminate(
        &mut self,
        cause: Cause,
        end: EndCause,
        blamed: Option<Blamed<'_>>,
        memory: &mut impl Memory,
    ) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.keep_rest(memory) {
            self.terminate = payload(cause, blamed);
        }
        self.end(end);
    }

    /// Ends the stream: flushes all outstanding operations and reports the cause, once.
    pub(crate) fn end(&mut self, cause: EndCause) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        (self.deadline, self.hold_until) = (None, None);
        self.nudges.stop();
        self.input.streamed = None;
        self.input.held = Vec::new();
        self.end_receive(Status::Flushed);
        self.work.flush();
        self.reads.clear();
        self.answers.clear();
        // The rest of an FPDU that refers to memory of the application can no longer be written.
        if self.rest.as_ref().is_some_and(Rest::has_memory) {
            self.rest = None;
            self.terminate = None;
        }
        self.end = Some(cause);
    }

    /// Copies the payload of the rest of an FPDU, because its memory returns to the application.
    /// Returns whether the FPDU can be completed. If it cannot, nothing can follow it.
    fn keep_rest(&mut self, memory: &mut impl Memory) -> bool {
        let Some(rest) = &mut self.rest else { return true };
        let mut bytes = Vec::new();
        for part in &rest.parts {
            match part {
                Part::Bytes(range) => {
                    bytes.extend_from_slice(rest.bytes.get(range.clone()).unwrap_or_default());
                }
                Part::Memory { piece, access } => {
                    let start = bytes.len();
                    bytes.resize(start + piece.bytes as usize, 0);
                    let place = bytes.get_mut(start..).unwrap_or_default();
                    if memory.read(*piece, *access, place).is_err() {
                        return false;
                    }
                }
            }
        }
        rest.parts.clear();
        rest.parts.push(Part::Bytes(0..bytes.len()));
        rest.bytes = bytes;
        true
    }

    fn abandon_output(&mut self) {
        self.rest = None;
        self.terminate = None;
    }
}
