//! Decides which requests two queue pairs send and accept, after their programs have exchanged the
//! queue pair numbers (protocol.md §10.2).

use std::net::IpAddr;

use verbs::QueuePairType;

use super::greeting::{Greeting, QueuePairPlace, Refusal};

/// The identity of a searching queue pair, and the properties that it expects of its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) kind: QueuePairType,
    pub(crate) own: QueuePairPlace,
    pub(crate) peer: QueuePairPlace,
    pub(crate) receive_psn: u32,
    /// First packet number that this end uses; `None` until the queue pair is ready to send.
    pub(crate) send_psn: Option<u32>,
}

/// Comparison of the first packet numbers of two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Psns {
    /// Each announced first packet number equals the number that the other end expects.
    Fit,
    /// At least one announced first packet number differs from the number that the other end
    /// expects.
    Differ,
    /// Neither end is ready to send, so neither has announced its first packet number.
    Unknown,
}

/// Decision about a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Judgement {
    /// The request is from the expected peer.
    Accept,
    /// This end does not decide yet. It cannot know yet whether the request comes from the expected
    /// peer, or it first waits for the answer to its own request.
    Hold,
    /// The request is not from the expected peer.
    Refuse(Refusal),
}

impl Expected {
    //= protocol.md: verbs.2
    /// Returns whether this end sends a request at once. If not, it waits for [`WAIT_NS`] before
    /// its first request.
    pub(crate) fn asks_first(&self) -> bool {
        self.own <= self.peer
    }

    //= protocol.md: verbs.4
    /// Returns whether this end decides between two crossing requests. The end that decides accepts
    /// no request while its own request is pending.
    pub(crate) fn decides(&self) -> bool {
        self.own < self.peer
    }

    /// Returns whether the queue pair is its own peer.
    pub(crate) fn is_own_peer(&self) -> bool {
        self.own == self.peer
    }

    //= protocol.md: verbs.3, verbs.4
    /// Decides about a request from the address `from`. `asks` is true if this end's own request is
    /// pending.
    ///
    /// The caller has verified `from`. The decision ignores the GID in the greeting, because a peer
    /// can claim any GID.
    pub(crate) fn judge(&self, greeting: &Greeting, from: Option<IpAddr>, asks: bool) -> Judgement {
        if !self.is_of_peer(greeting, from) {
            return Judgement::Hold;
        }
        if greeting.kind != self.kind {
            return Judgement::Refuse(Refusal::Another);
        }
        match self.psns(greeting) {
            Psns::Differ => return Judgement::Refuse(Refusal::Another),
            Psns::Unknown => return Judgement::Hold,
            Psns::Fit => {}
        }
        if asks && !self.is_own_peer() && greeting.source >= greeting.destination {
            return Judgement::Hold;
        }
        Judgement::Accept
    }

    //= protocol.md: verbs.3
    /// Returns whether a greeting confirms that a connection leads to the expected peer. The
    /// greeting arrived on that connection, from the address `from`.
    pub(crate) fn confirms(&self, greeting: &Greeting, from: Option<IpAddr>) -> bool {
        self.is_of_peer(greeting, from)
            && greeting.destination.number == self.own.number
            && greeting.kind == self.kind
            && self.psns(greeting) == Psns::Fit
    }

    fn is_of_peer(&self, greeting: &Greeting, from: Option<IpAddr>) -> bool {
        from == Some(self.peer.gid.address()) && greeting.source.number == self.peer.number
    }

    //= protocol.md: verbs.3, verbs.5
    /// Compares the packet numbers. The first number that one end uses must equal the first number
    /// that the other end expects, in both directions.
    pub(crate) fn psns(&self, greeting: &Greeting) -> Psns {
        let compared =
            [(greeting.send_psn, self.receive_psn), (self.send_psn, greeting.receive_psn)];
        let mut known = compared.iter().filter_map(|(sent, expected)| Some((*sent)? == *expected));
        match (known.next(), known.next()) {
            (None, _) => Psns::Unknown,
            (Some(false), _) | (_, Some(false)) => Psns::Differ,
            _ => Psns::Fit,
        }
    }
}

/// Time for which an end that is not ready to send waits before it sends a request, in nanoseconds.
/// Most ends become ready to send within microseconds. After that, the request can contain the
/// end's first packet number.
pub(crate) const RECEIVER_WAIT_NS: u64 = 5_000_000;

/// Time for which the end that does not send the first request waits before it sends one, in
/// nanoseconds. Its request is needed in two cases: the peer waits too, because it knows itself by
/// another GID, or frames of the peer do not reach this end.
pub(crate) const WAIT_NS: u64 = 200_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Gid;

    fn place(number: u32, ip: &str) -> QueuePairPlace {
        QueuePairPlace { number, gid: Gid::of(ip.parse().unwrap()) }
    }

    fn expected(own: QueuePairPlace, peer: QueuePairPlace) -> Expected {
        let kind = QueuePairType::Reliable;
        Expected { kind, own, peer, receive_psn: 7, send_psn: Some(9) }
    }

    /// Returns the greeting that the peer of `of` sends.
    fn greeting(of: Expected) -> Greeting {
        let Expected { kind, own, peer, receive_psn, send_psn } = of;
        let (destination, source) = (own, peer);
        let psn = send_psn.unwrap_or(9);
        Greeting {
            kind,
            not_ready_timer: 12,
            life: 1,
            destination,
            source,
            receive_psn: psn,
            send_psn: Some(receive_psn),
        }
    }

    const A: &str = "10.0.0.1";
    const B: &str = "10.0.0.2";

    //= protocol.md: verbs.2
    #[test]
    fn one_of_two_ends_sends_the_first_request() {
        for (one, other) in [(place(5, B), place(6, A)), (place(5, A), place(5, B))] {
            assert!(expected(one, other).asks_first());
            assert!(!expected(other, one).asks_first());
        }
        let same = expected(place(5, A), place(5, A));
        assert!(same.asks_first() && same.is_own_peer());
    }

    //= protocol.md: verbs.3
    #[test]
    fn only_expected_peers_are_accepted() {
        let expected = expected(place(6, A), place(5, B));
        let from = Some(B.parse().unwrap());
        let good = greeting(expected);
        let judge = |greeting: Greeting, from| expected.judge(&greeting, from, false);
        assert_eq!(judge(good, from), Judgement::Accept);
        let elsewhere = Greeting { source: place(5, "10.0.0.3"), ..good };
        assert_eq!(judge(elsewhere, from), Judgement::Accept, "it comes from where it is expected");
        for other in [None, Some("10.0.0.3".parse().unwrap())] {
            assert_eq!(judge(elsewhere, other), Judgement::Hold);
            assert_eq!(judge(good, other), Judgement::Hold, "the GID is only a claim");
        }
        assert_eq!(judge(Greeting { source: place(4, B), ..good }, from), Judgement::Hold);
        let another = Judgement::Refuse(Refusal::Another);
        let kind = QueuePairType::Unreliable;
        assert_eq!(judge(Greeting { kind, ..good }, from), another);
        assert_eq!(judge(Greeting { receive_psn: 8, ..good }, from), another);
        assert_eq!(judge(Greeting { send_psn: Some(8), ..good }, from), another);
        assert_eq!(judge(Greeting { send_psn: None, ..good }, from), Judgement::Accept);
        let not_ready_to_send = Expected { send_psn: None, ..expected };
        let unknown = Greeting { receive_psn: 8, ..good };
        assert_eq!(not_ready_to_send.judge(&unknown, from, false), Judgement::Accept);
        let unsaid = Greeting { send_psn: None, ..unknown };
        assert_eq!(not_ready_to_send.judge(&unsaid, from, false), Judgement::Hold);
        assert_eq!(judge(unsaid, from), another);
    }

    //= protocol.md: verbs.3
    #[test]
    fn only_the_peer_confirms_a_connection() {
        let expected = expected(place(6, A), place(5, B));
        let from = Some(B.parse().unwrap());
        let good = greeting(expected);
        assert!(expected.confirms(&good, from));
        assert!(!expected.confirms(&good, None));
        let lies = [
            Greeting { source: place(4, B), ..good },
            Greeting { destination: place(7, A), ..good },
            Greeting { kind: QueuePairType::Unreliable, ..good },
            Greeting { receive_psn: 8, ..good },
            Greeting { send_psn: Some(8), ..good },
        ];
        for lie in lies {
            assert!(!expected.confirms(&lie, from), "{lie:?}");
        }
    }

    //= protocol.md: verbs.4
    #[test]
    fn one_of_two_crossing_requests_is_accepted() {
        let (a, b) = (place(5, A), place(6, B));
        let (at_a, at_b) = (expected(a, b), expected(b, a));
        let [from_a, from_b] = [A, B].map(|ip| Some(ip.parse().unwrap()));
        assert_eq!(at_b.judge(&greeting(at_b), from_a, true), Judgement::Accept);
        assert_eq!(at_a.judge(&greeting(at_a), from_b, true), Judgement::Hold);
        assert_eq!(at_a.judge(&greeting(at_a), from_b, false), Judgement::Accept);
        let itself = expected(a, a);
        assert_eq!(itself.judge(&greeting(itself), from_a, true), Judgement::Accept);
    }
}
