//! Tests of the times of completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs::{CompletionStatus, QueuePairInit, QueuePairState, QueuePairType};

use crate::{Host, go, poll, receive, send};

/// Clock of the stamped queue, in nanoseconds.
static NOW_NS: AtomicU64 = AtomicU64::new(0);

fn clock() -> u64 {
    NOW_NS.load(Ordering::SeqCst)
}

#[test]
fn completions_report_their_arrival_time_and_flushed_work_its_polling_time() {
    let host = Host::new();
    let queue = host.context.create_stamped_completion_queue(8, None, clock).expect("a queue");
    let send_queue = Arc::clone(&queue);
    let init = QueuePairInit { send_queue, ..host.init(QueuePairType::Reliable) };
    let (one, other) = host.pair_of(&init);
    for (id, at_ns) in [(1, 1 << 50), (2, (1 << 50) + 70)] {
        NOW_NS.store(at_ns, Ordering::SeqCst);
        other.post_receive(&[receive(id, &[])]).expect("a receive");
        one.post_send(&[send(id, &[])]).expect("a send");
        // This poll of another queue, which has no clock, drives the device, so that the completion
        // arrives now.
        assert!(host.poll().iter().all(|completion| completion.at_ns == 0));
    }
    NOW_NS.store((1 << 50) + 900, Ordering::SeqCst);
    let times: Vec<_> =
        poll(&queue).iter().map(|completion| (completion.id, completion.at_ns)).collect();
    assert_eq!(times, [(1, 1 << 50), (2, (1 << 50) + 70)]);
    one.post_send(&[send(3, &[])]).expect("a send");
    go(&one, QueuePairState::Error, 0);
    let flushed = poll(&queue);
    assert_eq!(flushed.len(), 1);
    assert_eq!((flushed[0].status, flushed[0].at_ns), (CompletionStatus::Flushed, (1 << 50) + 900));
}
