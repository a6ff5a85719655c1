//! A table that gives its entries small numbers and reuses free slots.

/// Values with a limited life. Each value has a number that does not change during its life.
///
/// Later values reuse the numbers of removed values, the most recent first. A run with at most n
/// live values therefore uses memory for n values. Unlike a `HashMap`, a slab neither hashes nor
/// allocates for each value.
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

    /// Adds a value and returns its number.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.values[index as usize] = value;
            return index;
        }
        self.values.push(value);
        self.values.len() as u32 - 1
    }

    /// Returns the value with this number, which must be live.
    ///
    /// # Panics
    /// Panics if no value ever had this number.
    #[inline]
    pub fn get(&self, index: u32) -> &T {
        &self.values[index as usize]
    }

    /// Returns a mutable reference to the value with this number, which must be live.
    ///
    /// # Panics
    /// Panics if no value ever had this number.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        &mut self.values[index as usize]
    }

    /// Prefetches the value with this number. Does nothing if no value ever had this number.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(value) = self.values.get(index as usize) {
            mem::prefetch(value);
        }
    }

    /// Removes and returns the value with this number, which must be live.
    #[inline]
    pub fn remove(&mut self, index: u32) -> T {
        self.vacant.push(index);
        self.values[index as usize]
    }

    /// Returns the number of live values.
    pub fn len(&self) -> usize {
        self.values.len() - self.vacant.len()
    }

    /// Returns whether there are no live values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of values that were live at the same time.
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
    fn slots_are_reused() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), 'a');
        let c = slab.insert('c');
        assert_eq!((c, *slab.get(b), *slab.get(c)), (a, 'b', 'c'));
        assert_eq!((slab.len(), slab.len_max()), (2, 2));
    }
}
