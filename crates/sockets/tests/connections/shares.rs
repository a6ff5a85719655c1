//! Tests that one peer cannot harm the connections of other peers.

#![expect(clippy::disallowed_methods, reason = "one test measures")]

use std::net::Ipv4Addr;
use std::time::Instant;

use ethernot::{ConnectOptions, Connection, Endpoint, OperationOptions};

use crate::by_hand::{LIMIT, Offer, SERVICE, endpoint, greeting, offer_at, with_rendezvous_socket};
use crate::pair::{End, Pair};

/// A moved connection, and an offer that names its server's endpoint.
struct Honest {
    pair: Pair,
    client: End,
    server: End,
    offer: Offer,
}

impl Honest {
    fn new() -> Self {
        let pair = Pair::new();
        let (client, server) = pair.moved();
        // An attacker can get an offer like every other client of the service, so get one here.
        let (_tcp, undecided, rendezvous_socket) = with_rendezvous_socket(&pair);
        let _undecided = pair.accepted(undecided);
        let offer = offer_at(&rendezvous_socket);
        let honest = Self { pair, client, server, offer };
        honest.expect_bytes_pass();
        honest
    }

    /// Checks that bytes pass in both directions.
    fn expect_bytes_pass(&self) {
        self.client.send_all(b"question");
        self.server.expect(b"question");
        self.server.send_all(b"answer");
        self.client.expect(b"answer");
    }

    /// Returns the time to transfer [`STREAM`] bytes, in seconds: the shortest of several runs.
    fn stream_seconds(&self) -> f64 {
        let part = vec![7; 1 << 16];
        let seconds = (0..9).map(|_| {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| (0..STREAM / part.len()).for_each(|_| self.client.send_all(&part)));
                (0..STREAM / part.len()).for_each(|_| self.server.expect(&part));
            });
            begun.elapsed().as_secs_f64()
        });
        seconds.fold(f64::MAX, f64::min)
    }

    /// Checks that a new connection moves.
    fn expect_another_moves(&self) {
        let (client, server) = self.pair.moved();
        client.send_all(b"x");
        server.expect(b"x");
    }

    /// Requests a link group from the server's endpoint.
    fn group_of(&self, peer: &Endpoint, incarnation: u128) -> Option<Connection> {
        let options = ConnectOptions::new().service(SERVICE).private_data(greeting(incarnation));
        peer.connect_with((Ipv4Addr::LOCALHOST, self.offer.port), options).ok()
    }
}

#[test]
fn idle_link_groups_block_no_connection_of_others() {
    let honest = Honest::new();
    let peer = endpoint();
    let groups: Vec<_> = (1000..1000 + GROUPS)
        .filter_map(|incarnation| honest.group_of(&peer, incarnation))
        .collect();
    assert_eq!(groups.len() as u128, GROUPS);
    honest.expect_bytes_pass();
    honest.expect_another_moves();
}

//= sockets-protocol.md: group.5
#[test]
fn one_host_gets_at_most_half_of_the_link_groups() {
    let honest = Honest::new();
    let peer = endpoint();
    let asked = (1000..1000 + 2 * GROUPS).map(|incarnation| honest.group_of(&peer, incarnation));
    let granted: Vec<_> = asked.take_while(Option::is_some).flatten().collect();
    assert!(granted.len() <= 2048, "{} are granted", granted.len());
    honest.expect_bytes_pass();
}

//= sockets-protocol.md: message.5
#[test]
fn a_peer_that_does_not_read_answers_loses_only_its_own_link_group() {
    let honest = Honest::new();
    let peer = endpoint();
    let group = honest.group_of(&peer, 1000).expect("it is granted");
    let (join, mut sent) = (join_of_nothing(), 0);
    while let Ok(handle) = group.send_bytes(&join, OperationOptions::NONE)
        && handle.wait(LIMIT).is_ok()
    {
        sent += 1;
        assert!(sent < ANSWERS, "it is borne with");
    }
    group.wait_closed(LIMIT).expect("it ends");
    honest.expect_bytes_pass();
    honest.expect_another_moves();
}

//= sockets-protocol.md: group.6
#[test]
fn a_link_group_that_joins_no_connection_is_closed() {
    let honest = Honest::new();
    let peer = endpoint();
    let group = honest.group_of(&peer, 1000).expect("it is granted");
    group.wait_closed(LIMIT).expect("it ends");
    honest.expect_bytes_pass();
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`; measures"]
fn others_are_as_fast_beside_peers_that_read_nothing() {
    let honest = Honest::new();
    let before = honest.stream_seconds();
    let peer = endpoint();
    let groups: Vec<_> = (1000..1000 + GROUPS)
        .filter_map(|incarnation| honest.group_of(&peer, incarnation))
        .collect();
    // The engine posts as many answers as it has room for. The others stay pending.
    let join = join_of_nothing();
    let asked = (0..2500).map(|_| groups[0].send_bytes(&join, OperationOptions::NONE));
    for sent in asked {
        let _value = sent.expect("it is sent").wait(LIMIT).expect("it is taken");
    }
    let beside = honest.stream_seconds();
    drop(groups);
    let alone = before.midpoint(honest.stream_seconds());
    println!("figure: throughput beside peers that take nothing: {:.2}", alone / beside);
}

/// Returns a Join with an unknown token.
fn join_of_nothing() -> Vec<u8> {
    // The fields after the kind: token, then number, switch marker, key, address and size of a
    // valid ring.
    let ring = 65_536_u32.to_be_bytes();
    [&[1_u8][..], &[0xff; 8], &[7; 4], &[7; 16], &[7; 4], &[0; 8], &ring].concat()
}

/// Length of a measured stream in bytes.
const STREAM: usize = 1 << 28;

/// Number of answers: far more than a correct peer leaves pending.
const ANSWERS: u32 = 20_000;

/// Number of groups. An earlier version had completion slots for fewer groups, so the test would
/// fail with it.
const GROUPS: u128 = 1100;
