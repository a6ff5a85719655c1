//! How much a device has room for.

use crate::numbers::INDICES;

/// Queue pairs at a time: the numbers of a slot, of which slot 0 and the last lack two and one.
pub(crate) const QUEUE_PAIRS_MAX: u32 = INDICES as u32 - 2;

/// Work requests in a queue of a queue pair.
pub(crate) const WORK_REQUESTS_MAX: u32 = 16_384;

/// Groups that queue pairs are in: as many as a runtime has sockets for.
pub(crate) const GROUPS_MAX: u32 = 64;

/// Bytes that a send carries by value: what is copied behind the header of a frame.
pub(crate) const INLINE_MAX: u32 = 256;

/// Reads and atomics that a peer may have in flight.
pub(crate) const READ_DEPTH: u8 = 128;

/// Protection domains.
pub(crate) const DOMAINS_MAX: u32 = 1 << 16;

/// Work requests of a queue pair in flight in the engine: the ring of the queue pair is the queue. If the peer lacks
/// receives, it is [`semantics::OPERATION_SHARE`], which each connection gets in any case.
pub(crate) const WINDOW: u32 = 256;
