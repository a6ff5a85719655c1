//! Application memory as the protocol sees it: domains, regions, keys, placement, atomics.

/// Bytes in registered memory, for a link driver to hand to the kernel. Never dereferenced in Rust.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSlice {
    /// First byte.
    pub start: *const u8,
    /// Bytes.
    pub len: u32,
}

impl PayloadSlice {
    /// No bytes.
    pub const EMPTY: Self = Self { start: core::ptr::null(), len: 0 };
}

// SAFETY: an address is not an access; whoever reads through it upholds the rules of the region.
unsafe impl Send for PayloadSlice {}
