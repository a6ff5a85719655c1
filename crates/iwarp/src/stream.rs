//! The stream: its state, its set-up, and the calls of its user.

use std::collections::VecDeque;

use delivery::Instant;
use wire_iwarp::{
    EncodeError, Parsed, Revision, SETUP_FRAME_BYTES_MAX, SetupFrame, SetupKind, decode_setup,
};

use crate::config::{Config, Rtr, RtrKinds, Terms};
use crate::cursor::Cursor;
use crate::ending::TerminatePayload;
use crate::event::{EndCause, Event, SetupFault};
use crate::framing::Input;
use crate::gather::Rest;
use crate::memory::Memory;
use crate::planted::{Planted, is_planted};
use crate::segments::{Answer, CurrentReceive, OutstandingRead};
use crate::setup::{self, Asked};
use crate::timers::{Nudges, REPLY_NS, REQUEST_NS};
use crate::work::{PostError, Work, WorkKind, WorkRing};

/// Which end of the connection a stream is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// Where a stream is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// The initiator writes its request, or waits for the reply.
    AwaitingReply,
    /// The responder waits for the request.
    AwaitingRequest,
    /// The responder waits for [`Stream::accept`] or [`Stream::reject`].
    AwaitingAnswer,
    /// The responder writes its reply.
    Replying { accepts: bool },
    /// FPDUs flow.
    Operating,
    /// The stream has ended. Only the rest of an FPDU and a Terminate may still be written.
    Ended,
}

/// What a stream has done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Number of FPDUs that TCP has taken.
    pub fpdus_sent: u64,
    /// Number of FPDUs received and accepted.
    pub fpdus_received: u64,
    /// Number of bytes that TCP has taken.
    pub bytes_sent: u64,
    /// Number of bytes received.
    pub bytes_received: u64,
    /// Number of empty Writes sent because the peer was silent.
    pub nudges: u64,
}

/// Why a request cannot be answered. The fault is the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// No request waits for an answer.
    #[error("no request waits for an answer")]
    NoRequest,
    /// The private data is too long.
    #[error("{0}")]
    PrivateData(#[from] EncodeError),
}

/// One TCP connection that carries MPA, DDP and RDMAP.
#[derive(Debug)]
pub struct Stream {
    pub(crate) config: Config,
    pub(crate) role: Role,
    pub(crate) phase: Phase,
    pub(crate) terms: Terms,

    /// The own set-up frame, and how many bytes of it TCP has taken.
    pub(crate) setup_frame: Vec<u8>,
    pub(crate) setup_written: usize,
    asked: Option<Asked>,
    /// When the set-up fails. `None` if no deadline is set.
    pub(crate) deadline: Option<Instant>,

    pub(crate) cursor: Cursor,
    /// The rest of an FPDU of which TCP has taken a part.
    pub(crate) rest: Option<Rest>,
    /// The RTR message that the initiator sends first.
    pub(crate) rtr: Option<Rtr>,
    pub(crate) nudges: Nudges,
    pub(crate) terminate: Option<TerminatePayload>,
    pub(crate) work: WorkRing,
    /// The own reads whose Read Request TCP has taken, oldest first. At most ORD, and the RTR read.
    pub(crate) reads: VecDeque<OutstandingRead>,
    /// Number of own reads that have been answered, wrapping.
    pub(crate) reads_answered: u32,
    /// The reads of the peer whose answer TCP has not taken completely, oldest first. At most IRD.
    pub(crate) answers: VecDeque<Answer>,
    /// Number of the oldest of the answers, counted from 0.
    pub(crate) answers_base: u64,

    pub(crate) input: Input,
    /// Whether an FPDU of the peer has arrived. A responder sends none before.
    pub(crate) is_peer_heard: bool,
    /// Message sequence number of the next Send of the peer.
    pub(crate) send_msn: u32,
    /// Message sequence number of the next Read Request of the peer.
    pub(crate) read_msn: u32,
    /// The receive of a Send of which a part has arrived.
    pub(crate) receive: Option<CurrentReceive>,
    /// Whether a Write of the peer has begun and not ended.
    pub(crate) is_write_open: bool,

    pub(crate) events: VecDeque<Event>,
    /// The cause to report after all other events.
    pub(crate) end: Option<EndCause>,
    pub(crate) counters: Counters,
}

impl Stream {
    /// Creates the stream of an initiator, whose first bytes to write are its request.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the private data is too long: more than 512 bytes, 508 in
    /// revision 2.
    pub fn initiate(
        config: Config,
        private_data: &[u8],
        now: Instant,
    ) -> Result<Self, EncodeError> {
        let mut stream = Self::new(config, Role::Initiator, Phase::AwaitingReply);
        stream.setup_frame = encode(&setup::request(&config, private_data))?;
        stream.deadline = Some(now.after_ns(REPLY_NS));
        Ok(stream)
    }

    /// Creates the stream of a responder, which waits for a request.
    pub fn respond(config: Config, now: Instant) -> Self {
        let mut stream = Self::new(config, Role::Responder, Phase::AwaitingRequest);
        stream.deadline = Some(now.after_ns(REQUEST_NS));
        stream
    }

    fn new(config: Config, role: Role, phase: Phase) -> Self {
        let config = Config { ird_max: config.ird_max.max(config.ird), ..config };
        Self {
            role,
            phase,
            terms: Terms {
                revision: Revision::Zero,
                crc: false,
                sends_markers: false,
                receives_markers: false,
                ird: 0,
                ord: 0,
                long_fpdus: false,
                peer_to_peer: false,
            },
            setup_frame: Vec::new(),
            setup_written: 0,
            asked: None,
            deadline: None,
            cursor: Cursor::new(),
            rest: None,
            rtr: None,
            nudges: Nudges::new(),
            terminate: None,
            work: WorkRing::new(&config),
            reads: VecDeque::new(),
            reads_answered: 0,
            answers: VecDeque::new(),
            answers_base: 0,
            input: Input::new(),
            is_peer_heard: false,
            send_msn: 1,
            read_msn: 1,
            receive: None,
            is_write_open: false,
            events: VecDeque::new(),
            end: None,
            counters: Counters::default(),
            config,
        }
    }

    /// Accepts the request that [`Event::Request`] has reported. This end answers up to `ird` reads
    /// at a time, at most [`Config::ird_max`], and has up to `ord` reads outstanding, at most as
    /// many as the initiator answers.
    ///
    /// # Errors
    /// Returns [`AnswerError`] if no request waits, or if the private data is too long.
    pub fn accept(&mut self, private_data: &[u8], ird: u16, ord: u16) -> Result<(), AnswerError> {
        let asked = self.asked_request()?;
        let (frame, terms) = setup::accept(&self.config, &asked, private_data, ird, ord);
        self.setup_frame = encode(&frame)?;
        self.rtr = frame.enhanced.map(RtrKinds::of).and_then(RtrKinds::preferred);
        self.phase = Phase::Replying { accepts: true };
        self.begin_operation(terms);
        // In peer-to-peer mode, the first FPDU of the initiator establishes the stream.
        if !terms.peer_to_peer {
            self.events.push_back(Event::Established { private_data: Vec::new() });
        }
        Ok(())
    }

    /// Rejects the request that [`Event::Request`] has reported. [`Event::Ended`] follows when TCP
    /// has taken the reply.
    ///
    /// # Errors
    /// Returns [`AnswerError`] if no request waits, or if the private data is too long.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        let asked = self.asked_request()?;
        self.setup_frame = encode(&setup::reject(&self.config, &asked, private_data))?;
        self.phase = Phase::Replying { accepts: false };
        Ok(())
    }

    fn asked_request(&self) -> Result<Asked, AnswerError> {
        let is_waiting = self.phase == Phase::AwaitingAnswer;
        self.asked.filter(|_| is_waiting).ok_or(AnswerError::NoRequest)
    }

    /// Takes over the terms, and reserves the memory that they need.
    fn begin_operation(&mut self, terms: Terms) {
        self.terms = terms;
        // One more for the RTR read.
        self.reads.reserve_exact(usize::from(terms.ord) + 1);
        self.answers.reserve_exact(usize::from(terms.ird));
    }

    /// Posts an operation. It takes effect with the next calls of [`Stream::poll_transmit`].
    ///
    /// # Errors
    /// Returns [`PostError`] if the stream does not carry messages, if the rings are full, or if
    /// the operation is not valid.
    pub fn post_send(&mut self, work: &Work<'_>) -> Result<(), PostError> {
        if !matches!(self.phase, Phase::Operating | Phase::Replying { accepts: true }) {
            return Err(PostError::NotConnected);
        }
        if matches!(work.kind, WorkKind::Read { .. }) && self.terms.ord == 0 {
            return Err(PostError::NoReads);
        }
        self.work.post(work)
    }

    /// Returns how many operations can be posted before [`PostError::Full`], as far as their number
    /// is concerned.
    pub fn free_operations(&self) -> usize {
        self.work.free()
    }

    /// Returns whether every posted operation has been reported.
    pub fn is_idle(&self) -> bool {
        self.work.is_empty()
    }

    /// Returns what both ends have agreed on. Meaningful once the stream is established.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Returns what the stream has done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the next event. Call it after each other call, until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some((entry, status)) = self.work.take_finished() {
            if is_planted(Planted::LosesCompletion) && entry.id % 7 == 3 {
                return self.poll_event();
            }
            let (id, kind, bytes) = (entry.id, entry.kind.kind(), entry.bytes);
            return Some(Event::Completed { id, kind, status, bytes });
        }
        self.end.take().map(|cause| Event::Ended { cause })
    }

    /// Returns whether the socket can be closed: the stream has ended, and nothing is left to write.
    pub fn may_close(&self) -> bool {
        let is_terminated = self.terminate.is_none() || self.cursor.is_terminated;
        self.phase == Phase::Ended && self.rest.is_none() && is_terminated
    }

    /// Returns memory of an idle stream that bursts have left: buffers without content.
    pub fn release_buffers(&mut self) {
        self.input.release();
        self.events.shrink_to_fit();
        self.setup_frame.shrink_to_fit();
    }

    /// Handles received bytes of a request.
    pub(crate) fn receive_request(&mut self, bytes: &[u8]) {
        let buffer = self.input.setup_bytes(bytes);
        match decode_setup(SetupKind::Request, &buffer) {
            Err(error) => self.end_setup(error.into()),
            Ok(Parsed::Incomplete { .. }) => self.input.keep_setup_bytes(buffer),
            //= RFC 5044 section 7.1: the initiator sends no FPDU before it has received the reply
            Ok(Parsed::Complete { consumed, .. }) if consumed < buffer.len() => {
                self.end_setup(SetupFault::EarlyBytes);
            }
            Ok(Parsed::Complete { frame, .. }) => self.on_request(&frame),
        }
    }

    fn on_request(&mut self, frame: &SetupFrame<'_>) {
        if frame.private_data.len() > usize::from(self.config.private_data_max) {
            self.end_setup(SetupFault::PrivateData(frame.private_data.len()));
            return;
        }
        let asked = Asked::of(frame);
        self.asked = Some(asked);
        self.deadline = None;
        self.phase = Phase::AwaitingAnswer;
        let private_data = frame.private_data.to_vec();
        self.events.push_back(Event::Request { private_data, ird: asked.ird(), ord: asked.ord() });
    }

    /// Handles received bytes of a reply. Returns how many of the bytes belong to it.
    pub(crate) fn receive_reply(&mut self, bytes: &[u8], memory: &mut impl Memory) -> usize {
        if self.setup_written < self.setup_frame.len() {
            self.end_setup(SetupFault::EarlyBytes);
            return bytes.len();
        }
        let buffer = self.input.setup_bytes(bytes);
        let before = buffer.len() - bytes.len();
        match decode_setup(SetupKind::Reply, &buffer) {
            Err(error) => self.end_setup(error.into()),
            Ok(Parsed::Incomplete { .. }) => self.input.keep_setup_bytes(buffer),
            Ok(Parsed::Complete { frame, consumed }) => {
                self.on_reply(&frame, memory);
                return consumed.saturating_sub(before);
            }
        }
        bytes.len()
    }

    fn on_reply(&mut self, frame: &SetupFrame<'_>, memory: &mut impl Memory) {
        self.deadline = None;
        let private_data = frame.private_data.to_vec();
        if frame.flags.reject {
            self.events.push_back(Event::Rejected { private_data });
            self.end(EndCause::Rejected);
            return;
        }
        match setup::agree(&self.config, frame) {
            Err(fault) => self.end_setup(fault),
            Ok(agreed) => {
                self.begin_operation(agreed.terms);
                self.phase = Phase::Operating;
                if let Some(cause) = agreed.fault {
                    self.terminate(cause, EndCause::Peer(cause), None, memory);
                    return;
                }
                self.rtr = agreed.rtr;
                self.events.push_back(Event::Established { private_data });
            }
        }
    }

    fn end_setup(&mut self, fault: SetupFault) {
        self.end(EndCause::Setup(fault));
    }
}

fn encode(frame: &SetupFrame<'_>) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = [0; SETUP_FRAME_BYTES_MAX];
    let length = frame.encode(&mut bytes)?;
    Ok(bytes.get(..length).unwrap_or_default().to_vec())
}
