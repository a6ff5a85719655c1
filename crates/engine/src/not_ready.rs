//! Messages for which a peer has no receive: what is done meanwhile, and for how long (protocol.md §5.8).

use delivery::Instant;
use wire_edge::MessageNumber;

use crate::connection::Connection;
use crate::parts::Parts;

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
        // They are retransmitted in their order, before everything that has not been sent since the last time.
        let first = outbound.delivered();
        refused.sort_unstable_by_key(|carried| (carried.number.since(first), carried.offset));
        for &carried in refused.iter().rev() {
            outbound.on_returned(self.pools, carried);
        }
        if let Some(patience) = connection.patience_mut() {
            patience.try_later(now);
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
        let (has_ended, tries) = (patience.ends_at() <= now, patience.poll_try(now));
        if has_ended && waits.is_some() {
            connection.outbound_mut().give_up_on_receive(self.pools);
            self.end_if_over(now, connection);
        } else if tries {
            match self.questions.may_try(now) {
                Ok(()) => connection.outbound_mut().on_ready(self.pools),
                Err(until) => {
                    if let Some(patience) = connection.patience_mut() {
                        patience.defer(until);
                    }
                }
            }
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
        let ends_at = if waits.is_some() { patience.ends_at() } else { Instant::NEVER };
        ends_at.min(patience.try_at())
    }
}
