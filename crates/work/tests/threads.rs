//! Several threads use one completion queue. The models that run under loom cover every
//! interleaving of threads, but only for a few steps. These tests run many steps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use work::{Completion, CompletionKind, CompletionQueue, Owner, Push};

const fn numbered(context: u64) -> Completion {
    Completion {
        context,
        owner: Owner::new(0, 0),
        kind: CompletionKind::Notification,
        result: Ok(()),
        bytes: 0,
        immediate: None,
        solicited: false,
        value: !context,
    }
}

#[test]
fn threads_polling_a_queue_get_each_completion_once_and_whole() {
    const COUNT: u64 = 20_000;
    let queue = Arc::new(CompletionQueue::new(1 << 12));
    let has_ended = Arc::new(AtomicBool::new(false));
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let (queue, has_ended) = (Arc::clone(&queue), Arc::clone(&has_ended));
            thread::spawn(move || {
                let mut taken = Vec::new();
                loop {
                    let was_over = has_ended.load(Acquire);
                    match queue.poll() {
                        Some(found) => {
                            assert_eq!(found, numbered(found.context));
                            taken.push(found.context);
                        }
                        None if was_over => return taken,
                        None => thread::yield_now(),
                    }
                }
            })
        })
        .collect();
    for context in 0..COUNT {
        while queue.offer(&numbered(context)) == Push::NoRoom {
            thread::yield_now();
        }
    }
    has_ended.store(true, Release);
    let mut taken = Vec::new();
    for taker in takers {
        let own = taker.join().expect("no panic");
        assert!(own.is_sorted(), "each takes in order");
        taken.extend(own);
    }
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..COUNT));
}
