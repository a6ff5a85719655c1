//! Records the addresses of peers at which this end has recently asked for a sign of life, and
//! which of these peers answered.
//!
//! Queue pairs ask often, and many of them have the same peer. So one queue pair asks on behalf of
//! all queue pairs with this peer. If it finds that the peer is gone, the engine informs all of
//! them (protocol.md: report.6), because networks do not report a refusal to each queue pair.

use std::collections::HashMap;

use delivery::{Instant, LinkId};
use wire_edge::PeerAddr;

/// A link of this end, and the peer's address on it.
type PeerLink = (LinkId, PeerAddr);

/// The addresses at which idle connections ask for a sign of life.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    places: HashMap<PeerLink, Watched>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// Time of the oldest question that the peer has not answered.
    asked_at: Option<Instant>,
    /// Time at which the peer last answered a question.
    answered_at: Option<Instant>,
}

/// What a connection does if its peer was silent for a while.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Question {
    /// The connection asks.
    Ask,
    /// Another connection has asked and waits for the answer, or has received an answer recently.
    /// This connection decides again at this time.
    Await(Instant),
}

impl Watch {
    //= protocol.md: silence.4
    /// Decides whether a connection with links to these addresses asks now. If another connection
    /// has received an answer, the answer is valid for `lasts_ns` nanoseconds for this connection,
    /// too.
    pub(crate) fn judge(
        &self,
        now: Instant,
        places: impl Iterator<Item = PeerLink> + Clone,
        lasts_ns: u64,
    ) -> Question {
        let known = |place| self.places.get(&place).copied().unwrap_or_default();
        let answered = |place| known(place).answered_at.map(|at: Instant| at.after_ns(lasts_ns));
        let answered_until = places.clone().map(|place| answered(place).unwrap_or_default()).min();
        if let Some(until) = answered_until.filter(|&until| until > now) {
            return Question::Await(until);
        }
        let asked_at = places.filter_map(|place| known(place).asked_at).max();
        match asked_at.map(|at| at.after_ns(ANSWER_WAIT_NS)) {
            Some(until) if until > now => Question::Await(until),
            _ => Question::Ask,
        }
    }

    /// Records that a connection asks at `place`.
    pub(crate) fn on_asked(&mut self, now: Instant, place: PeerLink) {
        let is_new = !self.places.contains_key(&place);
        if is_new && self.places.len() == self.places.capacity() {
            // Drop places at which no connection has asked recently.
            self.places.retain(|_, watched| {
                let last = watched.asked_at.max(watched.answered_at).unwrap_or_default();
                last.after_ns(FORGET_NS) > now
            });
        }
        self.places.entry(place).or_default().asked_at.get_or_insert(now);
    }

    /// Records that the peer at `place` has answered the question of a connection.
    pub(crate) fn on_answered(&mut self, now: Instant, place: PeerLink) {
        if let Some(watched) = self.places.get_mut(&place) {
            *watched = Watched { asked_at: None, answered_at: Some(now) };
        }
    }
}

/// How long other connections wait for the answer to a question, in nanoseconds. In this time, a
/// question can cross a continent and its answer can return. The time is also enough for the engine
/// to detect that an address has no listener.
const ANSWER_WAIT_NS: u64 = 100_000_000;

/// How long a place without questions stays in the list, in nanoseconds.
const FORGET_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS_NS: u64 = 500_000_000;
    const START: Instant = Instant(1_000_000_000);

    fn place(link: u8) -> PeerLink {
        (LinkId(link), PeerAddr::default())
    }

    fn judge(watch: &Watch, now: Instant, links: u8) -> Question {
        watch.judge(now, (0..links).map(place), LASTS_NS)
    }

    //= protocol.md: silence.4
    #[test]
    fn one_connection_asks_for_all_and_all_ask_after_an_unanswered_question() {
        let mut watch = Watch::default();
        assert_eq!(judge(&watch, START, 1), Question::Ask);
        watch.on_asked(START, place(0));
        let until = START.after_ns(ANSWER_WAIT_NS);
        assert_eq!(judge(&watch, START, 1), Question::Await(until));
        assert_eq!(judge(&watch, until, 1), Question::Ask);
        watch.on_asked(until, place(0));
        assert_eq!(judge(&watch, until, 1), Question::Ask, "no connection waits for the second");
        watch.on_answered(until, place(0));
        assert_eq!(judge(&watch, until, 1), Question::Await(until.after_ns(LASTS_NS)));
        assert_eq!(judge(&watch, until, 2), Question::Ask, "nothing is known of the other link");
        assert_eq!(judge(&watch, until.after_ns(LASTS_NS), 1), Question::Ask);
    }

    #[test]
    fn unused_addresses_are_forgotten() {
        let mut watch = Watch::default();
        for index in 0..100_000_u32 {
            let peer = PeerAddr::shared_memory(1, index.into());
            watch.on_asked(START.after_ns(u64::from(index) * 1_000_000_000), (LinkId(0), peer));
        }
        assert!(watch.places.len() < 1000, "{} places", watch.places.len());
    }
}
