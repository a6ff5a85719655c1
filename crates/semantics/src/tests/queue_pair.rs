//! Tests of the rules for the target of a queue pair.

use mem::{Buffer, RegionId, Rights};
use wire_edge::{CloseReason, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{Config, MEMORY_BYTES, Random, Side};
use super::script::{Frame, Script, deliver_all};
use crate::inbound::{InboundLimits, Refusal, Verdict};
use crate::pools::PoolUse;
use work::{Completion, CompletionKind, OperationError, Owner, Queues, Receive};

/// Returns the target of a queue pair.
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
fn a_write_with_an_immediate_consumes_the_oldest_receive_and_writes_to_its_own_address() {
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
fn a_queue_pair_stays_one_after_compression() {
    let mut side = target(1);
    side.post_receive(0, 8, 4).unwrap();
    let Side { inbound, queue, .. } = &mut side;
    let limits = InboundLimits {
        operation_window: 8,
        read_depth: 1,
        order_pool_bytes: 64,
        receives: 4,
        rights: Rights::ALL,
        patches: true,
    };
    let queues = Queues { promises: false, ..std::sync::Arc::clone(queue).into() };
    *inbound = inbound.rest().wake(Owner::new(7, 1), limits, &queues);
    let place = (side.region.key, side.region.start);
    let frames = Script::new(Flags::NONE, 64).write(place, &[5; 8], Some(1));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Accepted);
    side.poll();
    assert_eq!(side.completions.iter().map(|found| found.context).collect::<Vec<_>>(), [4]);
}

//= protocol.md: granted.1
#[test]
fn access_beyond_the_grants_of_a_connection_is_refused_whatever_the_region_allows() {
    for (rights, is_refused) in [(Rights::REMOTE_READ, true), (Rights::REMOTE_WRITE, false)] {
        let mut side = target(1);
        let Side { inbound, queue, .. } = &mut side;
        let limits = InboundLimits {
            operation_window: 8,
            read_depth: 1,
            order_pool_bytes: 64,
            receives: 4,
            rights,
            patches: true,
        };
        let queues = Queues { promises: false, ..std::sync::Arc::clone(queue).into() };
        *inbound = inbound.rest().wake(Owner::new(7, 1), limits, &queues);
        let place = (side.region.key, side.region.start);
        let frames = Script::new(Flags::NONE, 64).write(place, &[5; 8], None);
        let (reason, operation) = (CloseReason::RightMissing, OperationNumber(0));
        let refused = Verdict::Violation { reason, operation };
        let expected = if is_refused { refused } else { Verdict::Accepted };
        assert_eq!(frames[0].arrive_at(&mut side), expected);
    }
}

//= protocol.md: consume.1
#[test]
fn receives_are_consumed_in_operation_order_whatever_the_frame_order() {
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

/// The kind of fault that an operation has.
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

/// Operations of a peer. One of them is at fault.
struct Doomed {
    side: Side,
    frames: Vec<Frame>,
    /// Operations without a fault. Each writes 200 bytes to its own range.
    writes: Vec<u32>,
    /// Number of posted receives.
    contexts: u64,
    /// Context of the receive at fault.
    failed: Option<u64>,
}

impl Doomed {
    fn new(seed: u64, random: &mut Random, wrong: Wrong, at_fault: u32) -> Self {
        let (side, frames, writes) = (target(seed), Vec::new(), Vec::new());
        let mut doomed = Self { side, frames, writes, contexts: 0, failed: None };
        let mut script = Script::new(flags_of(seed), 60 + random.below(60));
        for index in 0..20 {
            let bytes = vec![index as u8 + 1; 200];
            let place = (doomed.side.region.key, doomed.side.region.start + u64::from(index) * 200);
            let frames = if index == at_fault {
                doomed.fail(&mut script, wrong, &bytes)
            } else if random.chance(40) {
                doomed.post(doomed.side.region.id, 200);
                script.send(&bytes, None)
            } else {
                doomed.writes.push(index);
                script.write(place, &bytes, None)
            };
            doomed.frames.extend(frames);
        }
        doomed
    }

    fn fail(&mut self, script: &mut Script, wrong: Wrong, bytes: &[u8]) -> Vec<Frame> {
        let (table, domain, region) = (&self.side.table, self.side.domain, self.side.region);
        match wrong {
            Wrong::Key => script.write((RemoteKey(3), region.start), bytes, None),
            Wrong::Range => {
                script.write((region.key, region.start + MEMORY_BYTES - 100), bytes, None)
            }
            Wrong::Right => {
                let readable = table.register(domain, Buffer::new(256), Rights::REMOTE_READ);
                let readable = readable.unwrap();
                script.write((readable.key, readable.start), bytes, None)
            }
            Wrong::TooLong => {
                self.failed = Some(self.contexts);
                self.post(region.id, 150);
                script.send(bytes, None)
            }
            Wrong::MemoryGone => {
                let buffer = Buffer::new(8192);
                let gone = table.register(domain, buffer, Rights::LOCAL_WRITE).unwrap().id;
                self.failed = Some(self.contexts);
                self.post(gone, 200);
                self.side.table.deregister(gone).unwrap();
                script.send(bytes, None)
            }
        }
    }

    fn post(&mut self, region: RegionId, length: u32) {
        let receive = Receive { region, offset: 6000, length, context: self.contexts };
        let memory = self.side.table.access();
        self.side.inbound.post_receive(&memory, receive).unwrap();
        self.contexts += 1;
    }

    /// Delivers frames in random order and returns the verdict that ends the connection.
    fn run(&mut self, random: &mut Random) -> Verdict {
        for _ in 0..100_000 {
            let frame = &self.frames[random.below(self.frames.len())];
            let verdict = frame.arrive_at(&mut self.side);
            if matches!(verdict, Verdict::Violation { .. }) {
                return verdict;
            }
        }
        panic!("no end at {:?}", self.side.inbound.delivered());
    }
}

//= protocol.md: fault.1, fault.2
#[test]
fn a_fault_ends_a_queue_pair_after_earlier_work_and_before_later_work_is_delivered() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let (wrong, reason) = WRONG[random.below(WRONG.len())];
        let at_fault = random.below(20) as u32;
        let mut doomed = Doomed::new(seed, &mut random, wrong, at_fault);
        let operation = OperationNumber(at_fault);
        let verdict = doomed.run(&mut random);
        assert_eq!(verdict, Verdict::Violation { reason, operation }, "seed {seed}");
        let Doomed { mut side, writes, contexts, failed, .. } = doomed;
        assert_eq!(side.inbound.delivered(), operation);
        let bytes = side.bytes();
        for index in writes.into_iter().filter(|&index| index < at_fault) {
            assert_eq!(bytes[index as usize * 200..][..200], [index as u8 + 1; 200], "seed {seed}");
        }
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

#[test]
fn an_early_fault_is_refused_and_reported_in_order() {
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
fn a_fault_without_a_queue_pair_is_a_violation_at_once() {
    let mut side = Side::new(&Config::default(), 1);
    let mut script = Script::new(Flags::NONE, 64);
    script.operation = 1;
    let frames = script.write((RemoteKey(3), 0), &[2; 8], None);
    let (reason, operation) = (CloseReason::UnknownKey, OperationNumber(1));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
}
