//! Tests of futures: any executor can run them, a task may cancel them at any time, and the thread
//! that detects the awaited event wakes the task.

#[path = "executor/mod.rs"]
mod executor;
#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use ethernot::{
    AcceptError, Closed, ConnectError, ConnectOptions, Connection, Endpoint, Listener,
    OperationHandle, OperationOptions, Polling, Rights,
};
use executor::{block_on, waker};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

/// Makes a pair whose tasks sleep without spinning first.
fn sleepy() -> Pair {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let side = || loopback().polling(Polling::NEVER);
    Pair::build(side(), side(), rights)
}

fn add(pair: &Pair) -> OperationHandle {
    let add = pair.client.connection.fetch_add(&pair.remote, 0, 1, OperationOptions::NONE);
    add.expect("it is posted")
}

/// Polls a future once.
fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn operations_are_awaited() {
    for pair in [Pair::new(), sleepy()] {
        for expected in 0..500 {
            assert_eq!(block_on(add(&pair)), Ok(expected));
        }
    }
}

#[test]
fn many_operations_are_awaited_at_a_time() {
    for pair in [Pair::new(), sleepy()] {
        block_on(async {
            for round in 0..100 {
                let adds: Vec<_> = (0..64).map(|_| add(&pair)).collect();
                for (index, add) in adds.into_iter().enumerate() {
                    assert_eq!(add.await, Ok(round * 64 + index as u64));
                }
            }
        });
    }
}

#[test]
fn a_handle_can_be_awaited_again_after_its_wait_was_dropped() {
    let pair = sleepy();
    for expected in 0..100 {
        let mut handle = add(&pair);
        // The operation may be complete at the first poll; either result is valid.
        let first = poll_once(&mut handle, &waker());
        assert!(matches!(first, Poll::Pending | Poll::Ready(Ok(_))));
        assert_eq!(block_on(&mut handle), Ok(expected));
        assert_eq!(block_on(handle), Ok(expected), "a second wait returned another result");
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_that_moved_to_another_thread_is_woken_there() {
    let pair = sleepy();
    let server = &pair.server;
    let mut receive = server.connection.receive(&server.region, 0, 8).expect("it is posted");
    let old = Arc::new(Count::default());
    assert!(poll_once(&mut receive, &Waker::from(Arc::clone(&old))).is_pending());
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let waker = waker();
            assert!(poll_once(&mut receive, &waker).is_pending());
            let sent = pair.client.connection.send_bytes(b"now", OperationOptions::NONE);
            drop(sent.expect("it is posted"));
            thread::park();
            executor::block_on_with(&waker, &mut receive)
        });
        waiting.join().expect("no panic")
    });
    assert_eq!(waiting.expect("a message").to_vec().unwrap(), b"now");
    assert_eq!(old.0.load(Ordering::SeqCst), 0, "the former waker was woken");
}

/// Answers each message of one connection, and returns the reason why the connection ended.
async fn serve(server: &Endpoint, listener: Listener) -> Closed {
    let request = listener.next_request().await.expect("a request");
    let memory = ethernot::Buffer::new(64);
    let region = server.register(memory, Rights::LOCAL_WRITE).expect("there is room");
    let connection = request.start_accept(ConnectOptions::new()).unwrap().await.unwrap();
    loop {
        // The connection may end before the receive is posted, or while the task awaits the
        // receive.
        let Ok(message) = connection.receive(&region, 0, 64) else { break };
        let Ok(message) = message.await else { break };
        let answer = message.to_vec().expect("registered");
        connection.send_bytes(&answer, OperationOptions::NONE).unwrap().await.expect("heard");
    }
    connection.ended().await.expect("it ends").0
}

async fn ask(client: &Endpoint, address: std::net::SocketAddr, service: u32) {
    let options = ConnectOptions::new().service(service);
    let connection = client.start_connect(address, options).unwrap().await.expect("it listens");
    let memory = ethernot::Buffer::new(64);
    let region = client.register(memory, Rights::LOCAL_WRITE).expect("there is room");
    for number in 0_u32..200 {
        let question = number.to_le_bytes();
        let call = connection.call(&question, &region, 0, 64, OperationOptions::NONE);
        let answer = call.expect("it is posted").await.expect("an answer");
        assert_eq!(answer.to_vec().unwrap(), question);
    }
    connection.close(b"").expect("not forked");
    assert_eq!(connection.ended().await.expect("it ends").0, Closed::Here);
}

/// Makes a server and a client, each with its own endpoint, and calls `run` with them.
fn converse(polling: Polling, run: impl FnOnce(Endpoint, Endpoint, std::net::SocketAddr)) {
    let endpoint = || loopback().polling(polling).build().expect("an endpoint");
    let (server, client) = (endpoint(), endpoint());
    let address = server.local_addresses().expect("not forked")[0];
    run(server, client, address);
}

#[test]
fn servers_and_clients_run_on_any_executor() {
    for polling in [Polling::default(), Polling::NEVER] {
        converse(polling, |server, client, address| {
            let listener = server.listen(0).expect("the service is free");
            let serving = thread::spawn(move || block_on(serve(&server, listener)));
            block_on(ask(&client, address, 0));
            assert_eq!(serving.join().expect("no panic"), Closed::ByPeer);
        });
    }
}

#[test]
fn servers_and_clients_run_on_one_thread_of_tokio() {
    for polling in [Polling::default(), Polling::NEVER] {
        converse(polling, |server, client, address| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let listener = server.listen(0).expect("the service is free");
            let (closed, ()) = runtime.block_on(async {
                tokio::join!(serve(&server, listener), ask(&client, address, 0))
            });
            assert_eq!(closed, Closed::ByPeer);
        });
    }
}

#[test]
fn many_tasks_of_tokio_share_an_endpoint() {
    converse(Polling::default(), |server, client, address| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
        runtime.unwrap().block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for service in 0..8 {
                let (server, client) = (server.clone(), client.clone());
                let listener = server.listen(service).expect("the service is free");
                tasks.spawn(async move {
                    assert_eq!(serve(&server, listener).await, Closed::ByPeer);
                });
                tasks.spawn(async move { ask(&client, address, service).await });
            }
            while let Some(task) = tasks.join_next().await {
                task.expect("no panic");
            }
        });
    });
}

#[test]
fn a_request_is_not_lost_when_its_wait_is_dropped() {
    converse(Polling::NEVER, |server, client, address| {
        let listener = server.listen(0).expect("the service is free");
        for _ in 0..20 {
            let connecting = client.start_connect(address, ConnectOptions::new()).unwrap();
            for _ in 0..3 {
                let mut request = Box::pin(listener.next_request());
                if let Poll::Ready(request) = poll_once(&mut request, &waker()) {
                    drop(request.expect("a request").accept(b"").expect("the peer is there"));
                    break;
                }
            }
            let accepting = thread::scope(|scope| {
                let connected = scope.spawn(|| connecting.wait(Some(LIMIT)));
                while !connected.is_finished() {
                    if let Ok(request) = listener.accept(Some(Duration::from_millis(1))) {
                        drop(request.accept(b""));
                    }
                }
                connected.join().expect("no panic")
            });
            drop(accepting.expect("accepted"));
        }
    });
}

#[test]
fn completions_are_awaited_and_none_is_lost_when_the_wait_is_dropped() {
    let pair = sleepy();
    let (client, server) = (&pair.client.connection, &pair.server.connection);
    let notify = |number: u32| {
        let options = OperationOptions::NOTIFY.immediate(Some(number));
        drop(client.write_bytes(b"x", &pair.remote, 0, options).expect("it is posted"));
    };
    for number in 0..200 {
        let mut given_up = Box::pin(server.next_completion());
        assert!(poll_once(&mut given_up, &waker()).is_pending());
        drop(given_up);
        notify(number);
        let note = block_on(server.next_completion()).expect("a notification");
        assert_eq!(note.immediate, Some(number));
    }
    client.close(b"").expect("not forked");
    let end = block_on(server.next_completion());
    assert_eq!(end, Err(ethernot::WaitError::Closed(Closed::ByPeer)));
}

#[test]
fn tasks_wait_without_a_progress_thread() {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let client = loopback().progress_thread(false).polling(Polling::NEVER);
    let pair = Pair::build(client, loopback(), rights);
    for expected in 0..100 {
        assert_eq!(block_on(add(&pair)), Ok(expected));
    }
}

/// Compares the time of an 8-byte write that a task awaits with that of a write for which a thread
/// waits. Run this test alone, on a host without other load:
///
/// ```sh
/// cargo test --release -p ethernot --test futures -- --ignored --nocapture speeds
/// ```
#[test]
#[ignore = "slow: run by hand, alone in its process; measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn speeds_of_awaited_operations() {
    let pair = Pair::new();
    let write = |connection: &Connection| {
        let written = connection.write_bytes(b"8 bytes!", &pair.remote, 0, OperationOptions::NONE);
        written.expect("it is posted")
    };
    let client = &pair.client.connection;
    let waker = waker();
    for in_flight in [1_usize, 64] {
        let mut handles: Vec<OperationHandle> = Vec::with_capacity(in_flight);
        let rounds = 40_000 / in_flight;
        let mut ratios: Vec<f64> = Vec::new();
        for _ in 0..11 {
            let started = std::time::Instant::now();
            for _ in 0..rounds {
                handles.extend((0..in_flight).map(|_| write(client)));
                for handle in handles.drain(..) {
                    handle.wait(None).expect("written");
                }
            }
            let waited = started.elapsed();
            let started = std::time::Instant::now();
            executor::block_on_with(&waker, async {
                for _ in 0..rounds {
                    handles.extend((0..in_flight).map(|_| write(client)));
                    for handle in handles.drain(..) {
                        handle.await.expect("written");
                    }
                }
            });
            ratios.push(started.elapsed().as_secs_f64() / waited.as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "figure: awaited operations against waited, {in_flight} in flight: {:.3}",
            ratios[5]
        );
    }
}

#[test]
fn an_attempt_can_be_awaited_again_and_returns_its_outcome_once() {
    converse(Polling::default(), |server, client, address| {
        let listener = server.listen(0).expect("the service is free");
        let mut connecting = client.start_connect(address, ConnectOptions::new()).expect("sent");
        let request = listener.accept(Some(LIMIT)).expect("a request");
        let late = connecting.wait_for(Duration::ZERO);
        assert!(matches!(late, Err(ConnectError::TimedOut { .. })), "{late:?}");
        let mut accepting = request.start_accept(ConnectOptions::new()).expect("accepted");
        let (accepted, connected) = thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                loop {
                    match accepting.wait_for(Duration::from_millis(1)) {
                        Err(AcceptError::TimedOut { .. }) => {}
                        outcome => break outcome.expect("the peer is there"),
                    }
                }
            });
            let connected = connecting.wait_for(LIMIT).expect("it is accepted");
            (accepted.join().expect("no panic"), connected)
        });
        assert_eq!((accepted.closed(), connected.closed()), (None, None));
        let again = connecting.wait_for(Duration::ZERO);
        assert!(matches!(again, Err(ConnectError::Answered)), "{again:?}");
        let again = accepting.wait_for(Duration::ZERO);
        assert!(matches!(again, Err(AcceptError::Refused(_))), "{again:?}");
    });
}
