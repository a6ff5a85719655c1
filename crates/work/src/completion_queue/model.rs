//! Models threads that use one queue, in every interleaving:
//!
//! ```sh
//! ./x loom
//! ```
//!
//! In this model, a ring allocates its slots one by one, and the first ring has one slot. With
//! `--cfg loom_mutation` in RUSTFLAGS, the filling thread checks without a fence whether the queue
//! is armed. In that case, `a_thread_that_arms_an_empty_queue_is_woken` must fail.

use loom::sync::Arc;
use loom::thread as modelled;

use super::*;
use crate::completion::Owner;
use crate::completion_kind::CompletionKind;

const fn numbered(context: u64) -> Completion {
    Completion {
        context,
        owner: Owner::new(0, 0),
        kind: CompletionKind::Write,
        result: Ok(()),
        bytes: 0,
        immediate: None,
        solicited: false,
        value: !context,
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Polls `times` times and returns the contexts of the completions.
fn take(queue: &CompletionQueue, times: usize) -> Vec<u64> {
    let found: Vec<_> = (0..times).filter_map(|_| queue.poll()).collect();
    assert!(found.iter().all(|found| *found == numbered(found.context)), "a torn completion");
    found.iter().map(|found| found.context).collect()
}

#[test]
fn two_pollers_get_each_completion_once_across_rings() {
    check(2, || {
        let queue = Arc::new(CompletionQueue::new(4));
        let takers = [(); 2].map(|()| {
            let queue = Arc::clone(&queue);
            modelled::spawn(move || take(&queue, 1))
        });
        // The first ring has one slot, so the second completion goes to a second ring.
        for context in 0..2 {
            assert_eq!(queue.push(&numbered(context)), Push::Added);
        }
        let mut taken: Vec<_> =
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        taken.extend(take(&queue, 2));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
    });
}

#[test]
fn a_slot_is_reused_only_after_its_completion_is_taken() {
    check(3, || {
        let queue = Arc::new(CompletionQueue::new(1));
        let taker = {
            let queue = Arc::clone(&queue);
            modelled::spawn(move || take(&queue, 2))
        };
        let added = (0..3)
            .filter(|&context| queue.offer(&numbered(context)) == Push::Added)
            .collect::<Vec<_>>();
        let mut taken = taker.join().unwrap();
        taken.extend(take(&queue, 2));
        assert_eq!(taken, added);
    });
}

#[test]
fn a_thread_that_arms_an_empty_queue_is_woken() {
    check(3, || {
        let queue = Arc::new(CompletionQueue::with_events(2));
        let waiter = {
            let queue = Arc::clone(&queue);
            modelled::spawn(move || {
                assert!(queue.arm(Arm::Next));
                queue.poll().is_some()
            })
        };
        let fired = queue.push(&numbered(0)) == Push::Fired;
        let found = waiter.join().unwrap();
        assert!(found || fired, "the waiter sleeps for ever");
    });
}

#[test]
fn a_thread_that_arms_and_sees_no_solicited_completion_is_woken() {
    check(3, || {
        let queue = Arc::new(CompletionQueue::with_events(2));
        let waiter = {
            let queue = Arc::clone(&queue);
            modelled::spawn(move || {
                assert!(queue.arm(Arm::Solicited));
                queue.has_solicited()
            })
        };
        let fired = queue.push(&Completion { solicited: true, ..numbered(0) }) == Push::Fired;
        let found = waiter.join().unwrap();
        assert!(found || fired, "the waiter sleeps for ever");
    });
}

#[test]
fn one_completion_wakes_at_most_once() {
    check(3, || {
        let queue = Arc::new(CompletionQueue::with_events(2));
        let waiter = {
            let queue = Arc::clone(&queue);
            modelled::spawn(move || assert!(queue.arm(Arm::Next)))
        };
        let fired = (0..2).filter(|&context| queue.push(&numbered(context)) == Push::Fired).count();
        waiter.join().unwrap();
        assert!(fired <= 1);
    });
}
