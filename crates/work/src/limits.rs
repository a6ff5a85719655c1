//! The limits of this crate, with their arithmetic.

/// Largest operation, in bytes. Lengths and offsets have 32 bits on the wire; one bit stays unused,
/// so that `offset + length` cannot overflow.
pub const OPERATION_BYTES_MAX: u32 = 1 << 31;

/// Largest inline payload of an operation, in bytes. With 64 bytes the record of an operation is
/// four cache lines; larger payloads are cheaper from registered memory.
pub const INLINE_BYTES_MAX: usize = 64;

/// Most completions in a queue: 16 times the million that large programs ask for. A queue uses
/// memory for the completions that it holds, 64 B each.
pub const COMPLETIONS_MAX: usize = 1 << 24;

/// Most pieces of memory in one operation or receive. Programs of verbs ask for 1 to 30; 32 are 768
/// B.
pub const PIECES_MAX: usize = 32;
