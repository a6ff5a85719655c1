//! Connections that stay on TCP, and the reasons.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};

use crate::pair::{End, Pair, is_moved};
use nix::errno::Errno;
use sockets::{Connection, Reason, Route};

/// Settings with which all frames of the edge are lost and offers still arrive.
const BLOCKED: &[(&str, &str)] = &[("ETHERNOT_SOCKETS_FAULTS", "loss=1")];

fn left(end: &End) -> Reason {
    end.wait_until(|connection: &Connection| matches!(connection.route(), Route::Left(_)));
    match end.connection.route() {
        Route::Left(reason) => reason,
        other => panic!("{other:?}"),
    }
}

//= sockets-protocol.md: offer.4, offer.5
#[test]
fn connections_with_a_peer_without_the_library_stay_on_tcp() {
    let pair = Pair::new();
    let (client, mut plain) = pair.tcp();
    let client = pair.connected(client);
    client.send_all(b"hello");
    let mut room = [0; 5];
    plain.read_exact(&mut room).expect("it comes by TCP");
    pair.client.sockets.drive();
    assert_eq!(left(&client), Reason::NoOffer);

    let (mut plain, server) = pair.tcp();
    let server = pair.accepted(server);
    plain.write_all(b"hello").expect("it goes by TCP");
    server.expect(b"hello");
    pair.server.sockets.drive();
    assert_eq!(left(&server), Reason::NoAnswer);
}

//= sockets-protocol.md: rendezvous.1, offer.3, offer.4
#[test]
fn a_connection_that_the_client_uses_late_still_moves() {
    let pair = Pair::new();
    let (late, server) = pair.tcp();
    let server = pair.accepted(server);
    let (mut plain, other) = pair.tcp();
    let other = pair.accepted(other);
    plain.write_all(b"hello").expect("it goes by TCP");
    other.expect(b"hello");
    pair.server.sockets.drive();
    // Both offers have expired. `other` has carried bytes, so it stays on TCP. `server` has carried
    // none, so it can still move.
    assert_eq!(left(&other), Reason::NoAnswer);
    assert_eq!(server.connection.route(), Route::Undecided);
    let late = pair.connected(late);
    late.send_all(b"hello");
    server.expect(b"hello");
    late.wait_until(is_moved);
    server.wait_until(is_moved);
}

//= sockets-protocol.md: join.5
#[test]
fn a_connection_stays_on_tcp_if_the_edge_is_blocked() {
    let pair = Pair::with(BLOCKED, BLOCKED);
    let (client, server) = pair.connect();
    client.send_all(b"hello");
    server.expect(b"hello");
    pair.client.sockets.drive();
    pair.server.sockets.drive();
    assert_eq!(left(&client), Reason::NoGroup);
    assert_eq!(left(&server), Reason::NoAnswer);
}

//= sockets-protocol.md: rendezvous.1
#[test]
fn a_connection_stays_on_tcp_if_the_udp_port_is_taken() {
    let pair = Pair::new();
    let (client, _server) = pair.tcp();
    let _taken = UdpSocket::bind(client.local_addr().unwrap()).expect("the port is free");
    assert_eq!(left(&pair.connected(client)), Reason::NoRendezvousSocket);
}

//= sockets-protocol.md: offer.1, offer.2, version.2
#[test]
fn datagrams_of_strangers_are_ignored_and_another_version_is_reported() {
    let pair = Pair::new();
    // Move a connection first, because this opens the link. Without the link, the client would
    // ignore all offers.
    drop(pair.moved());
    let (client, _server) = pair.tcp();
    let rendezvous_socket = client.local_addr().unwrap();
    let client = pair.connected(client);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
    for bytes in [&b""[..], b"x", b"ENSO\x03\x01 no offer", &[0xff; 2000]] {
        stranger.send_to(bytes, rendezvous_socket).expect("it is sent");
    }
    let elsewhere = UdpSocket::bind("127.0.0.9:0").expect("all of 127.0.0.0/8 is there");
    elsewhere.send_to(b"ENSO\x09 of another version", rendezvous_socket).expect("it is sent");
    pair.client.sockets.drive();
    assert_eq!(client.connection.route(), Route::Undecided);
    stranger.send_to(b"ENSO\x09 of another version", rendezvous_socket).expect("it is sent");
    assert_eq!(left(&client), Reason::Version);
}

#[test]
fn rendezvous_sockets_and_offers_of_closed_connections_are_removed() {
    let pair = Pair::new();
    drop(pair.moved());
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let before = descriptors();
    for _ in 0..300 {
        let (client, server) = pair.tcp();
        let client = pair.connected(client);
        drop(server);
        drop(client);
        let (client, server) = pair.tcp();
        drop(client);
        drop(pair.accepted(server));
    }
    // Descriptors of the last connections may still be open.
    assert!(descriptors() < before + 100, "{before} to {}", descriptors());
}

#[test]
fn a_stream_ends_like_tcp_and_its_rings_are_reused() {
    let pair = Pair::new();
    for round in 0..200_u32 {
        let (client, server) = pair.moved();
        client.send_all(&round.to_be_bytes());
        client.connection.shutdown(client.fd(), Shutdown::Write).expect("it is shut down");
        server.expect(&round.to_be_bytes());
        assert_eq!(server.receive_some(), Ok(Vec::new()), "the end");
        server.send_all(b"answer");
        drop(server);
        client.expect(b"answer");
        assert_eq!(client.receive_some(), Ok(Vec::new()), "the end");
    }
}

#[test]
fn a_closed_peer_resets_a_writer() {
    let pair = Pair::new();
    let (client, server) = pair.moved();
    server.send_all(b"last words");
    drop(server);
    client.expect(b"last words");
    let error = loop {
        match client.try_send(b"more") {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!([Errno::EPIPE, Errno::ECONNRESET].contains(&error), "{error}");
}
