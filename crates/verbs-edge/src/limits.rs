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
