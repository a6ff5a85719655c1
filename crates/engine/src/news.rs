//! Events that the application has not fetched yet.

use std::collections::VecDeque;

use crate::event::Event;

/// Events of connections, oldest first. The queue returns each event once.
#[derive(Debug)]
pub(crate) struct News {
    events: VecDeque<Event>,
    /// Number of events for which the queue keeps memory even while it is empty.
    kept: usize,
}

impl News {
    /// Creates an empty queue. Allocates memory immediately if `allocates_ahead` is true.
    pub(crate) fn new(allocates_ahead: bool) -> Self {
        Self { events: VecDeque::new(), kept: if allocates_ahead { EVENTS_KEPT } else { 0 } }
    }

    /// Queues an event for the application.
    pub(crate) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Returns the next event, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Releases the memory that the queue allocated for a burst of events.
    pub(crate) fn trim(&mut self) {
        if self.events.is_empty() && self.events.capacity() > self.kept {
            self.events.shrink_to(self.kept);
        }
    }
}

/// Number of events for which an endpoint keeps memory. An endpoint with few connections rarely has
/// more events at one time.
const EVENTS_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use crate::event::{Closed, ConnectionHandle};

    use super::*;

    #[test]
    fn memory_of_a_long_event_queue_is_freed_without_losing_events() {
        let mut news = News::new(true);
        let of = |index| {
            let connection = ConnectionHandle { index, generation: 0 };
            Event::Closed { connection, reason: Closed::Here, private_data: Vec::new() }
        };
        for index in 0..1000 {
            news.push(of(index));
        }
        for index in 0..1000 {
            news.trim();
            let event = news.poll();
            let is_it = matches!(event, Some(Event::Closed { connection, .. }) if connection.index == index);
            assert!(is_it, "{index}: {event:?}");
        }
        news.trim();
        assert!(news.poll().is_none() && news.events.capacity() <= 2 * EVENTS_KEPT);
    }
}
