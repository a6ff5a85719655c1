//! The stream: its state, and the calls of its user.

use std::collections::VecDeque;

use delivery::Instant;
use wire_iwarp::Revision;

use crate::blamed::BlamedSegment;
use crate::config::{Config, PeerKind, Rtr, Terms};
use crate::cursor::Cursor;
use crate::event::{EndCause, Event};
use crate::framing::Input;
use crate::gather::Rest;
use crate::memory::Piece;
use crate::nudges::Nudges;
use crate::placement::{Answer, CurrentReceive, OutstandingRead};
use crate::planted::{Planted, is_planted};
use crate::setup::Asked;
use crate::terminate_payload::TerminatePayload;
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
    /// The request of the initiator.
    pub(crate) asked: Option<Asked>,
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
    /// When a responder stops waiting for the first FPDU of its initiator. `None` if it does not
    /// wait, or waits as long as it takes.
    pub(crate) hold_until: Option<Instant>,
    /// Whether a responder has waited long enough for the first FPDU of its initiator.
    pub(crate) is_hold_over: bool,
    /// Message sequence number of the next Send of the peer.
    pub(crate) send_msn: u32,
    /// Message sequence number of the next Read Request of the peer.
    pub(crate) read_msn: u32,
    /// The receive of a Send of which a part has arrived.
    pub(crate) receive: Option<CurrentReceive>,
    /// Memory for the pieces of the next receive, so that a message allocates none.
    pub(crate) spare_pieces: Vec<Piece>,
    /// Whether a Write of the peer has begun and not ended.
    pub(crate) is_write_open: bool,

    pub(crate) events: VecDeque<Event>,
    /// The segment of the peer because of which the stream has ended.
    pub(crate) blamed: Option<BlamedSegment>,
    /// The cause to report after all other events.
    pub(crate) end: Option<EndCause>,
    pub(crate) counters: Counters,
}

impl Stream {
    pub(crate) fn new(config: Config, role: Role, phase: Phase) -> Self {
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
                peer: PeerKind::Unknown,
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
            hold_until: None,
            is_hold_over: false,
            send_msn: 1,
            read_msn: 1,
            receive: None,
            spare_pieces: Vec::new(),
            is_write_open: false,
            events: VecDeque::new(),
            blamed: None,
            end: None,
            counters: Counters::default(),
            config,
        }
    }

    /// Posts an operation. It takes effect with the next calls of [`Stream::poll_transmit`].
    ///
    /// # Errors
    /// Returns [`PostError`] if the stream does not carry messages, if the rings are full, or if
    /// the operation is not valid.
    pub fn post_send(&mut self, work: &Work<'_>) -> Result<(), PostError> {
        if !self.carries_messages() {
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

    /// Returns whether the stream takes operations: it is established, or this responder has
    /// accepted, and it has not ended.
    pub fn carries_messages(&self) -> bool {
        matches!(self.phase, Phase::Operating | Phase::Replying { accepts: true })
    }

    /// Returns whether a Read Request of this end has been sent and its answer has not arrived
    /// completely.
    pub fn awaits_answers(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns whether the stream has ended. Bytes may be left to write.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
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

    /// Returns the segment of the peer because of which the stream has ended, or `None` if it has
    /// not ended because of a segment whose headers are known.
    pub fn blamed(&self) -> Option<BlamedSegment> {
        self.blamed
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

    /// Releases memory that bursts have left, such as buffers without content. A user calls this
    /// for a stream that has been idle for some time, and the next burst allocates again.
    pub fn release_buffers(&mut self) {
        self.input.release();
        self.work.release();
        self.reads.shrink_to_fit();
        self.answers.shrink_to_fit();
        self.events.shrink_to_fit();
        self.spare_pieces = Vec::new();
        // Between the set-up and the end, nothing asks for the frame again.
        if self.phase == Phase::Operating {
            (self.setup_frame, self.setup_written) = (Vec::new(), 0);
        }
    }
}
