//! Connections whose group is lost during the move, or for which the answer to Join is late.

use std::io::Write;
use std::net::Shutdown;

use delivery::Instant;
use nix::errno::Errno;

use super::{MARKERS, MOVE_STEPS, World};
use crate::calls::connection::{Connection, Route};
use crate::lock::lock;
use crate::migration::machine::{Event, Phase};
use crate::reasons::Reason;

/// Returns a world in which only the accepting end has moved. Each end has written bytes over TCP.
/// The accepting end has also written to the ring, and some of these bytes have arrived.
fn half_moved() -> World {
    let world = World::new();
    assert_eq!(world.send(0, b"ask "), Ok(4));
    assert!(world.move_on(0));
    assert_eq!(world.send(1, b"by TCP, "), Ok(8));
    assert!(world.move_on(1));
    assert_eq!(world.send(1, b"by the ring, "), Ok(13));
    world.network.carry();
    world
}

/// Makes the connecting end search for the switch marker, and write its own marker if that is due.
fn answer(world: &World) -> Phase {
    let connection = &world.ends[0].connection;
    if let Some(event) = connection.look_for_marker() {
        drop(connection.on(event, Instant(0)));
    }
    world.try_write_marker(0)
}

/// Checks that both ends have returned to TCP, and that bytes pass in both directions.
fn expect_home(world: &World, questions: &[u8], is_shut: bool) {
    assert_eq!(world.send(1, b"later"), Ok(5));
    world.network.carry();
    // An end returns to TCP only after its program has read the bytes that came by TCP.
    assert_eq!(world.receive_all(0, 8), b"by TCP, ");
    assert_eq!(world.receive_all(1, questions.len()), questions);
    assert_eq!(world.receive_all(0, 18), b"by the ring, later");
    for end in &world.ends {
        assert_eq!(end.connection.route(), Route::Left(Reason::Home));
    }
    let at_end = if is_shut { Ok(Vec::new()) } else { Err(Errno::EAGAIN) };
    assert_eq!(world.receive(1, 1), at_end);
    assert_eq!(world.send(1, b"!"), Ok(1));
    assert_eq!(world.receive_all(0, 1), b"!");
    if !is_shut {
        assert_eq!(world.send(0, b"?"), Ok(1));
        assert_eq!(world.receive_all(1, 1), b"?");
    }
}

//= sockets-protocol.md: join.6, join.7, group.4
#[test]
fn a_join_with_a_group_lost_before_the_answer_returns_to_tcp() {
    for reads_first in [false, true] {
        let world = half_moved();
        world.lose_group(0);
        assert_eq!(world.ends[0].connection.phase(), Phase::Unanswered);
        assert_eq!(world.send(0, b"more "), Ok(5));
        if reads_first {
            let first = world.receive(0, 100);
            assert_eq!(first.as_deref(), Ok(&b"by TCP, "[..]));
            assert_eq!(world.receive(0, 100), Err(Errno::EAGAIN), "not the switch marker");
        }
        world.lose_group(1);
        world.network.carry();
        assert_eq!(world.receive(1, 4).as_deref(), Ok(&b"ask "[..]));
        assert_eq!(answer(&world), Phase::Returning);
        assert_eq!(world.send(0, b"and more"), Ok(8));
        if reads_first {
            assert_eq!(world.send(1, b"later"), Ok(5));
            world.network.carry();
            assert_eq!(world.receive_all(1, 13), b"more and more");
            assert_eq!(world.receive_all(0, 18), b"by the ring, later");
            assert_eq!(world.ends[1].connection.route(), Route::Left(Reason::Home));
        } else {
            expect_home(&world, b"more and more", false);
        }
        let streams = lock(&world.network.streams).clone();
        assert!(streams.iter().all(|(stream, ..)| stream.has_ended()));
    }
}

/// No message reports the loss of the group to the accepting end. This end must detect the loss
/// from the bytes in TCP.
//= sockets-protocol.md: join.7
#[test]
fn an_echoed_marker_returns_a_peer_to_tcp_that_still_has_its_group() {
    let world = half_moved();
    world.lose_group(0);
    assert_eq!(answer(&world), Phase::Returning);
    expect_home(&world, b"ask ", false);
}

//= sockets-protocol.md: join.4, join.7, group.4
#[test]
fn a_join_with_a_group_lost_after_the_answer_returns_to_tcp() {
    for order in [[0, 1], [1, 0]] {
        let world = half_moved();
        drop(world.ends[0].connection.on(Event::Joined, Instant(0)));
        for index in order {
            world.lose_group(index);
            world.network.carry();
        }
        assert_eq!(world.ends[0].connection.phase(), Phase::Switching);
        assert_eq!(world.try_write_marker(0), Phase::Returning);
        expect_home(&world, b"ask ", false);
    }
}

//= sockets-protocol.md: join.6, join.7
#[test]
fn the_end_of_tcp_replaces_the_marker_of_a_peer_that_cannot_write_one() {
    for is_late in [false, true] {
        let world = half_moved();
        let connection = &world.ends[0].connection;
        if is_late {
            // The peer's answer is late: it arrives after the program has shut TCP down.
            drop(connection.on(Event::Time, connection.due()));
        } else {
            world.lose_group(0);
        }
        let shut = world.ends[0].call(|connection, fd| connection.shutdown(fd, Shutdown::Write));
        assert_eq!(shut, Ok(()));
        world.network.carry();
        assert_eq!(world.receive(0, 8).as_deref(), Ok(&b"by TCP, "[..]));
        assert_eq!(answer(&world), Phase::Returning);
        // These bytes must not be read from the ring, because this end cannot report to the peer
        // that it has read them.
        assert_eq!(world.receive(0, 100), Err(Errno::EAGAIN));
        assert_eq!(world.send(0, b"more"), Err(Errno::EPIPE));
        world.network.carry();
        assert_eq!(world.receive_all(1, 4), b"ask ");
        assert_eq!(world.receive_all(0, 13), b"by the ring, ");
        world.network.carry();
        for end in &world.ends {
            assert_eq!(end.connection.route(), Route::Left(Reason::Home));
        }
        assert_eq!(world.receive(1, 1), Ok(Vec::new()));
        assert_eq!(world.send(1, b"!"), Ok(1));
        assert_eq!(world.receive_all(0, 1), b"!");
    }
}

//= sockets-protocol.md: join.5
#[test]
fn a_late_answer_moves_the_connection() {
    let world = half_moved();
    let connection = &world.ends[0].connection;
    drop(connection.on(Event::Time, connection.due()));
    assert_eq!(connection.phase(), Phase::Unanswered);
    assert_eq!(world.receive(0, 100).as_deref(), Ok(&b"by TCP, "[..]));
    assert_eq!(world.receive(0, 100), Err(Errno::EAGAIN));
    assert!(world.move_on(MOVE_STEPS - 1));
    world.network.carry();
    assert_eq!(world.receive(0, 100).as_deref(), Ok(&b"by the ring, "[..]));
    assert_eq!(world.ends[0].connection.route(), Route::Moved);
}

//= sockets-protocol.md: marker.1, join.7
#[test]
fn no_ring_byte_is_read_after_an_echoed_marker() {
    let world = World::new();
    assert!(world.move_on(0) && world.move_on(1));
    let (stream, memory, _) = lock(&world.network.streams)[1].clone();
    memory[1].write(0, b"forged");
    stream.on_arrived(0, 6).expect("it follows");
    (&world.ends[0].tcp).write_all(&MARKERS[0].0).expect("room");
    world.network.carry();
    assert_eq!(world.receive(1, 100), Err(Errno::EAGAIN));
    (&world.ends[0].tcp).write_all(b"no record").expect("room");
    world.network.carry();
    assert_eq!(world.receive(1, 100), Err(Errno::ECONNRESET));
}

//= sockets-protocol.md: join.7
#[test]
fn an_end_after_a_partial_marker_resets_the_waiting_end() {
    for part in [&MARKERS[0].0[..3], &MARKERS[1].0] {
        let world = World::new();
        assert!(world.move_on(0) && world.move_on(1));
        world.lose_group(1);
        world.network.carry();
        assert_eq!(world.receive(1, 100), Err(Errno::EAGAIN), "it waits");
        (&world.ends[0].tcp).write_all(part).expect("room");
        world.ends[0].tcp.shutdown(Shutdown::Write).expect("connected");
        world.network.carry();
        assert_eq!(world.receive(1, 100), Err(Errno::ECONNRESET));
    }
}

//= sockets-protocol.md: join.6
#[test]
fn a_program_reads_no_byte_of_an_unanswerable_marker() {
    for wanted in [1, 7, 100] {
        for before in ["", "last"] {
            let world = World::new();
            assert!(world.move_on(0));
            assert_eq!(world.send(1, before.as_bytes()), Ok(before.len()));
            assert!(world.move_on(1));
            // The peer wrote a part of the marker, failed, and then reported that it failed.
            drop(world.ends[0].connection.on(Event::Forgotten, Instant(0)));
            assert_eq!(world.receive_all(0, before.len()), before.as_bytes());
            assert_eq!(world.receive(0, wanted), Err(Errno::ECONNRESET));
        }
    }
}

//= sockets-protocol.md: join.6
#[test]
fn a_marker_that_arrives_after_the_program_stopped_reading_is_not_answered() {
    let world = half_moved();
    world.lose_group(0);
    let shut = world.ends[0].call(|connection, fd| connection.shutdown(fd, Shutdown::Read));
    assert_eq!(shut, Ok(()));
    assert_eq!(answer(&world), Phase::Watching);
    assert_eq!(world.receive(0, 100).as_deref(), Ok(&b"by TCP, "[..]));
    assert_eq!(world.receive(0, 100), Err(Errno::ECONNRESET));
}

//= sockets-protocol.md: join.6
#[test]
fn a_few_marker_like_bytes_are_readable_and_a_longer_marker_part_is_not() {
    for (part, is_ended) in [(3, false), (9, false), (9, true)] {
        let world = World::new();
        assert!(world.move_on(0));
        world.lose_group(0);
        let bytes = &MARKERS[0].0[..part];
        (&world.ends[1].tcp).write_all(bytes).expect("room");
        if is_ended {
            world.ends[1].tcp.shutdown(Shutdown::Write).expect("connected");
        }
        let is_hidden = world.ends[0].call(Connection::has_nothing_to_read);
        assert_eq!(is_hidden, part > 8 && !is_ended);
        let read = match (part > 8, is_ended) {
            (false, _) => Ok(bytes.to_vec()),
            (true, false) => Err(Errno::EAGAIN),
            (true, true) => Err(Errno::ECONNRESET),
        };
        assert_eq!(world.receive(0, 100), read);
    }
}
