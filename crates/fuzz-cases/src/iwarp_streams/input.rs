//! The input bytes that decide what happens.

/// The rest of the input. Reading past the last byte returns zeros.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Returns mostly a number below 8, sometimes any number.
    pub(super) fn small(&mut self) -> u32 {
        match self.u8() {
            byte @ 0..=0xe7 => u32::from(byte & 7),
            _ => self.u32(),
        }
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::from(self.u16()) % end.max(1)
    }

    /// Returns true for one of `n` values of the next byte.
    pub(super) fn one_in(&mut self, n: u8) -> bool {
        self.u8() % n == n - 1
    }
}
