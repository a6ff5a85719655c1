//! What this crate needs from the table of the program's descriptors.

use std::os::fd::OwnedFd;

/// The program's descriptors. The C ABI implements it, because it interposes the calls that change them.
///
/// A token names a TCP socket of the program, whatever its numbers are; no token is used twice. Methods are called
/// inside the engine or under the lock of a connection, so they must not call [`Sockets`](crate::Sockets) or
/// [`Connection`](crate::Connection).
pub trait DescriptorTable: Send + Sync {
    /// Duplicates the TCP socket at a high number, which programs do not use, closed on exec. `None` if the program has
    /// closed the socket or no descriptor is left.
    fn duplicate(&self, token: u64) -> Option<OwnedFd>;

    /// Puts `end` at all numbers of the TCP socket, and replaces the socket in each epoll set. Returns false if the
    /// program has closed the socket; `end` is closed then.
    fn put(&self, token: u64, end: OwnedFd) -> bool;

    /// Returns whether another process may still use the TCP socket, as after a fork: then it
    /// cannot move.
    fn is_shared(&self, token: u64) -> bool;

    /// Notes that the connection was left to TCP. Nothing more is asked of this token.
    fn decided(&self, token: u64);

    /// Notes that all descriptors of a moved connection are closed, by whatever calls. Its numbers are free or stand for
    /// something else.
    fn closed(&self, token: u64);
}
