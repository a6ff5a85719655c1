//! Connections that move.

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, poll};

use crate::pair::{End, Pair, is_moved};
use sockets::{ReceiveFlags, Route, SendFlags};

#[test]
fn a_connection_moves_and_bytes_go_both_ways() {
    let pair = Pair::new();
    let (client, server) = pair.connect();
    // Send bytes before the connection moves, and after it has moved.
    client.send_all(b"before");
    server.expect(b"before");
    client.wait_until(is_moved);
    server.wait_until(is_moved);
    client.send_all(b"hello, ");
    client.send_all(b"world");
    server.expect(b"hello, world");
    server.send_all(b"good bye");
    client.expect(b"good bye");
}

#[test]
fn corked_bytes_are_sent_even_if_their_program_never_waits() {
    let pair = Pair::new();
    let (client, server) = pair.moved();
    let more = SendFlags { more: true, ..SendFlags::default() };
    assert_eq!(client.connection.send(client.fd(), &[IoSlice::new(b"more")], more), Ok(4));
    server.expect(b"more");
    client.connection.set_cork(true);
    client.send_all(b"cork");
    server.expect(b"cork");
}

#[test]
fn bytes_written_during_the_move_arrive_once_in_order() {
    let pair = Pair::new();
    for _ in 0..20 {
        let (client, server) = pair.connect();
        let total = 1 << 20;
        std::thread::scope(|scope| {
            for (from, to) in [(&client, &server), (&server, &client)] {
                scope.spawn(move || send_counting(from, total));
                scope.spawn(move || expect_counting(to, total));
            }
        });
        client.wait_until(is_moved);
    }
}

#[test]
fn a_connection_closed_during_its_move_delivers_written_bytes_and_the_end() {
    let pair = Pair::new();
    drop(pair.moved());
    for round in 0..300_u32 {
        let (client, server) = pair.connect();
        client.send_all(b"last words");
        // In each round, close at a different point of the move.
        for _ in 0..round % 60 {
            std::thread::yield_now();
        }
        drop(client);
        server.expect(b"last words");
        assert_eq!(server.receive_some(), Ok(Vec::new()), "the end, in round {round}");
    }
}

//= sockets-protocol.md: join.3
#[test]
fn a_connection_whose_first_answer_fills_tcp_moves_when_there_is_room() {
    let pair = Pair::new();
    drop(pair.moved());
    let (client, server) = pair.tcp();
    server.set_nonblocking(true).expect("a socket");
    let (mut written, mut refused) = (0, 0);
    // Bytes in flight still arrive and free room in the kernel. Therefore stop only after several
    // writes have failed.
    while refused < 3 {
        let bytes: Vec<u8> = (written..written + 60_000).map(byte_at).collect();
        if let Ok(count) = (&server).write(&bytes) {
            (written, refused) = (written + count, 0);
            continue;
        }
        refused += 1;
        let mut room = [PollFd::new(server.as_fd(), PollFlags::POLLOUT)];
        poll(&mut room, 100_u8).expect("it is looked at");
    }
    server.set_nonblocking(false).expect("a socket");
    let client = pair.connected(client);
    let server = pair.accepted(server);
    // Join arrives while TCP is full.
    for _ in 0..1000 {
        pair.client.sockets.drive();
        pair.server.sockets.drive();
        std::thread::yield_now();
    }
    assert_eq!(server.connection.route(), Route::Undecided);
    expect_counting(&client, written);
    server.wait_until(is_moved);
    client.wait_until(is_moved);
    server.send_all(b"more");
    client.expect(b"more");
}

fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

fn send_counting(end: &End, total: usize) {
    let mut sent = 0;
    while sent < total {
        let length = (1 + sent * 7 % 5000).min(total - sent);
        let bytes: Vec<u8> = (sent..sent + length).map(byte_at).collect();
        let slices = [IoSlice::new(&bytes)];
        sent += end.connection.send(end.fd(), &slices, SendFlags::default()).expect("it is sent");
    }
}

fn expect_counting(end: &End, total: usize) {
    let mut received = 0;
    let mut room = [0; 8192];
    while received < total {
        let mut slices = [IoSliceMut::new(&mut room)];
        let length = end
            .connection
            .receive(end.fd(), &mut slices, ReceiveFlags::default())
            .expect("it is received");
        assert!(length > 0, "the end after {received} bytes");
        for (index, byte) in room[..length].iter().enumerate() {
            assert_eq!(*byte, byte_at(received + index), "at {}", received + index);
        }
        received += length;
    }
}
