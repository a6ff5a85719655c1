//! A table that names its entries by small numbers and uses free places again.

/// Values that come and go, each named by a number that stays the same while it lives.
///
/// The numbers of removed values are given out again, last in first out, so that a run with n live
/// values touches the memory of n. Unlike a `HashMap` it neither hashes nor allocates per value.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    values: Vec<T>,
    vacant: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    /// Creates an empty slab.
    pub const fn new() -> Self {
        Self { values: Vec::new(), vacant: Vec::new() }
    }

    /// Adds a value and names it.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.values[index as usize] = value;
            return index;
        }
        self.values.push(value);
        self.values.len() as u32 - 1
    }

    /// Returns the value of this name.
    ///
    /// # Panics
    /// If no value ever had it.
    #[inline]
    pub fn get(&self, index: u32) -> &T {
        &self.values[index as usize]
    }

    /// Returns the value of this name, to be changed.
    ///
    /// # Panics
    /// If no value ever had it.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.values[index as usize]
    }

    /// Prefetches the value of this name, if there is one.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(value) = self.values.get(index as usize) {
            mem::prefetch(value);
        }
    }

    /// Removes the value of this name, which must live.
    #[inline]
    pub fn remove(&mut self, index: u32) -> T {
        self.vacant.push(index);
        self.values[index as usize]
    }

    /// Returns the number of values that live.
    pub fn len(&self) -> usize {
        self.values.len() - self.vacant.len()
    }

    /// Whether none lives.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the most values that lived at a time.
    pub fn len_max(&self) -> usize {
        self.values.len()
    }
}

impl<T: Copy> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), 'a');
        let c = slab.insert('c');
        assert_eq!((c, *slab.get(b), *slab.get(c)), (a, 'b', 'c'));
        assert_eq!((slab.len(), slab.len_max()), (2, 2));
    }
}
