//! Peers that ask for connections: who listens, who is let in, and how much strangers may cause.

use std::collections::{HashMap, HashSet};

use delivery::{CookieError, CookieJar, EndpointCounters, Instant, RateLimiter};
use wire_edge::{COOKIE_BYTES, PeerAddr, RejectReason};

use crate::hello::{Hello, HelloKey};
use crate::per_host::PerHost;

/// What is remembered of peers that ask for connections, until these are confirmed; and how much is done for strangers,
/// of which nothing is remembered.
///
/// Each Hello belongs to one connection at most. No host has more requests or unconfirmed connections than
/// its share.
#[derive(Debug)]
pub(crate) struct Reception {
    listeners: HashSet<u32>,
    cookies: CookieJar,
    /// Connections by what is the same in each Hello that asks for them, so that a repeated one finds
    /// them, from whichever of the peer's addresses.
    hellos: HashMap<HelloKey, u32>,
    /// How many requests of each host the application has not answered.
    requests: PerHost,
    requests_max: u32,
    /// How many connections of each host are accepted here and not confirmed by a frame of the peer.
    unconfirmed: PerHost,
    /// Connections that there may be.
    connections_max: u32,
    /// Time to confirm one while others wait.
    confirm_ns: u64,
    answers: RateLimiter,
    resets: RateLimiter,
    /// Reports without proof that are looked at: each costs a look at every connection.
    hearsay: RateLimiter,
}

/// What becomes of a Hello.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admission {
    /// There is room for a new connection, if the endpoint has room for one at all.
    Welcome,
    /// It belongs to the connection with this index.
    Repeated(u32),
    /// It must come again, with this cookie.
    Prove([u8; COOKIE_BYTES]),
    /// It is refused.
    Refused(RejectReason),
    /// It is not answered.
    Ignored,
}

impl Reception {
    /// Without listeners and without requests. So many requests may wait for the application; the endpoint has so many
    /// connections at most, and gives peers so long to confirm theirs while others wait.
    pub(crate) fn new(
        cookie_key: [u8; 16],
        requests_max: u32,
        connections_max: u32,
        confirm_ns: u64,
    ) -> Self {
        Self {
            listeners: HashSet::new(),
            cookies: CookieJar::new(cookie_key),
            hellos: HashMap::new(),
            requests: PerHost::default(),
            requests_max,
            unconfirmed: PerHost::default(),
            connections_max,
            confirm_ns,
            // A storm of connections from a cluster, four times 10 000 hosts within a second; at 3 µs for
            // each answer, an eighth of a processor.
            answers: RateLimiter::new(40_000, 8000),
            resets: RateLimiter::new(1000, 100),
            hearsay: RateLimiter::new(10, 10),
        }
    }

    /// Requests for connections to `service` are passed on from now on.
    pub(crate) fn listen(&mut self, service: u32) {
        self.listeners.insert(service);
    }

    /// Requests for connections to `service` are rejected from now on.
    pub(crate) fn unlisten(&mut self, service: u32) {
        self.listeners.remove(&service);
    }

    //= protocol.md: set-up.2, set-up.3, set-up.4, set-up.5, set-up.7, set-up.8, cookie.1, amplify.1
    /// What becomes of a Hello from this address.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        counters: &mut EndpointCounters,
        from: PeerAddr,
        hello: &Hello<'_>,
    ) -> Admission {
        let (source, service) = (hello.source, hello.parameters.service);
        let cookie = self.cookies.verify(now, from, source, service, &hello.cookie);
        // Who shows a cookie is known to be there; of strangers only so many are answered.
        if cookie.is_err() && !self.answers.allow(now) {
            counters.rate_limited += 1;
            return Admission::Ignored;
        }
        if !self.listeners.contains(&service) {
            return Admission::Refused(RejectReason::NoListener);
        }
        if let Err(error) = cookie {
            let has_cookie = hello.cookie != [0; COOKIE_BYTES];
            match error {
                CookieError::Expired => counters.cookies_expired += 1,
                CookieError::Forged => counters.cookies_forged += u64::from(has_cookie),
            }
            counters.retries_sent += 1;
            return Admission::Prove(self.cookies.issue(now, from, source, service));
        }
        if let Some(&index) = self.hellos.get(&hello.key()) {
            return Admission::Repeated(index);
        }
        if self.unconfirmed.of(from) >= self.unconfirmed_share() {
            // It may ask again: each that it confirms makes room.
            counters.rate_limited += 1;
            return Admission::Ignored;
        }
        if !self.has_room_for_request(from) {
            counters.handshakes_refused += 1;
            return Admission::Refused(RejectReason::ConnectionLimit);
        }
        Admission::Welcome
    }

    //= protocol.md: phase.1
    /// Whether one more request of the host at `from` may wait: however many it makes, others have room.
    fn has_room_for_request(&self, from: PeerAddr) -> bool {
        let share = (self.requests_max / HOST_SHARE).max(1);
        self.requests.all() < self.requests_max && self.requests.of(from) < share
    }

    //= protocol.md: phase.2
    /// Connections that one host may leave unconfirmed at a time.
    fn unconfirmed_share(&self) -> u32 {
        (self.connections_max / HOST_SHARE).max(1)
    }

    /// A Hello has become the request with this index, which waits for the application.
    pub(crate) fn on_requested(&mut self, from: PeerAddr, key: HelloKey, index: u32) {
        self.hellos.insert(key, index);
        self.requests.add(from);
    }

    /// The application has accepted a request of the peer.
    pub(crate) fn on_accepted(&mut self, peer: PeerAddr) {
        self.requests.remove(peer);
        self.unconfirmed.add(peer);
    }

    /// A request of the peer has ended: the application has refused it, or it gave way.
    pub(crate) fn on_request_over(&mut self, peer: PeerAddr) {
        self.requests.remove(peer);
    }

    /// The peer has confirmed a connection that was accepted, or that has ended.
    pub(crate) fn on_confirmed(&mut self, peer: PeerAddr) {
        self.unconfirmed.remove(peer);
    }

    /// The connection of a Hello has ended: the same Hello would ask for another.
    pub(crate) fn forget(&mut self, key: &HelloKey) {
        self.hellos.remove(key);
    }

    /// Whether the host at this address has requests that wait.
    pub(crate) fn has_requests_of(&self, peer: PeerAddr) -> bool {
        self.requests.of(peer) > 0
    }

    //= protocol.md: phase.3
    /// Whether a connection of the peer that was accepted has been unconfirmed for so long that others
    /// come first: requests that wait for the application, or connections to be. So many are in use.
    pub(crate) fn is_overdue(
        &self,
        now: Instant,
        peer: PeerAddr,
        accepted_at: Instant,
        connections: u32,
    ) -> bool {
        let limit = self.connections_max;
        let is_pressed = self.requests.all() > 0
            || self.unconfirmed.of(peer) > self.unconfirmed_share() / 2
            || connections > limit - limit / HOST_SHARE;
        is_pressed && accepted_at.after_ns(self.confirm_ns) <= now
    }

    /// Whether a stranger may be answered now.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        self.answers.allow(now)
    }

    /// Whether a stranger may be sent a reset now.
    pub(crate) fn may_reset(&mut self, now: Instant) -> bool {
        self.resets.allow(now)
    }

    /// Whether a report without proof may be looked at now.
    pub(crate) fn may_heed_hearsay(&mut self, now: Instant) -> bool {
        self.hearsay.allow(now)
    }
}

/// One host's requests that wait are at most this part of all, and its unconfirmed connections: four must
/// join to shut others out.
const HOST_SHARE: u32 = 4;

/// Time to confirm a connection while others wait, in nanoseconds: four Accepts, of which three may be lost,
/// and round trips of a continent.
pub(crate) const CONFIRM_NS: u64 = 200_000_000;

#[cfg(test)]
mod tests {
    use wire_edge::{ConnectionId, Epoch, Features, MessageNumber, Parameters};

    use super::*;

    const SERVICE: u32 = 7;
    const NOW: Instant = Instant(1_000_000);

    /// For 8 requests, 2 of a host, and 16 connections, 4 of a host.
    fn reception() -> (Reception, EndpointCounters) {
        let mut reception = Reception::new([5; 16], 8, 16, CONFIRM_NS);
        reception.listen(SERVICE);
        (reception, EndpointCounters::default())
    }

    fn hello(source: u32, cookie: [u8; COOKIE_BYTES]) -> Hello<'static> {
        let parameters = Parameters {
            incarnation: 1,
            features: Features::NONE,
            epoch: Epoch(0),
            links_max: 1,
            frame_bytes_max: 1472,
            read_depth: 0,
            operation_window: 1,
            order_pool_bytes: 0,
            receive_buffer_bytes: 0,
            ack_delay_max_ns: 0,
            receive_credit: MessageNumber(0),
            service: SERVICE,
        };
        Hello { source: ConnectionId(source), parameters, cookie, private_data: &[] }
    }

    fn host(last: u8) -> PeerAddr {
        PeerAddr::from(core::net::SocketAddr::from(([10, 0, 0, last], 1)))
    }

    /// What becomes of a Hello that has shown its cookie; if it is welcome, it is a request then.
    fn ask(reception: &mut Reception, from: PeerAddr, source: u32) -> Admission {
        let mut counters = EndpointCounters::default();
        let Admission::Prove(cookie) =
            reception.admit(NOW, &mut counters, from, &hello(source, [0; COOKIE_BYTES]))
        else {
            panic!("a stranger is let in");
        };
        let hello = hello(source, cookie);
        let admission = reception.admit(NOW, &mut counters, from, &hello);
        if admission == Admission::Welcome {
            reception.on_requested(from, hello.key(), source);
        }
        admission
    }

    #[test]
    fn no_peer_is_let_in_without_a_cookie_of_its_own_address() {
        let (mut reception, mut counters) = reception();
        let first = reception.admit(NOW, &mut counters, host(1), &hello(1, [0; COOKIE_BYTES]));
        let Admission::Prove(cookie) = first else { panic!("{first:?}") };
        let stolen = reception.admit(NOW, &mut counters, host(2), &hello(1, cookie));
        assert!(matches!(stolen, Admission::Prove(_)), "{stolen:?}");
        assert_eq!((counters.retries_sent, counters.cookies_forged), (2, 1));
        let own = reception.admit(NOW, &mut counters, host(1), &hello(1, cookie));
        assert_eq!(own, Admission::Welcome);
        reception.unlisten(SERVICE);
        let own = reception.admit(NOW, &mut counters, host(1), &hello(1, cookie));
        assert_eq!(own, Admission::Refused(RejectReason::NoListener));
    }

    #[test]
    fn a_repeated_hello_finds_its_connection_until_that_is_over() {
        let (mut reception, _) = reception();
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Welcome);
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Repeated(3));
        // From another address of the peer it is the same.
        assert_eq!(ask(&mut reception, host(2), 3), Admission::Repeated(3));
        reception.on_request_over(host(1));
        reception.forget(&hello(3, [0; COOKIE_BYTES]).key());
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Welcome);
    }

    //= protocol.md: phase.1, phase.2
    #[test]
    fn a_host_has_its_share_of_requests_and_of_unconfirmed_connections() {
        let (mut reception, _) = reception();
        for source in 0..4 {
            assert_eq!(ask(&mut reception, host(1), source), Admission::Welcome);
            if source % 2 == 1 {
                let full = Admission::Refused(RejectReason::ConnectionLimit);
                assert_eq!(ask(&mut reception, host(1), 9), full);
                reception.on_accepted(host(1));
                reception.on_accepted(host(1));
            }
        }
        assert_eq!(ask(&mut reception, host(1), 9), Admission::Ignored);
        assert_eq!(ask(&mut reception, host(2), 10), Admission::Welcome);
        reception.on_confirmed(host(1));
        assert_eq!(ask(&mut reception, host(1), 9), Admission::Welcome);
    }

    //= protocol.md: phase.3
    #[test]
    fn a_peer_that_does_not_confirm_gives_way_only_to_others_that_wait() {
        let (mut reception, _) = reception();
        assert_eq!(ask(&mut reception, host(1), 0), Admission::Welcome);
        reception.on_accepted(host(1));
        let late = NOW.after_ns(CONFIRM_NS);
        assert!(!reception.is_overdue(late, host(1), NOW, 12));
        assert!(reception.is_overdue(late, host(1), NOW, 13));
        assert_eq!(ask(&mut reception, host(2), 1), Admission::Welcome);
        assert!(reception.has_requests_of(host(2)) && !reception.has_requests_of(host(1)));
        assert!(reception.is_overdue(late, host(1), NOW, 2));
        assert!(!reception.is_overdue(late, host(1), NOW.after_ns(1), 2));
    }

    //= protocol.md: phase.3
    #[test]
    fn an_endpoint_may_give_its_peers_more_time_to_confirm() {
        let mut reception = Reception::new([5; 16], 8, 16, 3 * CONFIRM_NS);
        let late = NOW.after_ns(3 * CONFIRM_NS);
        reception.on_requested(host(1), hello(1, [0; COOKIE_BYTES]).key(), 1);
        assert!(!reception.is_overdue(NOW.after_ns(3 * CONFIRM_NS - 1), host(2), NOW, 12));
        assert!(reception.is_overdue(late, host(2), NOW, 12));
    }
}
