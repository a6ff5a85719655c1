//! Limits of a device.

use crate::numbers::INDICES;

/// Maximum number of queue pairs of a device. The device has a slot: a UDP port with the queue pair
/// numbers that belong to it. Most slots have `INDICES` numbers, slot 0 has two fewer, and the
/// last slot has one fewer. The same limit applies to all slots.
pub(crate) const QUEUE_PAIRS_MAX: u32 = INDICES as u32 - 2;

/// Maximum number of work requests in each queue of a queue pair.
pub(crate) const WORK_REQUESTS_MAX: u32 = 16_384;

/// Maximum number of joined multicast groups of a device. It equals the maximum number of multicast
/// sockets of an endpoint.
pub(crate) const GROUPS_MAX: u32 = 64;

/// Maximum number of inline bytes of a send. The engine copies inline bytes behind the header of a
/// frame.
pub(crate) const INLINE_MAX: u32 = 256;

/// Maximum number of reads and atomics that a peer may have in flight on one connection.
pub(crate) const READ_DEPTH: u8 = 128;

/// Maximum number of protection domains.
pub(crate) const DOMAINS_MAX: u32 = 1 << 16;

/// Maximum number of sends that the engine has at the same time for one queue pair. Further sends
/// wait in the queue pair's ring.
///
/// If the peer lacks receives, the maximum is [`semantics::OPERATION_SHARE`] instead, which is the
/// number of operations that the engine guarantees to every connection.
pub(crate) const WINDOW: u32 = 256;
