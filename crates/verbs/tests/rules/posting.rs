//! Tests of posting: which work the library accepts, and its effects.

use verbs::{
    AddressVector, AddressVectorAttributes, CompletionOpcode, CompletionStatus, Error,
    QueuePairInit, QueuePairLimits, QueuePairState, QueuePairType, ScatterGather, SendFlags,
    SendOpcode, SendRequest,
};

use crate::{Host, attributes, go, mask_of, modify, receive, results, send, unsignalled};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

#[test]
fn a_message_is_gathered_from_send_sges_and_scattered_to_receive_sges() {
    let host = Host::new();
    let (one, other) = host.pair();
    host.buffer.write(0, b"hello, world");
    let pieces = [host.piece(1000, 3), host.piece(2000, 100)];
    other.post_receive(&[receive(5, &pieces)]).expect("a receive");
    let pieces = [host.piece(0, 5), host.piece(5, 7)];
    let immediate = SendOpcode::Send { immediate: Some(9) };
    one.post_send(&[SendRequest { opcode: immediate, ..send(6, &pieces) }]).expect("a send");
    let mut found = host.poll();
    found.sort_by_key(|completion| completion.id);
    assert_eq!(results(&found), [(5, SUCCESS), (6, SUCCESS)]);
    assert_eq!((found[0].opcode, found[0].bytes), (CompletionOpcode::Receive, 12));
    assert_eq!((found[0].immediate, found[0].queue_pair), (Some(9), other.number()));
    assert_eq!((found[1].opcode, found[1].queue_pair), (CompletionOpcode::Send, one.number()));
    assert_eq!(host.bytes(1000, 3), b"hel");
    assert_eq!(host.bytes(2000, 9), b"lo, world");
}

#[test]
fn every_kind_of_work_has_its_completion() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (address, key) = (host.buffer.address() + 512, host.region.key());
    host.buffer.write(0, b"abcdefgh");
    host.buffer.store_u64(512, 40);
    let source = [host.piece(0, 8)];
    let sink = [host.piece(256, 8)];
    let kinds: [(SendOpcode, &[ScatterGather], CompletionOpcode); 5] = [
        (SendOpcode::FetchAdd { address, key, operand: 2 }, &sink, CompletionOpcode::FetchAdd),
        (
            SendOpcode::CompareSwap { address, key, compare: 42, swap: 7 },
            &sink,
            CompletionOpcode::CompareSwap,
        ),
        (SendOpcode::Write { address, key, immediate: None }, &source, CompletionOpcode::Write),
        (SendOpcode::Read { address, key }, &sink, CompletionOpcode::Read),
        (SendOpcode::Write { address, key, immediate: Some(3) }, &[], CompletionOpcode::Write),
    ];
    other.post_receive(&[receive(100, &[])]).expect("a receive");
    for (opcode, pieces, expected) in kinds {
        one.post_send(&[SendRequest { opcode, ..send(1, pieces) }]).expect("a send");
        let found = host.poll();
        let own: Vec<_> = found.iter().filter(|results| results.id == 1).collect();
        assert_eq!((own.len(), own[0].opcode, own[0].status), (1, expected, SUCCESS));
        let of_peer = found.iter().find(|results| results.id == 100);
        assert_eq!(
            of_peer.map(|results| (results.opcode, results.immediate)),
            matches!(opcode, SendOpcode::Write { immediate: Some(_), .. })
                .then_some((CompletionOpcode::ReceiveOfWrite, Some(3)))
        );
    }
    assert_eq!(host.bytes(256, 8), b"abcdefgh");
}

#[test]
fn sends_need_rts_and_receives_need_init() {
    let host = Host::new();
    let (one, other) =
        (host.queue_pair(QueuePairType::Reliable), host.queue_pair(QueuePairType::Reliable));
    let refused = |error| matches!(error, Err((0, Error::Invalid(_))));
    assert!(refused(one.post_receive(&[receive(1, &[])])));
    assert!(refused(one.post_send(&[send(1, &[])])));
    go(&one, QueuePairState::Init, other.number());
    assert_eq!(one.post_receive(&[receive(1, &[])]), Ok(()));
    assert!(refused(one.post_send(&[send(1, &[])])));
    go(&one, QueuePairState::ReadyToReceive, other.number());
    assert_eq!(one.post_receive(&[receive(2, &[])]), Ok(()));
    assert!(refused(one.post_send(&[send(1, &[])])));
    go(&one, QueuePairState::ReadyToSend, other.number());
    assert_eq!(one.post_send(&[send(1, &[])]), Ok(()));
}

#[test]
fn a_full_queue_accepts_a_list_up_to_the_first_request_that_does_not_fit() {
    let host = Host::new();
    let (one, other) = host.pair();
    let all: Vec<_> = (0..6).map(|id| send(id, &[])).collect();
    let Err((4, Error::NoRoom(_))) = one.post_send(&all) else { panic!("it has room for four") };
    let all: Vec<_> = (10..16).map(|id| receive(id, &[])).collect();
    let Err((4, Error::NoRoom(_))) = other.post_receive(&all) else { panic!("four") };
    assert_eq!(host.poll().len(), 8);
    // The place of a work request becomes free when the program polls its completion.
    assert_eq!(one.post_send(&[send(7, &[])]), Ok(()));
    assert_eq!(other.post_receive(&[receive(17, &[])]), Ok(()));
}

#[test]
fn unsignalled_work_is_complete_when_later_work_is_reported() {
    let host = Host::new();
    let (one, other) = host.pair();
    let pieces = [];
    other
        .post_receive(&[receive(1, &[]), receive(2, &[]), receive(3, &[]), receive(4, &[])])
        .expect("receives");
    for id in 0..3 {
        one.post_send(&[unsignalled(id, &pieces)]).expect("a send");
    }
    let receives = host.poll();
    assert_eq!(receives.len(), 3);
    one.post_send(&[send(3, &pieces)]).expect("the last that there is room for");
    assert!(matches!(one.post_send(&[send(4, &pieces)]), Err((0, Error::NoRoom(_)))));
    let found = host.poll();
    assert!(results(&found).contains(&(3, SUCCESS)));
    let four: Vec<_> = (4..8).map(|id| unsignalled(id, &pieces)).collect();
    assert_eq!(one.post_send(&four), Ok(()));
}

#[test]
fn a_queue_pair_can_be_made_so_that_every_send_is_signalled() {
    let host = Host::new();
    let init = QueuePairInit { signals_all: true, ..host.init(QueuePairType::Reliable) };
    let (one, other) = host.pair_of(&init);
    other.post_receive(&[receive(1, &[])]).expect("a receive");
    one.post_send(&[unsignalled(2, &[])]).expect("a send");
    assert_eq!(host.poll().len(), 2);
}

fn inline(bytes: &[u8]) -> SendRequest<'_> {
    SendRequest { inline: Some(bytes), ..send(3, &[]) }
}

#[test]
fn inline_bytes_are_copied_when_posted_and_limited_by_the_queue() {
    let host = Host::new();
    let (one, other) = host.pair();
    assert_eq!(one.limits().inline, 256);
    let pieces = [host.piece(1024, 256)];
    other.post_receive(&[receive(1, &pieces), receive(2, &pieces)]).expect("receives");
    let mut bytes = vec![7; 256];
    one.post_send(&[inline(&bytes)]).expect("a send");
    bytes.fill(8);
    assert_eq!(host.poll().len(), 2);
    assert_eq!(host.bytes(1024, 256), [7; 256]);
    let long = vec![0; 257];
    assert!(matches!(one.post_send(&[inline(&long)]), Err((0, Error::Invalid(_)))));
    one.post_send(&[inline(&[])]).expect("a send of nothing");
    assert_eq!(host.poll().iter().map(|results| results.bytes).sum::<u32>(), 0);
}

#[test]
fn more_sges_than_a_queue_was_created_for_are_refused() {
    let host = Host::new();
    let (one, other) = host.pair();
    let pieces = [host.piece(0, 1); 3];
    assert!(matches!(one.post_send(&[send(1, &pieces)]), Err((0, Error::Invalid(_)))));
    assert!(matches!(other.post_receive(&[receive(1, &pieces)]), Err((0, Error::Invalid(_)))));
}

#[test]
fn an_operation_unsupported_by_the_transport_is_refused_when_posted() {
    let host = Host::new();
    let (address, key) = (host.buffer.address(), host.region.key());
    let sink = [host.piece(0, 8)];
    let read = SendOpcode::Read { address, key };
    let add = SendOpcode::FetchAdd { address, key, operand: 1 };
    let swap = SendOpcode::CompareSwap { address, key, compare: 0, swap: 0 };
    let write = SendOpcode::Write { address, key, immediate: None };
    let invalidate = SendOpcode::SendInvalidate { key };
    let refused = |queue_pair: &verbs::QueuePair, opcode| {
        let to = AddressVector {
            to: AddressVectorAttributes::default(),
            destination: queue_pair.number(),
            queue_key: 0,
        };
        let request = SendRequest { opcode, to: Some(to), ..send(1, &sink) };
        matches!(queue_pair.post_send(&[request]), Err((0, Error::Invalid(_))))
    };
    let (unreliable, _other) = host.pair_of(&host.init(QueuePairType::Unreliable));
    assert!([read, add, swap].into_iter().all(|opcode| refused(&unreliable, opcode)));
    assert!(!refused(&unreliable, write));
    let datagrams = host.queue_pair(QueuePairType::Datagram);
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
    {
        go(&datagrams, state, 0);
    }
    let all = [read, add, swap, write, invalidate];
    assert!(all.into_iter().all(|opcode| refused(&datagrams, opcode)));
    // The queue pair must reject a datagram without a destination.
    assert!(matches!(datagrams.post_send(&[send(1, &sink)]), Err((0, Error::Invalid(_)))));
}

#[test]
fn the_result_of_an_atomic_has_eight_bytes() {
    let host = Host::new();
    let (one, _other) = host.pair();
    let (address, key) = (host.buffer.address(), host.region.key());
    let opcode = SendOpcode::FetchAdd { address, key, operand: 1 };
    let pieces = [host.piece(0, 4)];
    let request = SendRequest { opcode, ..send(1, &pieces) };
    assert!(matches!(one.post_send(&[request]), Err((0, Error::Invalid(_)))));
}

#[test]
fn a_datagram_arrives_with_its_sender_after_room_for_a_route_header() {
    let host = Host::new();
    let (one, other) =
        (host.queue_pair(QueuePairType::Datagram), host.queue_pair(QueuePairType::Datagram));
    for queue_pair in [&one, &other] {
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            go(queue_pair, state, 0);
        }
    }
    let room = [host.piece(1024, 60)];
    other.post_receive(&[receive(1, &room)]).expect("a receive");
    host.buffer.write(0, b"datagram");
    let pieces = [host.piece(0, 8)];
    let to = attributes(0).path;
    let to = AddressVector { to, destination: other.number(), queue_key: 0x1111 };
    let flags = SendFlags::default();
    one.post_send(&[SendRequest { to: Some(to), flags, ..send(2, &pieces) }]).expect("a send");
    let found = host.poll();
    assert_eq!(results(&found), [(1, SUCCESS)]);
    assert_eq!((found[0].bytes, found[0].source), (48, one.number()));
    assert!(found[0].has_route_header && found[0].invalidated.is_none());
    assert_eq!(host.bytes(1064, 8), b"datagram");
}

#[test]
fn work_added_but_not_posted_is_discarded() {
    let host = Host::new();
    let (one, other) = host.pair();
    let mut posting = one.begin_sends().expect("its turn");
    posting.add(&send(1, &[])).expect("a send");
    drop(posting);
    other.post_receive(&[receive(3, &[])]).expect("a receive");
    one.post_send(&[send(2, &[])]).expect("a send");
    let ids: Vec<u64> = host.poll().iter().map(|results| results.id).collect();
    assert!(ids.contains(&2) && !ids.contains(&1));
    let reset = mask_of(QueuePairType::Reliable, QueuePairState::Reset);
    modify(&one, QueuePairState::Reset, reset, attributes(0)).expect("a transition");
    assert!(one.begin_sends().is_err());
}

#[test]
fn a_queue_pair_of_size_zero_refuses_all_work() {
    let host = Host::new();
    let limits = QueuePairLimits::default();
    let init = QueuePairInit { limits, ..host.init(QueuePairType::Reliable) };
    let (one, other) = host.pair_of(&init);
    assert!(matches!(one.post_send(&[send(1, &[])]), Err((0, Error::NoRoom(_)))));
    assert!(matches!(other.post_receive(&[receive(1, &[])]), Err((0, Error::NoRoom(_)))));
}
