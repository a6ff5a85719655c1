//! Loads and stores fields of frames. All functions are total: a field outside of the bytes is
//! `None`, or is not stored.

/// Returns the `N` bytes at offset `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns the big-endian number at offset `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// Returns the big-endian number at offset `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Returns the big-endian number at offset `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Appends parts to a buffer that is long enough; the caller has checked its length.
pub(crate) struct Appender<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> Appender<'a> {
    /// Returns an appender at the start of `bytes`.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// Appends `part`.
    ///
    /// # Panics
    /// Panics if the buffer is too short, which is a fault of this crate.
    pub(crate) fn put(&mut self, part: &[u8]) {
        let end = self.length + part.len();
        let place = self.bytes.get_mut(self.length..end);
        place.expect("the caller has checked the length").copy_from_slice(part);
        self.length = end;
    }

    /// Returns the number of bytes appended so far.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}
