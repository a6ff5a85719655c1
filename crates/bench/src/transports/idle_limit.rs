//! Bounded busy polling.

use std::thread;

use crate::clock::Stopwatch;
use crate::transport::{PHASE_TIME_MAX, TransportError};

/// Gives up polling after [`PHASE_TIME_MAX`] without progress, and looks at the clock so rarely
/// that a poll costs nothing extra.
#[derive(Debug)]
pub(crate) struct IdleLimit {
    attempt: &'static str,
    /// Polls without progress since the last progress.
    idle_polls: u32,
    /// Running since the first look at the clock after the last progress.
    idle_since: Option<Stopwatch>,
}

impl IdleLimit {
    /// `attempt` says in the error what was polled for.
    pub(crate) fn new(attempt: &'static str) -> Self {
        Self { attempt, idle_polls: 0, idle_since: None }
    }

    /// To be called when a poll has found something.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.idle_polls = 0;
    }

    /// To be called when a poll has found nothing.
    #[inline]
    pub(crate) fn on_idle(&mut self) -> Result<(), TransportError> {
        self.idle_polls += 1;
        if self.idle_polls.is_multiple_of(POLLS_PER_LOOK) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), TransportError> {
        // The first look after progress restarts the stopwatch.
        let since = match self.idle_since {
            Some(since) if self.idle_polls > POLLS_PER_LOOK => since,
            _ => *self.idle_since.insert(Stopwatch::start()),
        };
        if since.has_passed(PHASE_TIME_MAX) {
            return Err(timed_out(self.attempt));
        }
        // Where both sides share one CPU, only this lets the other side make progress.
        thread::yield_now();
        Ok(())
    }
}

/// The error of an attempt that made no progress for [`PHASE_TIME_MAX`].
pub(crate) fn timed_out(attempt: &'static str) -> TransportError {
    TransportError::TimedOut { attempt, seconds: PHASE_TIME_MAX.as_secs() }
}

/// A poll of an empty socket costs 0.1–0.3 µs, so this looks at the clock about every 0.2 ms.
const POLLS_PER_LOOK: u32 = 1024;
