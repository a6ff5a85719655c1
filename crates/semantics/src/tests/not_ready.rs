//! Tests of messages for which the peer has no receive.

use std::sync::Arc;

use wire_edge::{MessageNumber, OperationNumber};

use super::pair::{Config, Pair, Side, assert_completed_in_order, flags, operation, source, write};
use super::requester::{acknowledge, queue_pairs, sends_of};
use crate::inbound::{Surroundings, Verdict};
use crate::outbound::Carried;
use crate::pools::PoolUse;
use work::SharedReceives;
use work::{Completion, Operation, OperationError, OperationFlags, Order, Receive, Request};

const PLAIN: OperationFlags = flags(Order::Strict);

fn send(pair: &Pair, index: usize, length: u32) -> Operation {
    operation(Request::Send { source: source(pair, index, length) }, index, length, PLAIN)
}

/// Returns a write with an immediate.
fn noted(pair: &Pair, index: usize) -> Operation {
    Operation { immediate: Some(1), ..write(pair, index, 0, 8, PLAIN) }
}

/// Returns a queue pair that has sent `operations`, each in one fragment.
fn in_flight(operations: impl Fn(&Pair) -> Vec<Operation>) -> (Pair, Vec<Carried>) {
    let mut pair = queue_pairs(1);
    let operations = operations(&pair);
    let side = &mut pair.sides[0];
    acknowledge(side, 0, 99);
    let mut carried = Vec::new();
    for operation in &operations {
        side.post(operation).unwrap();
        carried.push(side.fragment(128).expect("it may be sent").carried);
    }
    assert!(side.fragment(128).is_none());
    (pair, carried)
}

fn not_ready(side: &mut Side, message: u32) -> bool {
    side.outbound.on_not_ready(&mut side.pools, MessageNumber(message))
}

fn lose(side: &mut Side, carried: Carried) {
    side.outbound.on_lost(&mut side.pools, carried);
}

fn results(side: &mut Side) -> Vec<(u64, Result<(), OperationError>)> {
    side.poll();
    side.completions.drain(..).map(|found| (found.context, found.result)).collect()
}

/// Returns five operations: a write, two messages, a write and a message.
fn mixed(pair: &Pair) -> Vec<Operation> {
    let plain = |index| write(pair, index, 0, 8, PLAIN);
    vec![plain(0), send(pair, 1, 8), noted(pair, 2), plain(3), send(pair, 4, 8)]
}

//= protocol.md: queue-pair.4
#[test]
fn a_not_ready_message_and_all_later_work_wait_until_the_peer_is_ready() {
    let (mut pair, carried) = in_flight(mixed);
    let more = write(&pair, 5, 0, 8, PLAIN);
    let side = &mut pair.sides[0];
    lose(side, carried[3]);
    lose(side, carried[0]);
    assert!(not_ready(side, 1));
    lose(side, carried[1]);
    side.outbound.on_returned(&mut side.pools, carried[4]);
    side.outbound.on_returned(&mut side.pools, carried[2]);
    side.post(&more).unwrap();
    assert_eq!(sends_of(side), [0, 1]);
    acknowledge(side, 1, 120);
    assert!(!side.outbound.wants_to_send());
    assert_eq!(side.outbound.waits_for_receive(&side.pools), Some(OperationNumber(2)));
    side.outbound.on_ready(&mut side.pools);
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
    let mut sent = sends_of(side);
    sent.sort_unstable();
    assert_eq!(sent, [2, 3, 4, 5]);
    acknowledge(side, 6, 120);
    side.poll();
    assert_completed_in_order(&pair, 6);
    assert_eq!(pair.sides[0].pools.in_use(), PoolUse::default());
}

//= protocol.md: queue-pair.4
#[test]
fn an_earlier_not_ready_message_holds_more_work_and_a_later_one_holds_no_more() {
    let (mut pair, carried) = in_flight(mixed);
    let side = &mut pair.sides[0];
    assert!(not_ready(side, 2));
    assert!(!not_ready(side, 2));
    lose(side, carried[1]);
    assert!(not_ready(side, 0));
    assert!(!not_ready(side, 1));
    lose(side, carried[0]);
    assert_eq!(sends_of(side), [0]);
    assert_eq!(side.outbound.waits_for_receive(&side.pools), Some(OperationNumber(1)));
    side.outbound.on_ready(&mut side.pools);
    assert_eq!(sends_of(side), [1]);
}

//= protocol.md: queue-pair.4
#[test]
fn a_stale_not_ready_report_holds_nothing() {
    let (mut pair, carried) = in_flight(mixed);
    let side = &mut pair.sides[0];
    acknowledge(side, 3, 99);
    for message in [0, 1, 3, 4, u32::MAX] {
        assert!(!not_ready(side, message), "{message}");
    }
    lose(side, carried[4]);
    assert_eq!(sends_of(side), [4]);
    // The message is delivered all the same, because the refused frame was a duplicate.
    assert!(not_ready(side, 2));
    lose(side, carried[4]);
    assert_eq!(sends_of(side), []);
    acknowledge(side, 5, 99);
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
    let more = write(&pair, 5, 0, 8, PLAIN);
    let side = &mut pair.sides[0];
    side.post(&more).unwrap();
    assert_eq!(sends_of(side), [5]);
    acknowledge(side, 6, 99);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

//= protocol.md: control.5
#[test]
fn a_not_ready_peer_holds_nothing_without_a_queue_pair() {
    let mut pair = Pair::new(Config::default(), 1);
    let send = send(&pair, 0, 8);
    let side = &mut pair.sides[0];
    acknowledge(side, 0, 1);
    side.post(&send).unwrap();
    let fragment = side.fragment(128).expect("there is a receive");
    assert!(!not_ready(side, 0));
    lose(side, fragment.carried);
    assert_eq!(sends_of(side), [0]);
}

#[test]
fn a_connection_that_ends_while_its_peer_is_not_ready_releases_held_work() {
    let (mut pair, carried) = in_flight(mixed);
    let side = &mut pair.sides[0];
    assert!(not_ready(side, 0));
    for carried in carried {
        lose(side, carried);
    }
    side.outbound.flush(&mut side.pools, OperationError::EndedByPeer, None);
    assert_eq!(results(side).len(), 5);
    assert_eq!(side.pools.in_use(), PoolUse::default());
    assert!(side.outbound.is_at_rest());
}

//= protocol.md: queue-pair.5
#[test]
fn a_message_that_waited_too_long_for_a_receive_fails_in_order() {
    let (mut pair, carried) = in_flight(mixed);
    let side = &mut pair.sides[0];
    assert!(not_ready(side, 1));
    lose(side, carried[1]);
    side.outbound.give_up_on_receive(&mut side.pools);
    assert!(!side.outbound.is_faulty());
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
    side.outbound.on_ready(&mut side.pools);
    assert_eq!(sends_of(side), [1]);
    acknowledge(side, 2, 99);
    let failed = (2, Err(OperationError::ReceiverNotReady));
    assert_eq!(results(side), [(0, Ok(())), (1, Ok(())), failed]);
    assert!(side.outbound.is_faulty());
    side.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    let flushed = Err(OperationError::Flushed);
    assert_eq!(results(side), [(3, flushed), (4, flushed)]);
}

//= protocol.md: queue-pair.5
#[test]
fn a_message_without_credit_waits_for_a_receive_after_earlier_work_is_delivered() {
    for is_noted in [false, true] {
        let mut pair = queue_pairs(1);
        let last = if is_noted { noted(&pair, 1) } else { send(&pair, 1, 8) };
        let operations = [write(&pair, 0, 0, 8, PLAIN), last];
        let side = &mut pair.sides[0];
        for operation in &operations {
            side.post(operation).unwrap();
        }
        assert_eq!(sends_of(side), [0]);
        assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
        side.outbound.give_up_on_receive(&mut side.pools);
        acknowledge(side, 1, 0);
        assert_eq!(side.outbound.waits_for_receive(&side.pools), Some(OperationNumber(1)));
        side.outbound.give_up_on_receive(&mut side.pools);
        let failed = (1, Err(OperationError::ReceiverNotReady));
        assert_eq!(results(side), [(0, Ok(())), failed]);
        assert!(side.outbound.is_faulty());
    }
}

#[test]
fn an_operation_blocked_by_a_fence_does_not_wait_for_a_receive() {
    let mut pair = queue_pairs(1);
    let (send, mut fenced) = (send(&pair, 0, 8), send(&pair, 1, 300));
    fenced.flags.fence_before = true;
    let side = &mut pair.sides[0];
    acknowledge(side, 0, 2);
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
    side.post(&send).unwrap();
    side.post(&fenced).unwrap();
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
    // The second operation has begun.
    assert!(side.fragment(128).is_some() && side.fragment(128).is_some());
    acknowledge(side, 1, 2);
    assert_eq!(side.outbound.waits_for_receive(&side.pools), None);
}

//= protocol.md: queue-pair.1, queue-pair.4, shared.1, shared.2
#[test]
fn messages_consume_shared_receives_in_order_even_if_they_often_run_out() {
    let mut held = 0;
    for seed in 0..200 {
        let mut pair = queue_pairs(seed);
        let shared = Arc::new(SharedReceives::new(64));
        pair.sides[1].inbound.share_receives(Arc::clone(&shared));
        let mut messages = Vec::new();
        for index in 0..18 {
            let length = pair.random.below(400) as u32;
            let mut operation = match pair.random.below(3) {
                0 => write(&pair, index, 7000, length, PLAIN),
                _ => send(&pair, index, length),
            };
            operation.immediate = pair.random.chance(50).then_some(index as u32);
            let is_send = matches!(operation.request, Request::Send { .. });
            if is_send || operation.immediate.is_some() {
                messages.push((messages.len() as u64, length, operation.immediate));
            }
            pair.sides[0].post(&operation).unwrap();
        }
        let (mut posted, mut steps) = (0, 0);
        while !pair.is_idle() {
            pair.step(&mut |_| {});
            if pair.random.chance(3) && posted < messages.len() as u64 {
                let region = pair.sides[1].region.id;
                let offset = posted % 13 * 500;
                shared.post(Receive { region, offset, length: 500, context: posted }).unwrap();
                posted += 1;
            }
            while shared.next_ready().is_some() {
                let Side { table, pools, outbound, inbound, .. } = &mut pair.sides[1];
                let memory = table.access();
                let mut around = Surroundings { memory: &memory, pools, outbound };
                assert_eq!(inbound.on_ready(&mut around), Verdict::Accepted);
                drop(memory);
                let Side { outbound, pools, .. } = &mut pair.sides[0];
                held += u32::from(outbound.waits_for_receive(pools).is_some());
                outbound.on_ready(pools);
            }
            steps += 1;
            assert!(steps < 200_000, "no end, seed {seed}");
        }
        pair.poll();
        assert_completed_in_order(&pair, 18);
        let reported = |found: &Completion| (found.context, found.bytes, found.immediate);
        let received = &pair.sides[1].completions;
        assert_eq!(received.iter().map(reported).collect::<Vec<_>>(), messages, "seed {seed}");
        assert_eq!(pair.in_use(), [PoolUse::default(); 2]);
    }
    assert!(held > 1000, "held {held} times");
}
