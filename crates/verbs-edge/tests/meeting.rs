//! Tests of how two queue pairs find each other (protocol.md §10.2).

mod ends;

use ends::{End, Name, Program, loopback, with_links};
use link::FaultShares;
use verbs::{
    CompletionOpcode, CompletionStatus, QueuePairAttributes, QueuePairState, QueuePairType,
    SendOpcode,
};
use verbs_edge::Settings;

/// Sends a message from one end to the other and checks its content.
fn say(from: (&Program, &End), to: (&Program, &End), id: u64) {
    let ((here, one), (there, other)) = (from, to);
    let said = format!("message {id:8}");
    here.buffer.write(0, said.as_bytes());
    other.receive(id, &[there.piece(4096, 64)]);
    one.send(id, here.piece(0, said.len() as u32));
    one.succeed(id);
    let got = other.succeed(id);
    assert_eq!((got.opcode, got.bytes), (CompletionOpcode::Receive, 16));
    assert_eq!(there.bytes(4096, 16), said.as_bytes());
}

/// Creates an end in each program. If `smaller_first` is true, the first end in the result has the
/// smaller number; otherwise it has the larger number.
fn two(programs: &[Program; 2], smaller_first: bool) -> [(&Program, End); 2] {
    let [one, other] = programs.each_ref().map(|program| (program, program.end(7)));
    let is_so = one.1.queue_pair.number() < other.1.queue_pair.number();
    if is_so == smaller_first { [one, other] } else { [other, one] }
}

//= protocol.md: verbs.2, verbs.5
#[test]
fn work_posted_before_the_peer_is_ready_waits_for_it() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    for smaller_first in [true, false] {
        for reached in [QueuePairState::Reset, QueuePairState::Init] {
            let [(here, one), (there, other)] = two(&programs, smaller_first);
            one.connect(other.name());
            here.buffer.write(0, b"early");
            one.send(1, here.piece(0, 5));
            if reached == QueuePairState::Init {
                other.init();
                other.receive(2, &[there.piece(0, 64)]);
            }
            // The request of one end has arrived and waits during these polls.
            for _ in 0..100 {
                assert!(one.poll().is_empty() && other.poll().is_empty());
            }
            if reached == QueuePairState::Reset {
                other.init();
                other.receive(2, &[there.piece(0, 64)]);
            }
            other.be_ready_to_receive(one.name());
            one.succeed(1);
            other.succeed(2);
            assert_eq!(there.bytes(0, 5), b"early");
            other.be_ready_to_send();
            say((there, &other), (here, &one), 3);
            one.queue_pair.destroy().expect("it is there");
            other.queue_pair.destroy().expect("it is there");
        }
    }
}

//= protocol.md: verbs.2
#[test]
fn an_end_that_only_receives_is_found() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    for smaller_first in [true, false] {
        let [(here, one), (there, other)] = two(&programs, smaller_first);
        other.init();
        other.receive(1, &[there.piece(0, 64)]);
        other.be_ready_to_receive(one.name());
        one.connect(other.name());
        one.send(2, here.piece(0, 5));
        one.succeed(2);
        other.succeed(1);
    }
}

//= protocol.md: verbs.6
#[test]
fn reset_ends_connect_again_in_any_order() {
    let usual = loopback();
    meet_again(&usual);
    let faults = FaultShares { loss: 0.1, duplication: 0.1, reordering: 0.1 };
    meet_again(&Settings { faults, ..usual });
}

fn meet_again(settings: &Settings) {
    let programs = [0, 1].map(|_| Program::new(settings));
    let [one, other] = [(0, 11), (1, 22)].map(|(at, psn)| programs[at].end(psn));
    one.connect(other.name());
    other.connect(one.name());
    let ends = [(&programs[0], &one), (&programs[1], &other)];
    let mut psns = [11, 22];
    for round in 0..16_u64 {
        say(ends[0], ends[1], 2 * round);
        say(ends[1], ends[0], 2 * round + 1);
        let first = (round % 2) as usize;
        psns = psns.map(|psn| psn + 1);
        let names = [0, 1].map(|at| Name { psn: psns[at], ..ends[at].1.name() });
        let reset = |at: usize| ends[at].1.go(QueuePairState::Reset);
        let connect = |at: usize| {
            let end = ends[at].1;
            end.init();
            end.be_ready_to_receive(names[1 - at]);
            end.be_ready_to_send_with_psn(psns[at]);
        };
        reset(first);
        if round & 2 != 0 {
            // Make this end send requests before the other end is reset.
            connect(first);
            reset(1 - first);
        } else {
            reset(1 - first);
            connect(first);
        }
        connect(1 - first);
    }
}

//= protocol.md: verbs.6
#[test]
fn a_restarted_peer_is_found_and_its_predecessor_forgotten() {
    let here = Program::new(&loopback());
    let one = here.end(5);
    for id in 0..4 {
        let there = Program::new(&loopback());
        let other = there.end(6);
        one.connect(other.name());
        other.connect(one.name());
        say((&here, &one), (&there, &other), 2 * id);
        say((&there, &other), (&here, &one), 2 * id + 1);
        if id % 2 == 0 {
            other.queue_pair.destroy().expect("it is there");
        }
        one.go(QueuePairState::Reset);
    }
}

//= protocol.md: verbs.3, verbs.7
#[test]
fn work_for_a_missing_or_mismatched_peer_fails_and_no_other_work() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = &programs;
    let absent = Name { number: there.end(1).queue_pair.number() ^ 0x800, ..here.end(1).name() };
    let quick = QueuePairAttributes { timeout: 1, not_ready_retries: 7, ..Default::default() };
    let (another, other) = (here.end(5), there.end(9));
    other.connect(Name { psn: 6, ..another.name() });
    for (end, peer) in [(here.end(3), absent), (another, other.name())] {
        end.init();
        end.receive(1, &[here.piece(0, 64)]);
        end.be_ready_to_receive(peer);
        end.be_ready_to_send_with(quick);
        assert!(end.poll().is_empty());
        assert_eq!(end.queue_pair.state(), QueuePairState::ReadyToSend);
        end.send(2, here.piece(0, 5));
        end.send(3, here.piece(0, 5));
        let mut done = end.next(3);
        done.sort_by_key(|done| done.id);
        let found: Vec<_> = done.iter().map(|done| (done.id, done.status)).collect();
        let flushed = CompletionStatus::Flushed;
        assert_eq!(
            found,
            [(1, flushed), (2, CompletionStatus::TransportRetryExceeded), (3, flushed)]
        );
        assert_eq!(end.queue_pair.state(), QueuePairState::Error);
    }
    assert!(other.poll().is_empty());
}

#[test]
fn an_unreliable_connection_is_carried_as_well() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = &programs;
    let [one, other] =
        programs.each_ref().map(|program| program.end_of(QueuePairType::Unreliable, 3, None));
    one.connect(other.name());
    other.connect(one.name());
    say((here, &one), (there, &other), 1);
    here.buffer.write(0, b"placed");
    let (address, key) = (there.address(900), there.region.key());
    one.post(2, SendOpcode::Write { address, key, immediate: None }, &[here.piece(0, 6)]);
    one.succeed(2);
    assert_eq!(there.bytes(900, 6), b"placed");
}

#[test]
fn several_hundred_queue_pairs_connect_at_once() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let ends: Vec<_> =
        (0..300).map(|_| programs.each_ref().map(|program| program.end(1))).collect();
    for [one, other] in &ends {
        one.connect(other.name());
    }
    for [one, other] in ends.iter().rev() {
        other.connect(one.name());
    }
    let [here, there] = &programs;
    for (id, [one, other]) in (0..).zip(&ends) {
        say((here, one), (there, other), id);
    }
}

#[test]
fn processes_of_one_host_share_memory() {
    let programs = [0, 1].map(|_| Program::new(&with_links("udp:127.0.0.1,shm")));
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(|program| program.end(1));
    one.connect(other.name());
    other.connect(one.name());
    for id in 0..1000 {
        say((here, &one), (there, &other), id);
        say((there, &other), (here, &one), id);
    }
}

#[test]
fn every_gid_of_a_host_leads_to_its_queue_pairs() {
    let programs = [0, 1].map(|_| Program::new(&Settings::default()));
    let [here, there] = &programs;
    for entry in here.context.gids().expect("not forked") {
        let at = |program: &Program| {
            let mut end = program.end(1);
            (end.gid, end.index) = (entry.gid, entry.index as u8);
            end
        };
        let (one, other) = (at(here), at(there));
        one.connect(other.name());
        other.connect(one.name());
        say((here, &one), (there, &other), 1);
        say((there, &other), (here, &one), 2);
    }
}

#[test]
fn the_log_reports_what_happens_to_connections() {
    let path = std::env::temp_dir().join(format!("ethernot-meeting-{}", std::process::id()));
    let settings = Settings { trace: Some(path.clone()), ..loopback() };
    let programs = [Program::new(&settings), Program::new(&loopback())];
    let [here, there] = &programs;
    let [one, other] = programs.each_ref().map(|program| program.end(1));
    one.connect(other.name());
    other.connect(one.name());
    say((here, &one), (there, &other), 1);
    other.queue_pair.destroy().expect("it is there");
    let (number, peer) = (one.queue_pair.number(), other.queue_pair.number());
    let expected = [
        format!("queue pair {number:#x} looks for {peer:#x} at 127.0.0.1"),
        format!("queue pair {number:#x} is connected to {peer:#x} at 127.0.0.1"),
        format!("the connection of queue pair {number:#x} has ended: closed by the peer"),
    ];
    loop {
        one.poll();
        let text = std::fs::read_to_string(&path).expect("it is there");
        if expected.iter().all(|line| text.contains(line)) {
            break;
        }
    }
    std::fs::remove_file(&path).expect("it is there");
}
