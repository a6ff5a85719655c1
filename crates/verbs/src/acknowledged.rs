//! Counts events that the program has read but not acknowledged.

use std::sync::{Condvar, Mutex, PoisonError};

/// Number of an object's events that the program has read but not acknowledged. A call that
/// destroys the object waits until this number is 0.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    count: Mutex<Count>,
    is_none: Condvar,
}

#[derive(Debug, Default)]
struct Count {
    events: u32,
    /// Number of threads that wait. To notify none would cost a system call, and programs
    /// acknowledge each event.
    waiting: u32,
}

impl Unacknowledged {
    /// Records that the program has read an event.
    pub fn on_taken(&self) {
        self.count.lock().unwrap_or_else(PoisonError::into_inner).events += 1;
    }

    /// Subtracts `events` from the number of unacknowledged events. If the number is smaller than
    /// `events`, it becomes 0.
    pub fn acknowledge(&self, events: u32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        count.events = count.events.saturating_sub(events);
        if count.events == 0 && count.waiting > 0 {
            self.is_none.notify_all();
        }
    }

    /// Blocks until all events are acknowledged.
    pub fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        count.waiting += 1;
        let mut none = self
            .is_none
            .wait_while(count, |count| count.events > 0)
            .unwrap_or_else(PoisonError::into_inner);
        none.waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_wait_ends_when_the_last_event_is_acknowledged() {
        let events = Unacknowledged::default();
        events.wait();
        events.on_taken();
        events.on_taken();
        let is_acknowledged = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                events.wait();
                assert!(is_acknowledged.load(Ordering::SeqCst));
            });
            events.acknowledge(1);
            is_acknowledged.store(true, Ordering::SeqCst);
            events.acknowledge(1);
        });
        events.acknowledge(5);
        events.wait();
    }
}
