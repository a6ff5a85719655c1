//! Flags of send and receive calls, by their meaning.

/// How bytes are received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReceiveFlags {
    /// `MSG_PEEK`: the bytes stay.
    pub peek: bool,
    /// `MSG_WAITALL`: not less than was asked for, unless the stream ends.
    pub wait_all: bool,
    /// `MSG_DONTWAIT`: as if the descriptor did not block.
    pub dont_wait: bool,
    /// `MSG_TRUNC`: the bytes are discarded.
    pub discard: bool,
}

/// How bytes are sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// `MSG_DONTWAIT`: as if the descriptor did not block.
    pub dont_wait: bool,
    /// `MSG_MORE`: more follows, and may be sent together with this.
    pub more: bool,
    /// `MSG_NOSIGNAL`: `EPIPE` raises no signal. The caller of this crate raises it otherwise.
    pub no_signal: bool,
}
