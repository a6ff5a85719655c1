//! Tests how the library reacts to handmade peers that follow or violate the protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ethernot::{ConnectOptions, Connection};
use nix::errno::Errno;
use sockets::{Reason, Route};

use crate::by_hand::{
    Hand, LIMIT, Offer, SERVICE, StreamEnd, end_in, endpoint, greeting, offer_at, offer_bytes,
    with_rendezvous_socket,
};
use crate::pair::{End, Pair};

const MARKER: &[u8; 16] = b"0123456789abcdef";
const INCARNATION: u128 = 7;
const NUMBER: u32 = 40;

const JOIN: &[u8] = &[1];
const JOINED: &[u8] = &[2];
const REFUSED: u8 = 3;
const CREDIT: &[u8] = &[4];
const END: &[u8] = &[5];
const RESET: &[u8] = &[6];

/// A connection that a handmade peer has joined. The peer has not written its switch marker yet.
struct Joined {
    pair: Pair,
    server: End,
    tcp: TcpStream,
    hand: Hand,
    theirs: StreamEnd,
}

impl Joined {
    fn new() -> Self {
        let pair = Pair::new();
        let (mut tcp, server, rendezvous_socket) = with_rendezvous_socket(&pair);
        let server = pair.accepted(server);
        let offer = offer_at(&rendezvous_socket);
        let mut hand = Hand::connect(offer, INCARNATION);
        hand.say(&[JOIN, &offer.token.to_be_bytes(), &hand.end(NUMBER, MARKER)]);
        let mut marker = [0; 16];
        tcp.read_exact(&mut marker).expect("the switch marker comes by TCP");
        assert_eq!(&marker, MARKER);
        let joined = hand.hear();
        assert_eq!(
            (joined.len(), &joined[..5]),
            (41, [JOINED, &NUMBER.to_be_bytes()].concat().as_slice())
        );
        let theirs = end_in(&joined);
        Self { pair, server, tcp, hand, theirs }
    }

    /// Joins a connection and writes the handmade peer's switch marker.
    fn switched() -> Self {
        let mut joined = Self::new();
        joined.tcp.write_all(&joined.theirs.marker).expect("it is sent");
        joined
    }

    fn to(&self) -> [u8; 4] {
        self.theirs.number.to_be_bytes()
    }

    /// Returns a byte that is in neither of the two switch markers that the server may receive.
    ///
    /// The library holds bytes back that may begin a switch marker, until the next byte arrives.
    /// One of the markers is random. A test that writes constant bytes and waits for all of them
    /// therefore hangs in about one of 256 runs.
    fn byte_of_no_marker(&self) -> u8 {
        let is_free = |byte: &u8| !self.theirs.marker.contains(byte) && !MARKER.contains(byte);
        (0..=u8::MAX).find(is_free).expect("two markers have at most 32 different bytes")
    }

    /// Checks that the connection is reset, because the handmade peer has violated the protocol.
    fn expect_reset(&self) {
        assert_eq!(self.server.receive_some(), Err(Errno::ECONNRESET));
    }

    fn expect_the_group_has_ended(&self) {
        self.hand.connection.wait_closed(LIMIT).expect("it ends");
        self.expect_reset();
    }
}

//= sockets-protocol.md: group.1, group.2, join.3, marker.1, data.1, data.4
#[test]
fn a_scripted_peer_moves_a_connection_and_is_read_only_after_its_marker() {
    let mut joined = Joined::new();
    joined.hand.write(b"hello", &joined.theirs, 0);
    joined.server.send_all(b"answer");
    assert_eq!(joined.hand.ring_bytes(6), b"answer");
    joined.server.expect_nothing();
    let first = [joined.byte_of_no_marker(); 7];
    joined.tcp.write_all(&first).expect("it is sent");
    joined.server.expect(&first);
    joined.server.expect_nothing();
    joined.tcp.write_all(&joined.theirs.marker).expect("it is sent");
    joined.server.expect(b"hello");
    joined.hand.say(&[END, &joined.to(), &5_u64.to_be_bytes()]);
    assert_eq!(joined.server.receive_some(), Ok(Vec::new()));
    let Joined { server, mut hand, .. } = joined;
    drop(server);
    assert_eq!(hand.hear(), [END, &NUMBER.to_be_bytes(), &6_u64.to_be_bytes()].concat());
}

//= sockets-protocol.md: marker.1, join.7
#[test]
fn a_byte_that_may_begin_a_marker_is_held_back_until_the_next_byte_arrives() {
    for is_echo in [false, true] {
        let mut joined = Joined::new();
        let other = joined.byte_of_no_marker();
        let first = if is_echo { MARKER[0] } else { joined.theirs.marker[0] };
        joined.tcp.write_all(&[other, first]).expect("it is sent");
        joined.server.expect(&[other]);
        joined.server.expect_nothing();
        joined.tcp.write_all(&[other]).expect("it is sent");
        joined.server.expect(&[first, other]);
    }
}

//= sockets-protocol.md: join.2
#[test]
fn an_unknown_or_used_token_is_refused() {
    let pair = Pair::new();
    let (_tcp, server, rendezvous_socket) = with_rendezvous_socket(&pair);
    let _server = pair.accepted(server);
    let offer = offer_at(&rendezvous_socket);
    let mut hand = Hand::connect(offer, INCARNATION);
    let refused = [&[REFUSED][..], &NUMBER.to_be_bytes(), &[1]].concat();
    hand.say(&[JOIN, &(offer.token ^ 1).to_be_bytes(), &hand.end(NUMBER, MARKER)]);
    assert_eq!(hand.hear(), refused);
    hand.say(&[JOIN, &offer.token.to_be_bytes(), &hand.end(NUMBER, MARKER)]);
    assert_eq!(hand.hear()[..1], *JOINED);
    hand.say(&[JOIN, &offer.token.to_be_bytes(), &hand.end(NUMBER, MARKER)]);
    assert_eq!(hand.hear(), refused);
}

//= sockets-protocol.md: group.4, message.1, message.2
#[test]
fn a_malformed_message_ends_the_group_and_resets_its_streams() {
    let nine = [9; 46];
    for malformed in [&[][..], &[9], &[6, 0, 0, 0], &[6, 0, 0, 0, 0, 0], &nine] {
        let joined = Joined::switched();
        joined.hand.say(&[malformed]);
        joined.expect_the_group_has_ended();
    }
}

//= sockets-protocol.md: message.3
#[test]
fn an_invalid_ring_location_ends_the_group() {
    for (address, bytes) in [(0_u64, 4095_u32), (0, 1 << 31), (u64::MAX - 100, 4096)] {
        let joined = Joined::switched();
        let end = [
            &NUMBER.to_be_bytes()[..],
            MARKER,
            &[0; 4],
            &address.to_be_bytes(),
            &bytes.to_be_bytes(),
        ];
        joined.hand.say(&[JOIN, &1_u64.to_be_bytes(), &end.concat()]);
        joined.expect_the_group_has_ended();
    }
}

//= sockets-protocol.md: message.4
#[test]
fn a_message_for_an_unknown_stream_is_ignored_except_joined_which_gets_a_reset() {
    let mut joined = Joined::switched();
    let unknown = 12_345_u32.to_be_bytes();
    joined.hand.say(&[CREDIT, &unknown, &1_u64.to_be_bytes()]);
    joined.hand.say(&[END, &unknown, &1_u64.to_be_bytes()]);
    joined.hand.say(&[RESET, &unknown]);
    joined.hand.say(&[JOINED, &unknown, &joined.hand.end(NUMBER + 1, MARKER)]);
    assert_eq!(joined.hand.hear(), [RESET, &(NUMBER + 1).to_be_bytes()].concat());
    joined.hand.write(b"still there", &joined.theirs, 0);
    joined.server.expect(b"still there");
}

//= sockets-protocol.md: marker.2
#[test]
fn bytes_after_the_marker_or_an_early_end_of_tcp_reset_the_stream() {
    let mut joined = Joined::switched();
    joined.tcp.write_all(b"behind").expect("it is sent");
    joined.expect_reset();
    assert_eq!(joined.hand.hear(), [RESET, &NUMBER.to_be_bytes()].concat());

    let Joined { server, tcp, mut hand, pair, .. } = Joined::switched();
    drop(tcp);
    assert_eq!(server.receive_some(), Err(Errno::ECONNRESET));
    assert_eq!(hand.hear(), [RESET, &NUMBER.to_be_bytes()].concat());
    drop(pair);
}

//= sockets-protocol.md: data.2
#[test]
fn a_write_that_leaves_a_gap_ends_the_group() {
    for offset in [1, 100] {
        let joined = Joined::switched();
        joined.hand.write(b"hello", &joined.theirs, offset);
        joined.expect_the_group_has_ended();
    }
}

//= sockets-protocol.md: data.2, data.3
#[test]
fn a_write_beyond_the_room_ends_the_group() {
    let joined = Joined::switched();
    let room = joined.theirs.ring.len;
    let chunk = [1; 64];
    for offset in (0..room).step_by(chunk.len()) {
        joined.hand.write(&chunk, &joined.theirs, offset);
    }
    // The program has read nothing, so the peer has no more credit.
    joined.hand.write(&chunk, &joined.theirs, 0);
    joined.hand.connection.wait_closed(LIMIT).expect("it ends");
}

//= sockets-protocol.md: data.3, data.4
#[test]
fn implausible_credit_and_ends_end_the_group() {
    for (kind, bytes) in [(CREDIT, 1_u64), (CREDIT, u64::MAX), (END, 1), (END, u64::MAX)] {
        let joined = Joined::switched();
        joined.hand.say(&[kind, &joined.to(), &bytes.to_be_bytes()]);
        joined.expect_the_group_has_ended();
    }
}

//= sockets-protocol.md: data.5
#[test]
fn a_reset_is_answered_with_one() {
    let mut joined = Joined::switched();
    joined.hand.say(&[RESET, &joined.to()]);
    assert_eq!(joined.hand.hear(), [RESET, &NUMBER.to_be_bytes()].concat());
    joined.expect_reset();
}

//= sockets-protocol.md: offer.3
#[test]
fn no_offer_is_sent_while_another_process_has_the_socket() {
    let pair = Pair::new();
    let (mut tcp, server, rendezvous_socket) = with_rendezvous_socket(&pair);
    pair.server.program.is_shared.store(true, Ordering::SeqCst);
    let server = pair.accepted(server);
    rendezvous_socket.set_read_timeout(Some(Duration::from_millis(30))).expect("a socket");
    let error = rendezvous_socket.recv(&mut [0; 100]).expect_err("no offer");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    pair.server.program.is_shared.store(false, Ordering::SeqCst);
    rendezvous_socket.set_read_timeout(LIMIT).expect("a socket");
    tcp.write_all(b"first").expect("it is sent");
    server.expect(b"first");
    offer_at(&rendezvous_socket);
}

//= sockets-protocol.md: group.2
#[test]
fn a_wrong_greeting_gets_no_group() {
    let pair = Pair::new();
    let (_tcp, server, rendezvous_socket) = with_rendezvous_socket(&pair);
    let _server = pair.accepted(server);
    let offer = offer_at(&rendezvous_socket);
    let mut another = greeting(INCARNATION);
    another[4] = 9;
    for data in [Vec::new(), another, greeting(0), [&greeting(1)[..], &[0]].concat()] {
        let options = ConnectOptions::new().service(SERVICE).private_data(data);
        let endpoint = endpoint();
        let refused = endpoint.connect_with((Ipv4Addr::LOCALHOST, offer.port), options);
        assert!(refused.is_err(), "{refused:?}");
    }
}

//= sockets-protocol.md: group.3
#[test]
fn a_peer_cannot_write_to_the_ring_of_another() {
    let joined = Joined::switched();
    let (_tcp, server, rendezvous_socket) = with_rendezvous_socket(&joined.pair);
    let _server = joined.pair.accepted(server);
    let thief = Hand::connect(offer_at(&rendezvous_socket), INCARNATION + 1);
    thief.write(b"stolen", &joined.theirs, 0);
    thief.connection.wait_closed(LIMIT).expect("it ends");
    joined.hand.write(b"mine", &joined.theirs, 0);
    joined.server.expect(b"mine");
}

/// Two connections from a client to a handmade peer. The peer makes an offer for each connection,
/// and accepts one group.
struct Asked {
    client: [End; 2],
    tcp: [TcpStream; 2],
    hand: Hand,
    _pair: Pair,
}

impl Asked {
    fn new() -> Self {
        let pair = Pair::new();
        // Move a connection first, because this opens the link. Without the link, the client would
        // ignore the offers below.
        drop(pair.moved());
        let endpoint = endpoint();
        let listener = endpoint.listen(SERVICE).expect("no other listener has the service");
        let port = endpoint.local_addresses().unwrap()[0].port();
        let ends = [1, 2].map(|token| {
            let (client, server) = pair.tcp();
            let (accepting, connecting) =
                (server.local_addr().unwrap(), client.local_addr().unwrap());
            let client = pair.connected(client);
            let offer = Offer { port, token };
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
            let bytes = offer_bytes(offer, INCARNATION, accepting, connecting);
            sender.send_to(&bytes, connecting).expect("it is sent");
            (client, server)
        });
        pair.client.sockets.drive();
        let request = listener.accept(LIMIT).expect("the client asks for a group");
        assert_eq!(
            (request.private_data().len(), &request.private_data()[..5]),
            (21, &b"ENSO\x03"[..])
        );
        let options = ConnectOptions::new().private_data(greeting(INCARNATION));
        let connection: Connection = request.accept_with(options).expect("it is granted");
        let hand = Hand::on(endpoint, connection);
        let [(first, first_tcp), (second, second_tcp)] = ends;
        Self { client: [first, second], tcp: [first_tcp, second_tcp], hand, _pair: pair }
    }

    /// Returns the descriptions of the stream ends in the two Joins, sorted by token.
    fn joins(&mut self) -> [StreamEnd; 2] {
        let mut joins = [self.hand.hear(), self.hand.hear()];
        joins.sort();
        for (join, token) in joins.iter().zip([1_u64, 2]) {
            assert_eq!(
                (join.len(), &join[..9]),
                (45, [JOIN, &token.to_be_bytes()].concat().as_slice())
            );
        }
        joins.each_ref().map(|join| end_in(join))
    }
}

//= sockets-protocol.md: group.1, join.1, join.4
#[test]
fn connections_to_one_process_share_a_group_and_answer_the_marker_that_arrived() {
    let mut asked = Asked::new();
    let [theirs, _] = asked.joins();
    asked.hand.say(&[JOINED, &theirs.number.to_be_bytes(), &asked.hand.end(NUMBER, MARKER)]);
    // The connection stays undecided until its switch marker arrives, so these bytes go by TCP.
    asked.client[0].send_all(b"question");
    let mut bytes = [0; 8];
    asked.tcp[0].read_exact(&mut bytes).expect("by TCP");
    assert_eq!((&bytes, asked.client[0].connection.route()), (b"question", Route::Undecided));
    asked.tcp[0].write_all(&theirs.marker).expect("it is sent");
    let mut marker = [0; 16];
    asked.tcp[0].read_exact(&mut marker).expect("by TCP");
    assert_eq!(&marker, MARKER);
    asked.client[0].wait_until(crate::pair::is_moved);
    asked.client[0].send_all(b"more");
    assert_eq!(asked.hand.ring_bytes(4), b"more");
}

//= sockets-protocol.md: group.4, join.3
#[test]
fn refused_connections_stay_on_tcp() {
    let mut asked = Asked::new();
    let [first, _] = asked.joins();
    asked.hand.say(&[&[REFUSED], &first.number.to_be_bytes(), &[5]]);
    let client = &asked.client[0];
    client.wait_until(|connection| matches!(connection.route(), Route::Left(_)));
    assert_eq!(client.connection.route(), Route::Left(Reason::Refused));
    asked.tcp[0].write_all(b"by TCP").expect("it is sent");
    client.expect(b"by TCP");
}

//= sockets-protocol.md: group.4, join.6
#[test]
fn a_connection_with_a_group_lost_before_the_answer_echoes_the_marker() {
    let mut asked = Asked::new();
    let [theirs, _] = asked.joins();
    asked.hand.connection.close(&[]).expect("it is closed");
    asked.tcp[0].write_all(b"by TCP").expect("it is sent");
    let client = &asked.client[0];
    client.expect(b"by TCP");
    client.send_all(b"as well");
    let mut bytes = [0; 7];
    asked.tcp[0].read_exact(&mut bytes).expect("by TCP");
    asked.tcp[0].write_all(&theirs.marker).expect("it is sent");
    // The library writes an echo of the marker. Then it returns to TCP: its record says that the
    // program has read 0 bytes of the ring.
    client.expect_nothing();
    asked.client[0].wait_until(crate::pair::is_moved);
    let mut answer = [0; 16 + 12];
    asked.tcp[0].read_exact(&mut answer).expect("by TCP");
    assert_eq!(answer, [&theirs.marker[..], &record(0)].concat().as_slice());
    asked.tcp[0].write_all(&[&record(0)[..], b"from byte 0"].concat()).expect("it is sent");
    let client = &asked.client[0];
    client.wait_until(|connection| connection.route() == Route::Left(Reason::Home));
    client.expect(b"from byte 0");
    client.send_all(b"and back");
    let mut bytes = [0; 8];
    asked.tcp[0].read_exact(&mut bytes).expect("by TCP");
    assert_eq!(&bytes, b"and back");
}

//= sockets-protocol.md: join.7, home.1, home.2
#[test]
fn a_moved_connection_with_a_lost_group_waits_for_a_marker_or_the_end() {
    for answer in 0..3 {
        let mut joined = Joined::new();
        joined.server.send_all(b"answer");
        assert_eq!(joined.hand.ring_bytes(6), b"answer");
        joined.hand.connection.close(&[]).expect("it is closed");
        let before = [joined.byte_of_no_marker(); 6];
        joined.tcp.write_all(&before).expect("it is sent");
        joined.server.expect(&before);
        joined.server.expect_nothing();
        assert_eq!(joined.server.connection.route(), Route::Moved);
        // In round 0, the peer writes the marker that the server expects, because the peer has
        // received the server's answer; its program has read 2 bytes of the answer. In round 1, the
        // peer writes its own marker (an echo). In round 2, TCP ends.
        let (marker, taken) = match answer {
            0 => (Some(joined.theirs.marker), 2),
            1 => (Some(*MARKER), 0),
            _ => (None, 0),
        };
        match marker {
            Some(marker) => {
                let sent = [&marker[..], &record(taken)].concat();
                joined.tcp.write_all(&sent).expect("it is sent");
            }
            None => joined.tcp.shutdown(Shutdown::Write).expect("connected"),
        }
        let home =
            |connection: &sockets::Connection| connection.route() == Route::Left(Reason::Home);
        joined.server.wait_until(home);
        let mut bytes = [0; 12 + 6];
        let expected = [&record(0)[..], &b"answer"[taken as usize..]].concat();
        let bytes = &mut bytes[..expected.len()];
        joined.tcp.read_exact(bytes).expect("by TCP");
        assert_eq!(bytes, expected);
        match marker {
            Some(_) => {
                joined.tcp.write_all(b"more").expect("it is sent");
                joined.server.expect(b"more");
            }
            None => assert_eq!(joined.server.receive_some(), Ok(Vec::new())),
        }
        joined.server.send_all(b"by TCP");
        let mut bytes = [0; 6];
        joined.tcp.read_exact(&mut bytes).expect("by TCP");
        assert_eq!(&bytes, b"by TCP");
    }
}

/// Returns the record that an end writes after the switch marker when it returns to TCP.
fn record(taken: u64) -> [u8; 12] {
    let mut bytes = *b"HOME........";
    bytes[4..].copy_from_slice(&taken.to_be_bytes());
    bytes
}

//= sockets-protocol.md: join.5, join.6, message.4
#[test]
fn unexpected_answers_get_a_reset_and_change_nothing() {
    let mut asked = Asked::new();
    let [first, second] = asked.joins();
    let number = |end: &StreamEnd| end.number.to_be_bytes();
    // The peer reports that it gave up after a part of the switch marker. Then it reports that it
    // has joined.
    asked.hand.say(&[RESET, &number(&first)]);
    asked.hand.say(&[JOINED, &number(&first), &asked.hand.end(NUMBER, MARKER)]);
    assert_eq!(asked.hand.hear(), [RESET, &NUMBER.to_be_bytes()[..]].concat());
    asked.client[0].send_all(b"by TCP");
    let mut bytes = [0; 6];
    asked.tcp[0].read_exact(&mut bytes).expect("by TCP");
    assert_eq!((&bytes, asked.client[0].connection.route()), (b"by TCP", Route::Undecided));
    // The peer sends Joined twice for the second connection, and then refuses it.
    for given in [NUMBER, NUMBER + 1] {
        asked.hand.say(&[JOINED, &number(&second), &asked.hand.end(given, MARKER)]);
    }
    asked.hand.say(&[&[REFUSED], &number(&second), &[5]]);
    assert_eq!(asked.hand.hear(), [RESET, &(NUMBER + 1).to_be_bytes()[..]].concat());
    asked.tcp[1].write_all(&second.marker).expect("it is sent");
    asked.client[1].wait_until(crate::pair::is_moved);
}
