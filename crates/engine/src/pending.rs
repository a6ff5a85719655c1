//! Control messages of a link: what is to be said on it, and what is said again if it was lost.

use semantics::{Carried, CarriedKind};

/// Bits of [`Pending::say`]: messages to send on a link.
pub(crate) const PING: u16 = 1;
/// See [`PING`].
pub(crate) const CLOSE: u16 = 2;
/// See [`PING`].
pub(crate) const CLOSE_ACK: u16 = 4;

/// Asks for an acknowledgement and announces which links this end has; see [`PING`].
pub(crate) const LINKS: u16 = 8;

/// A message lacks a receive here, and which; see [`PING`].
pub(crate) const NOT_READY: u16 = 16;

/// It has one; see [`PING`].
pub(crate) const READY: u16 = 32;

/// Bit of [`semantics::Carried::slot`] of a path MTU probe; the low 16 bits are its size.
pub(crate) const MTU_PROBE: u32 = 1 << 31;
/// Bit of [`semantics::Carried::slot`] of a frame that reported the status of the links in the low half of its
/// `offset`, and the addresses of those in the high half.
pub(crate) const STATUS: u32 = 1 << 30;

/// What is to be said on a link of a connection, until a frame that says it has gone out.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Messages, bits such as [`PING`].
    messages: u16,
    /// Nonce of a challenge of the peer to answer on this link.
    answer: Option<u64>,
    /// The status of this link is to be reported, over any link that works.
    announces: bool,
    /// Links (by bit) whose status, or that they are gone, the peer must hear on this one.
    statuses: u32,
    /// Links (by bit) of this endpoint whose address the peer must hear on this one.
    addresses: u16,
    /// Control frames in flight that report something to the peer.
    reports: u16,
}

delivery::pack_fields!(Pending { messages, answer, announces, statuses, addresses, reports });

impl Pending {
    /// These messages are to be sent, bits such as [`PING`].
    pub(crate) const fn say(&mut self, messages: u16) {
        self.messages |= messages;
    }

    /// The peer's challenge with this nonce is to be answered.
    pub(crate) const fn answer(&mut self, nonce: u64) {
        self.answer = Some(nonce);
    }

    /// No challenge is to be answered any more.
    pub(crate) const fn drop_answer(&mut self) {
        self.answer = None;
    }

    /// Whether the status of this link is to be reported, over any link that works.
    pub(crate) const fn announce(&mut self, announces: bool) {
        self.announces = announces;
    }

    /// The peer must hear of these links (by bit), which may be gone, how they are.
    pub(crate) const fn report_statuses(&mut self, links: u32) {
        self.statuses |= links;
    }

    /// The peer must hear where these links (by bit) of this endpoint are.
    pub(crate) const fn announce_addresses(&mut self, links: u16) {
        self.addresses |= links;
    }

    /// Messages to send.
    pub(crate) const fn messages(&self) -> u16 {
        self.messages
    }

    /// Nonce of the challenge to answer.
    pub(crate) const fn nonce(&self) -> Option<u64> {
        self.answer
    }

    /// See [`Pending::announce`].
    pub(crate) const fn announces(&self) -> bool {
        self.announces
    }

    /// See [`Pending::report_statuses`].
    pub(crate) const fn statuses(&self) -> u32 {
        self.statuses
    }

    /// See [`Pending::announce_addresses`].
    pub(crate) const fn addresses(&self) -> u16 {
        self.addresses
    }

    /// Whether there is something to say but answers.
    #[inline]
    pub(crate) const fn has_news(&self) -> bool {
        self.messages != 0 || self.announces || self.has_news_of_links()
    }

    /// Whether there is something to say of any link.
    #[inline]
    pub(crate) const fn has_news_of_links(&self) -> bool {
        self.statuses != 0 || self.addresses != 0
    }

    /// Whether one more frame may be in flight that the peer has to acknowledge.
    pub(crate) const fn may_report(&self) -> bool {
        self.reports < REPORTS_MAX
    }

    /// Whether every frame that reported something was acknowledged.
    pub(crate) const fn is_all_heard(&self) -> bool {
        self.reports == 0
    }

    /// What comes back of a frame with these messages, if it is lost: with the addresses of these links, if any is
    /// given, and the status of all links to report.
    pub(crate) fn carried(&self, messages: u16, of_links: Option<u16>) -> Carried {
        let (slot, offset) = match of_links {
            Some(addresses) => (STATUS, self.statuses & 0xffff | u32::from(addresses) << 16),
            None => (0, 0),
        };
        let slot = u32::from(messages) | slot;
        Carried { slot, offset, kind: CarriedKind::Control, ..Carried::default() }
    }

    /// Such a frame is in flight, with the answer, if there was one. The peer acknowledges it, or the end that asks
    /// repeats its question.
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
        // If no address was sent, those are not attached any more.
        self.addresses = if addresses == 0 { 0 } else { self.addresses & !addresses };
        if self.addresses != 0 {
            // The rest of them follows for the same reason.
            self.messages |= messages & LINKS;
        }
    }

    /// Frames were lost, or have arrived: what the lost ones said is said again, here or on the nearest
    /// link.
    pub(crate) const fn on_returned(&mut self, lost: LostControl) {
        self.reports -= lost.frames;
        self.say_again(lost);
    }

    /// What was said on another link is said again, here or on the nearest.
    pub(crate) const fn say_again(&mut self, lost: LostControl) {
        self.messages |= lost.messages;
        self.say_again_of_links(lost);
    }

    /// The same, of links only.
    pub(crate) const fn say_again_of_links(&mut self, lost: LostControl) {
        self.statuses |= lost.statuses;
        self.addresses |= lost.addresses;
    }

    /// No report is in flight any more.
    pub(crate) const fn on_given_up(&mut self) {
        self.reports = 0;
    }

    /// What was to be said on another link, but for answers, is said on this one.
    pub(crate) const fn inherit(&mut self, other: &mut Self) {
        self.messages |= core::mem::replace(&mut other.messages, 0);
        self.inherit_of_links(other);
    }

    /// The same, of links only.
    pub(crate) const fn inherit_of_links(&mut self, other: &mut Self) {
        self.statuses |= core::mem::replace(&mut other.statuses, 0);
        self.addresses |= core::mem::replace(&mut other.addresses, 0);
    }
}

/// What lost control frames said that must be said again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LostControl {
    messages: u16,
    statuses: u32,
    addresses: u16,
    /// Frames that are no longer in flight.
    frames: u16,
}

impl LostControl {
    /// A frame was lost, or belongs to a link that is given up.
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

    /// A control frame, no probe, arrived.
    pub(crate) const fn add_arrived(&mut self) {
        self.frames += 1;
    }
}

/// Control frames in flight on a link that report something to the peer. Three carry the addresses of 16 links, one the
/// status of all; with 256 bytes at most they are 2 KiB.
const REPORTS_MAX: u16 = 8;
