//! How connections end.

use std::env;
use std::io::{Read, Write};
use std::mem;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_cm::Over;
use verbs::{CompletionStatus, QueuePairState, SendRequest};

use crate::host::{BUFFER_BYTES, Connection, Host, go, receive, results, send};
use crate::peer::{PeerPort, empty_write};

const SUCCESS: CompletionStatus = CompletionStatus::Success;
const FLUSHED: CompletionStatus = CompletionStatus::Flushed;

/// Number of sends that are far more than the buffers of a TCP connection take.
const SENDS: u64 = 64;

/// Posts a receive and sends that the connection cannot take at once.
fn post_much(host: &Host, connection: &Connection) {
    let piece = [host.piece(0, BUFFER_BYTES as u32)];
    let queue_pair = &connection.queue_pair;
    queue_pair.post_receive(&[receive(1000, &piece)]).expect("a receive");
    let sends: Vec<SendRequest<'_>> = (0..SENDS).map(|id| send(id, &piece)).collect();
    queue_pair.post_send(&sends).expect("they fit");
}

#[test]
fn sends_before_a_disconnection_reach_a_peer_that_reads_later() {
    let host = Host::new();
    let mut connection = host.connect(None);
    post_much(&host, &connection);
    connection.exchange.close();
    let (_, payload) = connection.peer.read_to_end();
    assert_eq!(payload, SENDS * BUFFER_BYTES);
    let expected = (0..SENDS).map(|id| (id, SUCCESS)).chain([(1000, FLUSHED)]);
    assert_eq!(results(&host.completions(SENDS as usize + 1)), expected.collect::<Vec<_>>());
    assert_eq!(connection.queue_pair.state(), QueuePairState::Error);
    assert_eq!(connection.over.recv(), Ok(Over::Disconnected));
}

#[test]
fn sends_after_a_disconnection_are_flushed() {
    let host = Host::new();
    let mut connection = host.connect(None);
    post_much(&host, &connection);
    connection.exchange.close();
    let piece = [host.piece(0, 8)];
    connection.queue_pair.post_send(&[send(2000, &piece)]).expect("there is room");
    let (_, payload) = connection.peer.read_to_end();
    assert_eq!(payload, SENDS * BUFFER_BYTES);
    let found = results(&host.completions(SENDS as usize + 2));
    assert!(found.contains(&(2000, FLUSHED)), "{found:?}");
}

#[test]
fn a_peer_that_takes_nothing_does_not_delay_a_disconnection_for_long() {
    let host = Host::new();
    let connection = host.connect(None);
    post_much(&host, &connection);
    connection.exchange.close();
    let found = results(&host.completions(SENDS as usize + 1));
    assert_eq!(found[SENDS as usize - 1..], [(SENDS - 1, FLUSHED), (1000, FLUSHED)]);
    assert_eq!(connection.over.recv(), Ok(Over::Disconnected));
}

#[test]
fn err_and_destruction_end_a_connection_at_once() {
    for destroys in [false, true] {
        let host = Host::new();
        let mut connection = host.connect(None);
        post_much(&host, &connection);
        if destroys {
            connection.queue_pair.destroy().expect("nothing uses it");
        } else {
            go(&connection.queue_pair, QueuePairState::Error);
            let found = results(&host.completions(SENDS as usize + 1));
            assert_eq!(found.last(), Some(&(1000, FLUSHED)));
        }
        let (_, payload) = connection.peer.read_to_end();
        assert!(payload < SENDS * BUFFER_BYTES, "{payload} bytes");
    }
}

#[test]
fn a_peer_that_sends_while_the_connection_ends_sees_no_reset() {
    let host = Host::new();
    for _ in 0..20 {
        let mut connection = host.connect(None);
        let piece = [host.piece(0, 8)];
        let queue_pair = &connection.queue_pair;
        queue_pair.post_receive(&[receive(1, &piece)]).expect("a receive");
        queue_pair.post_send(&[send(2, &piece)]).expect("a send");
        let mut writer = connection.peer.socket.try_clone().expect("a descriptor");
        let writes = thread::spawn(move || {
            for _ in 0..200 {
                writer.write_all(&empty_write()).expect("the device reads");
            }
        });
        connection.exchange.close();
        queue_pair.destroy().expect("nothing uses it");
        let (_, payload) = connection.peer.read_to_end();
        assert_eq!(payload, 8);
        writes.join().expect("no reset");
        connection.peer.end();
    }
}

/// Name of the variable that gives [`disconnects_and_exits`] the address of its peer.
const PEER: &str = "VERBS_IWARP_PEER";

#[test]
#[ignore = "slow: run by hand; another test runs it in a process of its own"]
fn disconnects_and_exits() {
    let Ok(to) = env::var(PEER) else { return println!("skipped: {PEER} names no peer") };
    let to = to.parse().expect("an address");
    let host = Host::new();
    let (queue_pair, exchange, news) = host.ask(None, to);
    news.wait_for_acceptance();
    let piece = [host.piece(0, 8)];
    queue_pair.post_send(&[send(2, &piece)]).expect("a send");
    exchange.close();
    queue_pair.destroy().expect("nothing uses it");
    // The device of a C program lives until the process exits.
    mem::forget(host);
}

/// Returns whether a connection ends without a reset although its device's process exits right
/// after the disconnection, and the peer writes until its own side has ended.
fn ends_without_reset() -> bool {
    let port = PeerPort::new();
    let mut child = Command::new(env::current_exe().expect("this program"));
    child.args(["--exact", "--ignored", "ending::disconnects_and_exits"]);
    let mut child = child.env(PEER, port.address().to_string()).spawn().expect("it starts");
    let mut peer = port.accept();
    let mut writer = peer.socket.try_clone().expect("a descriptor");
    let has_ended = AtomicBool::new(false);
    let mut bytes = Vec::new();
    let (read, is_written) = thread::scope(|scope| {
        // The kernel reports a reset to whichever call is first.
        let writes = scope.spawn(|| {
            while writer.write_all(&empty_write()).is_ok() {}
            has_ended.load(Ordering::SeqCst)
        });
        let read = peer.socket.read_to_end(&mut bytes);
        has_ended.store(true, Ordering::SeqCst);
        peer.end();
        (read, writes.join().expect("no panic"))
    });
    assert!(child.wait().expect("it ends").success());
    assert!(!bytes.is_empty(), "the message arrives before the end");
    read.is_ok() && is_written
}

/// A process that exits waits 100 ms for its peers, and a busy host may schedule a peer later. If
/// the process does not wait, about 15 of 20 connections are reset.
#[test]
fn a_process_that_ends_after_a_disconnection_resets_no_connection() {
    let whole = (0..20).filter(|_| ends_without_reset()).count();
    assert!(whole >= 15, "{whole} of 20 connections end without a reset");
}
