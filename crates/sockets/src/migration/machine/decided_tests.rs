//! Tests that the route of a connection is decided exactly once, in any order of events, and also
//! if only time passes.

use delivery::Instant;
use proptest::prelude::*;

use super::table_tests::{ARRIVED, EVENTS};
use super::{ANSWER_WITHIN_NS, Action, Event, Half, Migration, Phase};
use crate::migration::offer::OFFER_HOLDS_NS;
use crate::reasons::Reason;
use crate::settings::Role;

const START: Instant = Instant(5);

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Connecting), Just(Role::Accepting)]
}

fn event() -> impl Strategy<Value = Event> {
    let usual = [
        Event::Begin,
        Event::Bytes,
        Event::Offer,
        Event::GroupUp,
        Event::Join,
        Event::Joined,
        Event::MarkerWritten,
    ];
    let any = (0..=EVENTS.len()).prop_map(|at| EVENTS.get(at).copied().unwrap_or(ARRIVED));
    prop_oneof![prop::sample::select(usual.to_vec()), any]
}

/// Actions that may occur at most once.
const ONCE: [fn(&Action) -> bool; 6] = [
    |action| matches!(action, Action::Leave(_)),
    |action| matches!(action, Action::Switch),
    |action| matches!(action, Action::FindGroup),
    |action| matches!(action, Action::MakeStream),
    |action| matches!(action, Action::SendJoin),
    |action| matches!(action, Action::SendJoined),
];

proptest! {
    //= sockets-protocol.md: offer.5, join.2
    #[test]
    fn a_connection_is_moved_or_left_once(
        role in role(),
        events in prop::collection::vec((event(), 0..6_000_000_000_u64), 0..40),
    ) {
        let (mut end, mut now, mut all) = (Migration::new(role), START, Vec::new());
        for (event, wait_ns) in events {
            now = now.after_ns(wait_ns);
            all.extend(end.on(event, now));
            for is_one in ONCE {
                prop_assert!(all.iter().filter(|action| is_one(action)).count() <= 1);
            }
            let has_left = all.iter().any(ONCE[0]);
            let has_switched = all.iter().any(ONCE[1]);
            prop_assert!(!(has_left && has_switched), "either, not both");
            prop_assert!(!has_switched || all.contains(&Action::WriteMarker));
            if has_left {
                prop_assert!(matches!(end.phase(), Phase::Ended(_)));
                prop_assert_eq!(end.due(), Instant::NEVER);
            }
        }
    }

    //= sockets-protocol.md: join.5, offer.4
    /// No phase before the switch marker lasts longer than its time limit, even if the peer does
    /// nothing.
    #[test]
    fn every_undecided_phase_times_out(
        role in role(),
        events in prop::collection::vec(event(), 0..12),
    ) {
        let mut end = Migration::new(role);
        for event in events {
            drop(end.on(event, START));
        }
        let mut now = START;
        for _ in 0..40 {
            if end.due() < Instant::NEVER {
                prop_assert!(end.due() <= now.after_ns(ANSWER_WITHIN_NS));
                now = end.due().max(now);
                for action in end.on(Event::Time, now) {
                    // TCP has no room, because the peer does not read.
                    if action == Action::WriteMarker {
                        drop(end.on(Event::MarkerWaits { has_begun: false }, now));
                    }
                }
            }
        }
        let is_waiting = match end.phase() {
            Phase::Offering => role == Role::Connecting || end.due() < Instant::NEVER,
            Phase::Grouping | Phase::Joining => true,
            _ => false,
        };
        prop_assert!(!is_waiting, "{:?} for ever", end.phase());
    }
}

//= sockets-protocol.md: join.5
#[test]
fn a_peer_that_offers_and_never_answers_times_out() {
    let mut end = Migration::new(Role::Connecting);
    for event in [Event::Begin, Event::Offer, Event::GroupUp] {
        drop(end.on(event, START));
    }
    let almost = START.after_ns(ANSWER_WITHIN_NS - 1);
    assert_eq!(end.on(Event::Time, almost), []);
    assert_eq!(end.on(Event::Time, START.after_ns(ANSWER_WITHIN_NS)), [Action::Await]);
    assert_eq!(end.on(Event::Shut(Half::Write), almost), [Action::ShutTcp], "not put off");
}

//= sockets-protocol.md: join.5
#[test]
fn a_late_answer_moves_the_connection_which_returns_to_tcp_if_tcp_has_ended() {
    for is_shut in [false, true] {
        let mut end = Migration::new(Role::Connecting);
        for event in [Event::Begin, Event::Offer, Event::GroupUp] {
            drop(end.on(event, START));
        }
        let late = START.after_ns(ANSWER_WITHIN_NS);
        drop(end.on(Event::Time, late));
        if is_shut {
            drop(end.on(Event::Shut(Half::Write), late));
        }
        assert_eq!(end.on(Event::Joined, late), [Action::WriteMarker]);
        assert_eq!((end.is_echoing(), end.has_ended_tcp()), (false, is_shut));
        assert_eq!(end.on(Event::MarkerWritten, late), [Action::Switch]);
        assert_eq!(end.phase() == Phase::Returning, is_shut);
    }
}

//= sockets-protocol.md: join.6
#[test]
fn a_program_that_stopped_reading_consumes_no_marker_from_tcp() {
    for is_early in [false, true] {
        let mut end = Migration::new(Role::Connecting);
        for event in [Event::Begin, Event::Offer, Event::GroupUp] {
            drop(end.on(event, START));
        }
        let mut events = [Event::GroupLost, Event::Shut(Half::Read)];
        if is_early {
            events.reverse();
        }
        let actions = events.map(|event| end.on(event, START)).concat();
        assert!(actions.ends_with(&[Action::Watch, Action::ShutTcp]), "{actions:?}");
        assert_eq!(end.phase(), Phase::Watching);
        assert_eq!(end.on(Event::MarkerCame, START), []);
    }
}

//= sockets-protocol.md: join.6
#[test]
fn a_marker_that_arrives_after_the_group_is_lost_is_echoed() {
    let mut end = Migration::new(Role::Connecting);
    for event in [Event::Begin, Event::Offer, Event::GroupUp] {
        drop(end.on(event, START));
    }
    assert_eq!(end.on(Event::GroupLost, START), [Action::Await, Action::LookForMarker]);
    // The switch marker has arrived, but bytes for the program precede it.
    assert_eq!(end.on(Event::MarkerEarly, START), []);
    assert_eq!(end.on(Event::Time, end.due()), [Action::LookForMarker]);
    assert_eq!(end.due(), Instant::NEVER);
    assert_eq!(end.on(Event::MarkerCame, START), [Action::WriteMarker]);
    assert!(end.is_echoing());
    assert_eq!(end.on(Event::MarkerWritten, START), [Action::Switch]);
    assert_eq!(end.phase(), Phase::Returning);
}

//= sockets-protocol.md: offer.3, offer.4
#[test]
fn the_lifetime_of_an_offer_starts_with_the_first_bytes() {
    let mut end = Migration::new(Role::Accepting);
    drop(end.on(Event::Begin, START));
    let late = START.after_ns(2 * OFFER_HOLDS_NS);
    while end.due() < Instant::NEVER {
        assert!(end.on(Event::Time, end.due()).iter().all(|action| *action == Action::SendOffer));
    }
    assert_eq!(end.phase(), Phase::Offering);
    drop(end.on(Event::Bytes, late));
    let mut all = Vec::new();
    while end.due() < Instant::NEVER {
        all.extend(end.on(Event::Time, end.due()));
    }
    assert_eq!(all.iter().filter(|action| **action == Action::SendOffer).count(), 9);
    assert_eq!(end.phase(), Phase::Ended(Reason::NoAnswer));
}
