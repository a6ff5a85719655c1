//! Storage with stable indices and a limited capacity.

/// Value that means no index; marks the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// Values at stable indices. A free list recycles the indices. [`Slab::new`] allocates all memory.
/// Only a [growing](Slab::growing) slab allocates more later.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    free: u32,
    used: u32,
    /// Maximum number of values.
    limit: u32,
}

#[derive(Debug)]
enum SlabEntry<T> {
    Used(T),
    /// The next free index, or [`NIL`].
    Free(u32),
}

impl<T> Slab<T> {
    /// Creates a slab with room for `capacity` values. `capacity` must be less than `u32::MAX`.
    pub(crate) fn new(capacity: u32) -> Self {
        let last = capacity.checked_sub(1);
        Self {
            entries: (0..capacity)
                .map(|index| SlabEntry::Free(if Some(index) == last { NIL } else { index + 1 }))
                .collect(),
            free: if capacity == 0 { NIL } else { 0 },
            used: 0,
            limit: capacity,
        }
    }

    /// Creates a slab for `limit` values. Reserves the memory now and touches it only on first use.
    pub(crate) fn reserving(limit: u32) -> Self {
        Self { entries: Vec::with_capacity(limit as usize), ..Self::growing(limit) }
    }

    /// Creates a slab for `limit` values. Allocates memory when values are inserted.
    pub(crate) const fn growing(limit: u32) -> Self {
        Self { entries: Vec::new(), free: NIL, used: 0, limit }
    }

    /// Stores `value` and returns its index. If the slab is full, returns `value` as the error.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        let index = self.free;
        let Some(entry) = self.entries.get_mut(index as usize) else {
            let has_room = (self.entries.len() as u32) < self.limit;
            return if has_room { Ok(self.grow(value)) } else { Err(value) };
        };
        if let SlabEntry::Free(next) = *entry {
            self.free = next;
        }
        *entry = SlabEntry::Used(value);
        self.used += 1;
        Ok(index)
    }

    /// Stores `value` and returns its index. Allocates memory if the slab is full. The caller must
    /// limit the number of values by other means; the capacity of the slab is only the expected
    /// number.
    pub(crate) fn insert_growing(&mut self, value: T) -> u32 {
        self.insert(value).unwrap_or_else(|value| self.grow(value))
    }

    /// Frees `index` and returns its value. The index must be in use.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let entry = &mut self.entries[index as usize];
        assert!(matches!(entry, SlabEntry::Used(_)), "slab index {index} is freed twice");
        let SlabEntry::Used(value) = core::mem::replace(entry, SlabEntry::Free(self.free)) else {
            unreachable!("checked above")
        };
        self.free = index;
        self.used -= 1;
        value
    }

    /// Frees `index` without moving its value. The index must be in use.
    #[inline]
    pub(crate) fn free(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        assert!(matches!(entry, SlabEntry::Used(_)), "slab index {index} is freed twice");
        *entry = SlabEntry::Free(self.free);
        self.free = index;
        self.used -= 1;
    }

    /// Returns the value at `index`, if it is in use.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.entries.get(index as usize) {
            Some(SlabEntry::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the value at `index`, if it is in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.entries.get_mut(index as usize) {
            Some(SlabEntry::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns an iterator over the stored values. The iterator stops after the last stored value,
    /// so that it is cheap if there are few values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let values = self.entries.iter().filter_map(|entry| match entry {
            SlabEntry::Used(value) => Some(value),
            SlabEntry::Free(_) => None,
        });
        values.take(self.used as usize)
    }

    /// Returns the number of stored values.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns the maximum number of values.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns how many more values fit. Returns 0 if the slab holds more than its limit.
    pub(crate) const fn room(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    #[cold]
    fn grow(&mut self, value: T) -> u32 {
        let index = self.entries.len() as u32;
        self.entries.push(SlabEntry::Used(value));
        self.used += 1;
        index
    }
}

impl<T> core::ops::Index<u32> for Slab<T> {
    type Output = T;

    /// # Panics
    /// Panics if `index` is free, because then an invariant of this crate is broken. A peer cannot
    /// cause this.
    #[inline]
    fn index(&self, index: u32) -> &T {
        match &self.entries[index as usize] {
            SlabEntry::Used(value) => value,
            SlabEntry::Free(_) => panic!("slab index {index} is free"),
        }
    }
}

impl<T> core::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.entries[index as usize] {
            SlabEntry::Used(value) => value,
            SlabEntry::Free(_) => panic!("slab index {index} is free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycles_indices_and_refuses_when_full() {
        let mut slab = Slab::new(2);
        let first = slab.insert('a').unwrap();
        let second = slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), Err('c'));
        assert_eq!(slab.remove(first), 'a');
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&'b')));
        assert_eq!(slab.insert('d'), Ok(first));
        assert_eq!((slab.used(), slab.room()), (2, 0));
    }

    #[test]
    fn grows_only_when_full_and_only_if_asked() {
        let mut slab = Slab::new(1);
        let (first, second) = (slab.insert_growing('a'), slab.insert_growing('b'));
        assert_eq!((slab.get(first), slab.get(second)), (Some(&'a'), Some(&'b')));
        assert_eq!(slab.insert('c'), Err('c'));
        slab.remove(first);
        assert_eq!((slab.insert_growing('d'), slab.used(), slab.room()), (first, 2, 0));
    }

    #[test]
    fn a_growing_slab_keeps_its_limit_and_allocates_nothing_in_advance() {
        let mut slab = Slab::growing(2);
        assert_eq!((slab.entries.capacity(), slab.room()), (0, 2));
        let first = slab.insert('a').unwrap();
        slab.insert('b').unwrap();
        assert_eq!((slab.insert('c'), slab.room()), (Err('c'), 0));
        slab.remove(first);
        assert_eq!((slab.insert('d'), slab.used()), (Ok(first), 2));
    }

    #[test]
    fn all_values_are_found_and_nothing_else() {
        let mut slab = Slab::new(4);
        let slots = ['a', 'b', 'c'].map(|value| slab.insert(value).unwrap());
        slab.remove(slots[1]);
        assert!(slab.iter().eq(&['a', 'c']));
        assert_eq!(Slab::<char>::growing(4).iter().next(), None);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_twice_is_detected() {
        let mut slab = Slab::new(1);
        let index = slab.insert(()).unwrap();
        slab.remove(index);
        slab.remove(index);
    }
}
