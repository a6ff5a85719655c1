//! The deliveries and receives that this end has reported to its peer, and the reports that are
//! still to be sent.

use semantics::Inbound;
use wire_edge::{MessageNumber, OperationNumber};

/// What this end last reported to its peer about deliveries and receives. (Ack sections contain
/// these reports. The acknowledgements of packets are stored elsewhere.)
#[derive(Debug)]
pub(crate) struct Reported {
    /// The number of the first operation that this end has not reported as delivered.
    delivered: OperationNumber,
    /// The credit that was last reported.
    credit: MessageNumber,
    /// Whether this end must send a report even if it has no packet to acknowledge.
    must_report: bool,
    /// Whether the peer has asked for a report of deliveries and credits. The answer uses every
    /// link, because one link may lose all frames to the peer.
    is_asked: bool,
}

delivery::pack_fields!(Reported { delivered, credit } must_report = false, is_asked = false);

impl Reported {
    /// Creates the state before any report. `first` is the number of the first operation and
    /// message.
    pub(crate) const fn new(first: u32) -> Self {
        Self {
            delivered: OperationNumber(first),
            credit: MessageNumber(first),
            must_report: false,
            is_asked: false,
        }
    }

    /// Makes a report due immediately, even if there is no packet to acknowledge.
    pub(crate) const fn report_now(&mut self) {
        self.must_report = true;
    }

    /// Calls [`Reported::report_now`] if `must_report` is true.
    pub(crate) const fn report_if(&mut self, must_report: bool) {
        self.must_report |= must_report;
    }

    /// Returns whether a report is due, even if there is no packet to acknowledge.
    #[inline]
    pub(crate) const fn must_report(&self) -> bool {
        self.must_report
    }

    /// Handles the peer's question for a report of deliveries and credits. `has_several` says
    /// whether the connection has several links. If it has, the answer uses all of them.
    pub(crate) const fn on_question(&mut self, has_several: bool) {
        self.is_asked = has_several;
    }

    /// Returns whether the peer has asked for a report of deliveries and credits, and the answer
    /// must use every link.
    #[inline]
    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Returns whether the answer to the peer must use every link. Also clears the question,
    /// because the caller sends the answer next.
    #[inline]
    pub(crate) const fn take_question(&mut self) -> bool {
        core::mem::replace(&mut self.is_asked, false)
    }

    /// Returns whether this end has deliveries or credits that it has not reported.
    #[inline]
    pub(crate) fn has_news(&self, inbound: &Inbound) -> bool {
        self.delivered != inbound.delivered() || self.credit != inbound.credit()
    }

    /// Returns the credit that was last reported.
    pub(crate) const fn credit(&self) -> MessageNumber {
        self.credit
    }

    /// Returns whether the peer may soon wait for a receive, because at least half of its credit is
    /// used up. If more credit is left, acknowledgements for other reasons report new receives.
    pub(crate) fn lacks_credit(&self, inbound: &Inbound) -> bool {
        let posted = inbound.credit().since(self.credit);
        posted > 0 && self.credit.since(inbound.next_message()) <= posted
    }

    /// Records a report of deliveries and credit to the peer.
    #[inline]
    pub(crate) fn on_reported(&mut self, delivered: OperationNumber, credit: MessageNumber) {
        debug_assert!(delivered.since(self.delivered) >= 0, "what is delivered stays delivered");
        debug_assert!(credit.since(self.credit) >= 0, "credit is not taken back");
        *self = Self { delivered, credit, must_report: false, is_asked: self.is_asked };
    }

    /// Returns whether no report is pending.
    pub(crate) const fn is_at_rest(&self) -> bool {
        !self.must_report && !self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_sent_once_and_a_question_stays_pending_until_taken() {
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
    fn the_next_acknowledgement_over_the_only_link_answers_a_question() {
        let mut reported = Reported::new(0);
        reported.on_question(true);
        reported.on_question(false);
        assert!(!reported.is_asked());
    }
}
