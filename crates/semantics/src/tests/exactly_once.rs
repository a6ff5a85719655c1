//! Tests that a late duplicate of a finished operation never changes memory.

use std::collections::HashSet;

use wire_edge::{Header, OperationNumber};

use super::pair::{
    Config, Pair, Side, assert_completed_in_order, flags, operation, remote, source, write,
};
use crate::inbound::Verdict;
use work::{OperationFlags, Order, Request};

fn of_seed(seed: u64) -> OperationFlags {
    let order = if seed.is_multiple_of(2) { Order::Strict } else { Order::Relaxed };
    OperationFlags { fence_before: seed.is_multiple_of(3), ..flags(order) }
}

//= protocol.md: operation.4
#[test]
fn late_duplicate_of_a_completed_write_is_not_placed() {
    for seed in 0..100 {
        let mut pair = Pair::new(Config::default(), seed);
        pair.history = Some(Vec::new());
        let operations: Vec<_> =
            (0..12).map(|i| write(&pair, i, i as u64 * 80, 400, of_seed(seed))).collect();
        pair.run(&operations, &mut |_| {});
        pair.sides[1].fill(0, 4096, 0xee);
        for packet in pair.history.take().unwrap() {
            assert_eq!(pair.receive(&packet), Verdict::Duplicate);
        }
        assert_eq!(pair.sides[1].bytes()[..4096], [0xee; 4096]);
    }
}

//= protocol.md: operation.7
/// The application overwrites each range immediately after the delivery of its operation.
#[test]
fn delivered_ranges_stay_unchanged_while_others_are_in_flight() {
    for seed in 0..200 {
        let mut pair = Pair::new(Config { repeat: 60, ..Config::default() }, seed);
        let operations: Vec<_> =
            (0..16).map(|i| write(&pair, i, i as u64 * 400, 400, of_seed(seed))).collect();
        let mut done = 0;
        pair.run(&operations, &mut |sides| {
            let delivered = sides[1].inbound.delivered().since(OperationNumber(0)) as usize;
            for index in done..delivered {
                let range = index * 400..(index + 1) * 400;
                assert!(sides[1].bytes()[range].iter().all(|&byte| byte == index as u8 + 1));
                sides[1].fill(index as u64 * 400, 400, 0xee);
            }
            done = delivered;
            assert_eq!(sides[1].bytes()[..done * 400], vec![0xee; done * 400]);
        });
        assert_eq!(pair.sides[1].bytes()[..6400], [0xee; 6400]);
    }
}

//= protocol.md: operation.6, operation.7
/// Each byte of an operation is placed only once, even before the operation is delivered. If the
/// application changes a placed byte, the change therefore stays. The writes are relaxed, because a
/// strict tail is held as a whole and placed later.
#[test]
fn an_overlapping_fragment_does_not_place_a_byte_twice() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, base) = remote(&pair, 0);
    let side = &mut pair.sides[1];
    let mut placed = HashSet::new();
    for (from, to) in [(100_u32, 200_u32), (50, 150), (300, 400), (0, 500), (90, 390), (350, 800)] {
        let header = Header::Write {
            operation: OperationNumber(0),
            offset: from,
            key,
            address: base + u64::from(from),
            immediate: None,
        };
        let before = side.bytes();
        side.handle(wire_edge::Flags::NONE, &header, &vec![1; (to - from) as usize]);
        let after = side.bytes();
        for at in from..to {
            let fresh = placed.insert(at);
            let at = at as usize;
            assert_eq!(after[at], if fresh { 1 } else { before[at] });
            side.fill(at as u64, 1, 0xee);
        }
    }
}

//= protocol.md: complete.1
#[test]
fn signalled_operations_alone_complete_once_and_in_order() {
    for seed in 0..100 {
        let mut pair = Pair::new(Config::default(), seed);
        let unsignalled = |i: usize| i % 3 == 1;
        let operations: Vec<_> = (0..30)
            .map(|i| {
                let flags = OperationFlags { signalled: !unsignalled(i), ..of_seed(seed) };
                write(&pair, i, i as u64 * 8, 8 + i as u32 * 5, flags)
            })
            .collect();
        pair.run(&operations, &mut |_| {});
        let contexts: Vec<_> = pair.sides[0].completions.iter().map(|c| c.context).collect();
        let expected: Vec<_> = (0..30).filter(|&i| !unsignalled(i)).map(|i| i as u64).collect();
        assert_eq!(contexts, expected);
        assert!(pair.sides[1].completions.is_empty());
    }
}

#[test]
fn a_small_completion_queue_only_slows_things_down() {
    for seed in 0..100 {
        let mut pair = Pair::new(Config { queue: 3, ..Config::default() }, seed);
        let operations: Vec<_> =
            (0..30).map(|i| write(&pair, i, i as u64 * 8, 300, of_seed(seed))).collect();
        pair.run(&operations, &mut |_| {});
        assert_completed_in_order(&pair, 30);
    }
}

//= protocol.md: notify.1
/// The peer's completion queue is full of notifications until the peer polls it.
#[test]
fn notifications_wait_for_room_and_arrive_once_in_order() {
    let mut stalled = false;
    for seed in 0..100 {
        let config = Config::default();
        let mut pair = Pair::new(config, seed);
        pair.sides[1] = Side::new(&Config { queue: 2, ..config }, seed);
        let mut operations: Vec<_> = (0..30)
            .map(|i| write(&pair, i, i as u64 * 8, 8 + i as u32 * 9, of_seed(seed)))
            .collect();
        for (index, operation) in operations.iter_mut().enumerate() {
            operation.immediate = Some(index as u32 * 3);
        }
        pair.run(&operations, &mut |sides| stalled |= sides[1].inbound.is_stalled());
        assert_completed_in_order(&pair, 30);
        let (_, base) = remote(&pair, 0);
        let notified: Vec<_> = pair.sides[1]
            .completions
            .iter()
            .map(|c| (c.kind, c.immediate, c.bytes, c.value))
            .collect();
        let expected: Vec<_> = (0..30)
            .map(|i| {
                let address = base + u64::from(i) * 8;
                (work::CompletionKind::Notification, Some(i * 3), 8 + i * 9, address)
            })
            .collect();
        assert_eq!(notified, expected);
    }
    assert!(stalled);
}

//= protocol.md: notify.2
/// Only the notification waits. The bytes are placed once. If duplicates arrive before the
/// notification, they change nothing.
#[test]
fn a_duplicate_of_a_stalled_operation_is_not_placed() {
    let mut pair = Pair::new(Config { queue: 1, ..Config::default() }, 1);
    let (key, base) = remote(&pair, 0);
    let side = &mut pair.sides[1];
    let header = |number: u32| Header::Write {
        operation: OperationNumber(number),
        offset: 0,
        key,
        address: base + u64::from(number) * 8,
        immediate: Some(number),
    };
    let last = wire_edge::Flags::LAST;
    assert_eq!(side.handle(last, &header(0), &[1; 8]), Verdict::Accepted);
    assert_eq!(side.handle(last, &header(1), &[1; 8]), Verdict::Accepted);
    assert!(side.inbound.is_stalled());
    side.fill(0, 64, 0xee);
    for number in 0..2 {
        assert_eq!(side.handle(last, &header(number), &[1; 8]), Verdict::Duplicate);
    }
    assert_eq!(side.handle(last, &header(2), &[3; 8]), Verdict::Accepted);
    assert_eq!(side.resume(), Verdict::Accepted);
    assert!(side.inbound.is_stalled());
    assert_eq!(side.inbound.delivered(), OperationNumber(1));
    for delivered in 2..4 {
        assert!(side.queue.poll().is_some());
        assert_eq!(side.resume(), Verdict::Accepted);
        assert_eq!(side.inbound.delivered(), OperationNumber(delivered));
    }
    assert!(!side.inbound.is_stalled());
    assert_eq!(side.bytes()[..16], [0xee; 16]);
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

/// Posts various operations, stops at a random point, and flushes.
#[test]
fn a_flush_completes_all_work_once_in_order_and_frees_every_record() {
    use work::OperationError;
    for seed in 0..200 {
        let mut pair = Pair::new(Config::default(), seed);
        pair.sides[1].post_receive(4096, 500, 900).unwrap();
        pair.sides[1].post_receive(5000, 500, 901).unwrap();
        let (key, address) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        for index in 0..24 {
            let length = 10 + index as u32 * 20;
            let flags = OperationFlags {
                signalled: index % 2 == 0,
                fence_after: index == 9,
                ..of_seed(seed)
            };
            let request = match index % 5 {
                0 => Request::Read { sink, sink_offset: 0, key, address },
                1 => Request::FetchAdd { key, address, operand: 1, sink: None },
                2 if index > 10 => Request::Send { source: source(&pair, index, length) },
                _ => Request::Write { source: source(&pair, index, length), key, address },
            };
            pair.sides[0].post(&operation(request, index, length, flags)).unwrap();
        }
        for _ in 0..pair.random.below(300) {
            pair.step(&mut |_| {});
        }
        let fault = (OperationNumber(20), OperationError::MessageTooLong);
        for side in &mut pair.sides {
            side.poll();
            side.outbound.flush(&mut side.pools, OperationError::Unreachable, Some(fault));
            side.inbound.flush(&mut side.pools, OperationError::Flushed);
            side.poll();
            assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
            assert!(!side.outbound.waits_for_peer() && !side.outbound.wants_to_send());
            assert_eq!(side.outbound.backlog_bytes(), 0);
        }
        let completions = &pair.sides[0].completions;
        let failed = completions.iter().filter(|c| c.result.is_err()).count();
        let first_failed = 24 - failed as u64;
        let expected: Vec<u64> = (0..24).filter(|&i| i >= first_failed || i % 2 == 0).collect();
        assert_eq!(completions.iter().map(|c| c.context).collect::<Vec<_>>(), expected);
        for completion in completions.iter().filter(|c| c.result.is_err()) {
            let at_fault = completion.context == 20;
            let error = if at_fault { fault.1 } else { OperationError::Unreachable };
            assert_eq!(completion.result, Err(error));
        }
        let receives: Vec<_> = pair.sides[1].completions.iter().map(|c| c.context).collect();
        assert_eq!(receives, [900, 901]);
    }
}
