//! Reasons for the end or the rejection of a connection.

/// Why an end closed a connection (protocol.md §3.5).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both ends have finished their work.
    Finished,
    /// The application closed the connection.
    Application,
    /// Access denied: no region has the key of the request.
    UnknownKey,
    /// Access denied: the range of the request exceeds the region.
    OutOfRange,
    /// Access denied: the region does not grant the right that the request needs.
    RightMissing,
    /// Access denied: the address of an atomic operation is not a multiple of 8.
    Misaligned,
    /// The peer broke a rule of the protocol.
    ProtocolViolation,
    /// A message was longer than the receive that it consumed.
    MessageTooLong,
    /// A limit of resources was reached.
    ResourceLimit,
    /// The peer has restarted and no longer knows the connection.
    PeerRestarted,
    /// Local memory of an operation was deregistered.
    LocalMemoryGone,
    /// A reason that this version does not know.
    Other(u16),
}

impl CloseReason {
    /// Returns the reason with this number.
    pub const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Finished,
            1 => Self::Application,
            2 => Self::UnknownKey,
            3 => Self::OutOfRange,
            4 => Self::RightMissing,
            5 => Self::Misaligned,
            6 => Self::ProtocolViolation,
            7 => Self::MessageTooLong,
            8 => Self::ResourceLimit,
            9 => Self::PeerRestarted,
            10 => Self::LocalMemoryGone,
            other => Self::Other(other),
        }
    }

    /// Returns the number on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Finished => 0,
            Self::Application => 1,
            Self::UnknownKey => 2,
            Self::OutOfRange => 3,
            Self::RightMissing => 4,
            Self::Misaligned => 5,
            Self::ProtocolViolation => 6,
            Self::MessageTooLong => 7,
            Self::ResourceLimit => 8,
            Self::PeerRestarted => 9,
            Self::LocalMemoryGone => 10,
            Self::Other(code) => code,
        }
    }
}

/// Why a request for a connection was rejected (protocol.md §2.2).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum RejectReason {
    /// The application rejected the request.
    Application,
    /// No endpoint listens for this service.
    NoListener,
    /// The responder already has its maximum number of connections.
    ConnectionLimit,
    /// The responder cannot accept the parameters in the Hello.
    Parameters,
    /// Another endpoint has the service. The private data is a [`crate::Moved`] with the address of
    /// that endpoint.
    Moved,
    /// A reason that this version does not know.
    Other(u16),
}

impl RejectReason {
    /// Returns the reason with this number.
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Application,
            2 => Self::NoListener,
            3 => Self::ConnectionLimit,
            4 => Self::Parameters,
            5 => Self::Moved,
            other => Self::Other(other),
        }
    }

    /// Returns the number on the wire.
    pub const fn code(self) -> u16 {
        match self {
            Self::Application => 1,
            Self::NoListener => 2,
            Self::ConnectionLimit => 3,
            Self::Parameters => 4,
            Self::Moved => 5,
            Self::Other(code) => code,
        }
    }
}
