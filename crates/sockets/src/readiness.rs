//! What a program that polls a descriptor is told.

/// What a stream is ready for, as `poll` would tell it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Readiness {
    /// `POLLIN`: a read returns at once.
    pub readable: bool,
    /// `POLLOUT`: a write takes something at once.
    pub writable: bool,
    /// `POLLRDHUP`: the peer sends no more.
    pub peer_ended: bool,
    /// `POLLHUP`: both sides send no more.
    pub hung_up: bool,
    /// `POLLERR`: the connection was reset.
    pub error: bool,
}
