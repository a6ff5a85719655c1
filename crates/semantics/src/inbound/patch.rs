//! Placement of the scattered words of a Patch (protocol.md §3.6 and §5.9).

use mem::{AccessError, MemoryAccess, Payload};
use wire_edge::{PATCH_RECORD_HEADER_BYTES, PatchRecord, RemoteKey};

use super::Inbound;
use crate::limits::ORDER_BLOCK_BYTES;
use crate::pools::Pools;
use crate::range_set::RangeSet;

impl Inbound {
    //= protocol.md: patch.5, patch.6
    /// Places the words that the records in `bytes` name. Checks the access to all of them first.
    ///
    /// A key gives access to one range of addresses. So the peer may write all words if it may
    /// write the first word, the last word and all bytes between them. Costs one check of the key
    /// for each call, and for each record two reads of its start and one check of the region.
    #[inline(never)]
    pub(super) fn place_patch(
        &self,
        memory: &MemoryAccess<'_>,
        key: RemoteKey,
        address: u64,
        bytes: Payload<'_>,
    ) -> Result<(), AccessError> {
        let mut span: Option<(u64, u64)> = None;
        for (record, _) in Records::new(bytes).filter(|(record, _)| record.bitmap != 0) {
            let own = record.span();
            let (start, end) = span.unwrap_or((own.start, own.end));
            span = Some((start.min(own.start), end.max(own.end)));
        }
        let Some((start, end)) = span else { return Ok(()) };
        let first = address.wrapping_add(start);
        let target = self.resolve_known(memory, key, first, end - start)?;
        for (record, words) in Records::new(bytes).filter(|(record, _)| record.bitmap != 0) {
            let shift = record.bitmap.trailing_zeros();
            let offset = record.span().start.wrapping_sub(start);
            memory.place_words(&target, offset, record.bitmap >> shift, words)?;
        }
        Ok(())
    }

    //= protocol.md: patch.7
    /// Places those records of a fragment that have not arrived before. `received` are the bytes of
    /// the operation that have arrived, and `start` is the offset of the fragment.
    #[cold]
    pub(super) fn patch_new(
        &self,
        memory: &MemoryAccess<'_>,
        received: &RangeSet,
        (key, address): (RemoteKey, u64),
        start: u32,
        payload: Payload<'_>,
    ) -> Result<(), AccessError> {
        let mut result = Ok(());
        uncovered_records(received, start, payload, u32::MAX, |_, records| {
            if result.is_ok() {
                result = self.place_patch(memory, key, address, records);
            }
        });
        result
    }

    //= protocol.md: fence.1, patch.7
    /// Holds the records of a fragment of a fenced Patch, except those that are already held. A
    /// record is never divided between two blocks of the pool, so that the words of a block can be
    /// placed without the other blocks. If there is no room, changes nothing and returns false.
    #[cold]
    pub(super) fn hold_patch(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        start: u32,
        payload: Payload<'_>,
    ) -> bool {
        let limit = ORDER_BLOCK_BYTES as u32;
        let (mut bytes, mut blocks) = (0, 0);
        uncovered_records(&pools.received[slot as usize], start, payload, limit, |_, records| {
            bytes += records.len() as u32;
            blocks += 1;
        });
        if !self.has_order_room(pools, bytes, blocks) {
            return false;
        }
        let Pools { received, incoming, order, .. } = pools;
        let operation = &mut incoming[slot];
        uncovered_records(&received[slot as usize], start, payload, limit, |offset, records| {
            order.hold(&mut operation.held, offset, records, false);
        });
        operation.held_from = 0;
        self.held_bytes += bytes;
        self.held_blocks += blocks;
        true
    }
}

/// Calls `visit` with the offset and the bytes of each run of adjacent records that are not in
/// `received`. A run has at most `limit` bytes, which must be enough for a record.
fn uncovered_records<'p>(
    received: &RangeSet,
    start: u32,
    payload: Payload<'p>,
    limit: u32,
    mut visit: impl FnMut(u32, Payload<'p>),
) {
    let (mut run, mut end) = (0, 0);
    for (record, _) in Records::new(payload) {
        let next = end + record.bytes() as u32;
        let is_known = received.contains(start + end, start + next);
        if run < end && (is_known || next - run > limit) {
            visit(start + run, payload.slice(run as usize..end as usize));
            run = end;
        }
        end = next;
        if is_known {
            run = end;
        }
    }
    if run < end {
        visit(start + run, payload.slice(run as usize..end as usize));
    }
}

/// Divides the payload of a fragment into records. The decoder of frames has checked that all of
/// them are whole; an iterator over other bytes ends before the first record that is not whole.
#[derive(Clone)]
struct Records<'p> {
    rest: Payload<'p>,
}

impl<'p> Records<'p> {
    const fn new(payload: Payload<'p>) -> Self {
        Self { rest: payload }
    }
}

impl<'p> Iterator for Records<'p> {
    type Item = (PatchRecord, Payload<'p>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mut header = [0; PATCH_RECORD_HEADER_BYTES];
        if self.rest.len() < header.len() {
            return None;
        }
        self.rest.slice(0..header.len()).copy_to(&mut header);
        let record = PatchRecord::decode(&header);
        if self.rest.len() < record.bytes() {
            return None;
        }
        let words = self.rest.slice(header.len()..record.bytes());
        self.rest = self.rest.slice(record.bytes()..self.rest.len());
        Some((record, words))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_runs_are_the_records_that_are_not_received(
            sizes in vec(0..=32_u32, 1..40),
            known in vec((any::<proptest::sample::Index>(), 1..4_usize), 0..4),
            limit in 136..600_u32,
            start in 0..100_u32,
        ) {
            let (mut payload, mut bounds) = (Vec::new(), vec![start]);
            for (block, &size) in sizes.iter().enumerate() {
                let bitmap = u32::MAX.checked_shr(32 - size).unwrap_or(0);
                let record = PatchRecord { block: block as u16, bitmap };
                payload.extend_from_slice(&record.encode());
                payload.resize(payload.len() + 4 * size as usize, 0);
                bounds.push(start + payload.len() as u32);
            }
            let mut received = RangeSet::default();
            let mut is_known = vec![false; sizes.len()];
            for (first, count) in known {
                let first = first.index(sizes.len());
                let end = sizes.len().min(first + count);
                prop_assert!(received.insert(bounds[first], bounds[end]).is_ok());
                is_known[first..end].fill(true);
            }
            let mut visited = vec![false; sizes.len()];
            uncovered_records(&received, start, (&payload).into(), limit, |offset, records| {
                let end = offset + records.len() as u32;
                assert!(records.len() as u32 <= limit && offset < end);
                let first = bounds.binary_search(&offset).expect("a run begins with a record");
                let end = bounds.binary_search(&end).expect("a run ends with a record");
                visited[first..end].iter_mut().for_each(|visited| {
                    assert!(!*visited, "a record is visited once");
                    *visited = true;
                });
            });
            for (visited, known) in visited.iter().zip(is_known) {
                prop_assert_eq!(*visited, !known);
            }
        }
    }
}
