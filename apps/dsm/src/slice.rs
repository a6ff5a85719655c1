//! Elements in shared memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;

use crate::core::Core;
use crate::words;

/// Elements in shared memory. Copies name the same elements. The address is the same on all ranks.
pub struct DsmSlice<'a, T> {
    start: *mut T,
    len: usize,
    rank: PhantomData<&'a Core>,
}

// SAFETY: the elements are plain data, which threads access by atomics, or by unsafe functions.
unsafe impl<T: Pod + Send> Send for DsmSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for DsmSlice<'_, T> {}

impl<T> Clone for DsmSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DsmSlice<'_, T> {}

impl<T> fmt::Debug for DsmSlice<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, len, .. } = self;
        formatter.debug_struct("DsmSlice").field("start", start).field("len", len).finish()
    }
}

impl<'a, T: Pod> DsmSlice<'a, T> {
    /// `start` must point to `len` elements of the region.
    pub(crate) const fn new(start: *mut T, len: usize) -> Self {
        Self { start, len, rank: PhantomData }
    }

    /// Returns the number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first element.
    pub const fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// Returns a copy of an element. Fetches its page if that is not present.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        // SAFETY: the element is in the region.
        unsafe { words::load(self.at(index)) }
    }

    /// Replaces an element.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    #[inline]
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: the element is in the region.
        unsafe { words::store(self.at(index), value) };
    }

    /// Replaces all elements.
    ///
    /// # Panics
    /// If there are not as many elements.
    pub fn copy_from(&self, elements: &[T]) {
        assert_eq!(elements.len(), self.len, "elements to copy");
        for (index, element) in elements.iter().enumerate() {
            // SAFETY: the element is in the region.
            unsafe { words::store(self.start.wrapping_add(index), *element) };
        }
    }

    /// Copies all elements.
    ///
    /// # Panics
    /// If there are not as many elements.
    pub fn copy_to(&self, elements: &mut [T]) {
        assert_eq!(elements.len(), self.len, "elements to copy");
        for (index, element) in elements.iter_mut().enumerate() {
            // SAFETY: the element is in the region.
            *element = unsafe { words::load(self.start.wrapping_add(index)) };
        }
    }

    /// Returns a part of the elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "elements {start} to {end} of {}", self.len);
        Self::new(self.start.wrapping_add(start), end - start)
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// While the reference is in use, no thread of any rank may write the elements.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: the elements are in the region, and plain data. The caller excludes writes. Pages
        // that are not present become so when they are accessed.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Returns the elements, to be changed.
    ///
    /// # Safety
    /// While the reference is in use, no other thread of any rank may access the elements.
    pub unsafe fn as_mut_slice(&self) -> &'a mut [T] {
        // SAFETY: as for `as_slice`; the caller excludes all other accesses.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Returns the addresses of the elements.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.start.addr();
        start..start + self.len * size_of::<T>()
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "element {index} of {}", self.len);
        self.start.wrapping_add(index)
    }
}
