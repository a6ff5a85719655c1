//! Reads of bytes that came by TCP, at the same time as the engine handles the TCP socket.

use std::io::{IoSliceMut, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use runtime::Readiness;

use super::{MARKERS, World};
use crate::lock::lock;
use crate::migration::homing::Record;
use crate::transport::stream::{HomeProgress, Stream};
use crate::transport::stream_doorbell::StreamDescriptor;

/// Returns a world in which only the accepting end has moved, and the stream of this end. The
/// peer's switch marker has not arrived.
fn before_the_marker() -> (World, Arc<Stream>) {
    let world = World::new();
    assert!(world.move_on(0) && world.move_on(1));
    let stream = Arc::clone(&lock(&world.network.streams)[1].0);
    assert!(world.ends[1].doorbell.is_tcp_watched());
    (world, stream)
}

/// Handles readiness of the TCP socket, like the engine.
fn pump(stream: &Stream) {
    stream.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
}

/// Reads like a thread of the program, but never drives the engine.
fn read(stream: &Stream) -> Result<usize, Errno> {
    stream.read(&mut [IoSliceMut::new(&mut [0; 4096])], 0, false)
}

/// Makes the peer write bytes over TCP, and waits until the program can read them.
fn write_xyz(world: &World, stream: &Stream) {
    assert_eq!(world.send(0, b"xyz"), Ok(3));
    while stream.received() < 3 {
        pump(stream);
    }
}

/// Makes the peer write its switch marker and bytes after it, and waits until they have arrived.
fn write_marker_and(rest: &[u8], world: &World, stream: &Stream) {
    let bytes = [&MARKERS[1].0[..], rest].concat();
    (&world.ends[0].tcp).write_all(&bytes).expect("room");
    while !stream.is_marker_there() {
        std::thread::yield_now();
    }
}

/// The record of a peer whose program has read nothing from the ring.
fn record() -> [u8; Record::BYTES] {
    Record { taken: 0 }.encode()
}

/// The engine stops watching TCP when many bytes are stored. If the program has read them all just
/// before, TCP must stay watched: the program may already wait for the next bytes.
#[test]
fn tcp_stays_watched_if_the_program_reads_everything_while_the_engine_stops_watching() {
    let (world, stream) = before_the_marker();
    let doorbell = &world.ends[1].doorbell;
    let reader = Arc::clone(&stream);
    doorbell.before_next_change(move || while read(&reader).is_ok() {});
    // These bytes are in no switch marker.
    let bytes = vec![b'x'; 60_000];
    while doorbell.awaits_change() {
        // While TCP is full, the end cannot send.
        let _is_sent = world.send(0, &bytes);
        pump(&stream);
    }
    assert!(doorbell.is_tcp_watched());
}

#[test]
fn tcp_is_not_watched_after_a_read_during_the_end_of_the_stream() {
    let (world, stream) = before_the_marker();
    let doorbell = &world.ends[1].doorbell;
    let ended = Arc::clone(&stream);
    doorbell.before_next_change(move || ended.on_lost());
    assert_eq!(read(&stream), Err(Errno::ECONNRESET));
    assert!(!doorbell.awaits_change() && !doorbell.is_tcp_watched());
}

#[test]
fn tcp_is_not_watched_after_a_read_during_the_arrival_of_a_record() {
    let (world, stream) = before_the_marker();
    let doorbell = &world.ends[1].doorbell;
    write_marker_and(&record(), &world, &stream);
    let pumped = Arc::clone(&stream);
    doorbell.before_next_change(move || pump(&pumped));
    assert_eq!(read(&stream), Err(Errno::EAGAIN));
    assert!(!doorbell.awaits_change() && !doorbell.is_tcp_watched());
}

/// A stream returns to TCP after the program has read all bytes before the switch marker. Without
/// a ring of the doorbell, the engine would not notice the last of these reads.
//= sockets-protocol.md: home.2, home.4
#[test]
fn the_read_that_a_return_to_tcp_waits_for_rings_the_doorbell() {
    for is_group_lost in [false, true] {
        for is_found_by_engine in [false, true] {
            let (world, stream) = before_the_marker();
            if is_group_lost {
                world.lose_group(1);
            }
            write_xyz(&world, &stream);
            write_marker_and(&record(), &world, &stream);
            if is_found_by_engine {
                pump(&stream);
                assert_eq!(stream.go_home(), HomeProgress::Waits);
            }
            let before = world.ends[1].doorbell.rings();
            assert_eq!(world.receive(1, 2).as_deref(), Ok(&b"xy"[..]));
            assert_eq!(world.ends[1].doorbell.rings(), before, "a byte is unread");
            assert_eq!(world.receive(1, 2).as_deref(), Ok(&b"z"[..]));
            assert!(world.ends[1].doorbell.rings() > before);
        }
    }
}

/// The peer gets a Reset only after the engine has served the stream.
//= sockets-protocol.md: marker.2
#[test]
fn a_read_that_finds_bytes_behind_the_marker_rings_the_doorbell() {
    let (world, stream) = before_the_marker();
    write_xyz(&world, &stream);
    write_marker_and(b"no record", &world, &stream);
    let before = world.ends[1].doorbell.rings();
    assert_eq!(world.receive(1, 3).as_deref(), Ok(&b"xyz"[..]));
    assert!(world.ends[1].doorbell.rings() > before);
}

/// One thread reads a part of the bytes that it has taken out of TCP. Another thread may wait for
/// the rest, and no event of the engine wakes it.
#[test]
fn a_read_that_takes_bytes_out_of_tcp_and_leaves_some_wakes_other_readers() {
    let (world, _stream) = before_the_marker();
    assert_eq!(world.send(0, b"xyz"), Ok(3));
    let raised = || world.network.raised.load(Ordering::Relaxed);
    let before = raised();
    assert_eq!(world.receive_all(1, 1), b"x");
    assert!(raised() > before);
}
