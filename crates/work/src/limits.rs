//! Every limit of this crate, with the arithmetic behind it.

/// Largest operation, in bytes: lengths and offsets are 32 bits on the wire with one bit spare, so
/// that `offset + length` cannot overflow.
pub const OPERATION_BYTES_MAX: u32 = 1 << 31;

/// Largest payload an operation can carry by value. 64 bytes make the operation record four cache
/// lines; larger payloads are cheaper from registered memory.
pub const INLINE_BYTES_MAX: usize = 64;
