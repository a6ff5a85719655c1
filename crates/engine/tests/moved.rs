//! Tests of services that have moved. A peer that learns the new place of a service asks there, but
//! follows only one redirection.

mod pair;

use std::sync::Arc;

use delivery::LinkId;
use engine::{Closed, ConnectRequest, REDIRECT_ANSWER_BYTES_MAX, RedirectPort, Terms};
use pair::{Flight, Host, Pair, address};
use wire_edge::{Moved, PeerAddr, RejectReason};

const ASKED: u32 = 7;
const THERE: u32 = 8;

/// The address of a redirect port.
fn redirect_address() -> PeerAddr {
    PeerAddr::from(std::net::SocketAddr::from(([10, 0, 0, 2], 4000)))
}

/// Requests a connection to a service at these places.
fn connect(pair: &mut Pair, service: u32, places: &[PeerAddr]) {
    let Host { engine, domain, queue, .. } = &mut pair.hosts[0];
    let request = ConnectRequest {
        paths: places.iter().map(|&place| (LinkId(0), place)).collect(),
        service,
        private_data: b"hello".to_vec(),
        domain: *domain,
        queues: Arc::clone(queue).into(),
        terms: Terms::default(),
    };
    pair.hosts[0].connection = Some(engine.connect(pair.now, request).expect("asked for"));
}

/// Passes the last Hello of the first host to a redirect port, and passes the answer of the
/// redirect port to the host.
fn answer(pair: &mut Pair, moved: Moved) {
    let hello = {
        let mut seen = None;
        let Host { engine, memory, .. } = &mut pair.hosts[0];
        engine.poll_transmit(pair.now, &memory.access(), &mut |_, batch| {
            seen = Some(batch.frame(0).header.to_vec());
            engine::Emitted::Taken(batch.len())
        });
        seen.expect("a Hello")
    };
    let mut out = [0; REDIRECT_ANSWER_BYTES_MAX];
    let mut redirect_port = RedirectPort::new(vec![(ASKED, moved)]);
    let len = redirect_port.answer(pair.now, address(0, 0), &hello, &mut out).expect("an answer");
    let bytes = out[..len].to_vec();
    pair.deliver(&mut Flight { to: 0, link: 0, from: redirect_address(), bytes });
}

//= protocol.md: moved.2
#[test]
fn a_redirected_request_connects_at_the_address_of_the_service() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(THERE);
    connect(&mut pair, ASKED, &[redirect_address()]);
    answer(&mut pair, Moved { address: address(1, 0), service: THERE });
    pair.run_for(100_000_000);
    assert_eq!((pair.hosts[0].established(), pair.hosts[1].established()), (1, 1));
    assert_eq!(pair.hosts[0].info().paths[0].peer, address(1, 0));
    pair.write(0, 0, 100, 1);
    pair.run_for(10_000_000);
    assert_eq!(pair.done(0).len(), 1);
    // The host sent all its frames to the redirect port before the answer arrived.
    assert!(pair.strays.is_empty());
}

//= protocol.md: moved.1
#[test]
fn a_redirect_to_the_zero_address_means_the_answering_host() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(THERE);
    connect(&mut pair, ASKED, &[redirect_address()]);
    let port_only = PeerAddr::from(std::net::SocketAddr::from(([0, 0, 0, 0], 7000)));
    answer(&mut pair, Moved { address: port_only, service: THERE });
    pair.run_for(100_000_000);
    assert_eq!(pair.hosts[0].established(), 1);
    assert_eq!(pair.hosts[0].info().paths[0].peer, address(1, 0));
}

//= protocol.md: moved.2, set-up.15
#[test]
fn an_initiator_redirected_twice_fails() {
    let mut pair = Pair::new(1);
    connect(&mut pair, ASKED, &[redirect_address()]);
    let back = Moved { address: redirect_address(), service: ASKED };
    answer(&mut pair, back);
    pair.turn(1);
    assert_eq!(pair.hosts[0].closed(), []);
    answer(&mut pair, back);
    pair.turn(0);
    assert_eq!(pair.hosts[0].closed(), [Closed::Rejected(RejectReason::Moved)]);
    pair.assert_idle();
}

//= protocol.md: moved.2
#[test]
fn a_redirect_to_a_multicast_or_unreachable_address_is_refused() {
    for elsewhere in ["239.1.1.1:7000", "[fd00::1]:7000"] {
        let mut pair = Pair::new(1);
        connect(&mut pair, ASKED, &[redirect_address()]);
        let elsewhere: std::net::SocketAddr = elsewhere.parse().expect("an address");
        answer(&mut pair, Moved { address: PeerAddr::from(elsewhere), service: THERE });
        pair.turn(0);
        assert_eq!(pair.hosts[0].closed(), [Closed::Rejected(RejectReason::Moved)]);
    }
}

#[test]
fn a_redirect_from_an_address_that_was_not_asked_is_ignored() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(ASKED);
    connect(&mut pair, ASKED, &[address(1, 0)]);
    answer(&mut pair, Moved { address: redirect_address(), service: THERE });
    pair.run_for(100_000_000);
    assert_eq!(pair.hosts[0].established(), 1);
}
