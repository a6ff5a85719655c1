//! The limits of this crate, and the reasons for their values.

/// Largest operation, in bytes. Lengths and offsets have 32 bits on the wire. The limit leaves one
/// of these bits unused, so that the sum of an offset and a length below the limit does not
/// overflow.
pub const OPERATION_BYTES_MAX: u32 = 1 << 31;

/// Largest inline payload of an operation, in bytes. With 64 bytes, the engine's record of an
/// operation fills four cache lines. For larger payloads, registered memory is faster.
pub const INLINE_BYTES_MAX: usize = 64;

/// Maximum number of completions in a queue: 16 times the million that large programs request. A
/// queue uses memory only for the completions in it, 64 B for each.
pub const COMPLETIONS_MAX: usize = 1 << 24;

/// Maximum number of scatter/gather entries in one operation or receive. Verbs programs request 1
/// to 30 entries. A list of 32 entries takes 768 B.
pub const PIECES_MAX: usize = 32;

/// Maximum number of receives of a shared queue: 16 times the 65 536 that large programs ask for.
/// The receives take 1 048 576 × 56 B = 56 MiB, allocated when the queue is created.
pub const SHARED_RECEIVES_MAX: usize = 1 << 20;
