//! Tests of connected queue pairs on the edge engine. Posted work must be carried out, and it must
//! not matter which end is ready first.

mod ends;

use ends::{Program, loopback, pair};
use verbs::{CompletionOpcode, CompletionStatus, SendOpcode};

#[test]
fn writes_sends_and_reads_work_between_two_programs() {
    let [(here, one), (there, other)] = pair();
    here.buffer.write(0, b"written by the peer!");
    let key = there.region.key();
    one.post(
        1,
        SendOpcode::Write { address: there.address(100), key, immediate: None },
        &[here.piece(0, 20)],
    );
    assert_eq!(one.succeed(1).opcode, CompletionOpcode::Write);
    assert_eq!(there.bytes(100, 20), b"written by the peer!");

    other.receive(2, &[there.piece(200, 64)]);
    one.post(3, SendOpcode::Send { immediate: Some(0x0102_0304) }, &[here.piece(0, 7)]);
    one.succeed(3);
    let got = other.succeed(2);
    assert_eq!(
        (got.opcode, got.bytes, got.immediate),
        (CompletionOpcode::Receive, 7, Some(0x0102_0304))
    );
    assert_eq!(there.bytes(200, 7), b"written");

    let key = here.region.key();
    other.post(4, SendOpcode::Read { address: here.address(8), key }, &[there.piece(300, 12)]);
    assert_eq!(other.succeed(4).bytes, 12);
    assert_eq!(there.bytes(300, 12), b"by the peer!");
}

#[test]
fn a_queue_pair_connects_to_itself() {
    let program = Program::new(&loopback());
    let end = program.end(5);
    end.connect(end.name());
    program.buffer.write(0, b"to itself");
    end.receive(1, &[program.piece(500, 64)]);
    end.send(2, program.piece(0, 9));
    let mut done = end.next(2);
    done.sort_by_key(|done| done.id);
    assert!(done.iter().all(|done| done.status == CompletionStatus::Success));
    assert_eq!(program.bytes(500, 9), b"to itself");
}
