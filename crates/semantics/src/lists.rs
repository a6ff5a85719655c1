//! Lists of pieces (scatter/gather entries) of pending operations and receives.

use work::{PieceList, PostError, Receive, StoredPieces};

use crate::limits::{LIST_SHARE, LISTS_MAX};
use crate::pools::Pools;
use crate::receive_queue::{Destination, Posted};
use crate::slab::Slab;

/// Lists of pieces, each in a slot. Storing a list allocates memory, which later lists reuse. An
/// endpoint that has never used lists therefore needs no memory for them.
#[derive(Debug)]
pub(crate) struct Lists {
    stored: Slab<Box<StoredPieces>>,
    /// Memory of removed lists, which later lists reuse.
    #[expect(clippy::vec_box, reason = "the memory goes to and fro, and nothing is copied")]
    spare: Vec<Box<StoredPieces>>,
}

impl Default for Lists {
    fn default() -> Self {
        Self { stored: Slab::growing(LISTS_MAX), spare: Vec::new() }
    }
}

impl Lists {
    //= protocol.md: pool.6
    /// Stores a copy of `list` for one half of a connection, and returns the slot. The half already
    /// has `own` lists.
    ///
    /// # Errors
    /// Returns [`PostError::NoListLeft`] if the half may not have another list.
    pub(crate) fn store(&mut self, list: PieceList<'_>, own: u32) -> Result<u32, PostError> {
        if !self.grants_another(own) {
            return Err(PostError::NoListLeft(own));
        }
        Ok(self.keep(list))
    }

    /// Stores a copy of `list`. The caller has checked with [`Lists::grants_another`] that the half
    /// may have another list. Returns the slot.
    pub(crate) fn keep(&mut self, list: PieceList<'_>) -> u32 {
        let mut kept = self.spare.pop().unwrap_or_else(|| Box::new(StoredPieces::EMPTY));
        kept.store(list);
        self.stored.insert_growing(kept)
    }

    /// Returns the receive that a connection has taken from a shared queue. Stores a copy of its
    /// list, if it has one, like [`Lists::keep`].
    #[inline]
    pub(crate) fn receive(&mut self, receive: Receive, list: Option<PieceList<'_>>) -> Posted {
        let Some(list) = list else { return receive.into() };
        let Receive { length, context, .. } = receive;
        Posted::new(context, length, Destination::List(self.keep(list)))
    }

    /// Returns whether a half of a connection that already has `own` lists may have another list.
    pub(crate) const fn grants_another(&self, own: u32) -> bool {
        own < LIST_SHARE || Pools::grants_another(own, self.stored.room())
    }

    /// Returns the list in `slot`.
    ///
    /// # Panics
    /// Panics if the slot is free, because then an invariant of this crate is broken.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> PieceList<'_> {
        self.stored[slot].list()
    }

    /// Removes the list in `slot`. The slot must be in use.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.spare.push(self.stored.remove(slot));
    }

    /// Returns an iterator over the stored lists.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PieceList<'_>> {
        self.stored.iter().map(|kept| kept.list())
    }

    /// Returns the number of stored lists.
    pub(crate) const fn used(&self) -> u32 {
        self.stored.used()
    }
}

#[cfg(test)]
mod tests {
    use work::Piece;

    use super::*;

    fn pieces(lengths: &[u32]) -> Vec<Piece> {
        lengths.iter().map(|&length| Piece { length, ..Piece::NOTHING }).collect()
    }

    #[test]
    fn a_list_is_found_by_its_slot_until_it_is_removed() {
        let mut lists = Lists::default();
        let kept = [[5, 6], [7, 8]].map(|lengths| pieces(&lengths));
        let slots = kept.each_ref().map(|pieces| {
            let list = PieceList::new(pieces).expect("a list");
            (list, lists.keep(list))
        });
        for (list, slot) in slots {
            assert_eq!(lists.get(slot), list);
        }
        lists.remove(slots[0].1);
        assert_eq!((lists.used(), lists.spare.len()), (1, 1));
        assert_eq!(lists.get(slots[1].1), slots[1].0);
    }

    #[test]
    fn memory_of_a_list_serves_the_next() {
        let mut lists = Lists::default();
        let nothing = PieceList::new(&[]).expect("a list");
        for _ in 0..10 {
            let slot = lists.keep(nothing);
            lists.remove(slot);
        }
        assert_eq!((lists.used(), lists.spare.len()), (0, 1));
    }
}
