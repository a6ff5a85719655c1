//! The set-up of a stream: its set-up frames, and their exchange.

use delivery::Instant;
use wire_iwarp::{EncodeError, Parsed, SETUP_FRAME_BYTES_MAX, SetupFrame, SetupKind, decode_setup};

use crate::config::{Config, RtrKinds};
use crate::event::{EndCause, Event, SetupFault};
use crate::memory::Memory;
use crate::setup::{self, Asked};
use crate::stream::{Phase, Role, Stream};

/// How long a responder waits for the request, in nanoseconds. Linux siw has the same limit.
const REQUEST_NS: u64 = 5_000_000_000;

/// How long an initiator waits for the reply, in nanoseconds. Linux siw has the same limit.
const REPLY_NS: u64 = 10_000_000_000;

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
        self.terms = terms;
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
                self.terms = agreed.terms;
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
