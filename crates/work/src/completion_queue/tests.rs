//! Tests on one thread. They compare a queue with a model, which stores the completions in a list.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::completion::Owner;
use crate::completion_kind::CompletionKind;
use crate::error::OperationError;

const NOTE: Completion = Completion {
    context: 0,
    owner: Owner::new(0, 0),
    kind: CompletionKind::Notification,
    result: Ok(()),
    bytes: 0,
    immediate: None,
    solicited: false,
    value: 0,
};

const fn numbered(context: u64) -> Completion {
    Completion { context, value: !context, ..NOTE }
}

#[test]
fn a_queue_belongs_to_one_endpoint() {
    let queue = CompletionQueue::new(1);
    assert!(!queue.is_foreign_to(7));
    assert!(queue.claim(7) && queue.claim(7) && !queue.claim(8));
    assert!(!queue.is_foreign_to(7) && queue.is_foreign_to(8));
}

#[test]
fn a_reserved_slot_is_given_to_no_other() {
    let queue = CompletionQueue::new(2);
    assert!(queue.promise());
    assert_eq!(queue.offer(&NOTE), Push::Added);
    assert_eq!(queue.offer(&NOTE), Push::NoRoom);
    assert!(!queue.is_overrun());
    assert_eq!(queue.keep_promise(&numbered(7)), Push::Added);
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.poll().map(|found| found.context), Some(0));
    assert_eq!(queue.offer(&NOTE), Push::Added);
}

#[test]
fn a_queue_is_overrun_by_the_first_completion_beyond_its_depth() {
    let queue = CompletionQueue::new(64).with_depth(2, |completion| completion.context > 0);
    let push = |context| queue.push(&numbered(context));
    assert_eq!([push(0), push(1), push(0), push(2), push(0)], [Push::Added; 5]);
    assert_eq!([queue.poll(), queue.poll()], [Some(numbered(0)), Some(numbered(1))]);
    // One of the polled completions still counts, because the program has not received it yet.
    queue.set_kept(1);
    queue.set_depth(3);
    assert_eq!((push(3), queue.is_overrun()), (Push::Added, false));
    queue.set_kept(0);
    assert_eq!((push(4), push(5), queue.is_overrun()), (Push::Added, Push::NoRoom, true));
    assert_eq!(push(0), Push::NoRoom);
    let left: Vec<_> = core::iter::from_fn(|| queue.poll()).map(|found| found.context).collect();
    assert_eq!(left, [0, 2, 0, 3, 4]);
}

#[test]
fn completions_have_the_time_of_their_insertion() {
    static NOW_NS: AtomicU64 = AtomicU64::new(0);
    let queue = CompletionQueue::new(4).with_clock(|| NOW_NS.load(Relaxed));
    // The low bits of the time wrap around between the two completions.
    let times = [(1 << 45) - 7, (1 << 45) + 5];
    for (context, at_ns) in (1..).zip(times) {
        NOW_NS.store(at_ns, Relaxed);
        assert_eq!(queue.push(&numbered(context)), Push::Added);
    }
    NOW_NS.store(times[1] + (1 << 44), Relaxed);
    let found = [queue.poll_stamped(), queue.poll_stamped()];
    assert_eq!(found, [Some((numbered(1), times[0])), Some((numbered(2), times[1]))]);
    let plain = CompletionQueue::new(1);
    assert_eq!(plain.push(&NOTE), Push::Added);
    assert_eq!((plain.now_ns(), plain.poll_stamped()), (None, Some((NOTE, 0))));
}

#[test]
fn a_queue_of_a_million_takes_no_memory_before_the_first_completion() {
    let queue = CompletionQueue::new(1 << 20);
    assert!(queue.bytes() <= 4 << 10, "{} bytes", queue.bytes());
    println!("figure: memory of a queue of a million: {}", queue.bytes());
    let _ = queue.push(&NOTE);
    assert!(queue.bytes() <= 64 << 10, "{} bytes", queue.bytes());
}

#[test]
fn a_queue_reuses_its_memory_for_the_same_number_of_completions() {
    let queue = CompletionQueue::new(1 << 16);
    let turn = |count: u64| {
        (0..count).for_each(|context| assert_eq!(queue.push(&numbered(context)), Push::Added));
        (0..count).for_each(|context| assert_eq!(queue.poll(), Some(numbered(context))));
    };
    // Fill and empty the queue until each slot of the last ring was used.
    (0..8).for_each(|_| turn(3000));
    let taken = queue.bytes();
    assert!(taken < 4 * 3000 * 64, "{taken} bytes");
    (0..50).for_each(|_| turn(3000));
    assert_eq!(queue.bytes(), taken);
}

#[test]
fn an_overrun_queue_returns_its_completions_and_accepts_no_more() {
    let queue = CompletionQueue::new(2);
    assert_eq!(queue.push(&numbered(1)), Push::Added);
    assert_eq!(queue.push(&numbered(2)), Push::Added);
    assert_eq!(queue.push(&numbered(3)), Push::NoRoom);
    assert!(queue.is_overrun());
    assert_eq!(queue.poll(), Some(numbered(1)));
    assert_eq!(queue.push(&numbered(4)), Push::NoRoom);
    assert_eq!(queue.offer(&numbered(4)), Push::NoRoom);
    assert!(!queue.promise());
    assert_eq!(queue.poll(), Some(numbered(2)));
    assert_eq!(queue.poll(), None);
}

#[test]
fn an_armed_queue_fires_once() {
    let queue = CompletionQueue::with_events(8);
    assert_eq!(queue.push(&NOTE), Push::Added);
    assert!(queue.arm(Arm::Next));
    assert_eq!(queue.push(&NOTE), Push::Fired);
    assert_eq!(queue.push(&NOTE), Push::Added);
}

#[test]
fn a_wait_for_a_solicited_completion_ignores_others_but_failures() {
    let queue = CompletionQueue::with_events(8);
    let failed = Completion { result: Err(OperationError::Flushed), ..NOTE };
    let solicited = Completion { solicited: true, ..NOTE };
    for wanted in [solicited, failed] {
        assert!(queue.arm(Arm::Solicited));
        assert_eq!(queue.push(&NOTE), Push::Added);
        assert_eq!(queue.push(&wanted), Push::Fired);
    }
}

#[test]
fn a_queue_has_solicited_completions_until_the_last_of_them_is_polled() {
    let queue = CompletionQueue::with_events(8);
    let failed = Completion { result: Err(OperationError::Flushed), ..NOTE };
    for wanted in [Completion { solicited: true, ..NOTE }, failed] {
        assert_eq!(queue.push(&NOTE), Push::Added);
        assert!(!queue.has_solicited());
        for added in [wanted, NOTE] {
            assert_eq!(queue.push(&added), Push::Added);
        }
        for _ in 0..2 {
            assert!(queue.has_solicited());
            assert!(queue.poll().is_some());
        }
        assert!(!queue.has_solicited());
        assert!(queue.poll().is_some());
    }
}

#[test]
fn arming_for_solicited_completions_keeps_an_arming_for_any() {
    let queue = CompletionQueue::with_events(8);
    assert!(queue.arm(Arm::Next) && queue.arm(Arm::Solicited));
    assert_eq!(queue.push(&NOTE), Push::Fired);
}

#[test]
fn a_queue_without_events_cannot_be_armed() {
    let queue = CompletionQueue::new(8);
    assert!(!queue.arm(Arm::Next));
    assert_eq!(queue.push(&NOTE), Push::Added);
}

#[derive(Clone, Debug)]
enum Step {
    Push(u16),
    Offer,
    Promise,
    Keep,
    Withdraw,
    Poll(u16),
    Resize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..400_u16).prop_map(Step::Push),
        Just(Step::Offer),
        Just(Step::Promise),
        Just(Step::Keep),
        Just(Step::Withdraw),
        (1..600_u16).prop_map(Step::Poll),
        prop_oneof![0..8_usize, 0..3000_usize].prop_map(Step::Resize),
    ]
}

/// A model of a queue, without threads and without rings.
struct Model {
    list: VecDeque<Completion>,
    capacity: usize,
    promised: usize,
    overrun: bool,
}

impl Model {
    fn has_room(&self) -> bool {
        !self.overrun && self.list.len() + self.promised < self.capacity
    }
}

proptest! {
    #[test]
    fn a_queue_behaves_like_a_list(
        capacity in prop_oneof![1..8_usize, 1..3000_usize],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let queue = CompletionQueue::new(capacity);
        let mut model =
            Model { list: VecDeque::new(), capacity, promised: 0, overrun: false };
        let mut next = 0;
        for step in steps {
            match step {
                Step::Push(count) => {
                    // Push beyond the capacity in few cases only, because after that the queue is
                    // overrun and accepts no more completions.
                    for _ in 0..count {
                        let fits = model.has_room();
                        if !fits && count % 16 > 0 {
                            break;
                        }
                        model.overrun |= !fits;
                        let pushed = queue.push(&numbered(next));
                        prop_assert_eq!(pushed, if fits { Push::Added } else { Push::NoRoom });
                        if fits {
                            model.list.push_back(numbered(next));
                        }
                        next += 1;
                    }
                }
                Step::Offer => {
                    let fits = model.has_room();
                    let offered = queue.offer(&numbered(next));
                    prop_assert_eq!(offered, if fits { Push::Added } else { Push::NoRoom });
                    if fits {
                        model.list.push_back(numbered(next));
                    }
                    next += 1;
                }
                Step::Promise => {
                    let fits = model.has_room();
                    prop_assert_eq!(queue.promise(), fits);
                    model.promised += usize::from(fits);
                }
                Step::Keep if model.promised > 0 => {
                    prop_assert_eq!(queue.keep_promise(&numbered(next)), Push::Added);
                    model.list.push_back(numbered(next));
                    model.promised -= 1;
                    next += 1;
                }
                Step::Withdraw if model.promised > 0 => {
                    queue.withdraw();
                    model.promised -= 1;
                }
                Step::Keep | Step::Withdraw => {}
                Step::Poll(count) => {
                    for _ in 0..count {
                        prop_assert_eq!(queue.poll(), model.list.pop_front());
                    }
                }
                Step::Resize(capacity) => {
                    let held = model.list.len() + model.promised;
                    let fits = capacity >= held.max(1);
                    let refused = Err(ResizeError::TooSmall { capacity, held });
                    prop_assert_eq!(queue.resize(capacity), if fits { Ok(()) } else { refused });
                    if fits {
                        model.capacity = capacity;
                    }
                }
            }
            prop_assert_eq!(queue.len(), model.list.len());
            prop_assert_eq!(queue.capacity(), model.capacity);
            prop_assert_eq!(queue.is_overrun(), model.overrun);
        }
        prop_assert!(queue.len() <= queue.capacity());
        prop_assert!(queue.poll() == model.list.pop_front());
    }
}

#[test]
fn a_queue_cannot_be_larger_than_the_limit() {
    let queue = CompletionQueue::new(usize::MAX);
    assert_eq!(queue.capacity(), COMPLETIONS_MAX);
    let wanted = COMPLETIONS_MAX + 1;
    assert_eq!(queue.resize(wanted), Err(ResizeError::TooLarge(wanted)));
}
