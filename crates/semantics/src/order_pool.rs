//! Bounded storage for payload that is here but must not be placed yet.

use crate::limits::ORDER_BLOCK_BYTES;
use crate::slab::NIL;

/// Blocks of payload that wait for earlier operations. Allocates only in [`OrderPool::new`].
#[derive(Debug)]
pub(crate) struct OrderPool {
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    free: u32,
    used: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    next: u32,
    /// Offset of the first byte within the operation.
    offset: u32,
    len: u32,
}

/// The held payload of one operation, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldList {
    head: u32,
    tail: u32,
    /// Payload bytes held.
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
        }
    }

    /// Whether `len` more bytes fit.
    pub(crate) fn has_room(&self, len: u32) -> bool {
        let needed = (len as usize).div_ceil(ORDER_BLOCK_BYTES).max(1);
        self.blocks.len() - self.used as usize >= needed
    }

    /// Blocks in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Appends `payload`, which must fit ([`OrderPool::has_room`]), to `list`.
    pub(crate) fn hold(&mut self, list: &mut HeldList, offset: u32, payload: &[u8]) {
        let mut offset = offset;
        for chunk in payload.chunks(ORDER_BLOCK_BYTES) {
            let index = self.free;
            let block = &mut self.blocks[index as usize];
            self.free = block.next;
            *block = Block { next: NIL, offset, len: chunk.len() as u32 };
            let start = index as usize * ORDER_BLOCK_BYTES;
            self.bytes[start..start + chunk.len()].copy_from_slice(chunk);
            if list.tail == NIL {
                list.head = index;
            } else {
                self.blocks[list.tail as usize].next = index;
            }
            list.tail = index;
            list.bytes += chunk.len() as u32;
            offset += chunk.len() as u32;
            self.used += 1;
        }
    }

    /// The oldest payload of `list`: its offset and bytes.
    pub(crate) fn front(&self, list: &HeldList) -> Option<(u32, &[u8])> {
        let block = self.blocks.get(list.head as usize)?;
        let start = list.head as usize * ORDER_BLOCK_BYTES;
        Some((block.offset, &self.bytes[start..start + block.len as usize]))
    }

    /// Frees the oldest payload of `list`, if there is one, and returns its length.
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

    /// Moves the oldest payload of `list` to its end.
    pub(crate) fn rotate(&mut self, list: &mut HeldList) {
        let index = list.head;
        if index == list.tail {
            return;
        }
        let Some(block) = self.blocks.get_mut(index as usize) else { return };
        list.head = block.next;
        block.next = NIL;
        self.blocks[list.tail as usize].next = index;
        list.tail = index;
    }

    /// Frees all payload of `list` and returns how many bytes that was.
    pub(crate) fn clear(&mut self, list: &mut HeldList) -> u32 {
        let bytes = list.bytes;
        while !list.is_empty() {
            self.pop(list);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_payload_takes_several_blocks_and_comes_back_whole() {
        let mut pool = OrderPool::new(4);
        let payload: Vec<u8> = (0..ORDER_BLOCK_BYTES * 2 + 5).map(|i| i as u8).collect();
        let mut list = HeldList::EMPTY;
        assert!(pool.has_room(payload.len() as u32));
        pool.hold(&mut list, 100, &payload);
        assert!(!pool.has_room(ORDER_BLOCK_BYTES as u32 + 1));
        let mut back = Vec::new();
        while let Some((offset, bytes)) = pool.front(&list) {
            assert_eq!(offset as usize, 100 + back.len());
            back.extend_from_slice(bytes);
            pool.pop(&mut list);
        }
        assert_eq!(back, payload);
        assert_eq!((pool.used(), list.bytes), (0, 0));
    }
}
