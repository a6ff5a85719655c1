//! Tests of connection set-up, and of replies to strangers (protocol.md §4).

mod pair;

use delivery::{Evidence, Instant, LinkEvent, LinkId};
use engine::{Closed, EngineConfig, Event};
use pair::{Flight, LinkPlan, Pair, address};
use semantics::OperationError;
use wire_edge::{
    Addresses, ConnectionId, Epoch, Features, HANDSHAKE_BYTES_MAX, Handshake, HandshakeFrame,
    MessageNumber, Parameters, RejectReason, decode_handshake,
};

/// A Hello of a stranger to the second host.
fn hello(source: u32, cookie: [u8; 24], service: u32) -> Flight {
    let parameters = Parameters {
        incarnation: 1,
        features: Features(0),
        epoch: Epoch(7),
        links_max: 1,
        frame_bytes_max: 1472,
        read_depth: 1,
        operation_window: 16,
        order_pool_bytes: 0,
        receive_buffer_bytes: 65_536,
        ack_delay_max_ns: 0,
        receive_credit: MessageNumber(0),
        service,
    };
    let addresses = Addresses::NONE;
    frame(0, source, 1, Handshake::Hello { parameters, cookie, addresses, private_data: &[] })
}

fn frame(destination: u32, source: u32, version: u16, body: Handshake<'_>) -> Flight {
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let (destination, source) = (ConnectionId(destination), ConnectionId(source));
    let length = HandshakeFrame { version, destination, source, body }.encode(&mut bytes);
    bytes.truncate(length);
    Flight { to: 1, link: 0, from: address(0, 0), bytes }
}

/// Returns the answers of the second host to a frame.
fn answers(pair: &mut Pair, mut flight: Flight) -> Vec<Vec<u8>> {
    pair.deliver(&mut flight);
    pair.turn(1);
    let answers = pair.wire.values().filter(|answer| answer.to == 0);
    let answers: Vec<_> = answers.map(|answer| answer.bytes.clone()).collect();
    pair.wire.clear();
    answers
}

fn cookie_of(answers: &[Vec<u8>]) -> [u8; 24] {
    let decoded = decode_handshake(&answers[0]).unwrap();
    let Handshake::Retry { cookie } = decoded.body else { panic!("{decoded:?}") };
    cookie
}

//= protocol.md: set-up.2, set-up.9, cookie.1, amplify.1
#[test]
fn no_state_is_kept_before_a_peer_returns_its_cookie() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    for source in 1..200 {
        let request = hello(source, [0; 24], 0);
        let request_bytes = request.bytes.len();
        let answers = answers(&mut pair, request);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].len() <= 3 * request_bytes);
        cookie_of(&answers);
        assert_eq!(pair.hosts[1].engine.connection_count(), 0);
        assert_eq!(pair.hosts[1].engine.poll_timeout(), Instant::NEVER);
    }
    assert!(pair.hosts[1].events.is_empty());
}

//= protocol.md: set-up.5
#[test]
fn a_forged_stale_or_foreign_cookie_is_answered_with_a_new_one() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    let cookie = cookie_of(&answers(&mut pair, hello(5, [0; 24], 0)));
    let mut forged = cookie;
    forged[20] ^= 1;
    cookie_of(&answers(&mut pair, hello(5, forged, 0)));
    cookie_of(&answers(&mut pair, hello(6, cookie, 0)));
    let mut elsewhere = hello(5, cookie, 0);
    elsewhere.from = address(0, 3);
    pair.deliver(&mut elsewhere);
    pair.turn(1);
    assert_eq!(pair.hosts[1].engine.connection_count(), 0);
    pair.now = pair.now.after_ns(delivery::COOKIE_LIFETIME_NS + 1);
    cookie_of(&answers(&mut pair, hello(5, cookie, 0)));
    assert_eq!(pair.hosts[1].engine.connection_count(), 0);
    let cookie = cookie_of(&answers(&mut pair, hello(5, [0; 24], 0)));
    assert!(answers(&mut pair, hello(5, cookie, 0)).is_empty(), "the application is asked");
    assert_eq!(pair.hosts[1].engine.connection_count(), 1);
    assert_eq!(pair.hosts[1].engine.counters().cookies_forged, 3);
}

//= protocol.md: set-up.6, set-up.10
#[test]
fn a_repeated_hello_is_one_request() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    let cookie = cookie_of(&answers(&mut pair, hello(5, [0; 24], 0)));
    answers(&mut pair, hello(5, cookie, 0));
    for _ in 0..5 {
        let answers = answers(&mut pair, hello(5, cookie, 0));
        assert!(matches!(decode_handshake(&answers[0]).unwrap().body, Handshake::Pending));
    }
    assert_eq!(pair.hosts[1].events.len(), 1);
    assert_eq!(pair.hosts[1].engine.connection_count(), 1);
    let Event::Requested { connection, .. } = pair.hosts[1].events[0] else { panic!() };
    pair.accept(1, connection);
    assert_eq!(pair.hosts[1].engine.connection_count(), 1);
    let reply = answers(&mut pair, hello(5, cookie, 0));
    assert!(matches!(decode_handshake(&reply[0]).unwrap().body, Handshake::Accept { .. }));
}

//= protocol.md: phase.1
#[test]
fn one_host_cannot_occupy_all_pending_requests() {
    let config = EngineConfig::default().requests_max(16);
    let mut pair = Pair::with(&[LinkPlan::default(); 6], config);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    // Sends one more request from the address on the given link. Returns whether the request
    // reaches the application.
    let mut source = 0;
    let mut request = |pair: &mut Pair, link: u8| {
        source += 1;
        let from = address(0, link);
        let place = |cookie| Flight { link, from, ..hello(source, cookie, 0) };
        let cookie = cookie_of(&answers(pair, place([0; 24])));
        let reply = answers(pair, place(cookie));
        let refusal =
            Handshake::Reject { reason: RejectReason::ConnectionLimit, private_data: &[] };
        assert!(reply.iter().all(|reply| decode_handshake(reply).unwrap().body == refusal));
        reply.is_empty()
    };
    let mut requests =
        |pair: &mut Pair, link, count| (0..count).filter(|_| request(pair, link)).count();
    assert_eq!(requests(&mut pair, 0, 20), 4);
    assert_eq!(requests(&mut pair, 1, 1), 1, "the requests of one host block another host");
    // After the application has accepted or rejected a request, there is room for another request.
    let waiting = |event: &Event| match event {
        Event::Requested { connection, .. } => Some(*connection),
        _ => None,
    };
    let waiting: Vec<_> = pair.hosts[1].events.iter().filter_map(waiting).collect();
    pair.hosts[1].engine.reject(waiting[0], &[]).unwrap();
    pair.accept(1, waiting[1]);
    pair.turn(1);
    pair.wire.clear();
    assert_eq!(requests(&mut pair, 0, 10), 2);
    let others: Vec<_> = (1..6).map(|link| requests(&mut pair, link, 5)).collect();
    assert_eq!(others, [3, 4, 4, 0, 0], "the limit for all hosts together does not hold");
}

//= protocol.md: set-up.4
#[test]
fn a_missing_listener_is_reported_at_once() {
    let mut pair = Pair::new(1);
    pair.connect();
    pair.run_for(1_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::Rejected(RejectReason::NoListener)]);
    pair.assert_idle();
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
}

//= protocol.md: preamble.2, set-up.15
#[test]
fn peers_of_different_versions_exchange_their_versions() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    let mut other = hello(5, [0; 24], 0);
    other.bytes[2..4].copy_from_slice(&9_u16.to_le_bytes());
    let length = other.bytes.len();
    let replies = answers(&mut pair, other);
    assert!(replies.len() == 1 && replies[0].len() <= 3 * length);
    let body = decode_handshake(&replies[0]).unwrap().body;
    assert_eq!(body, Handshake::VersionMismatch { lowest: 1, highest: 1 });
    // Replace the first answer to an initiator by the answer of a peer that speaks only versions 2
    // and 3.
    pair.filter = Box::new(|_, flight| {
        if flight.to == 0 {
            let id = decode_handshake(&flight.bytes).unwrap().destination;
            let body = Handshake::VersionMismatch { lowest: 2, highest: 3 };
            flight.bytes = frame(id.0, 0, 3, body).bytes;
        }
        true
    });
    pair.connect();
    pair.run_for(1_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::Version { lowest: 2, highest: 3 }]);
    pair.assert_idle();
}

//= protocol.md: set-up.15
#[test]
fn an_application_may_reject_with_its_own_reason() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    pair.connect();
    pair.run_for(2_000_000_000);
    assert!(pair.hosts[0].closed().is_empty(), "a peer whose application decides is not silent");
    let Event::Requested { connection, .. } = pair.hosts[1].events[0] else { panic!() };
    pair.hosts[1].engine.reject(connection, b"not today").unwrap();
    pair.run_for(1_000_000);
    let Some(Event::Closed { reason, private_data, .. }) = pair.hosts[0].events.last() else {
        panic!()
    };
    assert_eq!(*reason, Closed::Rejected(RejectReason::Application));
    assert_eq!(private_data, b"not today");
    assert_eq!(pair.hosts[1].engine.connection_count(), 0);
    pair.assert_idle();
}

//= protocol.md: set-up.8
#[test]
fn a_connection_limit_holds_and_frees_closed_connections() {
    let config = EngineConfig::default().connections_max(2);
    let mut pair = Pair::with(&[LinkPlan::default()], config);
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.connect();
    pair.run_for(100_000_000);
    assert_eq!(pair.hosts[0].established(), 2);
    for host in &mut pair.hosts {
        host.events.clear();
    }
    // The first host has reached its own limit of connections, so restart it. After that, only the
    // limit of the second host applies, and the second host rejects the request.
    pair.restart(0, 99);
    pair.connect();
    pair.run_for(100_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::Rejected(RejectReason::ConnectionLimit)]);
    let (now, last) = (pair.now, pair.hosts[1].connection.unwrap());
    pair.hosts[1].engine.close(now, last, &[]).unwrap();
    pair.run_for(2_000_000_000);
    pair.connect();
    pair.run_for(100_000_000);
    assert_eq!(pair.hosts[0].established(), 1);
}

//= protocol.md: receive.5, set-up.14, silence.1
#[test]
fn the_handshake_survives_the_loss_of_each_frame() {
    for lost in 1..=8 {
        let mut pair = Pair::new(1);
        pair.filter = Box::new(move |frame, _| frame != lost);
        pair.establish();
        assert_eq!(pair.hosts.each_ref().map(pair::Host::established), [1, 1]);
        assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [1, 1]);
        pair.write(0, 0, 100_000, 1);
        pair.write(1, 200_000, 100_000, 1);
        pair.run_for(50_000_000);
        assert!(pair.hosts.iter().all(|host| host.queue.poll().is_some_and(|c| c.result.is_ok())));
    }
}

//= protocol.md: set-up.11, set-up.13
#[test]
fn the_handshake_survives_the_duplication_of_each_frame() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.connect();
    let until = pair.now.after_ns(200_000_000);
    let mut repeated = 0;
    while pair.step(until) {
        let seen: Vec<_> = pair.wire.iter().map(|(key, flight)| (*key, flight.clone())).collect();
        for (key, flight) in seen {
            if key.1 < 1 << 32 && repeated < 40 {
                repeated += 1;
                pair.wire.insert((key.0.after_ns(1 + repeated), key.1 | repeated << 32), flight);
            }
        }
    }
    assert_eq!(pair.hosts.each_ref().map(pair::Host::established), [1, 1]);
    assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [1, 1]);
    pair.assert_idle();
}

//= protocol.md: silence.2
#[test]
fn connecting_to_an_unreachable_peer_fails_within_the_silence_budget() {
    let mut pair = Pair::new(1);
    pair.set_up(0, 0, false);
    pair.connect();
    let start = pair.now;
    pair.run_until(5_100_000_000, "give up", |pair| !pair.hosts[0].closed().is_empty());
    assert!(pair.now.since_ns(start) >= 4_900_000_000);
    assert!(matches!(pair.hosts[0].closed()[0], Closed::Unreachable { .. }));
    assert!(pair.channels[0][0].frames < 25, "{} frames", pair.channels[0][0].frames);
    pair.assert_idle();
    // If the system reports that nothing listens at the address, the attempt ends immediately.
    pair.connect();
    let refused = LinkEvent::Refused(address(1, 0), Evidence::Local);
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), refused);
    pair.turn(0);
    assert_eq!(pair.hosts[0].closed()[1], Closed::Refused(address(1, 0)));
    pair.assert_idle();
}

//= protocol.md: receive.5
#[test]
fn a_connection_whose_acceptance_is_lost_is_abandoned() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.filter = Box::new(|_, flight| {
        flight.to != 0
            || !matches!(
                decode_handshake(&flight.bytes).map(|frame| frame.body),
                Ok(Handshake::Accept { .. })
            )
    });
    pair.connect();
    pair.run_for(12_000_000_000);
    assert!(matches!(pair.hosts[0].closed()[..], [Closed::Unreachable { .. }]));
    assert!(!pair.hosts[1].closed().is_empty());
    assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [0, 0]);
    pair.assert_idle();
}

//= protocol.md: reset.1, reset.3, reset.4
#[test]
fn a_restarted_peer_is_detected_at_the_next_frame() {
    for operations in [0, 3] {
        let mut pair = Pair::connected(1);
        for context in 0..operations {
            pair.write(0, 0, 1 << 20, context);
        }
        pair.turn(0);
        pair.restart(1, 77);
        if operations == 0 {
            pair.write(0, 0, 8, 0);
        }
        pair.run_for(10_000_000);
        assert_eq!(pair.hosts[0].closed(), [Closed::PeerRestarted]);
        let results: Vec<_> = pair.done(0).iter().map(|done| done.result).collect();
        assert_eq!(results.len() as u64, operations.max(1));
        assert!(results.iter().all(|result| *result == Err(OperationError::PeerRestarted)));
        pair.assert_idle();
        pair.hosts[0].events.clear();
        pair.connect();
        pair.run_for(50_000_000);
        assert_eq!(pair.hosts[0].established(), 1);
    }
}

/// No packet is in flight, so this end can only ask the peer for a report of deliveries and
/// credits.
#[test]
fn a_peer_that_restarts_before_its_answer_arrives_is_detected() {
    let mut pair = Pair::connected(1);
    pair.filter = Box::new(|_, flight| {
        let kind = wire_edge::peek(&flight.bytes).map(|(kind, ..)| kind);
        flight.to != 0 || kind != Ok(wire_edge::Kind::ReadResponse)
    });
    let (key, address) = pair.remote(1, 0);
    let sink = pair.hosts[0].region.id;
    let read = semantics::Request::Read { sink, sink_offset: 0, key, address };
    pair.post(0, read, 1000, 1);
    pair.turn(0);
    pair.run_until(10_000_000, "the request is acknowledged", |pair| {
        pair.hosts[0].info().paths[0].in_flight_bytes == 0
    });
    pair.restart(1, 77);
    // The first question must suffice to detect the restart, without a probe timeout.
    pair.run_for(2_500_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::PeerRestarted]);
    let results: Vec<_> = pair.done(0).iter().map(|done| done.result).collect();
    assert_eq!(results, [Err(OperationError::PeerRestarted)]);
    pair.assert_idle();
}

//= protocol.md: reset.2
#[test]
fn a_forged_reset_is_ignored() {
    let mut pair = Pair::connected(1);
    pair.write(0, 0, 1000, 1);
    pair.turn(0);
    let data = pair.wire.values().next().unwrap().bytes.clone();
    let prefix = wire_edge::decode(&data).unwrap().prefix;
    let reset = |source: u32, epoch: u16, packet: u32| {
        let body = Handshake::Reset { epoch: Epoch(epoch), packet };
        let mut flight = frame(0, source, 1, body);
        (flight.to, flight.from) = (0, address(1, 0));
        flight
    };
    let (id, epoch) = (prefix.connection.0, prefix.epoch.0);
    for mut forged in [
        reset(id ^ 1, epoch, prefix.packet),
        reset(id, epoch ^ 1, prefix.packet),
        reset(id, epoch, prefix.packet + 1),
        reset(id, epoch, prefix.packet.wrapping_sub(4096)),
    ] {
        pair.deliver(&mut forged);
    }
    let mut elsewhere = reset(id, epoch, prefix.packet);
    elsewhere.from = address(1, 5);
    pair.deliver(&mut elsewhere);
    assert_eq!(pair.hosts[0].engine.counters().resets_ignored, 5);
    pair.run_for(10_000_000);
    assert!(pair.hosts[0].closed().is_empty());
    assert_eq!(pair.done(0).len(), 1);
    pair.write(0, 0, 1000, 1);
    pair.turn(0);
    pair.deliver(&mut reset(id, epoch, prefix.packet + 1));
    pair.turn(0);
    assert_eq!(pair.hosts[0].closed(), [Closed::PeerRestarted]);
}

//= protocol.md: amplify.1, amplify.4
#[test]
fn resets_are_no_longer_than_their_cause_and_rate_limited() {
    let mut pair = Pair::connected(1);
    pair.write(0, 0, 1000, 1);
    pair.turn(0);
    let data = pair.wire.values().next().unwrap().bytes.clone();
    pair.wire.clear();
    let mut sent = 0;
    for cut in 0..5000_usize {
        let mut bytes = data.clone();
        bytes[4] ^= 1;
        bytes.truncate(20 + cut % 40);
        let length = bytes.len();
        let flight = Flight { to: 1, link: 0, from: address(0, 0), bytes };
        for answer in answers(&mut pair, flight) {
            assert!(answer.len() <= length);
            sent += 1;
        }
    }
    assert!((1..=110).contains(&sent), "{sent}");
}

//= protocol.md: frame.3, receive.2
#[test]
fn garbage_changes_nothing_but_counters() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000);
    let before = pair.hosts[1].engine.poll_timeout();
    let mut state = 1_u64;
    for length in 0..2000_usize {
        let bytes = (0..length % 200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        pair.deliver(&mut Flight { to: 1, link: 0, from: address(0, 0), bytes });
        pair.turn(1);
    }
    pair.wire.clear();
    assert_eq!(pair.hosts[1].engine.connection_count(), 1);
    assert_eq!(pair.hosts[1].engine.poll_timeout(), before);
    assert!(pair.hosts[1].engine.counters().malformed > 100);
    pair.assert_idle();
    pair.write(0, 0, 100_000, 1);
    pair.run_for(10_000_000);
    assert_eq!(pair.done(0).len(), 1);
}
