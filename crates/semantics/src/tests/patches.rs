//! Tests of patches and swaps.

use std::collections::BTreeMap;

use mem::Rights;
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, OperationNumber, PATCH_BLOCK_BYTES, PatchRecord,
    PatchRecords,
};

use super::pair::{
    Config, Pair, Random, assert_completed_in_order, flags, operation, remote, write,
};
use crate::inbound::{InboundLimits, Verdict};
use crate::outbound::{LocalFault, PeerLimits};
use work::{CompletionKind, Operation, OperationFlags, Order, PostError, Request, Source};

/// Sizes of frames that have room for the largest record and an immediate.
const ROOMS: &[u32] = &[160, 161, 203, 333, 1400, 5000];

/// Words of a patch with their values, by their number from the start of the area.
type Words = BTreeMap<u32, u32>;

//= protocol.md: patch.6, patch.7, fence.1
/// The application changes each word right after the delivery of its operation. A word that is
/// placed late, twice or not at all is therefore noticed.
#[test]
fn each_named_word_is_placed_once_and_no_other_byte_changes() {
    for seed in 0..300 {
        let config = Config { repeat: 50, rooms: ROOMS, ..Config::default() };
        let mut pair = Pair::new(config, seed);
        pair.history = Some(Vec::new());
        let mut random = Random(seed);
        // Each patch has every tenth word, beginning at another one, so that patches share blocks
        // and no word.
        let all: Vec<Words> = (0..10)
            .map(|index| {
                let mut words = Words::new();
                for word in (0..150).map(|nth| nth * 10 + index) {
                    if random.chance(60) {
                        words.insert(word, random.next() as u32 | 1);
                    }
                }
                words
            })
            .collect();
        let operations: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(index, words)| {
                let fence_before = random.chance(40);
                let flags = OperationFlags { fence_before, ..flags(Order::Relaxed) };
                let immediate = random.chance(50).then_some(7);
                Operation { immediate, ..patch(&pair, index, 16, words, flags) }
            })
            .collect();
        let mut done = 0;
        let mut fixed: Vec<(usize, [u8; 4])> = Vec::new();
        pair.run(&operations, &mut |sides| {
            let delivered = sides[1].inbound.delivered().since(OperationNumber(0)) as usize;
            let bytes = sides[1].bytes();
            for words in &all[done..delivered] {
                for (word, value) in words {
                    let at = 16 + 4 * *word as usize;
                    assert_eq!(bytes[at..at + 4], value.to_ne_bytes(), "word {word}");
                    sides[1].fill(at as u64, 4, 0xee);
                    fixed.push((at, [0xee; 4]));
                }
            }
            done = delivered;
            let bytes = sides[1].bytes();
            assert!(fixed.iter().all(|&(at, value)| bytes[at..at + 4] == value));
        });
        assert_completed_in_order(&pair, operations.len());
        assert_eq!(pair.sides[0].completions[0].kind, CompletionKind::Patch);
        let mut expected = vec![0; pair.sides[1].bytes().len()];
        for (at, value) in fixed {
            expected[at..at + 4].copy_from_slice(&value);
        }
        assert_eq!(pair.sides[1].bytes(), expected);
        for packet in pair.history.take().unwrap() {
            assert_whole(&packet.header, &packet.payload);
            assert_eq!(pair.receive(&packet), Verdict::Duplicate);
        }
        assert_eq!(pair.sides[1].bytes(), expected);
    }
}

/// Checks that a frame has whole records and fits into the largest room.
fn assert_whole(header: &Header, payload: &[u8]) {
    let Header::Patch { immediate, .. } = *header else { panic!("{header:?}") };
    let mut records = PatchRecords::new(payload);
    records.by_ref().for_each(drop);
    assert_eq!(records.rest(), []);
    assert!(20 + 4 * usize::from(immediate.is_some()) + payload.len() <= 5000);
}

//= protocol.md: patch.2
#[test]
fn a_patch_is_cut_between_records_and_leaves_room_for_its_immediate() {
    // Two records of 136 bytes each, and the headers of a frame without the common header.
    for (room, immediate, expected) in [
        (292, None, vec![272]),
        (291, None, vec![136, 136]),
        (295, Some(1), vec![136, 136]),
        (296, Some(1), vec![272]),
        (160, Some(1), vec![136, 136]),
    ] {
        let mut pair = Pair::new(Config::default(), 1);
        let words: Words = (0..64).map(|word| (word, word)).collect();
        let posted = patch(&pair, 0, 0, &words, flags(Order::Relaxed));
        let start = pair.sides[1].region.start;
        let side = &mut pair.sides[0];
        assert_eq!(side.outbound.room_bytes_min(), 48);
        side.post(&Operation { immediate, ..posted }).unwrap();
        assert_eq!(side.outbound.room_bytes_min(), 160);
        let mut lengths = Vec::new();
        while let Some(fragment) = side.fragment(room) {
            let is_last = fragment.flags.contains(Flags::LAST);
            let Header::Patch { immediate: found, address, .. } = fragment.header else {
                panic!("{:?}", fragment.header)
            };
            assert_eq!(found, immediate.filter(|_| is_last));
            assert_eq!(address, start, "the address is that of the area");
            lengths.push(u32::from(fragment.carried.length));
        }
        assert_eq!(lengths, expected, "room {room}, {immediate:?}");
    }
}

//= protocol.md: patch.5
#[test]
fn only_named_words_must_be_in_the_region_and_all_are_checked_first() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, start) = remote(&pair, 0);
    let end = start + super::pair::MEMORY_BYTES;
    let side = &mut pair.sides[1];
    let bits = |first: u32, second: u32| 1 << first | 1 << second;
    let mut handle = |number, address, bitmap| {
        let operation = OperationNumber(number);
        let header = Header::Patch { operation, offset: 0, key, address, immediate: None };
        let verdict = side.handle(Flags::LAST, &header, &payload(&[(0, bitmap)]));
        let changed = side.bytes().iter().any(|&byte| byte != 0);
        side.fill(0, super::pair::MEMORY_BYTES as usize, 0);
        (verdict, changed)
    };
    // The area begins before the region, or ends behind it.
    assert_eq!(handle(0, start - 64, bits(16, 31)), (Verdict::Accepted, true));
    assert_eq!(handle(1, end - 64, bits(0, 15)), (Verdict::Accepted, true));
    let (reason, operation) = (CloseReason::OutOfRange, OperationNumber(2));
    let refused = Verdict::Violation { reason, operation };
    assert_eq!(handle(2, start - 64, bits(15, 31)), (refused, false));
    assert_eq!(handle(2, end - 64, bits(0, 16)), (refused, false));
    // A patch that names no word touches no memory, so its key is not checked.
    assert_eq!(handle(2, 1 << 60, 0), (Verdict::Accepted, false));
}

//= protocol.md: patch.5
#[test]
fn a_patch_needs_the_right_to_write() {
    let right_of = |rights| {
        let mut pair = Pair::new(Config::default(), 1);
        let side = &mut pair.sides[1];
        let domain = side.domain;
        let region = side.table.register(domain, mem::Buffer::new(4096), rights).unwrap();
        let header = Header::Patch {
            operation: OperationNumber(0),
            offset: 0,
            key: region.key,
            address: region.start,
            immediate: None,
        };
        side.handle(Flags::LAST, &header, &payload(&[(3, 1)]))
    };
    assert_eq!(right_of(Rights::REMOTE_WRITE), Verdict::Accepted);
    let (reason, operation) = (CloseReason::RightMissing, OperationNumber(0));
    for rights in [Rights::NONE, Rights::REMOTE_READ.union(Rights::REMOTE_ATOMIC)] {
        assert_eq!(right_of(rights), Verdict::Violation { reason, operation });
    }
}

//= protocol.md: patch.8
#[test]
fn a_connection_without_the_feature_has_neither_patches_nor_swaps() {
    let posts = |pair: &mut Pair| {
        let (key, address) = remote(pair, 0);
        let words: Words = [(3, 7)].into_iter().collect();
        let patch = patch(pair, 0, 0, &words, flags(Order::Relaxed));
        let swap = Request::Swap { key, address, value: 1, sink: None };
        let swap = operation(swap, 1, 8, flags(Order::Relaxed));
        [patch, swap].map(|operation| pair.sides[0].post(&operation).err())
    };
    let handles = |pair: &mut Pair| {
        let (key, address) = remote(pair, 0);
        let (operation, offset, immediate) = (OperationNumber(0), 0, None);
        let patch = Header::Patch { operation, offset, key, address, immediate };
        let (opcode, operand, compare) = (AtomicOpcode::Swap, 5, 0);
        let swap = Header::Atomic { operation, opcode, key, address, operand, compare };
        let side = &mut pair.sides[1];
        [
            side.handle(Flags::LAST, &patch, &payload(&[(0, 1)])),
            side.handle(Flags::LAST, &swap, &[]),
        ]
    };
    let (reason, operation) = (CloseReason::ProtocolViolation, OperationNumber(0));
    let violation = Verdict::Violation { reason, operation };

    let mut pair = Pair::new(Config { queue_pair: true, ..Config::default() }, 1);
    assert_eq!(posts(&mut pair), [Some(PostError::PatchesRefused); 2]);
    assert_eq!(handles(&mut pair), [violation; 2]);

    let mut pair = Pair::new(Config::default(), 1);
    pair.sides[0].outbound.set_peer_limits(PeerLimits {
        operation_window: 64,
        read_depth: 4,
        order_pool_bytes: 1024,
        patches: false,
        credit: wire_edge::MessageNumber(0),
    });
    assert_eq!(posts(&mut pair), [Some(PostError::PatchesRefused); 2]);
    let side = &mut pair.sides[1];
    let limits = InboundLimits {
        operation_window: 64,
        read_depth: 4,
        order_pool_bytes: 1024,
        receives: 4,
        rights: Rights::ALL,
        patches: false,
    };
    let queues = std::sync::Arc::clone(&side.queue).into();
    side.inbound = crate::Inbound::new(work::Owner::new(7, 1), side.domain, limits, &queues);
    assert_eq!(handles(&mut pair), [violation; 2]);
}

//= protocol.md: patch.4
#[test]
fn a_strict_patch_is_refused_when_it_is_posted() {
    let mut pair = Pair::new(Config::default(), 1);
    let words: Words = [(3, 7)].into_iter().collect();
    let strict = patch(&pair, 0, 0, &words, flags(Order::Strict));
    assert_eq!(pair.sides[0].post(&strict), Err(PostError::PatchStrict));
}

//= protocol.md: patch.7, strict.3
#[test]
fn a_late_strict_write_does_not_yield_to_a_patch() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let side = &mut pair.sides[1];
    let operation = OperationNumber(1);
    let header = Header::Patch { operation, offset: 0, key, address, immediate: None };
    assert_eq!(side.handle(Flags::NONE, &header, &payload(&[(0, 0b110)])), Verdict::Accepted);
    assert_eq!(side.bytes()[..16], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
    let operation = OperationNumber(0);
    let header = Header::Write { operation, offset: 0, key, address, immediate: None };
    let flags = Flags::LAST.with(Flags::STRICT);
    assert_eq!(side.handle(flags, &header, &[9; 12]), Verdict::Accepted);
    assert_eq!(side.bytes()[..13], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
}

//= protocol.md: notify.1
#[test]
fn a_patch_with_an_immediate_notifies_of_its_area_and_of_the_length_of_its_payload() {
    let mut pair = Pair::new(Config { rooms: ROOMS, ..Config::default() }, 5);
    let words: Words = (0..90).map(|word| (word * 7, word)).collect();
    let posted = patch(&pair, 0, 24, &words, flags(Order::Relaxed));
    let posted = Operation { immediate: Some(0xabcd), ..posted };
    pair.run(&[posted], &mut |_| {});
    let (_, address) = remote(&pair, 24);
    pair.sides[1].poll();
    let [found] = pair.sides[1].completions[..] else { panic!("one notification") };
    let facts = (found.kind, found.value, found.bytes, found.immediate);
    assert_eq!(facts, (CompletionKind::Notification, address, posted.length, Some(0xabcd)));
}

/// The engine must not loop or panic if a program changes records that are posted.
#[test]
fn records_that_are_no_longer_whole_are_a_local_fault() {
    let mut pair = Pair::new(Config::default(), 1);
    let words: Words = (0..64).map(|word| (word, word)).collect();
    let posted = patch(&pair, 0, 0, &words, flags(Order::Relaxed));
    let side = &mut pair.sides[0];
    side.post(&posted).unwrap();
    assert_eq!(side.fragment(160).unwrap().carried.length, 136);
    // The second record now claims 32 words and begins 4 bytes before the end.
    let Request::Patch { source: Source::Region { offset, .. }, .. } = posted.request else {
        panic!("{posted:?}")
    };
    side.sources.write(offset + 136, &PatchRecord { block: 1, bitmap: 0 }.encode());
    for at in (144..272).step_by(8) {
        side.sources.write(offset + at, &PatchRecord { block: 2, bitmap: u32::MAX }.encode());
    }
    assert_eq!(side.fragment(150).unwrap().carried.length, 8);
    let memory = side.table.access();
    let cut = side.outbound.next_fragment(&memory, &mut side.pools, 100);
    assert!(matches!(cut, Err(LocalFault::Operation(OperationNumber(0)))), "{cut:?}");
}

//= protocol.md: answer.3
#[test]
fn swaps_return_the_values_that_they_replace_in_the_order_of_posting() {
    for seed in 0..50 {
        let mut pair = Pair::new(Config::default(), seed);
        pair.sides[1].memory.store_u64(8, 41);
        let (key, address) = remote(&pair, 8);
        let swaps: Vec<_> = (0..12)
            .map(|index| {
                let request = Request::Swap { key, address, value: index, sink: None };
                operation(request, index as usize, 8, flags(Order::Relaxed))
            })
            .collect();
        pair.run(&swaps, &mut |_| {});
        assert_completed_in_order(&pair, swaps.len());
        let found = pair.sides[0].completions.iter().map(|found| (found.kind, found.value));
        let values = [41].into_iter().chain(0..11);
        let expected = values.map(|value| (CompletionKind::Swap, value));
        assert!(found.eq(expected));
        assert_eq!(pair.sides[1].memory.load_u64(8), 11);
    }
}

#[test]
fn a_swap_at_a_misaligned_address_is_refused_when_it_is_posted() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 4);
    let swap = Request::Swap { key, address, value: 1, sink: None };
    let found = pair.sides[0].post(&operation(swap, 0, 8, flags(Order::Relaxed)));
    assert_eq!(found, Err(PostError::Misaligned(address)));
}

//= protocol.md: fence.1
#[test]
fn a_fenced_patch_is_placed_after_all_earlier_writes() {
    for seed in 0..100 {
        let mut pair = Pair::new(Config { rooms: ROOMS, ..Config::default() }, seed);
        let words: Words = (0..500).map(|word| (word * 2, 0x5500_0000 | word)).collect();
        let fenced = OperationFlags { fence_before: true, ..flags(Order::Relaxed) };
        let operations =
            [write(&pair, 0, 0, 4000, flags(Order::Relaxed)), patch(&pair, 1, 0, &words, fenced)];
        pair.run(&operations, &mut |sides| {
            let bytes = sides[1].bytes();
            let is_patched = words.keys().any(|word| bytes[4 * *word as usize + 3] == 0x55);
            let is_written = (0..4000).all(|at| bytes[at] == 1 || words_cover(&words, at));
            assert!(!is_patched || is_written || sides[1].inbound.delivered().0 > 0);
        });
        let bytes = pair.sides[1].bytes();
        for (word, value) in &words {
            let at = 4 * *word as usize;
            assert_eq!(bytes[at..at + 4], value.to_ne_bytes());
            assert!(bytes[at + 4..at + 8].iter().all(|&byte| byte == u8::from(at + 4 < 4000)));
        }
    }
}

fn words_cover(words: &Words, at: usize) -> bool {
    words.contains_key(&(at as u32 / 4))
}

/// Returns a patch of these words. The area begins `offset` bytes after the start of the memory of
/// side 1.
fn patch(
    pair: &Pair,
    index: usize,
    offset: u64,
    words: &Words,
    flags: OperationFlags,
) -> Operation {
    let mut payload = Vec::new();
    let words: Vec<(u32, u32)> = words.iter().map(|(&word, &value)| (word, value)).collect();
    let per_block = (PATCH_BLOCK_BYTES / 4) as u32;
    for block in words.chunk_by(|one, next| one.0 / per_block == next.0 / per_block) {
        let bitmap = block.iter().fold(0, |bitmap, (word, _)| bitmap | 1 << (word % per_block));
        let record = PatchRecord { block: (block[0].0 / per_block) as u16, bitmap };
        payload.extend_from_slice(&record.encode());
        for (_, value) in block {
            payload.extend_from_slice(&value.to_ne_bytes());
        }
    }
    let at = index as u64 * 8192;
    pair.sides[0].sources.write(at, &payload);
    let source = Source::Region { region: pair.sides[0].source, offset: at };
    let (key, address) = remote(pair, offset);
    let request = Request::Patch { source, key, address };
    operation(request, index, payload.len() as u32, flags)
}

/// Returns records of these blocks and bitmaps. Every byte of their words is 1.
fn payload(records: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for &(block, bitmap) in records {
        payload.extend_from_slice(&PatchRecord { block, bitmap }.encode());
        payload.resize(payload.len() + 4 * bitmap.count_ones() as usize, 1);
    }
    payload
}
