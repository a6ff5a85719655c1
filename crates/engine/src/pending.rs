//! Control messages to send on a link, and their repetition if they are lost.

use semantics::{Carried, CarriedKind};

/// Bit of [`Pending::say`]: send a Ping.
pub(crate) const PING: u16 = 1;
/// Bit of [`Pending::say`]: send a Close.
pub(crate) const CLOSE: u16 = 2;
/// Bit of [`Pending::say`]: send a `CloseAck`.
pub(crate) const CLOSE_ACK: u16 = 4;

/// Bit of [`Pending::say`]: announce which links this end has, and ask for an acknowledgement.
pub(crate) const LINKS: u16 = 8;

/// Bit of [`Pending::say`]: report the message for which this end has no receive.
pub(crate) const NOT_READY: u16 = 16;

/// Bit of [`Pending::say`]: report that this end has receives again.
pub(crate) const READY: u16 = 32;

/// Bit of [`semantics::Carried::slot`] that marks a path MTU probe. The low 16 bits of the slot are
/// the size of the probe in bytes.
pub(crate) const MTU_PROBE: u32 = 1 << 31;
/// Bit of [`semantics::Carried::slot`] that marks a report about links. The field `offset` of such
/// a record has two halves. The low half has a bit for each link whose status was sent. The high
/// half has a bit for each link whose address was sent.
pub(crate) const STATUS: u32 = 1 << 30;

/// Control messages of one link of a connection that have not been sent yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Messages to send: bits such as [`PING`].
    messages: u16,
    /// Nonce of a challenge of the peer. This end has to send the answer on this link.
    answer: Option<u64>,
    /// Whether this link's status has to be reported. Any link that works may carry the report.
    announces: bool,
    /// Links (by bit) whose status or removal this link has to report.
    statuses: u32,
    /// Links (by bit) of this endpoint whose address this link has to announce.
    addresses: u16,
    /// Number of control frames in flight that report something to the peer.
    reports: u16,
}

delivery::pack_fields!(Pending { messages, answer, announces, statuses, addresses, reports });

impl Pending {
    /// Adds messages to send: bits such as [`PING`].
    pub(crate) const fn say(&mut self, messages: u16) {
        self.messages |= messages;
    }

    /// Queues the answer to the peer's challenge with this nonce.
    pub(crate) const fn answer(&mut self, nonce: u64) {
        self.answer = Some(nonce);
    }

    /// Drops the pending answer to a challenge.
    pub(crate) const fn drop_answer(&mut self) {
        self.answer = None;
    }

    /// Sets whether this link's status has to be reported. Any link that works may carry the
    /// report.
    pub(crate) const fn announce(&mut self, announces: bool) {
        self.announces = announces;
    }

    /// Queues reports of the status of these links (by bit). The bit of a removed link reports its
    /// removal.
    pub(crate) const fn report_statuses(&mut self, links: u32) {
        self.statuses |= links;
    }

    /// Queues announcements of the addresses of these links (by bit) of this endpoint.
    pub(crate) const fn announce_addresses(&mut self, links: u16) {
        self.addresses |= links;
    }

    /// Returns the messages to send.
    pub(crate) const fn messages(&self) -> u16 {
        self.messages
    }

    /// Returns the nonce of the challenge that this end has to answer; `None` if there is none.
    pub(crate) const fn nonce(&self) -> Option<u64> {
        self.answer
    }

    /// Returns whether this link's status has to be reported. Any link that works may carry the
    /// report.
    pub(crate) const fn announces(&self) -> bool {
        self.announces
    }

    /// Returns the links (by bit) whose status or removal this link has to report.
    pub(crate) const fn statuses(&self) -> u32 {
        self.statuses
    }

    /// Returns the links (by bit) of this endpoint whose address this link has to announce.
    pub(crate) const fn addresses(&self) -> u16 {
        self.addresses
    }

    /// Returns whether this link has anything to send, apart from an answer to a challenge.
    #[inline]
    pub(crate) const fn has_news(&self) -> bool {
        self.messages != 0 || self.announces || self.has_news_of_links()
    }

    /// Returns whether a report about any link waits to be sent.
    #[inline]
    pub(crate) const fn has_news_of_links(&self) -> bool {
        self.statuses != 0 || self.addresses != 0
    }

    /// Returns whether this link may have one more control frame in flight that the peer must
    /// acknowledge.
    pub(crate) const fn may_report(&self) -> bool {
        self.reports < REPORTS_MAX
    }

    /// Returns whether the peer has acknowledged every control frame with a report.
    pub(crate) const fn is_all_heard(&self) -> bool {
        self.reports == 0
    }

    /// Returns the record of a frame with these messages. If the frame is lost, the record says
    /// what to retransmit. If `of_links` has a value, the frame also contains all pending statuses,
    /// and the addresses of the links in `of_links` (by bit).
    pub(crate) fn carried(&self, messages: u16, of_links: Option<u16>) -> Carried {
        let (slot, offset) = match of_links {
            Some(addresses) => (STATUS, self.statuses & 0xffff | u32::from(addresses) << 16),
            None => (0, 0),
        };
        let slot = u32::from(messages) | slot;
        Carried { slot, offset, kind: CarriedKind::Control, ..Carried::default() }
    }

    /// Records that a frame with these messages and the pending answer was sent.
    ///
    /// `is_acknowledged` says whether the peer must acknowledge the frame. Two kinds of frames need
    /// no acknowledgement:
    /// * The frame contains only questions and answers about whether the link works. The end that
    ///   asks repeats its question until it gets an answer.
    /// * The frame ends the connection. A timer repeats it, or it answers a frame that the peer
    ///   repeats.
    pub(crate) const fn on_sent(
        &mut self,
        messages: u16,
        of_links: Option<u16>,
        is_acknowledged: bool,
    ) {
        self.messages &= !messages;
        self.answer = None;
        self.reports += is_acknowledged as u16;
        let Some(addresses) = of_links else { return };
        self.statuses = 0;
        // The frame contains no addresses only if all links in `self.addresses` are now detached.
        self.addresses = if addresses == 0 { 0 } else { self.addresses & !addresses };
        if self.addresses != 0 {
            // The addresses that did not fit into this frame go into another frame, which asks the
            // same question.
            self.messages |= messages & LINKS;
        }
    }

    /// Handles control frames that are no longer in flight, because the peer acknowledged them or
    /// they were lost. Queues the messages of lost frames for retransmission.
    pub(crate) const fn on_returned(&mut self, lost: LostControl) {
        self.reports -= lost.frames;
        self.say_again(lost);
    }

    /// Queues the messages of lost frames for retransmission. The frames may have been sent on
    /// another link.
    pub(crate) const fn say_again(&mut self, lost: LostControl) {
        self.messages |= lost.messages;
        self.say_again_of_links(lost);
    }

    /// Queues reports about links from lost frames for retransmission. Ignores all other messages
    /// of these frames.
    pub(crate) const fn say_again_of_links(&mut self, lost: LostControl) {
        self.statuses |= lost.statuses;
        self.addresses |= lost.addresses;
    }

    /// Resets the number of reports in flight to 0.
    pub(crate) const fn on_given_up(&mut self) {
        self.reports = 0;
    }

    /// Moves the pending messages of another link to this link, except the answer to a challenge.
    pub(crate) const fn inherit(&mut self, other: &mut Self) {
        self.messages |= core::mem::replace(&mut other.messages, 0);
        self.inherit_of_links(other);
    }

    /// Moves the pending reports about links from another link to this link.
    pub(crate) const fn inherit_of_links(&mut self, other: &mut Self) {
        self.statuses |= core::mem::replace(&mut other.statuses, 0);
        self.addresses |= core::mem::replace(&mut other.addresses, 0);
    }
}

/// Contents of lost control frames that have to be retransmitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LostControl {
    messages: u16,
    statuses: u32,
    addresses: u16,
    /// Number of frames that are no longer in flight.
    frames: u16,
}

impl LostControl {
    /// Adds a frame that was lost, or that was in flight on a link from which the engine removed
    /// everything in flight.
    pub(crate) fn add(&mut self, carried: &Carried) {
        if carried.kind != CarriedKind::Control || carried.slot & MTU_PROBE != 0 {
            return;
        }
        self.frames += 1;
        self.messages |= carried.slot as u16;
        if carried.slot & STATUS != 0 {
            self.statuses |= carried.offset & 0xffff;
            self.addresses |= (carried.offset >> 16) as u16;
        }
    }

    /// Counts a control frame that the peer has acknowledged. The caller does not call this
    /// function for probes.
    pub(crate) const fn add_arrived(&mut self) {
        self.frames += 1;
    }
}

/// Maximum number of control frames with reports in flight on a link. The addresses of 16 links
/// need three frames, and the status of all links needs one frame. Each frame has at most 256
/// bytes, so eight frames have at most 2 KiB.
const REPORTS_MAX: u16 = 8;
