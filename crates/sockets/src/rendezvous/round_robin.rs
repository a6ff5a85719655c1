//! Chooses which stream posts next: round robin over the link groups, and round robin over the
//! streams of each group.
//!
//! Each group has a queue of its streams. A group that was served becomes the last group in the
//! queue of groups. If the engine has no room for a group, the group is set aside until it is
//! [woken](RoundRobin::wake).
//!
//! A single queue of all streams would have two faults. A group with a thousand streams would be
//! served a thousand times as often as a group with one stream. If the peer of a group accepts
//! nothing, each stream of the group would be retried without effect.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The groups `G` that wait to be served, and the waiting streams `S` of each group.
#[derive(Debug)]
pub(crate) struct RoundRobin<G, S> {
    queues: HashMap<G, GroupQueue<S>>,
    /// The groups in state [`GroupState::Queued`]. Each group is present once.
    order: VecDeque<G>,
}

#[derive(Debug)]
struct GroupQueue<S> {
    streams: VecDeque<S>,
    state: GroupState,
    /// True if the group is open. The queue of an open group stays even when it is empty, so that
    /// adding a stream allocates nothing.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GroupState {
    /// The group has no work.
    Idle,
    /// The group waits to be served.
    Queued,
    /// The group is being served.
    Served,
    /// The group is set aside, because the engine has no room for it.
    Aside,
}

impl<G: Copy + Eq + Hash, S> RoundRobin<G, S> {
    pub(crate) fn new() -> Self {
        Self { queues: HashMap::new(), order: VecDeque::new() }
    }

    /// Adds a group.
    pub(crate) fn open(&mut self, group: G) {
        self.queues.entry(group).or_insert_with(GroupQueue::new).is_open = true;
    }

    /// Removes a group. The streams in its queue are still served, because the caller must close
    /// them.
    pub(crate) fn close(&mut self, group: G) {
        let Some(queue) = self.queues.get_mut(&group) else { return };
        queue.is_open = false;
        if queue.state == GroupState::Idle {
            self.queues.remove(&group);
        } else {
            self.wake(group);
        }
    }

    /// Queues a stream after the other streams of its group. The stream must not be in the queue
    /// already.
    pub(crate) fn add(&mut self, group: G, stream: S) {
        self.queued(group).streams.push_back(stream);
    }

    /// Queues a group that has pending messages, even if no stream of the group is queued.
    pub(crate) fn add_group(&mut self, group: G) {
        let _line = self.queued(group);
    }

    fn queued(&mut self, group: G) -> &mut GroupQueue<S> {
        let queue = self.queues.entry(group).or_insert_with(GroupQueue::new);
        if queue.state == GroupState::Idle {
            queue.state = GroupState::Queued;
            self.order.push_back(group);
        }
        queue
    }

    /// Removes the next group from the queue. The caller must serve the group, and then call
    /// [`RoundRobin::put_back`] or [`RoundRobin::set_aside`].
    pub(crate) fn next_group(&mut self) -> Option<G> {
        let group = self.order.pop_front()?;
        if let Some(queue) = self.queues.get_mut(&group) {
            queue.state = GroupState::Served;
        }
        Some(group)
    }

    /// Removes the next stream from the queue of a group.
    pub(crate) fn next_stream(&mut self, group: G) -> Option<S> {
        self.queues.get_mut(&group)?.streams.pop_front()
    }

    /// Puts a group that was served at the end of the queue. Does nothing if the group has no more
    /// streams.
    pub(crate) fn put_back(&mut self, group: G) {
        let Some(queue) = self.queues.get_mut(&group) else { return };
        if !queue.streams.is_empty() {
            queue.state = GroupState::Queued;
            self.order.push_back(group);
        } else if queue.is_open {
            queue.state = GroupState::Idle;
        } else {
            self.queues.remove(&group);
        }
    }

    /// Sets a group aside until [`RoundRobin::wake`], because the engine has no room for it. A
    /// stream that could not be served stays first in the queue of the group.
    pub(crate) fn set_aside(&mut self, group: G, stream: Option<S>) {
        let Some(queue) = self.queues.get_mut(&group) else { return };
        queue.state = GroupState::Aside;
        if let Some(stream) = stream {
            queue.streams.push_front(stream);
        }
    }

    /// Queues a group that was set aside, because the engine may have room for it again.
    #[inline]
    pub(crate) fn wake(&mut self, group: G) {
        let Some(queue) = self.queues.get_mut(&group) else { return };
        if queue.state == GroupState::Aside {
            queue.state = GroupState::Queued;
            self.order.push_back(group);
        }
    }

    /// Returns true if no group waits to be served.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl<S> GroupQueue<S> {
    const fn new() -> Self {
        Self { streams: VecDeque::new(), state: GroupState::Idle, is_open: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Serves one stream of the next group.
    fn serve(round_robin: &mut RoundRobin<u8, u32>) -> Option<(u8, Option<u32>)> {
        let group = round_robin.next_group()?;
        let stream = round_robin.next_stream(group);
        round_robin.put_back(group);
        Some((group, stream))
    }

    #[test]
    fn a_group_of_many_streams_gets_no_more_turns_than_one_of_few() {
        let mut round_robin = RoundRobin::new();
        (0..1000).for_each(|stream| round_robin.add(1, stream));
        round_robin.add(2, 7);
        round_robin.add(2, 8);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut round_robin)).take(5).collect();
        let expected = [(1, 0), (2, 7), (1, 1), (2, 8), (1, 2)];
        assert_eq!(served, expected.map(|(group, stream)| (group, Some(stream))));
    }

    #[test]
    fn a_group_without_room_is_served_again_only_after_a_wake_up() {
        let mut round_robin = RoundRobin::new();
        round_robin.add(1, 5);
        round_robin.add(1, 6);
        let group = round_robin.next_group().expect("it has a turn");
        let stream = round_robin.next_stream(group);
        round_robin.set_aside(group, stream);
        round_robin.add(1, 7);
        round_robin.add_group(1);
        assert!(round_robin.is_empty() && serve(&mut round_robin).is_none());
        round_robin.wake(1);
        round_robin.wake(1);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut round_robin)).collect();
        assert_eq!(served, [5, 6, 7].map(|stream| (1, Some(stream))));
    }

    #[test]
    fn a_group_without_streams_gets_a_turn() {
        let mut round_robin = RoundRobin::new();
        round_robin.add_group(3);
        round_robin.add_group(3);
        assert_eq!((serve(&mut round_robin), serve(&mut round_robin)), (Some((3, None)), None));
    }

    #[test]
    fn streams_of_a_closed_group_get_their_turns() {
        let mut round_robin = RoundRobin::new();
        round_robin.open(1);
        round_robin.add(1, 5);
        let group = round_robin.next_group().expect("it has a turn");
        let stream = round_robin.next_stream(group);
        round_robin.set_aside(group, stream);
        round_robin.close(1);
        assert_eq!(serve(&mut round_robin), Some((1, Some(5))));
        round_robin.add(1, 6);
        assert_eq!(serve(&mut round_robin), Some((1, Some(6))));
        assert!(round_robin.queues.is_empty());
    }

    proptest! {
        /// Checks any sequence of steps. Each stream is served once for each time that it was
        /// added. Streams of one group are served in the order in which they were added. After all
        /// groups are woken, no group is left unserved.
        #[test]
        fn no_stream_is_lost_or_served_twice(
            steps in prop::collection::vec((0..6_u8, 0..4_u8), 0..200),
        ) {
            let mut round_robin = RoundRobin::new();
            let (mut next, mut queues) = (0, BTreeMap::<u8, VecDeque<u32>>::new());
            let check = |queues: &mut BTreeMap<u8, VecDeque<u32>>, served: Option<(u8, Option<u32>)>| {
                if let Some((group, Some(stream))) = served {
                    assert_eq!(queues.entry(group).or_default().pop_front(), Some(stream));
                }
            };
            for (step, group) in steps {
                match step {
                    0 => {
                        round_robin.add(group, next);
                        queues.entry(group).or_default().push_back(next);
                        next += 1;
                    }
                    1 => check(&mut queues, serve(&mut round_robin)),
                    2 => if let Some(group) = round_robin.next_group() {
                        let stream = round_robin.next_stream(group);
                        round_robin.set_aside(group, stream);
                    },
                    3 => round_robin.wake(group),
                    4 => round_robin.open(group),
                    _ => round_robin.close(group),
                }
            }
            (0..4).for_each(|group| round_robin.close(group));
            while let Some(served) = serve(&mut round_robin) {
                check(&mut queues, Some(served));
            }
            prop_assert!(queues.values().all(VecDeque::is_empty));
            prop_assert!(round_robin.queues.is_empty() && round_robin.order.is_empty());
        }
    }
}
