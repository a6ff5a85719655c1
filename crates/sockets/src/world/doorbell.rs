//! A doorbell that records what a stream asks of its endpoint.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use runtime::Readiness;

use crate::lock::lock;
use crate::transport::stream_doorbell::{StreamDescriptor, StreamDoorbell};

/// A doorbell without an endpoint. All clones share one state.
#[derive(Clone, Default)]
pub(super) struct TestDoorbell(Arc<Recorded>);

#[derive(Default)]
struct Recorded {
    rings: AtomicUsize,
    watched: Mutex<HashMap<RawFd, StreamDescriptor>>,
    /// Runs before the next watch or unwatch takes effect.
    before_change: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl TestDoorbell {
    /// Returns how often a thread has rung the doorbell.
    pub(super) fn rings(&self) -> usize {
        self.0.rings.load(Ordering::Relaxed)
    }

    /// Returns true if the stream has its TCP socket watched.
    pub(super) fn is_tcp_watched(&self) -> bool {
        lock(&self.0.watched).values().any(|which| *which == StreamDescriptor::Tcp)
    }

    /// Runs `work` once, right before the next watch or unwatch of a descriptor takes effect: like
    /// another thread that runs just then.
    pub(super) fn before_next_change(&self, work: impl FnOnce() + Send + 'static) {
        *lock(&self.0.before_change) = Some(Box::new(work));
    }

    /// Returns true if the work of [`TestDoorbell::before_next_change`] has not run yet.
    pub(super) fn awaits_change(&self) -> bool {
        lock(&self.0.before_change).is_some()
    }

    fn on_change(&self) {
        let work = lock(&self.0.before_change).take();
        if let Some(work) = work {
            work();
        }
    }
}

impl StreamDoorbell for TestDoorbell {
    fn ring(&self) {
        self.0.rings.fetch_add(1, Ordering::Relaxed);
    }

    fn mark(&self) {}

    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        _ready: Readiness,
    ) -> io::Result<()> {
        self.on_change();
        lock(&self.0.watched).insert(fd.as_raw_fd(), which);
        Ok(())
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        self.on_change();
        lock(&self.0.watched).remove(&fd.as_raw_fd());
    }
}
