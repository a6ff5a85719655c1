//! Streams that hold bytes back for more to come, until the program is about to wait.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, Weak};

use nix::sys::time::{TimeSpec, TimeValLike};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use runtime::{Readiness, Runtime};

use crate::lock::lock;

/// The streams of a process that may hold bytes back. While there are none, it costs one load to know that.
#[derive(Default)]
pub(crate) struct HeldStreams {
    count: AtomicUsize,
    streams: Mutex<Streams>,
    /// Set when the endpoint has started.
    timer: OnceLock<TimerFd>,
}

#[derive(Default)]
struct Streams {
    /// Those that were added since the timer expired last.
    new: Vec<Weak<dyn HoldsBytes>>,
    /// Those that were there before: they are pushed when it expires next.
    old: Vec<Weak<dyn HoldsBytes>>,
    is_timer_set: bool,
}

/// Whether a stream is among those that are [`HeldStreams`].
#[derive(Debug, Default)]
pub(crate) struct HeldFlag(AtomicBool);

/// A stream, as what holds bytes back.
pub(crate) trait HoldsBytes: Send + Sync {
    /// Whether it is among those that are [`HeldStreams`].
    fn is_held(&self) -> &HeldFlag;

    /// Sends what is held back. Outside of the engine.
    fn push(&self);

    /// The same inside it.
    fn push_inside(&self);
}

impl HeldStreams {
    /// A stream holds bytes back. It is here once. Bytes that wait for no acknowledgement, but for more of the program
    /// (`is_corked`), are sent after [`CEILING_MS`] at the latest, even if the program never waits.
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

    /// The program is about to wait: whatever is held back is sent.
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
            // Who adds bytes from here on has it put here again.
            stream.is_held().0.store(false, Ordering::SeqCst);
            stream.push();
        }
    }

    /// Limits from now on for how long bytes are held back. The hooks are called with [`KEY`], and call
    /// [`HeldStreams::on_expired`].
    pub(crate) fn limit(&self, runtime: &Runtime) -> io::Result<()> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let timer = self.timer.get_or_init(|| timer);
        runtime.watch_descriptor(timer.as_fd(), KEY, Readiness::READABLE)
    }

    /// False if there is none.
    fn set_timer(&self) -> bool {
        let period = Expiration::OneShot(TimeSpec::milliseconds(CEILING_MS / 2));
        let timer = self.timer.get();
        timer.is_some_and(|timer| timer.set(period, TimerSetTimeFlags::empty()).is_ok())
    }

    /// The timer has expired: what was held back when it expired before is sent. Inside the engine.
    pub(crate) fn on_expired(&self) {
        // There is one expiration to be read, or none.
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

/// What the hooks are told when the timer has expired.
pub(crate) const KEY: u64 = 1 << 62 | 1 << 41;

/// For how long bytes wait for more of the program at most, in milliseconds, as in TCP (tcp(7), `TCP_CORK`). They wait for
/// half of it at least.
const CEILING_MS: i64 = 200;
