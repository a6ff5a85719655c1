//! Calls that peek at bytes, and wait until all requested bytes have arrived.

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{MOVE_STEPS, World};
use crate::calls::flags::ReceiveFlags;

/// Peeks at `length` bytes at the second end. With `wait_all`, the call waits until all bytes have
/// arrived or no more bytes can arrive. While it waits, the network carries bytes.
fn peek(world: &World, length: usize, wait_all: bool) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length];
    let flags = ReceiveFlags { wait_all, peek: true, ..ReceiveFlags::default() };
    let count = world.ends[1].call(|connection, fd| {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).expect("it blocks");
        connection.receive(fd, &mut [IoSliceMut::new(&mut bytes)], flags)
    })?;
    bytes.truncate(count);
    Ok(bytes)
}

#[test]
fn a_waiting_peek_returns_all_requested_bytes_or_the_bytes_before_the_end() {
    let world = World::moved();
    assert_eq!(world.send(0, b"abc"), Ok(3));
    world.network.carry();
    // The network carries these bytes while the peeking call waits.
    assert_eq!(world.send(0, b"defgh"), Ok(5));
    assert_eq!(peek(&world, 8, true).as_deref(), Ok(b"abcdefgh".as_slice()));
    let shown = peek(&world, 9, true);
    assert_eq!(shown.as_deref(), Ok(b"abcdefgh".as_slice()), "the time limit has passed");
    world.close(0);
    let shown = peek(&world, 100, true);
    assert_eq!(shown.as_deref(), Ok(b"abcdefgh".as_slice()), "no more bytes can arrive");
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"abcdefgh".as_slice()));
}

/// Returns a world in which the first end has sent "abc" over TCP before its switch marker, and
/// "defgh" over the ring. The second end has read neither.
fn sent_by_both() -> World {
    let world = World::new();
    assert_eq!(world.send(0, b"abc"), Ok(3));
    for step in 0..MOVE_STEPS {
        assert!(world.move_on(step), "no end has shut down");
    }
    assert_eq!(world.send(0, b"defgh"), Ok(5));
    world.network.carry();
    world
}

#[test]
fn a_peek_returns_the_bytes_of_tcp_and_those_of_the_ring() {
    let world = sent_by_both();
    for length in 1..=8 {
        assert_eq!(peek(&world, length, false).as_deref(), Ok(&b"abcdefgh"[..length]));
    }
    assert_eq!(peek(&world, 100, false).as_deref(), Ok(b"abcdefgh".as_slice()));
    let mut parts = [[0; 2], [0; 2], [0; 2]];
    let count = world.ends[1].call(|connection, fd| {
        let flags = ReceiveFlags { peek: true, ..ReceiveFlags::default() };
        connection.receive(fd, &mut parts.each_mut().map(|part| IoSliceMut::new(part)), flags)
    });
    assert_eq!((count, parts.concat().as_slice()), (Ok(6), b"abcdef".as_slice()));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"abcdefgh".as_slice()));
}

/// Without the bytes of the ring, this call would run without end: bytes have arrived, but the
/// peek never gets them.
#[test]
fn a_waiting_peek_ends_if_the_first_bytes_came_by_tcp_and_the_others_by_the_ring() {
    let world = sent_by_both();
    assert_eq!(peek(&world, 8, true).as_deref(), Ok(b"abcdefgh".as_slice()));
    assert_eq!(peek(&world, 9, true).as_deref(), Ok(b"abcdefgh".as_slice()));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"abcdefgh".as_slice()));
}

#[test]
fn a_waiting_peek_returns_bytes_of_the_ring_and_those_that_follow_the_return_to_tcp() {
    let world = World::moved();
    assert_eq!(world.send(0, b"abc"), Ok(3));
    world.network.carry();
    assert!(world.begin_home(0));
    world.network.carry();
    assert_eq!(world.send(0, b"defgh"), Ok(5));
    assert_eq!(peek(&world, 8, true).as_deref(), Ok(b"abcdefgh".as_slice()));
    assert_eq!(world.receive_all(1, 8), b"abcdefgh");
}
