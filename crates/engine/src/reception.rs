//! Requests for connections: the services that listen, the admission of Hellos, and limits for
//! replies to strangers. A stranger is a host that has not returned a cookie.

use std::collections::{HashMap, HashSet};

use delivery::{CookieError, CookieJar, EndpointCounters, Instant, RateLimiter};
use wire_edge::{COOKIE_BYTES, PeerAddr, RejectReason};

use crate::hello::{Hello, HelloKey};
use crate::per_host::PerHost;

/// State of connection requests from their arrival until the peer has confirmed the connection, and
/// rate limits for strangers. The endpoint stores nothing about strangers.
///
/// Each Hello belongs to at most one connection. The numbers of requests and of unconfirmed
/// connections are limited for each host.
#[derive(Debug)]
pub(crate) struct Reception {
    listeners: HashSet<u32>,
    cookies: CookieJar,
    /// Connections by the fields that all repetitions of a Hello have in common. With this map, a
    /// repeated Hello finds its connection, even if the peer sent it from another address.
    hellos: HashMap<HelloKey, u32>,
    /// For each host, the number of its requests that the application has not answered.
    requests: PerHost,
    requests_max: u32,
    /// For each host, the number of its connections that this end accepted and the host has not
    /// confirmed yet.
    unconfirmed: PerHost,
    /// Maximum number of connections.
    connections_max: u32,
    /// How long a peer has to confirm a connection while other requests wait, in nanoseconds.
    confirm_ns: u64,
    answers: RateLimiter,
    resets: RateLimiter,
    /// Limits how often this end handles reports of the network that quote no frame of this end.
    /// Each such report visits every connection.
    hearsay: RateLimiter,
}

/// The decision about a Hello.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Admission {
    /// The Hello is admitted, and becomes a request if the endpoint has room for another
    /// connection.
    Welcome,
    /// The Hello repeats the Hello of the connection with this index.
    Repeated(u32),
    /// The Hello is not admitted. The initiator must repeat the Hello with this cookie.
    Prove([u8; COOKIE_BYTES]),
    /// The request is rejected.
    Refused(RejectReason),
    /// The Hello is not answered.
    Ignored,
}

impl Reception {
    /// Creates the state without listeners and requests.
    ///
    /// * At most `requests_max` requests may wait for the application.
    /// * The endpoint has at most `connections_max` connections.
    /// * While other requests wait, a peer has `confirm_ns` nanoseconds to confirm its connection.
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
            // If a cluster of 10 000 hosts connects within a second, 40 000 Hellos arrive. To
            // answer a Hello takes 3 µs, so all answers take an eighth of a processor.
            answers: RateLimiter::new(40_000, 8000),
            resets: RateLimiter::new(1000, 100),
            hearsay: RateLimiter::new(10, 10),
        }
    }

    /// Starts to admit requests for connections to `service`.
    pub(crate) fn listen(&mut self, service: u32) {
        self.listeners.insert(service);
    }

    /// Starts to reject requests for connections to `service`.
    pub(crate) fn unlisten(&mut self, service: u32) {
        self.listeners.remove(&service);
    }

    //= protocol.md: set-up.2, set-up.3, set-up.4, set-up.5, set-up.7, set-up.8, cookie.1, amplify.1
    /// Decides about a Hello from this address.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        counters: &mut EndpointCounters,
        from: PeerAddr,
        hello: &Hello<'_>,
    ) -> Admission {
        let (source, service) = (hello.source, hello.parameters.service);
        let cookie = self.cookies.verify(now, from, source, service, &hello.cookie);
        // A valid cookie proves the source address. Limit the rate of Hellos without a valid
        // cookie.
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
            // Do not reject the request: the host repeats its Hello, and there is room for it as
            // soon as the host confirms one of its connections.
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
    /// Returns whether one more request of the host at `from` may wait. Each host has a limit,
    /// which leaves room for other hosts.
    fn has_room_for_request(&self, from: PeerAddr) -> bool {
        let share = (self.requests_max / HOST_SHARE).max(1);
        self.requests.all() < self.requests_max && self.requests.of(from) < share
    }

    //= protocol.md: phase.2
    /// Returns the maximum number of unconfirmed connections of one host.
    fn unconfirmed_share(&self) -> u32 {
        (self.connections_max / HOST_SHARE).max(1)
    }

    /// Records that a Hello became a request, which waits for the application. `index` is the index
    /// of the connection.
    pub(crate) fn on_requested(&mut self, from: PeerAddr, key: HelloKey, index: u32) {
        self.hellos.insert(key, index);
        self.requests.add(from);
    }

    /// Records that the application accepted a request of the peer.
    pub(crate) fn on_accepted(&mut self, peer: PeerAddr) {
        self.requests.remove(peer);
        self.unconfirmed.add(peer);
    }

    /// Records the end of a request of the peer: the application rejected the request, or the
    /// endpoint ended it to make room for others.
    pub(crate) fn on_request_over(&mut self, peer: PeerAddr) {
        self.requests.remove(peer);
    }

    /// Records that the peer confirmed an accepted connection, or that the connection ended
    /// unconfirmed.
    pub(crate) fn on_confirmed(&mut self, peer: PeerAddr) {
        self.unconfirmed.remove(peer);
    }

    /// Removes the Hello of a connection that has ended. After that, the same Hello would request
    /// another connection.
    pub(crate) fn forget(&mut self, key: &HelloKey) {
        self.hellos.remove(key);
    }

    /// Returns whether requests of the host at this address are waiting.
    pub(crate) fn has_requests_of(&self, peer: PeerAddr) -> bool {
        self.requests.of(peer) > 0
    }

    //= protocol.md: phase.3
    /// Returns whether an accepted connection must end, because the peer has not confirmed it in
    /// time, and because the endpoint needs the room for other requests or for future connections.
    /// `connections` is the number of connections in use.
    pub(crate) fn is_overdue(
        &self,
        now: Instant,
        peer: PeerAddr,
        accepted_at: Instant,
        connections: u32,
    ) -> bool {
        let limit = self.connections_max;
        let is_room_scarce = self.requests.all() > 0
            || self.unconfirmed.of(peer) > self.unconfirmed_share() / 2
            || connections > limit - limit / HOST_SHARE;
        is_room_scarce && accepted_at.after_ns(self.confirm_ns) <= now
    }

    /// Returns whether the rate limit allows an answer to a stranger now.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        self.answers.allow(now)
    }

    /// Returns whether the rate limit allows a Reset now.
    pub(crate) fn may_reset(&mut self, now: Instant) -> bool {
        self.resets.allow(now)
    }

    /// Returns whether this end may now handle a network report in which no frame of this end is
    /// quoted.
    pub(crate) fn may_heed_hearsay(&mut self, now: Instant) -> bool {
        self.hearsay.allow(now)
    }
}

/// One host may have at most this fraction, one in four, of all waiting requests, and of all
/// unconfirmed connections. Therefore a single host cannot shut out other hosts; four hosts
/// together can.
const HOST_SHARE: u32 = 4;

/// How long a peer has to confirm a connection while other requests wait, in nanoseconds. If the
/// round trip crosses a continent, this end can send four Accepts in this time. So the connection
/// is confirmed even if three of them are lost.
pub(crate) const CONFIRM_NS: u64 = 200_000_000;

#[cfg(test)]
mod tests {
    use wire_edge::{ConnectionId, Epoch, Features, MessageNumber, Parameters};

    use super::*;

    const SERVICE: u32 = 7;
    const NOW: Instant = Instant(1_000_000);

    /// Returns a reception with room for 8 requests, 2 of them per host, and for 16 connections, 4
    /// of them unconfirmed per host.
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

    /// Sends a Hello, and repeats the Hello with the cookie from the answer. Returns the decision
    /// about the second Hello. An admitted Hello becomes a request.
    fn ask(reception: &mut Reception, from: PeerAddr, source: u32) -> Admission {
        let mut counters = EndpointCounters::default();
        let Admission::Prove(cookie) =
            reception.admit(NOW, &mut counters, from, &hello(source, [0; COOKIE_BYTES]))
        else {
            panic!("a Hello without a cookie was admitted");
        };
        let hello = hello(source, cookie);
        let admission = reception.admit(NOW, &mut counters, from, &hello);
        if admission == Admission::Welcome {
            reception.on_requested(from, hello.key(), source);
        }
        admission
    }

    #[test]
    fn a_peer_without_a_cookie_of_its_address_is_not_admitted() {
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
    fn a_repeated_hello_finds_its_connection_until_the_connection_ends() {
        let (mut reception, _) = reception();
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Welcome);
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Repeated(3));
        // The peer repeats the Hello from another address.
        assert_eq!(ask(&mut reception, host(2), 3), Admission::Repeated(3));
        reception.on_request_over(host(1));
        reception.forget(&hello(3, [0; COOKIE_BYTES]).key());
        assert_eq!(ask(&mut reception, host(1), 3), Admission::Welcome);
    }

    //= protocol.md: phase.1, phase.2
    #[test]
    fn one_host_gets_only_its_share_of_requests_and_unconfirmed_connections() {
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
    fn an_unconfirmed_connection_is_evicted_only_if_another_peer_waits() {
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
