//! The order pool: memory, in blocks, for payload that has arrived but must not be placed yet.

use mem::Payload;

use crate::limits::ORDER_BLOCK_BYTES;
use crate::slab::NIL;

/// Blocks of payload that wait for earlier operations. [`OrderPool::new`] allocates all memory.
/// Only a [growing](OrderPool::growing) pool allocates more later.
#[derive(Debug)]
pub(crate) struct OrderPool {
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    free: u32,
    used: u32,
    /// Maximum number of blocks in use.
    limit: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    next: u32,
    /// Offset of the first byte within the operation.
    offset: u32,
    len: u32,
}

/// The held payload of one operation. If the tail of the operation is held, the tail is in the last
/// block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldList {
    head: u32,
    tail: u32,
    /// Number of held payload bytes.
    pub(crate) bytes: u32,
}

impl HeldList {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL, bytes: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

impl OrderPool {
    pub(crate) fn new(blocks: u32) -> Self {
        Self {
            bytes: vec![0; blocks as usize * ORDER_BLOCK_BYTES],
            blocks: (0..blocks)
                .map(|index| Block {
                    next: if index + 1 == blocks { NIL } else { index + 1 },
                    offset: 0,
                    len: 0,
                })
                .collect(),
            free: if blocks == 0 { NIL } else { 0 },
            used: 0,
            limit: blocks,
        }
    }

    /// Creates a pool of at most `blocks` blocks. The pool allocates each block on first use.
    pub(crate) const fn growing(blocks: u32) -> Self {
        Self { bytes: Vec::new(), blocks: Vec::new(), free: NIL, used: 0, limit: blocks }
    }

    /// Returns the number of blocks that `len` bytes need.
    pub(crate) const fn blocks_for(len: u32) -> u32 {
        len.div_ceil(ORDER_BLOCK_BYTES as u32)
    }

    /// Returns the number of free blocks.
    pub(crate) const fn room(&self) -> u32 {
        self.limit - self.used
    }

    /// Returns the number of blocks in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Adds `payload` to `list`. The caller has checked with [`OrderPool::room`] that there is
    /// room.
    ///
    /// If the payload ends its operation (`is_tail`), its last block is added behind all other
    /// blocks, so that the tail is placed last. All other blocks are added at the front.
    pub(crate) fn hold(
        &mut self,
        list: &mut HeldList,
        offset: u32,
        payload: Payload<'_>,
        is_tail: bool,
    ) {
        let end = offset + payload.len() as u32;
        let mut offset = offset;
        for chunk in payload.chunks(ORDER_BLOCK_BYTES) {
            let index = if self.free == NIL { self.grow() } else { self.free };
            let len = chunk.len() as u32;
            let block = &mut self.blocks[index as usize];
            self.free = block.next;
            *block = Block { next: NIL, offset, len };
            let start = index as usize * ORDER_BLOCK_BYTES;
            chunk.copy_to(&mut self.bytes[start..start + chunk.len()]);
            offset += len;
            if list.tail == NIL {
                (list.head, list.tail) = (index, index);
            } else if is_tail && offset == end {
                self.blocks[list.tail as usize].next = index;
                list.tail = index;
            } else {
                self.blocks[index as usize].next = list.head;
                list.head = index;
            }
            list.bytes += len;
            self.used += 1;
        }
    }

    /// Returns the offset and the bytes of the first block of `list`; `None` if the list is empty.
    pub(crate) fn front(&self, list: &HeldList) -> Option<(u32, &[u8])> {
        let block = self.blocks.get(list.head as usize)?;
        let start = list.head as usize * ORDER_BLOCK_BYTES;
        Some((block.offset, &self.bytes[start..start + block.len as usize]))
    }

    /// Frees the first block of `list`, if there is one, and returns its length in bytes.
    pub(crate) fn pop(&mut self, list: &mut HeldList) -> u32 {
        let index = list.head;
        let Some(block) = self.blocks.get_mut(index as usize) else { return 0 };
        let len = block.len;
        list.head = block.next;
        block.next = self.free;
        self.free = index;
        self.used -= 1;
        list.bytes -= len;
        if list.head == NIL {
            list.tail = NIL;
        }
        len
    }

    /// Allocates a block.
    #[cold]
    fn grow(&mut self) -> u32 {
        let index = self.blocks.len() as u32;
        self.blocks.push(Block { next: NIL, offset: 0, len: 0 });
        self.bytes.resize(self.blocks.len() * ORDER_BLOCK_BYTES, 0);
        index
    }

    /// Frees all payload of `list` and returns the number of freed blocks.
    pub(crate) fn clear(&mut self, list: &mut HeldList) -> u32 {
        let before = self.used;
        while !list.is_empty() {
            self.pop(list);
        }
        before - self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_returned_last_whenever_it_was_held() {
        for (tail_first, grows) in [(false, false), (true, false), (true, true)] {
            let mut pool = if grows { OrderPool::growing(5) } else { OrderPool::new(5) };
            let bytes: Vec<u8> = (0..ORDER_BLOCK_BYTES * 4 + 5).map(|i| i as u8).collect();
            let (body, tail) = bytes.split_at(ORDER_BLOCK_BYTES + 100);
            let at = body.len() as u32;
            let mut list = HeldList::EMPTY;
            assert_eq!(OrderPool::blocks_for(body.len() as u32), 2);
            assert_eq!(OrderPool::blocks_for(tail.len() as u32), 3);
            assert_eq!(pool.room(), 5);
            if tail_first {
                pool.hold(&mut list, at, tail.into(), true);
                pool.hold(&mut list, 0, body.into(), false);
            } else {
                pool.hold(&mut list, 0, body.into(), false);
                pool.hold(&mut list, at, tail.into(), true);
            }
            assert_eq!(pool.room(), 0);
            let mut back = vec![0; bytes.len()];
            let mut last_end = 0;
            while let Some((offset, bytes)) = pool.front(&list) {
                let at = offset as usize;
                last_end = at + bytes.len();
                back[at..last_end].copy_from_slice(bytes);
                pool.pop(&mut list);
            }
            assert_eq!(back, bytes);
            assert_eq!(last_end, bytes.len());
            assert_eq!((pool.used(), list.bytes), (0, 0));
        }
    }
}
