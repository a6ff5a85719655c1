//! The doorbell with which a stream notifies its endpoint.

use std::io;
use std::os::fd::BorrowedFd;

use runtime::Readiness;

/// A descriptor that the runtime watches for a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamDescriptor {
    /// The TCP socket.
    Tcp,
    /// The library's end of the program's socket pair.
    End,
}

/// Notifies the endpoint that serves a stream.
pub(crate) trait StreamDoorbell: Send + Sync {
    /// Notifies the endpoint that the stream has operations to post. The caller must hold neither
    /// the lock of the engine nor a lock that the engine's thread takes.
    fn ring(&self);
    /// Does the same as [`StreamDoorbell::ring`] for a caller that holds the lock of the engine, or
    /// a lock that the engine's thread takes.
    fn mark(&self);
    /// Watches a descriptor. The endpoint notifies the stream when the descriptor is ready.
    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()>;
    /// Stops watching a descriptor.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
