//! Tests of waits for several events at the same time: by the file descriptor in event loops, by
//! one call for all events, and by iterators.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ethernot::{
    Awaited, CompletionKind, CompletionQueue, ConnectOptions, Connection, Endpoint, Occurred,
    OperationOptions, WaitError,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pair::{LIMIT, Pair, loopback};

/// Sleeps in `poll` until the endpoint's descriptor is readable.
fn sleep_in_poll(endpoint: &Endpoint) {
    let mut fds = [PollFd::new(endpoint.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(LIMIT).expect("it fits");
    assert_eq!(poll(&mut fds, limit), Ok(1), "nothing has come in time");
}

fn is_readable(endpoint: &Endpoint) -> bool {
    let mut fds = [PollFd::new(endpoint.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("the descriptor is there") == 1
}

/// Calls `look` until it returns a result. Calls `sleep` between two calls of `look`.
fn event_loop<R>(
    endpoint: &Endpoint,
    sleep: impl Fn(&Endpoint),
    mut look: impl FnMut() -> Option<R>,
) -> R {
    loop {
        if let Some(found) = look() {
            return found;
        }
        if endpoint.arm().expect("not forked") {
            sleep(endpoint);
        }
    }
}

/// The two ends answer each other `count` times. Each end sleeps until its next message arrives.
fn ping_pong(pair: &Pair, count: u32, sleep: impl Fn(&Endpoint) + Sync) {
    let say = |connection: &Connection, number| {
        let options = OperationOptions::NOTIFY.immediate(Some(number));
        drop(connection.write_bytes(b"x", &pair.remote, 0, options).expect("it is posted"));
    };
    let hear = |endpoint: &Endpoint, connection: &Connection, number| {
        let heard = event_loop(endpoint, &sleep, || connection.poll().expect("not forked"));
        assert_eq!((heard.kind, heard.immediate), (CompletionKind::Notification, Some(number)));
    };
    let (client, server) = (&pair.client, &pair.server);
    let to_client = client.region.remote();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                hear(&server.endpoint, &server.connection, number);
                let options = OperationOptions::NOTIFY.immediate(Some(number));
                let answer = server.connection.write_bytes(b"y", &to_client, 0, options);
                drop(answer.expect("it is posted"));
            }
        });
        for number in 0..count {
            say(&client.connection, number);
            hear(&client.endpoint, &client.connection, number);
        }
    });
}

#[test]
fn the_descriptor_wakes_a_thread_that_sleeps_in_poll() {
    ping_pong(&Pair::new(), 2000, sleep_in_poll);
}

#[test]
fn the_descriptor_wakes_a_thread_that_sleeps_in_epoll() {
    ping_pong(&Pair::new(), 2000, |endpoint| {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a set");
        epoll.add(endpoint, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("it is added");
        let mut events = [EpollEvent::empty()];
        let limit = EpollTimeout::try_from(LIMIT).expect("it fits");
        assert_eq!(epoll.wait(&mut events, limit), Ok(1), "nothing has come in time");
    });
}

#[test]
fn the_descriptor_wakes_a_task_of_tokio() {
    use tokio::io::unix::AsyncFd;
    let pair = Pair::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let client = &pair.client;
    let write = |connection: &Connection| {
        drop(connection.write_bytes(b"x", &pair.remote, 0, OperationOptions::SIGNALLED).unwrap());
    };
    runtime.block_on(async {
        #[expect(deprecated, reason = "the descriptor is borrowed, so it stays open")]
        let readable = AsyncFd::new(client.endpoint.as_fd()).expect("a descriptor");
        for _ in 0..500 {
            write(&client.connection);
            loop {
                if client.connection.poll().unwrap().is_some() {
                    break;
                }
                if client.endpoint.arm().unwrap() {
                    readable.readable().await.unwrap().clear_ready();
                }
            }
        }
    });
}

#[test]
fn the_descriptor_reports_requests_and_ends() {
    let server = loopback().build().expect("an endpoint");
    let client = loopback().build().expect("an endpoint");
    let listener = server.listen(0).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0];
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let options = ConnectOptions::new().limit(Some(LIMIT));
            client.connect_with(address, options).expect("it listens")
        });
        let request = event_loop(&server, sleep_in_poll, || {
            listener.accept(Some(Duration::ZERO)).map_or_else(
                |error| {
                    assert!(matches!(error, WaitError::TimedOut { .. }), "{error}");
                    None
                },
                Some,
            )
        });
        let accepted = request.accept(b"").expect("the peer is there");
        drop(connecting.join().expect("no panic"));
        event_loop(&server, sleep_in_poll, || accepted.closed());
    });
}

#[test]
fn arming_fails_while_completions_are_unread() {
    let pair = Pair::new();
    let client = &pair.client;
    while !client.endpoint.arm().expect("not forked") {}
    let write = client.connection.write_bytes(b"x", &pair.remote, 0, OperationOptions::SIGNALLED);
    write.expect("it is posted").wait(Some(LIMIT)).expect("it succeeds");
    // The descriptor is armed. A thread inside the engine has completed the write. This thread
    // makes the descriptor readable only when it leaves the engine, so sleep until then.
    sleep_in_poll(&client.endpoint);
    client.endpoint.drain().expect("not forked");
    assert!(!is_readable(&client.endpoint));
    assert!(!client.endpoint.arm().expect("not forked"), "no look came between");
}

#[test]
fn without_a_progress_thread_arming_never_lets_a_thread_sleep() {
    let endpoint = loopback().progress_thread(false).build().expect("an endpoint");
    for _ in 0..3 {
        assert!(!endpoint.arm().expect("not forked"));
    }
}

#[test]
fn requests_completions_messages_and_ends_are_waited_for_together() {
    let server = loopback().build().expect("an endpoint");
    let client = loopback().build().expect("an endpoint");
    let listener = server.listen(0).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0];
    let queue = Arc::new(CompletionQueue::new(64));
    let memory = ethernot::Buffer::new(64);
    let region = server.register(memory, ethernot::Rights::LOCAL_WRITE).expect("there is room");
    let serving = || {
        let wait = |awaited: &[Awaited<'_>]| server.wait_any(awaited, Some(LIMIT)).unwrap();
        let (0, Occurred::Request(request)) = wait(&[Awaited::Request(&listener)]) else {
            panic!("no request");
        };
        let options = ConnectOptions::new().queue(Arc::clone(&queue));
        let connection = request.accept_with(options).expect("the peer is there");
        connection.post_receive(&region, 0, 8, 7).expect("it is posted");
        let found = wait(&[Awaited::Request(&listener), Awaited::Completions(&queue)]);
        assert!(matches!(found, (1, Occurred::Completions)), "{found:?}");
        let found = wait(&[Awaited::Request(&listener), Awaited::Completion(&queue)]);
        assert!(matches!(found, (1, Occurred::Completion(_))), "{found:?}");
        let message = connection.receive(&region, 8, 8).expect("it is posted");
        let awaited =
            [Awaited::End(&connection), Awaited::Completion(&queue), Awaited::Message(&message)];
        let (2, Occurred::Message(Ok(received))) = wait(&awaited) else { panic!("no message") };
        assert_eq!(received.to_vec().unwrap(), b"second");
        let send = connection.send_bytes(b"bye", OperationOptions::NONE).expect("it is posted");
        // The peer ends the connection as soon as it has the message. So both events may have
        // occurred. In this case `wait_any` reports the first event in the list.
        let found = wait(&[Awaited::Operation(&send), Awaited::End(&connection)]);
        assert!(matches!(found, (0, Occurred::Operation(Ok(0)))), "{found:?}");
        let (0, Occurred::End(_, said)) = wait(&[Awaited::End(&connection)]) else {
            panic!("it has not ended");
        };
        assert_eq!(said, b"over");
    };
    thread::scope(|scope| {
        scope.spawn(serving);
        let connection = client.connect(address).expect("it listens");
        let memory = ethernot::Buffer::new(64);
        let region = client.register(memory, ethernot::Rights::LOCAL_WRITE).unwrap();
        let bye = connection.receive(&region, 0, 8).expect("it is posted");
        for message in [&b"first"[..], b"second"] {
            let sent = connection.send_bytes(message, OperationOptions::NONE).unwrap();
            sent.wait(Some(LIMIT)).expect("it is received");
        }
        assert_eq!(bye.wait(Some(LIMIT)).expect("it comes").to_vec().unwrap(), b"bye");
        connection.close(b"over").expect("not forked");
    });
}

#[test]
fn a_thread_that_sets_a_flag_wakes_a_thread_that_waits_for_it() {
    let endpoint = loopback().build().expect("an endpoint");
    for _ in 0..50 {
        let flag = AtomicBool::new(false);
        thread::scope(|scope| {
            let wait = || endpoint.wait_any(&[Awaited::Flag(&flag)], Some(LIMIT));
            let waiting = [scope.spawn(wait), scope.spawn(wait)];
            flag.store(true, Ordering::SeqCst);
            endpoint.wake();
            for thread in waiting {
                let found = thread.join().expect("no panic");
                assert!(matches!(found, Ok((0, Occurred::Flag))), "{found:?}");
            }
        });
    }
}

#[test]
fn completions_are_iterated_until_the_connection_ends() {
    let pair = Pair::new();
    let client = &pair.client.connection;
    for context in 0..10 {
        let options = OperationOptions::SIGNALLED.context(context);
        drop(client.write_bytes(b"x", &pair.remote, 0, options).expect("it is posted"));
    }
    let contexts: Vec<u64> =
        client.completions(Some(LIMIT)).take(10).map(|done| done.unwrap().context).collect();
    assert_eq!(contexts, (0..10).collect::<Vec<_>>());
    let none = client.completions(Some(Duration::ZERO)).next();
    assert_eq!(none, Some(Err(WaitError::TimedOut { limit: Duration::ZERO })));
    client.close(b"").expect("not forked");
    client.wait_closed(Some(LIMIT)).expect("it ends");
    assert_eq!(client.completions(None).next(), None);
}
