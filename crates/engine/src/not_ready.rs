//! Messages for which a peer has no receive: what is done meanwhile, and for how long (protocol.md §5.8).

use delivery::Instant;
use wire_edge::{MessageNumber, OperationNumber};

use crate::connection::Connection;
use crate::parts::Parts;

/// What a queue pair knows of its wait for a receive of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long an operation waits; `None` for as long as it takes.
    budget_ns: Option<u64>,
    /// The operation that waits, or did a moment ago, and since when.
    waiting: Option<(OperationNumber, Instant)>,
    /// When what the peer had no receive for is sent again although it has not said that there is one.
    try_at: Instant,
}

impl Patience {
    pub(crate) const fn new(budget_ns: Option<u64>) -> Self {
        Self { budget_ns, waiting: None, try_at: Instant::NEVER }
    }

    /// An operation waits, or none does; every one before `delivered` is done.
    fn look(&mut self, now: Instant, waits: Option<OperationNumber>, delivered: OperationNumber) {
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
    fn ends_at(&self) -> Instant {
        match (self.waiting, self.budget_ns) {
            (Some((_, since)), Some(budget_ns)) => since.after_ns(budget_ns),
            _ => Instant::NEVER,
        }
    }
}

impl Parts<'_> {
    //= protocol.md: queue-pair.4
    /// The peer has no receive for a message now: it and what is behind it come back from all links.
    #[cold]
    pub(crate) fn on_not_ready(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        message: MessageNumber,
    ) {
        if !connection.is_open()
            || !connection.is_queue_pair()
            || !connection.outbound_mut().on_not_ready(self.pools, message)
        {
            return;
        }
        let mut refused = Vec::new();
        let (paths, outbound) = connection.paths_and_outbound();
        for path in paths {
            path.take_refused(
                self.sent,
                &mut |carried| outbound.is_held(carried),
                &mut |carried| {
                    refused.push(carried);
                },
            );
        }
        // They are sent again in their order, before all that has not been sent since the last time.
        let first = outbound.delivered();
        refused.sort_unstable_by_key(|carried| (carried.number.since(first), carried.offset));
        for &carried in refused.iter().rev() {
            outbound.on_returned(self.pools, carried);
        }
        if let Some(patience) = connection.patience_mut() {
            patience.try_at = now.after_ns(TRY_NS);
        }
    }

    //= protocol.md: queue-pair.4
    /// The peer has receives again.
    pub(crate) fn on_ready(&mut self, connection: &mut Connection) {
        if connection.is_open() && connection.is_queue_pair() {
            connection.outbound_mut().on_ready(self.pools);
        }
    }

    //= protocol.md: queue-pair.5
    /// Tries again, or gives up, when it is time.
    pub(crate) fn wait_for_receive(&mut self, now: Instant, connection: &mut Connection) {
        if !connection.is_open() || !connection.is_queue_pair() {
            return;
        }
        let waits = connection.outbound().waits_for_receive(self.pools);
        let delivered = connection.outbound().delivered();
        let Some(patience) = connection.patience_mut() else { return };
        patience.look(now, waits, delivered);
        let (has_ended, tries) = (patience.ends_at() <= now, patience.try_at <= now);
        if tries {
            patience.try_at = Instant::NEVER;
        }
        if has_ended && waits.is_some() {
            connection.outbound_mut().give_up_on_receive(self.pools);
            self.end_if_over(now, connection);
        } else if tries {
            connection.outbound_mut().on_ready(self.pools);
        }
    }

    /// When to call [`Parts::wait_for_receive`] although nothing happens.
    pub(crate) fn receive_awaited_until(
        &mut self,
        now: Instant,
        connection: &mut Connection,
    ) -> Instant {
        let waits = connection.outbound().waits_for_receive(self.pools);
        let delivered = connection.outbound().delivered();
        let Some(patience) = connection.patience_mut() else { return Instant::NEVER };
        patience.look(now, waits, delivered);
        if waits.is_some() { patience.ends_at().min(patience.try_at) } else { patience.try_at }
    }
}

/// Pause after which a message is sent again for which the peer had no receive. Ready says sooner that there is one;
/// this is for one that came over another link before its `NotReady`.
const TRY_NS: u64 = 100_000_000;
