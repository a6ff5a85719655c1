//! Tests of all features of queue pairs together.

use std::sync::Arc;

use mem::{Reach, RegionId, Rights, Window};
use wire_edge::RemoteKey;

use super::local_work::number_of;
use super::pair::{Pair, Side, flags, operation, remote, source};
use super::requester::queue_pairs;
use crate::inbound::{Surroundings, Verdict};
use crate::pools::PoolUse;
use work::SharedReceives;
use work::{
    Completion, Operation, OperationError, Order, Owner, Piece, PieceList, Receive, Request, Sink,
};

/// Number of operations in each run.
const COUNT: usize = 20;
/// Offset of the first buffer for a message. Writes use the memory before it. Each buffer has 400
/// bytes.
const MESSAGES_AT: u64 = 2048;

/// Returns the key of the memory window that operation `index` uses. The window is on the side that
/// posts the operation or on the other side.
const fn key_of(index: usize) -> RemoteKey {
    RemoteKey(0xabc_0000 + index as u32)
}

fn bind_at(side: &Side, index: usize) -> Window {
    let reach = Reach::Connection(Owner::new(7, 1).bits());
    let (region, rights) = (side.region.id, Rights::REMOTE_READ);
    let window = Window { region, offset: 0, len: 64, remote_start: 0, rights, reach };
    // A bind operation must bind the window itself. For such an operation, the caller unbinds the
    // window that this function binds.
    side.table.bind(key_of(index), window).unwrap();
    window
}

/// Returns an operation of a random kind, `length` bytes long.
fn any_operation(pair: &mut Pair, index: usize, length: u32) -> Operation {
    let offset = 8 * pair.random.below(100) as u64;
    let (key, address) = remote(pair, offset);
    let sink = pair.sides[0].region.id;
    let domain = pair.sides[0].domain;
    let request = match pair.random.below(9) {
        0 | 1 => Request::Write { source: source(pair, index, length), key, address },
        2 | 3 => Request::Send { source: source(pair, index, length) },
        4 => {
            bind_at(&pair.sides[1], index);
            Request::SendInvalidate { source: source(pair, index, length), key: key_of(index) }
        }
        5 => Request::Read { sink, sink_offset: 0, key, address },
        6 => {
            let sink = Some(Sink { region: sink, offset: 800 });
            Request::FetchAdd { key, address, operand: 1, sink }
        }
        7 => {
            let window = bind_at(&pair.sides[0], index);
            pair.sides[0].table.unbind(key_of(index));
            Request::BindWindow { replaced: None, key: key_of(index), window: Some(window) }
        }
        _ => {
            bind_at(&pair.sides[0], index);
            Request::Invalidate { domain, key: key_of(index) }
        }
    };
    let order = if pair.random.chance(50) { Order::Strict } else { Order::Relaxed };
    let mut operation = operation(request, index, length, flags(order));
    let takes_immediate = matches!(request, Request::Write { .. } | Request::Send { .. });
    operation.immediate = (takes_immediate && pair.random.chance(40)).then_some(index as u32);
    operation.flags.fence_before = pair.random.chance(10);
    operation.flags.fence_after = pair.random.chance(10);
    operation.flags.waits_for_answers = pair.random.chance(20);
    operation
}

/// Returns pieces (scatter/gather entries) that together cover the bytes of an operation.
fn pieces_of(pair: &mut Pair, index: usize, operation: &Operation) -> Vec<Piece> {
    let (region, mut offset) = match operation.request {
        Request::Read { sink, .. } => (sink, 0),
        _ => (pair.sides[0].source, index as u64 * 4096),
    };
    let (mut left, mut pieces) = (operation.length, Vec::new());
    while left > 0 {
        let length =
            if pieces.len() == 31 { left } else { left.min(pair.random.below(150) as u32) };
        pieces.push(Piece { region, offset, length });
        offset += u64::from(length);
        left -= length;
    }
    pieces.push(Piece { region: RegionId::NONE, offset: 0, length: 0 });
    pieces.truncate(32);
    pieces
}

/// Posts an operation in one of three ways: without a list, with a list of pieces, or as an
/// operation that fails on this side.
fn post(pair: &mut Pair, index: usize, operation: &Operation, fails: bool) {
    let as_list = pair.random.chance(40);
    let pieces = pieces_of(pair, index, operation);
    let Side { table, outbound, pools, .. } = &mut pair.sides[0];
    if fails {
        return outbound.post_failed(pools, operation, OperationError::LocalAccess).unwrap();
    }
    let memory = table.access();
    let posted = if as_list {
        let list = PieceList::new(&pieces).unwrap();
        outbound.post_list(&memory, pools, operation, list)
    } else {
        outbound.post(&memory, pools, operation)
    };
    posted.unwrap();
}

/// Posts some receives at the peer, and resumes messages that waited for receives.
fn post_receives(pair: &mut Pair, shared: &SharedReceives, posted: &mut u64) {
    for _ in 0..pair.random.below(3) {
        let (region, context) = (pair.sides[1].region.id, *posted);
        let offset = MESSAGES_AT + context % 15 * 400;
        shared.post(Receive { region, offset, length: 400, context }).unwrap();
        *posted += 1;
    }
    while shared.next_ready().is_some() {
        let Side { table, pools, outbound, inbound, .. } = &mut pair.sides[1];
        let memory = table.access();
        let mut around = Surroundings { memory: &memory, pools, outbound };
        assert_eq!(inbound.on_ready(&mut around), Verdict::Accepted);
        drop(memory);
        let Side { outbound, pools, .. } = &mut pair.sides[0];
        outbound.on_ready(pools);
    }
}

/// Runs random operations and returns the completions.
fn run(seed: u64) -> Vec<Completion> {
    let mut pair = queue_pairs(seed);
    let shared = Arc::new(SharedReceives::new(64));
    pair.sides[1].inbound.share_receives(Arc::clone(&shared));
    pair.history = Some(Vec::new());
    let fails_at = if seed % 3 == 1 { pair.random.below(COUNT) } else { COUNT };
    let mut messages = Vec::new();
    let (mut next, mut posted, mut steps) = (0, 0, 0);
    while !pair.sides[0].outbound.is_faulty() && (next < COUNT || !pair.is_idle()) {
        if next < COUNT && pair.random.chance(30) {
            let length = pair.random.below(400) as u32;
            let operation = any_operation(&mut pair, next, length);
            let is_write = matches!(operation.request, Request::Write { .. });
            let is_send =
                matches!(operation.request, Request::Send { .. } | Request::SendInvalidate { .. });
            if is_send || is_write && operation.immediate.is_some() {
                messages.push((length, operation.immediate, is_write));
            }
            post(&mut pair, next, &operation, next == fails_at);
            next += 1;
        }
        pair.step(&mut |_| {});
        if pair.random.chance(3) {
            post_receives(&mut pair, &shared, &mut posted);
        }
        if seed % 3 == 2 && pair.random.chance(1) {
            let sent = pair.history.as_ref().filter(|sent| !sent.is_empty());
            let any = sent.map(|sent| &sent[seed as usize % sent.len()]);
            if let Some(number) = any.filter(|packet| packet.from == 0).and_then(number_of) {
                let Side { outbound, pools, .. } = &mut pair.sides[0];
                outbound.fail(pools, number, OperationError::LocalAccess);
            }
        }
        if seed.is_multiple_of(7) && pair.random.chance(1) && pair.random.chance(20) {
            let Side { outbound, pools, .. } = &mut pair.sides[0];
            outbound.give_up_on_receive(pools);
        }
        steps += 1;
        assert!(steps < 200_000, "seed {seed}: no end after {next} operations");
    }
    let Side { outbound, pools, .. } = &mut pair.sides[0];
    outbound.flush(pools, OperationError::Flushed, None);
    pair.poll();
    let reported = |found: &Completion| (found.bytes, found.immediate, found.is_of_write());
    let received: Vec<_> = pair.sides[1].completions.iter().map(reported).collect();
    assert!(messages.starts_with(&received), "seed {seed}: {received:?} of {messages:?}");
    assert_eq!(pair.sides[0].pools.in_use(), PoolUse::default());
    let completions = core::mem::take(&mut pair.sides[0].completions);
    assert_eq!(completions.len(), next);
    completions
}

//= protocol.md: queue-pair.1, queue-pair.2, queue-pair.3, queue-pair.4, queue-pair.5
#[test]
fn all_kinds_of_operations_succeed_in_order_up_to_the_first_local_failure() {
    let (mut ended, mut failed) = (0, 0);
    for seed in 0..600 {
        let completions = run(seed);
        let contexts = completions.iter().map(|found| found.context);
        assert!(contexts.eq(0..completions.len() as u64), "seed {seed}");
        let flushed = Err(OperationError::Flushed);
        let first = completions.iter().position(|found| found.result.is_err());
        let Some(first) = first else {
            ended += 1;
            continue;
        };
        failed += 1;
        assert_ne!(completions[first].result, flushed, "seed {seed}");
        let rest = &completions[first + 1..];
        assert!(rest.iter().all(|found| found.result == flushed), "seed {seed}");
    }
    assert!(ended > 150 && failed > 150, "{ended} ended well and {failed} failed");
}
