//! Streams that hold bytes back for more to come, until the program is about to wait.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use crate::stream::Stream;
use crate::waiting::lock;

/// The streams of a process that may hold bytes back. While there are none, it costs one load to know that.
#[derive(Default)]
pub(crate) struct Held {
    count: AtomicUsize,
    streams: Mutex<Vec<Weak<Stream>>>,
}

/// Whether a stream is among those that are [`Held`].
#[derive(Debug, Default)]
pub(crate) struct IsHeld(AtomicBool);

impl Held {
    /// A stream holds bytes back. It is here once.
    pub(crate) fn add(&self, is_held: &IsHeld, stream: impl FnOnce() -> Weak<Stream>) {
        if is_held.0.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut streams = lock(&self.streams);
        streams.push(stream());
        self.count.store(streams.len(), Ordering::SeqCst);
    }

    /// The program is about to wait: whatever is held back is sent.
    #[inline]
    pub(crate) fn push_all(&self) {
        if self.count.load(Ordering::SeqCst) != 0 {
            self.push();
        }
    }

    #[cold]
    fn push(&self) {
        let streams = {
            let mut streams = lock(&self.streams);
            self.count.store(0, Ordering::SeqCst);
            std::mem::take(&mut *streams)
        };
        for stream in streams.iter().filter_map(Weak::upgrade) {
            // Who adds bytes from here on has it put here again.
            stream.is_held().0.store(false, Ordering::SeqCst);
            stream.push();
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("count", &self.count).finish_non_exhaustive()
    }
}
