//! Tests of the rules for the requester of a queue pair.

use wire_edge::{CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{
    Config, Pair, Side, assert_completed_in_order, flags, operation, remote, source, write,
};
use work::CompletionStatus;

use crate::pools::PoolUse;
use work::{
    AccessFault, Completion, CompletionKind, Operation, OperationError, OperationFlags, Order,
    Owner, PostError, Queues, Request, Source,
};

const PLAIN: OperationFlags = flags(Order::Strict);

pub(super) fn queue_pairs(seed: u64) -> Pair {
    let config = Config { promises: false, queue_pair: true, ..Config::default() };
    Pair::new(config, seed)
}

fn send(pair: &Pair, index: usize, length: u32) -> Operation {
    operation(Request::Send { source: source(pair, index, length) }, index, length, PLAIN)
}

/// Reports to a side what its peer has done. The peer has delivered all operations before
/// `delivered` and posted receives for all messages before `credit`.
pub(super) fn acknowledge(side: &mut Side, delivered: u32, credit: u32) {
    let (delivered, credit) = (OperationNumber(delivered), MessageNumber(credit));
    assert!(side.outbound.on_delivered(&mut side.pools, delivered, credit));
}

/// Returns the numbers of the operations whose fragments a side sends now.
pub(super) fn sends_of(side: &mut Side) -> Vec<u32> {
    let mut numbers = Vec::new();
    while let Some(fragment) = side.fragment(333) {
        numbers.push(fragment.carried.number.0);
    }
    numbers.dedup();
    numbers
}

#[test]
fn credits_are_granted_messages_minus_posted_messages() {
    let mut pair = queue_pairs(1);
    let message = send(&pair, 0, 8);
    let side = &mut pair.sides[0];
    let before = side.outbound.credits();
    acknowledge(side, 0, before + 2);
    assert_eq!(side.outbound.credits(), before + 2);
    side.post(&message).unwrap();
    assert_eq!(side.outbound.credits(), before + 1);
    for _ in 0..before + 4 {
        side.post(&message).unwrap();
    }
    assert_eq!(side.outbound.credits(), 0, "those that wait have none to spare");
}

//= protocol.md: queue-pair.1
#[test]
fn a_write_with_an_immediate_waits_for_a_receive_and_consumes_a_message_number() {
    let mut pair = queue_pairs(1);
    let mut noted = write(&pair, 0, 0, 8, PLAIN);
    noted.immediate = Some(7);
    let operations = [noted, write(&pair, 1, 0, 8, PLAIN), send(&pair, 2, 8), noted];
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), []);
    acknowledge(side, 0, 1);
    assert_eq!(sends_of(side), [0, 1]);
    acknowledge(side, 0, 2);
    let fragment = side.fragment(333).expect("there is a receive");
    let Header::Send { message, .. } = fragment.header else { panic!("{fragment:?}") };
    assert_eq!(message, MessageNumber(1));
    assert_eq!(sends_of(side), []);
    acknowledge(side, 0, 3);
    assert_eq!(sends_of(side), [3]);
}

//= protocol.md: notify.1
#[test]
fn a_write_with_an_immediate_consumes_no_receive_without_a_queue_pair() {
    let mut pair = Pair::new(Config::default(), 1);
    let mut noted = write(&pair, 0, 0, 8, PLAIN);
    noted.immediate = Some(7);
    let operations = [noted, send(&pair, 1, 8)];
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), [0]);
    acknowledge(side, 0, 1);
    assert_eq!(sends_of(side), [1]);
}

//= protocol.md: queue-pair.1
#[test]
fn a_queue_pair_keeps_its_message_count_after_compression() {
    let mut pair = queue_pairs(1);
    let mut noted = write(&pair, 0, 0, 8, PLAIN);
    noted.immediate = Some(7);
    let side = &mut pair.sides[0];
    side.post(&noted).unwrap();
    acknowledge(side, 0, 1);
    assert_eq!(sends_of(side), [0]);
    acknowledge(side, 1, 1);
    let queues = Queues { promises: false, ..std::sync::Arc::clone(&side.queue).into() };
    side.outbound = side.outbound.rest().wake(Owner::new(7, 1), &queues);
    side.post(&noted).unwrap();
    assert_eq!(sends_of(side), []);
    acknowledge(side, 1, 2);
    assert_eq!(sends_of(side), [1]);
}

//= protocol.md: queue-pair.1, consume.1
#[test]
fn both_ends_count_the_messages_of_sends_and_writes_alike() {
    for seed in 0..200 {
        let mut pair = queue_pairs(seed);
        let length = |i: usize| if i % 5 == 3 { 0 } else { 1 + (i * 37 % 450) as u32 };
        let is_send = |i: usize| (i as u64 ^ seed).is_multiple_of(3);
        let has_immediate = |i: usize| (i as u64 ^ seed >> 3).is_multiple_of(2);
        let mut messages = Vec::new();
        for i in 0..20 {
            let mut operation = if is_send(i) {
                send(&pair, i, length(i))
            } else {
                write(&pair, i, 7000, length(i), PLAIN)
            };
            operation.immediate = has_immediate(i).then_some(i as u32);
            if is_send(i) || has_immediate(i) {
                messages.push((length(i), operation.immediate, !is_send(i)));
            }
            pair.sides[0].post(&operation).unwrap();
        }
        let (mut posted, mut steps) = (0, 0);
        while !pair.is_idle() {
            if posted < messages.len() as u64 && pair.random.chance(5) {
                pair.sides[1].post_receive(posted % 13 * 500, 500, posted).unwrap();
                posted += 1;
            }
            pair.step(&mut |_| {});
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
        pair.poll();
        assert_completed_in_order(&pair, 20);
        let reported = |found: &Completion| (found.bytes, found.immediate, found.is_of_write());
        let completions = &pair.sides[1].completions;
        assert_eq!(completions.iter().map(reported).collect::<Vec<_>>(), messages, "seed {seed}");
        assert_eq!(pair.in_use(), [PoolUse::default(); 2]);
    }
}

//= protocol.md: close.4, queue-pair.6
#[test]
fn a_close_completes_delivered_operations_then_the_faulty_one_then_the_others() {
    let mut pair = queue_pairs(1);
    let operations = [0, 1, 2, 3].map(|index| send(&pair, index, 8));
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    acknowledge(side, 0, 4);
    assert_eq!(sends_of(side), [0, 1, 2, 3]);
    acknowledge(side, 2, 4);
    let at_fault = (OperationNumber(2), side.outbound.error_of_close(CloseReason::MessageTooLong));
    let others = OperationError::EndedByPeer;
    side.outbound.flush(&mut side.pools, others, Some(at_fault));
    side.poll();
    let statuses: Vec<_> = side.completions.iter().map(Completion::status).collect();
    let (success, flushed) = (CompletionStatus::Success, CompletionStatus::Flushed);
    assert_eq!(statuses, [success, success, CompletionStatus::RemoteInvalidRequest, flushed]);
}

//= protocol.md: queue-pair.6
#[test]
fn receive_faults_map_to_sender_errors_of_a_queue_pair() {
    let [queue_pair, plain] = [true, false].map(|queue_pair| {
        let side = Side::new(&Config { queue_pair, ..Config::default() }, 1);
        [CloseReason::MessageTooLong, CloseReason::LocalMemoryGone, CloseReason::UnknownKey]
            .map(|reason| side.outbound.error_of_close(reason))
    });
    let key = OperationError::RemoteAccess(AccessFault::Key);
    let [too_long, gone] = [OperationError::RemoteInvalidRequest, OperationError::RemoteOperation];
    assert_eq!(queue_pair, [too_long, gone, key]);
    assert_eq!(plain, [OperationError::MessageTooLong, OperationError::Flushed, key]);
}

//= protocol.md: send-invalidate.1
#[test]
fn the_tail_of_a_send_with_invalidate_carries_the_key_within_its_frame() {
    for length in [0, 1, 112, 113, 116, 117, 400_u32] {
        let mut pair = queue_pairs(1);
        let key = RemoteKey(0x1234_5678);
        let request = Request::SendInvalidate { source: source(&pair, 1, length), key };
        let mut invalidate = operation(request, 0, length, PLAIN);
        // The frame has no field for an immediate, so the request ignores this value.
        invalidate.immediate = Some(9);
        let side = &mut pair.sides[0];
        side.post(&invalidate).unwrap();
        acknowledge(side, 0, 1);
        let mut sent = 0;
        while let Some(fragment) = side.fragment(128) {
            let Header::SendInvalidate { operation, offset, message, key: invalidated } =
                fragment.header
            else {
                panic!("{fragment:?}")
            };
            assert_eq!((operation, message), (OperationNumber(0), MessageNumber(0)));
            assert_eq!(offset, sent);
            let is_last = fragment.flags.contains(Flags::LAST);
            assert_eq!(invalidated, is_last.then_some(key));
            let header_bytes = if is_last { 16 } else { 12 };
            assert!(header_bytes + fragment.carried.length <= 128);
            sent += u32::from(fragment.carried.length);
        }
        assert_eq!(sent, length);
        acknowledge(side, 1, 1);
        side.poll();
        let found = side.completions[0];
        assert_eq!((found.kind, found.bytes), (CompletionKind::Send, length));
    }
}

#[test]
fn a_key_is_not_invalidated_without_a_queue_pair() {
    let mut pair = Pair::new(Config::default(), 1);
    let source = Source::Inline([0; 64]);
    let request = Request::SendInvalidate { source, key: remote(&pair, 0).0 };
    let invalidate = operation(request, 0, 8, PLAIN);
    assert_eq!(pair.sides[0].post(&invalidate), Err(PostError::QueuePairOnly));
}

#[test]
fn lost_fragments_of_the_next_operation_in_order_are_retransmitted_first() {
    let mut pair = queue_pairs(1);
    let operations: Vec<_> = (0..4).map(|index| write(&pair, index, 0, 8, PLAIN)).collect();
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    let fragments: Vec<_> = core::iter::from_fn(|| side.fragment(333)).collect();
    acknowledge(side, 1, 0);
    for lost in [3, 2, 1] {
        side.outbound.on_lost(&mut side.pools, fragments[lost].carried);
    }
    assert_eq!(sends_of(side), [1, 3, 2]);
}

//= protocol.md: again.2
#[test]
fn a_fragment_of_the_next_operation_in_order_is_preferred_wherever_it_waits() {
    for queue_pair in [false, true] {
        let mut pair = if queue_pair { queue_pairs(1) } else { Pair::new(Config::default(), 1) };
        let operations: Vec<_> = (0..5).map(|index| write(&pair, index, 0, 8, PLAIN)).collect();
        let side = &mut pair.sides[0];
        for operation in &operations {
            side.post(operation).unwrap();
        }
        let fragments: Vec<_> = core::iter::from_fn(|| side.fragment(333)).collect();
        acknowledge(side, 1, 0);
        let carried = |operation: usize| fragments[operation].carried;
        for lost in [3, 4, 1] {
            side.outbound.on_lost(&mut side.pools, carried(lost));
        }
        side.outbound.on_returned(&mut side.pools, carried(2));
        side.outbound.prefer_next_in_order(&mut side.pools);
        assert_eq!(sends_of(side), [1, 2, 3, 4]);
        // No fragment of the next operation waits.
        side.outbound.on_lost(&mut side.pools, carried(3));
        side.outbound.on_returned(&mut side.pools, carried(2));
        side.outbound.prefer_next_in_order(&mut side.pools);
        side.outbound.on_lost(&mut side.pools, carried(4));
        assert_eq!(sends_of(side), [2, 3, 4]);
    }
}
