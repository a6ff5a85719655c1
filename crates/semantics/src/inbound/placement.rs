//! Placement: decides which bytes of a fragment to place now, and which bytes to hold in the order
//! pool.

use mem::{AccessError, MemoryAccess, Payload, RegionId, Rights, Target};
use wire_edge::{Flags, MessageNumber, RemoteKey};

use super::Inbound;
use super::operation::{InKind, InOperation};
use super::yielding::RemotePlace;
use crate::lists::Lists;
use crate::order_pool::OrderPool;
use crate::pools::Pools;
use crate::receive_queue::{Destination, Posted};
use crate::slab::NIL;
use work::PieceList;

/// Whether the last bytes of a copy must become visible to other threads after all its other bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail {
    Ordered,
    Any,
}

impl Inbound {
    //= protocol.md: strict.3
    /// Places bytes of an operation. A strict operation yields: it does not change bytes in memory
    /// that a newer open operation has already written. `later` is the first of the newer
    /// operations in the list.
    #[expect(clippy::too_many_arguments, reason = "one call per piece, on the hot path")]
    #[inline]
    pub(super) fn place_yielding(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        later: u32,
        (flags, kind): (Flags, &InKind),
        offset: u32,
        bytes: Payload<'_>,
        tail: Tail,
    ) -> Result<(), AccessError> {
        match *kind {
            InKind::Write { key, base } if self.yields(later, flags) => {
                let place = RemotePlace { key, base, offset };
                self.place_around(memory, pools, None, later, place, bytes, tail)
            }
            _ => self.place(memory, &pools.lists, kind, offset, bytes, tail),
        }
    }

    /// Returns whether an operation with these flags must leave out bytes that newer operations may
    /// have written. `later` is the first of the newer operations in the list.
    #[inline]
    pub(super) fn yields(&self, later: u32, flags: Flags) -> bool {
        self.placed_early > 0 && later != NIL && flags.contains(Flags::STRICT)
    }

    //= protocol.md: fence.1
    /// Places the held bytes of the first undelivered operation. If `complete` is false, a held
    /// tail of a strict operation stays held until the other bytes have arrived.
    pub(super) fn place_held(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        slot: u32,
        complete: bool,
    ) -> Result<(), AccessError> {
        let InOperation { mut held, total, next, flags, kind, .. } = pools.incoming[slot];
        let keep_tail = flags.contains(Flags::STRICT) && !complete;
        let mut held_from = u32::MAX;
        let mut result = Ok(());
        while let Some((offset, bytes)) = pools.order.front(&held) {
            let is_tail = Some(offset + bytes.len() as u32) == total;
            if is_tail && keep_tail {
                held_from = offset;
                break;
            }
            let tail = if is_tail { Tail::Ordered } else { Tail::Any };
            let (order, bytes) = ((flags, &kind), bytes.into());
            result = self.place_yielding(memory, pools, next, order, offset, bytes, tail);
            self.held_bytes -= pools.order.pop(&mut held);
            self.held_blocks -= 1;
            if result.is_err() {
                break;
            }
        }
        let operation = &mut pools.incoming[slot];
        operation.held = held;
        operation.held_from = held_from;
        result
    }

    //= protocol.md: fence.1
    /// Holds the bytes of a fragment of a fenced operation, except those that are already held. If
    /// there is no room, changes nothing and returns false.
    pub(super) fn hold_fenced(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        start: u32,
        payload: Payload<'_>,
        last: bool,
    ) -> bool {
        let end = start + payload.len() as u32;
        if matches!(pools.incoming[slot].kind, InKind::Patch { .. }) {
            return self.hold_patch(pools, slot, start, payload);
        }
        let (mut bytes, mut blocks) = (0, 0);
        pools.received[slot as usize].uncovered(start, end, |low, high| {
            bytes += high - low;
            blocks += OrderPool::blocks_for(high - low);
        });
        if !self.has_order_room(pools, bytes, blocks) {
            return false;
        }
        let Pools { received, incoming, order, .. } = pools;
        let received = &received[slot as usize];
        let operation = &mut incoming[slot];
        received.uncovered(start, end, |low, high| {
            let piece = payload.slice((low - start) as usize..(high - start) as usize);
            order.hold(&mut operation.held, low, piece, last && high == end);
        });
        operation.held_from = 0;
        self.held_bytes += bytes;
        self.held_blocks += blocks;
        true
    }

    //= protocol.md: strict.2
    /// Holds the tail of a strict operation. If a shorter fragment has already placed some bytes of
    /// the tail as part of the body, these bytes are held too. After this call, no byte at or after
    /// `held_from` counts as placed. If there is no room, changes nothing and returns false.
    pub(super) fn hold_tail(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        start: u32,
        payload: Payload<'_>,
    ) -> bool {
        let end = start + payload.len() as u32;
        let held_end = end.min(pools.incoming[slot].held_from);
        if held_end <= start {
            return true;
        }
        let bytes = held_end - start;
        let blocks = OrderPool::blocks_for(bytes);
        if !self.has_order_room(pools, bytes, blocks) {
            return false;
        }
        let piece = payload.slice(0..bytes as usize);
        let operation = &mut pools.incoming[slot];
        pools.order.hold(&mut operation.held, start, piece, held_end == end);
        operation.held_from = start;
        self.held_bytes += bytes;
        self.held_blocks += blocks;
        true
    }

    //= protocol.md: pool.1
    pub(super) fn has_order_room(&self, pools: &Pools, bytes: u32, blocks: u32) -> bool {
        let held_bytes = u64::from(self.held_bytes) + u64::from(bytes);
        let room = pools.order.room();
        bytes == 0
            || held_bytes <= u64::from(self.limits.order_pool_bytes)
                && blocks <= room
                && Pools::grants_another(self.held_blocks, room)
    }

    //= protocol.md: violation.2
    #[inline]
    pub(super) fn place(
        &self,
        memory: &MemoryAccess<'_>,
        lists: &Lists,
        kind: &InKind,
        offset: u32,
        bytes: Payload<'_>,
        tail: Tail,
    ) -> Result<(), AccessError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        let target = match *kind {
            InKind::Write { key, base } => {
                self.resolve_known(memory, key, base.wrapping_add(u64::from(offset)), len)?
            }
            InKind::Send { message, .. } => {
                let receive = self.receive_of(message, offset, len)?;
                match receive.destination {
                    Destination::Region { region, offset: start } => {
                        sink(memory, region, start.saturating_add(u64::from(offset)), len)?
                    }
                    Destination::List(slot) => {
                        return place_in_pieces(memory, lists.get(slot), offset, bytes, tail);
                    }
                }
            }
            InKind::Patch { key, address } => {
                return self.place_patch(memory, key, address, bytes);
            }
            InKind::Read { .. } | InKind::Atomic { .. } => return Ok(()),
        };
        match tail {
            Tail::Ordered => memory.place_tail(&target, 0, bytes),
            Tail::Any => memory.place(&target, 0, bytes),
        }
    }

    //= protocol.md: window.2
    /// Caches the region with `key`, so that the next fragments need no look-up. Does not cache
    /// memory windows, because a window can become invalid at any time while its region still
    /// exists.
    #[cold]
    pub(super) fn know(&mut self, memory: &MemoryAccess<'_>, key: RemoteKey, address: u64) {
        if !self.limits.rights.contains(Rights::REMOTE_WRITE) {
            return;
        }
        let region = memory.resolve(self.domain, key, address, 0, Rights::REMOTE_WRITE);
        self.known = region.ok().map(|target| (key, target));
    }

    /// Validates a write of the peer. If `key` is that of the cached region, needs no look-up.
    #[inline]
    pub(super) fn resolve_known(
        &self,
        memory: &MemoryAccess<'_>,
        key: RemoteKey,
        address: u64,
        len: u64,
    ) -> Result<Target, AccessError> {
        match &self.known {
            Some((known, target)) if *known == key => {
                match memory.resolve_again(target, address, len) {
                    Ok(target) => Ok(target),
                    Err(_) => self.resolve(memory, key, address, len),
                }
            }
            _ => self.resolve(memory, key, address, len),
        }
    }

    /// Looks up `key` for a write of the peer. If the peer may not write with `key`, returns the
    /// cause as an error.
    #[inline(never)]
    pub(super) fn resolve(
        &self,
        memory: &MemoryAccess<'_>,
        key: RemoteKey,
        address: u64,
        len: u64,
    ) -> Result<Target, AccessError> {
        self.reach(memory, key, address, len, Rights::REMOTE_WRITE)
    }

    //= protocol.md: window.1, granted.1
    /// Returns the memory that the peer accesses with `key`: a part of a region or of a memory
    /// window.
    #[inline]
    pub(super) fn reach(
        &self,
        memory: &MemoryAccess<'_>,
        key: RemoteKey,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<Target, AccessError> {
        let granted = self.limits.rights;
        if !granted.contains(want) {
            return Err(AccessError::Permission { wanted: want, granted });
        }
        memory.resolve_for(self.domain, self.owner.bits(), key, address, len, want)
    }

    //= protocol.md: message.1, credit.3, violation.5
    /// Returns the receive for bytes of a message, if the receive is long enough.
    fn receive_of(
        &self,
        message: MessageNumber,
        offset: u32,
        len: u64,
    ) -> Result<&Posted, AccessError> {
        let receive = self.receives.as_ref().and_then(|receives| receives.get(message));
        let receive = receive.ok_or(AccessError::InvalidKey { name: u64::from(message.0) })?;
        let (end, limit) = (u64::from(offset) + len, u64::from(receive.length));
        if end > limit {
            return Err(AccessError::Bounds { address: 0, len: end, start: 0, limit });
        }
        Ok(receive)
    }
}

//= protocol.md: violation.6
/// Returns the memory of a receive. For any failure, returns the error for a message that is too
/// long.
#[inline]
fn sink(
    memory: &MemoryAccess<'_>,
    region: RegionId,
    offset: u64,
    len: u64,
) -> Result<Target, AccessError> {
    let target = memory.resolve_local(region, offset, len, Rights::LOCAL_WRITE);
    target.map_err(|error| match error {
        AccessError::Bounds { address, .. } => AccessError::Unmapped { address },
        other => other,
    })
}

/// Places bytes in a list of pieces (scatter/gather entries). `offset` counts from the start of the
/// list. Fills the pieces in order, so that the last bytes become visible after all other bytes.
#[inline(never)]
fn place_in_pieces(
    memory: &MemoryAccess<'_>,
    list: PieceList<'_>,
    offset: u32,
    bytes: Payload<'_>,
    tail: Tail,
) -> Result<(), AccessError> {
    let mut done = 0;
    for piece in list.cut(offset, bytes.len() as u32) {
        let target = sink(memory, piece.region, piece.offset, u64::from(piece.length))?;
        let end = done + piece.length as usize;
        let part = bytes.slice(done..end);
        match tail {
            Tail::Ordered if end == bytes.len() => memory.place_tail(&target, 0, part)?,
            _ => memory.place(&target, 0, part)?,
        }
        done = end;
    }
    Ok(())
}
