//! Bounded busy polling.

use std::thread;

use crate::transport::{PHASE_TIME_MAX, TransportError};
use testbed::clock::Stopwatch;

/// Limits busy polling to [`PHASE_TIME_MAX`] without progress. Reads the clock only every
/// [`POLLS_PER_LOOK`] polls, so the clock does not slow down polling.
#[derive(Debug)]
pub(crate) struct IdleLimit {
    attempt: &'static str,
    /// Number of polls since the last progress.
    idle_polls: u32,
    /// The stopwatch that started at the first clock check after the last progress.
    idle_since: Option<Stopwatch>,
}

impl IdleLimit {
    /// Starts with no polls. The error of a timeout contains `attempt`, the purpose of the polling.
    pub(crate) fn new(attempt: &'static str) -> Self {
        Self { attempt, idle_polls: 0, idle_since: None }
    }

    /// Records a poll that made progress.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.idle_polls = 0;
    }

    /// Records a poll without progress. Returns an error after [`PHASE_TIME_MAX`] without progress.
    #[inline]
    pub(crate) fn on_idle(&mut self) -> Result<(), TransportError> {
        self.idle_polls += 1;
        if self.idle_polls.is_multiple_of(POLLS_PER_LOOK) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), TransportError> {
        // The first clock check after progress restarts the stopwatch.
        let since = match self.idle_since {
            Some(since) if self.idle_polls > POLLS_PER_LOOK => since,
            _ => *self.idle_since.insert(Stopwatch::start()),
        };
        if since.has_passed(PHASE_TIME_MAX) {
            return Err(timed_out(self.attempt));
        }
        // If both ends share one CPU, the peer makes progress only when this thread yields.
        thread::yield_now();
        Ok(())
    }
}

/// Returns the error of an attempt that made no progress for [`PHASE_TIME_MAX`].
pub(crate) fn timed_out(attempt: &'static str) -> TransportError {
    TransportError::TimedOut { attempt, seconds: PHASE_TIME_MAX.as_secs() }
}

/// Polls between clock checks. A poll of an empty socket takes 0.1–0.3 µs, so the clock is read
/// about every 0.2 ms.
const POLLS_PER_LOOK: u32 = 1024;
