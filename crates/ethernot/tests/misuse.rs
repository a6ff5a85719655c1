//! Tests of programs that misuse the library. For each misuse, the library returns a typed error or
//! has a defined behaviour.

#[path = "executor/mod.rs"]
mod executor;
mod pair;

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use ethernot::{
    AcceptError, AccessError, Awaited, Buffer, Closed, CompletionQueue, ConnectError,
    ConnectOptions, Connection, Endpoint, Error, ErrorKind, ListenError, MemoryRegion,
    OperationError, OperationFailure, OperationOptions, OperationRefusal, Polling, PostError,
    Rights, SubmitError, WaitError,
};
use executor::{block_on, waker};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pair::{BYTES, EVERYTHING, LIMIT, Pair, loopback};

const NONE: OperationOptions = OperationOptions::NONE;

/// Serializes the tests. A child inherits the state of all threads, so a test that forks must not
/// run at the same time as another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a pair whose tasks and threads sleep without spinning first.
fn sleepy() -> Pair {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let side = || loopback().polling(Polling::NEVER);
    Pair::build(side(), side(), rights)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&waker()))
}

fn refusal(error: PostError) -> OperationRefusal {
    match error {
        PostError::Submit(SubmitError::Post(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_call_refuses_a_region_of_another_endpoint() {
    let _alone = alone();
    let pair = Pair::new();
    let (connection, remote) = (&pair.client.connection, &pair.remote);
    let foreign: &MemoryRegion = &pair.server.region;
    let own = &pair.client.region;
    let refused = [
        connection.write(foreign, 0, remote, 0, 8, NONE).map(drop),
        connection.read(foreign, 0, remote, 0, 8, NONE).map(drop),
        connection.send(foreign, 0, 8, NONE).map(drop),
        connection.post_receive(foreign, 0, 8, 0),
        connection.receive(foreign, 0, 8).map(drop),
        connection.call(b"", foreign, 0, 8, NONE).map(drop),
        connection.call_from(foreign, 0, 8, own, 0, 8, NONE).map(drop),
    ];
    for refused in refused {
        let refused = refusal(refused.expect_err("a region of another endpoint"));
        let is_local_access = matches!(
            refused,
            OperationRefusal::LocalAccess(
                AccessError::ForeignRegion { .. } | AccessError::InvalidKey { .. }
            )
        );
        assert!(is_local_access, "{refused:?}");
    }
    // The refused operations have no effect: the connection still works.
    let write = connection.write(own, 0, remote, 0, 8, NONE).expect("it is posted");
    assert_eq!(write.wait(Some(LIMIT)), Ok(0));
}

#[test]
fn waiting_for_objects_of_another_endpoint_is_refused() {
    let _alone = alone();
    let pair = Pair::new();
    let (client, server) = (&pair.client, &pair.server);
    let listener = server.endpoint.listen(0).expect("the service is free");
    let operation = server.connection.send_bytes(b"", NONE).expect("it is posted");
    let message = server.connection.receive(&server.region, 0, 8).expect("it is posted");
    for awaited in [
        Awaited::Request(&listener),
        Awaited::Completion(server.connection.queue()),
        Awaited::End(&server.connection),
        Awaited::Operation(&operation),
        Awaited::Message(&message),
    ] {
        let refused = client.endpoint.wait_any(&[awaited], Some(LIMIT));
        assert!(matches!(refused, Err(WaitError::Foreign)), "{refused:?}");
    }
    let foreign = block_on(client.endpoint.next_completion(server.connection.queue()));
    assert_eq!(foreign, Err(WaitError::ForeignQueue));
}

#[test]
fn a_buffer_lives_as_long_as_it_is_registered() {
    let _alone = alone();
    let pair = Pair::new();
    let client = &pair.client;
    let buffer = Buffer::new(8);
    buffer.store_u64(0, 77);
    let region = client.endpoint.register(Arc::clone(&buffer), Rights::NONE).expect("room");
    drop(buffer);
    let write = client.connection.write(&region, 0, &pair.remote, 0, 8, NONE);
    assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
    assert_eq!(pair.server.buffer.load_u8(0), 77);
}

#[test]
fn deregistering_the_region_of_a_receive_ends_the_connection_with_a_reason() {
    let _alone = alone();
    let pair = Pair::new();
    let server = &pair.server;
    let region = server.endpoint.register(Buffer::new(8), Rights::LOCAL_WRITE).expect("room");
    let receive = server.connection.receive(&region, 0, 8).expect("it is posted");
    server.endpoint.memory().deregister(region.region().id).expect("it is registered");
    let send = pair.client.connection.send_bytes(b"too late", NONE).expect("it is posted");
    assert!(send.wait(Some(LIMIT)).is_err());
    let ended = receive.wait(Some(LIMIT)).map(|received| received.len());
    assert!(matches!(ended, Err(OperationFailure::Failed(_))), "{ended:?}");
    assert_eq!(server.connection.wait_closed(Some(LIMIT)).expect("it ends").0, Closed::LocalMemory);
}

#[test]
fn a_message_in_a_deregistered_region_is_reported_as_such() {
    let _alone = alone();
    let pair = Pair::new();
    let server = &pair.server;
    let region = server.endpoint.register(Buffer::new(8), Rights::LOCAL_WRITE).expect("room");
    let receive = server.connection.receive(&region, 0, 8).expect("it is posted");
    let send = pair.client.connection.send_bytes(b"in time", NONE).expect("it is posted");
    send.wait(Some(LIMIT)).expect("it is received");
    let received = receive.wait(Some(LIMIT)).expect("a message");
    server.endpoint.memory().deregister(region.region().id).expect("it is registered");
    assert!(matches!(received.to_vec(), Err(AccessError::InvalidKey { .. })));
}

#[test]
fn an_operation_continues_after_its_future_is_dropped() {
    let _alone = alone();
    let pair = sleepy();
    let client = &pair.client;
    for round in 0..100_u8 {
        client.buffer.store_u64(BYTES - 8, round.into());
        let write = client.connection.write(&client.region, 0, &pair.remote, 0, BYTES, NONE);
        let mut write = write.expect("it is posted");
        let _whichever = poll_once(&mut write);
        drop(write);
        let last = client.connection.write_bytes(b"", &pair.remote, 0, NONE.fence_before(true));
        assert_eq!(block_on(last.expect("it is posted")), Ok(0));
        assert_eq!(pair.server.buffer.load_u64(BYTES - 8), round.into());
    }
}

#[test]
fn dropped_futures_release_their_handles() {
    let _alone = alone();
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    let client = loopback().polling(Polling::NEVER).handles_max(2);
    let pair = Pair::build(client, loopback(), rights);
    for _ in 0..1000 {
        let mut add = loop {
            match pair.client.connection.fetch_add(&pair.remote, 0, 1, NONE) {
                Ok(add) => break add,
                Err(PostError::NoHandleLeft) => {
                    pair.client.endpoint.drive().expect("not forked");
                }
                Err(error) => panic!("{error}"),
            }
        };
        let _whichever = poll_once(&mut add);
    }
}

#[test]
fn waiting_twice_for_a_handle_returns_the_same_result() {
    let _alone = alone();
    let pair = Pair::new();
    let client = &pair.client.connection;
    let mut add = client.fetch_add(&pair.remote, 0, 5, NONE).expect("it is posted");
    assert_eq!((add.wait(Some(LIMIT)), add.wait(None)), (Ok(0), Ok(0)));
    assert_eq!(poll_once(&mut add), Poll::Ready(Ok(0)));
    let (one, two) = thread::scope(|scope| {
        let wait = || add.wait(Some(LIMIT));
        let waits = [scope.spawn(wait), scope.spawn(wait)];
        let [one, two] = waits.map(|wait| wait.join().expect("no panic"));
        (one, two)
    });
    assert_eq!((one, two), (Ok(0), Ok(0)));
    let wrong = client.read(&pair.client.region, 0, &RIGHTLESS, 0, 8, NONE).expect("it is posted");
    let failed = wrong.wait(Some(LIMIT));
    assert!(matches!(failed, Err(OperationFailure::Failed(OperationError::RemoteAccess(_)))));
    assert_eq!(wrong.wait(Some(LIMIT)), failed);
}

/// Description of a region that was never registered.
const RIGHTLESS: ethernot::RemoteRegion =
    ethernot::RemoteRegion { key: ethernot::RemoteKey(0x7777), address: 0, len: 64 };

#[test]
fn polling_an_ended_attempt_returns_an_error() {
    let _alone = alone();
    let server = loopback().build().expect("an endpoint");
    let client = loopback().build().expect("an endpoint");
    let listener = server.listen(0).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0];
    let mut connecting = client.start_connect(address, ConnectOptions::new()).expect("it is asked");
    let request = listener.accept(Some(LIMIT)).expect("a request");
    let mut accepting = request.start_accept(ConnectOptions::new()).expect("it is there");
    let connected = block_on(&mut connecting).expect("accepted");
    let accepted = block_on(&mut accepting).expect("the peer knows");
    assert!(matches!(poll_once(&mut connecting), Poll::Ready(Err(ConnectError::Answered))));
    assert!(matches!(poll_once(&mut accepting), Poll::Ready(Err(_))));
    assert!(connected.closed().is_none() && accepted.closed().is_none());
}

/// A waker that unparks its thread.
struct Flag(thread::Thread);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn waiting_threads_return_when_the_endpoint_is_shut_down() {
    let _alone = alone();
    let pair = sleepy();
    let (endpoint, connection) = (&pair.server.endpoint, &pair.server.connection);
    let listener = endpoint.listen(0).expect("the service is free");
    let queue = Arc::new(CompletionQueue::new(1));
    let receive = connection.receive(&pair.server.region, 0, 8).expect("it is posted");
    let is_armed = AtomicBool::new(false);
    thread::scope(|scope| {
        let accept = scope.spawn(|| listener.accept(None).map(drop));
        let completion = scope.spawn(|| endpoint.wait_completion(&queue, None).map(drop));
        let any = scope.spawn(|| endpoint.wait_any(&[], None).map(drop));
        let own = scope.spawn(|| connection.wait_completion(None).map(drop));
        let end = scope.spawn(|| connection.wait_closed(None).map(|(reason, _)| reason));
        let message = scope.spawn(|| receive.wait(None).map(drop));
        let armed = scope.spawn(|| {
            while !endpoint.arm().expect("not forked") {}
            is_armed.store(true, Ordering::Release);
            let mut fds = [PollFd::new(endpoint.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::try_from(LIMIT).expect("it fits"))
        });
        while !is_armed.load(Ordering::Acquire) {
            thread::yield_now();
        }
        endpoint.shutdown(Some(LIMIT)).expect("the peer is notified");
        for ended in [accept, completion, any] {
            assert_eq!(ended.join().expect("no panic"), Err(WaitError::ShutDown));
        }
        assert!(matches!(own.join().expect("no panic"), Err(WaitError::Closed(Closed::Here))));
        assert_eq!(end.join().expect("no panic"), Ok(Closed::Here));
        let flushed = Err(OperationFailure::Failed(OperationError::Flushed));
        assert_eq!(message.join().expect("no panic"), flushed);
        assert_eq!(armed.join().expect("no panic"), Ok(1), "the sleeping thread was not woken");
    });
    let late = listener.accept(Some(LIMIT)).map(drop);
    assert_eq!(late, Err(WaitError::ShutDown));
}

#[test]
fn an_endpoint_that_was_shut_down_makes_no_connection() {
    let _alone = alone();
    let pair = sleepy();
    let endpoint = &pair.server.endpoint;
    let listener = endpoint.listen(0).expect("the service is free");
    let address = endpoint.local_addresses().expect("not forked")[0];
    let asking = pair.client.endpoint.start_connect(address, ConnectOptions::new());
    let request = listener.accept(Some(LIMIT)).expect("it is asked for");
    endpoint.shutdown(Some(LIMIT)).expect("the peer is notified");
    assert!(matches!(request.accept(&[]), Err(AcceptError::ShutDown)));
    let asking = asking.expect("it asks").wait(Some(LIMIT));
    assert!(matches!(asking, Err(ConnectError::Closed { .. })), "{asking:?}");
    let there = pair.client.endpoint.local_addresses().expect("not forked")[0];
    let ended = endpoint.connect(there).map(drop).map_err(Error::from).expect_err("it is over");
    assert!(matches!(&ended, Error::Connect(ConnectError::ShutDown)), "{ended}");
    assert_eq!(ended.kind(), ErrorKind::Closed);
    assert!(matches!(endpoint.listen(1), Err(ListenError::ShutDown)));
}

#[test]
fn waiting_tasks_return_when_the_endpoint_is_shut_down() {
    let _alone = alone();
    let pair = sleepy();
    let (endpoint, connection) = (&pair.server.endpoint, &pair.server.connection);
    let listener = endpoint.listen(0).expect("the service is free");
    let queue = Arc::new(CompletionQueue::new(1));
    let mut receive = connection.receive(&pair.server.region, 0, 8).expect("it is posted");
    let waker = Waker::from(Arc::new(Flag(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut request = pin!(listener.next_request());
    let mut completion = pin!(endpoint.next_completion(&queue));
    let mut own = pin!(connection.next_completion());
    let mut end = pin!(connection.ended());
    assert!(request.as_mut().poll(&mut context).is_pending());
    assert!(completion.as_mut().poll(&mut context).is_pending());
    assert!(own.as_mut().poll(&mut context).is_pending());
    assert!(end.as_mut().poll(&mut context).is_pending());
    assert!(Pin::new(&mut receive).poll(&mut context).is_pending());
    thread::scope(|scope| {
        scope.spawn(|| endpoint.shutdown(Some(LIMIT)).expect("the peer is notified"));
        assert!(matches!(block_on(request), Err(WaitError::ShutDown)));
        assert!(matches!(block_on(completion), Err(WaitError::ShutDown)));
        assert_eq!(block_on(own), Err(WaitError::Closed(Closed::Here)));
        assert_eq!(block_on(end).map(|(reason, _)| reason), Ok(Closed::Here));
        assert!(block_on(receive).is_err());
    });
}

/// Runs `work` in a child process, and returns its result. Kills the child if it does not end.
fn is_true_in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the allocator works in a child, and the child does not run the parent's exit
    // handlers.
    match unsafe { nix::unistd::fork() } {
        Ok(nix::unistd::ForkResult::Child) => {
            nix::unistd::alarm::set(60);
            let is_true = work();
            // SAFETY: the child must not run the parent's exit handlers.
            unsafe { nix::libc::_exit(i32::from(!is_true)) }
        }
        Ok(nix::unistd::ForkResult::Parent { child }) => {
            let status = nix::sys::wait::waitpid(child, None).expect("a child");
            matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0))
        }
        Err(error) => panic!("no process could be made: {error}"),
    }
}

#[test]
fn a_forked_child_drops_memory_while_a_thread_of_its_parent_uses_the_table() {
    let _alone = alone();
    let pair = sleepy();
    let endpoint = &pair.client.endpoint;
    let region = endpoint.register(Buffer::new(64), Rights::REMOTE_WRITE);
    let mut region = Some(region.expect("it is registered"));
    let [entered, done] = [(); 2].map(|()| std::sync::Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let access = endpoint.memory().access();
            entered.wait();
            done.wait();
            drop(access);
        });
        entered.wait();
        let is_dropped = is_true_in_child(|| {
            drop(region.take());
            true
        });
        done.wait();
        assert!(is_dropped, "the child has waited for a thread that it does not have");
    });
}

#[test]
fn all_waits_return_an_error_in_a_forked_child() {
    let _alone = alone();
    let pair = sleepy();
    let Pair { client, .. } = &pair;
    let listener = client.endpoint.listen(0).expect("the service is free");
    let mut receive = client.connection.receive(&client.region, 0, 8).expect("it is posted");
    let forked = |error: &WaitError| matches!(error, WaitError::Forked(_));
    assert!(is_true_in_child(|| {
        let connection: &Connection = &client.connection;
        let endpoint: &Endpoint = &client.endpoint;
        let are_refused = [
            endpoint.arm().is_err() && endpoint.drain().is_err(),
            endpoint.wait_any(&[], None).is_err_and(|error| forked(&error)),
            endpoint.shutdown(None).is_err_and(|error| forked(&error)),
            listener.accept(None).is_err_and(|error| forked(&error)),
            connection.wait_completion(None).is_err_and(|error| forked(&error)),
            connection.wait_closed(None).is_err_and(|error| forked(&error)),
            connection.completions(None).next().is_some_and(|found| found.is_err()),
            matches!(receive.wait(None), Err(OperationFailure::Forked(_))),
            matches!(poll_once(&mut receive), Poll::Ready(Err(OperationFailure::Forked(_)))),
            block_on(listener.next_request()).is_err_and(|error| forked(&error)),
            block_on(connection.next_completion()).is_err_and(|error| forked(&error)),
            block_on(connection.ended()).is_err_and(|error| forked(&error)),
            matches!(
                connection.receive(&client.region, 8, 8),
                Err(PostError::Submit(SubmitError::Forked(_)))
            ),
            matches!(
                connection.call(b"", &client.region, 8, 8, NONE),
                Err(PostError::Submit(SubmitError::Forked(_)))
            ),
        ];
        are_refused.iter().all(|&is_refused| is_refused)
    }));
    // The parent's endpoints still work.
    let sent = pair.server.connection.send_bytes(b"parent", NONE).expect("it is posted");
    assert_eq!(sent.wait(Some(LIMIT)), Ok(0));
    assert_eq!(receive.wait(Some(LIMIT)).expect("a message").to_vec().unwrap(), b"parent");
}

#[test]
fn a_full_completion_queue_refuses_operations_and_loses_nothing() {
    let _alone = alone();
    let pair = Pair::new();
    let (client, server) = (&pair.client.connection, &pair.server.connection);
    let capacity = client.queue().capacity() as u64;
    let signalled = |context| OperationOptions::SIGNALLED.context(context);
    let write = |context| client.write_bytes(b"x", &pair.remote, 0, signalled(context));
    for context in 0..capacity {
        let write = write(context).expect("an entry is free");
        assert_eq!(write.wait(Some(LIMIT)), Ok(0));
    }
    let full = refusal(write(capacity).expect_err("the completion queue is full"));
    assert_eq!(full, OperationRefusal::CompletionQueueFull(capacity as usize));
    // Operations that need no entry of the queue still succeed.
    let plain =
        client.write_bytes(b"y", &pair.remote, 0, NONE).expect("the operation needs no entry");
    assert_eq!(block_on(plain), Ok(0));
    // The peer's queue also has no free entry for a notification, so the notifications wait at the
    // peer.
    let notify = || client.write_bytes(b"z", &pair.remote, 0, OperationOptions::NOTIFY);
    let notified: Vec<_> = (0..capacity + 8).map(|_| notify().expect("it is posted")).collect();
    let last = notified.last().expect("some").wait(Some(Duration::from_millis(1)));
    assert!(matches!(last, Err(OperationFailure::TimedOut { .. })), "{last:?}");
    let polled = server.completions(Some(LIMIT)).take(notified.len()).flatten();
    assert_eq!(polled.count(), notified.len());
    assert!(notified.iter().all(|note| note.wait(Some(LIMIT)) == Ok(0)));
    let polled = client.completions(Some(LIMIT)).take(capacity as usize);
    assert!(polled.map(|done| done.expect("there").context).eq(0..capacity));
    assert_eq!(write(0).expect("an entry is free again").wait(Some(LIMIT)), Ok(0));
}
