//! How a stream calls for those who carry its bytes.

use std::io;
use std::os::fd::BorrowedFd;

use runtime::Readiness;

/// A descriptor of a stream that is watched for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamDescriptor {
    /// The TCP socket.
    Tcp,
    /// The library's end of the program's socket pair.
    End,
}

/// What a stream asks of its link group.
pub(crate) trait StreamDoorbell: Send + Sync {
    /// There is something to post. Called outside of the engine and of locks that are taken inside it.
    fn ring(&self);
    /// The same inside the engine, or under such a lock.
    fn mark(&self);
    /// Has the stream told when a descriptor of it is ready.
    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()>;
    /// Has it told no more.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}
