//! Tests of every kind of operation between two endpoints on loopback.
#![forbid(unsafe_code)]

mod pair;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ethernot::{
    Buffer, CompletionKind, CompletionQueue, ConnectOptions, Connection, Endpoint, EngineConfig,
    Fault, FaultConfig, Operation, OperationError, OperationFlags, OperationOptions,
    OperationRefusal, OperationStatus, Order, Polling, PostError, RemoteRegion, Request, Rights,
    Source, UdpConfig, UdpLink, encode_patch,
};
use pair::{BYTES, EVERYTHING, LIMIT, Pair, Side, connect, loopback, memory};

#[test]
fn a_write_of_any_size_arrives() {
    let pair = Pair::new();
    for (seed, len) in [0, 1, 7, 64, 65, 1472, 4096, 100_000, BYTES].into_iter().enumerate() {
        let bytes = pattern(len, seed as u64);
        pair.client.buffer.write(0, &bytes);
        let (client, region) = (&pair.client.connection, &pair.client.region);
        let write = client.write(region, 0, &pair.remote, 0, len, OperationOptions::NONE);
        let write = write.expect("it is posted");
        assert_eq!(write.wait(Some(LIMIT)), Ok(0));
        assert_eq!(write.status(), OperationStatus::Done { value: 0 });
        assert_eq!(bytes_of(&pair.server.buffer, 0, len), bytes, "{len} bytes");
    }
}

#[test]
fn a_read_of_any_size_returns_the_peers_bytes() {
    let pair = Pair::new();
    for (seed, len) in [0, 1, 64, 1472, 100_000, BYTES].into_iter().enumerate() {
        let bytes = pattern(len, seed as u64);
        pair.server.buffer.write(0, &bytes);
        let (client, region) = (&pair.client.connection, &pair.client.region);
        let read = client.read(region, 0, &pair.remote, 0, len, OperationOptions::NONE);
        assert_eq!(read.expect("it is posted").wait(Some(LIMIT)), Ok(0));
        assert_eq!(bytes_of(&pair.client.buffer, 0, len), bytes, "{len} bytes");
    }
}

#[test]
fn atomics_return_the_previous_value() {
    let pair = Pair::new();
    pair.server.buffer.store_u64(16, 40);
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let add = client.fetch_add(remote, 16, 2, OperationOptions::NONE).expect("it is posted");
    assert_eq!(add.wait(Some(LIMIT)), Ok(40));
    let miss = client.compare_swap(remote, 16, 41, 1, OperationOptions::NONE);
    assert_eq!(miss.expect("it is posted").wait(Some(LIMIT)), Ok(42));
    let hit = client.compare_swap(remote, 16, 42, 7, OperationOptions::NONE);
    assert_eq!(hit.expect("it is posted").wait(Some(LIMIT)), Ok(42));
    assert_eq!(pair.server.buffer.load_u64(16), 7);
}

//= protocol.md: patch.6, patch.8
#[test]
fn a_patch_changes_the_named_words_and_a_swap_returns_the_previous_value() {
    let pair = Pair::new();
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let before = pattern(8192, 1);
    pair.server.buffer.write(0, &before);
    let mut after = before.clone();
    for at in (0..8192).step_by(36) {
        after[at] ^= 0xff;
    }
    let mut records = vec![0; 8704];
    let length = encode_patch(&before, &after, &mut records).expect("there is room");
    pair.client.buffer.write(0, &records[..length]);
    let notify = OperationOptions::NOTIFY.immediate(Some(5));
    let patch = client.patch(&pair.client.region, 0, remote, 0, length as u64, notify);
    assert_eq!(patch.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    assert_eq!(bytes_of(&pair.server.buffer, 0, 8192), after);
    let notified = pair.server.connection.wait_completion(Some(LIMIT)).expect("a notification");
    let facts = (notified.kind, notified.bytes, notified.immediate);
    assert_eq!(facts, (CompletionKind::Notification, length as u32, Some(5)));

    let length = encode_patch(&after[..8], &before[..8], &mut records).expect("there is room");
    let few = client.patch_bytes(&records[..length], remote, 0, OperationOptions::NONE);
    assert_eq!(few.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    assert_eq!(bytes_of(&pair.server.buffer, 0, 8), before[..8]);
    let strict = client.patch_bytes(&records[..length], remote, 0, OperationOptions::STRICT);
    assert_eq!(strict.err(), Some(OperationRefusal::PatchStrict.into()));

    pair.server.buffer.store_u64(16, 40);
    let swap = client.swap(remote, 16, 7, OperationOptions::NONE).expect("it is posted");
    assert_eq!(swap.wait(Some(LIMIT)), Ok(40));
    assert_eq!(pair.server.buffer.load_u64(16), 7);
}

/// If another thread is inside the engine, an operation is handed over to that thread. The call must
/// still return the error, and not a handle.
//= protocol.md: patch.8
#[test]
fn patches_and_swaps_without_the_feature_are_refused_while_another_thread_is_inside_the_engine() {
    let engine = EngineConfig::default().silence_budget_ns(3_000_000_000).patches(false);
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let server = Endpoint::builder().bind("127.0.0.1:0").engine(engine);
    let pair = Pair::build(loopback(), server, rights);
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                assert_eq!(client.poll(), Ok(None));
            }
        });
        let refused = Some(OperationRefusal::PatchesRefused.into());
        let none = OperationOptions::NONE;
        let accepted = (0..20_000)
            .filter(|_| {
                client.swap(remote, 16, 7, none).err() != refused
                    || client.patch_bytes(&[0; 12], remote, 0, none).err() != refused
            })
            .count();
        has_ended.store(true, Ordering::Relaxed);
        assert_eq!(accepted, 0);
    });
}

#[test]
fn messages_arrive_in_order_in_the_receives_posted_for_them() {
    let pair = Pair::new();
    let (client, server) = (&pair.client.connection, &pair.server.connection);
    for context in 0..3 {
        let posted = server.post_receive(&pair.server.region, context * 100, 100, context);
        posted.expect("it is posted");
    }
    drop(client.send_bytes(b"first", OperationOptions::NONE).expect("it is posted"));
    pair.client.buffer.write(0, b"second");
    let with_immediate = OperationOptions::NONE.immediate(Some(9));
    drop(client.send(&pair.client.region, 0, 6, with_immediate).expect("it is posted"));
    let last = client.send_bytes(b"", OperationOptions::NONE).expect("it is posted");
    assert_eq!(last.wait(Some(LIMIT)), Ok(0));
    for (context, expected, immediate) in
        [(0, &b"first"[..], None), (1, b"second", Some(9)), (2, b"", None)]
    {
        let got = server.wait_completion(Some(LIMIT)).expect("a message");
        assert_eq!((got.context, got.kind), (context, CompletionKind::Receive));
        assert_eq!((got.result, got.immediate), (Ok(()), immediate));
        assert_eq!(bytes_of(&pair.server.buffer, context * 100, got.bytes.into()), expected);
    }
}

#[test]
fn a_send_waits_for_its_receive() {
    let pair = Pair::new();
    let send = pair.client.connection.send_bytes(b"early", OperationOptions::NONE);
    let send = send.expect("it is posted");
    let posted = pair.server.connection.post_receive(&pair.server.region, 0, 64, 1);
    posted.expect("it is posted");
    assert_eq!(send.wait(Some(LIMIT)), Ok(0));
}

#[test]
fn a_write_with_notification_notifies_the_peer() {
    let pair = Pair::new();
    let options = OperationOptions::NOTIFY.immediate(Some(0xabcd));
    let write = pair.client.connection.write_bytes(b"news", &pair.remote, 32, options);
    assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    let server = &pair.server.connection;
    let note = server.wait_completion(Some(LIMIT)).expect("a notification");
    assert_eq!(note.kind, CompletionKind::Notification);
    assert_eq!(
        (note.immediate, note.bytes, note.value),
        (Some(0xabcd), 4, pair.remote.address + 32)
    );
    assert_eq!(bytes_of(&pair.server.buffer, 32, 4), b"news");
}

#[test]
fn fenced_and_strict_operations_complete() {
    let pair = Pair::new();
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let mut handles = Vec::new();
    for round in 0..20_u64 {
        let options = OperationOptions::NONE
            .fence_before(round % 2 == 0)
            .fence_after(round % 3 == 0)
            .order(if round % 5 == 0 { Order::Strict } else { Order::Relaxed });
        pair.client.buffer.write(round * 5000, &pattern(5000, round));
        let write =
            client.write(&pair.client.region, round * 5000, remote, round * 5000, 5000, options);
        handles.push(write.expect("it is posted"));
    }
    for handle in &handles {
        assert_eq!(handle.wait(Some(LIMIT)), Ok(0));
    }
    for round in 0..20 {
        assert_eq!(bytes_of(&pair.server.buffer, round * 5000, 5000), pattern(5000, round));
    }
}

#[test]
fn signalled_operations_complete_in_the_queue_with_their_context() {
    let pair = Pair::new();
    for context in 1..=10 {
        let options = OperationOptions::SIGNALLED.context(context).more(context < 10);
        let write = pair.client.connection.write_bytes(&[1], &pair.remote, context, options);
        drop(write.expect("it is posted"));
    }
    for context in 1..=10 {
        let done = pair.client.connection.wait_completion(Some(LIMIT)).expect("a completion");
        assert_eq!(
            (done.context, done.kind, done.result),
            (context, CompletionKind::Write, Ok(()))
        );
    }
}

#[test]
fn operations_with_handles_take_no_completion_slot() {
    let pair = Pair::new();
    let (client, server) = (&pair.client.connection, &pair.server.connection);
    let places = client.queue().capacity();
    // Without a receive at the peer, the sends stay pending and reserve entries of the queue.
    let sends: Vec<_> = (0..4 * places)
        .map(|_| client.send_bytes(b"x", OperationOptions::NONE).expect("it is posted"))
        .collect();
    for _ in &sends {
        let posted = server.post_receive(&pair.server.region, 0, 1, 0);
        posted.expect("it is posted");
        let got = server.wait_completion(Some(LIMIT)).expect("a message");
        assert_eq!(got.result, Ok(()));
    }
    assert!(sends.iter().all(|send| send.wait(Some(LIMIT)) == Ok(0)));
    assert!(client.queue().is_empty());
    // Each failed send reports its end through its handle. The queue gets a completion for a failed
    // send only if it has room.
    let sends: Vec<_> = (0..4 * places)
        .map(|_| client.send_bytes(b"x", OperationOptions::NONE).expect("it is posted"))
        .collect();
    client.close(b"").expect("not forked");
    let flushed = OperationStatus::Failed(OperationError::Flushed);
    assert!(sends.iter().all(|send| send.status() == flushed));
    assert_eq!(client.queue().len(), places);
}

#[test]
fn the_error_of_a_full_queue_names_the_remedy() {
    // No other thread is inside the engine of the client. Such a thread would take operations for
    // which the queue has no room.
    let pair = Pair::build(loopback().progress_thread(false), loopback(), Rights::NONE);
    let client = &pair.client.connection;
    let send = || client.send_bytes(b"x", OperationOptions::SIGNALLED);
    let error = loop {
        match send() {
            Ok(handle) => drop(handle),
            Err(error) => break error.to_string(),
        }
    };
    for remedy in ["256", "poll", "wait", "larger queue"] {
        assert!(error.contains(remedy), "{error}");
    }
}

#[test]
fn private_data_is_delivered_in_the_handshake_and_the_close() {
    let server = loopback().build().expect("a server");
    let client = loopback().build().expect("a client");
    let listener = server.listen(3).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0];
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(Some(LIMIT)).expect("a request");
            assert_eq!(request.private_data(), b"question");
            let connection = request.accept(b"answer").expect("the peer is there");
            assert_eq!(connection.peer_data(), b"question");
            let (reason, data) = connection.wait_closed(Some(LIMIT)).expect("it closes");
            assert_eq!((reason, &data[..]), (ethernot::Closed::ByPeer, &b"farewell"[..]));
        });
        let options = ConnectOptions::new().service(3).private_data("question").limit(Some(LIMIT));
        let connection = client.connect_with(address, options).expect("it is accepted");
        assert_eq!(connection.peer_data(), b"answer");
        connection.close(b"farewell").expect("not forked");
    });
}

#[test]
fn two_links_share_a_large_write_while_links_are_added_and_removed() {
    let two = || loopback().bind("127.0.0.2:0");
    let pair = Pair::build(two(), two(), EVERYTHING.into_iter().fold(Rights::NONE, Rights::union));
    let client = &pair.client.connection;
    let paths = || client.info().expect("not forked").expect("it is open").paths;
    let write = |seed| {
        let bytes = pattern(BYTES, seed);
        pair.client.buffer.write(0, &bytes);
        let write =
            client.write(&pair.client.region, 0, &pair.remote, 0, BYTES, OperationOptions::NONE);
        assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
        assert!(bytes_of(&pair.server.buffer, 0, BYTES) == bytes, "bytes differ");
    };
    write(1);
    assert_eq!(paths().len(), 2);
    for seed in 2..10 {
        write(seed);
    }
    assert!(paths().iter().all(|path| path.counters.data_frames_sent > 0), "a link is idle");

    let (address, peer) = ("127.0.0.3:0", pair.server.endpoint.local_addresses());
    let link = pair.client.endpoint.add_link(address).expect("a third link");
    let index =
        client.add_link(link, peer.expect("not forked")[1]).expect("the connection is open");
    write(10);
    client.remove_link(index).expect("it was there");
    write(11);
    assert!(pair.client.endpoint.remove_link(link).expect("not forked"));
    assert!(!pair.client.endpoint.remove_link(link).expect("not forked"));
    write(12);
}

#[test]
fn many_threads_post_on_one_connection() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    let pair = Pair::new();
    let (client, remote) = (&pair.client.connection, &pair.remote);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, client) = (&pair, client);
            scope.spawn(move || {
                let place = 64 + thread * 8;
                for round in 1..=ROUNDS {
                    let write = client.write_bytes(
                        &round.to_ne_bytes(),
                        remote,
                        place,
                        OperationOptions::STRICT,
                    );
                    drop(write.expect("it is posted"));
                    let add = client.fetch_add(remote, 0, 1, OperationOptions::NONE);
                    add.expect("it is posted").wait(Some(LIMIT)).expect("it succeeds");
                    assert_eq!(pair.server.buffer.load_u64(place), round, "order of a thread");
                }
            });
        }
    });
    assert_eq!(pair.server.buffer.load_u64(0), THREADS * ROUNDS);
}

#[test]
fn concurrent_threads_in_the_engine_lose_nothing_and_keep_their_order() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 5000;
    let pair = Pair::new();
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let received = thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let mut write = write_one(remote, 8 * (thread + 1));
                    write.context = thread << 32 | round;
                    write.length = 8;
                    // The queue holds 256 completions. When it is full, the endpoint refuses posts
                    // until the program polls completions.
                    while let Err(error) = client.post(&write) {
                        assert!(matches!(error, PostError::Submit(_)), "{error}");
                        thread::yield_now();
                    }
                }
            });
        }
        let mut next = [1; THREADS as usize];
        for _ in 0..THREADS * ROUNDS {
            let done = client.wait_completion(Some(LIMIT)).expect("a completion of each");
            assert_eq!(done.result, Ok(()));
            let thread = (done.context >> 32) as usize;
            assert_eq!(done.context & 0xffff_ffff, next[thread], "order of thread {thread}");
            next[thread] += 1;
        }
        next
    });
    assert_eq!(received, [ROUNDS + 1; THREADS as usize]);
    assert_eq!(client.poll(), Ok(None), "more completions than operations");
}

#[test]
fn operations_succeed_over_links_that_lose_duplicate_and_reorder_frames() {
    let faulty = |seed| {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let udp = UdpLink::bind(address, &UdpConfig::default()).expect("a socket on loopback");
        let config =
            FaultConfig::default().seed(seed).receive_loss(0.02).duplication(0.02).reordering(0.02);
        Endpoint::builder()
            .link(Box::new(Fault::new(udp, config).expect("such faults are possible")))
    };
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let pair = Pair::build(faulty(1), faulty(2), rights);
    let (client, region, remote) = (&pair.client.connection, &pair.client.region, &pair.remote);
    let none = OperationOptions::NONE;
    for seed in 0..8 {
        let bytes = pattern(BYTES, seed);
        pair.client.buffer.write(0, &bytes);
        let write = client.write(region, 0, remote, 0, BYTES, none).expect("it is posted");
        let add = client.fetch_add(remote, 0, 1, OperationOptions::STRICT).expect("it is posted");
        assert_eq!(write.wait(Some(LIMIT)), Ok(0));
        let first = u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
        assert_eq!(add.wait(Some(LIMIT)), Ok(first));
        assert!(bytes_of(&pair.server.buffer, 8, BYTES - 8) == bytes[8..], "bytes differ");
    }
    let counters = client.info().expect("not forked").expect("it is open").paths[0].counters;
    assert!(counters.packets_lost > 0 || counters.probe_timeouts > 0, "nothing was lost");
}

#[test]
fn many_connections_share_a_queue() {
    let server = loopback().build().expect("a server");
    let client = loopback().build().expect("a client");
    let listener = server.listen(1).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0];
    let (buffer, region) = memory(&server, Rights::REMOTE_WRITE);
    let remote = region.remote();
    let queue = Arc::new(CompletionQueue::new(1000));
    let accepting = || -> Vec<Connection> {
        (0..50)
            .map(|_| {
                let request = listener.accept(Some(LIMIT)).expect("a request");
                request.accept(&region.remote().to_bytes()).expect("the peer is there")
            })
            .collect()
    };
    thread::scope(|scope| {
        let accepted = scope.spawn(accepting);
        let options = ConnectOptions::new().service(1).queue(Arc::clone(&queue)).limit(Some(LIMIT));
        let connections: Vec<_> = (0..50)
            .map(|_| client.connect_with(address, options.clone()).expect("it is accepted"))
            .collect();
        let _accepted = accepted.join().expect("all are accepted");
        for (context, connection) in connections.iter().enumerate() {
            connection.post_later(&write_one(&remote, context as u64)).expect("it is posted");
        }
        let mut seen = vec![false; connections.len()];
        for _ in 0..connections.len() {
            let done = client.wait_completion(&queue, Some(LIMIT)).expect("a completion");
            assert_eq!(done.result, Ok(()));
            assert_eq!(done.owner, connections[done.context as usize].owner());
            seen[done.context as usize] = true;
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(bytes_of(&buffer, 0, 50), [7; 50]);
    });
}

#[test]
fn endpoints_without_a_progress_thread_are_served_by_the_polling_thread() {
    let alone = || loopback().progress_thread(false).polling(Polling::NEVER);
    let pair = Pair::build(alone(), alone(), Rights::REMOTE_WRITE);
    let write = pair.client.connection.write_bytes(b"x", &pair.remote, 5, OperationOptions::NONE);
    let write = write.expect("it is posted");
    while !write.is_done() {
        pair.client.endpoint.drive().expect("not forked");
        pair.server.endpoint.drive().expect("not forked");
    }
    assert_eq!(pair.server.buffer.load_u8(5), b'x');
}

#[test]
fn threads_that_block_at_once_are_woken() {
    let blocking = || loopback().polling(Polling::NEVER);
    let pair = Pair::build(blocking(), blocking(), Rights::REMOTE_WRITE | Rights::LOCAL_WRITE);
    let pong = pair.client.region.remote();
    thread::scope(|scope| {
        scope.spawn(|| {
            let server = &pair.server.connection;
            for _ in 0..200 {
                server.wait_completion(Some(LIMIT)).expect("a ping");
                let pong = server.write_bytes(b"pong", &pong, 0, OperationOptions::NOTIFY);
                drop(pong.expect("it is posted"));
            }
        });
        for _ in 0..200 {
            let client = &pair.client.connection;
            let ping = client.write_bytes(b"ping", &pair.remote, 0, OperationOptions::NOTIFY);
            drop(ping.expect("it is posted"));
            client.wait_completion(Some(LIMIT)).expect("a pong");
        }
    });
}

#[test]
fn a_passive_target_spins_for_as_long_as_its_threads_do() {
    assert!(!sleeps_between_reads(LONG));
    assert!(!sleeps_between_reads(Polling::ALWAYS));
    assert!(sleeps_between_reads(Polling::NEVER));
}

#[test]
fn a_thread_that_spins_for_a_passive_target_ends_with_its_endpoint() {
    for polling in [LONG, Polling::ALWAYS] {
        let pair = Pair::build(loopback(), loopback().polling(polling), Rights::REMOTE_READ);
        let ending = thread::spawn(move || drop(pair));
        ending.join().expect("it ends");
    }
}

/// A policy by which threads spin for longer than any test takes, so that they never sleep.
const LONG: Polling = Polling::for_at_most(Duration::from_secs(1000));

/// Returns whether threads of the target sleep while a peer reads and the target's application is
/// idle. For 100 ms after the application last polled (accepting also polls), the progress thread
/// sleeps under every policy. So this function makes rounds of a hundred reads until no thread
/// slept in a round. It makes at most four hundred rounds.
fn sleeps_between_reads(polling: Polling) -> bool {
    let pair = Pair::build(loopback(), loopback().polling(polling), Rights::REMOTE_READ);
    let Side { endpoint, connection, buffer, .. } = &pair.client;
    let local = endpoint.register(Arc::clone(buffer), Rights::LOCAL_WRITE).expect("registered");
    let read = || {
        let read = connection.read(&local, 0, &pair.remote, 0, 64, OperationOptions::NONE);
        assert_eq!(read.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    };
    let wakeups = || pair.server.endpoint.runtime_counters().expect("not forked").wakeups;
    (0..400).all(|_| {
        let before = wakeups();
        (0..100).for_each(|_| read());
        wakeups() != before
    })
}

#[test]
fn an_endpoint_connects_to_itself() {
    let endpoint: Endpoint = loopback().build().expect("an endpoint");
    let (buffer, region) = memory(&endpoint, Rights::REMOTE_WRITE);
    let (accepted, connected) = connect(&endpoint, &endpoint, region.remote());
    let write = connected.write_bytes(b"self", &region.remote(), 0, OperationOptions::NONE);
    assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    assert_eq!(bytes_of(&buffer, 0, 4), b"self");
    drop((accepted, connected));
}

/// Makes an operation that writes the byte 7 at offset `at` of a region.
fn write_one(remote: &RemoteRegion, at: u64) -> Operation {
    let mut bytes = [0; 64];
    bytes[0] = 7;
    Operation {
        request: Request::Write {
            source: Source::Inline(bytes),
            key: remote.key,
            address: remote.address + at,
        },
        length: 1,
        flags: OperationFlags { signalled: true, ..OperationFlags::default() },
        immediate: None,
        context: at,
        status: None,
    }
}

/// Returns bytes that depend on their position and on `seed`.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn bytes_of(buffer: &Buffer, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    buffer.read(offset, &mut bytes);
    bytes
}
