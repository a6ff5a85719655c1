//! How long the operations of a queue pair wait for receives of the peer.

use delivery::Instant;
use wire_edge::OperationNumber;

/// State of a queue pair whose operation waits for a receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWait {
    /// How long an operation waits, in nanoseconds; `None` for no limit.
    budget_ns: Option<u64>,
    /// The operation that waits or was just retransmitted, and the time at which its wait began.
    waiting: Option<(OperationNumber, Instant)>,
    /// When to retransmit a refused message, even if the peer has sent no Ready until then.
    try_at: Instant,
}

impl ReceiveWait {
    /// Creates the state for a queue pair without a waiting operation.
    pub(crate) const fn new(budget_ns: Option<u64>) -> Self {
        Self { budget_ns, waiting: None, try_at: Instant::NEVER }
    }

    /// Sets how long an operation waits, in nanoseconds. The new limit also applies to an operation
    /// that already waits.
    pub(crate) const fn set_budget(&mut self, budget_ns: Option<u64>) {
        self.budget_ns = budget_ns;
    }

    /// Schedules a retransmission, because the peer has reported that it has no receive.
    pub(crate) fn try_later(&mut self, now: Instant) {
        self.try_at = now.after_ns(TRY_NS);
    }

    /// Schedules the retransmission at this time.
    pub(crate) const fn defer(&mut self, until: Instant) {
        self.try_at = until;
    }

    /// Returns when to call [`ReceiveWait::poll_try`].
    pub(crate) const fn try_at(&self) -> Instant {
        self.try_at
    }

    /// Returns whether to retransmit now.
    pub(crate) fn poll_try(&mut self, now: Instant) -> bool {
        let tries = self.try_at <= now;
        if tries {
            self.try_at = Instant::NEVER;
        }
        tries
    }

    /// Updates the wait. `waits` is the operation that waits now, if there is one. All operations
    /// before `delivered` are complete.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        waits: Option<OperationNumber>,
        delivered: OperationNumber,
    ) {
        let known = self.waiting.map(|(operation, _)| operation);
        match waits {
            Some(operation) if known != waits => self.waiting = Some((operation, now)),
            // The operation was just retransmitted and may have to wait again. Therefore its time
            // limit continues to run.
            None if known.is_some_and(|operation| delivered.since(operation) <= 0) => {}
            None => self.waiting = None,
            Some(_) => {}
        }
    }

    /// Returns when the waiting operation reaches its time limit.
    pub(crate) fn ends_at(&self) -> Instant {
        match (self.waiting, self.budget_ns) {
            (Some((_, since)), Some(budget_ns)) => since.after_ns(budget_ns),
            _ => Instant::NEVER,
        }
    }
}

/// Pause before the retransmission of a message for which the peer had no receive, in nanoseconds.
/// Usually a Ready arrives earlier. If a Ready overtook its `NotReady` on another link, only this
/// retransmission continues the operation.
const TRY_NS: u64 = 100_000_000;
