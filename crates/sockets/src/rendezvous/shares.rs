//! The share that each peer has of the resources of a process, and the arithmetic of the limits.

use semantics::OPERATION_SHARE;
use work::COMPLETIONS_MAX;

use crate::transport::arena::RECEIVE_BUFFERS;

/// Maximum number of link groups of a process: one for each process with which it has connections.
pub(crate) const GROUPS_MAX: u32 = 4096;

/// Returns whether a host that has `own` of `all` link groups may have another. No host may have
/// more groups than are left for others: one host gets at most half of all, two hosts get a third
/// each.
pub(crate) const fn admits_group(own: u32, all: u32) -> bool {
    own < GROUPS_MAX.saturating_sub(all)
}

/// Number of operations of all groups that may be in flight, beyond the [`OPERATION_SHARE`] of
/// each. One group gets at most half of them: 2048 writes of 64 KiB are more than the rings of 500
/// streams hold.
pub(crate) const OPERATIONS: u32 = 4096;

/// Maximum number of completions for which the engine reserves slots: those of all receive buffers
/// and of all operations.
const PROMISED: u32 = GROUPS_MAX * (RECEIVE_BUFFERS + OPERATION_SHARE) + OPERATIONS;

/// Number of slots for notifications of arrived data. The engine reserves none for them: while no
/// slot is free, notifications wait until the next turn has read the queue.
const NOTIFICATIONS: u32 = 1 << 16;

/// Capacity of the completion queue of all groups. The queue uses memory only for the completions
/// in it.
pub(crate) const COMPLETIONS: usize = PROMISED as usize + NOTIFICATIONS as usize;

// Without this, idle groups could take all slots, and then no group could post an operation.
const _: () = assert!(COMPLETIONS <= COMPLETIONS_MAX);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        //= sockets-protocol.md: group.5
        /// Hosts that take all groups they can get leave at least one for another host.
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
