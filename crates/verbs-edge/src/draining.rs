//! Queue pairs that wait until no send is in flight.

use std::sync::atomic::{AtomicBool, Ordering};

use runtime::{Posted, Rest};
use verbs::QueuePair;

/// Whether a queue pair waits for the notification that no send is in flight.
#[derive(Debug, Default)]
pub(crate) struct Draining(AtomicBool);

impl Draining {
    /// Requests the notification that no send is in flight.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Withdraws the request for the notification.
    pub(crate) fn give_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// If the queue pair waits for the notification and no send is in flight, notifies it. If it
    /// waits and sends are in flight, makes the engine pull from the work source again later.
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
