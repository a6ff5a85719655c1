//! Limits of a device.

use crate::numbers::INDICES;

/// Maximum number of queue pairs: the number of indices in a slot, minus 2. Slot 0 lacks two
/// indices and the last slot lacks one index. The same limit applies to all slots.
pub(crate) const QUEUE_PAIRS_MAX: u32 = INDICES as u32 - 2;

/// Maximum number of work requests in each queue of a queue pair.
pub(crate) const WORK_REQUESTS_MAX: u32 = 16_384;

/// Maximum number of joined multicast groups. It equals the number of multicast sockets of a
/// runtime.
pub(crate) const GROUPS_MAX: u32 = 64;

/// Maximum number of inline bytes of a send. The engine copies inline bytes behind the header of a
/// frame.
pub(crate) const INLINE_MAX: u32 = 256;

/// Maximum number of reads and atomics that a peer may have in flight.
pub(crate) const READ_DEPTH: u8 = 128;

/// Maximum number of protection domains.
pub(crate) const DOMAINS_MAX: u32 = 1 << 16;

/// Maximum number of a queue pair's work requests in the engine. Further requests wait in the queue
/// pair's ring.
///
/// If the peer lacks receives, the maximum is [`semantics::OPERATION_SHARE`] instead. Every
/// connection may have this number of operations in any case.
pub(crate) const WINDOW: u32 = 256;
