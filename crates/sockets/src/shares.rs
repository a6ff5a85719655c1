//! What each peer may have of what a process has once, and the arithmetic that makes it fit.

use semantics::OPERATION_SHARE;
use work::COMPLETIONS_MAX;

use crate::arena::LETTERS;

/// Link groups at a time: processes that this one has connections to or from.
pub(crate) const GROUPS_MAX: u32 = 4096;

/// Operations of all groups that are posted and not complete, beyond the [`OPERATION_SHARE`] of each. One group gets
/// half of them at most: 2048 writes of 64 KiB are more than the rings of 500 streams hold.
pub(crate) const OPERATIONS: u32 = 4096;

/// Completions that the engine promises at most: of all receive buffers for messages, and of all operations.
const PROMISED: u32 = GROUPS_MAX * (LETTERS + OPERATION_SHARE) + OPERATIONS;

/// Places for notifications of data that has arrived. Nothing is promised for them: while none is free, they wait
/// until the next turn has read the others.
const NOTIFICATIONS: u32 = 1 << 16;

/// Places for completions of all groups. The queue takes memory for those that it holds.
pub(crate) const COMPLETIONS: usize = PROMISED as usize + NOTIFICATIONS as usize;

// Without this, idle groups take all places, and no group can post anything.
const _: () = assert!(COMPLETIONS <= COMPLETIONS_MAX);
