//! Tests of work requests on connected queue pairs: all operations, their errors and their
//! completions.

mod ends;

use std::sync::Arc;
use std::thread;

use ends::{End, Program, loopback, pair};
use link::FaultShares;
use verbs::{
    AccessFlags, AsyncEventKind, AttributeMask, CompletionOpcode, CompletionStatus,
    QueuePairAttributes, QueuePairState, QueuePairType, ReceiveRequest, ScatterGather, SendFlags,
    SendOpcode, SendRequest, WindowBinding, WindowType, WorkCompletion, next_key,
};
use verbs_edge::Settings;

const SIGNALLED: SendFlags = SendFlags { fence: false, signalled: true, solicited: false };

fn statuses(done: &[WorkCompletion]) -> Vec<(u64, CompletionStatus)> {
    done.iter().map(|done| (done.id, done.status)).collect()
}

#[test]
fn bytes_are_gathered_from_sges_and_scattered_to_sges() {
    let [(here, one), (there, other)] = pair();
    here.buffer.write(0, b"abcdefghij");
    let pieces = [here.piece(7, 3), here.piece(0, 0), here.piece(3, 4), here.piece(0, 3)];
    other.receive(1, &[there.piece(0, 2), there.piece(100, 5), there.piece(200, 64)]);
    one.post(2, SendOpcode::Send { immediate: None }, &pieces);
    one.succeed(2);
    assert_eq!(other.succeed(1).bytes, 10);
    assert_eq!(
        (there.bytes(0, 2), there.bytes(100, 5), there.bytes(200, 3)),
        (b"hi".into(), b"jdefg".into(), b"abc".into())
    );

    let key = there.region.key();
    one.post(3, SendOpcode::Write { address: there.address(300), key, immediate: None }, &pieces);
    one.succeed(3);
    assert_eq!(there.bytes(300, 10), b"hijdefgabc");
    let sinks = [here.piece(500, 4), here.piece(600, 6)];
    one.post(4, SendOpcode::Read { address: there.address(300), key }, &sinks);
    one.succeed(4);
    assert_eq!((here.bytes(500, 4), here.bytes(600, 6)), (b"hijd".into(), b"efgabc".into()));
}

/// Returns a send with inline payload, or without payload.
const fn by_value(id: u64, inline: Option<&[u8]>) -> SendRequest<'_> {
    let opcode = SendOpcode::Send { immediate: None };
    SendRequest { id, opcode, flags: SIGNALLED, pieces: &[], inline, to: None }
}

#[test]
fn inline_bytes_may_change_at_once_and_empty_messages_need_no_memory() {
    let [(_, one), (there, other)] = pair();
    let mut bytes = *b"by value, and more than one line of a cache: 64 bytes altogether";
    other.receive(1, &[there.piece(0, 64)]);
    other.receive(2, &[]);
    one.queue_pair.post_send(&[by_value(3, Some(&bytes[..]))]).expect("it is posted");
    let said = bytes;
    bytes.fill(0);
    one.queue_pair.post_send(&[by_value(4, None)]).expect("it is posted");
    assert_eq!(
        statuses(&one.next(2)),
        [(3, CompletionStatus::Success), (4, CompletionStatus::Success)]
    );
    let done = other.next(2);
    assert_eq!(done.iter().map(|done| done.bytes).collect::<Vec<_>>(), [64, 0]);
    assert_eq!(there.bytes(0, 64), said);
    // Writes and reads of length 0 must succeed without memory.
    one.post(5, SendOpcode::Write { address: 0, key: 0, immediate: None }, &[]);
    one.post(6, SendOpcode::Read { address: 0, key: 0 }, &[ScatterGather::default()]);
    assert_eq!(
        statuses(&one.next(2)),
        [(5, CompletionStatus::Success), (6, CompletionStatus::Success)]
    );
}

#[test]
fn a_write_with_an_immediate_consumes_a_receive() {
    let [(here, one), (there, other)] = pair();
    other.receive(1, &[]);
    let (address, key) = (there.address(0), there.region.key());
    one.post(2, SendOpcode::Write { address, key, immediate: Some(7) }, &[here.piece(0, 100)]);
    one.succeed(2);
    let got = other.succeed(1);
    assert_eq!(
        (got.opcode, got.bytes, got.immediate),
        (CompletionOpcode::ReceiveOfWrite, 100, Some(7))
    );
}

#[test]
fn atomics_run_once_and_return_the_previous_value() {
    let [(here, one), (there, _other)] = pair();
    there.buffer.store_u64(64, 40);
    let (address, key) = (there.address(64), there.region.key());
    for id in 0..10 {
        one.post(id, SendOpcode::FetchAdd { address, key, operand: 2 }, &[here.piece(8 * id, 8)]);
    }
    for id in 0..10 {
        assert_eq!(one.succeed(id).opcode, CompletionOpcode::FetchAdd);
        assert_eq!(here.buffer.load_u64(8 * id), 40 + 2 * id);
    }
    let swap = |compare| SendOpcode::CompareSwap { address, key, compare, swap: 5 };
    one.post(11, swap(59), &[here.piece(0, 8)]);
    one.post(12, swap(60), &[here.piece(8, 8)]);
    one.succeed(11);
    assert_eq!(one.succeed(12).opcode, CompletionOpcode::CompareSwap);
    assert_eq!(
        (here.buffer.load_u64(0), here.buffer.load_u64(8), there.buffer.load_u64(64)),
        (60, 60, 5)
    );
}

#[test]
fn fenced_work_sees_the_results_of_earlier_reads() {
    let [(here, one), (there, _other)] = pair();
    let key = there.region.key();
    for round in 0..100_u64 {
        there.buffer.store_u64(0, round);
        one.post_with(
            1,
            SendOpcode::Read { address: there.address(0), key },
            &[here.piece(0, 8)],
            SendFlags::default(),
        );
        let flags = SendFlags { fence: true, ..SIGNALLED };
        one.post_with(
            2,
            SendOpcode::Write { address: there.address(8), key, immediate: None },
            &[here.piece(0, 8)],
            flags,
        );
        one.succeed(2);
        assert_eq!(there.buffer.load_u64(8), round);
    }
}

#[test]
fn a_full_work_queue_is_performed_in_order() {
    let [(here, one), (there, other)] = pair();
    for id in 0..512 {
        other.receive(id, &[there.piece(64 * id, 64)]);
    }
    // Post more sends than the engine accepts at the same time. Only the last send is signalled.
    for id in 0..1024_u64 {
        here.buffer.store_u64(8 * id, id);
        let flags = SendFlags { signalled: id == 1023, ..SendFlags::default() };
        let (address, key) = (there.address(500_000), there.region.key());
        let opcode = if id % 2 == 0 {
            SendOpcode::Send { immediate: None }
        } else {
            SendOpcode::Write { address, key, immediate: None }
        };
        one.post_with(id, opcode, &[here.piece(8 * id, 8)], flags);
    }
    one.succeed(1023);
    for id in 0..512 {
        other.succeed(id);
        assert_eq!(there.buffer.load_u64(64 * id), 2 * id);
    }
    assert_eq!(there.buffer.load_u64(500_000), 1023);
}

#[test]
fn a_wrong_local_key_fails_its_work_in_order() {
    for what in 0..4 {
        let [(here, one), (there, other)] = pair();
        let (address, key) = (there.address(0), there.region.key());
        let wrong = ScatterGather { key: here.region.key() ^ 0x100, ..here.piece(0, 8) };
        let beyond = ScatterGather { address: here.address(ends::BYTES - 4), ..here.piece(0, 8) };
        let (opcode, pieces) = match what {
            0 => (SendOpcode::Write { address, key, immediate: None }, vec![wrong]),
            1 => (SendOpcode::Read { address, key }, vec![here.piece(0, 8), beyond]),
            2 => (SendOpcode::FetchAdd { address, key, operand: 1 }, vec![wrong]),
            _ => (SendOpcode::Send { immediate: None }, vec![beyond]),
        };
        let write = SendOpcode::Write { address, key, immediate: None };
        one.post_with(1, write, &[here.piece(0, 8)], SendFlags::default());
        one.post_with(2, opcode, &pieces, SendFlags::default());
        one.post(3, write, &[here.piece(0, 8)]);
        let expected = [(2, CompletionStatus::LocalProtection), (3, CompletionStatus::Flushed)];
        assert_eq!(statuses(&one.next(2)), expected, "{what}");
        assert_eq!(one.queue_pair.state(), QueuePairState::Error);
        assert_eq!(other.queue_pair.state(), QueuePairState::ReadyToSend);
    }
}

//= protocol.md: queue-pair.7
#[test]
fn access_denied_by_the_peer_fails_at_both_ends() {
    for what in 0..4 {
        let [(here, one), (there, other)] = pair();
        let (address, key) = (there.address(0), there.region.key());
        let access = CompletionStatus::RemoteAccess;
        let (opcode, status) = match what {
            0 => (SendOpcode::Write { address, key: key ^ 0x100, immediate: None }, access),
            1 => (SendOpcode::Read { address: there.address(ends::BYTES), key }, access),
            2 => (SendOpcode::Write { address: u64::MAX, key, immediate: None }, access),
            _ => (
                SendOpcode::FetchAdd { address: address + 4, key, operand: 1 },
                CompletionStatus::RemoteInvalidRequest,
            ),
        };
        other.receive(7, &[there.piece(0, 64)]);
        one.post(1, SendOpcode::Write { address, key, immediate: None }, &[here.piece(0, 8)]);
        one.post(2, opcode, &[here.piece(0, 8)]);
        one.post(3, SendOpcode::Write { address, key, immediate: None }, &[here.piece(0, 8)]);
        let expected =
            [(1, CompletionStatus::Success), (2, status), (3, CompletionStatus::Flushed)];
        assert_eq!(statuses(&one.next(3)), expected, "{what}");
        if what != 2 {
            // The end that rejected the operation must also enter ERR and raise an event.
            assert_eq!(statuses(&other.next(1)), [(7, CompletionStatus::Flushed)]);
            let event = there.context.get_event().expect("there is one");
            assert!(matches!(
                event.kind,
                AsyncEventKind::AccessError | AsyncEventKind::RequestError
            ));
            there.context.acknowledge_event(&event);
        }
    }
}

#[test]
fn a_message_that_does_not_fit_fails_at_both_ends() {
    for missing in [false, true] {
        let [(here, one), (there, other)] = pair();
        let piece = there.piece(0, 8);
        let wrong = ScatterGather { key: piece.key ^ 0x100, length: 64, ..piece };
        other.receive(1, &[if missing { wrong } else { piece }]);
        other.receive(2, &[there.piece(0, 64)]);
        one.send(3, here.piece(0, 9));
        let (at_receiver, at_sender) = if missing {
            (CompletionStatus::LocalProtection, CompletionStatus::RemoteOperation)
        } else {
            (CompletionStatus::LocalLength, CompletionStatus::RemoteInvalidRequest)
        };
        let expected = [(1, at_receiver), (2, CompletionStatus::Flushed)];
        assert_eq!(statuses(&other.next(2)), expected);
        assert_eq!(statuses(&one.next(1)), [(3, at_sender)]);
    }
}

#[test]
fn windows_are_bound_and_invalidated_in_order() {
    let [(here, one), (there, other)] = pair();
    let window = there.domain.allocate_window(WindowType::Two).expect("a window");
    let bind = |key| {
        let access = AccessFlags::REMOTE_WRITE;
        let binding = WindowBinding {
            region: Some(&there.region),
            address: there.address(512),
            length: 64,
            access,
            key: Some(key),
        };
        let opcode = window.bind(&other.queue_pair, &binding).expect("it is good");
        other.post(1, opcode, &[]);
        window.on_posted(&opcode);
        assert_eq!(other.succeed(1).opcode, CompletionOpcode::BindWindow);
    };
    let key = next_key(window.key());
    bind(key);
    let write = |key| SendOpcode::Write { address: there.address(520), key, immediate: None };
    here.buffer.write(0, b"through a window");
    one.post(2, write(key), &[here.piece(0, 16)]);
    one.succeed(2);
    assert_eq!(there.bytes(520, 16), b"through a window");
    // The peer invalidates the window by a send with invalidate.
    other.receive(3, &[there.piece(0, 64)]);
    one.post(4, SendOpcode::SendInvalidate { key }, &[here.piece(0, 4)]);
    one.succeed(4);
    assert_eq!(other.succeed(3).invalidated, Some(key));
    // The window's owner invalidates the window with a work request.
    let key = next_key(key);
    bind(key);
    other.post(5, SendOpcode::LocalInvalidate { key }, &[]);
    assert_eq!(other.succeed(5).opcode, CompletionOpcode::LocalInvalidate);
    one.post(6, write(key), &[here.piece(0, 16)]);
    assert_eq!(statuses(&one.next(1)), [(6, CompletionStatus::RemoteAccess)]);
}

#[test]
fn connections_share_receives_and_wait_for_them() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = &programs;
    let shared = there.domain.create_shared_queue(16, 2).expect("a shared queue");
    let pairs: Vec<[End; 2]> = (0..4)
        .map(|_| {
            let one = here.end(1);
            let other = there.end_of(QueuePairType::Reliable, 2, Some(&shared));
            one.connect(other.name());
            other.connect(one.name());
            [one, other]
        })
        .collect();
    // The peers have not posted receives for any of these messages yet.
    for (id, [one, _]) in (0..).zip(&pairs) {
        here.buffer.write(8 * id, &id.to_le_bytes());
        one.send(id, here.piece(8 * id, 8));
    }
    for _ in 0..100 {
        assert!(pairs.iter().all(|[one, _]| one.poll().is_empty()));
    }
    let post = |id: u64| {
        let pieces = [there.piece(64 * id, 4), there.piece(64 * id + 32, 4)];
        shared.post(&[ReceiveRequest { id, pieces: &pieces }]).expect("there is room");
    };
    (0..4).for_each(post);
    let mut got = Vec::new();
    for (id, [one, other]) in (0..).zip(&pairs) {
        one.succeed(id);
        got.push(other.next(1)[0].id);
    }
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3]);
    // Four receives are posted. The second of the next two messages leaves fewer than three, so the
    // queue raises its event.
    (4..8).for_each(post);
    shared.set_limit(3).expect("it holds more");
    let [one, other] = &pairs[0];
    for id in 0..2 {
        one.send(id, here.piece(0, 8));
        one.succeed(id);
        other.next(1);
    }
    let event = there.context.get_event().expect("there is one");
    assert_eq!(event.kind, AsyncEventKind::ReceiveLimitReached);
    there.context.acknowledge_event(&event);
}

#[test]
fn a_receiver_that_is_not_ready_fails_work_unless_retries_are_unlimited() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = &programs;
    for waits in [false, true] {
        let (one, other) = (here.end(1), there.end(2));
        other.connect(one.name());
        one.init();
        one.be_ready_to_receive(other.name());
        let not_ready_retries = if waits { 7 } else { 1 };
        let timers = QueuePairAttributes {
            timeout: 14,
            retries: 7,
            not_ready_retries,
            ..Default::default()
        };
        one.be_ready_to_send_with(timers);
        one.send(1, here.piece(0, 8));
        if waits {
            for _ in 0..1000 {
                assert!(one.poll().is_empty());
            }
            other.receive(2, &[there.piece(0, 64)]);
            one.succeed(1);
        } else {
            assert_eq!(statuses(&one.next(1)), [(1, CompletionStatus::RnrRetryExceeded)]);
        }
    }
}

#[test]
fn a_drained_send_queue_begins_no_work_until_it_resumes() {
    let [(here, one), (there, _other)] = pair();
    let write =
        SendOpcode::Write { address: there.address(0), key: there.region.key(), immediate: None };
    for id in 0..50 {
        one.post(id, write, &[here.piece(0, 4096)]);
    }
    one.modify(
        QueuePairState::SendQueueDrained,
        AttributeMask::NONE,
        QueuePairAttributes::default(),
    );
    one.post(50, write, &[here.piece(0, 8)]);
    while one.queue_pair.query().expect("it is there").is_draining {
        thread::yield_now();
    }
    let done = one.poll().len();
    assert!(done <= 16, "only operations that were in flight");
    one.go(QueuePairState::ReadyToSend);
    let rest = one.next(51 - done);
    assert!(rest.iter().all(|done| done.status == CompletionStatus::Success));
}

#[test]
fn an_ended_queue_pair_reports_nothing_more_and_its_peer_is_notified() {
    let [(here, one), (there, other)] = pair();
    let write =
        SendOpcode::Write { address: there.address(0), key: there.region.key(), immediate: None };
    one.post(0, write, &[here.piece(0, 8)]);
    one.succeed(0);
    one.receive(100, &[here.piece(0, 8)]);
    for id in 0..20 {
        one.post(id, write, &[here.piece(0, 1 << 16)]);
    }
    other.queue_pair.destroy().expect("it is there");
    let before = there.bytes(0, 1 << 16);
    // On a busy host, all writes may have succeeded before the end of the peer. This write fails in
    // any case.
    one.post(20, write, &[here.piece(0, 8)]);
    let mut done = one.next(22);
    done.sort_by_key(|done| done.id);
    let failed = done.iter().position(|done| done.status != CompletionStatus::Success);
    let failed = failed.expect("an operation fails after the end of the peer");
    assert!(done[failed + 1..].iter().all(|done| done.status == CompletionStatus::Flushed));
    assert_eq!(there.bytes(0, 1 << 16), before, "bytes were written after the end of the peer");
}

#[test]
fn work_succeeds_over_links_that_lose_duplicate_and_reorder_frames() {
    let faults = FaultShares { loss: 0.02, duplication: 0.02, reordering: 0.05 };
    let settings = Settings { faults, ..loopback() };
    let programs = [0, 1].map(|_| Program::new(&settings));
    let [here, there] = &programs;
    let (one, other) = (here.end(1), there.end(2));
    one.connect(other.name());
    other.connect(one.name());
    for round in 0..20_u64 {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at as u64 * 7 + round) as u8).collect();
        here.buffer.write(0, &bytes);
        other.receive(round, &[there.piece(200_000, 100_000)]);
        one.send(round, here.piece(0, 100_000));
        one.succeed(round);
        other.succeed(round);
        assert_eq!(there.bytes(200_000, 100_000), bytes);
    }
}

#[test]
fn all_frames_are_captured() {
    let folder = std::env::temp_dir().join(format!("ethernot-verbs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let settings = |name: &str| Settings { pcap: Some(folder.join(name)), ..loopback() };
    {
        let programs = [Program::new(&settings("one")), Program::new(&settings("other"))];
        let [one, other] = programs.each_ref().map(|program| program.end(1));
        one.connect(other.name());
        other.connect(one.name());
        other.receive(1, &[]);
        one.send(1, programs[0].piece(0, 0));
        one.succeed(1);
        other.succeed(1);
        one.queue_pair.destroy().expect("it is there");
        other.queue_pair.destroy().expect("it is there");
    }
    for name in ["one", "other"] {
        let bytes = std::fs::read(folder.join(name)).expect("it was captured");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng file");
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn a_port_counts_its_traffic() {
    let program = Program::new(&loopback());
    let provider = || Arc::clone(program.context.device().provider());
    let before = provider().counters();
    assert_eq!((before.sent_bytes, before.sent_frames), (0, 0));
    let [one, other] = [(); 2].map(|()| program.end(1));
    one.connect(other.name());
    other.connect(one.name());
    other.receive(1, &[program.piece(4096, 4096)]);
    one.send(1, program.piece(0, 4096));
    one.succeed(1);
    other.succeed(1);
    let after = provider().counters();
    assert!(after.sent_bytes > 4096 && after.received_bytes > 4096, "{after:?}");
    assert!(after.sent_frames > 1 && after.received_frames > 1, "{after:?}");
    let established = after.hardware.iter().find(|(name, _)| *name == "handshakes_completed");
    assert!(established.is_some_and(|(_, value)| *value > 0), "{after:?}");
}

#[test]
fn threads_post_and_poll_concurrently() {
    let [(here, one), (there, other)] = pair();
    let (one, other) = (Arc::new(one), Arc::new(other));
    thread::scope(|scope| {
        let write = SendOpcode::Write {
            address: there.address(0),
            key: there.region.key(),
            immediate: None,
        };
        for thread in 0..3 {
            let (one, here) = (&one, &here);
            scope.spawn(move || {
                for id in 0..500 {
                    let piece = here.piece(64 * thread, 64);
                    let request = SendRequest {
                        id,
                        opcode: write,
                        flags: SIGNALLED,
                        pieces: &[piece],
                        inline: None,
                        to: None,
                    };
                    while one.queue_pair.post_send(&[request]).is_err() {
                        thread::yield_now();
                    }
                }
            });
        }
        let done = one.next(1500);
        assert!(done.iter().all(|done| done.status == CompletionStatus::Success));
    });
    assert!(other.poll().is_empty());
}

#[test]
fn a_delivered_message_completes_although_its_receiver_ends_at_once() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = &programs;
    for round in 0..50 {
        let (one, other) = (here.end(1), there.end(2));
        one.connect(other.name());
        other.init();
        other.receive(1, &[there.piece(0, 64)]);
        other.be_ready_to_receive(one.name());
        other.be_ready_to_send();
        one.send(2, here.piece(0, 8));
        other.succeed(1);
        if round % 2 == 0 {
            other.queue_pair.destroy().expect("it is there");
        } else {
            other.go(QueuePairState::Reset);
        }
        one.succeed(2);
    }
}
