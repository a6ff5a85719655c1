//! The input bytes that decide what happens in a run.

/// The rest of the input. Reading past the last byte returns zeros.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Returns up to 255 bytes; the first byte is their number.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let count = usize::from(self.u8()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.to_vec()
    }

    /// Returns mostly a number below 8, sometimes any number.
    pub(crate) fn small(&mut self) -> u32 {
        match self.u8() {
            byte @ 0..=0xe7 => u32::from(byte & 7),
            _ => self.u32(),
        }
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.u16()) % end.max(1)
    }

    /// Returns true for one of `n` values of the next byte.
    pub(crate) fn one_in(&mut self, n: u8) -> bool {
        self.u8() % n == n - 1
    }
}
