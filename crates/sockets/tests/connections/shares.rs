//! What one peer does to the connections of all others: nothing.

use std::net::Ipv4Addr;

use ethernot::{ConnectOptions, Connection, Endpoint, OperationOptions};

use crate::by_hand::{LIMIT, Offer, SERVICE, endpoint, greeting, offer_at, with_door};
use crate::pair::{End, Pair};

/// A connection that has moved, and the port of the endpoint of its server.
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
        // Any client of the service gets an offer.
        let (_tcp, undecided, door) = with_door(&pair);
        let _undecided = pair.accepted(undecided);
        let offer = offer_at(&door);
        let honest = Self { pair, client, server, offer };
        honest.expect_bytes_pass();
        honest
    }

    /// Bytes pass in both directions.
    fn expect_bytes_pass(&self) {
        self.client.send_all(b"question");
        self.server.expect(b"question");
        self.server.send_all(b"answer");
        self.client.expect(b"answer");
    }

    /// A new connection moves.
    fn expect_another_moves(&self) {
        let (client, server) = self.pair.moved();
        client.send_all(b"x");
        server.expect(b"x");
    }

    /// Asks for a link group at the server's endpoint.
    fn group_of(&self, peer: &Endpoint, incarnation: u128) -> Option<Connection> {
        let options = ConnectOptions::new().service(SERVICE).private_data(greeting(incarnation));
        peer.connect_with((Ipv4Addr::LOCALHOST, self.offer.port), options).ok()
    }
}

#[test]
fn idle_link_groups_stop_no_connection_of_others() {
    let honest = Honest::new();
    let peer = endpoint();
    let groups: Vec<_> = (1000..1000 + GROUPS)
        .filter_map(|incarnation| honest.group_of(&peer, incarnation))
        .collect();
    assert_eq!(groups.len() as u128, GROUPS);
    honest.expect_bytes_pass();
    honest.expect_another_moves();
}

//= sockets-protocol.md: message.5
#[test]
fn a_peer_that_takes_no_answers_ends_its_own_link_group_only() {
    let honest = Honest::new();
    let peer = endpoint();
    let group = honest.group_of(&peer, 1000).expect("it is granted");
    // A token that was not given out; number, seal, key, address and bytes of a ring that may be.
    let ring = 65_536_u32.to_be_bytes();
    let join = [&[1_u8][..], &[0xff; 8], &[7; 4], &[7; 16], &[7; 4], &[0; 8], &ring].concat();
    let mut sent = 0;
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

/// Far more than any peer leaves without taking them.
const ANSWERS: u32 = 20_000;

/// More than had places for the completions of their messages once.
const GROUPS: u128 = 1100;
