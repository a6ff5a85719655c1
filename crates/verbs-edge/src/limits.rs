//! Limits of a device.

use crate::numbers::INDICES;

/// Maximum number of queue pairs: the numbers of a slot, except that slot 0 has two fewer and the
/// last slot one fewer.
pub(crate) const QUEUE_PAIRS_MAX: u32 = INDICES as u32 - 2;

/// Maximum number of work requests in each queue of a queue pair.
pub(crate) const WORK_REQUESTS_MAX: u32 = 16_384;

/// Maximum number of joined multicast groups: the number of multicast sockets of a runtime.
pub(crate) const GROUPS_MAX: u32 = 64;

/// Maximum number of inline bytes: those that are copied behind the header of a frame.
pub(crate) const INLINE_MAX: u32 = 256;

/// Maximum number of reads and atomics that a peer may have in flight.
pub(crate) const READ_DEPTH: u8 = 128;

/// Maximum number of protection domains.
pub(crate) const DOMAINS_MAX: u32 = 1 << 16;

/// Maximum number of a queue pair's work requests in the engine; the others wait in the ring of the
/// queue pair. If the peer lacks receives, the maximum is [`semantics::OPERATION_SHARE`], which
/// each connection gets in any case.
pub(crate) const WINDOW: u32 = 256;
