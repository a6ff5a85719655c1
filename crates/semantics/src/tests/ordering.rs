//! Tests of the order in which bytes are placed. A sequential oracle says what memory must be.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use wire_edge::{Flags, OperationNumber};

use super::pair::{
    Config, MEMORY_BYTES, Pair, Random, Side, assert_completed_in_order, flags, operation, write,
};
use work::{Operation, OperationFlags, Order, Request, Source};

/// The range of a write, and its flags for order.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    length: u32,
    flags: OperationFlags,
}

/// Size in bytes of the target memory to which the writes go.
const ARENA_BYTES: usize = 1200;

fn pieces(random: &mut Random, count: usize, order: Order, fences: u64) -> Vec<Piece> {
    (0..count)
        .map(|_| {
            let length = match random.below(4) {
                0 => random.below(9),
                1 => random.below(60),
                _ => random.below(900),
            };
            Piece {
                offset: random.below(ARENA_BYTES - length) as u64,
                length: length as u32,
                flags: OperationFlags {
                    fence_before: random.chance(fences),
                    fence_after: random.chance(fences),
                    ..flags(order)
                },
            }
        })
        .collect()
}

fn sequential(pieces: &[Piece]) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES as usize];
    for (index, piece) in pieces.iter().enumerate() {
        memory[piece.offset as usize..][..piece.length as usize].fill(index as u8 + 1);
    }
    memory
}

/// Checks the order in which a thread sees the bytes of an operation. If it sees the last byte, it
/// also sees all earlier bytes, or newer bytes in their place.
fn check_tails(pieces: &[Piece], memory: &[u8]) {
    let newest_seen = pieces.iter().enumerate().rev().find(|(index, piece)| {
        let end = piece.offset as usize + piece.length as usize;
        piece.length > 0 && memory[end - 1] == *index as u8 + 1
    });
    let Some((newest_seen, _)) = newest_seen else { return };
    for (index, piece) in pieces.iter().enumerate().take(newest_seen + 1) {
        let range = &memory[piece.offset as usize..][..piece.length as usize];
        let torn = range.iter().any(|&byte| usize::from(byte) < index + 1);
        assert!(!torn, "the tail of {newest_seen} is visible, and {index} is not");
    }
}

/// Checks two rules:
/// * No byte of a fenced operation is visible before all earlier operations are delivered.
/// * No byte of a later operation is visible before an operation with `FENCE_AFTER` is delivered.
fn check_fences(pieces: &[Piece], side: &Side, first: OperationNumber, memory: &[u8]) {
    let delivered = side.inbound.delivered().since(first) as usize;
    let mut fenced_from = usize::MAX;
    for (index, piece) in pieces.iter().enumerate() {
        let fenced = piece.flags.fence_before && index > delivered;
        let visible = memory.contains(&(index as u8 + 1));
        assert!(!(fenced && visible), "{index} is visible, delivered are {delivered}");
        assert!(!(index > fenced_from && visible), "{index} has overtaken fence {fenced_from}");
        if piece.flags.fence_after && index >= delivered {
            fenced_from = fenced_from.min(index);
        }
    }
}

fn operations(pair: &Pair, pieces: &[Piece]) -> Vec<Operation> {
    let write_piece = |(index, piece): (usize, &Piece)| {
        write(pair, index, piece.offset, piece.length, piece.flags)
    };
    pieces.iter().enumerate().map(write_piece).collect()
}

fn strict_run(seed: u64, config: Config, fences: u64, stripped: Flags) {
    let mut random = Random(seed ^ 0x5eed);
    let count = 2 + random.below(24);
    let pieces = pieces(&mut random, count, Order::Strict, fences);
    run_pieces(seed, config, &pieces, ARENA_BYTES, stripped);
}

fn run_pieces(seed: u64, config: Config, pieces: &[Piece], arena: usize, stripped: Flags) {
    let mut pair = Pair::new(config, seed);
    pair.stripped = stripped;
    let operations = operations(&pair, pieces);
    pair.run(&operations, &mut |sides| {
        let memory = &sides[1].bytes()[..arena];
        check_tails(pieces, memory);
        check_fences(pieces, &sides[1], config.first, memory);
    });
    assert_eq!(pair.sides[1].bytes()[..arena], sequential(pieces)[..arena]);
    assert_completed_in_order(&pair, pieces.len());
}

const SEEDS: u64 = 400;

//= protocol.md: strict.1, strict.2
#[test]
fn strict_writes_have_a_sequential_result_and_place_tails_last() {
    for seed in 0..SEEDS {
        strict_run(seed, Config::default(), 0, Flags::NONE);
    }
}

//= protocol.md: fence.1
#[test]
fn strict_and_fenced_writes_have_a_sequential_result() {
    for seed in 0..SEEDS {
        strict_run(seed, Config::default(), 20, Flags::NONE);
    }
}

//= protocol.md: operation.1
#[test]
fn order_holds_when_operation_numbers_wrap_around() {
    for seed in 0..SEEDS / 4 {
        let first = OperationNumber(u32::MAX - (seed % 20) as u32);
        strict_run(seed, Config { first, ..Config::default() }, 10, Flags::NONE);
    }
}

#[test]
fn order_holds_when_every_pool_is_tiny() {
    let mut config = Config { window: 12, order_pool_bytes: 700, ..Config::default() };
    config.pools.incoming = 3;
    config.pools.order_blocks = 2;
    config.pools.retransmissions = 1;
    for seed in 0..SEEDS / 2 {
        strict_run(seed, config, 10, Flags::NONE);
        strict_run(seed, Config { order_pool_bytes: 0, ..config }, 10, Flags::NONE);
    }
}

/// Frames fill several blocks of the order pool and are retransmitted in smaller frames.
#[test]
fn order_holds_when_frames_differ_much_in_size() {
    const ARENA: usize = 6000;
    let rooms = &[128, 400, 1460, 4200];
    for seed in 0..SEEDS / 5 {
        let mut random = Random(seed ^ 0xb16);
        let piece = |random: &mut Random| Piece {
            offset: random.below(ARENA - 4000) as u64,
            length: random.below(4000) as u32,
            flags: OperationFlags {
                fence_before: random.chance(15),
                fence_after: random.chance(5),
                ..flags(Order::Strict)
            },
        };
        let pieces: Vec<_> = (0..8).map(|_| piece(&mut random)).collect();
        let config = Config { rooms, ..Config::default() };
        run_pieces(seed, config, &pieces, ARENA, Flags::NONE);
        let mut config = Config { order_pool_bytes: 6000, ..config };
        config.pools.order_blocks = 4;
        run_pieces(seed, config, &pieces, ARENA, Flags::NONE);
    }
}

#[test]
fn the_oracle_detects_missing_strict_rules() {
    let wrong = (0..40).filter(|&seed| {
        catch_unwind(AssertUnwindSafe(|| strict_run(seed, Config::default(), 0, Flags::STRICT)))
            .is_err()
    });
    assert!(wrong.count() > 20);
}

//= protocol.md: fence.1
#[test]
fn the_oracle_detects_missing_fences() {
    let wrong = (0..40).filter(|&seed| {
        let off = Flags::FENCE_BEFORE;
        catch_unwind(AssertUnwindSafe(|| strict_run(seed, Config::default(), 20, off))).is_err()
    });
    assert!(wrong.count() > 0);
}

//= protocol.md: relaxed.1
#[test]
fn relaxed_writes_all_arrive_and_fences_hold() {
    for seed in 0..SEEDS {
        let mut random = Random(seed ^ 0xe1a);
        let count = 2 + random.below(24);
        let config = Config::default();
        let pieces = pieces(&mut random, count, Order::Relaxed, 15);
        let mut pair = Pair::new(config, seed);
        let operations = operations(&pair, &pieces);
        pair.run(&operations, &mut |sides| {
            let memory = &sides[1].bytes()[..ARENA_BYTES];
            check_fences(&pieces, &sides[1], config.first, memory);
        });
        let memory = pair.sides[1].bytes();
        for (at, &byte) in memory[..ARENA_BYTES].iter().enumerate() {
            let covers = |piece: &Piece| {
                (piece.offset..piece.offset + u64::from(piece.length)).contains(&(at as u64))
            };
            let written = pieces.iter().any(covers);
            assert_eq!(byte != 0, written, "byte {at}");
            assert!(byte == 0 || covers(&pieces[usize::from(byte) - 1]), "byte {at}");
            // A fenced write overwrites all earlier writes.
            let fence = pieces.iter().rposition(|piece| piece.flags.fence_before && covers(piece));
            let older = fence.is_some_and(|fence| usize::from(byte) <= fence);
            assert!(!older, "byte {at} is older than its fence");
        }
        assert_completed_in_order(&pair, count);
    }
}

/// Two regions cover the same memory at different addresses.
#[test]
fn a_late_writer_yields_by_memory_and_not_by_address() {
    for seed in 0..SEEDS {
        let config = Config::default();
        let mut pair = Pair::new(config, seed);
        let side = &pair.sides[1];
        let rights = mem::Rights::REMOTE_WRITE;
        // Register a second region over the memory of the first.
        let buffer = side.memory.clone();
        let alias = side.table.register_as(side.domain, buffer, 1000, rights).unwrap();
        let start = side.region.start;
        let mut random = Random(seed ^ 0xa11a5);
        let pieces = pieces(&mut random, 16, Order::Strict, 0);
        let mut operations = operations(&pair, &pieces);
        for operation in &mut operations {
            if let Request::Write { key, address, .. } = &mut operation.request
                && random.chance(50)
            {
                *key = alias.key;
                *address = *address - start + alias.start;
            }
        }
        pair.run(&operations, &mut |sides| check_tails(&pieces, &sides[1].bytes()));
        assert_eq!(pair.sides[1].bytes(), sequential(&pieces));
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    (0_u64..300, 0_u32..500, any::<bool>(), 0_u8..10, 0_u8..10).prop_map(
        |(offset, length, strict, before, after)| Piece {
            offset,
            length,
            flags: OperationFlags {
                fence_before: before == 0,
                fence_after: after == 0,
                ..flags(if strict { Order::Strict } else { Order::Relaxed })
            },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn strict_writes_of_any_shape_have_a_sequential_result(
        mut pieces in proptest::collection::vec(piece(), 1..20),
        seed in any::<u64>(),
        lose in 0_u64..40,
        repeat in 0_u64..60,
    ) {
        for piece in &mut pieces {
            piece.flags.order = Order::Strict;
        }
        let config = Config { lose, repeat, ..Config::default() };
        let mut pair = Pair::new(config, seed);
        let operations = operations(&pair, &pieces);
        pair.run(&operations, &mut |sides| check_tails(&pieces, &sides[1].bytes()));
        prop_assert_eq!(pair.sides[1].bytes(), sequential(&pieces));
    }

    //= protocol.md: fence.3
    #[test]
    fn mixed_orders_keep_their_fences(
        pieces in proptest::collection::vec(piece(), 1..20),
        seed in any::<u64>(),
    ) {
        let config = Config::default();
        let mut pair = Pair::new(config, seed);
        let operations = operations(&pair, &pieces);
        pair.run(&operations, &mut |sides| {
            check_fences(&pieces, &sides[1], config.first, &sides[1].bytes()[..ARENA_BYTES]);
        });
        assert_completed_in_order(&pair, pieces.len());
    }
}

/// A fragment of an operation whose end never arrives. Fragments arrive in any order and use two
/// keys for the same memory. The test compares the result with a model of single bytes.
#[derive(Clone, Copy, Debug)]
struct Scrap {
    operation: u32,
    offset: u32,
    length: u32,
}

fn scrap() -> impl Strategy<Value = Scrap> {
    (0_u32..6, 0_u32..300, 1_u32..90).prop_map(|(operation, offset, length)| Scrap {
        operation,
        offset,
        length,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    //= protocol.md: strict.3
    #[test]
    fn late_bytes_yield_to_newer_bytes_only(
        // For each operation: its start, whether it is strict, and whether it uses the alias
        // region.
        shapes in proptest::collection::vec((0_u64..120, any::<bool>(), any::<bool>()), 6),
        scraps in proptest::collection::vec(scrap(), 1..80),
    ) {
        let mut pair = Pair::new(Config::default(), 1);
        let side = &mut pair.sides[1];
        let rights = mem::Rights::REMOTE_WRITE;
        let alias = side.table.register_as(side.domain, side.memory.clone(), 77_000, rights).unwrap();
        let mut model = vec![0; MEMORY_BYTES as usize];
        // For each byte of memory: for each operation, whether its value for this byte has arrived.
        let mut here = vec![[false; 6]; MEMORY_BYTES as usize];
        for (index, scrap) in scraps.iter().enumerate() {
            let (base, is_strict, is_alias) = shapes[scrap.operation as usize];
            let region = if is_alias { alias } else { side.region };
            let header = wire_edge::Header::Write {
                operation: OperationNumber(scrap.operation),
                offset: scrap.offset,
                key: region.key,
                address: region.start + base + u64::from(scrap.offset),
                immediate: None,
            };
            let flags = if is_strict { Flags::STRICT } else { Flags::NONE };
            let value = index as u8 + 1;
            side.handle(flags, &header, &vec![value; scrap.length as usize]);
            let start = (base + u64::from(scrap.offset)) as usize;
            let own = scrap.operation as usize;
            for at in start..start + scrap.length as usize {
                let yields = is_strict && here[at][own + 1..].contains(&true);
                if !here[at][own] && !yields {
                    model[at] = value;
                }
                here[at][own] = true;
            }
            prop_assert_eq!(&side.bytes(), &model, "after {:?}", scrap);
        }
    }
}

/// Two regions have the same address for different memory.
#[test]
fn a_late_writer_does_not_yield_to_another_region_with_the_same_address() {
    use wire_edge::Header;
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[1];
    let rights = mem::Rights::REMOTE_WRITE;
    let buffers = [mem::Buffer::new(100), mem::Buffer::new(100)];
    let keys = buffers
        .each_ref()
        .map(|buffer| side.table.register_as(side.domain, buffer.clone(), 0, rights).unwrap().key);
    let mut handle = |number: u32, offset: u32, last| {
        let header = Header::Write {
            operation: OperationNumber(number),
            offset,
            key: keys[number as usize],
            address: u64::from(offset),
            immediate: None,
        };
        let flags = if last { Flags::STRICT.with(Flags::LAST) } else { Flags::STRICT };
        assert_eq!(
            side.handle(flags, &header, &[number as u8 + 1; 50]),
            crate::inbound::Verdict::Accepted
        );
    };
    handle(1, 0, false);
    handle(0, 0, false);
    handle(0, 50, true);
    handle(1, 50, true);
    for (buffer, value) in buffers.iter().zip([1, 2]) {
        let mut bytes = [0; 100];
        buffer.read(0, &mut bytes);
        assert_eq!(bytes, [value; 100]);
    }
}

//= protocol.md: strict.2
/// The whole tail arrives after a shorter fragment has placed a part of the tail as body.
#[test]
fn a_tail_with_other_fragment_bounds_does_not_hide_placed_bytes() {
    use wire_edge::Header;
    let config = Config::default();
    let mut pair = Pair::new(config, 1);
    let (key, base) = super::pair::remote(&pair, 0);
    let side = &mut pair.sides[1];
    let mut handle = |number: u32, from: u32, to: u32, end: u32| {
        let flags = if to == end { Flags::STRICT.with(Flags::LAST) } else { Flags::STRICT };
        let header = Header::Write {
            operation: OperationNumber(number),
            offset: from,
            key,
            address: base + u64::from(from),
            immediate: None,
        };
        let verdict = side.handle(flags, &header, &vec![number as u8 + 1; (to - from) as usize]);
        assert_eq!(verdict, crate::inbound::Verdict::Accepted);
    };
    // Of operation 1, a part of the tail arrives first, as body; then the whole tail; and at the
    // end the body.
    handle(1, 1000, 1100, 1440);
    handle(1, 700, 1440, 1440);
    handle(0, 900, 1440, 1440);
    handle(0, 0, 900, 1440);
    handle(1, 0, 700, 1440);
    assert_eq!(pair.sides[1].bytes()[..1440], [2; 1440]);
    assert_eq!(pair.sides[1].inbound.delivered(), OperationNumber(2));
}

/// When a longer tail arrives, a part of it is already held and is not held again. The pool has
/// room for this part only once.
#[test]
fn a_longer_tail_is_held_without_the_part_already_held() {
    use wire_edge::Header;
    let mut pair = Pair::new(Config { order_pool_bytes: 740, ..Config::default() }, 1);
    let (key, base) = super::pair::remote(&pair, 0);
    for from in [1200_u32, 700] {
        let header = Header::Write {
            operation: OperationNumber(1),
            offset: from,
            key,
            address: base + u64::from(from),
            immediate: None,
        };
        let payload = vec![1; 1440 - from as usize];
        let verdict = pair.sides[1].handle(Flags::STRICT.with(Flags::LAST), &header, &payload);
        assert_eq!(verdict, crate::inbound::Verdict::Accepted);
    }
}

//= protocol.md: operation.8
/// A frame covers many separate gaps, and the bytes of each gap need a block of the order pool.
#[test]
fn a_fragment_that_needs_too_many_blocks_is_refused() {
    use wire_edge::Header;
    let mut config = Config::default();
    config.pools.order_blocks = 5;
    let mut pair = Pair::new(config, 1);
    let (key, base) = super::pair::remote(&pair, 0);
    let side = &mut pair.sides[1];
    let mut handle = |from: u32, to: u32| {
        let header = Header::Write {
            operation: OperationNumber(1),
            offset: from,
            key,
            address: base + u64::from(from),
            immediate: None,
        };
        side.handle(Flags::FENCE_BEFORE, &header, &vec![9; (to - from) as usize])
    };
    assert_eq!(handle(10, 20), crate::inbound::Verdict::Accepted);
    assert_eq!(handle(30, 40), crate::inbound::Verdict::Accepted);
    assert_eq!(handle(0, 2000), crate::inbound::Verdict::Refused(crate::inbound::Refusal::Pool));
    assert_eq!(handle(0, 100), crate::inbound::Verdict::Accepted);
    assert_eq!(side.pools.in_use().order_blocks, 5);
}

//= protocol.md: length.3, operation.3
/// Writes of length 0 change no memory, but they are delivered in order.
#[test]
fn operations_of_no_bytes_are_delivered_in_order() {
    for seed in 0..50 {
        let mut pair = Pair::new(Config::default(), seed);
        let (key, address) = super::pair::remote(&pair, 0);
        let source = Source::Inline([0; 64]);
        let empty = |index| {
            let order = if index % 2 == 0 { Order::Strict } else { Order::Relaxed };
            let flags = OperationFlags { fence_before: index % 3 == 0, ..flags(order) };
            operation(Request::Write { source, key, address }, index, 0, flags)
        };
        let operations: Vec<_> = (0..20).map(empty).collect();
        pair.run(&operations, &mut |_| {});
        assert_completed_in_order(&pair, 20);
    }
}
