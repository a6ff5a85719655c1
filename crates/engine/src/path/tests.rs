use super::*;
use crate::sending::tests::{CAPS, PARAMETERS, block, data, pool};

fn path() -> Path {
    path_of(0)
}

/// Returns a link that was just opened under this index.
pub(crate) fn path_of(index: u8) -> Path {
    let config = EngineConfig::default();
    let pair = (LinkId(index), PeerAddr::default());
    let mut path = Path::new(START, LinkIndex(index), pair, &CAPS, &config, &PARAMETERS);
    path.begin(Life::Settled, PathState::validated(START));
    path
}

const fn packet(number: u32) -> Packet {
    let eliciting = Eliciting::Yes;
    Packet { number, received_at: START, is_marked: true, eliciting, asks: false }
}

#[test]
fn frames_that_the_driver_refused_are_not_counted() {
    let (mut path, mut pool) = (path(), pool());
    let before = path.counters;
    for (purpose, has_acks) in
        [(Purpose::Data, true), (Purpose::Acknowledge, true), (Purpose::Report, false)]
    {
        let is_data = purpose == Purpose::Data;
        let carried = if is_data { data(1) } else { Carried::default() };
        path.on_sent(&mut pool, START, 100, purpose, carried, has_acks);
        assert_eq!(path.counters.frames_sent, 1);
        path.unsend(&mut pool, (1, 100), purpose, has_acks, &mut |_| {});
        assert_eq!(path.counters, before);
    }
}

#[test]
fn each_frame_is_counted_once_and_only_a_new_one_is_a_sign_of_life() {
    let mut path = path();
    let later = START.after_ns(1_000);
    let past_all = 1 << 30;
    let found = [7, 7, past_all].map(|number| path.on_frame(later, 100, &packet(number)));
    assert_eq!(found, [true, true, false], "only handled packets are observed");
    path.observe(later, &packet(7));
    assert!(!path.on_frame(later.after_ns(1), 100, &packet(7)));
    assert_eq!(path.heard_at, later);
    let LinkCounters { frames_received, bytes_received, congestion_marked, .. } = path.counters;
    assert_eq!((frames_received, bytes_received, congestion_marked), (4, 400, 2));
    assert_eq!(path.counters.dropped_duplicate + path.counters.dropped_implausible, 2);
}

#[test]
fn data_and_messages_of_an_abandoned_path_are_retransmitted() {
    let (mut path, mut pool) = (path(), pool());
    path.on_sent(&mut pool, START, 100, Purpose::Data, data(1), false);
    let ping = path.pending().carried(PING, None);
    path.say(PING);
    path.on_sent(&mut pool, START, 40, Purpose::Report, ping, false);
    path.on_control_sent(PING, None, true);
    let mut again = Vec::new();
    let lost = path.give_up(&mut pool, &mut |carried| again.push(carried.slot));
    assert_eq!((again, path.counters.retransmissions), (vec![1], 1));
    assert!(path.pending.is_all_heard() && path.send().in_flight_bytes() == 0);
    let mut other = self::path();
    other.say_again(lost);
    assert_eq!(other.pending().messages(), PING);
}

#[test]
fn another_link_reports_a_silent_one_only_if_it_progressed_later() {
    let (mut path, mut pool) = (path(), pool());
    assert_eq!(path.progress_at(), Instant::default(), "nothing was acknowledged");
    path.on_sent(&mut pool, START, 100, Purpose::Data, data(1), false);
    assert_eq!(path.waits_since(START.after_ns(5)), START);
    let later = START.after_ns(10);
    let found = path.on_ack(&mut pool, (later, later), &block(0, 1), &mut |_, _| {});
    assert!(found.is_some_and(|found| found.is_progress));
    assert_eq!(path.waits_since(later), later);
    assert!(path.on_ack(&mut pool, (later, later), &block(9, 1), &mut |_, _| {}).is_none());
}

#[test]
#[should_panic(expected = "packet numbers belong to an index")]
fn renewing_a_path_under_another_index_panics() {
    let (before, mut fresh) = (path(), path());
    fresh.index = LinkIndex(1);
    before.renew(fresh, START, &CAPS, &EngineConfig::default(), &PARAMETERS);
}

const START: Instant = Instant(1_000_000);
