//! Events of a link that the engine has not polled yet.

use std::collections::VecDeque;

use delivery::LinkEvent;

/// A queue of events. If the queue is full, a new event replaces the oldest. Allocates only when
/// created.
#[derive(Debug)]
pub(crate) struct Events {
    waiting: VecDeque<LinkEvent>,
    most: usize,
    dropped: u64,
}

impl Events {
    /// Creates a queue for at most `most` events.
    pub(crate) fn new(most: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(most), most, dropped: 0 }
    }

    /// Appends an event. If the queue is full, drops the oldest event.
    pub(crate) fn push(&mut self, event: LinkEvent) {
        if self.waiting.len() == self.most {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(event);
    }

    /// Removes and returns the oldest event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<LinkEvent> {
        self.waiting.pop_front()
    }

    /// Returns the queued events, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &LinkEvent> {
        self.waiting.iter()
    }

    /// Returns the number of dropped events.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpolled_events_are_bounded() {
        let mut events = Events::new(4);
        for _ in 0..4 + 3 {
            events.push(LinkEvent::Down);
        }
        assert_eq!(events.dropped(), 3);
        assert_eq!(std::iter::from_fn(|| events.pop()).count(), 4);
    }
}
