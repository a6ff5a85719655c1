//! The payload of received frames.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;

use crate::copy;

/// Bytes to place, which means to copy into a region. They are in a driver's own buffer, or in
/// memory that this process shares with another process. The other process may change the bytes at
/// any time, so no reference to memory of the second kind may exist.
///
/// This crate only copies payload bytes. If bytes change during a copy, they are torn; the race has
/// no other effect.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    start: *const u8,
    len: usize,
    lender: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// The empty payload.
    pub const EMPTY: Self = Self { start: core::ptr::dangling(), len: 0, lender: PhantomData };

    /// Makes a payload of bytes that other threads or processes may write.
    ///
    /// # Safety
    /// The `len` bytes from `start` are readable for `'a`, and no exclusive reference to them
    /// exists.
    #[inline]
    pub const unsafe fn foreign(start: *const u8, len: usize) -> Self {
        Self { start, len, lender: PhantomData }
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the payload is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of a range.
    ///
    /// # Panics
    /// Panics if the range exceeds the payload.
    #[inline]
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {range:?} of a payload of {}",
            self.len
        );
        // SAFETY: the range lies in the payload, as just checked.
        let start = unsafe { self.start.add(range.start) };
        Self { start, len: range.end - range.start, lender: PhantomData }
    }

    /// Splits the payload into parts of `bytes` bytes, in order. The last part may be shorter.
    ///
    /// # Panics
    /// Panics if `bytes` is 0.
    pub fn chunks(&self, bytes: usize) -> impl Iterator<Item = Self> + use<'a> {
        let whole = *self;
        (0..whole.len)
            .step_by(bytes)
            .map(move |from| whole.slice(from..whole.len.min(from + bytes)))
    }

    /// Copies all bytes to `out`.
    ///
    /// # Panics
    /// Panics if the length of `out` differs from the length of the payload.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(self.len, out.len(), "a payload is copied whole");
        // SAFETY: the payload is readable, by the promise of `foreign` or the borrow of a slice.
        // `out` has the same length, and is exclusively borrowed.
        unsafe { copy::copy(out.as_mut_ptr(), self.start, self.len) }
    }

    /// Appends all bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let before = out.len();
        out.resize(before + self.len, 0);
        if let Some(end) = out.get_mut(before..) {
            self.copy_to(end);
        }
    }

    /// Returns a pointer to the first byte. The bytes may be foreign memory, so copy them, and make
    /// no reference to them.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), lender: PhantomData }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_whole_payload() {
        let bytes: Vec<u8> = (0..10).collect();
        let payload = Payload::from(&bytes);
        let mut out = Vec::new();
        for piece in payload.chunks(4) {
            assert!(piece.len() == 4 || piece.len() == 2);
            piece.append_to(&mut out);
        }
        assert_eq!(out, bytes);
        let mut middle = [0; 3];
        payload.slice(5..8).copy_to(&mut middle);
        assert_eq!(middle, [5, 6, 7]);
        assert_eq!(Payload::EMPTY.chunks(4).count(), 0);
    }

    #[test]
    #[should_panic(expected = "of a payload of 3")]
    fn a_range_beyond_the_end_panics() {
        let _ = Payload::from(&[1, 2, 3]).slice(1..4);
    }
}
