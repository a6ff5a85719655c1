//! How long a queue pair waits for receives of its peer.

use delivery::Instant;
use wire_edge::OperationNumber;

/// What a queue pair knows of its wait for a receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long an operation waits; `None` for as long as it takes.
    budget_ns: Option<u64>,
    /// The operation that waits, or did a moment ago, and since when.
    waiting: Option<(OperationNumber, Instant)>,
    /// When what the peer had no receive for is retransmitted although it has not reported that there is one.
    try_at: Instant,
}

impl Patience {
    /// Nothing waits yet.
    pub(crate) const fn new(budget_ns: Option<u64>) -> Self {
        Self { budget_ns, waiting: None, try_at: Instant::NEVER }
    }

    /// An operation waits for so long from now on, whichever does already included.
    pub(crate) const fn set_budget(&mut self, budget_ns: Option<u64>) {
        self.budget_ns = budget_ns;
    }

    /// The peer has said that it has no receive.
    pub(crate) fn try_later(&mut self, now: Instant) {
        self.try_at = now.after_ns(TRY_NS);
    }

    /// It is tried at that time.
    pub(crate) const fn defer(&mut self, until: Instant) {
        self.try_at = until;
    }

    /// When [`Patience::poll_try`] has something to say.
    pub(crate) const fn try_at(&self) -> Instant {
        self.try_at
    }

    /// Whether to try now.
    pub(crate) fn poll_try(&mut self, now: Instant) -> bool {
        let tries = self.try_at <= now;
        if tries {
            self.try_at = Instant::NEVER;
        }
        tries
    }

    /// An operation waits, or none does; every one before `delivered` is done.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        waits: Option<OperationNumber>,
        delivered: OperationNumber,
    ) {
        let known = self.waiting.map(|(operation, _)| operation);
        match waits {
            Some(operation) if known != waits => self.waiting = Some((operation, now)),
            // It is tried, and may have to wait on.
            None if known.is_some_and(|operation| delivered.since(operation) <= 0) => {}
            None => self.waiting = None,
            Some(_) => {}
        }
    }

    /// When the operation that waits has done so for long enough.
    pub(crate) fn ends_at(&self) -> Instant {
        match (self.waiting, self.budget_ns) {
            (Some((_, since)), Some(budget_ns)) => since.after_ns(budget_ns),
            _ => Instant::NEVER,
        }
    }
}

/// Pause after which a message is retransmitted for which the peer had no receive. Ready says sooner that there is one;
/// this is for one that came over another link before its `NotReady`.
const TRY_NS: u64 = 100_000_000;
