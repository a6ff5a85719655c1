//! Schedules connections: lists the connections to serve next, and stores their timers.

use std::collections::VecDeque;

use delivery::{Instant, TimerQueue};

/// Lists of connections that the engine serves in this turn, or before the thread sleeps, and the
/// timers of all connections. The lists contain indices of connections.
///
/// Each connection is on each list at most once. The ready list may still contain the index of a
/// connection that has ended. In that case the turn skips the index. If a new connection has got
/// this index, the turn serves the new connection.
#[derive(Debug)]
pub(crate) struct Agenda {
    timers: TimerQueue,
    /// Connections to serve in this turn.
    ready: VecDeque<u32>,
    /// Connections whose deliveries wait for room in a completion queue.
    stalled: Vec<u32>,
    /// Connections that had pending acknowledgements when the engine last served them.
    owing: Vec<u32>,
    /// For each connection, the lists that contain it: bits such as [`READY`].
    listed: Vec<u8>,
}

impl Agenda {
    /// Creates empty lists, with room for `connections` connections.
    pub(crate) fn new(connections: u32) -> Self {
        let room = connections as usize;
        Self {
            timers: TimerQueue::with_capacity(connections),
            ready: VecDeque::with_capacity(room),
            stalled: Vec::new(),
            owing: Vec::with_capacity(room),
            listed: Vec::with_capacity(room),
        }
    }

    /// Makes room in the lists and timers for the connection with this index.
    pub(crate) fn admit(&mut self, index: u32) {
        self.timers.ensure_capacity(index);
        let entries = self.listed.len().max(index as usize + 1);
        self.listed.resize(entries, 0);
    }

    /// Removes a connection that has ended from the lists, so that another connection can get its
    /// index.
    pub(crate) fn forget(&mut self, index: u32) {
        for (list, listed) in [(&mut self.stalled, STALLED), (&mut self.owing, OWING)] {
            if note_off(&mut self.listed, index, listed)
                && let Some(position) = list.iter().position(|&other| other == index)
            {
                list.swap_remove(position);
            }
        }
        self.timers.set(index, Instant::NEVER);
    }

    /// Adds a connection to the ready list.
    #[inline]
    pub(crate) fn mark_ready(&mut self, index: u32) {
        if note(&mut self.listed, index, READY) {
            self.ready.push_back(index);
        }
    }

    /// Removes and returns the next connection to serve; `None` if the ready list is empty.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        let index = self.ready.pop_front()?;
        note_off(&mut self.listed, index, READY);
        Some(index)
    }

    /// Returns the number of connections to serve.
    #[inline]
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Returns the connections to serve, in order.
    #[inline]
    pub(crate) fn ready(&self) -> impl Iterator<Item = u32> {
        self.ready.iter().copied()
    }

    /// Returns whether a connection is on the ready list.
    #[inline]
    pub(crate) fn is_ready(&self, index: u32) -> bool {
        self.is_listed(index, READY)
    }

    /// Moves the first connection of the ready list to its end.
    pub(crate) fn rotate(&mut self) {
        if let Some(first) = self.ready.pop_front() {
            self.ready.push_back(first);
        }
    }

    /// Records that deliveries of a connection wait until the application polls a completion queue.
    #[inline]
    pub(crate) fn mark_stalled(&mut self, index: u32) {
        if note(&mut self.listed, index, STALLED) {
            self.stalled.push(index);
        }
    }

    /// Returns the number of connections whose deliveries wait for room in a completion queue.
    pub(crate) const fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// Removes and returns the next connection whose deliveries wait for room in a completion
    /// queue; `None` if there is none.
    pub(crate) fn next_stalled(&mut self) -> Option<u32> {
        if self.stalled.is_empty() {
            return None;
        }
        let index = self.stalled.swap_remove(0);
        note_off(&mut self.listed, index, STALLED);
        Some(index)
    }

    /// Records that a connection has pending acknowledgements.
    #[inline]
    pub(crate) fn mark_owing(&mut self, index: u32) {
        if note(&mut self.listed, index, OWING) {
            self.owing.push(index);
        }
    }

    /// Removes and returns a connection that had pending acknowledgements; `None` if there is none.
    pub(crate) fn next_owing(&mut self) -> Option<u32> {
        let index = self.owing.pop()?;
        note_off(&mut self.listed, index, OWING);
        Some(index)
    }

    /// Returns whether a turn has connections to serve.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.stalled.is_empty()
    }

    /// Returns whether the next turn will visit the connection with this index.
    #[inline]
    pub(crate) fn awaits_turn(&self, index: u32) -> bool {
        self.is_listed(index, READY | STALLED)
    }

    fn is_listed(&self, index: u32, lists: u8) -> bool {
        self.listed.get(index as usize).is_some_and(|listed| listed & lists != 0)
    }

    /// Sets the timer of a connection.
    #[inline]
    pub(crate) fn set_timer(&mut self, index: u32, at: Instant) {
        self.timers.set(index, at);
    }

    /// Returns the deadline of a connection's timer.
    pub(crate) fn deadline(&self, index: u32) -> Instant {
        self.timers.deadline(index)
    }

    /// Returns the earliest deadline of all connections.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Instant {
        self.timers.next()
    }

    /// Removes and returns the next connection whose timer has expired, and clears that timer.
    /// Returns `None` if no timer has expired.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<u32> {
        self.timers.pop_due(now)
    }
}

/// Sets the bit of a list for a connection. Returns false if the bit was already set.
#[inline]
fn note(listed: &mut [u8], index: u32, list: u8) -> bool {
    let Some(entry) = listed.get_mut(index as usize) else { return false };
    let is_new = *entry & list == 0;
    *entry |= list;
    is_new
}

/// Clears the bit of a list for a connection. Returns false if the bit was not set.
#[inline]
fn note_off(listed: &mut [u8], index: u32, list: u8) -> bool {
    let Some(entry) = listed.get_mut(index as usize) else { return false };
    let was_listed = *entry & list != 0;
    *entry &= !list;
    was_listed
}

/// Bits of an entry of [`Agenda::listed`].
const READY: u8 = 1;
const STALLED: u8 = 2;
const OWING: u8 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agenda(connections: u32) -> Agenda {
        let mut agenda = Agenda::new(0);
        agenda.admit(connections - 1);
        agenda
    }

    #[test]
    fn a_connection_marked_twice_is_served_once_in_order() {
        let mut agenda = agenda(3);
        for index in [2, 0, 2, 1, 0] {
            agenda.mark_ready(index);
        }
        agenda.rotate();
        let served: Vec<u32> = core::iter::from_fn(|| agenda.next_ready()).collect();
        assert_eq!(served, [0, 1, 2]);
        agenda.mark_ready(2);
        assert!(agenda.is_ready(2) && agenda.has_work());
    }

    #[test]
    fn an_ended_connection_is_skipped() {
        let mut agenda = agenda(2);
        for index in [0, 1] {
            agenda.mark_stalled(index);
            agenda.mark_owing(index);
            agenda.set_timer(index, Instant(5 + u64::from(index)));
        }
        agenda.mark_ready(0);
        agenda.forget(0);
        assert_eq!((agenda.next_stalled(), agenda.next_stalled()), (Some(1), None));
        assert_eq!((agenda.next_owing(), agenda.next_owing()), (Some(1), None));
        assert_eq!(agenda.next_deadline(), Instant(6));
        // The ready list may keep the index of the forgotten connection. The engine then serves a
        // later connection with this index once.
        agenda.mark_ready(0);
        assert_eq!((agenda.next_ready(), agenda.next_ready()), (Some(0), None));
    }

    #[test]
    fn a_stalled_connection_awaits_the_next_turn_and_an_owing_one_does_not() {
        let mut agenda = agenda(1);
        agenda.mark_owing(0);
        assert!(!agenda.awaits_turn(0) && !agenda.has_work());
        agenda.mark_stalled(0);
        assert!(agenda.awaits_turn(0) && agenda.has_work() && !agenda.is_ready(0));
    }

    proptest! {
        #[test]
        fn no_list_ever_names_a_connection_twice(
            steps in proptest::collection::vec((0..7_u8, 0..4_u32), 0..200),
        ) {
            let mut agenda = agenda(4);
            for (step, index) in steps {
                match step {
                    0 => agenda.mark_ready(index),
                    1 => agenda.mark_stalled(index),
                    2 => agenda.mark_owing(index),
                    3 => drop(agenda.next_ready()),
                    4 => drop(agenda.next_stalled()),
                    5 => drop(agenda.next_owing()),
                    _ => agenda.forget(index),
                }
                for index in 0..4 {
                    let count = |list: &mut dyn Iterator<Item = &u32>| {
                        list.filter(|&&other| other == index).count()
                    };
                    let on = [
                        (count(&mut agenda.ready.iter()), READY),
                        (count(&mut agenda.stalled.iter()), STALLED),
                        (count(&mut agenda.owing.iter()), OWING),
                    ];
                    for (times, list) in on {
                        prop_assert_eq!(times, usize::from(agenda.is_listed(index, list)));
                    }
                }
            }
        }
    }
}
