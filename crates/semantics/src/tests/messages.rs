//! Tests of sends and receives.

use std::sync::Arc;

use mem::{Buffer, Rights};
use wire_edge::{CloseReason, Flags, Header, MessageNumber, OperationNumber};

use super::pair::{Config, Pair, assert_completed_in_order, flags, operation, source};
use crate::inbound::Verdict;
use work::{CompletionKind, OperationError, OperationFlags, Order, PostError, Receive, Request};

//= protocol.md: operation.10, message.1, credit.2
#[test]
fn messages_consume_receives_in_order_and_wait_for_credit() {
    for seed in 0..200 {
        let order = if seed % 2 == 0 { Order::Strict } else { Order::Relaxed };
        let mut pair = Pair::new(Config::default(), seed);
        let length = |i: usize| if i % 5 == 3 { 0 } else { 1 + (i * 37 % 450) as u32 };
        let operations: Vec<_> = (0..14)
            .map(|i| {
                let flags = OperationFlags { fence_before: i % 4 == 2, ..flags(order) };
                let request = Request::Send { source: source(&pair, i, length(i)) };
                let mut send = operation(request, i, length(i), flags);
                send.immediate = (i % 2 == 0).then_some(i as u32);
                send
            })
            .collect();
        for send in &operations {
            pair.sides[0].post(send).unwrap();
        }
        let mut posted = 0_u64;
        let mut steps = 0;
        while !pair.is_idle() {
            if posted < 14 && pair.random.chance(5) {
                pair.sides[1].post_receive(posted * 500, 500, posted).unwrap();
                posted += 1;
            }
            pair.step(&mut |sides| assert!(sides[1].inbound.credit().0 <= 14));
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
        pair.poll();
        assert_completed_in_order(&pair, 14);
        let memory = pair.sides[1].bytes();
        assert_eq!(pair.sides[1].completions.len(), 14);
        for (i, completion) in pair.sides[1].completions.iter().enumerate() {
            assert_eq!(completion.kind, CompletionKind::Receive);
            assert_eq!((completion.context, completion.bytes), (i as u64, length(i)));
            assert_eq!(completion.immediate, (i % 2 == 0).then_some(i as u32));
            let (at, len) = (i * 500, length(i) as usize);
            assert!(memory[at..at + len].iter().all(|&byte| byte == i as u8 + 1));
            assert!(memory[at + len..at + 500].iter().all(|&byte| byte == 0));
        }
        assert_eq!(pair.sides[1].inbound.next_message(), MessageNumber(14));
        assert_eq!(pair.in_use(), [crate::pools::PoolUse::default(); 2]);
    }
}

fn send(number: u32, offset: u32, message: u32) -> Header {
    Header::Send {
        operation: OperationNumber(number),
        offset,
        message: MessageNumber(message),
        immediate: None,
    }
}

#[test]
fn a_message_longer_than_its_receive_ends_the_connection() {
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[1];
    side.post_receive(0, 100, 0).unwrap();
    let verdict = side.handle(Flags::LAST, &send(0, 0, 0), &[1; 101]);
    let too_long =
        Verdict::Violation { reason: CloseReason::MessageTooLong, operation: OperationNumber(0) };
    assert_eq!(verdict, too_long);
    assert_eq!(side.handle(Flags::NONE, &send(0, 100, 0), &[1; 1]), too_long);
    assert_eq!(side.bytes()[..200], [0; 200]);
    side.post_receive(0, 100, 1).unwrap();
    side.inbound.flush(&mut side.pools, OperationError::ClosedByPeer);
    side.poll();
    let results: Vec<_> = side.completions.iter().map(|done| (done.context, done.result)).collect();
    let expected = [OperationError::MessageTooLong, OperationError::ClosedByPeer].map(Err);
    assert_eq!(results, [(0, expected[0]), (1, expected[1])]);
}

#[test]
fn a_receive_with_missing_memory_ends_the_connection() {
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[1];
    let buffer = Buffer::new(64);
    let region = side.table.register(side.domain, Arc::clone(&buffer), Rights::LOCAL_WRITE);
    let region = region.unwrap().id;
    let receive = Receive { region, offset: 0, length: 64, context: 0 };
    let access = side.table.access();
    side.inbound.post_receive(&access, receive).unwrap();
    let outside = Receive { offset: 60, length: 5, ..receive };
    assert!(matches!(side.inbound.post_receive(&access, outside), Err(PostError::LocalAccess(_))));
    drop(access);
    side.table.deregister(region).unwrap();
    assert_eq!(
        side.handle(Flags::LAST, &send(0, 0, 0), &[1; 8]),
        Verdict::Violation { reason: CloseReason::LocalMemoryGone, operation: OperationNumber(0) }
    );
    let mut bytes = [1; 64];
    buffer.read(0, &mut bytes);
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn receives_are_posted_up_to_the_limit() {
    let mut pair = Pair::new(Config { receives: 5, ..Config::default() }, 1);
    let side = &mut pair.sides[1];
    for context in 0..5 {
        side.post_receive(0, 8, context).unwrap();
    }
    assert_eq!(side.post_receive(0, 8, 5), Err(PostError::ReceiveQueueFull(5)));
    assert_eq!(side.inbound.credit(), MessageNumber(5));
    assert_eq!(side.handle(Flags::LAST, &send(0, 0, 0), &[1; 8]), Verdict::Accepted);
    side.post_receive(0, 8, 5).unwrap();
    assert_eq!(side.inbound.credit(), MessageNumber(6));
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    side.poll();
    assert_eq!(side.completions.len(), 6);
    assert_eq!(side.queue.len(), 0);
}
