//! How a connection moves, seen from the side that connected: what to do about offers, groups, answers and time.
//!
//! The other side has little to decide: an offer is [repeated](crate::offer::Offering) until it is taken, once.

use delivery::Instant;

use crate::offer::{DOOR_OPEN_NS, Offer};
use crate::reasons::Reason;
use crate::wire::{Malformed, OfferToken, Refusal};

/// Where a connection stands that may be joined to a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joining {
    stage: Stage,
    /// When it is given up.
    until: Instant,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// The door is open.
    Undecided,
    /// An offer was taken, and its group is on its way.
    Grouping(OfferToken),
    /// The peer was asked.
    Asked,
    /// Moved, or left.
    Over,
}

/// What to do about a datagram at a door.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AtDoor {
    /// It is the offer: make the group, or use the one that is there.
    Take(Offer),
    /// Nothing: it is not for this connection, or an offer was taken already.
    Ignore,
    /// The peer cannot be joined.
    Leave(Reason),
}

/// What to do about an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AtAnswer {
    /// Write the peer's seal: the connection moves.
    Seal,
    /// The connection is left to TCP.
    Leave(Reason),
    /// Nobody asked, or it was given up: the peer is told that the stream is no more.
    Reset,
}

impl Joining {
    /// The door opens.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { stage: Stage::Undecided, until: now.after_ns(DOOR_OPEN_NS) }
    }

    //= sockets-protocol.md: offer.5, version.2
    /// A datagram came to the door; `is_ours` says whether an offer is for this connection.
    pub(crate) fn on_datagram(
        &mut self,
        now: Instant,
        datagram: Result<Offer, Malformed>,
        is_ours: impl FnOnce(&Offer) -> bool,
    ) -> AtDoor {
        if self.stage != Stage::Undecided {
            return AtDoor::Ignore;
        }
        match datagram {
            Ok(offer) if is_ours(&offer) => {
                self.stage = Stage::Grouping(offer.token);
                self.until = now.after_ns(GROUP_WITHIN_NS);
                AtDoor::Take(offer)
            }
            Err(Malformed::Version(_)) => self.leave_at_door(Reason::Version),
            Ok(_) | Err(_) => AtDoor::Ignore,
        }
    }

    fn leave_at_door(&mut self, reason: Reason) -> AtDoor {
        self.stage = Stage::Over;
        AtDoor::Leave(reason)
    }

    /// The group is there: which offer to join, once.
    pub(crate) fn on_group(&mut self, now: Instant) -> Option<OfferToken> {
        let Stage::Grouping(token) = self.stage else { return None };
        self.stage = Stage::Asked;
        self.until = now.after_ns(ANSWER_WITHIN_NS);
        Some(token)
    }

    //= sockets-protocol.md: join.5
    /// The peer has joined.
    pub(crate) fn on_joined(&mut self) -> AtAnswer {
        if self.stage != Stage::Asked {
            return AtAnswer::Reset;
        }
        self.stage = Stage::Over;
        AtAnswer::Seal
    }

    /// The peer refused.
    pub(crate) fn on_refused(&mut self, refusal: Refusal) -> AtAnswer {
        if self.stage != Stage::Asked {
            return AtAnswer::Reset;
        }
        self.stage = Stage::Over;
        AtAnswer::Leave(match refusal {
            Refusal::OnlyTcp => Reason::OnlyTcp,
            _ => Reason::Refused,
        })
    }

    //= sockets-protocol.md: join.6
    /// The group did not come about, or is lost; whether the connection is left to TCP for it.
    pub(crate) fn on_lost(&mut self) -> Option<Reason> {
        let is_pending = self.stage != Stage::Over;
        self.stage = Stage::Over;
        is_pending.then_some(Reason::NoGroup)
    }

    //= sockets-protocol.md: join.5
    /// Time has passed: whether it is given up.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Reason> {
        if now < self.until {
            return None;
        }
        let reason = match self.stage {
            Stage::Undecided => Reason::NoOffer,
            Stage::Grouping(_) => Reason::NoGroup,
            Stage::Asked => Reason::NoAnswer,
            Stage::Over => return None,
        };
        self.stage = Stage::Over;
        Some(reason)
    }

    /// When [`Joining::on_time`] is wanted.
    pub(crate) fn due(&self) -> Instant {
        if self.stage == Stage::Over { Instant::NEVER } else { self.until }
    }
}

/// For how long the edge connection may take, in nanoseconds: its first frames may be lost several times. The connection
/// works meanwhile, by TCP.
const GROUP_WITHIN_NS: u64 = 2_000_000_000;

/// For how long the answer to a join may take, in nanoseconds: the peer is there and answers at once, unless its TCP
/// connection is full, for which it waits half as long. It works meanwhile, by TCP.
pub(crate) const ANSWER_WITHIN_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Incarnation;

    fn offer(token: u64) -> Offer {
        let address = "10.0.0.1:80".parse().expect("an address");
        let (accepting, connecting) = (address, address);
        let (token, incarnation) = (OfferToken(token), Incarnation(1));
        Offer { token, incarnation, port: 1, accepting, connecting }
    }

    const START: Instant = Instant(5);

    //= sockets-protocol.md: offer.5
    #[test]
    fn a_second_offer_is_ignored() {
        let mut joining = Joining::new(START);
        let take = joining.on_datagram(START, Ok(offer(1)), |_| true);
        assert_eq!(take, AtDoor::Take(offer(1)));
        for token in [1, 2] {
            let again = joining.on_datagram(START, Ok(offer(token)), |_| true);
            assert_eq!(again, AtDoor::Ignore);
        }
        assert_eq!(joining.on_group(START), Some(OfferToken(1)));
        assert_eq!(joining.on_group(START), None, "once");
    }

    //= sockets-protocol.md: version.2
    #[test]
    fn a_peer_of_another_version_is_left_to_tcp_and_what_is_no_offer_is_ignored() {
        let mut joining = Joining::new(START);
        for what in [Malformed::Magic, Malformed::Length(3), Malformed::Zero, Malformed::Kind(7)] {
            let done = joining.on_datagram(START, Err(what), |_| true);
            assert_eq!(done, AtDoor::Ignore, "{what}");
        }
        assert_eq!(joining.on_datagram(START, Ok(offer(1)), |_| false), AtDoor::Ignore);
        let done = joining.on_datagram(START, Err(Malformed::Version(2)), |_| true);
        assert_eq!(done, AtDoor::Leave(Reason::Version));
        assert_eq!(joining.due(), Instant::NEVER);
    }

    //= sockets-protocol.md: join.5
    #[test]
    fn a_peer_that_offers_and_never_answers_is_left_to_tcp() {
        let mut joining = Joining::new(START);
        assert_eq!(joining.on_time(START), None);
        let _taken = joining.on_datagram(START, Ok(offer(1)), |_| true);
        let asked_at = START.after_ns(GROUP_WITHIN_NS - 1);
        assert_eq!(joining.on_time(asked_at), None);
        joining.on_group(asked_at);
        let late = asked_at.after_ns(ANSWER_WITHIN_NS);
        assert_eq!(joining.due(), late);
        assert_eq!(joining.on_time(late), Some(Reason::NoAnswer));
        assert_eq!(joining.on_joined(), AtAnswer::Reset, "too late");
    }

    //= sockets-protocol.md: join.6
    #[test]
    fn a_group_that_dies_in_between_leaves_the_connection_to_tcp() {
        let mut joining = Joining::new(START);
        let _taken = joining.on_datagram(START, Ok(offer(1)), |_| true);
        joining.on_group(START);
        assert_eq!(joining.on_lost(), Some(Reason::NoGroup));
        assert_eq!(joining.on_lost(), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Input {
        Offer(u64, bool),
        Malformed(u8),
        Group,
        Joined,
        Refused,
        Lost,
        Wait(u64),
    }

    fn input() -> impl Strategy<Value = Input> {
        prop_oneof![
            (1..4_u64, any::<bool>()).prop_map(|(token, ours)| Input::Offer(token, ours)),
            any::<u8>().prop_map(Input::Malformed),
            Just(Input::Group),
            Just(Input::Joined),
            Just(Input::Refused),
            Just(Input::Lost),
            (0..12_000_000_000_u64).prop_map(Input::Wait),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order: it is decided once, in the end, and a seal is only written for a join that
        /// was sent, of an offer that is for this connection.
        #[test]
        fn it_is_decided_once(inputs in prop::collection::vec(input(), 0..40)) {
            let (mut joining, mut now) = (Joining::new(START), START);
            let (mut joins, mut decisions) = (0, 0);
            for input in inputs {
                match input {
                    Input::Offer(token, ours) => {
                        match joining.on_datagram(now, Ok(offer(token)), |_| ours) {
                            AtDoor::Take(_) => prop_assert!(ours && decisions == 0),
                            AtDoor::Ignore => {}
                            AtDoor::Leave(_) => prop_assert!(false, "for an offer"),
                        }
                    }
                    Input::Malformed(kind) => {
                        let what = Err(if kind == 0 { Malformed::Version(2) } else { Malformed::Kind(kind) });
                        decisions += u32::from(matches!(joining.on_datagram(now, what, |_| true), AtDoor::Leave(_)));
                    }
                    Input::Group => joins += u32::from(joining.on_group(now).is_some()),
                    Input::Joined => if joining.on_joined() == AtAnswer::Seal {
                        prop_assert_eq!(joins, 1);
                        decisions += 1;
                    },
                    Input::Refused => decisions += u32::from(matches!(joining.on_refused(Refusal::Busy), AtAnswer::Leave(_))),
                    Input::Lost => decisions += u32::from(joining.on_lost().is_some()),
                    Input::Wait(ns) => {
                        now = now.after_ns(ns);
                        decisions += u32::from(joining.on_time(now).is_some());
                    }
                }
                prop_assert!(decisions <= 1 && joins <= 1);
                prop_assert_eq!(joining.due() == Instant::NEVER, decisions == 1);
            }
            // Time alone decides it.
            for _ in 0..3 {
                let due = joining.due();
                if due < Instant::NEVER {
                    decisions += u32::from(joining.on_time(due.max(now)).is_some());
                }
            }
            prop_assert_eq!(decisions, 1);
        }
    }
}
