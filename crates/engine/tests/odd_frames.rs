//! Tests of frames of rare kinds that are lost, repeated or changed. No other test covers these
//! frames. Each test checks one rule of the protocol.

mod pair;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use delivery::{Instant, LinkEvent, LinkId, LinkState};
use engine::{Closed, ConnectRequest, EngineConfig, Terms};
use pair::{Flight, Host, Pair, address};
use wire_edge::{
    CONTROL_BYTES_MAX, CloseReason, ConnectionId, Control, Flags, Frame, HANDSHAKE_BYTES_MAX,
    HEADER_BYTES_MAX, Handshake, HandshakeFrame, Header, Kind, LinkIndex, LinkStatus,
    OperationNumber, PeerAddr, Prefix, VERSION, control_messages, decode, decode_handshake,
    encode_header,
};

/// Frames that a test keeps for later use.
type Kept = Rc<RefCell<Vec<Flight>>>;

/// Keeps frames for which `is_kept` returns true. If `go_on` is true, these frames also reach their
/// receiver.
fn keep(pair: &mut Pair, go_on: bool, is_kept: impl Fn(&Flight) -> bool + 'static) -> Kept {
    let kept = Kept::default();
    let keeps = Rc::clone(&kept);
    pair.filter = Box::new(move |_, flight| {
        let keep = is_kept(flight);
        if keep {
            keeps.borrow_mut().push(flight.clone());
        }
        go_on || !keep
    });
    kept
}

fn is_hello(flight: &Flight) -> bool {
    decode_handshake(&flight.bytes).is_ok_and(|frame| matches!(frame.body, Handshake::Hello { .. }))
}

fn is_accept(flight: &Flight) -> bool {
    decode_handshake(&flight.bytes)
        .is_ok_and(|frame| matches!(frame.body, Handshake::Accept { .. }))
}

/// Performs a write, and waits for a long time. Returns the prefix of the last frame to host `to`.
fn last_prefix(pair: &mut Pair, to: usize) -> Prefix {
    let frames = keep(pair, true, move |flight| flight.to == to && decode(&flight.bytes).is_ok());
    pair.write(1 - to, 0, 8, 0);
    pair.run_for(1_000_000_000);
    pair.filter = Box::new(|_, _| true);
    let last = frames.borrow().last().map(|flight| decode(&flight.bytes).unwrap().prefix);
    last.expect("a write has frames both ways")
}

/// Returns a challenge that opens a link as if the first host had sent it.
fn challenge(prefix: Prefix, link: u8, from: PeerAddr) -> Flight {
    let prefix =
        Prefix { link: LinkIndex(link), kind: Kind::Control, flags: Flags::NONE, ..prefix };
    let mut header = [0; HEADER_BYTES_MAX];
    let len = encode_header(&prefix, &Header::Control, &mut header);
    let mut message = [0; CONTROL_BYTES_MAX];
    let message_len = Control::PathChallenge(1).encode(&mut message);
    let bytes = [&header[..len], &message[..message_len]].concat();
    Flight { to: 1, link: 0, from, bytes }
}

/// Returns whether a frame contains a control message for which `is_it` returns true.
fn holds(bytes: &[u8], is_it: impl Fn(&Control<'_>) -> bool) -> bool {
    decode(bytes).is_ok_and(|frame| {
        matches!(frame.header, Header::Control)
            && control_messages(frame.payload).flatten().any(|message| is_it(&message))
    })
}

//= protocol.md: receive.3, link.1
#[test]
fn a_frame_from_another_address_than_that_of_its_link_is_dropped() {
    let mut pair = Pair::connected(1);
    pair.fill(0, 8);
    pair.filter = Box::new(|_, flight| {
        if flight.to == 1 {
            flight.from = address(0, 7);
        }
        true
    });
    pair.write(0, 0, 8, 1);
    pair.run_for(100_000_000);
    assert!(pair.hosts[1].engine.counters().wrong_address > 0);
    assert!(!pair.same(8) && pair.done(0).is_empty());
    // Frames from the peer's own address are accepted again.
    pair.filter = Box::new(|_, _| true);
    pair.run_for(1_000_000_000);
    assert!(pair.same(8) && pair.hosts[1].closed().is_empty());
    assert_eq!(pair.done(0).len(), 1);
}

//= protocol.md: control.3
#[test]
fn the_responder_ignores_addresses_that_the_initiator_sends() {
    // The responder has an unused link. On this link, the responder could try the addresses that
    // the initiator announced.
    let mut pair = Pair::new(2);
    pair.hosts[0].engine.detach_link(LinkId(1));
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.run_for(1_000_000_000);
    pair.strays.clear();
    let reports = Rc::new(RefCell::new(0));
    let counts = Rc::clone(&reports);
    pair.filter = Box::new(move |_, flight| {
        if flight.to == 1 && holds(&flight.bytes, |_| true) {
            let mut message = [0; CONTROL_BYTES_MAX];
            let len = Control::Address(address(7, 1)).encode(&mut message);
            flight.bytes.extend_from_slice(&message[..len]);
            *counts.borrow_mut() += 1;
        }
        true
    });
    pair.run_for(40_000_000_000);
    assert!(*reports.borrow() > 0, "keep-alive asks");
    assert!(!pair.strays.contains_key(&address(7, 1).0), "{:?}", pair.strays);
}

//= protocol.md: control.4
#[test]
fn an_unknown_close_reason_ends_the_connection_as_an_error() {
    for (code, closed) in [(0, None), (1, None), (77, Some(CloseReason::from_code(77)))] {
        let mut pair = Pair::connected(1);
        pair.filter = Box::new(move |_, flight| {
            if holds(&flight.bytes, |message| matches!(message, Control::Close { .. })) {
                // The reason code follows the common header, the ack section, the type and the
                // length.
                flight.bytes[26..28].copy_from_slice(&u16::to_le_bytes(code));
            }
            true
        });
        let connection = pair.hosts[0].connection.unwrap();
        pair.hosts[0].engine.close(pair.now, connection, b"").unwrap();
        pair.run_for(1_000_000_000);
        let expected = closed.map_or(Closed::ByPeer, Closed::PeerRefused);
        assert_eq!(pair.hosts[1].closed(), [expected]);
    }
}

//= protocol.md: close.5
#[test]
fn messages_after_the_acknowledgement_of_a_close_change_nothing() {
    let mut pair = Pair::connected(1);
    pair.filter = Box::new(|_, flight| {
        if flight.to == 0 && holds(&flight.bytes, |message| matches!(message, Control::CloseAck)) {
            let (reason, operation) = (CloseReason::Application, OperationNumber(0));
            let close = Control::Close { reason, operation, private_data: &[] };
            let mut bytes = [0; CONTROL_BYTES_MAX];
            let len = close.encode(&mut bytes);
            flight.bytes.extend_from_slice(&bytes[..len]);
        }
        true
    });
    let connection = pair.hosts[0].connection.unwrap();
    pair.hosts[0].engine.close(pair.now, connection, b"").unwrap();
    pair.run_for(1_000_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::Here], "the end is reported once");
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
}

//= protocol.md: set-up.3
#[test]
fn a_storm_of_first_hellos_causes_few_answers() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    let hellos = keep(&mut pair, false, is_hello);
    pair.connect();
    pair.run_for(1_000);
    let hello = hellos.borrow()[0].clone();
    let mut answers = 0;
    for _ in 0..20_000 {
        pair.deliver(&mut hello.clone());
        pair.turn(1);
        answers += pair.wire.len();
        pair.wire.clear();
    }
    assert_eq!(answers, 8_000);
    // After 10 ms, the rate limit allows a few more answers.
    pair.now = pair.now.after_ns(10_000_000);
    for _ in 0..1_000 {
        pair.deliver(&mut hello.clone());
        pair.turn(1);
        answers += pair.wire.len();
        pair.wire.clear();
    }
    assert_eq!(answers, 8_400);
}

//= protocol.md: set-up.12
#[test]
fn a_pending_request_is_retried_rarely_and_not_abandoned() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    pair.connect();
    pair.run_for(100_000_000);
    let hellos = keep(&mut pair, true, is_hello);
    // Wait for three times the silence budget.
    pair.run_for(15_000_000_000);
    let asked = hellos.borrow().len();
    assert!((15..=31).contains(&asked), "{asked} times, each half second or a quarter later");
    assert!(pair.hosts[0].closed().is_empty());
}

//= protocol.md: set-up.16
#[test]
fn an_answer_from_an_address_that_was_not_asked_is_ignored() {
    let mut pair = Pair::new(2);
    pair.hosts[1].engine.listen(0);
    let accepts = keep(&mut pair, false, is_accept);
    pair.connect();
    pair.run_for(5_000_000);
    let accept = accepts.borrow()[0].clone();
    let connecting = |pair: &Pair| pair.hosts[0].established() == 0;
    for (link, from) in [(0, address(1, 7)), (1, address(1, 0)), (1, address(1, 1))] {
        pair.deliver(&mut Flight { link, from, ..accept.clone() });
        pair.turn(0);
        assert!(connecting(&pair), "{link} {from}");
    }
    assert_eq!(pair.hosts[0].engine.counters().wrong_address, 3);
    pair.deliver(&mut accept.clone());
    pair.turn(0);
    assert!(!connecting(&pair));
}

//= protocol.md: amplify.2
#[test]
fn answers_to_a_handshake_are_not_answered() {
    let mut pair = Pair::new(1);
    let frames = keep(&mut pair, true, |flight| {
        decode_handshake(&flight.bytes).is_ok() && !is_hello(flight)
    });
    // Without a listener, the answer is a Reject. With a listener, the answers are a Retry and an
    // Accept.
    pair.connect();
    pair.run_for(10_000_000);
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.run_for(100_000_000);
    let frames = frames.borrow().clone();
    assert!(frames.len() >= 3, "{}", frames.len());
    for flight in frames {
        for to in 0..2 {
            let mut other = Pair::new(1);
            other.hosts[to].engine.listen(0);
            other.deliver(&mut Flight { to, from: address(1 - to, 0), ..flight.clone() });
            other.turn(to);
            assert!(other.wire.is_empty());
        }
    }
}

//= protocol.md: status.1
#[test]
fn a_lost_status_is_reported_again_with_its_current_value() {
    let mut pair = Pair::connected_with(&[pair::LinkPlan::default(); 2], EngineConfig::default());
    let lost = keep(&mut pair, false, |flight| {
        holds(&flight.bytes, |message| matches!(message, Control::LinkStatus(..)))
    });
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(1), LinkEvent::Down);
    pair.run_until(100_000_000, "the status is reported", |_| !lost.borrow().is_empty());
    let other_end = |pair: &Pair| pair.hosts[1].info().paths[1].state;
    assert_eq!(other_end(&pair), LinkState::Up);
    pair.filter = Box::new(|_, _| true);
    pair.run_until(1_000_000_000, "the other end knows", |pair| other_end(pair) != LinkState::Up);
    assert!(pair.now > Instant(0) && pair.hosts[1].closed().is_empty());
}

//= protocol.md: join.11
#[test]
fn a_challenge_for_a_link_beyond_the_limit_is_answered_with_removed() {
    for links_max in [1, 2] {
        let config = EngineConfig::default().links_max(links_max);
        let mut pair = Pair::connected_with(&[pair::LinkPlan::default()], config);
        let prefix = last_prefix(&mut pair, 1);
        let kept = keep(&mut pair, true, |flight| {
            let removed = Control::LinkStatus(LinkIndex(1), LinkStatus::Removed);
            flight.to == 0 && holds(&flight.bytes, |message| *message == removed)
        });
        pair.deliver(&mut challenge(prefix, 1, address(0, 5)));
        pair.run_for(5_000_000);
        assert_eq!(kept.borrow().len(), usize::from(links_max == 1), "{links_max}");
        assert_eq!(pair.hosts[1].info().paths.len(), usize::from(links_max));
    }
}

//= protocol.md: index.3
#[test]
fn a_reset_from_an_unvalidated_address_is_ignored() {
    let mut pair = Pair::connected(1);
    let to_peer = last_prefix(&mut pair, 0);
    let prefix = last_prefix(&mut pair, 1);
    let victim = address(0, 5);
    pair.deliver(&mut challenge(prefix, 1, victim));
    pair.run_for(5_000_000);
    assert_eq!(pair.hosts[1].info().paths.len(), 2);
    let reset = |link: u8, packet: u32| {
        let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
        let body = Handshake::Reset { epoch: to_peer.epoch, packet };
        let (destination, source) = (ConnectionId(0), to_peer.connection);
        let len = HandshakeFrame { version: VERSION, destination, source, body }.encode(&mut bytes);
        bytes.truncate(len);
        let from = if link == 0 { address(0, 0) } else { victim };
        Flight { to: 1, link: 0, from, bytes }
    };
    // The first host has sent at least one challenge to that address. Try all packet numbers that
    // the challenge may have had.
    for packet in 0..16 {
        pair.deliver(&mut reset(1, packet));
    }
    assert_eq!(pair.hosts[1].engine.counters().resets_ignored, 16);
    assert!(pair.hosts[1].closed().is_empty());
    // A Reset for the link on which the peer has answered ends the connection.
    pair.deliver(&mut reset(0, to_peer.packet));
    pair.turn(1);
    assert_eq!(pair.hosts[1].closed(), [Closed::PeerRestarted]);
}

//= protocol.md: set-up.1
#[test]
fn hellos_go_to_each_address_in_turn() {
    let mut pair = Pair::new(2);
    let hellos = keep(&mut pair, false, is_hello);
    let request = ConnectRequest {
        paths: vec![(LinkId(1), address(1, 1)), (LinkId(0), address(1, 0))],
        service: 0,
        private_data: Vec::new(),
        domain: pair.hosts[0].domain,
        queues: Arc::clone(&pair.hosts[0].queue).into(),
        terms: Terms::default(),
    };
    pair.hosts[0].engine.connect(pair.now, request).unwrap();
    pair.run_for(1_000_000_000);
    let hellos = hellos.borrow();
    let links: Vec<u8> = hellos.iter().map(|hello| hello.link).collect();
    assert!(links.len() >= 6, "{links:?}");
    assert!(links.iter().enumerate().all(|(turn, &link)| usize::from(link) == 1 - turn % 2));
    let source = |hello: &Flight| decode_handshake(&hello.bytes).unwrap().source;
    assert!(hellos.iter().all(|hello| source(hello) == source(&hellos[0])));
    assert_ne!(source(&hellos[0]), ConnectionId(0));
}

//= protocol.md: set-up.18, size.1
#[test]
fn ends_with_different_limits_use_the_smaller_frame_and_the_fewer_links() {
    let plans = |bytes| {
        [pair::LinkPlan {
            frame_bytes_max: bytes,
            frame_bytes_safe: bytes,
            rate: None,
            offloads: false,
        }; 3]
    };
    for (bytes, links_max) in [([1472, 1000], [3, 2]), ([1000, 1472], [2, 3])] {
        let host = |host: usize| {
            let links_max = links_max[host];
            let config = EngineConfig::default().links_max(links_max);
            Host::new(host, 7 + host as u8, &plans(bytes[host]), config)
        };
        let mut pair = Pair::of(&plans(1472), [host(0), host(1)]);
        let frames = keep(&mut pair, true, |flight| {
            let is_third = |frame: Frame<'_>| frame.prefix.link.0 >= 2;
            flight.bytes.len() > 1000 || decode(&flight.bytes).is_ok_and(is_third)
        });
        pair.hosts[1].engine.listen(0);
        pair.connect();
        pair.run_for(100_000_000);
        for from in 0..2 {
            assert_eq!(pair.hosts[from].info().paths.len(), 2);
            pair.fill(from, 100_000);
            pair.write(from, 0, 100_000, 1);
            pair.run_for(100_000_000);
            assert!(pair.same(100_000) && pair.done(from).len() == 1);
        }
        assert!(
            frames.borrow().is_empty(),
            "{} frames too large or too many links",
            frames.borrow().len()
        );
    }
}

//= protocol.md: ack.10
#[test]
fn pings_closes_and_probes_request_an_immediate_acknowledgement() {
    let plan = pair::LinkPlan { frame_bytes_safe: 1000, ..pair::LinkPlan::default() };
    let mut pair = Pair::with(&[plan], EngineConfig::default());
    let asking = |flight: &Flight| {
        let is_probe = |frame: &Frame<'_>| matches!(frame.header, Header::Probe);
        decode(&flight.bytes).is_ok_and(|frame| is_probe(&frame))
            || holds(&flight.bytes, |m| matches!(m, Control::Ping | Control::Close { .. }))
    };
    let frames = keep(&mut pair, true, asking);
    pair.establish();
    pair.write(0, 0, 100_000, 1);
    pair.run_for(100_000_000);
    let connection = pair.hosts[0].connection.unwrap();
    pair.hosts[0].engine.close(pair.now, connection, b"").unwrap();
    pair.run_for(100_000_000);
    let mut seen = [0; 2];
    for flight in frames.borrow().iter() {
        let frame = decode(&flight.bytes).unwrap();
        assert!(frame.prefix.flags.contains(Flags::ACK_NOW), "{frame:?}");
        seen[usize::from(matches!(frame.header, Header::Probe))] += 1;
    }
    assert!(seen[0] >= 2 && seen[1] >= 1, "{seen:?}");
}

//= protocol.md: join.7
#[test]
fn an_address_is_announced_once_more_after_a_status_has_arrived() {
    let mut pair = Pair::new(3);
    for host in &mut pair.hosts {
        host.engine.detach_link(LinkId(2));
    }
    pair.hosts[1].engine.listen(0);
    pair.connect();
    pair.run_for(50_000_000);
    let kept = keep(&mut pair, true, |flight| {
        let spare = Control::Address(address(1, 2));
        flight.to == 0 && holds(&flight.bytes, |message| *message == spare)
    });
    let caps = pair::caps(1, 2, &pair::LinkPlan::default());
    pair.hosts[1].engine.attach_link(LinkId(2), caps).unwrap();
    pair.run_for(100_000_000);
    assert_eq!(kept.borrow().len(), 1, "a link without a counterpart");
    pair.hosts[1].engine.handle_link_event(pair.now, LinkId(1), LinkEvent::Down);
    pair.run_for(100_000_000);
    assert_eq!(kept.borrow().len(), 2);
}

//= protocol.md: compare.5
#[test]
fn two_pairs_under_one_index_resolve_to_the_pair_of_the_initiator() {
    for to in 0..2 {
        let mut pair = Pair::connected(2);
        let prefix = last_prefix(&mut pair, to);
        // The real host must not run: it would receive acknowledgements of packets that it has not
        // sent, and end the connection.
        pair.hosts[1 - to].paused = true;
        let elsewhere = address(1 - to, 5);
        let forged = |pair: &mut Pair, packet: u32| {
            let flight = challenge(Prefix { packet, ..prefix }, 1, elsewhere);
            pair.deliver(&mut Flight { to, ..flight });
            pair.turn(to);
        };
        let known = |pair: &Pair| {
            let paths = pair.hosts[to].info().paths;
            paths.iter().find(|path| path.index == 1).map(|path| path.peer)
        };
        forged(&mut pair, 1_000);
        assert_eq!(known(&pair), Some(address(1 - to, 1)), "a link that works stays");
        let heard = challenge(Prefix { packet: 900, ..prefix }, 1, address(1 - to, 1));
        pair.deliver(&mut Flight { to, link: 1, ..heard });
        for host in 0..2 {
            pair.set_up(host, 1, false);
        }
        pair.hosts[to].engine.handle_link_event(pair.now, LinkId(1), LinkEvent::Down);
        pair.run_for(900_000_000);
        forged(&mut pair, 2_000);
        assert_eq!(
            known(&pair),
            Some(address(1 - to, 1)),
            "a forged frame changed a recently used address"
        );
        pair.run_for(200_000_000);
        forged(&mut pair, 3_000);
        let expected = if to == 0 { None } else { Some(elsewhere) };
        assert_eq!(known(&pair), expected);
    }
}
