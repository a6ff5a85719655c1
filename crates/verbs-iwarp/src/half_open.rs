//! The connections of a port whose peers have not sent a request yet.

use std::sync::Arc;

/// Counts the half-open connections of a port: TCP has connected, and the peer has not sent its
/// request. Without a limit, a peer that only connects could use all descriptors of the process.
#[derive(Debug, Default)]
pub(crate) struct HalfOpenCount(Arc<()>);

/// A half-open connection. It counts until this value is dropped.
#[derive(Debug)]
pub(crate) struct HalfOpen(
    #[expect(dead_code, reason = "the count is that of the owners")] Arc<()>,
);

impl HalfOpenCount {
    /// Counts another connection. Returns `None` if the port has [`HALF_OPEN_MAX`] of them.
    pub(crate) fn begin(&self) -> Option<HalfOpen> {
        (!self.is_full()).then(|| HalfOpen(Arc::clone(&self.0)))
    }

    /// Returns whether the port has the maximum of half-open connections.
    pub(crate) fn is_full(&self) -> bool {
        // One of the owners is the count itself.
        Arc::strong_count(&self.0) > HALF_OPEN_MAX
    }
}

/// Maximum number of half-open connections of a port. A peer sends its request as soon as TCP has
/// connected, so even a thousand peers that connect at once rarely have more of them. Each takes a
/// descriptor, and for at most 5 s. Further connections wait in the kernel's queue.
const HALF_OPEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_room_again_when_a_connection_is_no_longer_half_open() {
        let count = HalfOpenCount::default();
        let mut begun: Vec<_> = std::iter::from_fn(|| count.begin()).collect();
        assert_eq!(begun.len(), HALF_OPEN_MAX);
        assert!(count.is_full());
        begun.pop();
        assert!(!count.is_full() && count.begin().is_some());
    }
}
