//! Tests of memory as programs use it: slices, scatter/gather operations, and words that both ends
//! change.
#![forbid(unsafe_code)]

mod pair;

use std::sync::atomic::Ordering;
use std::thread;

use ethernot::{
    AccessError, Buffer, Connection, OperationOptions, PieceListError, PostError, RegionSlice,
    Rights, SubmitError,
};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

const NONE: OperationOptions = OperationOptions::NONE;

fn bytes_of(buffer: &Buffer, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    buffer.read(offset, &mut bytes);
    bytes
}

/// Returns every third KiB of a region, so that there are gaps between the pieces. The last piece
/// is shorter.
fn apart(pair: &Pair, count: u64) -> Vec<RegionSlice<'_>> {
    let slice = |index| {
        let start = 3072 * index;
        pair.client.region.slice(start..start + 1024 - index % 2 * 1000).expect("it is inside")
    };
    (0..count).map(slice).collect()
}

#[test]
fn a_write_gathers_and_a_read_scatters() {
    let pair = Pair::new();
    let (client, local) = (&pair.client.connection, &pair.client.buffer);
    let pieces = apart(&pair, 32);
    let mut expected = Vec::new();
    for (seed, piece) in pieces.iter().enumerate() {
        let bytes = vec![seed as u8 + 1; piece.len() as usize];
        local.write(piece.offset(), &bytes);
        expected.extend(bytes);
    }
    let write = client.write_list(&pieces, &pair.remote, 5, NONE).expect("it is posted");
    assert_eq!(u64::from(write.len()), expected.len() as u64);
    assert_eq!(write.wait(Some(LIMIT)), Ok(0));
    assert!(bytes_of(&pair.server.buffer, 5, expected.len() as u64) == expected, "bytes differ");

    for piece in &pieces {
        local.write(piece.offset(), &vec![0; piece.len() as usize]);
    }
    let read = client.read_list(&pieces, &pair.remote, 5, NONE).expect("it is posted");
    assert_eq!(read.wait(Some(LIMIT)), Ok(0));
    let found = pieces.iter().flat_map(|piece| bytes_of(local, piece.offset(), piece.len()));
    assert!(found.eq(expected.iter().copied()), "bytes differ");
    assert_eq!(local.load_u8(3072 + 24), 0, "what is behind a piece is left alone");
}

#[test]
fn a_gathered_message_fills_a_scattered_receive() {
    let pair = Pair::new();
    let (client, server) = (&pair.client, &pair.server);
    client.buffer.write(100, b"scatter");
    client.buffer.write(9000, b"gather");
    let receive =
        [server.region.slice(..3), server.region.slice(50..50), server.region.slice(64..96)];
    let receive = receive.map(|slice| slice.expect("it is inside"));
    server.connection.post_receive_list(&receive, 77).expect("it is posted");
    let message = [client.region.slice(100..107), client.region.slice(9000..9006)];
    let message = message.map(|slice| slice.expect("it is inside"));
    let sent = client.connection.send_list(&message, NONE).expect("it is posted");
    assert_eq!(sent.wait(Some(LIMIT)), Ok(0));
    let queue = server.connection.queue();
    let received = server.endpoint.wait_completion(queue, Some(LIMIT)).expect("a message");
    assert_eq!((received.context, received.bytes, received.result), (77, 13, Ok(())));
    assert_eq!(bytes_of(&server.buffer, 0, 4), b"sca\0");
    assert_eq!(bytes_of(&server.buffer, 64, 10), b"ttergather");
}

#[test]
fn lists_posted_while_another_thread_is_inside_the_engine_are_performed() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    let pair = Pair::new();
    let (client, local) = (&pair.client, &pair.client.buffer);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, remote) = (client, &pair.remote);
            scope.spawn(move || {
                let start = thread * 4096;
                let words = [start, start + 2048];
                let pieces = words.map(|at| client.region.slice(at..at + 8).expect("it is inside"));
                for round in 1..=ROUNDS {
                    for at in words {
                        local.store_u64(at, round);
                    }
                    let write = client.connection.write_list(&pieces, remote, start, NONE);
                    assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
                }
            });
        }
    });
    for thread in 0..THREADS {
        let found = [0, 8].map(|at| pair.server.buffer.load_u64(thread * 4096 + at));
        assert_eq!(found, [ROUNDS; 2]);
    }
}

#[test]
fn an_empty_list_is_an_operation_of_zero_bytes() {
    let pair = Pair::new();
    let client = &pair.client.connection;
    let empty = pair.client.region.slice(10..10).expect("it is inside");
    for pieces in [&[][..], &[empty], &[empty; Connection::PIECES_MAX]] {
        let write = client.write_list(pieces, &pair.remote, 0, NONE).expect("it is posted");
        assert_eq!((write.len(), write.wait(Some(LIMIT))), (0, Ok(0)));
        let read = client.read_list(pieces, &pair.remote, 0, NONE).expect("it is posted");
        assert_eq!(read.wait(Some(LIMIT)), Ok(0));
    }
}

#[test]
fn invalid_lists_are_typed_errors() {
    let pair = Pair::build(loopback(), loopback(), Rights::REMOTE_WRITE | Rights::REMOTE_READ);
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let piece = pair.client.region.slice(..8).expect("it is inside");
    let many = [piece; Connection::PIECES_MAX + 1];
    let refused = client.write_list(&many, remote, 0, NONE).map(drop);
    assert_eq!(refused, Err(PostError::Pieces(PieceListError::TooMany(33))));

    let leaves = PostError::RemoteBounds { offset: remote.len - 8, length: 16, limit: remote.len };
    let refused = client.write_list(&[piece; 2], remote, remote.len - 8, NONE).map(drop);
    assert_eq!(refused, Err(leaves));
    let slice = remote.slice(..8).expect("it is inside");
    assert!(matches!(
        client.write_list(&[piece; 2], &slice, 0, NONE).map(drop),
        Err(PostError::RemoteBounds { offset: 0, length: 16, limit: 8 })
    ));

    let foreign = pair.server.region.slice(..8).expect("it is inside");
    let refused = client.write_list(&[piece, foreign], remote, 0, NONE).map(drop);
    let local = |error| Err(PostError::Submit(SubmitError::Post(error)));
    let region = pair.server.region.region().id;
    assert_eq!(refused, local(AccessError::ForeignRegion { region }.into()));

    // The regions of this pair do not grant local writing.
    let is_refused = |result| {
        matches!(result, Err(PostError::Submit(SubmitError::Post(error)))
            if error.to_string().contains("rights"))
    };
    assert!(is_refused(client.read_list(&[piece], remote, 0, NONE).map(drop)));
    assert!(is_refused(client.post_receive_list(&[piece], 0)));

    client.close(b"").expect("not forked");
    match client.write_list(&[piece], remote, 0, NONE) {
        Err(refused) => assert!(matches!(refused, PostError::Closed(_)), "{refused:?}"),
        // If another thread was inside the engine during the post, the post succeeds and the
        // operation fails later.
        Ok(write) => assert!(write.wait(Some(LIMIT)).is_err(), "the connection was closed"),
    }
}

#[test]
fn words_of_a_buffer_are_atomic_for_peers_and_threads() {
    const ROUNDS: u64 = 2000;
    let pair = Pair::build(
        loopback(),
        loopback(),
        EVERYTHING.into_iter().fold(Rights::NONE, Rights::union),
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            let word = pair.server.buffer.word::<u64>(64).expect("it is inside");
            for _ in 0..ROUNDS {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..ROUNDS {
            let add = pair.client.connection.fetch_add(&pair.remote, 64, 1, NONE);
            add.expect("it is posted").wait(Some(LIMIT)).expect("it succeeds");
        }
    });
    assert_eq!(pair.server.buffer.load_u64(64), 2 * ROUNDS);
}
