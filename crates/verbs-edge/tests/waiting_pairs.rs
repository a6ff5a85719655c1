//! Tests of queue pairs that wait until their peers post receives. Another pair of queue pairs must
//! work meanwhile.

mod ends;

use std::sync::Arc;

use ends::{End, Program, loopback};
use verbs::{QueuePairType, ReceiveRequest, SendOpcode, SharedReceiveQueue};

/// Maximum number of receives of a queue pair that the module `ends` has created.
const RECEIVES: u64 = 512;

/// Returns connected pairs of queue pairs between two programs. If `shared` is given, the queue
/// pairs of the second program take their receives from this queue.
fn pairs(
    [here, there]: [&Program; 2],
    count: usize,
    shared: Option<&Arc<SharedReceiveQueue>>,
) -> Vec<(End, End)> {
    (0..count as u32)
        .map(|psn| {
            let one = here.end(psn + 1);
            let other = there.end_of(QueuePairType::Reliable, psn + 1001, shared);
            one.connect(other.name());
            other.connect(one.name());
            (one, other)
        })
        .collect()
}

/// Polls both ends until all sends that can begin are transmitted. No work may complete in this
/// time.
fn turn_over(pairs: &[(End, End)]) {
    for _ in 0..20 {
        for (one, other) in pairs {
            assert!(one.poll().is_empty() && other.poll().is_empty(), "nothing can complete");
        }
    }
}

/// Checks that messages arrive over one pair of queue pairs while other pairs wait.
fn works(here: &Program, there: &Program, (one, other): &(End, End)) {
    for id in 0..100 {
        other.receive(id, &[there.piece(0, 64)]);
        one.send(id, here.piece(0, 8));
        one.succeed(id);
        other.succeed(id);
    }
}

/// Each of `waiting` queue pairs posts `sends` messages for which its peer has no receive. While
/// they wait, messages must arrive over another pair. Then the peers post receives, and all
/// messages must arrive.
fn beside_those_that_wait(waiting: usize, sends: u64) {
    let [here, there] = [0, 1].map(|_| Program::new(&loopback()));
    let mut pairs = pairs([&here, &there], waiting + 1, None);
    let working = pairs.pop().expect("there is one");
    works(&here, &there, &working);
    for (one, _) in &pairs {
        for id in 0..sends {
            one.send(id, here.piece(0, 8));
        }
    }
    turn_over(&pairs);
    works(&here, &there, &working);
    for (one, other) in &pairs {
        for id in 0..sends {
            other.receive(id, &[there.piece(0, 64)]);
        }
        for id in 0..sends {
            one.succeed(id);
            other.succeed(id);
        }
    }
}

#[test]
fn queue_pairs_waiting_for_receives_block_no_other_from_sending() {
    beside_those_that_wait(32, RECEIVES);
}

#[test]
fn another_queue_pair_sends_however_many_wait() {
    beside_those_that_wait(200, 100);
}

#[test]
fn queue_pairs_waiting_for_shared_receives_block_no_other_from_sending() {
    let [here, there] = [0, 1].map(|_| Program::new(&loopback()));
    let shared = there.domain.create_shared_queue(1024, 1).expect("a queue");
    let waiting = pairs([&here, &there], 64, Some(&shared));
    let working = pairs([&here, &there], 1, None).remove(0);
    for (one, _) in &waiting {
        for id in 0..RECEIVES {
            one.send(id, here.piece(0, 8));
        }
    }
    turn_over(&waiting);
    works(&here, &there, &working);
    // Post receives to the shared queue until all messages have arrived, in any order.
    let pieces = [there.piece(0, 64)];
    let (mut sent, mut received, mut posted) = (0, 0, 0);
    let all = waiting.len() as u64 * RECEIVES;
    while sent < all || received < all {
        while posted < all && posted - received < 256 {
            shared.post(&[ReceiveRequest { id: posted, pieces: &pieces }]).expect("it is posted");
            posted += 1;
        }
        for (one, other) in &waiting {
            sent += one.poll().len() as u64;
            received += other.poll().len() as u64;
        }
    }
}

#[test]
fn receives_with_several_sges_do_not_block_messages_with_sges() {
    let [here, there] = [0, 1].map(|_| Program::new(&loopback()));
    let pairs = pairs([&here, &there], 130, None);
    for (_, other) in &pairs {
        for id in 0..RECEIVES {
            other.receive(id, &[there.piece(0, 64), there.piece(64, 64)]);
        }
    }
    turn_over(&pairs);
    for (one, other) in &pairs {
        one.receive(1, &[here.piece(0, 64)]);
        let pieces = [there.piece(0, 4), there.piece(9, 4)];
        other.post(RECEIVES, SendOpcode::Send { immediate: None }, &pieces);
        other.succeed(RECEIVES);
        one.succeed(1);
    }
    // The receives for which the engine had no room must be posted now, and later messages consume
    // them.
    let (one, other) = pairs.last().expect("there are some");
    for id in 0..RECEIVES {
        one.send(id, here.piece(0, 100));
        one.succeed(id);
        other.succeed(id);
    }
}
