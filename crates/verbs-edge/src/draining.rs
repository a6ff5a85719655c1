//! Queue pairs that wait for the end of work in flight.

use std::sync::atomic::{AtomicBool, Ordering};

use runtime::{Posted, Rest};
use verbs::QueuePair;

/// Whether a queue pair waits for a notification that no work is in flight.
#[derive(Debug, Default)]
pub(crate) struct Draining(AtomicBool);

impl Draining {
    /// Requests the notification.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Withdraws the request.
    pub(crate) fn give_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Notifies a waiting queue pair if no work is in flight. Otherwise has the source polled
    /// again.
    #[inline]
    pub(crate) fn look(
        &self,
        queue_pair: &QueuePair,
        posted: &mut Posted,
        is_outstanding: impl FnOnce() -> bool,
    ) {
        if !self.0.load(Ordering::Relaxed) {
            return;
        }
        if is_outstanding() {
            posted.rest = Rest::Blocked;
        } else if self.0.swap(false, Ordering::Relaxed) {
            queue_pair.on_drained();
        }
    }
}
