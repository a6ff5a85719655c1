//! Whose turn it is to post: link groups one after the other, and the streams of a group one after the other.
//!
//! One queue of all streams would give a group with a thousand streams a thousand turns for one of another group, and
//! would try each of its streams again in vain while its peer takes nothing. So each group has a line of its streams, a
//! group that has been served goes behind the others, and one for which the engine has no room is set aside until it is
//! [woken](Turns::wake).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Groups `G` that wait for their turn, and the streams `S` of each.
#[derive(Debug)]
pub(crate) struct Turns<G, S> {
    lines: HashMap<G, Line<S>>,
    /// The groups whose place is [`Place::InTurn`], each once.
    order: VecDeque<G>,
}

#[derive(Debug)]
struct Line<S> {
    streams: VecDeque<S>,
    place: Place,
    /// The group exists: its line stays when it is empty, so that a stream that wants a turn again allocates nothing.
    is_open: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// Nothing of it wants a turn.
    Idle,
    /// Among those that have a turn.
    InTurn,
    /// It is being served.
    Served,
    /// The engine has no room for what it has.
    Aside,
}

impl<G: Copy + Eq + Hash, S> Turns<G, S> {
    pub(crate) fn new() -> Self {
        Self { lines: HashMap::new(), order: VecDeque::new() }
    }

    /// There is such a group from now on.
    pub(crate) fn open(&mut self, group: G) {
        self.lines.entry(group).or_insert_with(Line::new).is_open = true;
    }

    /// There is no such group any more. Its streams have their turns, as they have to be closed.
    pub(crate) fn close(&mut self, group: G) {
        let Some(line) = self.lines.get_mut(&group) else { return };
        line.is_open = false;
        if line.place == Place::Idle {
            self.lines.remove(&group);
        } else {
            self.wake(group);
        }
    }

    /// Puts a stream behind the others of its group. The caller adds no stream twice.
    pub(crate) fn add(&mut self, group: G, stream: S) {
        self.in_turn(group).streams.push_back(stream);
    }

    /// Gives the group a turn, although no stream of it may want one: it has messages that wait.
    pub(crate) fn add_group(&mut self, group: G) {
        let _line = self.in_turn(group);
    }

    fn in_turn(&mut self, group: G) -> &mut Line<S> {
        let line = self.lines.entry(group).or_insert_with(Line::new);
        if line.place == Place::Idle {
            line.place = Place::InTurn;
            self.order.push_back(group);
        }
        line
    }

    /// The group that has its turn now. Afterwards the caller calls [`Turns::put_back`] or [`Turns::set_aside`].
    pub(crate) fn next_group(&mut self) -> Option<G> {
        let group = self.order.pop_front()?;
        if let Some(line) = self.lines.get_mut(&group) {
            line.place = Place::Served;
        }
        Some(group)
    }

    /// The stream of a group that has its turn now.
    pub(crate) fn next_stream(&mut self, group: G) -> Option<S> {
        self.lines.get_mut(&group)?.streams.pop_front()
    }

    /// The group was served: if it has more streams, it has another turn behind the other groups.
    pub(crate) fn put_back(&mut self, group: G) {
        let Some(line) = self.lines.get_mut(&group) else { return };
        if !line.streams.is_empty() {
            line.place = Place::InTurn;
            self.order.push_back(group);
        } else if line.is_open {
            line.place = Place::Idle;
        } else {
            self.lines.remove(&group);
        }
    }

    /// The engine has no room for the group: it has no turn before it is woken. A stream that could not be served keeps
    /// its place in the line.
    pub(crate) fn set_aside(&mut self, group: G, stream: Option<S>) {
        let Some(line) = self.lines.get_mut(&group) else { return };
        line.place = Place::Aside;
        if let Some(stream) = stream {
            line.streams.push_front(stream);
        }
    }

    /// There may be room for the group again.
    #[inline]
    pub(crate) fn wake(&mut self, group: G) {
        let Some(line) = self.lines.get_mut(&group) else { return };
        if line.place == Place::Aside {
            line.place = Place::InTurn;
            self.order.push_back(group);
        }
    }

    /// Whether no group has a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl<S> Line<S> {
    const fn new() -> Self {
        Self { streams: VecDeque::new(), place: Place::Idle, is_open: false }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Serves one stream of the next group.
    fn serve(turns: &mut Turns<u8, u32>) -> Option<(u8, Option<u32>)> {
        let group = turns.next_group()?;
        let stream = turns.next_stream(group);
        turns.put_back(group);
        Some((group, stream))
    }

    #[test]
    fn a_group_of_many_streams_takes_no_more_turns_than_one_of_few() {
        let mut turns = Turns::new();
        (0..1000).for_each(|stream| turns.add(1, stream));
        turns.add(2, 7);
        turns.add(2, 8);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut turns)).take(5).collect();
        let expected = [(1, 0), (2, 7), (1, 1), (2, 8), (1, 2)];
        assert_eq!(served, expected.map(|(group, stream)| (group, Some(stream))));
    }

    #[test]
    fn a_group_without_room_is_asked_again_only_when_it_is_woken() {
        let mut turns = Turns::new();
        turns.add(1, 5);
        turns.add(1, 6);
        let group = turns.next_group().expect("it has a turn");
        let stream = turns.next_stream(group);
        turns.set_aside(group, stream);
        turns.add(1, 7);
        turns.add_group(1);
        assert!(turns.is_empty() && serve(&mut turns).is_none());
        turns.wake(1);
        turns.wake(1);
        let served: Vec<_> = std::iter::from_fn(|| serve(&mut turns)).collect();
        assert_eq!(served, [5, 6, 7].map(|stream| (1, Some(stream))));
    }

    #[test]
    fn a_group_has_a_turn_without_streams() {
        let mut turns = Turns::new();
        turns.add_group(3);
        turns.add_group(3);
        assert_eq!((serve(&mut turns), serve(&mut turns)), (Some((3, None)), None));
    }

    #[test]
    fn streams_of_a_closed_group_have_their_turns() {
        let mut turns = Turns::new();
        turns.open(1);
        turns.add(1, 5);
        let group = turns.next_group().expect("it has a turn");
        let stream = turns.next_stream(group);
        turns.set_aside(group, stream);
        turns.close(1);
        assert_eq!(serve(&mut turns), Some((1, Some(5))));
        turns.add(1, 6);
        assert_eq!(serve(&mut turns), Some((1, Some(6))));
        assert!(turns.lines.is_empty());
    }

    proptest! {
        /// Whatever is added, set aside and woken: each stream has one turn for each time that it was added, those of a
        /// group in their order, and no group stays behind when all were woken.
        #[test]
        fn no_stream_is_lost_or_served_twice(
            steps in prop::collection::vec((0..6_u8, 0..4_u8), 0..200),
        ) {
            let mut turns = Turns::new();
            let (mut next, mut lines) = (0, BTreeMap::<u8, VecDeque<u32>>::new());
            let check = |lines: &mut BTreeMap<u8, VecDeque<u32>>, served: Option<(u8, Option<u32>)>| {
                if let Some((group, Some(stream))) = served {
                    assert_eq!(lines.entry(group).or_default().pop_front(), Some(stream));
                }
            };
            for (step, group) in steps {
                match step {
                    0 => {
                        turns.add(group, next);
                        lines.entry(group).or_default().push_back(next);
                        next += 1;
                    }
                    1 => check(&mut lines, serve(&mut turns)),
                    2 => if let Some(group) = turns.next_group() {
                        let stream = turns.next_stream(group);
                        turns.set_aside(group, stream);
                    },
                    3 => turns.wake(group),
                    4 => turns.open(group),
                    _ => turns.close(group),
                }
            }
            (0..4).for_each(|group| turns.close(group));
            while let Some(served) = serve(&mut turns) {
                check(&mut lines, Some(served));
            }
            prop_assert!(lines.values().all(VecDeque::is_empty));
            prop_assert!(turns.lines.is_empty() && turns.order.is_empty());
        }
    }
}
