//! What is different at the target of a queue pair.

use wire_edge::{CloseReason, Flags, MessageNumber, OperationNumber};

use super::pair::{Config, Random, Side};
use super::script::{Script, deliver_all};
use crate::{Completion, CompletionKind, InboundLimits, Owner, Queues, Verdict};

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
