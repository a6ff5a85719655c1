//! Tests of operations whose bytes are in lists of pieces (scatter/gather entries). A list is the
//! source of a write or send, or the destination of a read.

use mem::RegionId;
use wire_edge::RemoteKey;

use super::pair::{
    Config, Pair, SOURCE_BYTES, Side, assert_completed_in_order, flags, operation, remote,
};
use super::requester::{acknowledge, queue_pairs, sends_of};
use crate::limits::OPERATION_SHARE;
use crate::outbound::FragmentPayload;
use crate::pools::PoolUse;
use work::{Operation, OperationError, Order, Piece, PieceList, PostError, Request, Source};

/// Placeholder for the source in a request whose bytes are in a list.
const NOWHERE: Source = Source::Region { region: RegionId::NONE, offset: u64::MAX };

/// Returns a write to the start of the peer's memory. The list that is posted with the write
/// determines its length.
fn write(pair: &Pair) -> Operation {
    let (key, address) = remote(pair, 0);
    operation(Request::Write { source: NOWHERE, key, address }, 0, 0, flags(Order::Strict))
}

/// Returns pieces of the memory from which operations send. Each range is an offset and a length.
fn pieces(side: &Side, ranges: &[(u64, u32)]) -> Vec<Piece> {
    let region = side.source;
    ranges.iter().map(|&(offset, length)| Piece { region, offset, length }).collect()
}

fn post(side: &mut Side, operation: &Operation, pieces: &[Piece]) -> Result<(), PostError> {
    let memory = side.table.access();
    let list = PieceList::new(pieces).unwrap();
    side.outbound.post_list(&memory, &mut side.pools, operation, list).map(drop)
}

#[test]
fn only_a_fragment_that_spans_sges_is_copied() {
    let mut pair = queue_pairs(1);
    let write = write(&pair);
    let side = &mut pair.sides[0];
    let list = pieces(side, &[(0, 3000), (5000, 0), (10_000, 3000), (20_000, 100)]);
    post(side, &write, &list).unwrap();
    let mut seen = Vec::new();
    while let Some(fragment) = side.fragment(1020) {
        let kind = match fragment.payload {
            FragmentPayload::Outside(_) => "outside",
            FragmentPayload::Region(..) => "behind the header",
            FragmentPayload::Pieces => "gathered",
            _ => "another",
        };
        seen.push((fragment.carried.length, kind));
    }
    let outside = (1000, "outside");
    let gathered = (1000, "gathered");
    // Each piece ends where a fragment ends, so no fragment covers several pieces.
    assert_eq!(
        seen,
        [outside, outside, outside, outside, outside, outside, (100, "behind the header")]
    );
    let list = pieces(side, &[(0, 1500), (10_000, 2500), (20_000, 600), (1, 400)]);
    post(side, &write, &list).unwrap();
    seen.clear();
    while let Some(fragment) = side.fragment(1020) {
        let is_gathered = matches!(fragment.payload, FragmentPayload::Pieces);
        seen.push((fragment.carried.length, if is_gathered { "gathered" } else { "outside" }));
    }
    assert_eq!(seen, [outside, gathered, outside, outside, gathered]);
}

#[test]
fn the_long_rest_of_an_sge_is_sent_uncopied_before_the_next_sge() {
    let mut pair = queue_pairs(1);
    let write = write(&pair);
    let side = &mut pair.sides[0];
    let list = pieces(side, &[(0, 8000 + 4097), (40_000, 4096), (80_000, 20_000)]);
    post(side, &write, &list).unwrap();
    let mut seen = Vec::new();
    while let Some(fragment) = side.fragment(8020) {
        let is_gathered = matches!(fragment.payload, FragmentPayload::Pieces);
        seen.push((fragment.carried.length, is_gathered));
    }
    let expected =
        [(8000, false), (4097, false), (8000, true), (8000, false), (8000, false), (96, false)];
    assert_eq!(seen, expected);
}

#[test]
fn an_empty_list_needs_no_memory_and_no_key() {
    let mut pair = queue_pairs(1);
    let nothing: [&[(u64, u32)]; 2] = [&[], &[(u64::MAX, 0)]];
    for (index, ranges) in nothing.into_iter().enumerate() {
        let request = Request::Write { source: NOWHERE, key: RemoteKey(0), address: 0 };
        let write = operation(request, index, 77, flags(Order::Strict));
        let list = pieces(&pair.sides[0], ranges);
        post(&mut pair.sides[0], &write, &list).unwrap();
    }
    while !pair.is_idle() {
        pair.step(&mut |_| {});
    }
    pair.poll();
    assert_completed_in_order(&pair, 2);
    assert!(pair.sides[0].completions.iter().all(|found| found.bytes == 0));
}

#[test]
fn invalid_sges_are_refused_without_leaking_a_list() {
    let mut pair = queue_pairs(1);
    let write = write(&pair);
    let (key, address) = remote(&pair, 0);
    let read = Request::Read { sink: RegionId::NONE, sink_offset: 0, key, address };
    let read = operation(read, 0, 0, flags(Order::Relaxed));
    let side = &mut pair.sides[0];
    let beyond = pieces(side, &[(0, 8), (SOURCE_BYTES - 7, 8)]);
    assert!(matches!(post(side, &write, &beyond), Err(PostError::LocalAccess(_))));
    // This memory is not writable.
    let constant = pieces(side, &[(0, 8)]);
    assert!(matches!(post(side, &read, &constant), Err(PostError::LocalAccess(_))));
    let request = Request::Write { source: NOWHERE, key, address: u64::MAX - 3 };
    let wraps = operation(request, 0, 0, flags(Order::Relaxed));
    assert!(matches!(post(side, &wraps, &constant), Err(PostError::RemoteRange { .. })));
    assert_eq!(side.pools.in_use(), PoolUse::default());
    let most = super::pair::POOLS.operations / 2 + OPERATION_SHARE;
    for _ in 0..most {
        post(side, &write, &constant).unwrap();
    }
    let full = post(side, &write, &constant);
    assert!(matches!(full, Err(PostError::NoOperationLeft(_))));
    assert_eq!(side.pools.in_use().lists, most);
    side.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

#[test]
fn deregistering_an_sge_during_a_send_is_a_fault_of_the_operation() {
    for length in [100, 900] {
        let mut pair = queue_pairs(1);
        let write = write(&pair);
        let side = &mut pair.sides[0];
        let list = pieces(side, &[(0, length), (9000, 3000)]);
        post(side, &write, &list).unwrap();
        let spanning = side.fragment(1020).expect("there is room");
        assert!(matches!(spanning.payload, FragmentPayload::Pieces));
        side.table.deregister(side.source).unwrap();
        let memory = side.table.access();
        let gathered = side.pools.gather(&memory, &spanning.carried, &mut Vec::new());
        assert!(gathered.is_err());
        let next = side.outbound.next_fragment(&memory, &mut side.pools, 1020);
        assert!(next.is_err());
    }
}

/// Returns pieces of the source memory that have `length` bytes in total. Fills them with the
/// expected values.
fn filled(pair: &mut Pair, index: usize, length: u32) -> Vec<Piece> {
    let (mut list, mut left) = (Vec::new(), length);
    let start = index as u64 * 16_384;
    let mut at = start;
    while left > 0 && list.len() < 31 {
        let part = (pair.random.below(200) as u32).min(left);
        at += pair.random.below(50) as u64;
        list.push((at, part));
        at += u64::from(part);
        left -= part;
    }
    list.push((at, left));
    let side = &pair.sides[0];
    let mut value = index as u8;
    for &(at, part) in &list {
        let bytes: Vec<u8> = (0..part)
            .map(|_| {
                value = value.wrapping_add(7);
                value
            })
            .collect();
        side.sources.write(at, &bytes);
    }
    pieces(side, &list)
}

#[test]
fn sges_arrive_as_contiguous_bytes_whatever_frames_are_cut_lost_or_repeated() {
    for seed in 0..200 {
        let config =
            Config { queue_pair: true, rooms: &[128, 150, 333, 1020], ..Config::default() };
        let mut pair = Pair::new(config, seed);
        let mut lengths = Vec::new();
        for index in 0..6 {
            let length = pair.random.below(1200) as u32;
            lengths.push(length as usize);
            let list = filled(&mut pair, index, length);
            let (key, address) = remote(&pair, index as u64 * 1300);
            let request = if index % 3 == 2 {
                pair.sides[1].post_receive(index as u64 * 1300, 1300, 0).unwrap();
                Request::Send { source: NOWHERE }
            } else {
                Request::Write { source: NOWHERE, key, address }
            };
            let write = operation(request, index, 0, flags(Order::Strict));
            post(&mut pair.sides[0], &write, &list).unwrap();
        }
        let mut steps = 0;
        while !pair.is_idle() {
            pair.step(&mut |_| {});
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
        pair.poll();
        assert_completed_in_order(&pair, 6);
        let memory = pair.sides[1].bytes();
        for (index, length) in lengths.into_iter().enumerate() {
            let placed = &memory[index * 1300..index * 1300 + length];
            let expected = (1..=length).map(|n| (index as u8).wrapping_add((n * 7) as u8));
            assert!(expected.eq(placed.iter().copied()), "seed {seed}, operation {index}");
        }
        assert_eq!(pair.in_use(), [PoolUse::default(); 2]);
    }
}

#[test]
fn a_read_fills_its_sges_and_no_bytes_between_them() {
    for seed in 0..200 {
        let config =
            Config { queue_pair: true, rooms: &[128, 150, 333, 1020], ..Config::default() };
        let mut pair = Pair::new(config, seed);
        let bytes: Vec<u8> = (0..2000_u32).map(|n| (n % 251) as u8 + 1).collect();
        pair.sides[1].memory.write(0, &bytes);
        let mut list = Vec::new();
        let (mut at, mut length) = (0, 0);
        for _ in 0..pair.random.below(12) {
            let part = pair.random.below(160) as u32;
            at += 1 + pair.random.below(30) as u64;
            list.push((at, part));
            at += u64::from(part);
            length += part;
        }
        let region = pair.sides[0].region.id;
        let sink: Vec<_> =
            list.iter().map(|&(offset, length)| Piece { region, offset, length }).collect();
        let (key, address) = remote(&pair, 0);
        let request = Request::Read { sink: RegionId::NONE, sink_offset: 5, key, address };
        let read = operation(request, 0, 9, flags(Order::Relaxed));
        post(&mut pair.sides[0], &read, &sink).unwrap();
        let mut steps = 0;
        while !pair.is_idle() {
            pair.step(&mut |_| {});
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
        pair.poll();
        assert_completed_in_order(&pair, 1);
        assert_eq!(pair.sides[0].completions[0].bytes, length);
        let mut expected = vec![0; 8192];
        let mut from = 0;
        for (at, part) in list {
            let (at, part) = (at as usize, part as usize);
            expected[at..at + part].copy_from_slice(&bytes[from..from + part]);
            from += part;
        }
        assert_eq!(pair.sides[0].bytes(), expected, "seed {seed}");
        assert_eq!(pair.in_use(), [PoolUse::default(); 2]);
    }
}

#[test]
fn an_atomic_keeps_no_list() {
    let mut pair = queue_pairs(1);
    let (key, address) = remote(&pair, 8);
    let request = Request::FetchAdd { key, address, operand: 1, sink: None };
    let add = operation(request, 0, 8, flags(Order::Relaxed));
    let side = &mut pair.sides[0];
    let list = pieces(side, &[(0, 100)]);
    post(side, &add, &list).unwrap();
    assert_eq!(side.pools.in_use().lists, 0);
    assert_eq!(sends_of(side), [0]);
    acknowledge(side, 1, 0);
}
