//! What was reported to the peer of deliveries and receives, and whether there is more to report.

use semantics::Inbound;
use wire_edge::{MessageNumber, OperationNumber};

/// What ack sections reported to the peer besides packets.
#[derive(Debug)]
pub(crate) struct Told {
    /// The deliveries last reported.
    delivered: OperationNumber,
    /// The credit last reported.
    credit: MessageNumber,
    /// The peer is to hear of them even if there is no packet to acknowledge.
    must_tell: bool,
    /// The peer asked for news: the answer goes over every link, as the peer may not hear us on the nearest.
    is_asked: bool,
}

delivery::pack_fields!(Told { delivered, credit } must_tell = false, is_asked = false);

impl Told {
    /// Nothing was reported yet; operations and messages are numbered from here on.
    pub(crate) const fn new(first: u32) -> Self {
        Self {
            delivered: OperationNumber(first),
            credit: MessageNumber(first),
            must_tell: false,
            is_asked: false,
        }
    }

    /// The peer must hear at once, whether there is a packet to acknowledge or not.
    pub(crate) const fn tell_now(&mut self) {
        self.must_tell = true;
    }

    /// The same, if something is so.
    pub(crate) const fn tell_if(&mut self, must_tell: bool) {
        self.must_tell |= must_tell;
    }

    /// See [`Told::tell_now`].
    #[inline]
    pub(crate) const fn must_tell(&self) -> bool {
        self.must_tell
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
    pub(crate) fn on_told(&mut self, delivered: OperationNumber, credit: MessageNumber) {
        debug_assert!(delivered.since(self.delivered) >= 0, "what is delivered stays delivered");
        debug_assert!(credit.since(self.credit) >= 0, "credit is not taken back");
        *self = Self { delivered, credit, must_tell: false, is_asked: self.is_asked };
    }

    /// Whether nothing waits to be reported.
    pub(crate) const fn is_at_rest(&self) -> bool {
        !self.must_tell && !self.is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_need_not_be_told_but_a_question_stays_until_it_is_taken() {
        let mut told = Told::new(u32::MAX);
        told.tell_now();
        told.on_question(true);
        assert!(told.must_tell() && !told.is_at_rest());
        told.on_told(OperationNumber(1), MessageNumber(0));
        assert!(!told.must_tell() && !told.is_at_rest());
        assert!(told.take_question() && !told.take_question());
        assert!(told.is_at_rest());
    }

    #[test]
    fn over_one_link_the_next_acknowledgement_is_the_answer() {
        let mut told = Told::new(0);
        told.on_question(true);
        told.on_question(false);
        assert!(!told.is_asked());
    }
}
