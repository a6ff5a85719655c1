//! Flags of calls that send or receive.

/// Flags of a call that receives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReceiveFlags {
    /// `MSG_PEEK`: the bytes stay in the receive queue.
    pub peek: bool,
    /// `MSG_WAITALL`: wait for all bytes that were asked for, unless the stream ends.
    pub wait_all: bool,
    /// `MSG_DONTWAIT`: treat the descriptor as non-blocking.
    pub dont_wait: bool,
    /// `MSG_TRUNC`: the bytes are discarded.
    pub discard: bool,
}

/// Flags of a call that sends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// `MSG_DONTWAIT`: treat the descriptor as non-blocking.
    pub dont_wait: bool,
    /// `MSG_MORE`: the program will write more, which may be sent together with these bytes.
    pub more: bool,
    /// `MSG_NOSIGNAL`: `EPIPE` raises no signal. Without this flag the caller of this crate raises
    /// the signal.
    pub no_signal: bool,
}
