//! Tests with a peer that sends false values. This side must not panic, must protect its memory,
//! and must limit its records.

use proptest::prelude::*;
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey,
};

use super::pair::{Config, Pair, flags, operation, remote, write};
use crate::inbound::Verdict;
use crate::outbound::Answer;
use crate::pools::PoolUse;
use work::{OperationError, Order, Request};

fn part(pair: &Pair, number: u32, offset: u32) -> Header {
    let (key, address) = remote(pair, u64::from(offset));
    Header::Write { operation: OperationNumber(number), offset, key, address, immediate: None }
}

const BROKEN: Verdict =
    Verdict::Violation { reason: CloseReason::ProtocolViolation, operation: OperationNumber(1) };

/// Flags, offset and length of a fragment.
type Frame = (Flags, u32, u32);

//= protocol.md: operation.2
#[test]
fn contradictory_fragments_end_the_connection() {
    let (last, none) = (Flags::LAST, Flags::NONE);
    let cases: [(&[Frame], &str); 6] = [
        (&[(last, 100, 10), (last, 200, 10)], "a second, later end"),
        (&[(last, 100, 10), (last, 50, 10)], "a second, earlier end"),
        (&[(last, 100, 10), (none, 105, 10)], "bytes behind the end"),
        (&[(none, 100, 10), (last, 50, 10)], "an end before bytes that came"),
        (&[(none, 100, 10), (Flags::STRICT, 50, 10)], "another order"),
        (&[(none, 100, 10), (Flags::FENCE_BEFORE, 50, 10)], "another fence"),
    ];
    for (frames, what) in cases {
        let mut pair = Pair::new(Config::default(), 1);
        let (end, before) = frames.split_last().unwrap();
        for &(flags, offset, len) in before {
            let header = part(&pair, 1, offset);
            let verdict = pair.sides[1].handle(flags, &header, &vec![1; len as usize]);
            assert_eq!(verdict, Verdict::Accepted, "{what}");
        }
        let header = part(&pair, 1, end.1);
        let memory = pair.sides[1].bytes();
        assert_eq!(
            pair.sides[1].handle(end.0, &header, &vec![2; end.2 as usize]),
            BROKEN,
            "{what}"
        );
        assert_eq!(pair.sides[1].bytes(), memory, "{what}");
    }
}

//= protocol.md: operation.2
#[test]
fn fragments_of_two_operations_under_one_number_end_the_connection() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let number = OperationNumber(1);
    let side = &mut pair.sides[1];
    side.post_receive(4096, 100, 0).unwrap();
    let write = |key, address| Header::Write {
        operation: number,
        offset: 8,
        key,
        address,
        immediate: None,
    };
    assert_eq!(side.handle(Flags::NONE, &write(key, address + 8), &[1; 8]), Verdict::Accepted);
    let others = [
        write(key, address + 9),
        write(RemoteKey(key.0 ^ 1), address + 8),
        Header::Send { operation: number, offset: 8, message: MessageNumber(0), immediate: None },
        Header::ReadRequest { operation: number, length: 8, key, address },
    ];
    for other in others {
        assert_eq!(side.handle(Flags::LAST, &other, &[2; 8]), BROKEN);
    }
}

//= protocol.md: credit.3, violation.4
#[test]
fn messages_without_a_receive_end_the_connection() {
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[1];
    let send = |number, message| Header::Send {
        operation: OperationNumber(number),
        offset: 0,
        message: MessageNumber(message),
        immediate: None,
    };
    assert_eq!(side.handle(Flags::LAST, &send(1, 0), &[1; 8]), BROKEN);
    side.post_receive(0, 100, 0).unwrap();
    side.post_receive(100, 100, 1).unwrap();
    assert_eq!(side.handle(Flags::LAST, &send(1, 2), &[1; 8]), BROKEN);
    assert_eq!(side.handle(Flags::LAST, &send(1, u32::MAX), &[1; 8]), BROKEN);
    // Two operations name the same message. When the second operation arrives, the first one has
    // already consumed the receive.
    assert_eq!(side.handle(Flags::LAST, &send(1, 0), &[1; 8]), Verdict::Accepted);
    assert_eq!(side.handle(Flags::LAST, &send(0, 0), &[1; 8]), BROKEN);
    assert_eq!(side.inbound.delivered(), OperationNumber(1));
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    side.poll();
    assert_eq!(side.completions.len(), 2);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

//= protocol.md: complete.2
#[test]
fn data_that_was_not_sent_is_not_delivered() {
    let mut pair = Pair::new(Config::default(), 1);
    let writes: Vec<_> = (0..3).map(|i| write(&pair, i, 0, 300, flags(Order::Relaxed))).collect();
    let side = &mut pair.sides[0];
    for write in &writes {
        side.post(write).unwrap();
    }
    let say = |side: &mut super::pair::Side, number: u32| {
        side.outbound.on_delivered(&mut side.pools, OperationNumber(number), MessageNumber(0))
    };
    assert!(!say(side, 1));
    assert!(side.fragment(200).is_some());
    assert!(!say(side, 1), "it was sent in part only");
    assert!(side.fragment(200).is_some());
    assert!(say(side, 1));
    assert!(!say(side, 2));
    assert!(!say(side, 4));
    assert!(say(side, 0), "old news");
    assert!(say(side, u32::MAX), "older news");
    side.poll();
    assert_eq!(side.completions.len(), 1);
}

//= protocol.md: answer.12
#[test]
fn unrequested_answers_are_detected() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let sink = pair.sides[0].region.id;
    let order = flags(Order::Relaxed);
    let read = operation(Request::Read { sink, sink_offset: 0, key, address }, 0, 200, order);
    let add = operation(Request::FetchAdd { key, address, operand: 1, sink: None }, 1, 8, order);
    let unsent = write(&pair, 2, 0, 8, order);
    let side = &mut pair.sides[0];
    for posted in [read, add, read] {
        side.post(&posted).unwrap();
    }
    let bytes =
        |number, offset| Header::ReadResponse { operation: OperationNumber(number), offset };
    let value = |number| Header::AtomicResponse { operation: OperationNumber(number), value: 5 };
    for number in [0, 1, 2, 3, 1 << 31, u32::MAX] {
        let old = OperationNumber(number).since(OperationNumber(0)) < 0;
        let verdict = if old { Answer::Duplicate } else { Answer::Violation };
        assert_eq!(side.answer(Flags::LAST, &bytes(number, 100), &[1; 100]), verdict);
        assert_eq!(side.answer(Flags::LAST, &value(number), &[]), verdict);
    }
    assert!(side.fragment(200).is_some());
    assert!(side.fragment(200).is_some());
    assert_eq!(side.answer(Flags::LAST, &value(0), &[]), Answer::Violation);
    assert_eq!(side.answer(Flags::LAST, &bytes(1, 0), &[1; 8]), Answer::Violation);
    assert_eq!(side.answer(Flags::LAST, &bytes(0, 0), &[1; 100]), Answer::Violation);
    assert_eq!(side.answer(Flags::NONE, &bytes(0, 150), &[1; 51]), Answer::Violation);
    assert_eq!(side.answer(Flags::NONE, &bytes(0, 1 << 30), &[1; 51]), Answer::Violation);
    assert_eq!(side.answer(Flags::NONE, &part_header(key, address), &[1; 8]), Answer::Violation);
    assert_eq!(side.bytes(), vec![0; 8192]);
    assert_eq!(side.answer(Flags::LAST, &value(1), &[]), Answer::Accepted);
    assert_eq!(side.answer(Flags::LAST, &value(1), &[]), Answer::Duplicate);
    side.poll();
    assert!(side.completions.is_empty(), "not delivered, not complete");
    side.post(&unsent).unwrap();
    side.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

fn part_header(key: RemoteKey, address: u64) -> Header {
    Header::Write { operation: OperationNumber(0), offset: 0, key, address, immediate: None }
}

#[test]
fn extreme_offsets_are_refused_as_out_of_range() {
    const END: u32 = 1 << 31;
    for strict in [Flags::NONE, Flags::STRICT, Flags::FENCE_BEFORE] {
        let mut pair = Pair::new(Config::default(), 1);
        let (key, address) = remote(&pair, 0);
        let side = &mut pair.sides[1];
        let header = |number, offset, address| Header::Write {
            operation: OperationNumber(number),
            offset,
            key,
            address,
            immediate: None,
        };
        let far = address + u64::from(END - 8);
        for (number, offset, at) in [
            (1, END - 8, far),
            (2, END - 8, u64::MAX - 8),
            (3, 0, u64::MAX - 8),
            (4, END - 8, u64::from(END) - 8),
            (0, END - 8, far),
        ] {
            let flags = strict.with(Flags::LAST);
            let verdict = side.handle(flags, &header(number, offset, at), &[1; 8]);
            let held = strict == Flags::STRICT && !(number == 0 && offset == 0)
                || strict == Flags::FENCE_BEFORE && number != 0;
            let outside = Verdict::Violation {
                reason: CloseReason::OutOfRange,
                operation: OperationNumber(number),
            };
            assert_eq!(verdict, if held { Verdict::Accepted } else { outside });
        }
        side.inbound.flush(&mut side.pools, OperationError::Flushed);
        assert_eq!(side.pools.in_use(), PoolUse::default());
        assert_eq!(side.bytes(), vec![0; 8192]);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Lie {
    pub(super) flags: u8,
    pub(super) kind: u8,
    pub(super) number: u32,
    pub(super) offset: u32,
    pub(super) length: u16,
    pub(super) key: u8,
    pub(super) address: u64,
    pub(super) then: u8,
}

pub(super) fn lie() -> impl Strategy<Value = Lie> {
    let number = prop_oneof![8 => 0_u32..6, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let offset = prop_oneof![8 => 0_u32..400, 1 => (1_u32 << 31) - 300..1 << 31];
    let address = prop_oneof![8 => 0_u64..9000, 1 => Just(u64::MAX / 2)];
    let small = (0_u8..16, 0_u8..6, 0_u16..300, 0_u8..4, 0_u8..20);
    (small, number, offset, address).prop_map(
        |((flags, kind, length, key, then), number, offset, address)| Lie {
            flags,
            kind,
            number,
            offset,
            length,
            key,
            address,
            then,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    //= protocol.md: peer.2
    /// Sends arbitrary frames that the decoder accepts while both halves are busy.
    #[test]
    fn no_sequence_of_frames_panics_or_leaks(
        lies in proptest::collection::vec(lie(), 1..120),
        first in prop_oneof![Just(0_u32), Just(u32::MAX - 2)],
    ) {
        let mut config = Config { first: OperationNumber(first), queue: 12, ..Config::default() };
        config.pools.incoming = 4;
        config.pools.order_blocks = 3;
        config.order_pool_bytes = 900;
        let mut pair = Pair::new(config, 1);
        let (key, base) = remote(&pair, 0);
        let sink = pair.sides[1].region.id;
        let mine = pair.sides[0].region;
        let order = flags(Order::Strict);
        for index in 0..3 {
            let (key, address) = (mine.key, mine.start);
            let request = if index == 0 {
                Request::Read { sink, sink_offset: 0, key, address }
            } else {
                Request::FetchAdd { key, address, operand: 1, sink: None }
            };
            pair.sides[1].post(&operation(request, index, 200, order)).unwrap();
        }
        pair.sides[1].post_receive(0, 200, 0).unwrap();
        pair.sides[1].post_receive(300, 200, 0).unwrap();
        for lie in lies {
            let number = OperationNumber(first.wrapping_add(lie.number));
            let key = if lie.key == 0 { RemoteKey(key.0 ^ 1) } else { key };
            let address = base + if lie.key == 1 { lie.address & !7 } else { lie.address };
            let (address, offset) = (address.saturating_add(u64::from(lie.offset)), lie.offset);
            let immediate = (lie.flags & 1 == 1 && lie.key == 2).then_some(1);
            let mut flags = Flags(lie.flags & 0b1111);
            let payload = vec![1; usize::from(lie.length)];
            let mut bytes = &payload[..];
            if lie.length == 0 {
                flags = flags.with(Flags::LAST);
            }
            let offset = if lie.length == 0 { 0 } else { offset };
            let message = MessageNumber(u32::from(lie.key));
            let header = match lie.kind {
                0 | 1 => Header::Write { operation: number, offset, key, address, immediate },
                2 => Header::Send { operation: number, offset, message, immediate },
                3 => Header::ReadResponse { operation: number, offset },
                kind => {
                    flags = flags.with(Flags::LAST);
                    bytes = &[];
                    let opcode = AtomicOpcode::FetchAdd;
                    let operation = number;
                    match kind {
                        4 if lie.key == 3 => Header::AtomicResponse { operation, value: 1 },
                        4 => Header::ReadRequest { operation, length: offset, key, address },
                        _ => Header::Atomic {
                            operation, opcode, key, address, operand: 1, compare: 0,
                        },
                    }
                }
            };
            let side = &mut pair.sides[1];
            match header {
                Header::ReadResponse { .. } | Header::AtomicResponse { .. } => {
                    side.answer(flags, &header, bytes);
                }
                _ => {
                    side.handle(flags, &header, bytes);
                }
            }
            match lie.then {
                0 => side.poll(),
                1 => { side.resume(); }
                2..6 => {
                    if let Some(fragment) = side.fragment(150) {
                        match lie.then {
                            2 => side.outbound.on_lost(&mut side.pools, fragment.carried),
                            _ => side.outbound.on_acknowledged(&mut side.pools, fragment.carried),
                        }
                    }
                }
                6 => {
                    let credit = MessageNumber(lie.number);
                    let _ = side.outbound.on_delivered(&mut side.pools, number, credit);
                }
                _ => {}
            }
            // The first undelivered operation always gets a record, so the number of records may
            // exceed the limit by one.
            prop_assert!(side.pools.in_use().incoming <= 4 + 1);
        }
        let side = &mut pair.sides[1];
        side.poll();
        side.outbound.flush(&mut side.pools, OperationError::ProtocolViolation, None);
        side.inbound.flush(&mut side.pools, OperationError::Flushed);
        prop_assert_eq!(side.pools.in_use(), PoolUse::default());
    }
}
