//! What each peer may have of what a process has once, and the arithmetic that makes it fit.

use semantics::OPERATION_SHARE;
use work::COMPLETIONS_MAX;

use crate::transport::arena::RECEIVE_BUFFERS;

/// Link groups at a time: processes that this one has connections to or from.
pub(crate) const GROUPS_MAX: u32 = 4096;

/// Whether a host with `own` link groups may have another, of `all` that there are: as long as no more are its own than
/// are left for others. Alone it gets half of all, two hosts get a third each.
pub(crate) const fn admits_group(own: u32, all: u32) -> bool {
    own < GROUPS_MAX.saturating_sub(all)
}

/// Operations of all groups that are posted and not complete, beyond the [`OPERATION_SHARE`] of each. One group gets
/// half of them at most: 2048 writes of 64 KiB are more than the rings of 500 streams hold.
pub(crate) const OPERATIONS: u32 = 4096;

/// Completions that the engine promises at most: of all receive buffers for messages, and of all operations.
const PROMISED: u32 = GROUPS_MAX * (RECEIVE_BUFFERS + OPERATION_SHARE) + OPERATIONS;

/// Places for notifications of data that has arrived. Nothing is promised for them: while none is free, they wait
/// until the next turn has read the others.
const NOTIFICATIONS: u32 = 1 << 16;

/// Places for completions of all groups. The queue takes memory for those that it holds.
pub(crate) const COMPLETIONS: usize = PROMISED as usize + NOTIFICATIONS as usize;

// Without this, idle groups take all places, and no group can post anything.
const _: () = assert!(COMPLETIONS <= COMPLETIONS_MAX);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        //= sockets-protocol.md: group.5
        /// Hosts that take all they can leave a group for one more host.
        #[test]
        fn greedy_hosts_leave_room_for_another(order in prop::collection::vec(0..6_usize, 0..12_000)) {
            let mut hosts = [0_u32; 6];
            for host in order {
                let all = hosts.iter().sum();
                hosts[host] += u32::from(admits_group(hosts[host], all));
            }
            let all = hosts.iter().sum();
            prop_assert!(all < GROUPS_MAX && admits_group(0, all));
            prop_assert!(hosts.iter().all(|own| *own <= GROUPS_MAX / 2));
        }
    }
}
