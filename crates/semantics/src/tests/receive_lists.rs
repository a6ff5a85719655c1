//! Tests of receives that are lists of pieces (scatter/gather entries).

use std::sync::Arc;

use mem::{Buffer, Rights};
use wire_edge::{CloseReason, Flags, OperationNumber};

use super::pair::{MEMORY_BYTES, Random, Side};
use super::queue_pair::{flags_of, target};
use super::script::{Script, deliver_all};
use crate::inbound::Verdict;
use crate::pools::PoolUse;
use work::{OperationError, Piece, PieceList, PostError};

fn post(side: &mut Side, pieces: &[Piece], context: u64) -> Result<(), PostError> {
    let memory = side.table.access();
    let list = PieceList::new(pieces).unwrap();
    side.inbound.post_receive_list(&memory, &mut side.pools, list, context)
}

//= protocol.md: message.1
#[test]
fn a_message_fills_the_sges_of_its_receive_in_order_and_no_other_memory() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut side = target(seed);
        let mut script = Script::new(flags_of(seed), 40 + random.below(100));
        let (mut model, mut frames) = (side.bytes(), Vec::new());
        let mut at = 0;
        for context in 0..8_u64 {
            let pieces: Vec<Piece> = (0..random.below(33))
                .map(|_| {
                    let offset = at + random.below(4) as u64;
                    let length = if random.chance(20) { 0 } else { random.below(30) as u32 };
                    at = offset + u64::from(length);
                    Piece { region: side.region.id, offset, length }
                })
                .collect();
            let room: u32 = pieces.iter().map(|piece| piece.length).sum();
            let message: Vec<u8> =
                (0..random.below(room as usize + 1)).map(|_| random.next() as u8 | 1).collect();
            let mut rest = &message[..];
            for piece in &pieces {
                let (here, behind) = rest.split_at(rest.len().min(piece.length as usize));
                model[piece.offset as usize..][..here.len()].copy_from_slice(here);
                rest = behind;
            }
            post(&mut side, &pieces, context).unwrap();
            frames.extend(script.send(&message, None));
        }
        assert!(at <= MEMORY_BYTES);
        assert_eq!(side.pools.in_use().lists, 8);
        deliver_all(&mut side, &mut random, &frames);
        assert_eq!(side.bytes(), model, "seed {seed}");
        side.poll();
        let contexts: Vec<_> = side.completions.iter().map(|found| found.context).collect();
        assert_eq!(contexts, (0..8).collect::<Vec<_>>());
        assert_eq!(side.pools.in_use(), PoolUse::default());
    }
}

#[test]
fn a_receive_list_with_unwritable_sges_is_refused() {
    let mut side = target(1);
    let good = Piece { region: side.region.id, offset: 0, length: 8 };
    let outside = Piece { offset: MEMORY_BYTES - 4, ..good };
    let foreign = Piece { region: side.source, ..good };
    for bad in [outside, foreign] {
        assert!(matches!(post(&mut side, &[good, bad], 0), Err(PostError::LocalAccess(_))));
    }
    assert_eq!(side.inbound.credit().0, 0);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

#[test]
fn a_receive_list_refused_for_lack_of_room_is_released() {
    let mut side = target(1);
    let piece = Piece { region: side.region.id, offset: 0, length: 8 };
    for context in 0..32 {
        post(&mut side, &[piece, piece], context).unwrap();
    }
    assert_eq!(post(&mut side, &[piece], 32), Err(PostError::ReceiveQueueFull(32)));
    assert_eq!(side.pools.in_use().lists, 32);
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    assert_eq!(side.pools.in_use(), PoolUse::default());
}

//= protocol.md: fault.2, violation.5
#[test]
fn a_message_longer_than_all_sges_together_is_too_long() {
    let mut side = target(1);
    let piece = Piece { region: side.region.id, offset: 0, length: 8 };
    post(&mut side, &[piece, Piece { offset: 100, ..piece }], 5).unwrap();
    let frames = Script::new(Flags::NONE, 64).send(&[1; 17], None);
    let (reason, operation) = (CloseReason::MessageTooLong, OperationNumber(0));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    side.poll();
    assert_eq!(side.completions[0].result, Err(OperationError::MessageTooLong));
    assert_eq!(side.bytes(), vec![0; MEMORY_BYTES as usize]);
}

//= protocol.md: fault.2, violation.6
#[test]
fn an_sge_with_missing_memory_fails_its_receive_but_is_no_length_error() {
    let mut side = target(1);
    let whole = Piece { region: side.region.id, offset: 0, length: 8 };
    let buffer = Buffer::new(64);
    let region = side.table.register(side.domain, Arc::clone(&buffer), Rights::LOCAL_WRITE);
    let region = region.unwrap().id;
    post(&mut side, &[whole, Piece { region, ..whole }], 5).unwrap();
    side.table.deregister(region).unwrap();
    let frames = Script::new(Flags::NONE, 64).send(&[1; 16], None);
    let (reason, operation) = (CloseReason::LocalMemoryGone, OperationNumber(0));
    assert_eq!(frames[0].arrive_at(&mut side), Verdict::Violation { reason, operation });
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    side.poll();
    assert_eq!(side.completions[0].result, Err(OperationError::LocalAccess));
}
