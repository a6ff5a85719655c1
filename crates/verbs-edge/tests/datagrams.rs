//! Tests of datagram queue pairs on the edge engine (protocol.md §10).

mod ends;

use std::net::IpAddr;
use std::sync::Arc;

use ends::{End, Program, loopback, with_links};
use verbs::{
    AddressVector, AddressVectorAttributes, AsyncEventKind, AttributeMask, CompletionOpcode,
    CompletionStatus, Gid, QueuePairAttributes, QueuePairState, QueuePairType, ReceiveRequest,
    ScatterGather, SendFlags, SendOpcode, SendRequest, SharedReceiveQueue, WorkCompletion,
};

const KEY: u32 = 0x1234;
/// Length in bytes of the route header, which precedes the payload.
const ROUTE: u32 = 40;
/// Destination queue pair number of multicast datagrams.
const GROUP: u32 = 0xff_ffff;

fn end(program: &Program) -> End {
    with_receives_of(program, None)
}

/// Returns a queue pair in RTS.
fn with_receives_of(program: &Program, shared: Option<&Arc<SharedReceiveQueue>>) -> End {
    let end = program.end_of(QueuePairType::Datagram, 0, shared);
    make_ready(&end, KEY);
    end
}

fn make_ready(end: &End, key: u32) {
    init(end, key);
    end.go(QueuePairState::ReadyToReceive);
    end.modify(
        QueuePairState::ReadyToSend,
        AttributeMask::SEND_PSN,
        QueuePairAttributes::default(),
    );
}

fn init(end: &End, queue_key: u32) {
    let mask = AttributeMask::PARTITION_KEY | AttributeMask::PORT | AttributeMask::QUEUE_KEY;
    let attributes = QueuePairAttributes { port: 1, queue_key, ..Default::default() };
    end.modify(QueuePairState::Init, mask, attributes);
}

fn set_key(end: &End, queue_key: u32) {
    let attributes = QueuePairAttributes { queue_key, ..Default::default() };
    end.modify(end.queue_pair.state(), AttributeMask::QUEUE_KEY, attributes);
}

fn address(gid: Gid, destination: u32) -> AddressVector {
    let to = AddressVectorAttributes {
        gid,
        is_global: true,
        port: 1,
        ..AddressVectorAttributes::default()
    };
    AddressVector { to, destination, queue_key: KEY }
}

fn to(end: &End) -> AddressVector {
    address(end.gid, end.queue_pair.number())
}

fn request(id: u64, pieces: &[ScatterGather], to: AddressVector) -> SendRequest<'_> {
    let flags = SendFlags { signalled: true, ..SendFlags::default() };
    let opcode = SendOpcode::Send { immediate: None };
    SendRequest { id, opcode, flags, pieces, inline: None, to: Some(to) }
}

fn send(end: &End, id: u64, pieces: &[ScatterGather], to: AddressVector) {
    end.queue_pair.post_send(&[request(id, pieces, to)]).expect("it is posted");
}

/// Returns the identifier and the status of each completion.
fn results(done: &[WorkCompletion]) -> Vec<(u64, CompletionStatus)> {
    done.iter().map(|done| (done.id, done.status)).collect()
}

const GOOD: CompletionStatus = CompletionStatus::Success;
const FLUSHED: CompletionStatus = CompletionStatus::Flushed;

fn two_programs() -> [Program; 2] {
    [0, 1].map(|_| Program::new(&loopback()))
}

#[test]
fn a_datagram_arrives_with_its_sender_immediate_and_route_header() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    here.buffer.write(0, b"to whom it may concern");
    other.receive(1, &[there.piece(0, 30), there.piece(1000, 100)]);
    let opcode = SendOpcode::Send { immediate: Some(0x0a0b_0c0d) };
    let pieces = [here.piece(0, 8), here.piece(8, 0), here.piece(8, 14)];
    let post = SendRequest { opcode, ..request(2, &pieces, to(&other)) };
    one.queue_pair.post_send(&[post]).expect("it is posted");
    assert_eq!(one.succeed(2).opcode, CompletionOpcode::Send);
    let got = other.succeed(1);
    assert_eq!((got.opcode, got.bytes), (CompletionOpcode::Receive, ROUTE + 22));
    assert_eq!((got.immediate, got.source), (Some(0x0a0b_0c0d), one.queue_pair.number()));
    assert!(got.has_route_header);
    assert_eq!(there.bytes(1010, 22), b"to whom it may concern");
    let mut header = there.bytes(0, 30);
    header.extend(there.bytes(1000, 10));
    assert_eq!((header[0] >> 4, &header[4..8]), (6, &[0, 22, 0x1b, 0xff][..]));
    assert_eq!((&header[8..24], &header[24..40]), (&one.gid.0[..], &other.gid.0[..]));

    // The route header must contain the address to which the program sends an answer.
    let header: [u8; 40] = header.try_into().expect("40 bytes");
    let back = verbs::answer_to(&there.context, 1, &got, &header).expect("it is one");
    let back = AddressVector { to: back, destination: got.source, queue_key: KEY };
    one.receive(3, &[here.piece(500, 200)]);
    send(&other, 4, &[], back);
    other.succeed(4);
    assert_eq!(one.succeed(3).bytes, ROUTE);
}

#[test]
fn datagrams_of_all_sizes_and_inline_ones_arrive_within_a_program_and_at_their_sender() {
    let program = Program::new(&loopback());
    let [one, other] = [0, 1].map(|_| end(&program));
    let pattern: Vec<u8> = (0..4096_u32).map(|at| (at * 7 + at / 251) as u8).collect();
    program.buffer.write(0, &pattern);
    for target in [&other, &one] {
        for (id, length) in (0..).zip([0_u32, 1, 256, 257, 1024, 4096]) {
            target.receive(100 + id, &[program.piece(10_000, ROUTE + length)]);
            send(&one, id, &[program.piece(0, length)], to(target));
            if std::ptr::eq(target, &raw const one) {
                let mut done = one.next(2);
                done.sort_by_key(|done| done.id);
                assert_eq!(results(&done), [(id, GOOD), (100 + id, GOOD)]);
            } else {
                one.succeed(id);
                assert_eq!(target.succeed(100 + id).bytes, ROUTE + length);
            }
            let at = 10_000 + u64::from(ROUTE);
            assert_eq!(program.bytes(at, length as usize), pattern[..length as usize]);
        }
    }
    other.receive(7, &[program.piece(10_000, 100)]);
    let inline = SendRequest { inline: Some(b"by value"), ..request(8, &[], to(&other)) };
    one.queue_pair.post_send(&[inline]).expect("it is posted");
    one.succeed(8);
    other.succeed(7);
    assert_eq!(program.bytes(10_040, 8), b"by value");
}

//= protocol.md: datagram.3, datagram.4
#[test]
fn a_datagram_without_a_receiver_is_lost_and_its_send_completes() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    let piece = [here.piece(0, 16)];
    // Send four datagrams that no receive can take. Their destinations are an unknown queue pair
    // number in a slot that is in use, a queue pair number in another slot, the multicast number,
    // and a queue pair without a receive.
    let number = other.queue_pair.number();
    send(&one, 1, &piece, address(other.gid, number ^ 1));
    send(&one, 2, &piece, address(other.gid, number ^ 0x80_0000));
    send(&one, 3, &piece, address(other.gid, GROUP));
    send(&one, 4, &piece, to(&other));
    assert_eq!(results(&one.next(4)), [1, 2, 3, 4].map(|id| (id, GOOD)));
    // A datagram stays in the receiver's socket until the program there polls. Poll before the
    // receive is posted, so that the earlier datagrams are dropped.
    other.poll();
    other.receive(9, &[there.piece(0, ROUTE + 8)]);
    // Send one datagram with a wrong queue key, and one that is longer than the receive.
    send(&one, 5, &piece, AddressVector { queue_key: KEY + 1, ..to(&other) });
    send(&one, 6, &piece, to(&other));
    send(&one, 7, &[here.piece(0, 8)], to(&other));
    assert_eq!(results(&one.next(3)), [5, 6, 7].map(|id| (id, GOOD)));
    assert_eq!(other.succeed(9).bytes, ROUTE + 8);
    assert!(other.poll().is_empty());
    assert_eq!(other.queue_pair.state(), QueuePairState::ReadyToSend);
}

#[test]
fn receives_are_used_once_the_queue_pair_is_ready_and_its_key_may_change() {
    let programs = two_programs();
    let [here, there] = &programs;
    let one = end(here);
    let other = there.end_of(QueuePairType::Datagram, 0, None);
    init(&other, 1);
    other.receive(1, &[there.piece(0, 100)]);
    let piece = [here.piece(0, 8)];
    send(&one, 1, &piece, AddressVector { queue_key: 1, ..to(&other) });
    one.succeed(1);
    assert!(other.poll().is_empty(), "it is in INIT");
    set_key(&other, 2);
    other.go(QueuePairState::ReadyToReceive);
    for key in [1, 2] {
        send(&one, 2, &piece, AddressVector { queue_key: key, ..to(&other) });
        one.succeed(2);
    }
    other.succeed(1);
    let psn = AttributeMask::SEND_PSN;
    other.modify(QueuePairState::ReadyToSend, psn, QueuePairAttributes::default());
    other.receive(3, &[there.piece(0, 100)]);
    set_key(&other, 3);
    for key in [2, 3] {
        send(&one, 4, &piece, AddressVector { queue_key: key, ..to(&other) });
        one.succeed(4);
    }
    other.succeed(3);
    // If the top bit of the queue key is set, the library must use the sender's own queue key.
    set_key(&one, 3);
    other.receive(5, &[there.piece(0, 100)]);
    send(&one, 6, &piece, AddressVector { queue_key: 1 << 31, ..to(&other) });
    one.succeed(6);
    other.succeed(5);
    assert!(other.poll().is_empty());
}

#[test]
fn thousands_of_datagrams_are_sent_however_small_the_window() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    for round in 0..8 {
        for id in 0..500 {
            other.receive(id, &[there.piece(id * 100, 100)]);
        }
        let pieces: Vec<_> = (0..500).map(|id| [here.piece(id * 8, 8)]).collect();
        // Only the last datagram is signalled.
        let posts: Vec<_> = (0..)
            .zip(&pieces)
            .map(|(id, pieces)| {
                here.buffer.write(id * 8, &id.to_le_bytes());
                let flags = SendFlags { signalled: id == 499, ..SendFlags::default() };
                SendRequest { flags, ..request(id, pieces, to(&other)) }
            })
            .collect();
        one.queue_pair.post_send(&posts).expect("they are posted");
        one.succeed(499);
        let done = other.next(500);
        for (id, done) in (0..).zip(done) {
            assert_eq!((done.id, done.status), (id, GOOD), "round {round}");
            assert_eq!(there.bytes(id * 100 + 40, 8), id.to_le_bytes());
        }
    }
}

#[test]
fn an_invalid_send_fails_and_stops_later_sends_until_the_return_to_rts() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    let no_key = ScatterGather { key: 0x7777_7777, ..here.piece(0, 8) };
    let good = here.piece(0, 8);
    for (bad, status) in [
        (&[here.piece(0, 4097)][..], CompletionStatus::LocalLength),
        (&[here.piece(0, 4090), here.piece(0, 7)][..], CompletionStatus::LocalLength),
        (&[no_key][..], CompletionStatus::LocalProtection),
        (&[good, no_key][..], CompletionStatus::LocalProtection),
    ] {
        for id in 0..3 {
            other.receive(id, &[there.piece(0, 100)]);
        }
        send(&one, 1, &[good], to(&other));
        send(&one, 2, bad, to(&other));
        send(&one, 3, &[good], to(&other));
        assert_eq!(results(&one.next(2)), [(1, GOOD), (2, status)]);
        assert_eq!(one.queue_pair.state(), QueuePairState::SendQueueError);
        assert_eq!(results(&one.next(1)), [(3, FLUSHED)]);
        send(&one, 4, &[good], to(&other));
        assert_eq!(results(&one.next(1)), [(4, FLUSHED)]);
        // In SQE, the queue pair must still receive.
        one.receive(5, &[here.piece(500, 100)]);
        send(&other, 6, &[there.piece(0, 8)], to(&one));
        one.succeed(5);
        let mut done = results(&other.next(2));
        done.sort_by_key(|done| done.0);
        assert_eq!(done, [(0, GOOD), (6, GOOD)]);
        // When the queue pair returns to RTS, completions that the program has not polled must stay
        // in the completion queue.
        send(&one, 7, &[good], to(&other));
        one.modify(
            QueuePairState::ReadyToSend,
            AttributeMask::NONE,
            QueuePairAttributes::default(),
        );
        send(&one, 8, &[good], to(&other));
        assert_eq!(results(&one.next(2)), [(7, FLUSHED), (8, GOOD)]);
        other.succeed(1);
        set_key(&one, KEY);
        send(&one, 9, &[good], to(&other));
        one.succeed(9);
        other.succeed(2);
    }
}

#[test]
fn a_send_to_an_unroutable_address_fails() {
    let program = Program::new(&loopback());
    let one = end(&program);
    let gid = Gid::of("2001:db8::1".parse().expect("an address"));
    send(&one, 1, &[], address(gid, 0x12_3456));
    assert_eq!(results(&one.next(1)), [(1, CompletionStatus::LocalQueuePairOperation)]);
    assert_eq!(one.queue_pair.state(), QueuePairState::SendQueueError);
}

#[test]
fn a_receive_without_memory_fails_in_order_and_later_ones_are_flushed() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    let no_key = ScatterGather { key: 0x7777_7777, ..there.piece(0, 100) };
    other.receive(1, &[there.piece(0, 100)]);
    other.receive(2, &[no_key]);
    other.receive(3, &[there.piece(0, 100)]);
    for id in [1, 2] {
        send(&one, id, &[here.piece(0, 8)], to(&other));
        one.succeed(id);
    }
    let done = results(&other.next(3));
    assert_eq!(done, [(1, GOOD), (2, CompletionStatus::LocalProtection), (3, FLUSHED)]);
    assert_eq!(other.queue_pair.state(), QueuePairState::Error);
    send(&other, 4, &[], to(&one));
    other.receive(5, &[]);
    let mut done = results(&other.next(2));
    done.sort_by_key(|done| done.0);
    assert_eq!(done, [(4, FLUSHED), (5, FLUSHED)]);
    // After a reset, the queue pair must work like a new one.
    other.go(QueuePairState::Reset);
    make_ready(&other, KEY);
    other.receive(6, &[there.piece(0, 100)]);
    send(&one, 7, &[here.piece(0, 8)], to(&other));
    one.succeed(7);
    other.succeed(6);
}

#[test]
fn posted_work_is_flushed_in_error_and_discarded_by_a_reset() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    for id in 0..300 {
        other.receive(id, &[there.piece(0, 100)]);
    }
    send(&one, 1, &[here.piece(0, 8)], to(&other));
    one.succeed(1);
    other.succeed(0);
    other.go(QueuePairState::Error);
    let done = other.next(299);
    assert!(results(&done).into_iter().eq((1..300).map(|id| (id, FLUSHED))));
    assert!(other.poll().is_empty());
    for _ in 0..3 {
        other.go(QueuePairState::Reset);
        make_ready(&other, KEY);
        other.receive(400, &[there.piece(0, 100)]);
        other.receive(401, &[there.piece(0, 100)]);
        send(&one, 2, &[here.piece(0, 8)], to(&other));
        one.succeed(2);
        other.succeed(400);
    }
    other.go(QueuePairState::Reset);
    send(&one, 3, &[here.piece(0, 8)], to(&other));
    one.succeed(3);
    assert!(other.poll().is_empty());
    other.queue_pair.destroy().expect("it is there");
    assert!(other.poll().is_empty());
}

#[test]
fn a_drained_queue_pair_raises_an_event_and_resumes() {
    let programs = two_programs();
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    other.receive(1, &[there.piece(0, 100)]);
    let attributes = QueuePairAttributes::default();
    one.queue_pair
        .modify(&verbs::Modification {
            mask: AttributeMask::STATE | AttributeMask::DRAINED_EVENT,
            state: QueuePairState::SendQueueDrained,
            current: QueuePairState::ReadyToSend,
            drained_event: true,
            attributes,
        })
        .expect("it is allowed");
    send(&one, 2, &[here.piece(0, 8)], to(&other));
    let event = here.context.get_event().expect("not forked");
    assert_eq!(event.kind, AsyncEventKind::SendQueueDrained);
    here.context.acknowledge_event(&event);
    assert!(one.poll().is_empty() && other.poll().is_empty());
    one.modify(QueuePairState::ReadyToSend, AttributeMask::NONE, attributes);
    one.succeed(2);
    other.succeed(1);
}

#[test]
fn queue_pairs_share_receives_and_report_the_limit() {
    let programs = two_programs();
    let [here, there] = &programs;
    let shared = there.domain.create_shared_queue(64, 2).expect("a queue");
    let one = end(here);
    let others = [0, 1, 2].map(|_| with_receives_of(there, Some(&shared)));
    let post = |id: u64| {
        let pieces = [there.piece(id * 100, 40), there.piece(10_000 + id * 100, 60)];
        shared.post(&[ReceiveRequest { id, pieces: &pieces }]).expect("there is room");
    };
    (0..8).for_each(post);
    shared.set_limit(4).expect("it holds as many");
    for id in 0..5_u64 {
        here.buffer.write(0, &id.to_le_bytes());
        let other = &others[id as usize % 3];
        send(&one, id, &[here.piece(0, 8)], to(other));
        one.succeed(id);
        assert_eq!(other.succeed(id).bytes, ROUTE + 8);
        assert_eq!(there.bytes(10_000 + id * 100, 8), id.to_le_bytes());
    }
    let event = there.context.get_event().expect("not forked");
    assert_eq!(event.kind, AsyncEventKind::ReceiveLimitReached);
    there.context.acknowledge_event(&event);
    // When one queue pair fails, the receives must stay in the shared queue.
    others[0].go(QueuePairState::Error);
    send(&one, 5, &[here.piece(0, 8)], to(&others[1]));
    one.succeed(5);
    others[1].succeed(5);
    others[0].go(QueuePairState::Reset);
    make_ready(&others[0], KEY);
    // Consume receives and drop their completions by a reset. The places of these receives must
    // become free too.
    for _ in 0..100 {
        post(9);
        send(&one, 6, &[here.piece(0, 8)], to(&others[0]));
        one.succeed(6);
        while others[0].queue.work().is_empty() {
            others[1].poll();
        }
        others[0].go(QueuePairState::Reset);
        make_ready(&others[0], KEY);
    }
}

//= protocol.md: datagram.6, datagram.8
#[test]
fn a_multicast_datagram_reaches_all_members_including_the_sender() {
    let programs = [0, 1, 2].map(|_| Program::new(&loopback()));
    let here = &programs[0];
    // This group address must not occur in another test, because datagrams to it reach all members
    // on the host.
    let group = Gid::of(IpAddr::from([239, 83, 2, 1]));
    let one = end(here);
    let members = programs.each_ref().map(|program| [0, 1].map(|_| end(program)));
    one.queue_pair.set_membership(group, true).expect("it joins");
    for end in members.iter().flatten() {
        end.queue_pair.set_membership(group, true).expect("it joins");
        end.queue_pair.set_membership(group, true).expect("it is in it already");
    }
    let is_left = &members[2][1];
    is_left.queue_pair.set_membership(group, false).expect("it was in it");
    assert!(is_left.queue_pair.set_membership(group, false).is_err());
    for round in 0..3 {
        for (program, ends) in programs.iter().zip(&members) {
            for end in ends {
                end.receive(round, &[program.piece(1000, 100)]);
            }
        }
        one.receive(100 + round, &[here.piece(2000, 100)]);
        here.buffer.write(0, &round.to_le_bytes());
        send(&one, round, &[here.piece(0, 8)], address(group, GROUP));
        let mut done = results(&one.next(2));
        done.sort_by_key(|done| done.0);
        assert_eq!(done, [(round, GOOD), (100 + round, GOOD)]);
        for (program, ends) in programs.iter().zip(&members) {
            for end in ends.iter().filter(|end| !std::ptr::eq(*end, is_left)) {
                assert_eq!(end.succeed(round).source, one.queue_pair.number());
                assert_eq!(program.bytes(1040, 8), round.to_le_bytes());
                assert_eq!(program.bytes(1024, 16), group.0);
            }
        }
        assert!(is_left.poll().is_empty());
        // A member must stay in the group after a reset.
        members[1][0].go(QueuePairState::Reset);
        make_ready(&members[1][0], KEY);
    }
    let no_group = Gid::of(IpAddr::from([10, 0, 0, 1]));
    assert!(one.queue_pair.set_membership(no_group, true).is_err());
    let other_family = Gid::of("ff0e::1".parse().expect("an address"));
    assert!(one.queue_pair.set_membership(other_family, true).is_err());
}

#[test]
fn datagrams_arrive_over_shared_memory_and_lossy_links() {
    let programs = [0, 1].map(|_| Program::new(&with_links("udp:127.0.0.1,shm")));
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(end);
    for id in 0..100 {
        other.receive(id, &[there.piece(0, 100)]);
        send(&one, id, &[here.piece(0, 8)], to(&other));
        one.succeed(id);
        other.succeed(id);
    }
}
