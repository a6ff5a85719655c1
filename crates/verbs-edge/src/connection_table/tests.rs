//! Tests of connecting two ends on slow hosts, in virtual time.

mod world;

use proptest::prelude::*;
use verbs::{CompletionOpcode, WorkCompletion};
use work::CompletionStatus;

use self::world::{LARGER, SMALLER, World};
use crate::meeting::WAIT_NS;

/// Checks that each end has sent a message and has received the message of its peer.
fn assert_met(world: &World) {
    assert!(world.are_connected(), "{:?}", world.completions());
    for completions in world.completions() {
        let has = |opcode| {
            completions.iter().any(|completion: &WorkCompletion| {
                (completion.opcode, completion.status) == (opcode, CompletionStatus::Success)
            })
        };
        assert!(has(CompletionOpcode::Send) && has(CompletionOpcode::Receive), "{completions:?}");
    }
}

#[test]
fn two_running_ends_connect_at_once() {
    for first in [SMALLER, LARGER] {
        let mut world = World::new(14);
        world.seek(first);
        world.be_ready_to_send(first);
        world.pass(1_000_000, &[SMALLER, LARGER]);
        world.seek(1 - first);
        world.be_ready_to_send(1 - first);
        world.pass(10_000_000, &[SMALLER, LARGER]);
        assert_met(&world);
    }
}

//= protocol.md: verbs.6
/// Each end sends four frames until a connection is established. With these delays, this takes
/// longer than the duration of the first attempt.
#[test]
fn each_attempt_lasts_longer_than_the_previous_one() {
    for delay_ns in [600_000_000, 900_000_000, 1_200_000_000] {
        let mut world = World::new(20);
        world.delay_ns = delay_ns;
        for at in [SMALLER, LARGER] {
            world.seek(at);
            world.be_ready_to_send(at);
        }
        world.pass(20_000_000_000, &[SMALLER, LARGER]);
        assert_met(&world);
    }
}

//= protocol.md: verbs.2
/// The queue pair sends a request to itself and accepts this request. Its connection as requester
/// is established before its connection as responder.
#[test]
fn a_queue_pair_connects_to_itself_however_slow_its_host_is() {
    for turns in 0..8 {
        let mut world = World::apart(14);
        for at in [SMALLER, LARGER] {
            world.seek(at);
            world.be_ready_to_send(at);
            for _ in 0..turns {
                world.turn(at, usize::MAX);
            }
        }
        world.pass(SLOW_NS, &[]);
        world.pass(500_000_000, &[SMALLER, LARGER]);
        assert_met(&world);
    }
}

//= protocol.md: verbs.4
/// The end with the smaller number abandons its own request and accepts the peer's request. The
/// peer receives the abandoned request after that.
#[test]
fn an_abandoned_request_does_not_replace_the_accepted_one() {
    for is_accept_late in [false, true] {
        let mut world = World::new(14);
        world.seek(LARGER);
        world.be_ready_to_send(LARGER);
        world.pass(WAIT_NS, &[LARGER]);
        // LARGER sends Hello, receives a cookie, and returns the cookie in its request. The slow
        // host SMALLER has not received this request yet.
        world.turn(SMALLER, 1);
        world.turn(LARGER, 1);
        world.seek(SMALLER);
        world.be_ready_to_send(SMALLER);
        world.turn(LARGER, 1);
        // SMALLER receives the request of LARGER. SMALLER also sends a request with LARGER's
        // cookie, which LARGER has not received yet.
        world.pass(GIVEN_UP_NS, &[SMALLER]);
        assert!(!world.are_connected());
        if is_accept_late {
            let accept =
                world.hosts[LARGER].inbox.iter().position(|frame| step_of(frame) == ACCEPT);
            world.turn(LARGER, accept.expect("it was sent"));
        }
        world.pass(500_000_000, &[SMALLER, LARGER]);
        assert_met(&world);
    }
}

//= protocol.md: verbs.4, verbs.7
#[test]
fn an_end_with_an_accepted_request_keeps_waiting_although_its_own_was_rejected() {
    let mut world = World::new(14);
    world.seek(LARGER);
    world.be_ready_to_send(LARGER);
    world.pass(WAIT_NS, &[LARGER]);
    world.turn(SMALLER, 1);
    world.turn(LARGER, 1);
    world.seek(SMALLER);
    world.be_ready_to_send(SMALLER);
    world.turn(LARGER, 1);
    // Both ends have sent requests. LARGER accepts the request of SMALLER, and SMALLER rejects the
    // request of LARGER.
    for at in [SMALLER, LARGER, SMALLER] {
        world.turn(at, usize::MAX);
    }
    // Drop the frame that confirms the accepted request.
    let inbox = &mut world.hosts[LARGER].inbox;
    let frames = inbox.len();
    inbox.retain(|frame| step_of(frame) == REJECT);
    assert!((1..frames).contains(&inbox.len()), "a Reject and others");
    world.pass(SLOW_NS, &[LARGER]);
    world.pass(500_000_000, &[SMALLER, LARGER]);
    assert_met(&world);
}

//= protocol.md: verbs.7
#[test]
fn an_end_that_gets_a_request_after_a_rejection_keeps_waiting() {
    let mut world = World::new(14);
    world.leave(SMALLER);
    world.seek(LARGER);
    world.be_ready_to_send(LARGER);
    world.pass(WAIT_NS + 10_000_000, &[SMALLER, LARGER]);
    world.enter(SMALLER);
    world.seek(SMALLER);
    world.be_ready_to_send(SMALLER);
    for at in [LARGER, SMALLER, LARGER] {
        world.turn(at, usize::MAX);
    }
    world.pass(SLOW_NS, &[LARGER]);
    world.pass(500_000_000, &[SMALLER, LARGER]);
    assert_met(&world);
}

/// A random step of a run.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A host starts to search for its peer. Has no effect if it has already started.
    Seek(usize),
    /// A host that searches for its peer becomes ready to send.
    Send(usize),
    /// The oldest frame in a host's inbox is lost.
    Lose(usize),
    /// The oldest frame in a host's inbox is duplicated. The copy is added at the end of the inbox.
    Repeat(usize),
    /// A host handles at most this number of frames.
    Turn(usize, usize),
    /// This time in nanoseconds passes. Only the given host runs in this time; no host if the value
    /// is `None`.
    Alone(Option<usize>, u64),
    /// This time in nanoseconds passes, and both hosts run.
    Both(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let host = || prop_oneof![Just(SMALLER), Just(LARGER)];
    let ns = || (0..3_000_000_000_u64).prop_map(|ns| ns >> (ns % 12));
    prop_oneof![
        2 => host().prop_map(Step::Seek),
        2 => host().prop_map(Step::Send),
        1 => host().prop_map(Step::Lose),
        1 => host().prop_map(Step::Repeat),
        4 => (host(), 1..4_usize).prop_map(|(at, frames)| Step::Turn(at, frames)),
        4 => (prop::option::weighted(0.9, host()), ns()).prop_map(|(at, ns)| Step::Alone(at, ns)),
        1 => (0..100_000_u64).prop_map(Step::Both),
    ]
}

proptest! {
    //= protocol.md: verbs.2, verbs.4, verbs.6
    #[test]
    fn two_ends_connect_however_slow_their_hosts_are(
        steps in prop::collection::vec(step(), 1..40),
        (timeout, alone_ns_max) in prop_oneof![Just((14, 4_500_000_000)), Just((20, 9_000_000_000))],
        are_own_peers in prop::bool::weighted(0.2),
    ) {
        let mut world = if are_own_peers { World::apart(timeout) } else { World::new(timeout) };
        let mut has_sought = [false; 2];
        let mut alone_ns = 0;
        let rest = [Step::Seek, Step::Send].map(|step| [SMALLER, LARGER].map(step));
        for step in steps.into_iter().chain(rest.into_iter().flatten()) {
            match step {
                Step::Seek(at) if has_sought[at] => {}
                Step::Seek(at) => {
                    has_sought[at] = true;
                    world.seek(at);
                }
                Step::Send(at) if has_sought[at] => world.be_ready_to_send(at),
                Step::Send(_) => {}
                Step::Lose(at) => {
                    world.hosts[at].inbox.pop_front();
                }
                Step::Repeat(at) => {
                    let frame = world.hosts[at].inbox.front().cloned();
                    world.hosts[at].inbox.extend(frame);
                }
                Step::Turn(at, frames) => world.turn(at, frames),
                Step::Alone(_, ns) if alone_ns + ns > alone_ns_max => {}
                Step::Alone(at, ns) => {
                    alone_ns += ns;
                    world.pass(ns, at.as_slice());
                }
                Step::Both(ns) => world.pass(ns, &[SMALLER, LARGER]),
            }
        }
        world.pass(MEETING_NS, &[SMALLER, LARGER]);
        assert_met(&world);
    }
}

/// Time in which two ends must connect if both hosts run, in nanoseconds. The time suffices even if
/// one attempt gets no answer.
const MEETING_NS: u64 = 3_000_000_000;

/// Returns the handshake step of a frame; 0 for other frames.
fn step_of(frame: &[u8]) -> u8 {
    wire_edge::preamble(frame).map_or(0, |preamble| preamble.step)
}

/// Numbers of the steps Accept and Reject (protocol.md §2.1).
const ACCEPT: u8 = 3;
const REJECT: u8 = 4;

/// A time in nanoseconds that is longer than the time for which work waits for a peer after a
/// rejected request.
const SLOW_NS: u64 = 2_500_000_000;

/// A time in nanoseconds that is longer than one attempt of an end.
const GIVEN_UP_NS: u64 = 2_100_000_000;
