//! Limits on how much of a process's groups, operations and completion slots one peer can use.

use semantics::OPERATION_SHARE;
use work::COMPLETIONS_MAX;

use crate::transport::arena::RECEIVE_BUFFERS;

/// Maximum number of link groups of a process. A process has one group with each peer process.
pub(crate) const GROUPS_MAX: u32 = 4096;

/// Returns true if a host that has `own` of `all` link groups may have another group. No host may
/// have more groups than remain free. So one host gets at most half of all groups, and two hosts
/// get at most a third each.
pub(crate) const fn admits_group(own: u32, all: u32) -> bool {
    own < GROUPS_MAX.saturating_sub(all)
}

/// Number of operations that may be in flight in all groups together, in addition to the
/// [`OPERATION_SHARE`] of each group. One group gets at most half of them. That is enough: 2048
/// writes of 64 KiB are more than the rings of 500 streams hold.
pub(crate) const OPERATIONS: u32 = 4096;

/// Maximum number of completions for which the engine reserves slots. It reserves slots for all
/// receive buffers and all operations.
const PROMISED: u32 = GROUPS_MAX * (RECEIVE_BUFFERS + OPERATION_SHARE) + OPERATIONS;

/// Number of slots for notifications of arrived data. The engine does not reserve these slots. If
/// none is free, notifications wait until the next run of the engine has read the queue.
const NOTIFICATIONS: u32 = 1 << 16;

/// Capacity of the completion queue that all groups share. The queue uses memory only for the
/// completions that it contains.
pub(crate) const COMPLETIONS: usize = PROMISED as usize + NOTIFICATIONS as usize;

// A completion queue must be able to have this capacity. With fewer slots, the slots that the
// engine reserves for idle groups could fill the queue, and no group could post an operation.
const _: () = assert!(COMPLETIONS <= COMPLETIONS_MAX);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        //= sockets-protocol.md: group.5
        /// If each host takes all groups that it can get, at least one group remains for another
        /// host.
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
