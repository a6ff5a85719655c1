//! What a stream reports.

use wire_iwarp::{Cause, ErrorCode, Revision, SetupError, Stag};

use crate::memory::Refusal;

/// The kind of a completed operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A write.
    Write,
    /// A read.
    Read,
    /// A send.
    Send,
}

/// How an operation or receive ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// A write or send: TCP has taken all bytes. A read or receive: all bytes are placed.
    Success,
    /// The stream ended first.
    Flushed,
    /// The local memory of the operation or receive cannot be used.
    LocalProtection,
    /// The message exceeds the receive.
    Length,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EndCause {
    /// The set-up failed.
    #[error("{0}")]
    Setup(SetupFault),
    /// The responder rejected the connection.
    #[error("the responder rejected the connection")]
    Rejected,
    /// The peer broke a rule.
    #[error("the peer broke a rule: {}", .0.text())]
    Peer(Cause),
    /// A Terminate message of the peer.
    #[error("the peer terminated the stream: {} (layer {}, type {}, code {:#04x})", words(*.0), .0.layer, .0.error_type, .0.code)]
    Terminated(ErrorCode),
    /// The memory of an operation or receive of this end cannot be used.
    #[error("local memory: {0}")]
    Local(Refusal),
    /// This end closed the stream.
    #[error("closed by this end")]
    ClosedHere,
    /// The peer closed the TCP connection between two messages.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed the TCP connection in the middle of a message.
    #[error("closed by the peer in the middle of a message")]
    Truncated,
    /// The TCP connection was reset, or failed.
    #[error("the TCP connection was reset")]
    Reset,
}

impl EndCause {
    /// Returns the section of the RFC whose rule the peer has broken, or `None` if it has broken
    /// none that this end has found.
    pub const fn rule(self) -> Option<&'static str> {
        match self {
            Self::Setup(fault) => fault.rule(),
            Self::Peer(cause) => Some(cause.rule()),
            _ => None,
        }
    }
}

/// Returns what an error code of a Terminate says.
fn words(code: ErrorCode) -> &'static str {
    code.cause().map_or("an error that no RFC names", Cause::text)
}

/// Why a set-up failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupFault {
    /// The peer's set-up frame is malformed.
    #[error("{0}")]
    Malformed(#[from] SetupError),
    /// The peer sent bytes before the set-up permits them.
    #[error("bytes before the set-up permits them")]
    EarlyBytes,
    /// The reply has another revision than the request.
    #[error("the reply has MPA revision {}", .0.number())]
    Revision(Revision),
    /// The reply has no words of enhanced set-up, although the request has.
    #[error("the reply is not enhanced")]
    NotEnhanced,
    /// The request has more private data than this end accepts.
    #[error("{0} bytes of private data")]
    PrivateData(usize),
    /// The request did not arrive in time.
    #[error("no request within 5 s")]
    NoRequest,
    /// The reply did not arrive in time.
    #[error("no reply within 10 s")]
    NoReply,
    /// The peer closed the TCP connection.
    #[error("the peer closed the connection during the set-up")]
    Closed,
}

impl SetupFault {
    /// Returns the section of the RFC whose rule the peer has broken, or `None` if it has broken
    /// none.
    pub const fn rule(self) -> Option<&'static str> {
        match self {
            Self::Malformed(error) => Some(error.rule()),
            Self::EarlyBytes | Self::Revision(_) => Some("RFC 5044 section 7.1"),
            Self::NotEnhanced => Some("RFC 6581 section 6"),
            Self::PrivateData(_) => Some("RFC 5044 section 7.1.1"),
            Self::NoRequest | Self::NoReply | Self::Closed => None,
        }
    }
}

/// What a stream reports to its user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A request arrived. Answer with [`crate::Stream::accept`] or [`crate::Stream::reject`].
    Request {
        /// The initiator's private data.
        private_data: Vec<u8>,
        /// Number of reads that the initiator answers at a time, or `None` if it does not say.
        ird: Option<u16>,
        /// Number of reads that the initiator wants to have outstanding, or `None` if it does not
        /// say.
        ord: Option<u16>,
    },
    /// The stream carries messages.
    Established {
        /// The responder's private data. Empty at the responder.
        private_data: Vec<u8>,
    },
    /// The responder rejected the connection. [`Event::Ended`] follows.
    Rejected {
        /// The responder's private data.
        private_data: Vec<u8>,
    },
    /// An operation ended. Operations end in the order of posting. A successful operation without
    /// `signaled` is not reported.
    Completed {
        /// Identifier of the operation.
        id: u64,
        /// Kind of the operation.
        kind: Kind,
        /// How it ended.
        status: Status,
        /// Length of the payload in bytes.
        bytes: u32,
    },
    /// A receive ended.
    ReceiveCompleted {
        /// Identifier of the receive.
        id: u64,
        /// How it ended.
        status: Status,
        /// Length of the message in bytes, 0 if it did not arrive completely.
        bytes: u32,
        /// Whether the sender asked for an event.
        solicited: bool,
        /// The STag that the message invalidated.
        invalidated: Option<Stag>,
    },
    /// The stream has ended. This is the last event. All operations have been reported.
    Ended {
        /// Why.
        cause: EndCause,
    },
}
