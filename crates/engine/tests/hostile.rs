//! Tests of attacks by peers and strangers, and of the limits of the damage (protocol.md §4.5,
//! §7.3, §8).

mod pair;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use delivery::{LinkId, LinkState};
use engine::{ConnectRequest, ConnectionHandle, EngineConfig, Event, Terms};
use pair::{Flight, LinkPlan, Pair, address};
use wire_edge::{
    ACK_SECTION_BYTES_MAX, AckBlock, Addresses, CONTROL_BYTES_MAX, ConnectionId, Control, Epoch,
    Features, Flags, HANDSHAKE_BYTES_MAX, HEADER_BYTES_MAX, Handshake, HandshakeFrame, Header,
    LinkIndex, LinkStatus, MessageNumber, OperationNumber, Parameters, PeerAddr, Prefix, VERSION,
    decode, encode_acks, encode_header,
};

/// An attacker that replaces the first host and sends arbitrary frames as the first host.
struct Rogue {
    /// The prefix of the last frame sent.
    prefix: Prefix,
}

impl Rogue {
    /// Replaces the first host of a connected pair by an attacker. The first host sends nothing
    /// after this call.
    fn replace(pair: &mut Pair) -> Self {
        let prefix = Rc::new(RefCell::new(None));
        let spied = Rc::clone(&prefix);
        pair.filter = Box::new(move |_, flight| {
            if flight.to == 1
                && let Ok(frame) = decode(&flight.bytes)
            {
                *spied.borrow_mut() = Some(frame.prefix);
            }
            true
        });
        pair.write(0, 0, 8, 0);
        pair.run_for(1_000_000_000);
        pair.filter = Box::new(|_, _| true);
        pair.hosts[0].paused = true;
        let prefix = prefix.borrow_mut().take();
        Self { prefix: prefix.expect("the write was sent") }
    }

    /// Returns a frame to the second host with these control messages, on the given link.
    fn control(&mut self, link: u8, from: PeerAddr, messages: &[Control<'_>]) -> Flight {
        let mut flight = self.frame(link, from, &Header::Control);
        for message in messages {
            let mut encoded = [0; CONTROL_BYTES_MAX];
            let len = message.encode(&mut encoded);
            flight.bytes.extend_from_slice(&encoded[..len]);
        }
        flight
    }

    /// Returns a frame without payload.
    fn frame(&mut self, link: u8, from: PeerAddr, header: &Header) -> Flight {
        self.prefix.packet = self.prefix.packet.wrapping_add(1);
        let (kind, link, flags) = (header.kind(), LinkIndex(link), Flags::NONE);
        let prefix = Prefix { kind, link, flags, ..self.prefix };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = encode_header(&prefix, header, &mut bytes);
        Flight { to: 1, link: 0, from, bytes: bytes[..len].to_vec() }
    }
}

#[test]
fn repeated_questions_have_few_answers_in_flight() {
    let mut pair = Pair::connected(1);
    let mut rogue = Rogue::replace(&mut pair);
    let mut most = 0;
    for turn in 0..70_000_u32 {
        let mut question = rogue.control(0, address(0, 0), &[Control::Links(1 | 1 << 5)]);
        pair.deliver(&mut question);
        pair.turn(1);
        pair.wire.clear();
        pair.now = pair.now.after_ns(1_000);
        if turn % 1000 == 0 {
            most = most.max(pair.hosts[1].info().paths[0].in_flight_bytes);
        }
    }
    assert!(most <= 4096, "{most} bytes without an acknowledgement");
}

/// Returns the address of a host that sends nothing and answers nothing.
fn victim() -> PeerAddr {
    address(0, 9)
}

/// Advances time by `ms` milliseconds, during which all frames to the first host are lost.
fn pass(pair: &mut Pair, ms: u32) {
    for _ in 0..ms {
        pair.wire.clear();
        pair.run_for(1_000_000);
    }
    pair.wire.clear();
}

fn bytes_to_the_victim(pair: &Pair) -> u64 {
    pair.strays.get(&victim().0).map_or(0, |&(_, bytes)| bytes)
}

//= protocol.md: amplify.6, state.5
#[test]
fn no_data_is_sent_to_an_unvalidated_address() {
    for status in [LinkStatus::Down, LinkStatus::Removed] {
        let mut pair = Pair::connected(1);
        let mut rogue = Rogue::replace(&mut pair);
        let challenge = rogue.control(1, victim(), &[Control::PathChallenge(1)]);
        let forged_bytes = challenge.bytes.len() as u64;
        let (key, address) = pair.remote(1, 0);
        let operation = OperationNumber(1);
        let read = Header::ReadRequest { operation, length: 1 << 22, key, address };
        let own = pair::address(0, 0);
        let mut frames = vec![
            challenge,
            rogue.control(0, own, &[Control::LinkStatus(LinkIndex(0), status)]),
            rogue.frame(0, own, &read),
        ];
        for flight in &mut frames {
            pair.deliver(flight);
            pair.turn(1);
        }
        assert_eq!(pair.hosts[1].info().paths.len(), 2, "the link that answered was removed");
        // The attacker still sends frames on its own link.
        for _ in 0..3000 {
            pass(&mut pair, 1);
            pair.deliver(&mut rogue.control(0, own, &[Control::Ping]));
        }
        let sent_bytes = bytes_to_the_victim(&pair);
        assert!(sent_bytes <= 3 * forged_bytes, "{sent_bytes} for {forged_bytes}");
        assert!(sent_bytes > 0, "the forged address was not probed");
        assert_eq!(
            pair.hosts[1].info().paths.len(),
            1,
            "the forged link, which does not answer, was not removed"
        );
        assert!(pair.hosts[1].closed().is_empty());
    }
}

//= protocol.md: amplify.5
#[test]
fn an_unvalidated_address_gets_at_most_three_times_what_it_sent() {
    let mut pair = Pair::connected(1);
    let mut rogue = Rogue::replace(&mut pair);
    let mut forged_bytes = 0;
    for round in 0..400_u64 {
        let index = 1 + (round % 3) as u8;
        let mut flight = match round % 7 {
            0..5 => rogue.control(index, victim(), &[Control::PathChallenge(round)]),
            5 => rogue.control(index, victim(), &[Control::Ping, Control::Links(0)]),
            _ => rogue.control(
                0,
                address(0, 0),
                &[Control::LinkStatus(LinkIndex(index), LinkStatus::Available)],
            ),
        };
        if flight.from == victim() {
            forged_bytes += flight.bytes.len() as u64;
        }
        pair.deliver(&mut flight);
        pass(&mut pair, if round % 8 == 0 { 1000 } else { 13 });
        let sent_bytes = bytes_to_the_victim(&pair);
        assert!(sent_bytes <= 3 * forged_bytes, "{sent_bytes} for {forged_bytes}");
    }
    let close = [Control::Close {
        reason: wire_edge::CloseReason::Application,
        operation: OperationNumber(0),
        private_data: &[],
    }];
    pair.deliver(&mut rogue.control(1, victim(), &[Control::PathChallenge(1)]));
    pair.deliver(&mut rogue.control(0, address(0, 0), &close));
    pass(&mut pair, 1000);
    assert!(bytes_to_the_victim(&pair) <= 3 * (forged_bytes + 22));
}

/// An attacker that asks for connections to the second host, over its first link, and never
/// confirms any of them.
#[derive(Default)]
struct Flood {
    asked: u32,
}

impl Flood {
    /// Sends one more request, with a valid cookie.
    fn ask(&mut self, pair: &mut Pair) {
        self.asked += 1;
        let mut hello = hello(self.asked, [0; 24]);
        pair.deliver(&mut hello);
        pair.turn(1);
        let cookie = pair.wire.values().find_map(|flight| {
            match wire_edge::decode_handshake(&flight.bytes).ok()?.body {
                Handshake::Retry { cookie } if flight.to == 0 && flight.link == 0 => Some(cookie),
                _ => None,
            }
        });
        pair.wire.retain(|_, flight| flight.link != 0);
        if let Some(cookie) = cookie {
            pair.deliver(&mut self::hello(self.asked, cookie));
            pair.turn(1);
        }
        pair.wire.retain(|_, flight| flight.link != 0);
    }
}

fn hello(source: u32, cookie: [u8; 24]) -> Flight {
    hello_to(source, cookie, 7, 0)
}

fn hello_to(source: u32, cookie: [u8; 24], epoch: u16, service: u32) -> Flight {
    let parameters = Parameters {
        incarnation: 1,
        features: Features(0),
        epoch: Epoch(epoch),
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
    let body = Handshake::Hello { parameters, cookie, addresses, private_data: &[] };
    let (destination, source) = (ConnectionId(0), ConnectionId(source));
    let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
    let frame = HandshakeFrame { version: VERSION, destination, source, body };
    let length = frame.encode(&mut bytes);
    bytes.truncate(length);
    Flight { to: 1, link: 0, from: address(0, 0), bytes }
}

/// Requests a connection from the first host over its second link. The address of that link differs
/// from the address of the flood.
fn connect(pair: &mut Pair) {
    let request = ConnectRequest {
        paths: vec![(LinkId(1), address(1, 1))],
        service: 0,
        private_data: Vec::new(),
        domain: pair.hosts[0].domain,
        queues: Arc::clone(&pair.hosts[0].queue).into(),
        terms: Terms::default(),
    };
    pair.hosts[0].engine.connect(pair.now, request).unwrap();
}

//= protocol.md: phase.2, set-up.7
#[test]
fn unconfirmed_connections_leave_room_for_other_peers() {
    let config = EngineConfig::default().connections_max(64);
    let mut pair = Pair::with(&[LinkPlan::default(); 2], config);
    pair.hosts[1].engine.listen(0);
    let mut flood = Flood::default();
    for _ in 0..200 {
        flood.ask(&mut pair);
    }
    connect(&mut pair);
    for _ in 0..1000 {
        flood.ask(&mut pair);
        pair.run_for(1_000_000);
        assert!(pair.hosts[1].engine.connection_count() <= 64 / 4 + 1);
    }
    assert_eq!(pair.hosts[0].established(), 1);
    // When unconfirmed connections end, other connections get their places.
    pair.run_for(10_000_000_000);
    assert_eq!(pair.hosts[1].engine.connection_count(), 1);
}

//= protocol.md: phase.3, phase.4
#[test]
fn an_unconfirmed_connection_does_not_block_its_listener_for_long() {
    let mut pair = Pair::new(2);
    pair.hosts[1].engine.listen(0);
    pair.hosts[1].accepts = false;
    let mut flood = Flood::default();
    let mut waiting: Vec<ConnectionHandle> = Vec::new();
    let mut taken_over: Option<ConnectionHandle> = None;
    for round in 0..2000 {
        flood.ask(&mut pair);
        if round == 500 {
            connect(&mut pair);
        }
        pair.run_for(1_000_000);
        // The listener decides about one request at a time, and accepts each request.
        for event in core::mem::take(&mut pair.hosts[1].events) {
            match event {
                Event::Requested { connection, .. } => waiting.push(connection),
                Event::Established { connection, .. } | Event::Closed { connection, .. } => {
                    waiting.retain(|waits| *waits != connection);
                    taken_over = taken_over.filter(|taken| *taken != connection);
                }
                _ => {}
            }
        }
        if taken_over.is_none() && !waiting.is_empty() {
            let next = waiting.remove(0);
            pair.accept(1, next);
            taken_over = Some(next);
        }
    }
    assert_eq!(pair.hosts[0].established(), 1, "{:?}", pair.hosts[1].engine.counters());
}

/// Returns the second host's immediate answer to a frame.
fn answer_to(pair: &mut Pair, mut flight: Flight) -> Vec<u8> {
    pair.wire.clear();
    pair.deliver(&mut flight);
    pair.turn(1);
    let answers: Vec<Vec<u8>> = pair.wire.values().map(|flight| flight.bytes.clone()).collect();
    answers.concat()
}

//= protocol.md: receive.1, reset.1, name.3
#[test]
fn an_answer_does_not_reveal_whether_a_connection_exists() {
    let mut pair = Pair::connected(1);
    let mut rogue = Rogue::replace(&mut pair);
    let prefix = rogue.prefix;
    let elsewhere = address(0, 8);
    pair.strays.clear();
    for from in [address(0, 0), elsewhere] {
        let mut answers = Vec::new();
        for connection in [prefix.connection, ConnectionId(prefix.connection.0 ^ 1)] {
            let epoch = Epoch(prefix.epoch.0 ^ 1);
            rogue.prefix = Prefix { connection, epoch, ..prefix };
            let mut answer =
                answer_to(&mut pair, rogue.control(0, from, &[Control::PathChallenge(1); 2]));
            // These bytes are the connection id, which is random. Ignore them.
            if let Some(id) = answer.get_mut(12..16) {
                id.fill(0);
            }
            answers.push((answer, core::mem::take(&mut pair.strays)));
        }
        assert_eq!(answers[0], answers[1]);
        assert!(!answers[0].0.is_empty() || !answers[0].1.is_empty());
    }
    assert_eq!(pair.hosts[1].engine.counters().wrong_epoch, 2);
    assert!(pair.hosts[1].closed().is_empty());
}

//= protocol.md: amplify.3
#[test]
fn frames_from_multicast_addresses_are_not_answered() {
    let mut group = [0; 20];
    group[0] = 1;
    group[4..10].fill(0xff);
    let ip = |text: &str| PeerAddr::from(text.parse::<std::net::SocketAddr>().unwrap());
    for from in [PeerAddr(group), ip("224.0.0.1:1"), ip("255.255.255.255:1"), ip("[ff02::1]:1")] {
        let mut pair = Pair::connected(1);
        let mut rogue = Rogue::replace(&mut pair);
        pair.deliver(&mut rogue.control(1, from, &[Control::PathChallenge(1)]));
        pair.deliver(&mut Flight { from, ..hello(5, [0; 24]) });
        rogue.prefix.connection.0 ^= 1;
        pair.deliver(&mut rogue.control(0, from, &[Control::PathChallenge(1); 2]));
        pass(&mut pair, 1000);
        assert!(pair.strays.is_empty(), "{:?}", pair.strays);
        assert_eq!(pair.hosts[1].info().paths.len(), 1);
    }
}

//= protocol.md: set-up.10
#[test]
fn requests_with_different_epochs_or_services_are_distinct() {
    let mut pair = Pair::new(1);
    pair.hosts[1].accepts = false;
    for service in 0..2 {
        pair.hosts[1].engine.listen(service);
    }
    let mut requests = 0;
    for (epoch, service) in [(7, 0), (7, 1), (8, 0), (8, 1)] {
        for _ in 0..3 {
            let mut cookie = [0; 24];
            for _ in 0..2 {
                let answer = answer_to(&mut pair, hello_to(5, cookie, epoch, service));
                if let Ok(HandshakeFrame { body: Handshake::Retry { cookie: fresh }, .. }) =
                    wire_edge::decode_handshake(&answer)
                {
                    cookie = fresh;
                }
            }
        }
        requests += 1;
        assert_eq!(pair.hosts[1].events.len(), requests);
    }
}

#[test]
fn an_acknowledgement_may_remove_the_link_that_carried_it() {
    let config = EngineConfig::default().keep_alive_ns(3_000_000_000);
    let mut pair = Pair::connected_with(&[LinkPlan::default(); 2], config);
    // The prefix of the last frame that each end sent on each link.
    let sent: Rc<RefCell<[[Option<Prefix>; 3]; 2]>> = Rc::default();
    let is_cut = Rc::new(RefCell::new(false));
    let (spied, cut) = (Rc::clone(&sent), Rc::clone(&is_cut));
    pair.filter = Box::new(move |_, flight| {
        if let Ok(frame) = decode(&flight.bytes) {
            let index = usize::from(frame.prefix.link.0);
            spied.borrow_mut()[1 - flight.to][index] = Some(frame.prefix);
        }
        !*cut.borrow() || flight.link == 0
    });
    pair.run_for(4_000_000_000);
    // Replace a link by a new link that uses the same two addresses.
    let handle = pair.hosts[0].connection.unwrap();
    pair.hosts[0].engine.remove_path(handle, 1).unwrap();
    let now = pair.now;
    pair.hosts[0].engine.add_path(now, handle, LinkId(1), address(1, 1)).unwrap();
    pair.run_for(700_000_000);
    let states = |pair: &Pair| {
        let paths = pair.hosts[0].info().paths;
        paths.iter().map(|path| (path.index, path.state)).collect::<Vec<_>>()
    };
    assert_eq!(states(&pair), [(0, LinkState::Up), (2, LinkState::Up)]);
    // Wait until the new link is suspect and packets are in flight on it.
    *is_cut.borrow_mut() = true;
    pair.run_until(10_000_000_000, "the link is suspected", |pair| {
        states(pair)[1].1 == LinkState::Suspect && pair.hosts[0].info().paths[1].in_flight_bytes > 0
    });
    // The peer sends on the old link, as if the peer had removed all other links. The frame also
    // acknowledges the packets in flight on the new link.
    let largest = sent.borrow()[0][2].unwrap().packet;
    let before = sent.borrow()[1][1].unwrap();
    let prefix = Prefix {
        kind: Header::Control.kind(),
        flags: Flags::ACK,
        packet: before.packet.wrapping_add(1),
        ..before
    };
    let block = AckBlock { link: LinkIndex(2), run: 1, largest, ..AckBlock::default() };
    let mut header = [0; HEADER_BYTES_MAX];
    let len = encode_header(&prefix, &Header::Control, &mut header);
    let mut bytes = header[..len].to_vec();
    let mut acks = [0; ACK_SECTION_BYTES_MAX];
    let len = encode_acks(OperationNumber(0), MessageNumber(0), &[block], &mut acks);
    bytes.extend_from_slice(&acks[..len]);
    for index in [0, 2] {
        let mut message = [0; CONTROL_BYTES_MAX];
        let removed = Control::LinkStatus(LinkIndex(index), LinkStatus::Removed);
        let len = removed.encode(&mut message);
        bytes.extend_from_slice(&message[..len]);
    }
    pair.deliver(&mut Flight { to: 0, link: 1, from: address(1, 1), bytes });
    assert!(states(&pair).contains(&(2, LinkState::Up)), "the acknowledgement restores the link");
    assert!(pair.hosts[0].closed().is_empty());
}
