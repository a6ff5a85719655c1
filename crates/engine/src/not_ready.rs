//! Messages for which the peer has no receive. Decides when to retransmit such messages, and how
//! long they wait (protocol.md §5.8).

use delivery::Instant;
use wire_edge::MessageNumber;

use crate::connection::Connection;
use crate::parts::Parts;

impl Parts<'_> {
    //= protocol.md: queue-pair.4
    /// Handles the report that the peer has no receive for a message. Queues the message and all
    /// later operations for retransmission, whichever links carried them.
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
        // Retransmit the fragments in order, before data that was not sent yet.
        let first = outbound.delivered();
        refused.sort_unstable_by_key(|carried| (carried.number.since(first), carried.offset));
        for &carried in refused.iter().rev() {
            outbound.on_returned(self.pools, carried);
        }
        if let Some(receive_wait) = connection.receive_wait_mut() {
            receive_wait.try_later(now);
        }
    }

    //= protocol.md: queue-pair.4
    /// Handles the report that the peer has receives again.
    pub(crate) fn on_ready(&mut self, connection: &mut Connection) {
        if connection.is_open() && connection.is_queue_pair() {
            connection.outbound_mut().on_ready(self.pools);
        }
    }

    //= protocol.md: queue-pair.5
    /// Retransmits a message that waits for a receive of the peer, or ends the wait with an error.
    /// Does nothing if neither the retransmission nor the end of the wait is due.
    pub(crate) fn wait_for_receive(&mut self, now: Instant, connection: &mut Connection) {
        if !connection.is_open() || !connection.is_queue_pair() {
            return;
        }
        let waits = connection.outbound().waits_for_receive(self.pools);
        let delivered = connection.outbound().delivered();
        let Some(receive_wait) = connection.receive_wait_mut() else { return };
        receive_wait.look(now, waits, delivered);
        let (has_ended, tries) = (receive_wait.ends_at() <= now, receive_wait.poll_try(now));
        if has_ended && waits.is_some() {
            connection.outbound_mut().give_up_on_receive(self.pools);
            self.end_if_over(now, connection);
        } else if tries {
            match self.questions.may_try(now) {
                Ok(()) => connection.outbound_mut().on_ready(self.pools),
                Err(until) => {
                    if let Some(receive_wait) = connection.receive_wait_mut() {
                        receive_wait.defer(until);
                    }
                }
            }
        }
    }

    /// Returns the time at which to call [`Parts::wait_for_receive`], if no event ends the wait
    /// before that time.
    pub(crate) fn receive_awaited_until(
        &mut self,
        now: Instant,
        connection: &mut Connection,
    ) -> Instant {
        let waits = connection.outbound().waits_for_receive(self.pools);
        let delivered = connection.outbound().delivered();
        let Some(receive_wait) = connection.receive_wait_mut() else { return Instant::NEVER };
        receive_wait.look(now, waits, delivered);
        let ends_at = if waits.is_some() { receive_wait.ends_at() } else { Instant::NEVER };
        ends_at.min(receive_wait.try_at())
    }
}
