//! Opens and closes the records of operations, and links them in order.

use wire_edge::{Flags, OperationNumber};

use super::operation::{InKind, InOperation};
use super::{Inbound, Refusal, Verdict};
use crate::pools::Pools;
use crate::slab::NIL;

impl Inbound {
    //= protocol.md: operation.8, pool.4
    /// Returns the record of operation `number`. Opens a record if the operation has none.
    #[inline]
    pub(super) fn find_or_open(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        flags: Flags,
        kind: &InKind,
    ) -> Result<u32, Verdict> {
        if let Some(operation) = pools.incoming.get(self.current)
            && operation.number == number
        {
            return Ok(self.current);
        }
        self.find_or_open_other(pools, number, flags, kind)
    }

    /// Does the work of [`Inbound::find_or_open`] if the last fragment belonged to another
    /// operation.
    #[inline(never)]
    fn find_or_open_other(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        flags: Flags,
        kind: &InKind,
    ) -> Result<u32, Verdict> {
        if let Some(slot) = pools.incoming_index.get(self.owner.index(), number) {
            self.current = slot;
            return Ok(slot);
        }
        if number != self.expected && !Pools::grants_another(self.open, pools.incoming.room()) {
            return Err(Verdict::Refused(Refusal::Pool));
        }
        // The first undelivered operation always gets a record. Without one, it could not be
        // delivered, and later operations could never free their records.
        let slot = pools.incoming.insert_growing(InOperation::new(number, flags, *kind));
        self.open += 1;
        pools.clear_received(slot);
        pools.incoming_index.insert(self.owner.index(), number, slot);
        self.link(pools, slot, number);
        self.current = slot;
        Ok(slot)
    }

    /// Frees the record of the first open operation.
    pub(super) fn close_head(&mut self, pools: &mut Pools) {
        let mut operation = pools.incoming.remove(self.head);
        self.held_bytes -= operation.held.bytes;
        self.held_blocks -= pools.order.clear(&mut operation.held);
        self.open -= 1;
        self.extra_ranges -= pools.received[self.head as usize].extra();
        self.placed_early -= u32::from(operation.placed_early);
        pools.incoming_index.remove(self.owner.index(), operation.number);
        if self.current == self.head {
            self.current = NIL;
        }
        self.head = operation.next;
    }

    /// Inserts the record in `slot` into the list, which is in ascending order of operation
    /// numbers. Operations mostly arrive in order. If the record that was used last belongs to an
    /// earlier operation, the search therefore starts there.
    fn link(&mut self, pools: &mut Pools, slot: u32, number: OperationNumber) {
        let start = match pools.incoming.get(self.current) {
            Some(current) if current.number.since(number) < 0 => self.current,
            _ => NIL,
        };
        let mut before = start;
        let mut after = if start == NIL { self.head } else { pools.incoming[start].next };
        while after != NIL && pools.incoming[after].number.since(number) < 0 {
            before = after;
            after = pools.incoming[after].next;
        }
        pools.incoming[slot].next = after;
        if before == NIL {
            self.head = slot;
        } else {
            pools.incoming[before].next = slot;
        }
    }
}
