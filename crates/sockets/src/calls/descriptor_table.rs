//! The interface to the table of the program's descriptors.

use std::os::fd::OwnedFd;

/// The program's descriptors. The C ABI implements it, because it interposes the calls that change them.
///
/// A token names a TCP socket of the program, independent of its descriptor numbers. A token is
/// never reused. Methods are called inside the engine or under the lock of a connection, so they
/// must not call [`Sockets`](crate::Sockets) or [`Connection`](crate::Connection).
pub trait DescriptorTable: Send + Sync {
    /// Duplicates the TCP socket at a high number, which programs do not use, with close-on-exec.
    /// Returns `None` if the program has closed the socket or no descriptor number is free.
    fn duplicate(&self, token: u64) -> Option<OwnedFd>;

    /// Replaces the TCP socket by `end` at all of its numbers, and in each epoll set. Returns false
    /// if the program has closed the socket; `end` is then closed.
    fn put(&self, token: u64, end: OwnedFd) -> bool;

    /// Returns whether another process may still use the TCP socket, for example after a fork. If
    /// so, the connection cannot move.
    fn is_shared(&self, token: u64) -> bool;

    /// Notifies the table that the connection was left to TCP. The token is not used in later
    /// calls.
    fn decided(&self, token: u64);

    /// Notifies the table that all descriptors of a moved connection are closed, perhaps by calls
    /// that are not interposed. Its numbers are free or name other files.
    fn closed(&self, token: u64);
}
