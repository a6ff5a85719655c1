//! What was reported to the peer of deliveries and receives, and whether there is more to report.

use semantics::Inbound;
use wire_edge::{MessageNumber, OperationNumber};

/// What ack sections reported to the peer besides packets.
#[derive(Debug)]
pub(crate) struct Reported {
    /// The deliveries last reported.
    delivered: OperationNumber,
    /// The credit last reported.
    credit: MessageNumber,
    /// The peer is to hear of them even if there is no packet to acknowledge.
    must_report: bool,
    /// The peer asked for news: the answer goes over every link, as the peer may not hear us on the nearest.
    is_asked: bool,
}

delivery::pack_fields!(Reported { delivered, credit } must_report = false, is_asked = false);

impl Reported {
    /// Nothing was reported yet; operations and messages are numbered from here on.
    pub(crate) const fn new(first: u32) -> Self {
        Self {
            delivered: OperationNumber(first),
            credit: MessageNumber(first),
            must_report: false,
            is_asked: false,
        }
    }

    /// The peer must hear at once, whether there is a packet to acknowledge or not.
    pub(crate) const fn report_now(&mut self) {
        self.must_report = true;
    }

    /// The same, if something is so.
    pub(crate) const fn report_if(&mut self, must_report: bool) {
        self.must_report |= must_report;
    }

    /// See [`Reported::report_now`].
    #[inline]
    pub(crate) const fn must_report(&self) -> bool {
        self.must_report
    }

    /// The peer asks, for which it has several links or only one.
    pub(crate) const fn on_question(&mut self, has_several: bool) {
        self.is_asked = has_several;
    }

    /// Whether the peer has asked and must hear on every link.
    #[inline]
    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Returns whether the peer asked for news, and forgets that: the answer is about to be sent.
    #[inline]
    pub(crate) const fn take_question(&mut self) -> bool {
        core::mem::replace(&mut self.is_asked, false)
    }

    /// Whether there is more to report than was reported.
    #[inline]
    pub(crate) fn has_news(&self, inbound: &Inbound) -> bool {
        self.delivered != inbound.delivered() || self.credit != inbound.credit()
    }

    /// The credit last reported.
    pub(crate) const fn credit(&self) -> MessageNumber {
        self.credit
    }

    /// Whether the peer may be waiting for a receive: what it knows of is used up by half. Until then it
    /// hears of new receives with other acknowledgements.
    pub(crate) fn lacks_credit(&self, inbound: &Inbound) -> bool {
        let posted = inbound.credit().since(self.credit);
        posted > 0 && self.credit.since(inbound.next_message()) <= posted
    }

    /// This was reported to the peer.
    #[inline]
    pub(crate) fn on_reported(&mut self, delivered: OperationNumber, credit: MessageNumber) {
        debug_assert!(delivered.since(self.delivered) >= 0, "what is delivered stays delivered");
        debug_assert!(credit.since(self.credit) >= 0, "credit is not taken back");
        *self = Self { delivered, credit, must_report: false, is_asked: self.is_asked };
    }

    /// Whether nothing waits to be reported.
    pub(crate) const fn is_at_rest(&self) -> bool {
        !self.must_report && !self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reported_need_not_be_reported_again_but_a_question_stays_until_it_is_taken() {
        let mut reported = Reported::new(u32::MAX);
        reported.report_now();
        reported.on_question(true);
        assert!(reported.must_report() && !reported.is_at_rest());
        reported.on_reported(OperationNumber(1), MessageNumber(0));
        assert!(!reported.must_report() && !reported.is_at_rest());
        assert!(reported.take_question() && !reported.take_question());
        assert!(reported.is_at_rest());
    }

    #[test]
    fn over_one_link_the_next_acknowledgement_is_the_answer() {
        let mut reported = Reported::new(0);
        reported.on_question(true);
        reported.on_question(false);
        assert!(!reported.is_asked());
    }
}
