//! What is different at the target of a queue pair.

use mem::{Buffer, Rights};
use wire_edge::{CloseReason, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{Config, MEMORY_BYTES, Random, Side};
use super::script::{Script, deliver_all};
use crate::{
    Completion, CompletionKind, InboundLimits, OperationError, Owner, PoolUse, Queues, Receive,
    Refusal, Verdict,
};

/// The target of a queue pair.
pub(super) fn target(seed: u64) -> Side {
    let config = Config { promises: false, receives: 32, ..Config::default() };
    let mut side = Side::new(&config, seed);
    side.inbound.be_queue_pair();
    side
}

pub(super) fn flags_of(seed: u64) -> Flags {
    if seed.is_multiple_of(2) { Flags::STRICT } else { Flags::NONE }
}

//= protocol.md: consume.1
#[test]
fn a_write_with_an_immediate_consumes_the_oldest_receive_and_puts_its_bytes_where_it_says() {
    let mut side = target(1);
    for context in 0..3 {
        side.post_receive(4096, 4, context).unwrap();
    }
    let place = (side.region.key, side.region.start + 100);
    let mut script = Script::new(Flags::NONE, 64);
    let mut frames = script.write(place, &[5; 150], Some(77));
    frames.extend(script.send(&[6; 4], None));
    frames.extend(script.write(place, &[], Some(78)));
    for frame in frames {
        assert_eq!(frame.arrive_at(&mut side), Verdict::Accepted);
    }
    assert_eq!(side.bytes()[100..250], [5; 150]);
    assert_eq!(side.bytes()[4096..4100], [6; 4]);
    side.poll();
    let seen: Vec<_> = side
        .completions
        .iter()
        .map(|found| (found.kind, found.context, found.bytes, found.immediate, found.is_of_write()))
        .collect();
    let receive = CompletionKind::Receive;
    let expected = [
        (receive, 0, 150, Some(77), true),
        (receive, 1, 4, None, false),
        (receive, 2, 0, Some(78), true),
    ];
    assert_eq!(seen, expected);
    assert_eq!(
        (side.inbound.next_message(), side.inbound.credit()),
        (MessageNumber(3), MessageNumber(3))
    );
}

//= protocol.md: consume.2
#[test]
fn a_write_with_an_immediate_without_a_receive_is_a_violation() {
    let mut side = target(1);
    let place = (side.region.key, side.region.start);
    let frames = Script::new(Flags::NONE, 64).write(place, &[5; 8], Some(1));
    let (reason, operation) = (CloseReason::ProtocolViolation, OperationNumber(0));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
}

#[test]
fn a_write_without_an_immediate_consumes_nothing() {
    let mut side = target(1);
    side.post_receive(0, 8, 0).unwrap();
    let place = (side.region.key, side.region.start);
    let frames = Script::new(Flags::NONE, 64).write(place, &[5; 8], None);
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Accepted);
    assert_eq!(
        (side.inbound.next_message(), side.inbound.credit()),
        (MessageNumber(0), MessageNumber(1))
    );
}

#[test]
fn a_queue_pair_that_rested_still_is_one() {
    let mut side = target(1);
    side.post_receive(0, 8, 4).unwrap();
    let Side { inbound, queue, .. } = &mut side;
    let limits =
        InboundLimits { operation_window: 8, read_depth: 1, order_pool_bytes: 64, receives: 4 };
    let queues = Queues { promises: false, ..std::sync::Arc::clone(queue).into() };
    *inbound = inbound.rest().wake(Owner::new(7, 1), limits, &queues);
    let place = (side.region.key, side.region.start);
    let frames = Script::new(Flags::NONE, 64).write(place, &[5; 8], Some(1));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Accepted);
    side.poll();
    assert_eq!(side.completions.iter().map(|found| found.context).collect::<Vec<_>>(), [4]);
}

//= protocol.md: consume.1
#[test]
fn receives_are_consumed_in_the_order_of_operations_however_frames_come() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut side = target(seed);
        let place = (side.region.key, side.region.start + 4096);
        let mut script = Script::new(flags_of(seed), 50 + random.below(100));
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for index in 0..30_u32 {
            let bytes = vec![index as u8 + 1; random.below(250)];
            let immediate = random.chance(60).then_some(index);
            let is_send = random.chance(40);
            if is_send || immediate.is_some() {
                expected.push((expected.len() as u64, bytes.len() as u32, immediate, !is_send));
            }
            frames.extend(if is_send {
                script.send(&bytes, immediate)
            } else {
                script.write(place, &bytes, immediate)
            });
        }
        for context in 0..expected.len() as u64 {
            side.post_receive(context * 128, 256, context).unwrap();
        }
        deliver_all(&mut side, &mut random, &frames);
        side.poll();
        let seen =
            |found: &Completion| (found.context, found.bytes, found.immediate, found.is_of_write());
        assert_eq!(side.completions.iter().map(seen).collect::<Vec<_>>(), expected, "seed {seed}");
        assert_eq!(side.inbound.next_message().0 as usize, expected.len());
    }
}

/// What is wrong with an operation.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Key,
    Range,
    Right,
    TooLong,
    MemoryGone,
}

const WRONG: [(Wrong, CloseReason); 5] = [
    (Wrong::Key, CloseReason::UnknownKey),
    (Wrong::Range, CloseReason::OutOfRange),
    (Wrong::Right, CloseReason::RightMissing),
    (Wrong::TooLong, CloseReason::MessageTooLong),
    (Wrong::MemoryGone, CloseReason::LocalMemoryGone),
];

//= protocol.md: fault.1, fault.2
#[test]
fn a_fault_ends_a_queue_pair_when_all_before_it_is_delivered_and_nothing_behind_it() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut side = target(seed);
        let (wrong, reason) = WRONG[random.below(WRONG.len())];
        let unwritable = Buffer::new(64);
        let unwritable = side.table.register(side.domain, unwritable, Rights::REMOTE_READ).unwrap();
        let gone =
            side.table.register(side.domain, Buffer::new(512), Rights::LOCAL_WRITE).unwrap().id;
        let at_fault = random.below(20) as u32;
        let mut script = Script::new(flags_of(seed), 60 + random.below(60));
        let (mut frames, mut contexts, mut failed) = (Vec::new(), 0, None);
        for index in 0..20_u32 {
            let bytes = vec![index as u8 + 1; 200];
            let place = (side.region.key, side.region.start + u64::from(index) * 200);
            let is_send = random.chance(40);
            let receive = |region, length| Receive { region, offset: 0, length, context: contexts };
            if index != at_fault {
                let ordinary = receive(side.region.id, 200);
                if is_send {
                    post(&mut side, Receive { offset: 4096, ..ordinary });
                    contexts += 1;
                }
                let send = |script: &mut Script| script.send(&bytes, None);
                let write = |script: &mut Script| script.write(place, &bytes, None);
                frames.extend(if is_send { send(&mut script) } else { write(&mut script) });
                continue;
            }
            let (key, address) = place;
            frames.extend(match wrong {
                Wrong::Key => script.write((RemoteKey(3), address), &bytes, None),
                Wrong::Range => {
                    let end = side.region.start + MEMORY_BYTES;
                    script.write((key, end - 100), &bytes, None)
                }
                Wrong::Right => {
                    script.write((unwritable.key, unwritable.start), &bytes[..64], None)
                }
                Wrong::TooLong | Wrong::MemoryGone => {
                    let is_short = matches!(wrong, Wrong::TooLong);
                    let id = if is_short { side.region.id } else { gone };
                    post(&mut side, receive(id, if is_short { 150 } else { 200 }));
                    failed = Some(contexts);
                    contexts += 1;
                    script.send(&bytes, None)
                }
            });
        }
        side.table.deregister(gone).unwrap();
        let mut steps = 0;
        let verdict = loop {
            let verdict = frames[random.below(frames.len())].arrive_at(&mut side);
            if matches!(verdict, Verdict::Violation { .. }) {
                break verdict;
            }
            steps += 1;
            assert!(steps < 100_000, "seed {seed}: no end");
        };
        let operation = OperationNumber(at_fault);
        assert_eq!(verdict, Verdict::Violation { reason, operation }, "seed {seed}");
        assert_eq!(side.inbound.delivered(), operation);
        let consumed = u64::from(side.inbound.next_message().0);
        side.inbound.flush(&mut side.pools, OperationError::Flushed);
        side.poll();
        let results: Vec<_> =
            side.completions.iter().map(|found| (found.context, found.result)).collect();
        let expected = (0..contexts).map(|context| {
            let error = match wrong {
                _ if failed != Some(context) => OperationError::Flushed,
                Wrong::TooLong => OperationError::MessageTooLong,
                _ => OperationError::LocalAccess,
            };
            (context, if context < consumed { Ok(()) } else { Err(error) })
        });
        assert_eq!(results, expected.collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(side.pools.in_use(), PoolUse::default());
    }
}

fn post(side: &mut Side, receive: Receive) {
    let memory = side.table.access();
    side.inbound.post_receive(&memory, receive).unwrap();
}

#[test]
fn a_fault_out_of_turn_is_refused_and_judged_again_in_turn() {
    let mut side = target(1);
    let place = (side.region.key, side.region.start);
    let later = side.table.register(side.domain, Buffer::new(64), Rights::REMOTE_READ).unwrap();
    let mut script = Script::new(Flags::NONE, 64);
    let first = script.write(place, &[1; 8], None);
    let second = script.write((later.key, later.start), &[2; 8], None);
    assert_eq!(second[0].arrive_at(&mut side), Verdict::Refused(Refusal::Early));
    assert_eq!(first[0].arrive_at(&mut side), Verdict::Accepted);
    let (reason, operation) = (CloseReason::RightMissing, OperationNumber(1));
    assert_eq!(second[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
}

#[test]
fn of_other_connections_a_fault_is_a_violation_at_once() {
    let mut side = Side::new(&Config::default(), 1);
    let mut script = Script::new(Flags::NONE, 64);
    script.operation = 1;
    let frames = script.write((RemoteKey(3), 0), &[2; 8], None);
    let (reason, operation) = (CloseReason::UnknownKey, OperationNumber(1));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
}
