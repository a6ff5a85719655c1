//! How a stream notifies its endpoint.

use std::io;
use std::os::fd::BorrowedFd;

use runtime::Readiness;

/// A descriptor that is watched for a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamDescriptor {
    /// The TCP socket.
    Tcp,
    /// The library's end of the program's socket pair.
    End,
}

/// Notifies the endpoint of a stream.
pub(crate) trait StreamDoorbell: Send + Sync {
    /// Notifies the endpoint that there is something to post. Called outside the engine, and without locks that are
    /// taken inside it.
    fn ring(&self);
    /// As [`StreamDoorbell::ring`], inside the engine or under such a lock.
    fn mark(&self);
    /// Watches a descriptor. The stream is notified when it is ready.
    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()>;
    /// Stops watching a descriptor.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
