//! Link groups: the edge connection between two processes, and the streams that share it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use runtime::Readiness;

use crate::stream::StreamDescriptor;

/// How a stream calls for the engine.
#[derive(Clone, Debug)]
pub(crate) struct Bell {}

impl Bell {
    /// The stream has something to post, or wants [`Stream::due`](crate::stream::Stream::due) asked again: called by threads outside of the engine and of
    /// locks that are taken inside it.
    pub(crate) fn ring(&self) {}

    /// The same inside the engine, or under such a lock: what there is goes in this turn or the next.
    pub(crate) fn mark(&self) {}

    /// Has the stream told when a descriptor of it is ready. It must be unwatched before it is closed.
    pub(crate) fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()> {
        let _ = (which, fd, ready);
        Ok(())
    }

    /// Has it told no more.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = fd;
    }

    /// A thread of the program waits until `ready` returns something, for at most `limit`; meanwhile it drives the
    /// engine. `EIO` if the endpoint is gone.
    pub(crate) fn wait<R>(
        &self,
        limit: Option<Duration>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>, Errno> {
        let _ = limit;
        Ok(ready())
    }

    /// Threads that wait look again; also inside the engine.
    pub(crate) fn wake(&self) {}

    /// Makes progress, unless another thread is at it.
    pub(crate) fn drive(&self) {}
}
