//! The interface to the table of the program's descriptors.

use std::os::fd::OwnedFd;

/// The table of the program's descriptors. The C ABI implements this trait, because the C ABI
/// interposes the calls that change descriptors.
///
/// A token identifies a TCP socket of the program, even if its descriptor numbers change. No token
/// is reused. The library calls these methods while it holds the lock of the engine or of a
/// connection. An implementation must therefore not call [`Sockets`](crate::Sockets) or
/// [`Connection`](crate::Connection).
pub trait DescriptorTable: Send + Sync {
    /// Duplicates the TCP socket with close-on-exec, at a high descriptor number, because programs
    /// do not use high numbers. Returns `None` if the program has closed the socket or no
    /// descriptor number is free.
    fn duplicate(&self, token: u64) -> Option<OwnedFd>;

    /// Replaces the TCP socket with `end` at all of its descriptor numbers, and in each epoll set.
    /// If the program has closed the socket, closes `end` and returns false.
    fn put(&self, token: u64, end: OwnedFd) -> bool;

    /// Returns true if another process may still use the TCP socket, for example after a fork. The
    /// connection then cannot move.
    fn is_shared(&self, token: u64) -> bool;

    /// Notifies the table that the connection was left to TCP. The library does not use the token
    /// again.
    fn decided(&self, token: u64);

    /// Notifies the table that all descriptors of a moved connection are closed, perhaps by calls
    /// that the library does not interpose. The descriptor numbers are free or refer to other
    /// files.
    fn closed(&self, token: u64);
}
