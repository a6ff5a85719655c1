//! Every limit of this crate, with the arithmetic behind it.

/// Largest operation, in bytes: lengths and offsets are 32 bits on the wire with one bit spare, so
/// that `offset + length` cannot overflow.
pub const OPERATION_BYTES_MAX: u32 = 1 << 31;

/// Largest payload an operation can carry by value. 64 bytes make the operation record four cache
/// lines; larger payloads are cheaper from registered memory.
pub const INLINE_BYTES_MAX: usize = 64;

/// Completions that a queue can hold: 16 times the million that large programs ask for. Queues take memory for
/// what they hold, 64 B each.
pub const COMPLETIONS_MAX: usize = 1 << 24;

/// Pieces of memory that one operation or receive is made of. Programs of verbs ask for 1 to 30; 32 are 768 B.
pub const PIECES_MAX: usize = 32;
