//! Flags of the calls that send or receive.

/// Flags of a call that receives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReceiveFlags {
    /// `MSG_PEEK`: the bytes stay in the receive queue.
    pub peek: bool,
    /// `MSG_WAITALL`: wait for all requested bytes, or the end of the stream.
    pub wait_all: bool,
    /// `MSG_DONTWAIT`: treat the descriptor as non-blocking.
    pub dont_wait: bool,
    /// `MSG_TRUNC`: discard the bytes instead of copying them.
    pub discard: bool,
}

/// Flags of a call that sends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags {
    /// `MSG_DONTWAIT`: treat the descriptor as non-blocking.
    pub dont_wait: bool,
    /// `MSG_MORE`: the program will write more, so the bytes may wait and be sent together.
    pub more: bool,
    /// `MSG_NOSIGNAL`: `EPIPE` raises no signal. Without this flag, the caller of this crate must
    /// raise `SIGPIPE`.
    pub no_signal: bool,
}
