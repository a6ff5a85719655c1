//! Offers, and the schedule for sending them. An offer is a datagram in which the accepting side
//! names its endpoint to the connecting side.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use delivery::Instant;

use crate::wire::{Incarnation, MAGIC, Malformed, OfferToken, Reader, VERSION};

/// The datagram that the accepting side sends to the peer's rendezvous socket. The UDP port of that
/// socket has the same number as the peer's TCP port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Offer {
    /// Identifies the offer in a Join.
    pub(crate) token: OfferToken,
    /// Identifies this run of the endpoint.
    pub(crate) incarnation: Incarnation,
    /// UDP port of the endpoint, at the address of [`Offer::accepting`].
    pub(crate) port: u16,
    /// The accepting side's address and TCP port, as the accepting side sees them.
    pub(crate) accepting: SocketAddr,
    /// The connecting side's address and TCP port, as the accepting side sees them.
    pub(crate) connecting: SocketAddr,
}

impl Offer {
    pub(crate) fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut out = Vec::with_capacity(OFFER_BYTES);
        out.extend(MAGIC);
        out.push(VERSION);
        out.push(OFFER);
        out.extend(self.port.to_be_bytes());
        out.extend(self.token.0.to_be_bytes());
        out.extend(self.incarnation.0.to_be_bytes());
        for address in [self.accepting, self.connecting] {
            out.extend(to_v6(address.ip()).octets());
            out.extend(address.port().to_be_bytes());
        }
        out.try_into().expect("the lengths above add up to it")
    }

    //= sockets-protocol.md: offer.1, version.1
    /// Decodes an offer.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        reader.preamble()?;
        let kind = reader.u8()?;
        if kind != OFFER {
            return Err(Malformed::Kind(kind));
        }
        let port = reader.u16()?;
        let (token, incarnation) = (reader.token()?, reader.incarnation()?);
        let mut address = || -> Result<SocketAddr, Malformed> {
            let ip = Ipv6Addr::from(reader.take::<16>()?).to_canonical();
            Ok(SocketAddr::new(ip, reader.u16()?))
        };
        let (accepting, connecting) = (address()?, address()?);
        reader.finish()?;
        if [port, accepting.port(), connecting.port()].contains(&0) {
            return Err(Malformed::Zero);
        }
        Ok(Self { token, incarnation, port, accepting, connecting })
    }

    //= sockets-protocol.md: offer.2
    /// Returns true if the offer belongs to the connecting side's connection from `local` to
    /// `peer`, and `from` is the peer's address.
    pub(crate) fn is_for(&self, local: SocketAddr, peer: SocketAddr, from: IpAddr) -> bool {
        let same = |one: SocketAddr, other: SocketAddr| {
            one.ip().to_canonical() == other.ip().to_canonical() && one.port() == other.port()
        };
        same(self.connecting, local)
            && same(self.accepting, peer)
            && from.to_canonical() == peer.ip().to_canonical()
    }
}

/// The schedule of an offer. The accepting side repeats the offer until the connecting side takes
/// it or the offer expires.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Offering {
    begun: Instant,
    /// The number of scheduled times that have passed.
    sent: usize,
}

/// The next step in the schedule of an offer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OfferStep {
    /// Send the offer.
    Send,
    /// Send nothing until this time.
    Wait(Instant),
    /// The offer has expired.
    Expired,
}

impl Offering {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { begun: now, sent: 0 }
    }

    //= sockets-protocol.md: offer.3, offer.4
    /// Returns the step that is due at `now`. Returns [`OfferStep::Send`] once for each scheduled
    /// time.
    pub(crate) fn step(&mut self, now: Instant) -> OfferStep {
        if now >= self.begun.after_ns(OFFER_HOLDS_NS) {
            return OfferStep::Expired;
        }
        let Some(&after) = OFFERS_AFTER_NS.get(self.sent) else {
            return OfferStep::Wait(self.begun.after_ns(OFFER_HOLDS_NS));
        };
        let due = self.begun.after_ns(after);
        if due > now {
            return OfferStep::Wait(due);
        }
        // If the thread was late and several times have passed, send the offer once for all of
        // them.
        while OFFERS_AFTER_NS.get(self.sent).is_some_and(|after| self.begun.after_ns(*after) <= now)
        {
            self.sent += 1;
        }
        OfferStep::Send
    }
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Length of an offer in bytes.
pub(crate) const OFFER_BYTES: usize = 68;

/// The kind of this datagram.
const OFFER: u8 = 1;

/// The times at which the accepting side sends an offer, in nanoseconds after the first. There are
/// two reasons to repeat an offer: a datagram may be lost, and the peer may open its rendezvous
/// socket later, when it decides to move the connection. The intervals are shorter than
/// [`RENDEZVOUS_OPEN_NS`], so that every open rendezvous socket receives an offer.
const OFFERS_AFTER_NS: [u64; 10] = [
    0,
    1_000_000,
    4_000_000,
    16_000_000,
    64_000_000,
    190_000_000,
    380_000_000,
    570_000_000,
    760_000_000,
    950_000_000,
];

/// The time for which a rendezvous socket is open, in nanoseconds. The time is long, because each
/// side begins the move when it decides that the move pays. On a busy host, one side may decide
/// some hundred milliseconds later than the other.
pub(crate) const RENDEZVOUS_OPEN_NS: u64 = 1_000_000_000;

/// The time for which an offer is valid, in nanoseconds. It covers the time for which a rendezvous
/// socket is open, and the time to establish an edge connection that loses frames.
pub(crate) const OFFER_HOLDS_NS: u64 = 1_000_000_000;

/// Decodes any bytes as an offer, for fuzzing. Checks that decoding does not panic, and that an
/// accepted offer survives encoding and decoding.
pub fn fuzz_offer(bytes: &[u8]) {
    if let Ok(offer) = Offer::decode(bytes) {
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), 1..=u16::MAX)
            .prop_map(|(ip, port)| SocketAddr::new(ip.to_canonical(), port))
    }

    fn offer() -> impl Strategy<Value = Offer> {
        (1..=u64::MAX, 1..=u128::MAX, 1..=u16::MAX, address(), address()).prop_map(
            |(token, incarnation, port, accepting, connecting)| Offer {
                token: OfferToken(token),
                incarnation: Incarnation(incarnation),
                port,
                accepting,
                connecting,
            },
        )
    }

    fn of(accepting: &str, connecting: &str) -> Offer {
        Offer {
            token: OfferToken(1),
            incarnation: Incarnation(2),
            port: 3,
            accepting: accepting.parse().expect("an address"),
            connecting: connecting.parse().expect("an address"),
        }
    }

    //= sockets-protocol.md: offer.2
    #[test]
    fn an_offer_for_another_connection_or_from_another_address_is_ignored() {
        let offer = of("10.0.0.1:80", "10.0.0.2:4000");
        let is_for = |local: &str, peer: &str, from: &str| {
            let parse = |text: &str| text.parse().expect("an address");
            offer.is_for(parse(local), parse(peer), from.parse().expect("an address"))
        };
        assert!(is_for("10.0.0.2:4000", "10.0.0.1:80", "10.0.0.1"));
        assert!(is_for("[::ffff:10.0.0.2]:4000", "[::ffff:10.0.0.1]:80", "10.0.0.1"), "mapped");
        assert!(!is_for("10.0.0.2:4000", "10.0.0.1:80", "10.0.0.3"), "from elsewhere");
        assert!(!is_for("10.0.0.2:4001", "10.0.0.1:80", "10.0.0.1"), "another connection");
        assert!(!is_for("10.0.0.2:4000", "10.0.0.1:81", "10.0.0.1"), "another service");
        assert!(!is_for("10.0.0.3:4000", "10.0.0.1:80", "10.0.0.1"), "translated addresses");
    }

    //= sockets-protocol.md: version.1
    #[test]
    fn an_offer_of_another_version_is_recognized() {
        let mut bytes = of("10.0.0.1:80", "10.0.0.2:4000").encode();
        bytes[4] = 9;
        assert_eq!(Offer::decode(&bytes), Err(Malformed::Version(9)));
        assert_eq!(Offer::decode(&bytes[..5]), Err(Malformed::Version(9)));
        bytes[0] = 0;
        assert_eq!(Offer::decode(&bytes), Err(Malformed::Magic));
    }

    //= sockets-protocol.md: offer.3, offer.4
    #[test]
    fn an_offer_is_sent_ten_times_to_reach_each_open_socket_and_then_expires() {
        let start = Instant(1_000);
        let (mut offering, mut now, mut sent) = (Offering::new(start), start, Vec::new());
        loop {
            match offering.step(now) {
                OfferStep::Send => sent.push(now.since_ns(start) / 1_000_000),
                OfferStep::Wait(until) => now = until,
                OfferStep::Expired => break,
            }
        }
        assert_eq!(sent, [0, 1, 4, 16, 64, 190, 380, 570, 760, 950]);
        let open_ms = RENDEZVOUS_OPEN_NS / 1_000_000;
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] < open_ms));
        assert_eq!(now.since_ns(start), OFFER_HOLDS_NS);
    }

    proptest! {
        //= sockets-protocol.md: offer.1
        #[test]
        fn an_offer_is_decoded_as_it_was_encoded(offer in offer()) {
            prop_assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }

        //= sockets-protocol.md: offer.1
        #[test]
        fn an_offer_of_another_length_is_refused(offer in offer(), length in 5..OFFER_BYTES) {
            let mut bytes = offer.encode().to_vec();
            bytes.push(0);
            prop_assert!(Offer::decode(&bytes).is_err());
            prop_assert!(Offer::decode(&bytes[..length]).is_err());
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            fuzz_offer(&bytes);
        }

        #[test]
        fn an_offering_always_makes_progress(
            steps in prop::collection::vec(0..400_000_000_u64, 1..20),
        ) {
            let (mut offering, mut now) = (Offering::new(Instant(0)), Instant(0));
            for step in steps {
                now = now.after_ns(step);
                let mut next = offering.step(now);
                if next == OfferStep::Send {
                    next = offering.step(now);
                    prop_assert!(next != OfferStep::Send, "once for each time");
                }
                match next {
                    OfferStep::Wait(until) => prop_assert!(until > now),
                    OfferStep::Expired => prop_assert!(now.0 >= OFFER_HOLDS_NS),
                    OfferStep::Send => {}
                }
            }
        }
    }
}
