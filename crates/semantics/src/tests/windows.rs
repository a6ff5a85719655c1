//! Tests of remote access through memory windows.

use mem::{Reach, Rights, Window};
use wire_edge::{AtomicOpcode, CloseReason, Flags, Header, OperationNumber, RemoteKey};

use super::pair::{Config, Random, Side};
use super::queue_pair::{flags_of, target};
use super::script::{Script, deliver_all};
use crate::inbound::Verdict;
use work::{OperationError, Owner};

/// Key of a window, as in the tests of `mem`. No region has this key.
const KEY: RemoteKey = RemoteKey(0x1234_5678);
const START: u64 = 1 << 40;

/// The owner of every target in these tests.
pub(super) const OWNER: Owner = Owner::new(7, 1);

/// Binds a window to the 1000 bytes that begin at `offset`.
pub(super) fn bind(side: &Side, key: RemoteKey, offset: u64, rights: Rights, reach: Reach) {
    let window =
        Window { region: side.region.id, offset, len: 1000, remote_start: START, rights, reach };
    side.table.bind(key, window).unwrap();
}

fn unknown_key(operation: u32) -> Verdict {
    let operation = OperationNumber(operation);
    Verdict::Violation { reason: CloseReason::UnknownKey, operation }
}

//= protocol.md: window.1
#[test]
fn a_window_is_accessible_by_its_key_from_its_own_connection_only() {
    for (reach, is_reached) in [
        (Reach::Domain, true),
        (Reach::Connection(OWNER.bits()), true),
        (Reach::Connection(Owner::new(7, 2).bits()), false),
    ] {
        let mut side = target(1);
        bind(&side, KEY, 500, Rights::REMOTE_WRITE, reach);
        let mut script = Script::new(Flags::NONE, 64);
        let [first, second] = &script.write((KEY, START + 10), &[9; 128], None)[..] else {
            panic!("two frames")
        };
        if !is_reached {
            assert_eq!(first.arrive_at(&mut side), unknown_key(0));
            continue;
        }
        assert_eq!(first.arrive_at(&mut side), Verdict::Accepted);
        assert_eq!(second.arrive_at(&mut side), Verdict::Accepted);
        assert_eq!(side.bytes()[510..638], [9; 128]);
        let outside = script.write((KEY, START + 996), &[9; 8], None);
        let (reason, operation) = (CloseReason::OutOfRange, OperationNumber(1));
        assert_eq!(outside[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
        assert!(side.bytes()[1496..].iter().all(|&byte| byte == 0));
    }
}

//= protocol.md: window.2
#[test]
fn a_window_that_ends_during_a_write_is_no_longer_accessible() {
    let mut side = target(1);
    // The window has the region's own addresses. If the target cached the window, it would still
    // accept the write.
    let window = Window {
        region: side.region.id,
        offset: 0,
        len: 1000,
        remote_start: side.region.start,
        rights: Rights::REMOTE_WRITE,
        reach: Reach::Connection(OWNER.bits()),
    };
    side.table.bind(KEY, window).unwrap();
    let mut script = Script::new(Flags::NONE, 64);
    let frames = script.write((KEY, side.region.start), &[9; 192], None);
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Accepted);
    assert_eq!(frames[1].arrive_at(&mut side), Verdict::Accepted);
    side.table.unbind(KEY).unwrap();
    assert_eq!(frames[2].arrive_at(&mut side), unknown_key(0));
    assert_eq!(side.bytes()[128..192], [0; 64]);
}

//= protocol.md: window.1
#[test]
fn reads_and_atomics_access_windows_according_to_their_rights() {
    let mut side = target(1);
    let rights = Rights::REMOTE_READ.union(Rights::REMOTE_ATOMIC);
    bind(&side, KEY, 0, rights, Reach::Domain);
    side.memory.write(8, &5_u64.to_ne_bytes());
    let atomic = |operation| Header::Atomic {
        operation: OperationNumber(operation),
        opcode: AtomicOpcode::FetchAdd,
        key: KEY,
        address: START + 8,
        operand: 2,
        compare: 0,
    };
    let read = |operation| Header::ReadRequest {
        operation: OperationNumber(operation),
        length: 16,
        key: KEY,
        address: START,
    };
    assert_eq!(side.handle(Flags::LAST, &atomic(0), &[]), Verdict::Accepted);
    assert_eq!(side.handle(Flags::LAST, &read(1), &[]), Verdict::Accepted);
    assert_eq!(side.memory.load_u64(8), 7);
    let answers: Vec<_> = core::iter::from_fn(|| side.fragment(128)).collect();
    assert_eq!(side.payload(&answers[1])[8..], 7_u64.to_ne_bytes());
    let (reason, operation) = (CloseReason::RightMissing, OperationNumber(2));
    let mut script = Script { operation: 2, ..Script::new(Flags::NONE, 64) };
    let written = script.write((KEY, START), &[1; 8], None);
    assert_eq!(written[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
    side.table.unbind(KEY).unwrap();
    assert_eq!(side.handle(Flags::LAST, &atomic(2), &[]), unknown_key(2));
    assert_eq!(side.handle(Flags::LAST, &read(2), &[]), unknown_key(2));
}

//= protocol.md: strict.3
#[test]
fn the_later_of_two_strict_writes_wins_even_through_a_window() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut side = target(seed);
        bind(&side, KEY, 300, Rights::REMOTE_WRITE, Reach::Domain);
        let mut script = Script::new(Flags::STRICT, 64);
        let mut model = side.bytes();
        let mut frames = Vec::new();
        for index in 0..12 {
            let bytes = vec![index + 1; 1 + random.below(400)];
            let offset = random.below(400);
            model[300 + offset..][..bytes.len()].copy_from_slice(&bytes);
            let (start, offset) = (side.region.start + 300, offset as u64);
            let place = if random.chance(50) {
                (KEY, START + offset)
            } else {
                (side.region.key, start + offset)
            };
            frames.extend(script.write(place, &bytes, None));
        }
        deliver_all(&mut side, &mut random, &frames);
        assert_eq!(side.bytes(), model, "seed {seed}");
    }
}

//= protocol.md: fault.1, window.2
#[test]
fn an_ended_window_fails_the_first_operation_in_order_that_needs_it() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut side = target(seed);
        bind(&side, KEY, 0, Rights::REMOTE_WRITE, Reach::Domain);
        let mut script = Script::new(flags_of(seed), 64);
        let place = (side.region.key, side.region.start + 4096);
        let through: Vec<bool> = (0..16).map(|_| random.chance(50)).collect();
        let frames: Vec<_> = through
            .iter()
            .flat_map(|&window| {
                script.write(if window { (KEY, START) } else { place }, &[1; 200], None)
            })
            .collect();
        let end_after = random.below(60);
        let mut steps = 0;
        let operation = loop {
            if steps == end_after {
                side.table.unbind(KEY).unwrap();
            }
            steps += 1;
            let frame = &frames[random.below(frames.len())];
            match frame.arrive_at(&mut side) {
                Verdict::Violation { reason, operation } => {
                    assert_eq!(reason, CloseReason::UnknownKey);
                    break Some(operation);
                }
                _ if side.inbound.delivered().0 == 16 => break None,
                _ => {}
            }
            assert!(steps < 100_000, "no end");
        };
        if let Some(operation) = operation {
            assert_eq!(side.inbound.delivered(), operation, "seed {seed}");
            assert!(through[operation.0 as usize], "seed {seed}: not through the window");
        }
    }
}

const OTHER: RemoteKey = RemoteKey(0x0bad_cafe);

//= protocol.md: invalidate.1
#[test]
fn a_message_invalidates_a_window_in_order_and_its_receive_reports_the_key() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut side = target(seed);
        bind(&side, KEY, 0, Rights::REMOTE_WRITE, Reach::Connection(OWNER.bits()));
        bind(&side, OTHER, 0, Rights::REMOTE_WRITE, Reach::Connection(OWNER.bits()));
        side.post_receive(4096, 256, 3).unwrap();
        let mut script = Script::new(flags_of(seed), 64);
        let mut frames = script.write((KEY, START), &[1; 300], None);
        frames.extend(script.send_invalidate(&vec![2; random.below(200)], KEY));
        frames.extend(script.write((OTHER, START + 400), &[4; 300], None));
        deliver_all(&mut side, &mut random, &frames);
        assert_eq!((&side.bytes()[..300], &side.bytes()[400..700]), (&[1; 300][..], &[4; 300][..]));
        side.poll();
        let found = side.completions[0];
        assert_eq!((found.context, found.result, found.immediate), (3, Ok(()), None));
        assert_eq!((found.invalidated(), found.is_of_write()), (Some(KEY), false));
        let late = script.write((KEY, START), &[5; 8], None);
        assert_eq!(late[0].arrive_at(&mut side), unknown_key(3));
        assert_eq!(side.table.unbind(KEY), None);
    }
}

//= protocol.md: strict.3, fault.1
#[test]
fn a_write_with_an_ended_key_is_denied_even_if_newer_bytes_cover_it() {
    let mut side = target(1);
    bind(&side, KEY, 0, Rights::REMOTE_WRITE, Reach::Connection(OWNER.bits()));
    side.post_receive(4096, 256, 3).unwrap();
    let mut script = Script::new(Flags::STRICT, 64);
    let message = script.send_invalidate(&[2; 10], KEY);
    let hidden = script.write((KEY, START), &[3; 20], None);
    // This newer write covers the bytes that the older write leaves out. It arrives while the key
    // is still valid.
    let newer = script.write((KEY, START), &[4; 100], None);
    assert_eq!(newer[0].arrive_at(&mut side), Verdict::Accepted);
    assert_eq!(hidden[0].arrive_at(&mut side), Verdict::Accepted);
    assert_eq!(message[0].arrive_at(&mut side), unknown_key(1));
    assert_eq!(side.inbound.delivered(), OperationNumber(1));
}

//= protocol.md: invalidate.2
#[test]
fn a_message_cannot_invalidate_a_key_of_another_connection_and_fails_in_order() {
    for reach in [Some(Reach::Domain), Some(Reach::Connection(Owner::new(7, 2).bits())), None] {
        let mut side = target(1);
        if let Some(reach) = reach {
            bind(&side, KEY, 0, Rights::REMOTE_WRITE, reach);
        }
        let key = if reach.is_some() { KEY } else { side.region.key };
        side.post_receive(4096, 256, 3).unwrap();
        side.post_receive(4096, 256, 4).unwrap();
        let mut script = Script::new(Flags::NONE, 64);
        let first = script.send(&[1; 8], None);
        let second = script.send_invalidate(&[2; 8], key);
        assert_eq!(second[0].arrive_at(&mut side), Verdict::Accepted);
        assert_eq!(first[0].arrive_at(&mut side), unknown_key(1));
        assert_eq!(side.inbound.delivered(), OperationNumber(1));
        assert_eq!(side.table.unbind(KEY).is_some(), reach.is_some());
        side.inbound.flush(&mut side.pools, OperationError::Flushed);
        side.poll();
        let results: Vec<_> =
            side.completions.iter().map(|found| (found.context, found.result)).collect();
        assert_eq!(results, [(3, Ok(())), (4, Err(OperationError::Flushed))]);
    }
}

//= protocol.md: invalidate.3
#[test]
fn a_message_that_invalidates_a_key_is_a_violation_without_a_queue_pair() {
    let mut side = Side::new(&Config::default(), 1);
    bind(&side, KEY, 0, Rights::REMOTE_WRITE, Reach::Connection(OWNER.bits()));
    side.post_receive(4096, 256, 3).unwrap();
    let frames = Script::new(Flags::NONE, 64).send_invalidate(&[2; 8], KEY);
    let (reason, operation) = (CloseReason::ProtocolViolation, OperationNumber(0));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
    assert!(side.table.unbind(KEY).is_some());
}
