//! An attempt to set up a connection: the places to try, and the content of the Hello. A place is a
//! link of this end and an address of the peer.

use delivery::{Instant, LinkId};
use wire_edge::{COOKIE_BYTES, PeerAddr};

/// State that only the handshake needs.
#[derive(Debug)]
pub(crate) struct Attempt {
    started_at: Instant,
    service: u32,
    /// Places to try, in order. The first place that answers becomes link 0.
    places: Vec<(LinkId, PeerAddr)>,
    /// Index in `places` of the next place to try.
    next: usize,
    /// Whether the peer has redirected the attempt to another place.
    has_moved: bool,
    cookie: [u8; COOKIE_BYTES],
    private_data: Vec<u8>,
}

impl Attempt {
    /// Creates an attempt to reach `service` at `places`. At a responder, `places` contains only
    /// the place of the initiator.
    pub(crate) fn new(
        now: Instant,
        service: u32,
        places: Vec<(LinkId, PeerAddr)>,
        private_data: Vec<u8>,
    ) -> Self {
        let (next, has_moved, cookie) = (0, false, [0; COOKIE_BYTES]);
        Self { started_at: now, service, places, next, has_moved, cookie, private_data }
    }

    /// Records that the application accepts the request, and stores the private data of the
    /// application.
    pub(crate) fn on_accepted(&mut self, now: Instant, private_data: &[u8]) {
        self.private_data = private_data.to_vec();
        self.started_at = now;
    }

    /// Returns the time at which the attempt began or, at the responder, the time at which the
    /// application accepted the request.
    pub(crate) const fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Returns the number of the service that the initiator requests.
    pub(crate) const fn service(&self) -> u32 {
        self.service
    }

    /// Returns the cookie that the peer sent. The Hello contains this cookie.
    pub(crate) const fn cookie(&self) -> [u8; COOKIE_BYTES] {
        self.cookie
    }

    /// Returns the private data of the application.
    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns all places to try.
    pub(crate) fn places(&self) -> &[(LinkId, PeerAddr)] {
        &self.places
    }

    /// Returns whether `place` is one of the places to try.
    pub(crate) fn asks_at(&self, place: (LinkId, PeerAddr)) -> bool {
        self.places.contains(&place)
    }

    /// Returns the first place to try; `None` if no place is left.
    pub(crate) fn first(&self) -> Option<(LinkId, PeerAddr)> {
        self.places.first().copied()
    }

    /// Returns the place (link and address) to try now; `None` if no place is left. The next call
    /// will return the next place.
    pub(crate) fn poll_place(&mut self) -> Option<(LinkId, PeerAddr)> {
        let place = self.places.get(self.next).copied();
        self.next = (self.next + 1) % self.places.len().max(1);
        place
    }

    /// Stores the cookie of a Retry. The next Hello goes to the place that sent the Retry.
    pub(crate) fn on_cookie(&mut self, place: (LinkId, PeerAddr), cookie: [u8; COOKIE_BYTES]) {
        self.cookie = cookie;
        let answered = self.places.iter().position(|&other| other == place);
        self.next = answered.unwrap_or(self.next);
    }

    //= protocol.md: moved.2
    /// Redirects the attempt to the place that the peer named, and drops all other places. If the
    /// attempt was redirected before, returns false and does nothing.
    pub(crate) fn on_moved(&mut self, place: (LinkId, PeerAddr), service: u32) -> bool {
        if core::mem::replace(&mut self.has_moved, true) {
            return false;
        }
        (self.places, self.next, self.service) = (vec![place], 0, service);
        self.cookie = [0; COOKIE_BYTES];
        true
    }

    //= protocol.md: set-up.17
    /// Drops a place because nothing listens there. Returns whether no place is left.
    pub(crate) fn give_up(&mut self, place: (LinkId, PeerAddr)) -> bool {
        let before = self.places.len();
        self.places.retain(|&other| other != place);
        if self.places.len() == before {
            return false;
        }
        self.next = 0;
        self.places.is_empty()
    }

    /// Ends the attempt. Returns its places.
    pub(crate) fn into_places(self) -> Vec<(LinkId, PeerAddr)> {
        self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(link: u8) -> (LinkId, PeerAddr) {
        (LinkId(link), PeerAddr::default())
    }

    fn attempt() -> Attempt {
        Attempt::new(Instant(1), 5, [0, 1, 2].map(place).to_vec(), Vec::new())
    }

    //= protocol.md: set-up.17
    #[test]
    fn addresses_are_tried_in_turn_until_none_is_left() {
        let mut attempt = attempt();
        let tried: Vec<_> = (0..4).filter_map(|_| attempt.poll_place()).collect();
        assert_eq!(tried, [0, 1, 2, 0].map(place));
        assert!(!attempt.give_up(place(7)), "no peer was asked there");
        assert_eq!(attempt.poll_place(), Some(place(1)));
        assert!(!attempt.give_up(place(0)));
        assert_eq!(attempt.poll_place(), Some(place(1)));
        assert!(!attempt.give_up(place(1)));
        assert!(attempt.give_up(place(2)));
        assert_eq!((attempt.poll_place(), attempt.poll_place()), (None, None));
    }

    //= protocol.md: moved.2
    #[test]
    fn an_attempt_follows_one_redirect_only() {
        let mut attempt = attempt();
        attempt.on_cookie(place(2), [3; COOKIE_BYTES]);
        assert!(attempt.on_moved(place(7), 9));
        assert_eq!((attempt.places(), attempt.service()), (&[place(7)][..], 9));
        assert_eq!((attempt.poll_place(), attempt.cookie()), (Some(place(7)), [0; COOKIE_BYTES]));
        assert!(!attempt.on_moved(place(8), 10));
        assert_eq!((attempt.poll_place(), attempt.service()), (Some(place(7)), 9));
    }

    #[test]
    fn an_address_that_demands_a_cookie_is_tried_next() {
        let mut attempt = attempt();
        attempt.on_cookie(place(2), [3; COOKIE_BYTES]);
        assert_eq!((attempt.poll_place(), attempt.cookie()), (Some(place(2)), [3; COOKIE_BYTES]));
    }
}
