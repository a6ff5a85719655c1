//! Tests that the last message before the end of a queue pair or process arrives. A client of the
//! connection manager sends 64 bytes. Immediately after that, it ends its queue pair or its
//! process.

#[path = "../../ethernot/tests/copy/mod.rs"]
#[expect(dead_code, reason = "not every test uses everything")]
mod copy;
mod ends;
mod ids;

use std::net::SocketAddr;
use std::sync::Arc;

use ends::End;
use ids::{Process, saying};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdma_cm::{AcceptOptions, EventKind, Id};
use verbs::CompletionStatus;
use verbs_edge::send_before_end;

const LINKS: [&str; 2] = ["udp:127.0.0.1", "udp:127.0.0.1,shm"];

/// Number of messages for each test (each way to end a queue pair or process) and each of [`LINKS`]
/// in an ordinary run of the tests.
const MESSAGES: usize = 50;

/// Number of messages for each test (each way to end a queue pair or process) and each of [`LINKS`]
/// in `xtask acceptance faults`.
const MESSAGES_MANY: usize = 1000;

/// Number of waits for the thread that sends. Each ends when the message is sent, and after 20 ms
/// at the latest, so all together last a second at most. If the message is sent already, they take
/// a few microseconds, in which the peer cannot read it and answer.
const SENDER_LOOKS: u32 = 50;

#[test]
fn last_messages_before_a_disconnect_arrive() {
    assert_eq!(lost_before_disconnects(MESSAGES), 0);
}

#[test]
fn last_messages_before_a_queue_pair_is_destroyed_arrive() {
    assert_eq!(lost_before_queue_pairs_are_destroyed(MESSAGES), 0);
}

/// Each process that ends is a copy of this test.
#[test]
fn last_messages_before_a_process_exits_arrive() {
    if let Some(argument) = copy::argument() {
        send_last(&argument);
        std::process::exit(0);
    }
    assert_eq!(lost_before_processes_exit(MESSAGES), 0);
}

#[test]
fn last_messages_before_a_process_is_killed_arrive() {
    if let Some(argument) = copy::argument() {
        send_last(&argument);
        // If another thread was inside the engine for long, because the kernel had descheduled it,
        // that thread sends the message. A killed thread sends nothing, so wait for it.
        for _ in 0..SENDER_LOOKS {
            send_before_end();
        }
        kill(Pid::this(), Signal::SIGKILL).expect("it is this process");
    }
    let name = "last_messages_before_a_process_is_killed_arrive";
    // Use the links with shared memory, because over UDP the server notices the end of the process
    // only after a second.
    assert_eq!(of_processes(name, LINKS[1], MESSAGES), MESSAGES);
}

#[test]
#[ignore = "slow: run by `./x acceptance faults`; takes minutes"]
fn a_thousand_last_messages_before_each_end_arrive() {
    let lost = lost_before_disconnects(MESSAGES_MANY)
        + lost_before_queue_pairs_are_destroyed(MESSAGES_MANY)
        + lost_before_processes_exit(MESSAGES_MANY);
    println!("{lost} last messages were lost");
}

fn lost_before_disconnects(messages: usize) -> usize {
    lost("disconnect", messages, |links, messages| {
        of_queue_pairs(links, messages, |client, id, _| {
            id.disconnect().expect("there is a connection");
            client.got(EventKind::Disconnected);
        })
    })
}

fn lost_before_queue_pairs_are_destroyed(messages: usize) -> usize {
    lost("destroy", messages, |links, messages| {
        of_queue_pairs(links, messages, |_, id, end| {
            id.release_queue_pair();
            end.queue_pair.destroy().expect("nothing uses it");
        })
    })
}

fn lost_before_processes_exit(messages: usize) -> usize {
    let name = "last_messages_before_a_process_exits_arrive";
    lost("exit", messages, |links, messages| of_processes(name, links, messages))
}

/// Calls `arrived` for each of [`LINKS`], and returns the total number of lost messages. `arrived`
/// sends `messages` messages, and returns the number of messages that have arrived.
fn lost(end: &str, messages: usize, arrived: impl Fn(&str, usize) -> usize) -> usize {
    let lost = LINKS.map(|links| {
        let arrived = arrived(links, messages);
        let lost = messages - arrived;
        println!("{end}, {links}: {arrived} of {messages} last messages arrived");
        // `xtask acceptance faults` reads the printed line.
        println!("figure: last messages lost before an end: {lost}");
        lost
    });
    lost.iter().sum()
}

/// Connects once for each message. The client sends the message, and then calls `end`, which ends
/// its queue pair. Returns the number of messages that have arrived.
fn of_queue_pairs(links: &str, messages: usize, end: fn(&Process, &Id, &End)) -> usize {
    let [client, server] = [(); 2].map(|()| Process::with(&ends::with_links(links)));
    let (_listener, to) = server.listener();
    let arrived = (0..messages).filter(|_| {
        let (asks, here) = client.resolved(to);
        asks.connect(&saying(b"")).expect("it asks");
        let (asked, there) = accept(&server);
        client.got(EventKind::Established);
        here.send(2, client.program.piece(0, 64));
        end(&client, &asks, &here);
        arrives(&server, &asked, &there)
    });
    arrived.count()
}

/// Starts a copy of the test `name` for each message. The copy sends the message and exits. Returns
/// the number of messages that have arrived.
fn of_processes(name: &str, links: &str, messages: usize) -> usize {
    let server = Process::with(&ends::with_links(links));
    let (_listener, to) = server.listener();
    let argument = format!("{links} {to}");
    let arrived = (0..messages).filter(|_| {
        let mut child = copy::command(&[], name, &argument).spawn().expect("a copy");
        let (asked, there) = accept(&server);
        child.wait().expect("a child");
        arrives(&server, &asked, &there)
    });
    arrived.count()
}

/// Runs in a copy of the test. Connects to the server and sends one message to it.
fn send_last(argument: &str) {
    let (links, to) = argument.split_once(' ').expect("links and an address");
    let client = Process::with(&ends::with_links(links));
    let to: SocketAddr = to.parse().expect("an address");
    let (asks, here) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    client.got(EventKind::Established);
    here.send(2, client.program.piece(0, 64));
    // Leak the objects, so that only the exit of the process ends them.
    std::mem::forget((client, asks, here));
}

/// Posts a receive for the message and accepts the next request.
fn accept(server: &Process) -> (Arc<Id>, End) {
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    let there = server.pair_of(&asked);
    there.receive(1, &[server.program.piece(64, 64)]);
    asked.accept(&AcceptOptions::default()).expect("it accepts");
    (asked, there)
}

/// Waits until the connection has ended. Returns whether the client's message has arrived.
fn arrives(server: &Process, asked: &Id, there: &End) -> bool {
    server.got(EventKind::Established);
    server.got(EventKind::Disconnected);
    asked.disconnect().expect("there was a connection");
    there.next(1)[0].status == CompletionStatus::Success
}
