//! Tests of failures, flushes and lost peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{
    AccessFlags, AddressVector, AsyncEventKind, AttributeMask, CompletionStatus, Ending, Error,
    QueuePair, QueuePairInit, QueuePairState, QueuePairType, SendOpcode, SendRequest,
};
use work::OperationError;

use crate::{Host, attributes, go, poll, receive, results, send, unsignalled};

const SUCCESS: CompletionStatus = CompletionStatus::Success;
const FLUSHED: CompletionStatus = CompletionStatus::Flushed;
const LOST: CompletionStatus = CompletionStatus::TransportRetryExceeded;

/// Returns two connected queue pairs. Their wire (the transport) takes sends but does not complete
/// them.
fn held(host: &Host) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let pair = host.pair();
    host.device.holds.store(true, Ordering::SeqCst);
    pair
}

#[test]
fn work_is_flushed_in_posting_order_in_the_err_state() {
    let host = Host::new();
    let (one, _other) = held(&host);
    one.post_receive(&[receive(10, &[]), receive(11, &[])]).expect("receives");
    one.post_send(&[send(1, &[]), unsignalled(2, &[])]).expect("sends");
    assert_eq!(host.poll(), []);
    one.post_send(&[send(3, &[])]).expect("one that the wire has not taken");
    go(&one, QueuePairState::Error, 0);
    let found = results(&host.poll());
    let of = |range: std::ops::Range<u64>| {
        found.iter().copied().filter(|(id, _)| range.contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(of(1..4), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    assert_eq!(of(10..12), [(10, FLUSHED), (11, FLUSHED)]);
    assert_eq!(found.len(), 5);
}

#[test]
fn work_posted_in_the_err_state_is_flushed() {
    let host = Host::new();
    let (one, _other) = host.pair();
    go(&one, QueuePairState::Error, 0);
    assert_eq!(host.poll(), []);
    for _ in 0..3 {
        one.post_send(&[send(1, &[])]).expect("a send");
        assert_eq!(results(&host.poll()), [(1, FLUSHED)]);
        one.post_receive(&[receive(2, &[])]).expect("a receive");
        assert_eq!(results(&host.poll()), [(2, FLUSHED)]);
    }
}

#[test]
fn flushes_of_many_queue_pairs_wait_for_room() {
    let host = Host::new();
    let pairs: Vec<_> = (0..3).map(|_| host.pair()).collect();
    for (index, (one, _other)) in pairs.iter().enumerate() {
        go(one, QueuePairState::Error, 0);
        let all: Vec<_> = (0..4).map(|id| send(10 * index as u64 + id, &[])).collect();
        one.post_send(&all).expect("sends");
    }
    let ids: Vec<u64> = host.poll().iter().map(|results| results.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]);
    assert_eq!(host.poll(), []);
}

#[test]
fn work_performed_before_a_flush_completes_successfully() {
    let host = Host::new();
    let (one, _other) = held(&host);
    one.post_send(&[unsignalled(1, &[]), send(2, &[]), unsignalled(3, &[]), send(4, &[])])
        .expect("sends");
    assert_eq!(host.poll(), []);
    host.device.end(&one, 3, Ending::OperationFailed, OperationError::Flushed);
    assert_eq!(results(&host.poll()), [(2, SUCCESS), (4, FLUSHED)]);
    assert_eq!(one.state(), QueuePairState::Error);
}

#[test]
fn a_failed_send_reports_the_reason_and_later_sends_are_flushed() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (address, key) = (host.buffer.address(), host.region.key());
    let pieces = [host.piece(0, 8)];
    let write = |id, key| {
        let opcode = SendOpcode::Write { address, key, immediate: None };
        SendRequest { opcode, ..unsignalled(id, &pieces) }
    };
    other.post_receive(&[receive(10, &[])]).expect("a receive");
    one.post_receive(&[receive(11, &[])]).expect("a receive");
    one.post_send(&[write(1, key), write(2, key ^ 1), write(3, key), write(4, key)])
        .expect("sends");
    let found = results(&host.poll());
    assert!(found.contains(&(2, CompletionStatus::RemoteAccess)));
    assert!(found.contains(&(3, FLUSHED)) && found.contains(&(4, FLUSHED)));
    assert!(found.contains(&(11, FLUSHED)), "in ERR the receives are flushed as well");
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(one.state(), QueuePairState::Error);
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (short, long) = ([host.piece(0, 4)], [host.piece(8, 8)]);
    other.post_receive(&[receive(1, &short), receive(2, &[])]).expect("receives");
    one.post_send(&[send(3, &long)]).expect("a send");
    let mut found = results(&host.poll());
    found.sort_unstable_by_key(|(id, _)| *id);
    let expected = [
        (1, CompletionStatus::LocalLength),
        (2, FLUSHED),
        (3, CompletionStatus::RemoteInvalidRequest),
    ];
    assert_eq!(found, expected);
    assert_eq!((one.state(), other.state()), (QueuePairState::Error, QueuePairState::Error));
}

#[test]
fn local_keys_are_checked_in_posting_order() {
    let host = Host::new();
    let (one, other) = host.pair();
    other.post_receive(&[receive(1, &[])]).expect("a receive");
    let wrong = [verbs::ScatterGather { key: host.region.key() ^ 1, ..host.piece(0, 8) }];
    one.post_send(&[send(2, &[]), send(3, &wrong), send(4, &[])]).expect("they are posted");
    let found = results(&host.poll());
    let own: Vec<_> = found.into_iter().filter(|(id, _)| *id > 1).collect();
    assert_eq!(own, [(2, SUCCESS), (3, CompletionStatus::LocalProtection), (4, FLUSHED)]);
}

#[test]
fn a_closed_peer_without_pending_work_leaves_the_queue_pair_unchanged() {
    let host = Host::new();
    let (one, other) = host.pair();
    other.post_receive(&[receive(1, &[])]).expect("a receive");
    one.post_send(&[unsignalled(2, &[])]).expect("a send");
    assert_eq!(results(&host.poll()), [(1, SUCCESS)]);
    one.post_receive(&[receive(3, &[])]).expect("a receive");
    other.destroy().expect("nothing uses it");
    assert_eq!(host.poll(), [], "receives stay");
    assert_eq!(one.query().expect("what it is like").state, QueuePairState::ReadyToSend);
    // The loss of the peer becomes an error when a send is posted after the loss.
    one.post_send(&[send(4, &[]), send(5, &[])]).expect("sends");
    assert_eq!(results(&host.poll()), [(4, LOST), (5, FLUSHED), (3, FLUSHED)]);
    assert_eq!(one.state(), QueuePairState::Error);
}

#[test]
fn a_closed_peer_fails_the_oldest_pending_work() {
    for ending in [Ending::ByPeer, Ending::Unreachable] {
        let host = Host::new();
        let (one, _other) = held(&host);
        one.post_receive(&[receive(10, &[])]).expect("a receive");
        one.post_send(&[unsignalled(1, &[]), unsignalled(2, &[]), send(3, &[])]).expect("sends");
        assert_eq!(host.poll(), []);
        host.device.end(&one, 1, ending, OperationError::Unreachable);
        assert_eq!(results(&host.poll()), [(2, LOST), (3, FLUSHED), (10, FLUSHED)]);
        assert_eq!(one.state(), QueuePairState::Error);
    }
}

#[test]
fn a_program_that_polls_only_receives_detects_a_closed_peer() {
    let host = Host::new();
    let receives = host.context.create_completion_queue(16, None).expect("a queue");
    let init = QueuePairInit {
        receive_queue: Arc::clone(&receives),
        ..host.init(QueuePairType::Reliable)
    };
    let (one, _other) = host.pair_of(&init);
    host.device.holds.store(true, Ordering::SeqCst);
    one.post_receive(&[receive(10, &[])]).expect("a receive");
    one.post_send(&[send(1, &[])]).expect("a send");
    assert_eq!(poll(&receives), []);
    host.device.end(&one, 0, Ending::ByPeer, OperationError::ClosedByPeer);
    assert_eq!(results(&poll(&receives)), [(10, FLUSHED)]);
    assert_eq!(results(&host.poll()), [(1, LOST)]);
}

#[test]
fn a_query_reports_a_closed_peer_without_polling() {
    let host = Host::new();
    let (one, _other) = held(&host);
    one.post_send(&[send(1, &[])]).expect("a send");
    assert_eq!(host.poll(), []);
    host.device.end(&one, 0, Ending::Unreachable, OperationError::Unreachable);
    assert_eq!(one.query().expect("what it is like").state, QueuePairState::Error);
    assert_eq!(results(&host.poll()), [(1, LOST)]);
}

#[test]
fn a_reset_purges_only_unpolled_completions_of_its_queue_pair() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (three, four) = host.pair();
    for (from, to) in [(&one, &other), (&three, &four)] {
        to.post_receive(&[receive(1, &[])]).expect("a receive");
        from.post_send(&[send(2, &[])]).expect("a send");
    }
    let mut none = [];
    assert_eq!(host.queue.poll(&mut none), Ok(0), "a poll without room returned completions");
    go(&one, QueuePairState::Reset, 0);
    let found = host.poll();
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|results| results.queue_pair != one.number()));
    let query = one.query().expect("what it is like");
    assert_eq!(query.attributes, verbs::QueuePairAttributes::default());
}

#[test]
fn a_queue_pair_works_again_after_a_reset() {
    let host = Host::new();
    let (one, other) = host.pair();
    for round in 0..3 {
        one.post_receive(&[receive(9, &[]), receive(9, &[])]).expect("receives that nothing meets");
        for queue_pair in [&one, &other] {
            go(queue_pair, QueuePairState::Error, 0);
            queue_pair.post_send(&[send(8, &[])]).expect("a send that is flushed");
            go(queue_pair, QueuePairState::Reset, 0);
        }
        assert_eq!(host.poll(), []);
        crate::connect(&one, &other);
        other.post_receive(&[receive(round, &[])]).expect("a receive");
        one.post_send(&[send(10 + round, &[])]).expect("a send");
        let mut found = results(&host.poll());
        found.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(found, [(round, SUCCESS), (10 + round, SUCCESS)]);
    }
}

#[test]
fn a_destroyed_queue_pair_reports_no_completions() {
    let host = Host::new();
    let (one, other) = host.pair();
    other.post_receive(&[receive(1, &[])]).expect("a receive");
    one.post_send(&[send(2, &[])]).expect("a send");
    let mut none = [];
    assert_eq!(host.queue.poll(&mut none), Ok(0));
    assert_eq!((one.destroy(), other.destroy()), (Ok(()), Ok(())));
    assert!(matches!(one.destroy(), Err(Error::Invalid(_))));
    assert_eq!(host.poll(), []);
    assert!(!host.device.is_in_use());
    assert_eq!(host.queue.destroy(), Ok(()));
}

#[test]
fn a_failed_datagram_stops_later_sends_but_no_receives() {
    let host = Host::new();
    let one = host.queue_pair(QueuePairType::Datagram);
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
    {
        go(&one, state, 0);
    }
    let room = [host.piece(1024, 64)];
    one.post_receive(&[receive(10, &room)]).expect("a receive");
    let wrong = [verbs::ScatterGather { key: host.region.key() ^ 1, ..host.piece(0, 8) }];
    let to =
        Some(AddressVector { to: attributes(0).path, destination: one.number(), queue_key: 0 });
    one.post_send(&[SendRequest { to, ..send(1, &wrong) }]).expect("it is posted");
    assert_eq!(results(&host.poll()), [(1, CompletionStatus::LocalProtection)]);
    assert_eq!(one.state(), QueuePairState::SendQueueError);
    one.post_send(&[SendRequest { to, ..send(2, &[]) }]).expect("it is posted");
    assert_eq!(results(&host.poll()), [(2, FLUSHED)]);
    let mask = AttributeMask::STATE;
    crate::modify(&one, QueuePairState::ReadyToSend, mask, attributes(0)).expect("a transition");
    one.post_send(&[SendRequest { to, ..send(3, &[]) }]).expect("it is posted");
    let mut found = results(&host.poll());
    found.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(found, [(3, SUCCESS), (10, SUCCESS)]);
}

#[test]
fn a_send_that_the_wire_refuses_fails_in_order() {
    let host = Host::new();
    let one = host.queue_pair(QueuePairType::Datagram);
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
    {
        go(&one, state, 0);
    }
    let to =
        Some(AddressVector { to: attributes(0).path, destination: one.number(), queue_key: 0 });
    let all = [1, 2, 3].map(|id| SendRequest { to, ..send(id, &[]) });
    one.post_send(&all).expect("they are posted");
    one.send_failed(one.next_send().expect("a send"), CompletionStatus::LocalLength);
    assert!(one.next_send().is_none());
    one.on_drained();
    let expected = [(1, CompletionStatus::LocalLength), (2, FLUSHED), (3, FLUSHED)];
    assert_eq!(results(&host.poll()), expected);
}

#[test]
fn a_protocol_violation_of_the_peer_raises_an_event_and_flushes_all_work() {
    let host = Host::new();
    let (one, _other) = held(&host);
    one.post_send(&[send(1, &[])]).expect("a send");
    assert_eq!(host.poll(), []);
    host.device.end(&one, 0, Ending::PeerMisbehaved, OperationError::ProtocolViolation);
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::RequestError);
    host.context.acknowledge_event(&event);
    assert_eq!(results(&host.poll()), [(1, FLUSHED)]);
}

#[test]
fn concurrent_posting_polling_and_ending_reports_each_work_request_once() {
    for _ in 0..50 {
        let host = Host::new();
        let (one, _other) = host.pair();
        let posted = std::thread::scope(|scope| {
            let posting = scope.spawn(|| {
                let mut posted = 0;
                while posted < 4 && one.post_send(&[send(posted, &[])]).is_ok() {
                    posted += 1;
                }
                posted
            });
            scope.spawn(|| go(&one, QueuePairState::Error, 0));
            posting.join().expect("no panic")
        });
        let ids: Vec<u64> = host.poll().iter().map(|results| results.id).collect();
        assert_eq!(ids, (0..posted).collect::<Vec<_>>());
    }
}

#[test]
fn windows_and_regions_need_only_the_requested_rights() {
    let host = Host::new();
    let address = host.buffer.address();
    let plain = host.domain.register(address as usize, 8, address, AccessFlags::default());
    let plain = plain.expect("a region to send from");
    let (one, other) = host.pair();
    let pieces = [verbs::ScatterGather { address, length: 8, key: plain.key() }];
    let opcode = SendOpcode::Write { address, key: plain.key(), immediate: None };
    one.post_send(&[SendRequest { opcode, ..send(1, &pieces) }]).expect("a send");
    assert_eq!(results(&host.poll()), [(1, CompletionStatus::RemoteAccess)]);
    drop(other);
}

#[test]
fn reordered_datagrams_complete_in_posting_order() {
    let host = Host::new();
    let init = QueuePairInit { signals_all: false, ..host.init(QueuePairType::Datagram) };
    let one = host.domain.create_queue_pair(&init).expect("a queue pair");
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
    {
        go(&one, state, 0);
    }
    let to =
        Some(AddressVector { to: attributes(0).path, destination: one.number(), queue_key: 0 });
    let datagram = |id| SendRequest { to, ..send(id, &[]) };
    let quiet = SendRequest { to, ..unsignalled(2, &[]) };
    one.post_send(&[datagram(1), quiet, datagram(3), datagram(4)]).expect("they are posted");
    for _ in 0..4 {
        assert!(
            one.next_send().expect("a send").flags().signalled,
            "a send of a datagram is not signalled"
        );
        one.send_taken();
    }
    host.device.complete(&one, 2);
    assert_eq!(host.poll(), []);
    host.device.complete(&one, 1);
    assert_eq!(host.poll(), []);
    host.device.complete(&one, 0);
    assert_eq!(results(&host.poll()), [(1, SUCCESS), (3, SUCCESS)]);
    // The wire (the transport) has not completed the last send, so the send is flushed.
    go(&one, QueuePairState::Error, 0);
    assert_eq!(results(&host.poll()), [(4, FLUSHED)]);
}

#[test]
fn a_denied_access_of_the_peer_raises_an_event() {
    let host = Host::new();
    let (one, _other) = host.pair();
    host.device.end(&one, 0, Ending::AccessRefused, OperationError::Flushed);
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::AccessError);
    host.context.acknowledge_event(&event);
    assert_eq!(one.state(), QueuePairState::Error);
}

#[test]
fn the_end_of_a_stream_flushes_all_work_and_raises_no_event() {
    let host = Host::new();
    let (one, _other) = host.pair();
    one.post_receive(&[receive(1, &[host.piece(0, 8)])]).expect("it is posted");
    host.device.end(&one, 0, Ending::Flushed, OperationError::Flushed);
    assert_eq!(results(&host.poll()), [(1, CompletionStatus::Flushed)]);
    assert_eq!(one.state(), QueuePairState::Error);
    one.post_send(&[send(2, &[host.piece(0, 8)])]).expect("it is posted");
    assert_eq!(results(&host.poll()), [(2, CompletionStatus::Flushed)]);
    let flag = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(host.context.event_descriptor(), flag).expect("a flag");
    assert_eq!(host.context.get_event().map(|_| ()), Err(Error::Again));
}
