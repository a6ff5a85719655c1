//! An initiator and a responder that sleeps through early segments, as siw does, in virtual time.

use super::random::Random;
use super::scripted::{NOW, Subject, depths, enhanced, fpdu, send};
use crate::config::{Config, RtrKinds};
use crate::planted::{Planted, plant};
use crate::work::{Payload, Work, WorkKind};

/// Speeds of the responder's host in quarters of that of a calibrated host.
const SPEEDS: [u64; 5] = [1, 2, 4, 8, 16];

/// Tries at each speed.
const TRIES: u64 = 500;

/// Of the tries in which a responder sleeps, one in this number meets a busy host.
const BUSY_ONE_IN: usize = 4;

/// Time slice of another thread on a busy host, in nanoseconds. It is the same on all hosts.
const SLICE_NS: u64 = 3_000_000;

/// Most time slices that pass before the responder's thread runs again.
const SLICES_MAX: usize = 20;

/// Longest wait for the first answer, in nanoseconds.
const WAIT_NS_MAX: u64 = 100_000_000;

/// Returns for how long a responder overlooks segments after its reply, in nanoseconds: until its
/// thread makes the next step. In 40 % of the tries, the first message arrives before that.
fn sleep_ns(random: &mut Random, quarters: u64) -> u64 {
    if random.below(5) >= 2 {
        return 0;
    }
    let step_ns = (1 + random.below(200_000) as u64) * 4 / quarters;
    let slices = if random.one_in(BUSY_ONE_IN) { 1 + random.below(SLICES_MAX) } else { 0 };
    step_ns + slices as u64 * SLICE_NS
}

/// Connects and sends a message to a responder that overlooks all segments for `sleep_ns`. Returns
/// after how many nanoseconds the responder sees the message. `None` if it never does.
fn first_answer(config: Config, sleep_ns: u64) -> Option<u64> {
    let mut subject = Subject::initiator(config, enhanced(), Some(depths(1, 1)));
    let kind = WorkKind::Send { solicited: false, invalidate: None };
    let payload = Payload::Inline(b"first");
    let work = Work { id: 1, kind, payload, signaled: true, fence: false };
    subject.stream.post_send(&work).expect("room for one");
    let mut now = NOW;
    loop {
        let has_sent = !subject.segments().is_empty();
        if has_sent && now.since_ns(NOW) >= sleep_ns {
            // The segment makes the responder look, and it finds all earlier ones, too.
            subject.add_receive(1, 0, 8);
            subject.give(&fpdu(&send(1, 0, true), b"answer", false));
            return Some(now.since_ns(NOW));
        }
        now = subject.stream.next_timeout()?.max(now);
        subject.stream.handle_timeout(now);
    }
}

/// Returns the longest wait for the first answer in nanoseconds, and the number of tries in which
/// there was none.
fn tries(quarters: u64) -> (u64, u64) {
    let mut random = Random::new(quarters);
    let (mut longest_ns, mut lost) = (0, 0);
    for number in 0..TRIES {
        let peer_to_peer = (number % 2 == 0).then_some(RtrKinds::ALL);
        let config = Config { peer_to_peer, ..Config::default() };
        match first_answer(config, sleep_ns(&mut random, quarters)) {
            Some(ns) => longest_ns = ns.max(longest_ns),
            None => lost += 1,
        }
    }
    (longest_ns, lost)
}

#[test]
fn a_responder_that_sleeps_through_the_first_message_answers_within_a_tenth_of_a_second() {
    for quarters in SPEEDS {
        let (longest_ns, lost) = tries(quarters);
        assert_eq!(lost, 0, "{quarters} quarters");
        assert!(longest_ns <= WAIT_NS_MAX, "{quarters} quarters: {longest_ns} ns");
    }
}

#[test]
fn without_nudges_such_a_responder_never_answers() {
    plant(Some(Planted::ForgetsNudge));
    let lost = SPEEDS.map(|quarters| tries(quarters).1);
    plant(None);
    assert!(lost.iter().all(|lost| *lost > TRIES / 3), "{lost:?}");
}
