//! Tests of reads and atomics, and of their answers.

use std::sync::Arc;

use mem::{Buffer, RegionId, Rights};
use wire_edge::{AtomicOpcode, Flags, Header, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{
    Config, Pair, Side, assert_completed_in_order, flags, operation, remote, source, write,
};
use crate::inbound::Verdict;
use crate::outbound::{Answer, FragmentPayload, LocalFault};
use work::{
    CompletionKind, Operation, OperationFlags, OperationStatus, Order, PostError, Request, Sink,
    Source,
};

//= protocol.md: length.6, answer.5, answer.11
#[test]
fn reads_place_every_byte_once_despite_faults_of_their_answers() {
    for seed in 0..200 {
        let mut pair = Pair::new(Config { read_depth: 3, ..Config::default() }, seed);
        let bytes: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
        pair.sides[1].memory.write(0, &bytes);
        let (key, base) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        let length = |i: usize| [0, 1, 800, 300, 64][i % 5];
        let reads: Vec<Operation> = (0..8)
            .map(|i| {
                let address = base + i as u64 * 900 + 7;
                let request = Request::Read { sink, sink_offset: i as u64 * 1000, key, address };
                operation(request, i, length(i), flags(Order::Strict))
            })
            .collect();
        let mut deepest = 0;
        pair.run(&reads, &mut |sides| deepest = deepest.max(sides[1].outbound.answering()));
        assert!(deepest <= 3);
        assert_completed_in_order(&pair, 8);
        let sunk = pair.sides[0].bytes();
        for i in 0..8 {
            let (at, from, len) = (i * 1000, i * 900 + 7, length(i) as usize);
            assert_eq!(sunk[at..at + len], bytes[from..from + len], "read {i}");
            assert!(sunk[at + len..at + 1000].iter().all(|&byte| byte == 0));
        }
    }
}

//= protocol.md: operation.3, answer.1
#[test]
fn atomics_run_once_and_in_order() {
    for seed in 0..200 {
        let mut pair = Pair::new(Config { read_depth: 3, repeat: 50, ..Config::default() }, seed);
        let (key, address) = remote(&pair, 64);
        let atomics: Vec<_> = (0..20_u64)
            .map(|i| {
                let request = if i % 4 == 3 {
                    // This succeeds only if every earlier atomic ran exactly once.
                    Request::CompareSwap {
                        key,
                        address,
                        compare: sum(i),
                        swap: sum(i) + 1000,
                        sink: None,
                    }
                } else {
                    Request::FetchAdd { key, address, operand: i + 1, sink: None }
                };
                let order = if i % 2 == 0 { Order::Strict } else { Order::Relaxed };
                operation(request, i as usize, 8, flags(order))
            })
            .collect();
        pair.run(&atomics, &mut |_| {});
        assert_completed_in_order(&pair, 20);
        for (i, completion) in pair.sides[0].completions.iter().enumerate() {
            assert_eq!((completion.value, completion.bytes), (sum(i as u64), 8));
        }
        assert_eq!(pair.sides[1].memory.load_u64(64), sum(20));
    }
}

/// Returns the value that the target word of the atomics has when atomic `i` begins.
fn sum(i: u64) -> u64 {
    (0..i).map(|i| if i % 4 == 3 { 1000 } else { i + 1 }).sum()
}

//= protocol.md: fence.2
/// The bytes of a read leave memory after the read is delivered. A fenced write must therefore wait
/// for the answer.
#[test]
fn a_fenced_write_does_not_change_the_result_of_an_earlier_read() {
    for seed in 0..200 {
        let mut pair = Pair::new(Config::default(), seed);
        pair.sides[1].fill(0, 4096, 0xaa);
        let (key, address) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        let after_read = seed % 2 == 0;
        let read = Request::Read { sink, sink_offset: 0, key, address };
        let write = Request::Write { source: source(&pair, 1, 600), key, address };
        let forward = OperationFlags { fence_after: after_read, ..flags(Order::Relaxed) };
        let backward = OperationFlags { fence_before: !after_read, ..flags(Order::Relaxed) };
        let operations = [operation(read, 0, 600, forward), operation(write, 1, 600, backward)];
        pair.run(&operations, &mut |_| {});
        let sunk = pair.sides[0].bytes();
        assert!(sunk[..600].iter().all(|&byte| byte == 0xaa), "seed {seed}");
        assert_eq!(pair.sides[1].bytes()[..600], [2; 600]);
    }
}

//= protocol.md: answer.1
#[test]
fn reads_return_the_bytes_of_earlier_strict_writes() {
    for seed in 0..100 {
        let mut pair = Pair::new(Config::default(), seed);
        let (key, address) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        let operations: Vec<_> = (0..10)
            .map(|i| {
                let request = if i % 2 == 0 {
                    Request::Write { source: source(&pair, i, 300), key, address }
                } else {
                    Request::Read { sink, sink_offset: i as u64 * 300, key, address }
                };
                let fence_before = i % 2 == 0;
                let flags = OperationFlags { fence_before, ..flags(Order::Strict) };
                operation(request, i, 300, flags)
            })
            .collect();
        pair.run(&operations, &mut |_| {});
        let sunk = pair.sides[0].bytes();
        for i in (1..10).step_by(2) {
            assert_eq!(sunk[i * 300..(i + 1) * 300], [i as u8; 300]);
        }
    }
}

//= protocol.md: answer.6
/// Posts more reads and atomics than the peer answers at the same time, and more than there are
/// records of answers.
#[test]
fn requests_wait_for_the_responder_without_their_own_records() {
    for seed in 0..50 {
        let mut config = Config { read_depth: 1, ..Config::default() };
        config.pools.responses = 1;
        config.pools.reads = 1;
        config.pools.incoming = 2;
        let mut pair = Pair::new(config, seed);
        let (key, address) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        let read = |i| {
            let request = Request::Read { sink, sink_offset: i as u64 * 500, key, address };
            operation(request, i, 500, flags(Order::Relaxed))
        };
        let reads: Vec<_> = (0..10).map(read).collect();
        pair.run(&reads, &mut |_| {});
        assert_completed_in_order(&pair, 10);
    }
}

/// Two connections share the only record for reads whose answers arrive out of order.
#[test]
fn reads_of_one_connection_do_not_block_those_of_another() {
    let mut config = Config::default();
    config.pools.reads = 1;
    let mut pair = Pair::new(config, 1);
    let (key, address) = remote(&pair, 0);
    let sink = pair.sides[0].region.id;
    let read = operation(
        Request::Read { sink, sink_offset: 0, key, address },
        0,
        300,
        flags(Order::Relaxed),
    );
    let side = &mut pair.sides[0];
    for _ in 0..2 {
        side.post(&read).unwrap();
        assert!(side.fragment(128).is_some());
    }
    let answer =
        |number, offset| Header::ReadResponse { operation: OperationNumber(number), offset };
    assert_eq!(side.answer(Flags::NONE, &answer(0, 100), &[1; 100]), Answer::Accepted);
    assert_eq!(side.answer(Flags::NONE, &answer(1, 100), &[1; 100]), Answer::NoRoom);
    assert_eq!(side.answer(Flags::NONE, &answer(1, 0), &[1; 100]), Answer::Accepted);
    assert_eq!(side.answer(Flags::NONE, &answer(1, 50), &[1; 150]), Answer::Accepted);
    assert_eq!(side.answer(Flags::NONE, &answer(1, 100), &[1; 100]), Answer::Duplicate);
    assert_eq!(side.answer(Flags::LAST, &answer(1, 200), &[1; 100]), Answer::Accepted);
    assert_eq!(side.answer(Flags::LAST, &answer(1, 200), &[1; 100]), Answer::Duplicate);
}

#[test]
fn a_read_with_a_missing_sink_is_a_local_fault() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let side = &mut pair.sides[0];
    let buffer = Buffer::new(64);
    let region = side.table.register(side.domain, Arc::clone(&buffer), Rights::LOCAL_WRITE);
    let sink = region.unwrap().id;
    let request = Request::Read { sink, sink_offset: 0, key, address };
    side.post(&operation(request, 0, 64, flags(Order::Relaxed))).unwrap();
    assert!(side.fragment(128).is_some());
    side.table.deregister(sink).unwrap();
    let memory = side.table.access();
    let header = Header::ReadResponse { operation: OperationNumber(0), offset: 0 };
    let answer =
        side.outbound.handle_answer(&memory, &mut side.pools, Flags::LAST, &header, &[1; 64]);
    assert_eq!(answer, Err(LocalFault::Operation(OperationNumber(0))));
}

//= protocol.md: answer.7
/// The answer has arrived, but its acknowledgement is lost. After that, the memory of the answer is
/// deregistered.
#[test]
fn an_answer_that_arrived_is_not_retransmitted_after_its_memory_is_deregistered() {
    for length in [64, 1000] {
        let mut pair = Pair::new(Config::default(), 1);
        let (key, address) = remote(&pair, 0);
        let sink = pair.sides[0].region.id;
        let request = Request::Read { sink, sink_offset: 0, key, address };
        pair.sides[0].post(&operation(request, 0, length, flags(Order::Relaxed))).unwrap();
        let question = pair.sides[0].fragment(128).unwrap();
        let verdict = pair.sides[1].handle(question.flags, &question.header, &[]);
        assert_eq!(verdict, Verdict::Accepted);
        let answer = pair.sides[1].fragment(1400).unwrap();
        let bytes = pair.sides[1].payload(&answer);
        let region = pair.sides[1].region.id;
        pair.sides[1].table.deregister(region).unwrap();
        let Side { outbound, pools, .. } = &mut pair.sides[1];
        outbound.on_lost(pools, answer.carried);
        let again = pair.sides[1].fragment(1400).unwrap();
        assert_eq!(again.header, Header::Control);
        assert!(matches!(again.payload, FragmentPayload::Gone(OperationNumber(0))));
        assert_eq!(again.carried, answer.carried);

        let Side { outbound, pools, .. } = &mut pair.sides[0];
        assert!(outbound.lacks_answer(pools, OperationNumber(0)));
        let verdict = pair.sides[0].answer(answer.flags, &answer.header, &bytes);
        assert_eq!(verdict, Answer::Accepted);
        let Side { outbound, pools, .. } = &mut pair.sides[0];
        assert!(!outbound.lacks_answer(pools, OperationNumber(0)));

        let Side { outbound, pools, .. } = &mut pair.sides[1];
        outbound.on_acknowledged(pools, again.carried);
        assert_eq!((outbound.answering(), pools.in_use().responses), (0, 0));
    }
}

#[test]
fn handles_report_progress_and_the_old_value() {
    let mut pair = Pair::new(Config { lose: 0, repeat: 0, ..Config::default() }, 3);
    let (key, address) = remote(&pair, 8);
    pair.sides[1].memory.store_u64(8, 41);
    let slot = pair.sides[0].status.acquire();
    let request = Request::FetchAdd { key, address, operand: 1, sink: None };
    let atomic = Operation { status: slot, ..operation(request, 0, 0, flags(Order::Relaxed)) };
    let status = Arc::clone(&pair.sides[0].status);
    assert_eq!(status.status(slot.unwrap()), OperationStatus::Pending { bytes: 0 });
    pair.run(&[atomic], &mut |_| {});
    assert_eq!(status.status(slot.unwrap()), OperationStatus::Done { value: 41 });
    let completion = pair.sides[0].completions[0];
    assert_eq!((completion.kind, completion.bytes), (CompletionKind::FetchAdd, 8));
}

#[test]
fn an_atomic_stores_its_result_before_its_completion() {
    let mut pair = Pair::new(Config { lose: 0, repeat: 0, ..Config::default() }, 3);
    let (key, address) = remote(&pair, 8);
    pair.sides[1].memory.store_u64(8, 41);
    let region = pair.sides[0].region.id;
    let sink = |offset| Some(Sink { region, offset });
    let add = Request::FetchAdd { key, address, operand: 1, sink: sink(64) };
    let swap = Request::CompareSwap { key, address, compare: 42, swap: 7, sink: sink(72) };
    let atomics = [operation(add, 0, 8, PLAIN), operation(swap, 1, 8, PLAIN)];
    pair.run(&atomics, &mut |sides| {
        let words = [64, 72].map(|offset| sides[0].memory.load_u64(offset));
        let complete = sides[0].completions.len() + sides[0].queue.len();
        assert!(words[..complete] == [41, 42][..complete], "{complete} complete: {words:?}");
    });
    assert_eq!([64, 72].map(|offset| pair.sides[0].memory.load_u64(offset)), [41, 42]);
}

#[test]
fn an_atomic_with_a_missing_sink_is_a_local_fault_and_one_without_rights_is_refused() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let side = &mut pair.sides[0];
    let add_into = |region| {
        let sink = Some(Sink { region, offset: 56 });
        operation(Request::FetchAdd { key, address, operand: 1, sink }, 0, 8, PLAIN)
    };
    let refused = side.post(&add_into(side.source));
    assert!(matches!(refused, Err(PostError::LocalAccess(_))), "{refused:?}");
    let region = side.table.register(side.domain, Buffer::new(64), Rights::LOCAL_WRITE);
    let sink = region.unwrap().id;
    side.post(&add_into(sink)).unwrap();
    assert!(side.fragment(128).is_some());
    side.table.deregister(sink).unwrap();
    let memory = side.table.access();
    let header = Header::AtomicResponse { operation: OperationNumber(0), value: 5 };
    let answer = side.outbound.handle_answer(&memory, &mut side.pools, Flags::LAST, &header, &[]);
    assert_eq!(answer, Err(LocalFault::Operation(OperationNumber(0))));
}

//= protocol.md: answer.14
#[test]
fn an_operation_of_no_bytes_needs_neither_key_nor_region() {
    let mut pair = Pair::new(Config { lose: 0, repeat: 0, ..Config::default() }, 5);
    let (key, address) = (RemoteKey(0x0bad), 1 << 60);
    let source = Source::Region { region: RegionId::NONE, offset: 77 };
    pair.sides[1].post_receive_nowhere(9);
    let posted = [
        Request::Write { source, key, address },
        Request::Read { sink: RegionId::NONE, sink_offset: 77, key, address },
        Request::Send { source },
    ];
    let strict = flags(Order::Strict);
    let posted: Vec<_> = (0..3).map(|index| operation(posted[index], index, 0, strict)).collect();
    pair.run(&posted, &mut |_| {});
    assert_completed_in_order(&pair, 3);
    pair.sides[1].poll();
    let received = pair.sides[1].completions[0];
    let outcome = (received.kind, received.context, received.result, received.bytes);
    assert_eq!(outcome, (CompletionKind::Receive, 9, Ok(()), 0));
}

//= protocol.md: fence.4
#[test]
fn an_operation_that_waits_for_answers_does_not_wait_for_writes() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let plain = flags(Order::Strict);
    let waits = OperationFlags { waits_for_answers: true, ..plain };
    let read = Request::Read { sink: pair.sides[0].region.id, sink_offset: 0, key, address };
    let posted = [
        write(&pair, 0, 100, 8, plain),
        write(&pair, 1, 108, 8, waits),
        operation(read, 2, 8, plain),
        write(&pair, 3, 116, 8, waits),
    ];
    let side = &mut pair.sides[0];
    for operation in &posted {
        side.post(operation).unwrap();
    }
    // Both writes may be sent at once, although the first is not delivered yet. No read or atomic
    // is outstanding, so neither frame has a fence.
    for _ in 0..2 {
        let sent = side.fragment(128).expect("nothing is asked yet");
        assert!(matches!(sent.header, Header::Write { .. }));
        assert!(!sent.flags.contains(Flags::FENCE_BEFORE));
    }
    let question = side.fragment(128).expect("nothing keeps it back");
    assert!(matches!(question.header, Header::ReadRequest { .. }));
    assert!(side.fragment(128).is_none());
    assert!(side.outbound.on_delivered(&mut side.pools, OperationNumber(3), MessageNumber(0)));
    assert!(side.fragment(128).is_none());
    let header = Header::ReadResponse { operation: OperationNumber(2), offset: 0 };
    assert_eq!(side.answer(Flags::LAST, &header, &[1; 8]), Answer::Accepted);
    assert!(side.fragment(128).is_some());
}

const PLAIN: OperationFlags = flags(Order::Relaxed);

//= protocol.md: answer.13
#[test]
fn a_peer_without_read_depth_gets_no_requests() {
    let mut pair = Pair::new(Config { read_depth: 0, ..Config::default() }, 1);
    let (key, address) = remote(&pair, 8);
    let request = Request::FetchAdd { key, address, operand: 1, sink: None };
    let atomic = operation(request, 0, 8, flags(Order::Relaxed));
    assert_eq!(pair.sides[0].post(&atomic), Err(PostError::ReadsRefused));
    let header = Header::Atomic {
        operation: OperationNumber(0),
        opcode: AtomicOpcode::FetchAdd,
        key,
        address,
        operand: 1,
        compare: 0,
    };
    // If the peer sends an atomic although the read depth is 0, the atomic waits forever and uses
    // one record.
    assert_eq!(pair.sides[1].handle(Flags::LAST, &header, &[]), Verdict::Accepted);
    assert!(pair.sides[1].inbound.is_stalled());
    assert_eq!(pair.sides[1].memory.load_u64(8), 0);
}

//= protocol.md: fault.3
#[test]
fn abandoned_answers_stop_and_earlier_answers_continue() {
    for given_up in 0..5_u32 {
        let mut pair = Pair::new(Config { read_depth: 8, ..Config::default() }, 1);
        let side = &mut pair.sides[1];
        let (key, address) = (side.region.key, side.region.start);
        for number in 0..4 {
            let operation = OperationNumber(number);
            let read = Header::ReadRequest { operation, length: 300, key, address };
            assert_eq!(side.handle(Flags::LAST, &read, &[]), Verdict::Accepted);
        }
        // Each answer takes three frames, so the third answer is in flight.
        let sent = [(); 8].map(|()| side.fragment(128).expect("there are twelve").carried);
        side.outbound.abandon_answers(&mut side.pools, OperationNumber(given_up));
        assert_eq!(side.outbound.answering(), given_up.min(4));
        let (mut acknowledged, mut again) = (0, 0);
        for carried in sent {
            side.outbound.on_lost(&mut side.pools, carried);
        }
        while let Some(fragment) = side.fragment(128) {
            assert!(fragment.carried.number.0 < given_up, "{fragment:?}");
            again += 1;
            acknowledged += u32::from(fragment.carried.length);
            side.outbound.on_acknowledged(&mut side.pools, fragment.carried);
        }
        assert_eq!((acknowledged, again), (300 * given_up.min(4), 3 * given_up.min(4)));
        assert_eq!(side.outbound.answering(), 0);
        assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
    }
}
