//! Payload of frames that have arrived.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;

use crate::copy;

/// Bytes to be placed, wherever they lie: in a driver's own buffer, or in memory that another process
/// shares and may change at any time, of which no reference may exist.
///
/// What is done with them is always a copy. Bytes that change meanwhile are torn, and nothing else
/// happens.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    start: *const u8,
    len: usize,
    lender: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { start: core::ptr::dangling(), len: 0, lender: PhantomData };

    /// Makes a payload of bytes that others may write.
    ///
    /// # Safety
    /// `len` bytes from `start` on are readable for `'a`, and no exclusive reference to them exists.
    #[inline]
    pub const unsafe fn foreign(start: *const u8, len: usize) -> Self {
        Self { start, len, lender: PhantomData }
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of a range.
    ///
    /// # Panics
    /// If the range leaves the payload.
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

    /// Cuts the payload into parts of `bytes` bytes, in order; the last may be shorter.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn chunks(&self, bytes: usize) -> impl Iterator<Item = Self> + use<'a> {
        let whole = *self;
        (0..whole.len)
            .step_by(bytes)
            .map(move |from| whole.slice(from..whole.len.min(from + bytes)))
    }

    /// Copies all bytes to `out`.
    ///
    /// # Panics
    /// If `out` has another length.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(self.len, out.len(), "a payload is copied whole");
        // SAFETY: the payload is readable, by the promise of `foreign` or the borrow of a slice;
        // `out` is as long, and exclusively borrowed.
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

    /// Returns a pointer to the first byte. Reading it is a copy of foreign memory.
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
    fn pieces_are_the_whole() {
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
