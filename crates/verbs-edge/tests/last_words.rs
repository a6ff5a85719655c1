//! Tests that the last messages of a queue pair arrive even if the queue pair ends right after it
//! has sent them. There is a test for each way to end a queue pair. The tests exchange the queue
//! pair numbers themselves.

#[path = "../../ethernot/tests/copy/mod.rs"]
#[expect(dead_code, reason = "not every test uses everything")]
mod copy;
mod ends;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use ends::{End, Name, Program};
use testbed::clock::monotonic_ns;
use verbs::{CompletionStatus, Gid, QueuePairState};

/// Number of messages right before the end. The library sends the first message at once and may
/// defer the other messages.
const MESSAGES: u64 = 8;

const LINKS: [&str; 2] = ["udp:127.0.0.1", "udp:127.0.0.1,shm"];

/// A queue pair sends messages and calls `end` right after them. Checks that the messages arrive.
/// The receiving queue pair is ready before the other queue pair sends, because network adapters
/// require this too.
fn last_messages_arrive(end: fn(&End)) {
    const ROUNDS: usize = 20;
    for links in LINKS {
        let [here, there] = [(); 2].map(|()| Program::new(&ends::with_links(links)));
        for round in 0..ROUNDS as u32 {
            let (one, other) = (here.end(round + 1), there.end(round + 101));
            connect_receiver(&there, &other, one.name());
            one.connect(other.name());
            for id in 0..MESSAGES {
                one.send(id, here.piece(0, 64));
            }
            end(&one);
            arrive(&other);
        }
    }
}

/// Makes the receiving end ready and posts a receive for each message.
fn connect_receiver(program: &Program, end: &End, peer: Name) {
    end.init();
    for id in 0..MESSAGES {
        end.receive(id, &[program.piece(0, 64)]);
    }
    end.be_ready_to_receive(peer);
    end.be_ready_to_send();
}

/// Checks that all messages arrive.
fn arrive(other: &End) {
    for (id, done) in (0..MESSAGES).zip(other.next(MESSAGES as usize)) {
        assert_eq!((done.id, done.status), (id, CompletionStatus::Success));
    }
}

#[test]
fn messages_sent_before_the_peer_was_found_arrive_if_the_queue_pair_is_destroyed() {
    last_messages_arrive(|one| one.queue_pair.destroy().expect("nothing uses it"));
}

#[test]
fn messages_sent_before_the_peer_was_found_arrive_if_the_queue_pair_is_reset() {
    last_messages_arrive(|one| one.go(QueuePairState::Reset));
}

#[test]
fn messages_sent_before_the_peer_was_found_arrive_if_the_queue_pair_fails() {
    last_messages_arrive(|one| one.go(QueuePairState::Error));
}

/// Sends the identity `own` to the process at the other end of `stream`. Returns the identity that
/// arrives from that process.
fn exchange(mut stream: &TcpStream, own: Name) -> Name {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&own.gid.0);
    bytes[16..20].copy_from_slice(&own.number.to_le_bytes());
    bytes[20..].copy_from_slice(&own.psn.to_le_bytes());
    stream.write_all(&bytes).expect("it is written");
    stream.read_exact(&mut bytes).expect("it is read");
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[..16]);
    Name { gid: Gid(gid), number: number(16), psn: number(20) }
}

/// Starts 10 copies of the test `name`, one after the other, and checks that their last messages
/// arrive. Each copy calls `end` right after it has sent its messages.
///
/// A copy that ends waits at least [`EXIT_NS`] for its peer. On a busy host this process may get no
/// processor in this time, so a copy that has waited that long may lose its messages.
fn last_messages_of_a_process_arrive(name: &str, end: fn()) {
    const PROCESSES: u32 = 10;
    if let Some(argument) = copy::argument() {
        let (links, to) = argument.split_once(' ').expect("links and an address");
        let program = Program::new(&ends::with_links(links));
        let stream = TcpStream::connect(to).expect("the parent listens");
        let one = program.end(7);
        let peer = exchange(&stream, one.name());
        // Wait until the peer is ready to receive.
        (&stream).read_exact(&mut [0]).expect("it is read");
        one.connect(peer);
        for id in 0..MESSAGES {
            one.send(id, program.piece(0, 64));
        }
        (&stream).write_all(&monotonic_ns().to_le_bytes()).expect("it is written");
        end();
    }
    for links in LINKS {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let argument = format!("{links} {}", listener.local_addr().expect("an address"));
        let program = Program::new(&ends::with_links(links));
        let mut arrived = 0;
        for round in 0..PROCESSES {
            let mut child = copy::command(&[], name, &argument).spawn().expect("a copy");
            let (stream, _) = listener.accept().expect("the copy connects");
            let other = program.end(round + 1001);
            let peer = exchange(&stream, other.name());
            connect_receiver(&program, &other, peer);
            (&stream).write_all(&[1]).expect("it is written");
            let mut began_ns = [0; 8];
            (&stream).read_exact(&mut began_ns).expect("it is read");
            child.wait().expect("a child");
            let took_ns = monotonic_ns() - u64::from_le_bytes(began_ns);
            let has_waited = took_ns >= EXIT_NS;
            let have_arrived = have_arrived(&other, if has_waited { SHORT_NS } else { LONG_NS });
            assert!(have_arrived || has_waited, "{links}: lost by an exit of {took_ns} ns");
            arrived += u32::from(have_arrived);
        }
        println!("{links}: the messages of {arrived} of {PROCESSES} processes arrived");
        assert!(arrived > 0, "{links}: no process delivered its messages");
    }
}

/// Polls until all messages have arrived, for at most `limit_ns` nanoseconds. Returns whether all
/// have arrived.
fn have_arrived(other: &End, limit_ns: u64) -> bool {
    let until_ns = monotonic_ns() + limit_ns;
    let mut done = Vec::new();
    while done.len() < MESSAGES as usize && monotonic_ns() < until_ns {
        done.extend(other.poll());
    }
    let expected = (0..MESSAGES).map(|id| (id, CompletionStatus::Success));
    done.iter().map(|done| (done.id, done.status)).eq(expected)
}

/// Shortest time for which the end of a process waits for acknowledgements, in nanoseconds
/// (`LINGERING` in `runtime/src/exit.rs`).
const EXIT_NS: u64 = 20_000_000;

/// Time limits for messages to arrive after their process has ended, in nanoseconds: the short one
/// for messages that may be lost.
const SHORT_NS: u64 = 1_000_000_000;
const LONG_NS: u64 = 60_000_000_000;

#[test]
fn messages_sent_before_the_peer_was_found_arrive_if_the_process_exits() {
    let name = "messages_sent_before_the_peer_was_found_arrive_if_the_process_exits";
    last_messages_of_a_process_arrive(name, || std::process::exit(0));
}
