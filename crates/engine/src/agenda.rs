//! Which connections are looked at next, and when.

use std::collections::VecDeque;

use delivery::{Instant, TimerQueue};

/// Connections, by index, that are to be looked at: at a time, in this turn, or when somebody sleeps.
///
/// Each connection is on a list at most once. The list of connections to serve may still name one that has ended: it is
/// skipped, or the connection that took over its index is served.
#[derive(Debug)]
pub(crate) struct Agenda {
    timers: TimerQueue,
    /// To be served.
    ready: VecDeque<u32>,
    /// Their deliveries wait for room in a completion queue.
    stalled: Vec<u32>,
    /// They owed acknowledgements when they were last served.
    owing: Vec<u32>,
    /// On which lists each is: [`READY`] and so on.
    listed: Vec<u8>,
}

impl Agenda {
    /// With room for so many connections on each list from the start.
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

    /// Makes room for a connection.
    pub(crate) fn admit(&mut self, index: u32) {
        self.timers.ensure_capacity(index);
        let entries = self.listed.len().max(index as usize + 1);
        self.listed.resize(entries, 0);
    }

    /// The connection has ended. Its index may serve another.
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

    /// A connection is to be served.
    #[inline]
    pub(crate) fn mark_ready(&mut self, index: u32) {
        if note(&mut self.listed, index, READY) {
            self.ready.push_back(index);
        }
    }

    /// The next to serve, which is on the list no more.
    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        let index = self.ready.pop_front()?;
        note_off(&mut self.listed, index, READY);
        Some(index)
    }

    /// How many there are to serve.
    #[inline]
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Those to serve, in order.
    #[inline]
    pub(crate) fn ready(&self) -> impl Iterator<Item = u32> {
        self.ready.iter().copied()
    }

    /// Whether a connection is to be served.
    #[inline]
    pub(crate) fn is_ready(&self, index: u32) -> bool {
        self.is_listed(index, READY)
    }

    /// Who would be served first gives way to all others.
    pub(crate) fn rotate(&mut self) {
        if let Some(first) = self.ready.pop_front() {
            self.ready.push_back(first);
        }
    }

    /// The deliveries of a connection wait for the application to poll.
    #[inline]
    pub(crate) fn mark_stalled(&mut self, index: u32) {
        if note(&mut self.listed, index, STALLED) {
            self.stalled.push(index);
        }
    }

    /// How many connections wait for the application to poll.
    pub(crate) const fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// The next whose deliveries wait, which is on the list no more.
    pub(crate) fn next_stalled(&mut self) -> Option<u32> {
        if self.stalled.is_empty() {
            return None;
        }
        let index = self.stalled.swap_remove(0);
        note_off(&mut self.listed, index, STALLED);
        Some(index)
    }

    /// A connection owes acknowledgements.
    #[inline]
    pub(crate) fn mark_owing(&mut self, index: u32) {
        if note(&mut self.listed, index, OWING) {
            self.owing.push(index);
        }
    }

    /// The next that owed acknowledgements, which is on the list no more.
    pub(crate) fn next_owing(&mut self) -> Option<u32> {
        let index = self.owing.pop()?;
        note_off(&mut self.listed, index, OWING);
        Some(index)
    }

    /// Whether there is work for a turn.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.stalled.is_empty()
    }

    /// Whether a turn will look at a connection.
    #[inline]
    pub(crate) fn awaits_turn(&self, index: u32) -> bool {
        self.is_listed(index, READY | STALLED)
    }

    fn is_listed(&self, index: u32, lists: u8) -> bool {
        self.listed.get(index as usize).is_some_and(|listed| listed & lists != 0)
    }

    /// Sets the time at which a connection is looked at in any case.
    #[inline]
    pub(crate) fn set_timer(&mut self, index: u32, at: Instant) {
        self.timers.set(index, at);
    }

    /// When a connection is looked at in any case.
    pub(crate) fn deadline(&self, index: u32) -> Instant {
        self.timers.deadline(index)
    }

    /// The earliest of these times.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Instant {
        self.timers.next()
    }

    /// The next connection whose time has come; it has none any more.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<u32> {
        self.timers.pop_due(now)
    }
}

/// Notes that a connection is on a list; false if it is already.
#[inline]
fn note(listed: &mut [u8], index: u32, list: u8) -> bool {
    let Some(entry) = listed.get_mut(index as usize) else { return false };
    let is_new = *entry & list == 0;
    *entry |= list;
    is_new
}

/// Notes that a connection is not on a list; false if it was not.
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
    fn a_connection_marked_twice_is_served_once_and_in_order() {
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
    fn an_ended_connection_is_looked_at_only_to_be_skipped() {
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
        // The next with this index is served in its place, once.
        agenda.mark_ready(0);
        assert_eq!((agenda.next_ready(), agenda.next_ready()), (Some(0), None));
    }

    #[test]
    fn waiting_for_the_next_turn_is_distinguished_from_owing() {
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
