//! Streams that coalesce small writes. Such a stream holds bytes back until the program writes more
//! or is about to wait.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, Weak};

use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use runtime::{Readiness, Runtime};

use crate::lock::lock;

/// The streams of a process that may hold bytes back. If there are none, checking for them costs
/// one load.
#[derive(Default)]
pub(crate) struct HeldStreams {
    count: AtomicUsize,
    streams: Mutex<Streams>,
    /// The timer that limits how long bytes are held back; set when the endpoint starts.
    timer: OnceLock<TimerFd>,
}

#[derive(Default)]
struct Streams {
    /// The streams that were added since the timer last expired.
    new: Vec<Weak<dyn HoldsBytes>>,
    /// The streams that were added earlier. They are flushed when the timer next expires.
    old: Vec<Weak<dyn HoldsBytes>>,
    is_timer_set: bool,
}

/// Records whether a stream is in a [`HeldStreams`].
#[derive(Debug, Default)]
pub(crate) struct HeldFlag(AtomicBool);

/// A stream that can hold bytes back.
pub(crate) trait HoldsBytes: Send + Sync {
    /// Returns the flag that records whether the stream is in [`HeldStreams`].
    fn is_held(&self) -> &HeldFlag;

    /// Sends the bytes that the stream holds back. The caller must not hold the lock of the engine.
    fn push(&self);

    /// Sends the bytes that the stream holds back. The caller must hold the lock of the engine.
    fn push_inside(&self);
}

impl HeldStreams {
    /// Adds a stream that holds bytes back. Does nothing if the stream is already present.
    /// `is_corked` is true if the bytes wait for further writes, and not for an acknowledgement. In
    /// that case the bytes are sent after at most [`CEILING_MS`], even if the program never waits.
    pub(crate) fn add(
        &self,
        is_held: &HeldFlag,
        is_corked: bool,
        stream: impl FnOnce() -> Weak<dyn HoldsBytes>,
    ) {
        let is_new = !is_held.0.swap(true, Ordering::SeqCst);
        if !is_new && !is_corked {
            return;
        }
        let mut streams = lock(&self.streams);
        if is_new {
            streams.new.push(stream());
            self.count.store(streams.count(), Ordering::SeqCst);
        }
        if is_corked && !streams.is_timer_set {
            streams.is_timer_set = self.set_timer();
        }
    }

    /// Sends all bytes that streams hold back, because the program is about to wait.
    #[inline]
    pub(crate) fn push_all(&self) {
        if self.count.load(Ordering::SeqCst) != 0 {
            self.push();
        }
    }

    #[cold]
    fn push(&self) {
        let [new, old] = {
            let mut streams = lock(&self.streams);
            self.count.store(0, Ordering::SeqCst);
            [std::mem::take(&mut streams.new), std::mem::take(&mut streams.old)]
        };
        for stream in [new, old].iter().flatten().filter_map(Weak::upgrade) {
            // Clear the flag before the push. If a thread holds bytes back after this point, it
            // adds the stream again.
            stream.is_held().0.store(false, Ordering::SeqCst);
            stream.push();
        }
    }

    /// Creates the timer that limits how long bytes are held back. When the timer expires, the
    /// runtime calls the hooks with [`KEY`], and the hooks call [`HeldStreams::on_expired`].
    pub(crate) fn limit(&self, runtime: &Runtime) -> io::Result<()> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let timer = self.timer.get_or_init(|| timer);
        runtime.watch_descriptor(timer.as_fd(), KEY, Readiness::READABLE)
    }

    /// Starts the timer. Returns false if the process has no timer.
    fn set_timer(&self) -> bool {
        let period = Expiration::OneShot(TimeSpec::milliseconds(CEILING_MS / 2));
        let timer = self.timer.get();
        timer.is_some_and(|timer| timer.set(period, TimerSetTimeFlags::empty()).is_ok())
    }

    /// Sends the bytes of the streams that were added before the previous expiration. Called by the
    /// thread that runs the engine, when the timer expires.
    pub(crate) fn on_expired(&self) {
        // Read the number of expirations, so that the timer is no longer ready.
        let _expired = self.timer.get().map(TimerFd::wait);
        let due = {
            let mut streams = lock(&self.streams);
            let new = std::mem::take(&mut streams.new);
            let due = std::mem::replace(&mut streams.old, new);
            self.count.store(streams.count(), Ordering::SeqCst);
            streams.is_timer_set = !streams.old.is_empty() && self.set_timer();
            due
        };
        for stream in due.iter().filter_map(Weak::upgrade) {
            stream.is_held().0.store(false, Ordering::SeqCst);
            stream.push_inside();
        }
    }
}

impl Streams {
    const fn count(&self) -> usize {
        self.new.len() + self.old.len()
    }
}

impl fmt::Debug for HeldStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldStreams").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Key of the timer in the runtime, which passes it to the hooks when the timer expires.
pub(crate) const KEY: u64 = 1 << 62 | 1 << 41;

/// The maximum time for which bytes wait for further writes, in milliseconds, as for `TCP_CORK`
/// (tcp(7)). If nothing else sends the bytes earlier, they wait for at least half of this time.
const CEILING_MS: i64 = 200;
