//! Where bytes of the peer go, and which of them must wait.

use mem::{AccessError, MemoryAccess, Payload, Rights, Target};
use wire_edge::{Flags, MessageNumber, RemoteKey};

use super::Inbound;
use super::operation::{InKind, InOperation};
use crate::order_pool::OrderPool;
use crate::pools::Pools;
use crate::slab::NIL;

/// Whether the last bytes must become visible after all others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail {
    Ordered,
    Any,
}

/// What newer operations have written, as seen from one address on.
enum Newer {
    /// Nothing up to this address.
    FreeUntil(u64),
    /// Everything up to this address.
    WrittenUntil(u64),
}

impl Inbound {
    /// Places bytes of an operation. If it is strict, "the late writer yields": bytes that a newer
    /// open operation (`later` and those behind it in the list) has written stay as they are.
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
        let yields = self.placed_early > 0 && later != NIL && flags.contains(Flags::STRICT);
        match *kind {
            InKind::Write { key, base } if yields => {
                self.place_around(memory, pools, later, (key, base), offset, bytes, tail)
            }
            _ => self.place(memory, kind, offset, bytes, tail),
        }
    }

    /// Places what the operation in turn holds: all of it if it is `complete`, else what needs not
    /// wait for its own body.
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

    /// Holds a whole fragment of a fenced operation, apart from what is held of it already. False
    /// if there is no room, and then nothing has happened.
    pub(super) fn hold_fenced(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        start: u32,
        payload: Payload<'_>,
        last: bool,
    ) -> bool {
        let end = start + payload.len() as u32;
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

    /// Holds the ordered tail of a strict operation: all of the fragment, also bytes that are placed
    /// already (as body, by a shorter fragment), so that from `held_from` on nothing counts as
    /// placed. False if there is no room, and then nothing has happened.
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

    fn has_order_room(&self, pools: &Pools, bytes: u32, blocks: u32) -> bool {
        let held_bytes = u64::from(self.held_bytes) + u64::from(bytes);
        let room = pools.order.room();
        bytes == 0
            || held_bytes <= u64::from(self.limits.order_pool_bytes)
                && blocks <= room
                && Pools::grants_another(self.held_blocks, room)
    }

    /// Places `bytes` wherever no newer operation has written. Each step looks at every newer
    /// operation, but there are two steps for each stretch of newer bytes only.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "the slow path of `place_yielding`")]
    fn place_around(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        later: u32,
        (key, base): (RemoteKey, u64),
        offset: u32,
        bytes: Payload<'_>,
        tail: Tail,
    ) -> Result<(), AccessError> {
        let kind = InKind::Write { key, base };
        let start = base + u64::from(offset);
        let end = start + bytes.len() as u64;
        let mut from = start;
        while from < end {
            match self.newer_writes(memory, pools, later, key, from, end) {
                Newer::WrittenUntil(to) => from = to,
                Newer::FreeUntil(to) => {
                    let piece = bytes.slice((from - start) as usize..(to - start) as usize);
                    let tail = if to == end { tail } else { Tail::Any };
                    self.place(memory, &kind, (from - base) as u32, piece, tail)?;
                    from = to;
                }
            }
        }
        Ok(())
    }

    /// What operations from `later` on have written of `[from, end)`, which `key` names.
    fn newer_writes(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        later: u32,
        key: RemoteKey,
        from: u64,
        end: u64,
    ) -> Newer {
        let (mut written, mut free) = (i128::from(from), i128::from(end));
        let mut later = later;
        while later != NIL {
            let newer = &pools.incoming[later];
            let received = &pools.received[later as usize];
            later = newer.next;
            let Some(base) = self.base_seen_from(memory, newer, received.start(), key, from) else {
                continue;
            };
            for &(low, high) in received.as_slice() {
                let high = high.min(newer.held_from);
                let (low, high) = (base + i128::from(low), base + i128::from(high));
                if low >= free {
                    break;
                }
                if low >= high || high <= written {
                    continue;
                }
                if low <= written {
                    written = high;
                } else {
                    free = low;
                    break;
                }
            }
        }
        let end = i128::from(end);
        if written > i128::from(from) {
            Newer::WrittenUntil(written.min(end) as u64)
        } else {
            Newer::FreeUntil(free.min(end) as u64)
        }
    }

    /// Where byte 0 of a newer write lies, in the addresses of the region that `key` names; None if
    /// it has placed nothing. The same memory may be registered twice, under two addresses.
    fn base_seen_from(
        &self,
        memory: &MemoryAccess<'_>,
        newer: &InOperation,
        first: u32,
        key: RemoteKey,
        from: u64,
    ) -> Option<i128> {
        let InKind::Write { key: newer_key, base } = newer.kind else { return None };
        if !newer.placed_early {
            return None;
        }
        if newer_key == key {
            return Some(i128::from(base));
        }
        let locate = |key, address| {
            let target = memory.resolve(self.domain, key, address, 1, Rights::REMOTE_WRITE).ok()?;
            memory.memory_address(&target).ok()
        };
        let first = u64::from(first);
        let newer_at = i128::from(locate(newer_key, base + first)?) - i128::from(first);
        Some(newer_at - i128::from(locate(key, from)?) + i128::from(from))
    }

    #[inline]
    fn place(
        &self,
        memory: &MemoryAccess<'_>,
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
                let address = base.wrapping_add(u64::from(offset));
                match &self.known {
                    Some((known, target)) if *known == key => {
                        match memory.resolve_again(target, address, len) {
                            Ok(target) => target,
                            Err(_) => self.resolve(memory, key, address, len)?,
                        }
                    }
                    _ => self.resolve(memory, key, address, len)?,
                }
            }
            InKind::Send { message } => self.sink(memory, message, offset, len)?,
            InKind::Read { .. } | InKind::Atomic { .. } => return Ok(()),
        };
        match tail {
            Tail::Ordered => memory.place_tail(&target, 0, bytes),
            Tail::Any => memory.place(&target, 0, bytes),
        }
    }

    /// Remembers the region under `key`, so that the next fragments need no look-up.
    #[cold]
    pub(super) fn know(&mut self, memory: &MemoryAccess<'_>, key: RemoteKey, address: u64) {
        self.known = self.resolve(memory, key, address, 0).ok().map(|target| (key, target));
    }

    /// Looks `key` up, and names the cause if that fails.
    #[inline(never)]
    fn resolve(
        &self,
        memory: &MemoryAccess<'_>,
        key: RemoteKey,
        address: u64,
        len: u64,
    ) -> Result<Target, AccessError> {
        memory.resolve(self.domain, key, address, len, Rights::REMOTE_WRITE)
    }

    /// Where bytes of a message go.
    fn sink(
        &self,
        memory: &MemoryAccess<'_>,
        message: MessageNumber,
        offset: u32,
        len: u64,
    ) -> Result<Target, AccessError> {
        let receive = self.receives.as_ref().and_then(|receives| receives.get(message));
        let receive = receive.ok_or(AccessError::InvalidKey { name: u64::from(message.0) })?;
        let end = u64::from(offset) + len;
        if end > u64::from(receive.length) {
            return Err(AccessError::Bounds {
                address: receive.offset,
                len: end,
                start: receive.offset,
                limit: u64::from(receive.length),
            });
        }
        memory.resolve_local(
            receive.region,
            receive.offset + u64::from(offset),
            len,
            Rights::LOCAL_WRITE,
        )
    }
}
