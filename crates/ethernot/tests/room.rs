//! Tests of tasks that wait for room, for the completion of operations, and for the peers'
//! confirmation that connections are closed. No such wait blocks a thread.

#[path = "executor/mod.rs"]
mod executor;
#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::future::Future;
use std::net::UdpSocket;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ethernot::{
    Closed, Connection, EngineConfig, Error, ErrorKind, OperationOptions, Polling, PoolLimits,
    PostError, RemoteRegion, Rights, WaitError,
};
use executor::{block_on, waker};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

const NONE: OperationOptions = OperationOptions::NONE;

fn all_rights() -> Rights {
    EVERYTHING.into_iter().fold(Rights::NONE, Rights::union)
}

/// Makes a pair whose server answers only while the test drives it.
fn silent_server() -> Pair {
    Pair::build(loopback(), loopback().progress_thread(false), all_rights())
}

fn poll_once<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Runs a future and drives the peer at the same time.
fn drive_beside<F: Future>(pair: &Pair, future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), waker());
    loop {
        if let Poll::Ready(result) = poll_once(future.as_mut(), &waker) {
            return result;
        }
        pair.server.endpoint.drive().expect("not forked");
    }
}

async fn add(connection: &Connection, remote: &RemoteRegion) -> Result<u64, Error> {
    let add = || connection.fetch_add(remote, 0, 1, NONE);
    Ok(connection.when_room(add).await?.await?)
}

#[test]
fn more_tasks_than_there_is_room_for_all_post_eventually() {
    let few = EngineConfig::default().pools(PoolLimits::default().operations(8));
    let sleepy = loopback().handles_max(8).polling(Polling::NEVER);
    for client in [loopback().handles_max(8), loopback().engine(few), sleepy] {
        let pair = Pair::build(client, loopback(), all_rights());
        let (connection, remote) = (pair.client.connection, pair.remote);
        let connection = std::sync::Arc::new(connection);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
        runtime.expect("threads").block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..200 {
                let connection = std::sync::Arc::clone(&connection);
                tasks.spawn(async move {
                    for _ in 0..5 {
                        add(&connection, &remote).await.expect("it is performed");
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.expect("no panic");
            }
        });
        assert_eq!(pair.server.buffer.load_u64(0), 1000);
    }
}

#[test]
fn polling_makes_room_in_a_completion_queue() {
    // No other thread is inside the engine of the client. Such a thread would take operations for
    // which the queue has no room.
    let pair = Pair::build(loopback().progress_thread(false), loopback(), all_rights());
    let connection = &pair.client.connection;
    let write = || connection.write_bytes(b"x", &pair.remote, 0, OperationOptions::SIGNALLED);
    let refused = loop {
        match write() {
            Ok(handle) => drop(handle),
            Err(error) => break Error::from(error),
        }
    };
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    let mut posted = pin!(connection.when_room(write));
    assert!(poll_once(posted.as_mut(), &waker()).is_pending());
    connection.wait_completion(Some(LIMIT)).expect("one is complete");
    drop(block_on(posted).expect("there is room now"));
}

#[test]
fn dropping_a_handle_makes_room() {
    let pair = Pair::build(loopback().handles_max(1), loopback(), all_rights());
    let connection = &pair.client.connection;
    let held = connection.fetch_add(&pair.remote, 0, 1, NONE).expect("it is posted");
    let waker = waker();
    let mut room = pin!(connection.room());
    assert!(poll_once(room.as_mut(), &waker).is_pending());
    held.wait(Some(LIMIT)).expect("it is performed");
    assert!(poll_once(room.as_mut(), &waker).is_pending(), "the handle is there");
    drop(held);
    block_on(room).expect("there is room");
    connection.close(b"").expect("not forked");
    connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert_eq!(block_on(connection.room()), Err(PostError::Closed(Closed::Here)));
}

#[test]
fn an_operation_refused_for_another_reason_does_not_wait_for_room() {
    let pair = Pair::new();
    let long = pair
        .client
        .connection
        .when_room(|| pair.client.connection.write_bytes(&[0; 65], &pair.remote, 0, NONE));
    assert!(matches!(block_on(long), Err(PostError::InlineTooLong(65))));
}

#[test]
fn operations_are_awaited_until_all_are_complete() {
    let pair = silent_server();
    let (client, remote) = (&pair.client, &pair.remote);
    let post = |value: u8| {
        drop(client.connection.write_bytes(&[value], remote, 0, NONE).expect("it is posted"));
    };
    post(1);
    let late = client.connection.flush(Some(Duration::ZERO));
    assert_eq!(late, Err(WaitError::TimedOut { limit: Duration::ZERO }));
    let late = client.endpoint.flush(Some(Duration::ZERO));
    assert_eq!(late, Err(WaitError::TimedOut { limit: Duration::ZERO }));
    drive_beside(&pair, client.connection.flushed()).expect("all are complete");
    assert_eq!(pair.server.buffer.load_u8(0), 1);
    post(2);
    drive_beside(&pair, client.endpoint.flushed()).expect("all are complete");
    assert_eq!(pair.server.buffer.load_u8(0), 2);
    client.connection.flush(Some(LIMIT)).expect("nothing is posted");
    client.connection.close(b"").expect("not forked");
    assert_eq!(block_on(client.connection.flushed()), Err(WaitError::Closed(Closed::Here)));
}

#[test]
fn an_endpoint_is_shut_down_by_a_task() {
    let pair = silent_server();
    let client = &pair.client;
    let write = client.connection.write_bytes(&[1], &pair.remote, 0, NONE);
    let write = write.expect("it is posted");
    {
        let mut given_up = pin!(client.endpoint.shutting_down());
        assert!(poll_once(given_up.as_mut(), &waker()).is_pending());
    }
    assert_eq!(client.connection.closed(), None, "its operation is not complete");
    drive_beside(&pair, client.endpoint.shutting_down()).expect("the peer has heard");
    assert_eq!((write.wait(Some(LIMIT)), pair.server.buffer.load_u8(0)), (Ok(0), 1));
    assert_eq!(client.connection.closed(), Some(Closed::Here));
    let refused = client.endpoint.listen(1).map(drop);
    assert!(refused.is_err(), "it is shut down");
}

#[test]
fn tasks_that_wait_for_a_shutdown_are_woken() {
    let pair = Pair::new();
    block_on(pair.client.connection.flushed()).expect("nothing is posted");
    block_on(pair.client.endpoint.shutting_down()).expect("the peer has heard");
    let ended = pair.server.connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert_eq!(ended.0, Closed::ByPeer);
}

/// The shutdown grace is an hour, so the test would not end if the drop waited for the peer.
#[test]
fn dropping_the_last_endpoint_does_not_wait_for_a_silent_peer() {
    let client = loopback().shutdown_grace(Duration::from_hours(1));
    let pair = Pair::build(client, loopback().progress_thread(false), all_rights());
    let address = pair.client.endpoint.local_addresses().expect("not forked")[0];
    let server = pair.server;
    drop(pair.client);
    // When the peer has confirmed the end, the endpoint and its links are gone.
    while UdpSocket::bind(address).is_err() {
        server.endpoint.drive().expect("not forked");
    }
    let ended = server.connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert_eq!(ended.0, Closed::ByPeer);
}
