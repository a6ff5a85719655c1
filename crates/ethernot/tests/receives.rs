//! Tests of receives with handles. Such receives allow several threads to share a connection.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::thread;
use std::time::Instant;

use ethernot::{Connection, OperationError, OperationFailure, OperationOptions, PostError};
use pair::{LIMIT, Pair, Side};

const NONE: OperationOptions = OperationOptions::NONE;
const MESSAGES: u64 = 100_000;
const THREADS: u64 = 4;
const ANSWER_BYTES: u32 = 64;

/// Answers `count` messages in the order of their arrival. Each answer has the same bytes as its
/// message.
fn echo(side: &Side, count: u64) {
    let receive = |number: u64| {
        let offset = number % 64 * u64::from(ANSWER_BYTES);
        side.connection.receive(&side.region, offset, ANSWER_BYTES).expect("it is posted")
    };
    let mut receives: std::collections::VecDeque<_> = (0..count.min(32)).map(receive).collect();
    let mut posted = receives.len() as u64;
    let mut bytes = [0; ANSWER_BYTES as usize];
    for _ in 0..count {
        let message = receives.pop_front().expect("one for each").wait(Some(LIMIT)).expect("asked");
        let length = message.copy_to(&mut bytes).expect("registered");
        if posted < count {
            receives.push_back(receive(posted));
            posted += 1;
        }
        // The connection allows a limited number of pending operations. While this number is
        // reached, retry.
        loop {
            match side.connection.send_bytes(&bytes[..length], NONE) {
                Ok(sent) => break drop(sent),
                Err(PostError::Submit(_) | PostError::NoHandleLeft) => {
                    side.endpoint.drive().expect("not forked");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Asks `count` questions in one thread. Sometimes also adds to the thread's word in the peer's
/// memory. Checks that every answer belongs to a question of this thread.
fn ask(pair: &Pair, thread: u64, count: u64) {
    let (client, offset) = (&pair.client, thread * u64::from(ANSWER_BYTES));
    let connection = &client.connection;
    let add = |operand| {
        let added = connection.fetch_add(&pair.remote, WORDS + offset, operand, NONE);
        added.expect("it is posted").wait(Some(LIMIT)).expect("it succeeds")
    };
    let before = add(0);
    for number in 0..count {
        let question = (thread << 32 | number).to_le_bytes();
        let call = connection.call(&question, &client.region, offset, ANSWER_BYTES, NONE);
        let answer = call.expect("it is posted").wait(Some(LIMIT)).expect("an answer");
        assert_eq!(answer.to_vec().expect("registered"), question, "another thread's answer");
        if number % 8 == 0 {
            assert_eq!(add(1), before + number / 8, "another thread's sum");
        }
    }
}

/// Offset in the server's region of the words to which the threads add. The buffers of the server's
/// receives precede these words.
const WORDS: u64 = 1 << 16;

/// Makes `threads` threads ask `count` questions in total.
fn ask_together(pair: &Pair, threads: u64, count: u64) {
    thread::scope(|scope| {
        scope.spawn(|| echo(&pair.server, count));
        for thread in 0..threads {
            scope.spawn(move || ask(pair, thread, count / threads));
        }
    });
}

#[test]
fn threads_sharing_a_connection_get_their_own_answers() {
    ask_together(&Pair::new(), THREADS, MESSAGES);
}

/// Number of questions that several threads ask in all. A single thread asks a tenth of this
/// number.
const ANSWERS: u64 = 1_000_000;
const TURNS: u64 = 20;

/// Compares the time of an answer when four threads ask with the time when one thread asks. Run
/// this test alone:
///
/// ```sh
/// cargo test --release -p ethernot --test receives -- --ignored --nocapture speeds
/// ```
#[test]
#[ignore = "slow: run by hand, alone in its process; measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn speeds_of_threads_that_share_a_connection() {
    let pair = Pair::new();
    // The two variants alternate, so that noise of the machine affects both variants equally.
    let mut ratios: Vec<f64> = (0..TURNS)
        .map(|_| {
            let [one, four] = [(1, ANSWERS / 10), (THREADS, ANSWERS)].map(|(threads, answers)| {
                let (count, started) = (answers / TURNS, Instant::now());
                ask_together(&pair, threads, count);
                started.elapsed().as_secs_f64() / count as f64
            });
            println!("{:.1} us an answer, with 4 threads {:.1}", one * 1e6, four * 1e6);
            one / four
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("figure: answers of 4 threads that reached their thread: {ANSWERS}");
    println!("figure: throughput of 4 threads against 1: {:.2}", ratios[ratios.len() / 2]);
}

#[test]
fn a_received_message_has_its_length_immediate_and_bytes() {
    let pair = Pair::new();
    let (client, server) = (&pair.client, &pair.server);
    let empty = server.connection.receive(&server.region, 0, 0).expect("it is posted");
    let full = server.connection.receive(&server.region, 100, 10).expect("it is posted");
    let immediate = NONE.immediate(Some(9));
    for (bytes, options) in [(&b""[..], immediate), (b"0123456789", NONE)] {
        drop(client.connection.send_bytes(bytes, options).expect("it is posted"));
    }
    let empty = empty.wait(Some(LIMIT)).expect("it comes");
    assert_eq!((empty.len(), empty.immediate()), (0, Some(9)));
    let full = full.wait(Some(LIMIT)).expect("it comes");
    assert_eq!((full.len(), full.immediate(), full.offset()), (10, None, 100));
    let mut start = [0; 4];
    assert_eq!(full.copy_to(&mut start), Ok(4));
    assert_eq!((&start, &full.to_vec().unwrap()[..]), (b"0123", &b"0123456789"[..]));
    assert_eq!(server.connection.poll().expect("not forked"), None, "a handle and a completion");
}

#[test]
fn receives_with_handles_take_no_completion_slot() {
    let pair = Pair::new();
    let server = &pair.server;
    let capacity = server.connection.queue().capacity();
    let plain = |context| server.connection.post_receive(&server.region, 0, 8, context);
    let posted = (0..capacity as u64).take_while(|&context| plain(context).is_ok()).count();
    let followed = server.connection.receive(&server.region, 0, 8);
    assert!(followed.is_ok(), "after {posted} of {capacity}: {followed:?}");
}

#[test]
fn the_message_of_a_dropped_handle_goes_to_the_next_receive() {
    let pair = Pair::new();
    let (client, server) = (&pair.client, &pair.server);
    let say = |bytes: &[u8]| {
        let sent = client.connection.send_bytes(bytes, NONE);
        sent.expect("it is posted").wait(Some(LIMIT)).expect("there is a receive");
    };
    let receive = |offset| server.connection.receive(&server.region, offset, 8).unwrap();
    // Drop one handle after its message has arrived, and the other handle before its message has
    // arrived.
    let (had, waits) = (receive(0), receive(8));
    say(b"first");
    drop((had, waits));
    let first = receive(16);
    let second = receive(24);
    say(b"second");
    assert_eq!(first.wait(Some(LIMIT)).unwrap().to_vec().unwrap(), b"first");
    assert_eq!(second.wait(Some(LIMIT)).unwrap().to_vec().unwrap(), b"second");
    // If a message was read, dropping its handle leaves no receive that the next call could take
    // over.
    drop((first, second));
    let third = receive(0);
    assert!(!third.is_done());
    say(b"third");
    assert_eq!(third.wait(Some(LIMIT)).unwrap().to_vec().unwrap(), b"third");
}

#[test]
fn receives_end_with_the_connection() {
    let pair = Pair::new();
    let server = &pair.server;
    // Post this receive on another pair. On the first pair it would consume the question that the
    // test sends below.
    let other = Pair::new();
    let (region, ending) = (&other.server.region, &other.server.connection);
    let receive = ending.receive(region, 0, 8).expect("it is posted");
    ending.close(b"").expect("not forked");
    let call = pair.client.connection.call(b"nobody answers", &pair.client.region, 0, 8, NONE);
    let call = call.expect("it is posted");
    server.connection.close(b"").expect("not forked");
    let flushed = |ended: Result<ethernot::Received, OperationFailure>| match ended {
        Err(OperationFailure::Failed(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(flushed(receive.wait(Some(LIMIT))), OperationError::Flushed);
    let error = flushed(call.wait(Some(LIMIT)));
    assert!(matches!(error, OperationError::Flushed | OperationError::ClosedByPeer), "{error}");
    let late = server.connection.receive(&server.region, 0, 8);
    assert!(matches!(late, Err(PostError::Closed(_))), "{late:?}");
}

#[test]
fn slots_of_receives_are_released() {
    let pair = Pair::build(
        pair::loopback().handles_max(4),
        pair::loopback(),
        pair::EVERYTHING.into_iter().fold(ethernot::Rights::NONE, ethernot::Rights::union),
    );
    let client: &Connection = &pair.client.connection;
    let region = &pair.client.region;
    for _ in 0..100 {
        // Both calls are refused, because the range exceeds the region.
        let refused = client.receive(region, pair::BYTES, 1);
        assert!(matches!(refused, Err(PostError::Submit(_))), "{refused:?}");
        let refused = client.call(b"", region, pair::BYTES, 1, NONE);
        assert!(matches!(refused, Err(PostError::Submit(_))), "{refused:?}");
    }
    let held: Vec<_> = (0..4).map(|_| client.receive(region, 0, 8).expect("a slot")).collect();
    assert!(matches!(client.receive(region, 0, 8), Err(PostError::NoHandleLeft)));
    drop(held);
    let held: Vec<_> = (0..4).map(|_| client.receive(region, 0, 8).expect("taken over")).collect();
    assert_eq!(held.len(), 4);
}
