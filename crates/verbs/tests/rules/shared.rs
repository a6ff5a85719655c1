//! Tests of shared receive queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{
    AsyncEventKind, CompletionStatus, Error, Provider, QueuePairInit, QueuePairState,
    QueuePairType, SharedReceiveQuery,
};

use crate::{Host, go, receive, results};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

#[test]
fn a_message_completes_its_shared_receive_at_its_own_queue_pair() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 2).expect("a queue");
    let queue = Some(Arc::clone(&shared));
    let init = QueuePairInit { shared_queue: queue, ..host.init(QueuePairType::Reliable) };
    let (one, other) = host.pair_of(&init);
    let pieces = [host.piece(0, 8), host.piece(64, 8)];
    shared.post(&[receive(70, &pieces), receive(71, &[])]).expect("receives");
    assert_eq!(one.limits().receives, 0);
    // `deliver` names a receive by its place in the shared queue. It is not specified whether
    // place 0 contains receive 70 or 71. So check only that each receive completes once.
    host.device.deliver(&one, 0, 12);
    host.device.deliver(&other, 1, 0);
    let found = host.poll();
    let mut ids = results(&found);
    ids.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(ids, [(70, SUCCESS), (71, SUCCESS)]);
    assert_eq!([found[0].queue_pair, found[1].queue_pair], [one.number(), other.number()]);
}

#[test]
fn a_receive_makes_room_when_its_completion_is_polled_or_purged() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(2, 1).expect("a queue");
    let queue = Some(Arc::clone(&shared));
    let init = QueuePairInit { shared_queue: queue, ..host.init(QueuePairType::Reliable) };
    let (one, _other) = host.pair_of(&init);
    let fill = || {
        let all = [receive(1, &[]), receive(2, &[]), receive(3, &[])];
        shared.post(&all).map_err(|(index, error)| (index, matches!(error, Error::NoRoom(_))))
    };
    assert_eq!(fill(), Err((2, true)));
    assert_eq!(shared.receives().len(), 2);
    host.device.deliver(&one, 0, 0);
    assert_eq!(fill(), Err((0, true)));
    go(&one, QueuePairState::Reset, 0);
    assert_eq!(host.poll(), []);
    // The wire (the transport) of this test delivers messages without taking receives from the
    // shared queue. So the queue is still full, although one receive was purged.
    assert_eq!(fill(), Err((0, true)));
    assert_eq!(one.destroy(), Ok(()));
}

#[test]
fn receives_are_posted_only_to_the_shared_queue() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    let queue = Some(Arc::clone(&shared));
    let init = QueuePairInit { shared_queue: queue, ..host.init(QueuePairType::Reliable) };
    let (one, _other) = host.pair_of(&init);
    assert!(matches!(one.post_receive(&[receive(1, &[])]), Err((0, Error::Invalid(_)))));
    let pieces = [host.piece(0, 1); 2];
    assert!(matches!(shared.post(&[receive(1, &pieces)]), Err((0, Error::Invalid(_)))));
    assert_eq!(
        host.device.receives_posted.load(Ordering::SeqCst),
        0,
        "a refused receive was posted"
    );
    let datagrams = QueuePairInit { service: QueuePairType::Datagram, ..init };
    let two = host.domain.create_queue_pair(&datagrams).expect("datagrams share as well");
    go(&two, QueuePairState::Init, 0);
    assert!(matches!(two.post_receive(&[receive(1, &[])]), Err((0, Error::Invalid(_)))));
}

#[test]
fn a_queue_reports_once_that_receives_fell_below_the_limit() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    shared.post(&[receive(1, &[]), receive(2, &[])]).expect("receives");
    assert_eq!(shared.set_limit(2), Ok(()));
    let query = |limit| Ok(SharedReceiveQuery { receives: 4, pieces: 1, limit });
    assert_eq!(shared.query(), query(2));
    assert!(!crate::events::is_readable(&host.context));
    host.device.registry().on_below_limit(shared.receives());
    host.device.registry().on_below_limit(shared.receives());
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::ReceiveLimitReached);
    host.context.acknowledge_event(&event);
    assert!(!crate::events::is_readable(&host.context));
    assert_eq!(shared.query(), query(0));
    assert_eq!(shared.set_limit(3), Ok(()), "the limit can exceed the number of receives");
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::ReceiveLimitReached);
    host.context.acknowledge_event(&event);
    assert!(matches!(shared.set_limit(5), Err(Error::Invalid(_))));
    assert_eq!(shared.destroy(), Ok(()));
}

#[test]
fn a_queue_pair_in_err_reports_that_it_consumes_no_more_receives() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    shared.post(&[receive(1, &[])]).expect("a receive");
    let queue = Some(Arc::clone(&shared));
    let init = QueuePairInit { shared_queue: queue, ..host.init(QueuePairType::Reliable) };
    let (one, _other) = host.pair_of(&init);
    go(&one, QueuePairState::Error, 0);
    go(&one, QueuePairState::Error, 0);
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::LastReceiveReached);
    host.context.acknowledge_event(&event);
    assert!(!crate::events::is_readable(&host.context));
    assert_eq!(host.poll(), [], "a receive of the shared queue was flushed");
}
