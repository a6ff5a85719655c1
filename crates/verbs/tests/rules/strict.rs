//! Tests of a strict device, which gives programs exactly the sizes that they ask for. The tests
//! compare it with a lenient device, which gives more if this costs nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{
    AddressVector, AsyncEventKind, CompletionQueue, CompletionStatus, Error, EventElement,
    QueuePair, QueuePairInit, QueuePairState, QueuePairType, SendRequest, Strictness,
};

use crate::loopback::Loopback;
use crate::{Host, attributes, go, poll, receive, results, send, unsignalled};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

const BOTH: [Strictness; 2] = [Strictness::Lenient, Strictness::Strict];

fn host(strictness: Strictness) -> Host {
    Host::on(Loopback::with(|attributes| attributes.strictness = strictness))
}

/// Creates two connected queue pairs; sends of the first complete in a queue of `entries` entries.
fn pair(host: &Host, entries: u32) -> (Arc<CompletionQueue>, Arc<QueuePair>, Arc<QueuePair>) {
    let queue = host.context.create_completion_queue(entries, None).expect("a queue");
    assert_eq!(queue.entries(), entries);
    let init = host.init(QueuePairType::Reliable);
    let of_queue = QueuePairInit { send_queue: Arc::clone(&queue), ..init.clone() };
    let one = host.domain.create_queue_pair(&of_queue).expect("a queue pair");
    let other = host.domain.create_queue_pair(&init).expect("a queue pair");
    crate::connect(&one, &other);
    (queue, one, other)
}

/// Sends a message from `one` to `other` and polls the completion of the receive.
fn message(host: &Host, one: &QueuePair, other: &QueuePair, id: u64) {
    other.post_receive(&[receive(id, &[])]).expect("a receive");
    one.post_send(&[send(id, &[])]).expect("a send");
    host.poll();
}

/// Reads and acknowledges `count` events and returns their kinds.
fn events(host: &Host, count: usize) -> Vec<AsyncEventKind> {
    let found = (0..count).map(|_| {
        let event = host.context.get_event().expect("an event");
        host.context.acknowledge_event(&event);
        event.kind
    });
    found.collect()
}

#[test]
fn the_first_completion_beyond_the_depth_fails_the_queue_and_all_its_queue_pairs() {
    for strictness in BOTH {
        let host = host(strictness);
        let (queue, one, other) = pair(&host, 2);
        let beside =
            QueuePairInit { send_queue: Arc::clone(&queue), ..host.init(QueuePairType::Reliable) };
        let (beside, of_beside) = host.pair_of(&beside);
        for id in 0..2 {
            message(&host, &one, &other, id);
        }
        assert!(!queue.work().is_overrun());
        message(&host, &one, &other, 2);
        if strictness == Strictness::Lenient {
            assert_eq!(results(&poll(&queue)), [(0, SUCCESS), (1, SUCCESS), (2, SUCCESS)]);
            continue;
        }
        assert_eq!(one.state(), QueuePairState::Error);
        assert_eq!(beside.state(), QueuePairState::Error);
        let event = host.context.get_event().expect("an event");
        assert_eq!(event.kind, AsyncEventKind::CompletionQueueError);
        assert!(
            matches!(&event.element, EventElement::CompletionQueue(of) if Arc::ptr_eq(of, &queue))
        );
        host.context.acknowledge_event(&event);
        // The device raises one event for each queue pair that is attached to the queue.
        let fatal = AsyncEventKind::QueuePairFatal;
        assert_eq!(events(&host, 3), [fatal; 3]);
        // The program can poll the earlier completions, but no further completions arrive.
        assert_eq!(results(&poll(&queue)), [(0, SUCCESS), (1, SUCCESS)]);
        for queue_pair in [&one, &other, &beside, &of_beside] {
            queue_pair.destroy().expect("it is there");
        }
        queue.destroy().expect("nothing uses it");
    }
}

#[test]
fn polled_completions_make_room() {
    let host = host(Strictness::Strict);
    let (queue, one, other) = pair(&host, 1);
    for id in 0..9 {
        message(&host, &one, &other, id);
        assert_eq!(results(&poll(&queue)), [(id, SUCCESS)]);
    }
    queue.resize(3).expect("a size");
    for id in 0..3 {
        message(&host, &one, &other, id);
    }
    assert_eq!(poll(&queue).len(), 3);
}

#[test]
fn unsignalled_work_takes_no_completion_slot() {
    let host = host(Strictness::Strict);
    let (queue, one, other) = pair(&host, 1);
    for _ in 0..3 {
        other.post_receive(&[receive(1, &[])]).expect("a receive");
        one.post_send(&[unsignalled(1, &[])]).expect("a send");
        host.poll();
    }
    message(&host, &one, &other, 2);
    assert_eq!(results(&poll(&queue)), [(2, SUCCESS)]);
}

#[test]
fn flushed_work_takes_completion_slots_like_successful_work() {
    for strictness in BOTH {
        let host = host(strictness);
        let (queue, one, _other) = pair(&host, 3);
        host.device.holds.store(true, Ordering::SeqCst);
        for id in 0..4 {
            one.post_send(&[unsignalled(id, &[])]).expect("a send");
        }
        host.poll();
        go(&one, QueuePairState::Error, 0);
        let found = poll(&queue).len();
        if strictness == Strictness::Lenient {
            assert_eq!(found, 4);
            continue;
        }
        assert_eq!((found, queue.work().is_overrun()), (0, true));
        assert_eq!(events(&host, 1), [AsyncEventKind::CompletionQueueError]);
    }
}

#[test]
fn exactly_the_requested_inline_bytes_are_accepted() {
    for strictness in BOTH {
        let host = host(strictness);
        let mut init = host.init(QueuePairType::Reliable);
        init.limits.inline = 12;
        let (one, _other) = host.pair_of(&init);
        let inline = |bytes| SendRequest { inline: Some(bytes), ..send(1, &[]) };
        assert_eq!(one.post_send(&[inline(&[7; 12])]), Ok(()));
        let beyond = one.post_send(&[inline(&[7; 13])]);
        if strictness == Strictness::Lenient {
            assert_eq!((one.limits().inline, beyond), (256, Ok(())));
        } else {
            assert!(matches!(beyond, Err((0, Error::Invalid(_)))));
            assert_eq!(one.limits().inline, 12);
        }
    }
}

#[test]
fn unsignalled_datagrams_hold_their_slots_until_a_signalled_one_is_polled() {
    for strictness in BOTH {
        let host = host(strictness);
        let one = host.queue_pair(QueuePairType::Datagram);
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            go(&one, state, 0);
        }
        let destination = one.number();
        let to = AddressVector { to: attributes(0).path, destination, queue_key: 0x1111 };
        let post = |request: SendRequest<'_>| {
            let posted = one.post_send(&[SendRequest { to: Some(to), ..request }]);
            host.poll();
            posted
        };
        for id in 0..3 {
            assert_eq!(post(unsignalled(id, &[])), Ok(()));
        }
        assert_eq!(post(unsignalled(3, &[])), Ok(()));
        let beyond = post(send(4, &[]));
        if strictness == Strictness::Lenient {
            assert_eq!(beyond, Ok(()));
            continue;
        }
        // On a strict device, unsignalled sends occupy their places until a signalled send
        // completes. All places are occupied by unsignalled sends here, so none becomes free.
        assert!(matches!(beyond, Err((0, Error::NoRoom(_)))));
        let host = self::host(strictness);
        let one = host.queue_pair(QueuePairType::Datagram);
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            go(&one, state, 0);
        }
        let to = AddressVector { destination: one.number(), ..to };
        for id in 0..12 {
            let is_last = id % 4 == 3;
            let request = if is_last { send(id, &[]) } else { unsignalled(id, &[]) };
            one.post_send(&[SendRequest { to: Some(to), ..request }]).expect("there is room");
            assert_eq!(host.poll().len(), usize::from(is_last));
        }
    }
}
