//! Why connections are left to TCP.

use std::fmt;

/// Why a connection is left to TCP.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Reason {
    /// The settings of this side leave its network or port alone.
    Rule,
    /// The peer made no offer in time: it has no library, its UDP is blocked, or it does not use the connection.
    NoOffer,
    /// The peer did not answer the offer in time.
    NoAnswer,
    /// The peer speaks another version.
    Version,
    /// The peer sent what it may not send.
    Misbehaved,
    /// The peer refused.
    Refused,
    /// No edge connection to the process of the peer came about, or it was lost before the connection had moved.
    NoGroup,
    /// The program had closed the descriptor.
    Closed,
    /// No descriptor was left for the library (`ulimit -n`).
    Descriptors,
    /// No memory was left for rings.
    Memory,
    /// More unsent bytes waited in the TCP connection than a seal can be put behind.
    Busy,
    /// The program asked for what only TCP has: out-of-band data, say.
    OnlyTcp,
    /// The endpoint of this process did not start.
    NoEndpoint,
    /// The process was forked in the middle of it.
    Forked,
}

impl Reason {
    /// Its name in logs and counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::NoOffer => "no offer",
            Self::NoAnswer => "no answer",
            Self::Version => "other version",
            Self::Misbehaved => "misbehaved",
            Self::Refused => "refused",
            Self::NoGroup => "no edge connection",
            Self::Closed => "closed",
            Self::Descriptors => "no descriptors",
            Self::Memory => "no memory",
            Self::Busy => "busy",
            Self::OnlyTcp => "only TCP has it",
            Self::NoEndpoint => "no endpoint",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
