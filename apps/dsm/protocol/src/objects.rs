//! The objects that a node manages for all nodes: queues of locks, reader-writer locks, semaphores,
//! events, condition variables, barriers of some threads. An object is created by its first use and
//! begins unlocked, at zero or cleared.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::Clock;
use crate::identity::{Rank, ThreadNumber};
use crate::message::{Objection, Question};

/// A thread of a node that waits at an object.
pub(crate) type Waiter = (Rank, ThreadNumber);

/// One object.
#[derive(Debug)]
struct Object {
    kind: Kind,
    /// The notices that a thread must apply that passes the object: those of all releases.
    clock: Clock,
}

/// The state of an object.
#[derive(Debug)]
enum Kind {
    Lock { tail: Rank },
    ReadWrite { readers: u32, has_writer: bool, queue: VecDeque<(Waiter, bool)> },
    Semaphore { value: u64, queue: VecDeque<Waiter> },
    Event { is_set: bool, queue: VecDeque<Waiter> },
    Condition { queue: VecDeque<Waiter> },
    Barrier { count: u32, waiting: Vec<Waiter> },
}

/// Why a question was not handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    /// The program's fault, which the asking thread learns.
    Objection(Objection),
    /// The asking node's fault: it releases what it does not hold.
    NotHeld,
}

/// The objects of a manager, by address.
#[derive(Debug)]
pub(crate) struct Objects {
    nodes: usize,
    by_address: BTreeMap<u64, Object>,
}

impl Objects {
    /// Returns the objects of a manager of `nodes` nodes.
    pub(crate) const fn new(nodes: usize) -> Self {
        Self { nodes, by_address: BTreeMap::new() }
    }

    //= dsm-protocol.md: lock.2
    /// Appends a node to the queue of a lock. Returns the node that precedes it, or `None` if it is
    /// the first node that ever wanted the lock.
    pub(crate) fn queue(&mut self, address: u64, from: Rank) -> Result<Option<Rank>, Refusal> {
        let Some(object) = self.by_address.get_mut(&address) else {
            let object = Object { kind: Kind::Lock { tail: from }, clock: Clock::zero(self.nodes) };
            self.by_address.insert(address, object);
            return Ok(None);
        };
        let Kind::Lock { tail } = &mut object.kind else {
            return Err(Refusal::Objection(Objection::OtherKind));
        };
        if *tail == from {
            return Err(Refusal::NotHeld);
        }
        Ok(Some(std::mem::replace(tail, from)))
    }

    //= dsm-protocol.md: object.1
    /// Handles a question of a thread. Appends the waiters whose wait has ended to `woken`, and
    /// returns the clock of the object.
    pub(crate) fn ask(
        &mut self,
        address: u64,
        waiter: Waiter,
        question: Question,
        clock: &Clock,
        woken: &mut Vec<Waiter>,
    ) -> Result<&Clock, Refusal> {
        let nodes = self.nodes;
        let created = || Object { kind: Kind::of(question), clock: Clock::zero(nodes) };
        let object = self.by_address.entry(address).or_insert_with(created);
        object.kind.handle(waiter, question, woken)?;
        object.clock.merge(clock);
        Ok(&object.clock)
    }
}

impl Kind {
    /// Returns the initial state of the kind of object to which the question belongs.
    const fn of(question: Question) -> Self {
        match question {
            Question::Share | Question::Exclude | Question::Unshare | Question::Unexclude => {
                Self::ReadWrite { readers: 0, has_writer: false, queue: VecDeque::new() }
            }
            Question::Take | Question::Give(_) => {
                Self::Semaphore { value: 0, queue: VecDeque::new() }
            }
            Question::Await | Question::Set | Question::Clear => {
                Self::Event { is_set: false, queue: VecDeque::new() }
            }
            Question::Enqueue | Question::Signal | Question::Broadcast => {
                Self::Condition { queue: VecDeque::new() }
            }
            Question::Arrive(count) => Self::Barrier { count, waiting: Vec::new() },
        }
    }

    fn handle(
        &mut self,
        waiter: Waiter,
        question: Question,
        woken: &mut Vec<Waiter>,
    ) -> Result<(), Refusal> {
        match (self, question) {
            (Self::ReadWrite { readers, has_writer, queue }, question) => {
                match question {
                    Question::Share => queue.push_back((waiter, false)),
                    Question::Exclude => queue.push_back((waiter, true)),
                    Question::Unshare if *readers > 0 => *readers -= 1,
                    Question::Unexclude if *has_writer => *has_writer = false,
                    Question::Unshare | Question::Unexclude => return Err(Refusal::NotHeld),
                    _ => return Err(Refusal::Objection(Objection::OtherKind)),
                }
                admit(readers, has_writer, queue, woken);
            }
            (Self::Semaphore { value, queue }, Question::Take) => {
                if *value > 0 {
                    *value -= 1;
                    woken.push(waiter);
                } else {
                    queue.push_back(waiter);
                }
            }
            (Self::Semaphore { value, queue }, Question::Give(count)) => {
                let taken = queue.len().min(count as usize);
                woken.extend(queue.drain(..taken));
                *value = value.saturating_add(count as u64 - taken as u64);
            }
            (Self::Event { is_set, queue }, Question::Await) => {
                if *is_set {
                    woken.push(waiter);
                } else {
                    queue.push_back(waiter);
                }
            }
            (Self::Event { is_set, queue }, Question::Set) => {
                *is_set = true;
                woken.extend(queue.drain(..));
            }
            (Self::Event { is_set, .. }, Question::Clear) => *is_set = false,
            (Self::Condition { queue }, Question::Enqueue) => {
                queue.push_back(waiter);
                woken.push(waiter);
            }
            (Self::Condition { queue }, Question::Signal) => woken.extend(queue.pop_front()),
            (Self::Condition { queue }, Question::Broadcast) => woken.extend(queue.drain(..)),
            (Self::Barrier { count, waiting }, Question::Arrive(wanted)) => {
                if waiting.is_empty() {
                    *count = wanted;
                }
                if *count != wanted {
                    return Err(Refusal::Objection(Objection::OtherCount));
                }
                waiting.push(waiter);
                if waiting.len() >= wanted as usize {
                    woken.append(waiting);
                }
            }
            _ => return Err(Refusal::Objection(Objection::OtherKind)),
        }
        Ok(())
    }
}

/// Admits waiters of a reader-writer lock in their order: one writer, or all readers before the
/// next writer. So neither kind waits for ever.
fn admit(
    readers: &mut u32,
    has_writer: &mut bool,
    queue: &mut VecDeque<(Waiter, bool)>,
    woken: &mut Vec<Waiter>,
) {
    while let Some(&(waiter, is_writer)) = queue.front() {
        if *has_writer || is_writer && *readers > 0 {
            return;
        }
        queue.pop_front();
        woken.push(waiter);
        if is_writer {
            *has_writer = true;
        } else {
            *readers += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u64 = 8;

    fn thread(number: u16) -> Waiter {
        (Rank(0), ThreadNumber(number))
    }

    /// Returns the numbers of the threads that a question wakes.
    fn ask(objects: &mut Objects, number: u16, question: Question) -> Result<Vec<u16>, Refusal> {
        let mut woken = Vec::new();
        objects.ask(OBJECT, thread(number), question, &Clock::zero(1), &mut woken)?;
        Ok(woken.iter().map(|(_, thread)| thread.0).collect())
    }

    #[test]
    fn a_writer_waits_for_readers_and_later_readers_wait_for_the_writer() {
        let mut objects = Objects::new(1);
        assert_eq!(ask(&mut objects, 1, Question::Share), Ok(vec![1]));
        assert_eq!(ask(&mut objects, 2, Question::Exclude), Ok(vec![]));
        assert_eq!(ask(&mut objects, 3, Question::Share), Ok(vec![]));
        assert_eq!(ask(&mut objects, 4, Question::Share), Ok(vec![]));
        assert_eq!(ask(&mut objects, 1, Question::Unshare), Ok(vec![2]));
        assert_eq!(ask(&mut objects, 2, Question::Unexclude), Ok(vec![3, 4]));
        assert_eq!(ask(&mut objects, 2, Question::Unexclude), Err(Refusal::NotHeld));
    }

    #[test]
    fn a_semaphore_keeps_what_no_thread_waits_for() {
        let mut objects = Objects::new(1);
        assert_eq!(ask(&mut objects, 1, Question::Take), Ok(vec![]));
        assert_eq!(ask(&mut objects, 2, Question::Give(2)), Ok(vec![1]));
        assert_eq!(ask(&mut objects, 3, Question::Take), Ok(vec![3]));
        assert_eq!(ask(&mut objects, 3, Question::Take), Ok(vec![]));
    }

    #[test]
    fn an_event_stays_set_until_it_is_cleared() {
        let mut objects = Objects::new(1);
        assert_eq!(ask(&mut objects, 1, Question::Await), Ok(vec![]));
        assert_eq!(ask(&mut objects, 2, Question::Set), Ok(vec![1]));
        assert_eq!(ask(&mut objects, 3, Question::Await), Ok(vec![3]));
        assert_eq!(ask(&mut objects, 2, Question::Clear), Ok(vec![]));
        assert_eq!(ask(&mut objects, 3, Question::Await), Ok(vec![]));
    }

    #[test]
    fn a_condition_answers_that_a_thread_is_queued_and_forgets_signals_without_waiters() {
        let mut objects = Objects::new(1);
        assert_eq!(ask(&mut objects, 1, Question::Signal), Ok(vec![]));
        for number in [1, 2, 3] {
            assert_eq!(ask(&mut objects, number, Question::Enqueue), Ok(vec![number]));
        }
        assert_eq!(ask(&mut objects, 4, Question::Signal), Ok(vec![1]));
        assert_eq!(ask(&mut objects, 4, Question::Broadcast), Ok(vec![2, 3]));
    }

    #[test]
    fn a_barrier_refuses_another_count_and_can_be_used_again() {
        let mut objects = Objects::new(1);
        for _ in 0..2 {
            assert_eq!(ask(&mut objects, 1, Question::Arrive(2)), Ok(vec![]));
            let refusal = Refusal::Objection(Objection::OtherCount);
            assert_eq!(ask(&mut objects, 2, Question::Arrive(3)), Err(refusal));
            assert_eq!(ask(&mut objects, 2, Question::Arrive(2)), Ok(vec![1, 2]));
        }
    }

    //= dsm-protocol.md: object.1
    #[test]
    fn an_object_has_one_kind_and_the_clock_of_all_releases() {
        let mut objects = Objects::new(2);
        let mut woken = Vec::new();
        for (rank, position) in [(0, 3), (1, 4)] {
            let mut clock = Clock::zero(2);
            clock.raise(Rank(rank), position);
            let found = objects.ask(OBJECT, thread(1), Question::Give(1), &clock, &mut woken);
            assert_eq!(found.unwrap().of(Rank(rank)), position);
            assert_eq!(found.unwrap().of(Rank(0)), 3);
        }
        let refusal = Refusal::Objection(Objection::OtherKind);
        assert_eq!(ask(&mut objects, 1, Question::Share), Err(refusal));
        assert_eq!(objects.queue(OBJECT, Rank(0)), Err(refusal));
    }

    //= dsm-protocol.md: lock.2
    #[test]
    fn each_node_in_the_queue_of_a_lock_learns_of_the_next() {
        let mut objects = Objects::new(3);
        assert_eq!(objects.queue(OBJECT, Rank(1)), Ok(None));
        assert_eq!(objects.queue(OBJECT, Rank(1)), Err(Refusal::NotHeld));
        assert_eq!(objects.queue(OBJECT, Rank(2)), Ok(Some(Rank(1))));
        assert_eq!(objects.queue(OBJECT, Rank(0)), Ok(Some(Rank(2))));
    }
}
