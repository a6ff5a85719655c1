//! Checks that posting, transmitting and polling between two programs on the edge engine do not
//! allocate memory.

#[path = "../../runtime/tests/counting/mod.rs"]
mod counting;
mod ends;

use counting::allocations;
use ends::{End, Program, pair};
use verbs::{CompletionStatus, ReceiveRequest, SendFlags, SendOpcode, SendRequest, WorkCompletion};

/// Sends a message and posts a write, both with several scatter/gather entries.
fn exchange(here: (&Program, &End), there: (&Program, &End)) {
    let ((one_program, one), (other_program, other)) = (here, there);
    let pieces = [other_program.piece(0, 100), other_program.piece(4096, 100)];
    let receive = ReceiveRequest { id: 1, pieces: &pieces };
    other.queue_pair.post_receive(&[receive]).expect("there is room");
    let from = [one_program.piece(0, 50), one_program.piece(512, 70)];
    let write = SendOpcode::Write {
        address: other_program.address(9000),
        key: other_program.region.key(),
        immediate: None,
    };
    for (opcode, signalled) in [(write, false), (SendOpcode::Send { immediate: None }, true)] {
        let flags = SendFlags { signalled, ..SendFlags::default() };
        let request = SendRequest { id: 2, opcode, flags, pieces: &from, inline: None, to: None };
        one.queue_pair.post_send(&[request]).expect("there is room");
    }
    for end in [one, other] {
        let mut done = [WorkCompletion::NOTHING; 1];
        while end.queue.poll(&mut done).expect("not forked") == 0 {}
        assert_eq!(done[0].status, CompletionStatus::Success);
    }
}

/// This must be the only test in this file, because it would also count the allocations of other
/// tests.
#[test]
fn work_between_two_programs_allocates_nothing() {
    let [(here, one), (there, other)] = pair();
    let rounds = || {
        for _ in 0..1000 {
            exchange((&here, &one), (&there, &other));
            exchange((&there, &other), (&here, &one));
        }
    };
    rounds();
    // If this test gets no processor for some time, the engine stores idle connections in
    // compressed form, which allocates memory. So the test requires only that at least one round
    // allocates nothing.
    let undisturbed = (0..20).any(|_| {
        let before = allocations();
        assert!(before > 0, "nothing is counted");
        rounds();
        allocations() == before
    });
    assert!(undisturbed, "each of 20 measurements has allocations");
}
