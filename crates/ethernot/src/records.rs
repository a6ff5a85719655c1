//! Typed views of memory that peers access concurrently.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use mem::{Buffer, BufferError};

/// An array of plain-old-data values in a [`Buffer`]. Its methods copy whole values into and out of
/// the buffer. They never return references to the buffer's bytes.
///
/// A type is plain old data if every bit pattern is a valid value and the type has no padding
/// ([`bytemuck::Pod`], which can be derived for structures with `#[repr(C)]`). Both ends have the
/// same layout if they use the same type and byte order. If the peer may have another byte order,
/// use integers of a fixed order (`u64::to_le`).
///
/// If a peer writes a value during the copy, the copy may be torn (see [`Buffer`]). Version words
/// and checksums detect torn copies. Fences and locks prevent them. [The
/// guide](crate::guide::fences) describes these methods.
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// use ethernot::{Buffer, Records};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
/// #[repr(C)]
/// struct Point {
///     x: f64,
///     y: f64,
/// }
///
/// let buffer = Buffer::new(4096);
/// let points = Records::<Point>::new(&buffer, 64, 100)?;
/// points.set(7, &Point { x: 1.5, y: -2.0 })?;
/// assert_eq!(points.get(7)?.y, -2.0);
/// // The range of the value in the region, for `RemoteRegion::slice` at the peer.
/// assert_eq!(points.range(7)?, 64 + 7 * 16..64 + 8 * 16);
/// assert!(points.get(100).is_err());
/// # Ok::<(), ethernot::BufferError>(())
/// ```
pub struct Records<T> {
    buffer: Arc<Buffer>,
    offset: u64,
    count: u64,
    kind: PhantomData<fn() -> T>,
}

impl<T: Pod> Records<T> {
    /// Length of one value in bytes.
    pub const BYTES: u64 = size_of::<T>() as u64;

    /// Makes an array of `count` values that starts `offset` bytes after the start of the buffer.
    /// Values need no alignment. Only words that atomics access must be aligned.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if the array exceeds the buffer.
    pub fn new(buffer: &Arc<Buffer>, offset: u64, count: u64) -> Result<Self, BufferError> {
        let bounds = BufferError::Bounds {
            offset,
            length: count.saturating_mul(Self::BYTES),
            limit: buffer.len(),
        };
        let length = count.checked_mul(Self::BYTES).ok_or(bounds)?;
        let end = offset.checked_add(length).ok_or(bounds)?;
        if end > buffer.len() {
            return Err(bounds);
        }
        Ok(Self { buffer: Arc::clone(buffer), offset, count, kind: PhantomData })
    }

    /// Returns a copy of the value at `index`.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if `index` is out of range.
    pub fn get(&self, index: u64) -> Result<T, BufferError> {
        let range = self.range(index)?;
        let mut value = T::zeroed();
        self.buffer.try_read(range.start, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// Overwrites the value at `index`.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if `index` is out of range.
    pub fn set(&self, index: u64, value: &T) -> Result<(), BufferError> {
        self.buffer.try_write(self.range(index)?.start, bytemuck::bytes_of(value))
    }

    /// Returns the byte range of the value at `index` in the buffer.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if `index` is out of range.
    pub fn range(&self, index: u64) -> Result<Range<u64>, BufferError> {
        if index >= self.count {
            let offset = self.offset.saturating_add(index.saturating_mul(Self::BYTES));
            let limit = self.buffer.len();
            return Err(BufferError::Bounds { offset, length: Self::BYTES, limit });
        }
        let start = self.offset + index * Self::BYTES;
        Ok(start..start + Self::BYTES)
    }

    /// Returns the number of values.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether the array is empty.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the buffer that contains the values.
    pub const fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }
}

impl<T> Clone for Records<T> {
    fn clone(&self) -> Self {
        let Self { ref buffer, offset, count, kind } = *self;
        Self { buffer: Arc::clone(buffer), offset, count, kind }
    }
}

impl<T> fmt::Debug for Records<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Records({} at offset {} of {:?})", self.count, self.offset, self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_copied_in_and_out_at_their_offsets() {
        let buffer = Buffer::new(100);
        let numbers = Records::<[u32; 2]>::new(&buffer, 4, 12).expect("they fit exactly");
        numbers.set(11, &[1, 2]).expect("the last one");
        numbers.clone().set(0, &[3, 4]).expect("the first one");
        assert_eq!(
            (numbers.get(11), numbers.get(0), numbers.get(5)),
            (Ok([1, 2]), Ok([3, 4]), Ok([0; 2]))
        );
        let last = numbers.range(11).expect("there is one");
        assert_eq!((last.clone(), numbers.len(), numbers.is_empty()), (92..100, 12, false));
        let mut bytes = [0; 4];
        buffer.read(last.start + 4, &mut bytes);
        assert_eq!(u32::from_ne_bytes(bytes), 2);
    }

    #[test]
    fn values_beyond_the_buffer_are_typed_errors() {
        let buffer = Buffer::new(100);
        for (offset, count) in [(0, 13), (5, 12), (u64::MAX, 1), (0, u64::MAX), (101, 0)] {
            let made = Records::<u64>::new(&buffer, offset, count);
            assert!(matches!(made, Err(BufferError::Bounds { limit: 100, .. })), "{made:?}");
        }
        let two = Records::<u64>::new(&buffer, 8, 2).expect("they fit");
        let beyond = BufferError::Bounds { offset: 24, length: 8, limit: 100 };
        assert_eq!((two.get(2), two.set(2, &0)), (Err(beyond), Err(beyond)));
        assert!(two.range(u64::MAX).is_err());
    }
}
