//! Tests of local work of a queue pair, and of operations that fail on this side. Local work and
//! failed operations must complete in order.

use mem::{AccessError, Reach, Rights, Window};
use wire_edge::{Flags, Header, OperationNumber, RemoteKey};

use super::pair::{
    Config, Packet, Pair, Side, assert_completed_in_order, flags, operation, remote, source, write,
};
use super::requester::{acknowledge, queue_pairs, sends_of};
use crate::outbound::LocalFault;
use crate::pools::PoolUse;
use work::{
    CompletionKind, Operation, OperationError, OperationFlags, Order, Owner, PostError, Request,
};

const PLAIN: OperationFlags = flags(Order::Strict);
/// Keys of windows. The test has few regions, and none of them has one of these keys.
const KEYS: [RemoteKey; 3] = [RemoteKey(0xabc_0001), RemoteKey(0xabc_0002), RemoteKey(0xabc_0003)];

fn window(side: &Side, offset: u64) -> Window {
    Window {
        region: side.region.id,
        offset,
        len: 100,
        remote_start: 0,
        rights: Rights::REMOTE_READ,
        reach: Reach::Connection(Owner::new(7, 1).bits()),
    }
}

fn bind(side: &Side, index: usize, key: RemoteKey) -> Operation {
    let request = Request::BindWindow { replaced: None, key, window: Some(window(side, 0)) };
    operation(request, index, 0, PLAIN)
}

fn invalidate(side: &Side, index: usize, key: RemoteKey) -> Operation {
    operation(Request::Invalidate { domain: side.domain, key }, index, 0, PLAIN)
}

fn read(pair: &Pair, index: usize) -> Operation {
    let (key, address) = remote(pair, 0);
    let sink = pair.sides[0].region.id;
    operation(Request::Read { sink, sink_offset: 0, key, address }, index, 8, PLAIN)
}

/// Returns whether the peer of a side may read with this key.
fn is_bound(side: &Side, key: RemoteKey) -> bool {
    let connection = Owner::new(7, 1).bits();
    let memory = side.table.access();
    let found = memory.resolve_for(side.domain, connection, key, 0, 8, Rights::REMOTE_READ);
    assert!(found.is_ok() || matches!(found, Err(AccessError::InvalidKey { .. })));
    found.is_ok()
}

/// Returns the context and the result of each completion of a side.
fn results_of(side: &mut Side) -> Vec<(u64, Result<(), OperationError>)> {
    side.poll();
    side.completions.drain(..).map(|found| (found.context, found.result)).collect()
}

//= protocol.md: queue-pair.2
#[test]
fn a_window_is_bound_after_earlier_work_has_begun_and_before_later_work_begins() {
    let mut pair = queue_pairs(1);
    let send =
        |index| operation(Request::Send { source: source(&pair, index, 8) }, index, 8, PLAIN);
    let sends = [send(0), send(2)];
    let side = &mut pair.sides[0];
    let bound = bind(side, 1, KEYS[0]);
    let ended = invalidate(side, 3, KEYS[0]);
    for operation in [&sends[0], &bound, &sends[1], &ended] {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), []);
    assert!(!is_bound(side, KEYS[0]));
    acknowledge(side, 0, 1);
    assert_eq!(sends_of(side), [0]);
    assert!(is_bound(side, KEYS[0]));
    assert_eq!(results_of(side), []);
    acknowledge(side, 1, 2);
    assert_eq!(results_of(side), [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(sends_of(side), [1]);
    assert!(!is_bound(side, KEYS[0]));
    acknowledge(side, 2, 2);
    assert_eq!(results_of(side), [(2, Ok(())), (3, Ok(()))]);
    assert_eq!(side.pools.in_use(), PoolUse::default());
    assert_eq!((side.outbound.outstanding(), side.outbound.backlog_bytes()), (0, 0));
}

//= protocol.md: queue-pair.2
#[test]
fn local_work_without_earlier_work_is_done_when_posted() {
    let mut pair = queue_pairs(1);
    let side = &mut pair.sides[0];
    let bound = bind(side, 5, KEYS[0]);
    assert_eq!(side.post(&bound), Ok(OperationNumber(0)));
    assert!(is_bound(side, KEYS[0]) && !side.outbound.wants_to_send());
    side.poll();
    let kinds: Vec<_> = side.completions.drain(..).map(|found| found.kind).collect();
    assert_eq!(kinds, [CompletionKind::BindWindow]);
    // A window of type 1 first gets another key and is then unbound.
    let (next, window) = (KEYS[1], Some(window(side, 8)));
    let request = Request::BindWindow { replaced: Some(KEYS[0]), key: next, window };
    side.post(&operation(request, 6, 0, PLAIN)).unwrap();
    assert!(!is_bound(side, KEYS[0]) && is_bound(side, KEYS[1]));
    let request = Request::BindWindow { replaced: Some(next), key: KEYS[2], window: None };
    side.post(&operation(request, 7, 0, PLAIN)).unwrap();
    assert!(!is_bound(side, KEYS[1]) && !is_bound(side, KEYS[2]));
    assert_eq!(results_of(side), [(6, Ok(())), (7, Ok(()))]);
    // The peer has received none of these operations.
    let write = write(&pair, 0, 0, 8, PLAIN);
    assert_eq!(pair.sides[0].post(&write), Ok(OperationNumber(0)));
}

//= protocol.md: fence.4, queue-pair.2
#[test]
fn fenced_local_work_waits_for_answers() {
    for waits in [true, false] {
        let mut pair = queue_pairs(1);
        let read = read(&pair, 0);
        let side = &mut pair.sides[0];
        let mut bound = bind(side, 1, KEYS[0]);
        bound.flags.waits_for_answers = waits;
        side.post(&read).unwrap();
        side.post(&bound).unwrap();
        assert_eq!(sends_of(side), [0]);
        assert_eq!(is_bound(side, KEYS[0]), !waits);
        acknowledge(side, 1, 0);
        assert_eq!(sends_of(side), []);
        assert_eq!(is_bound(side, KEYS[0]), !waits);
        assert_eq!(results_of(side), []);
        let header = Header::ReadResponse { operation: OperationNumber(0), offset: 0 };
        side.answer(Flags::LAST, &header, &[1; 8]);
        assert_eq!(sends_of(side), []);
        assert!(is_bound(side, KEYS[0]));
        assert_eq!(results_of(side), [(0, Ok(())), (1, Ok(()))]);
    }
}

//= protocol.md: queue-pair.3
#[test]
fn a_failed_window_bind_completes_in_order_and_blocks_later_work() {
    let mut pair = queue_pairs(1);
    let writes = [write(&pair, 0, 0, 8, PLAIN), write(&pair, 2, 0, 8, PLAIN)];
    let side = &mut pair.sides[0];
    let beyond = Window { len: 1 << 20, ..window(side, 0) };
    let request = Request::BindWindow { replaced: None, key: KEYS[0], window: Some(beyond) };
    let impossible = operation(request, 1, 0, PLAIN);
    for operation in [&writes[0], &impossible, &writes[1]] {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), [0]);
    assert!(!side.outbound.is_faulty());
    assert_eq!(results_of(side), []);
    acknowledge(side, 1, 0);
    let failed = (1, Err(OperationError::WindowBind));
    assert_eq!(results_of(side), [(0, Ok(())), failed]);
    assert!(side.outbound.is_faulty());
    assert_eq!(sends_of(side), []);
    side.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    assert_eq!(results_of(side), [(2, Err(OperationError::Flushed))]);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

#[test]
fn a_key_of_another_connection_cannot_be_invalidated() {
    let mut pair = queue_pairs(1);
    let side = &mut pair.sides[0];
    let of_others = Window { reach: Reach::Connection(99), ..window(side, 0) };
    side.table.bind(KEYS[0], of_others).unwrap();
    let ended = invalidate(side, 4, KEYS[0]);
    side.post(&ended).unwrap();
    assert_eq!(results_of(side), [(4, Err(OperationError::WindowBind))]);
    assert!(side.outbound.is_faulty());
    assert!(side.table.unbind(KEYS[0]).is_some());
}

#[test]
fn only_queue_pairs_have_local_work() {
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[0];
    for operation in [bind(side, 0, KEYS[0]), invalidate(side, 0, KEYS[0])] {
        assert_eq!(side.post(&operation), Err(PostError::QueuePairOnly));
        let Side { outbound, pools, .. } = side;
        let refused = outbound.post_failed(pools, &operation, OperationError::LocalAccess);
        assert_eq!(refused, Err(PostError::QueuePairOnly));
    }
}

/// Returns operations of all kinds. Their contexts count from 0.
fn mixed(pair: &mut Pair, count: usize) -> Vec<Operation> {
    let make = |index: usize| {
        let length = 1 + pair.random.below(400) as u32;
        let at = index as u64 % 10 * 500;
        match pair.random.below(5) {
            0 => read(pair, index),
            1 => {
                pair.sides[1].post_receive(5000, 500, 0).unwrap();
                operation(
                    Request::Send { source: source(pair, index, length) },
                    index,
                    length,
                    PLAIN,
                )
            }
            2 => bind(&pair.sides[0], index, RemoteKey(0xabc_0000 + index as u32)),
            _ => write(pair, index, at, length, PLAIN),
        }
    };
    (0..count).map(make).collect()
}

/// Runs until side 0 is faulty or no operation is pending.
fn pass_time(pair: &mut Pair) {
    let mut steps = 0;
    while !pair.sides[0].outbound.is_faulty() && !pair.is_idle() {
        pair.step(&mut |_| {});
        steps += 1;
        assert!(steps < 100_000, "no end");
    }
}

/// Checks the completions of `count` operations. Operation `at` must have failed with `error`. All
/// operations before it must have succeeded, and all later operations must be flushed.
fn assert_failed_in_order(pair: &mut Pair, at: usize, count: usize, error: OperationError) {
    let side = &mut pair.sides[0];
    assert!(side.outbound.is_faulty());
    side.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    let result = |index: usize| match index.cmp(&at) {
        core::cmp::Ordering::Less => Ok(()),
        core::cmp::Ordering::Equal => Err(error),
        core::cmp::Ordering::Greater => Err(OperationError::Flushed),
    };
    let expected: Vec<_> = (0..count).map(|index| (index as u64, result(index))).collect();
    assert_eq!(results_of(side), expected);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

//= protocol.md: queue-pair.3
#[test]
fn work_posted_as_failed_fails_in_posting_order() {
    for seed in 0..300 {
        let mut pair = queue_pairs(seed);
        let (count, at) = (14, pair.random.below(14));
        let operations = mixed(&mut pair, count);
        let mut begun = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let side = &mut pair.sides[0];
            if index == at {
                let Side { outbound, pools, .. } = side;
                outbound.post_failed(pools, operation, OperationError::LocalAccess).unwrap();
            } else {
                let number = side.post(operation).unwrap();
                if index < at {
                    begun.push(number);
                }
            }
            for _ in 0..pair.random.below(3) {
                pair.step(&mut |_| {});
            }
        }
        pass_time(&mut pair);
        let end = begun.last().map_or(0, |last| last.0 + 1);
        assert!(
            pair.sides[1].inbound.delivered().0 <= end,
            "seed {seed}: nothing behind it is sent"
        );
        assert_failed_in_order(&mut pair, at, count, OperationError::LocalAccess);
    }
}

/// Returns the number of the operation to which a packet of side 0 belongs; `None` if it belongs to
/// none.
pub(super) fn number_of(packet: &Packet) -> Option<OperationNumber> {
    match packet.header {
        Header::Write { operation, .. }
        | Header::Send { operation, .. }
        | Header::SendInvalidate { operation, .. }
        | Header::Atomic { operation, .. }
        | Header::ReadRequest { operation, .. } => Some(operation),
        _ => None,
    }
}

//= protocol.md: queue-pair.3
#[test]
fn an_operation_that_fails_in_flight_completes_after_all_earlier_ones() {
    let (mut delivered_nevertheless, mut done_before) = (0, 0);
    for seed in 0..300 {
        let mut pair = queue_pairs(seed);
        pair.history = Some(Vec::new());
        let count = 14;
        let operations = mixed(&mut pair, count);
        let mut numbers = Vec::new();
        for operation in &operations {
            let local = matches!(operation.request, Request::BindWindow { .. });
            let number = pair.sides[0].post(operation).unwrap();
            numbers.push((!local).then_some(number));
        }
        for _ in 0..pair.random.below(150) {
            pair.step(&mut |_| {});
        }
        pair.sides[0].poll();
        let complete = pair.sides[0].completions.len();
        let begun = pair.history.take().unwrap_or_default();
        let has_begun = |number| begun.iter().any(|packet| number_of(packet) == Some(number));
        let at = (complete..count)
            .find(|&index| numbers[index].is_some_and(has_begun) && pair.random.chance(40));
        let Some((at, number)) = at.and_then(|at| Some((at, numbers[at]?))) else { continue };
        let Side { outbound, pools, .. } = &mut pair.sides[0];
        // Report the fault twice. Only the first report counts.
        outbound.fail(pools, number, OperationError::LocalAccess);
        outbound.fail(pools, number, OperationError::Unreachable);
        pass_time(&mut pair);
        if !pair.sides[0].outbound.is_faulty() {
            // The peer had already delivered the operation before the fault. The operation was not
            // complete, because the answer to an earlier read was missing.
            pair.poll();
            assert_completed_in_order(&pair, count);
            done_before += 1;
            continue;
        }
        delivered_nevertheless += u32::from(pair.sides[1].inbound.delivered().since(number) > 0);
        assert_failed_in_order(&mut pair, at, count, OperationError::LocalAccess);
    }
    assert!(delivered_nevertheless > 0 && done_before > 0, "not all cases were tried");
}

//= protocol.md: queue-pair.3
#[test]
fn the_earliest_of_several_failed_operations_counts() {
    let mut pair = queue_pairs(1);
    let operations = [0, 1, 2, 3].map(|index| write(&pair, index, 0, 8, PLAIN));
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), [0, 1, 2, 3]);
    for number in [2, 1, 3] {
        let Side { outbound, pools, .. } = side;
        outbound.fail(pools, OperationNumber(number), OperationError::LocalAccess);
    }
    acknowledge(side, 4, 0);
    assert_failed_in_order(&mut pair, 1, 4, OperationError::LocalAccess);
}

//= protocol.md: queue-pair.3
#[test]
fn a_failed_operation_and_later_ones_are_not_sent_any_further() {
    let mut pair = queue_pairs(1);
    let operations = [0, 1, 2, 3, 4].map(|index| write(&pair, index, 0, 8, PLAIN));
    let side = &mut pair.sides[0];
    for operation in &operations[..4] {
        side.post(operation).unwrap();
    }
    let sent = [(); 3].map(|()| side.fragment(128).expect("there are four").carried);
    side.outbound.fail(&mut side.pools, OperationNumber(1), OperationError::LocalAccess);
    for carried in sent {
        side.outbound.on_lost(&mut side.pools, carried);
    }
    acknowledge(side, 0, 1);
    assert_eq!(sends_of(side), [0]);
    side.post(&operations[4]).unwrap();
    assert_eq!(sends_of(side), []);
    acknowledge(side, 1, 1);
    assert_failed_in_order(&mut pair, 1, 5, OperationError::LocalAccess);
}

#[test]
fn a_complete_operation_cannot_fail() {
    let mut pair = queue_pairs(1);
    let operations = [write(&pair, 0, 0, 8, PLAIN), write(&pair, 1, 0, 8, PLAIN)];
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), [0, 1]);
    acknowledge(side, 1, 0);
    side.outbound.fail(&mut side.pools, OperationNumber(0), OperationError::LocalAccess);
    acknowledge(side, 2, 0);
    assert!(!side.outbound.is_faulty());
    side.poll();
    assert_completed_in_order(&pair, 2);
}

//= protocol.md: queue-pair.3
#[test]
fn a_read_with_a_deregistered_sink_fails_after_earlier_operations() {
    let mut pair = queue_pairs(1);
    let operations = [write(&pair, 0, 0, 8, PLAIN), read(&pair, 1), write(&pair, 2, 0, 8, PLAIN)];
    let side = &mut pair.sides[0];
    for operation in &operations {
        side.post(operation).unwrap();
    }
    assert_eq!(sends_of(side), [0, 1, 2]);
    side.table.deregister(side.region.id).unwrap();
    let header = Header::ReadResponse { operation: OperationNumber(1), offset: 0 };
    let memory = side.table.access();
    let Side { outbound, pools, .. } = side;
    let answered = outbound.handle_answer(&memory, pools, Flags::LAST, &header, &[1; 8]);
    assert_eq!(answered, Err(LocalFault::Operation(OperationNumber(1))));
    drop(memory);
    outbound.fail(pools, OperationNumber(1), OperationError::LocalAccess);
    assert!(!outbound.is_faulty());
    acknowledge(side, 3, 0);
    assert_eq!(results_of(side), [(0, Ok(())), (1, Err(OperationError::LocalAccess))]);
    assert!(side.outbound.is_faulty());
}
