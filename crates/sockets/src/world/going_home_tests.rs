//! Connections that return to TCP, at any time and together with other events.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use runtime::Readiness;

use super::{RING, World};
use crate::calls::connection::{Connection, Route};
use crate::lock::lock;
use crate::migration::homing::Record;
use crate::reasons::Reason;
use crate::transport::stream::HomeProgress;
use crate::transport::stream_doorbell::StreamDescriptor;

/// Creates a stream that has bytes in every place where bytes can be, in both directions.
fn full_of_bytes() -> (World, [Vec<u8>; 2]) {
    let world = World::moved();
    let mut bytes =
        [0, 1].map(|index| (0..RING).map(|at| (at * 7 + index) as u8).collect::<Vec<_>>());
    for (index, bytes) in bytes.iter_mut().enumerate() {
        // Four parts: in the peer's ring and read; in the peer's ring and unread; in flight;
        // written and not posted.
        for part in [100..200, 200..300, 300..5000, 5000..RING as usize] {
            assert_eq!(world.send(index, &bytes[part.clone()]), Ok(part.len()));
            if part.start < 300 {
                world.network.held.push_all();
                world.network.carry();
            }
            if part.start == 100 {
                let read = world.receive(1 - index, 1000);
                assert_eq!(read.as_deref(), Ok(&bytes[100..200]));
            }
            world.network.is_slow.store(part.start >= 200, Ordering::Relaxed);
        }
        drop(bytes.drain(..200));
    }
    (world, bytes)
}

//= sockets-protocol.md: home.1, home.2, home.3
#[test]
fn no_byte_is_lost_or_duplicated_when_a_stream_returns_to_tcp() {
    for ends in [&[0][..], &[1], &[0, 1]] {
        for reads_first in [false, true] {
            let (world, bytes) = full_of_bytes();
            let mut read = [Vec::new(), Vec::new()];
            if reads_first {
                read[1] = world.receive(1, 50).expect("bytes");
            }
            for index in ends {
                assert!(world.begin_home(*index));
                assert!(world.ends[*index].connection.is_going_home());
            }
            world.network.carry();
            for index in [0, 1] {
                let connection = &world.ends[index].connection;
                assert_eq!(connection.route(), Route::Left(Reason::Home), "{ends:?}");
                let wanted = bytes[1 - index].len() - read[index].len();
                read[index].extend(world.receive_all(index, wanted));
                assert!(read[index] == bytes[1 - index], "{ends:?}");
                assert_eq!(world.send(index, b"later"), Ok(5));
            }
            assert_eq!(world.receive_all(0, 5), b"later");
            let streams = lock(&world.network.streams).clone();
            assert!(streams.iter().all(|(stream, ..)| stream.has_ended()));
        }
    }
}

//= sockets-protocol.md: home.4
#[test]
fn a_stream_with_a_lost_group_continues_on_tcp() {
    for ends in [&[0][..], &[1], &[0, 1]] {
        let (world, bytes) = full_of_bytes();
        for index in ends {
            world.lose_group(*index);
        }
        world.network.carry();
        for index in [0, 1] {
            assert!(world.receive_all(index, bytes[1 - index].len()) == bytes[1 - index]);
        }
        let shut =
            world.ends[0].call(|connection, fd| connection.shutdown(fd, std::net::Shutdown::Write));
        assert_eq!(shut, Ok(()));
        assert_eq!(world.receive(1, 10).as_deref(), Ok(b"".as_slice()));
    }
}

//= sockets-protocol.md: home.2
#[test]
fn a_relayed_stream_is_reset_if_the_peer_returns_to_tcp() {
    let world = World::moved();
    world.ends[0].call(Connection::relay);
    assert!(world.begin_home(1));
    world.network.carry();
    assert!(!world.ends[1].connection.is_going_home());
    assert_eq!(world.receive(1, 1), Err(Errno::ECONNRESET));
}

//= sockets-protocol.md: home.5
#[test]
fn received_bytes_stay_readable_if_the_peer_dies_while_returning_to_tcp() {
    let world = World::moved();
    assert_eq!(world.send(1, b"last"), Ok(4));
    world.network.carry();
    assert!(world.begin_home(0));
    let (stream, ..) = lock(&world.network.streams).pop().expect("two");
    let tcp = TcpStream::from(stream.socket().try_clone().expect("a descriptor"));
    tcp.shutdown(std::net::Shutdown::Both).expect("connected");
    let stream = Arc::clone(&lock(&world.network.streams)[0].0);
    assert_eq!(stream.go_home(), HomeProgress::Waits);
    stream.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"last".as_slice()));
    assert_eq!(world.receive(0, 100), Err(Errno::ECONNRESET));
}

//= sockets-protocol.md: marker.2, home.2
#[test]
fn an_implausible_record_resets_the_connection() {
    for taken in [1, u64::MAX] {
        let world = World::moved();
        let (stream, ..) = lock(&world.network.streams)[1].clone();
        let mut tcp = TcpStream::from(stream.socket().try_clone().expect("a descriptor"));
        tcp.write_all(&Record { taken }.encode()).expect("room");
        world.network.carry();
        assert_eq!(world.receive(0, 100), Err(Errno::ECONNRESET));
        assert!(!lock(&world.network.streams)[0].0.is_home());
    }
}

/// The peer has reported the final number of consumed bytes in its record, with which it begins its
/// return to TCP. A credit for more bytes arrives while this end is still writing the stream into
/// TCP. This end must ignore the credit.
#[test]
fn credit_beyond_a_record_is_ignored() {
    let world = World::moved();
    for end in &world.ends {
        setsockopt(&end.tcp, sockopt::SndBuf, &1).expect("a socket");
        setsockopt(&end.tcp, sockopt::RcvBuf, &1).expect("a socket");
    }
    let bytes: Vec<u8> = (0..RING).map(|at| (at % 251) as u8).collect();
    assert_eq!(world.send(0, &bytes), Ok(bytes.len()));
    world.network.held.push_all();
    world.network.carry();
    assert!(world.begin_home(0));
    let streams = lock(&world.network.streams).clone();
    for index in [0, 1, 0] {
        let stream = &streams[index].0;
        stream.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
        assert_eq!(stream.go_home() == HomeProgress::Arrived, index == 1);
    }
    assert_eq!(streams[0].0.on_credit(RING.into()), Ok(()));
    let mut read = Vec::new();
    while read.len() < bytes.len() {
        world.network.carry();
        read.extend(world.receive(1, 1000).unwrap_or_default());
    }
    assert!(read == bytes);
}
