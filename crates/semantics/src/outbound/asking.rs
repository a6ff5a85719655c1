//! Handles the peer's answers to the reads and atomics of this side.

use mem::{AccessError, MemoryAccess, Payload, RegionId, Rights};
use wire_edge::OperationNumber;
use work::Cut;

use super::{LocalFault, OutKind, Outbound};
use crate::pools::Pools;
use crate::range_set::RangeSet;
use crate::slab::{NIL, Slab};
use work::{Piece, Sink};

/// Result of handling an answer of the peer, and the action for the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The bytes were placed: acknowledge the packet.
    Accepted,
    /// The same part has arrived before: acknowledge the packet again.
    Duplicate,
    /// There is no room to record another gap in the answer: do not acknowledge the packet. Either
    /// the read already has the maximum number of gaps, or this is its first gap and all records
    /// are in use.
    NoRoom,
    /// The answer belongs to no read or atomic that was sent: close the connection.
    Violation,
}

impl Outbound {
    //= protocol.md: answer.11
    pub(super) fn handle_read_answer(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        number: OperationNumber,
        offset: u32,
        last: bool,
        payload: Payload<'_>,
    ) -> Result<Answer, LocalFault> {
        let Some(slot) = pools.reads_index.get(self.owner.index(), number) else {
            return Ok(self.answer_without_question(pools, number));
        };
        let operation = &mut pools.operations[slot];
        let length = operation.length;
        let end = offset + payload.len() as u32;
        let OutKind::Read { sink, sink_offset, list, prefix, ranges, arrived } =
            &mut operation.kind
        else {
            return Ok(Answer::Violation);
        };
        if end > length || (last && end != length) {
            return Ok(Answer::Violation);
        }
        if *arrived || (length > 0 && end <= *prefix) {
            return Ok(Answer::Duplicate);
        }
        if offset > *prefix && *ranges == NIL && !open_ranges(&mut pools.reads, *prefix, ranges) {
            return Ok(Answer::NoRoom);
        }
        let (sink, sink_offset, list) = (*sink, *sink_offset, *list);
        let lists = &pools.lists;
        let place = |from: u32, to: u32| {
            let bytes = payload.slice((from - offset) as usize..(to - offset) as usize);
            let placed = if list == NIL {
                place_at(memory, sink, sink_offset + u64::from(from), bytes)
            } else {
                place_in_pieces(memory, lists.get(list).cut(from, to - from), bytes)
            };
            placed.map_err(|_| LocalFault::Operation(number))
        };
        if let Some(record) = pools.reads.get_mut(*ranges) {
            if offset < end && record.contains(offset, end) {
                return Ok(Answer::Duplicate);
            }
            if !record.takes(offset, end) {
                return Ok(Answer::NoRoom);
            }
            let mut result = Ok(());
            record.uncovered(offset, end, |from, to| {
                if result.is_ok() {
                    result = place(from, to);
                }
            });
            result?;
            let inserted = record.insert(offset, end);
            assert!(inserted.is_ok(), "there was room for the range above");
            *prefix =
                record.as_slice().first().map_or(0, |first| if first.0 == 0 { first.1 } else { 0 });
        } else {
            let from = offset.max(*prefix);
            if from < end {
                place(from, end)?;
            }
            *prefix = end;
        }
        *arrived = *prefix == length;
        operation.progressed += payload.len() as u32;
        let (status, bytes, arrived) =
            (operation.status, operation.progressed, operation.is_answered());
        if let Some(status) = status {
            pools.status.progress(status, bytes.min(length));
        }
        if arrived {
            self.unblock();
            self.complete_ready(pools);
        }
        Ok(Answer::Accepted)
    }

    pub(super) fn handle_atomic_answer(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        number: OperationNumber,
        answer: u64,
    ) -> Result<Answer, LocalFault> {
        let Some(slot) = pools.reads_index.get(self.owner.index(), number) else {
            return Ok(self.answer_without_question(pools, number));
        };
        let OutKind::Atomic { ref mut value, sink, .. } = pools.operations[slot].kind else {
            return Ok(Answer::Violation);
        };
        if value.is_some() {
            return Ok(Answer::Duplicate);
        }
        if let Some(Sink { region, offset }) = sink {
            memory
                .resolve_local(region, offset, 8, Rights::LOCAL_WRITE)
                .and_then(|target| memory.write_value(&target, answer))
                .map_err(|_| LocalFault::Operation(number))?;
        }
        *value = Some(answer);
        self.unblock();
        self.complete_ready(pools);
        Ok(Answer::Accepted)
    }

    //= protocol.md: answer.12
    /// Handles an answer for which no operation waits. If the operation with this number was sent,
    /// the answer is a late duplicate. Otherwise it is a violation.
    #[cold]
    fn answer_without_question(&self, pools: &Pools, number: OperationNumber) -> Answer {
        if number.since(self.first_unsent(pools)) >= 0 {
            return Answer::Violation;
        }
        Answer::Duplicate
    }
}

/// Copies bytes of an answer to a region. The last bytes become visible after all others.
#[inline]
fn place_at(
    memory: &MemoryAccess<'_>,
    region: RegionId,
    at: u64,
    bytes: Payload<'_>,
) -> Result<(), AccessError> {
    let target = memory.resolve_local(region, at, bytes.len() as u64, Rights::LOCAL_WRITE)?;
    memory.place_tail(&target, 0, bytes)
}

/// Copies bytes of an answer to the given parts of registered memory. The parts have as many bytes
/// in total as `bytes`.
fn place_in_pieces(
    memory: &MemoryAccess<'_>,
    pieces: Cut<'_>,
    bytes: Payload<'_>,
) -> Result<(), AccessError> {
    let mut from = 0;
    for Piece { region, offset, length } in pieces {
        let to = from + length as usize;
        place_at(memory, region, offset, bytes.slice(from..to))?;
        from = to;
    }
    Ok(())
}

/// Allocates a record for the received ranges of a read, of which the bytes `[0, prefix)` have
/// already arrived. Returns false if no record is free.
#[cold]
fn open_ranges(reads: &mut Slab<RangeSet>, prefix: u32, ranges: &mut u32) -> bool {
    let mut record = RangeSet::default();
    let inserted = record.insert(0, prefix);
    assert!(inserted.is_ok(), "an empty range set takes one range");
    match reads.insert(record) {
        Ok(slot) => {
            *ranges = slot;
            true
        }
        Err(_) => false,
    }
}
