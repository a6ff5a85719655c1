//! Flags of the calls of programs, by their meaning.

/// How bytes are received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReceiveFlags {
    /// `MSG_PEEK`: the bytes stay.
    pub peek: bool,
    /// `MSG_WAITALL`: not less than was asked for, unless the stream ends.
    pub wait_all: bool,
    /// `MSG_DONTWAIT`: as if the descriptor did not block.
    pub dont_wait: bool,
    /// `MSG_TRUNC`: the bytes are thrown away.
    pub discard: bool,
}

/// How bytes are sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// `MSG_DONTWAIT`: as if the descriptor did not block.
    pub dont_wait: bool,
    /// `MSG_MORE`: more follows, and may go with it.
    pub more: bool,
    /// `MSG_NOSIGNAL`: a stream that nobody reads any more raises no signal. (The signal is raised by who calls this
    /// crate, on `EPIPE`.)
    pub no_signal: bool,
}
