//! What this crate asks of the table of the program's descriptors.

use std::os::fd::OwnedFd;

/// The program's descriptors: implemented by the C ABI, which stands before the calls that change them.
///
/// A token names a TCP socket of the program, at whatever numbers it is; none is used twice. Methods are called inside
/// the engine or under the lock of a connection, so they must not call [`Sockets`](crate::Sockets) or
/// [`Connection`](crate::Connection).
pub trait DescriptorTable: Send + Sync {
    /// Another descriptor of the TCP socket, at a number that programs do not come across, closed by exec; `None` if
    /// the program has closed it, or no descriptor is left.
    fn duplicate(&self, token: u64) -> Option<OwnedFd>;

    /// Puts `end` at all numbers of the TCP socket, and in its place into every epoll set it is registered in. False if
    /// the program has closed it: `end` is closed.
    fn put(&self, token: u64, end: OwnedFd) -> bool;

    /// Whether another process may still use the TCP socket, as after a fork: then it cannot move.
    fn is_shared(&self, token: u64) -> bool;

    /// The connection was left to TCP: nothing more is asked of this token.
    fn decided(&self, token: u64);

    /// All descriptors of a connection that has moved are closed, by whatever calls: the numbers it had stand for nothing
    /// any more, or for something else.
    fn closed(&self, token: u64);
}
