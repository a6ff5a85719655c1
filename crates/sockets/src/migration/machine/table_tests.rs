//! Checks that the table of transitions in `docs/sockets-protocol.md` agrees with the code.

use std::collections::BTreeSet;
use std::path::Path;

use delivery::Instant;

use super::{Event, Half, Migration, Phase};
use crate::migration::offer::OFFER_HOLDS_NS;
use crate::reasons::Reason;
use crate::settings::Role;
use crate::wire::Refusal;

const START: Instant = Instant(0);

/// All events. An event with a reason or refusal appears with one value, which stands for all
/// values.
pub(super) const EVENTS: [Event; 27] = [
    Event::Begin,
    Event::Bytes,
    Event::Time,
    Event::Offer,
    Event::OtherVersion,
    Event::GroupUp,
    Event::GroupLost,
    Event::NoStream(Reason::Memory),
    Event::Join,
    Event::Joined,
    Event::Refused(Refusal::Closed),
    Event::Refused(Refusal::OnlyTcp),
    Event::Forgotten,
    Event::MarkerCame,
    Event::MarkerWritten,
    Event::MarkerWaits { has_begun: false },
    Event::MarkerWaits { has_begun: true },
    Event::MarkerEarly,
    Event::InCall,
    Event::MarkerFails(Reason::Closed),
    Event::Stay(Reason::Forked),
    Event::Shut(Half::Write),
    Event::Closed,
    Event::ProcessEnds,
    Event::Return,
    Event::LeaveEdge,
    Event::PeerLost,
];

/// The event that completes the return to TCP. Only one phase handles it.
pub(super) const ARRIVED: Event = Event::Arrived;

/// Returns an end for each row heading of the table: a phase with its marks. Marks are the words
/// that follow the name of a phase, such as `shut`.
fn ends(role: Role) -> Vec<Migration> {
    let to_switch = match role {
        Role::Connecting => &[Event::Begin, Event::Offer, Event::GroupUp, Event::Joined][..],
        Role::Accepting => &[Event::Begin, Event::Bytes, Event::Join],
    };
    let mut histories: Vec<Vec<Event>> =
        (0..=to_switch.len()).map(|length| to_switch[..length].to_vec()).collect();
    let joining = (role == Role::Connecting).then(|| to_switch[..3].to_vec());
    let switching = to_switch.to_vec();
    for history in joining.iter().chain([&switching]) {
        for more in [Event::Shut(Half::Write), Event::Closed] {
            histories.push([history.as_slice(), &[more]].concat());
        }
    }
    if let Some(history) = joining {
        let late = [history.as_slice(), &[Event::Time]].concat();
        let late_shut = [late.as_slice(), &[Event::Shut(Half::Write)]].concat();
        histories.extend([late, late_shut]);
        let lost = [history.as_slice(), &[Event::GroupLost]].concat();
        histories.push([lost.as_slice(), &[Event::Shut(Half::Write)]].concat());
        histories.push([lost.as_slice(), &[Event::MarkerCame]].concat());
        histories.push([history.as_slice(), &[Event::Forgotten]].concat());
        histories.push(lost);
    }
    histories.push([switching.as_slice(), &[Event::MarkerWaits { has_begun: false }]].concat());
    histories.push([switching.as_slice(), &[Event::MarkerWaits { has_begun: true }]].concat());
    let edge = [switching.as_slice(), &[Event::MarkerWritten]].concat();
    let home = [edge.as_slice(), &[Event::Return]].concat();
    let going = [home.as_slice(), &[Event::LeaveEdge]].concat();
    histories.push([edge.as_slice(), &[Event::PeerLost]].concat());
    histories.extend([edge, home, going, vec![Event::Closed]]);
    let reached = histories.into_iter().map(|history| {
        let mut end = Migration::new(role);
        for event in history {
            let now = if event == Event::Time { end.due } else { START };
            drop(end.on(event, now));
        }
        end
    });
    reached.collect()
}

/// Returns the name of the phase, followed by its marks (words for further conditions, such as
/// `shut`).
fn name(end: &Migration) -> String {
    let phase = match end.phase {
        Phase::Ended(reason) => return format!("Ended ({})", reason.name()),
        phase => format!("{phase:?}"),
    };
    let is_switching = end.phase == Phase::Switching;
    let is_moving = is_switching || end.phase == Phase::Joining;
    let is_waiting = end.phase == Phase::Unanswered;
    let marks = [
        (end.phase == Phase::Offering && end.has_bytes, "used"),
        (is_moving && end.writes_no_more, "shut"),
        (is_moving && end.is_closed, "closed"),
        (is_switching && end.has_begun_marker, "begun"),
        (is_switching && end.is_held && !end.has_begun_marker, "no room"),
        (is_waiting && end.is_group_lost, "lost"),
        (is_waiting && end.has_shut_writes, "shut"),
        (is_switching && end.is_echoing, "echo"),
        (is_switching && end.is_peer_lost, "peer lost"),
        (is_switching && end.is_to_return, "to return"),
    ];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| format!(", {mark}"));
    phase + &marks.collect::<String>()
}

/// Removes the words that follow the name of a phase, such as `shut`.
fn plain(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

fn event_name(event: Event) -> String {
    match event {
        Event::NoStream(reason) | Event::MarkerFails(reason) | Event::Stay(reason) => {
            let whole = format!("{event:?}");
            let kind = whole.split('(').next().unwrap_or_default();
            format!("{kind} ({})", reason.name())
        }
        Event::Refused(refusal) => format!("Refused ({refusal:?})"),
        Event::MarkerWaits { has_begun: false } => "MarkerWaits".into(),
        Event::MarkerWaits { has_begun: true } => "MarkerWaits, begun".into(),
        Event::Shut(_) => "Shut".into(),
        event => format!("{event:?}"),
    }
}

/// Returns the table rows of one role. Events that change nothing have no row.
fn rows(role: Role) -> Vec<String> {
    let (mut seen, mut known) = (BTreeSet::new(), BTreeSet::new());
    let mut rows = Vec::new();
    for end in ends(role) {
        let phase = name(&end);
        if !seen.insert(phase.clone()) {
            continue;
        }
        for event in EVENTS.into_iter().chain([ARRIVED]) {
            for is_late in [false, true] {
                let mut after = end.clone();
                let now = match event {
                    _ if is_late => START.after_ns(LATE_NS),
                    Event::Time => end.due,
                    _ => START,
                };
                let actions = after.on(event, now);
                if after == end && actions.is_empty() {
                    continue;
                }
                let actions: Vec<String> =
                    actions.iter().map(|action| format!("{action:?}")).collect();
                let (event, actions) = (event_name(event), actions.join(", "));
                let next = name(&after);
                // Omit a row that equals the row of the same phase without further words, or the
                // row that applies before the due time.
                let row = |phase: &str, is_late| {
                    (
                        plain(phase).to_owned(),
                        event.clone(),
                        is_late,
                        plain(&next).to_owned(),
                        actions.clone(),
                    )
                };
                let is_known =
                    known.contains(&row(&phase, false)) || known.contains(&row(&phase, is_late));
                if plain(&phase) == phase {
                    known.insert(row(&phase, is_late));
                }
                let next = if next == phase && actions.is_empty() { "(noted)" } else { &next };
                let row = |when: &str| format!("| {phase} | {event}{when} | {next} | {actions} |");
                if !is_known && !rows.contains(&row("")) {
                    rows.push(row(if is_late { " (late)" } else { "" }));
                }
            }
        }
    }
    rows
}

fn table() -> String {
    let of = |(role, verb)| {
        let rows = rows(role).join("\n");
        format!(
            "The side that {verb}:\n\n| phase | event | next | actions |\n|---|---|---|---|\n{rows}\n\n"
        )
    };
    [(Role::Connecting, "connected"), (Role::Accepting, "accepted")].map(of).concat()
}

//= sockets-protocol.md: offer.5, version.2, join.1, join.2, join.3, join.4, join.5, join.6
#[test]
fn the_table_in_the_documentation_matches_the_machine() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sockets-protocol.md");
    let text = std::fs::read_to_string(&path).expect("the documentation is there");
    let (before, rest) = text.split_once(BEGIN).expect("the table has a beginning");
    let (written, after) = rest.split_once(END).expect("the table has an end");
    let table = format!("\n\n{}", table());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        std::fs::write(&path, [before, BEGIN, &table, END, after].concat()).expect("written");
        return;
    }
    let of = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (written, made) = (of(written), of(&table));
    let missing: Vec<&String> = made.difference(&written).collect();
    let wrong: Vec<&String> = written.difference(&made).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/sockets-protocol.md lacks {missing:#?} and has {wrong:#?}; UPDATE_SNAPSHOTS=1 writes the table"
    );
}

/// Every phase can be reached, and every phase that is not final can be left.
#[test]
fn every_phase_is_in_the_table() {
    for role in [Role::Connecting, Role::Accepting] {
        let names: BTreeSet<String> = ends(role).iter().map(name).collect();
        for phase in
            ["OnTcp", "Offering", "Switching", "OnEdge", "Returning", "GoingHome", "PeerLost"]
        {
            assert!(names.contains(phase), "{phase} of {role:?}");
        }
        let waits = names.contains("Unanswered, lost") && names.contains("Watching");
        assert_eq!(waits, role == Role::Connecting);
        assert!(names.iter().any(|name| name.starts_with("Ended")));
    }
}

const LATE_NS: u64 = 10 * OFFER_HOLDS_NS;

const BEGIN: &str = "<!-- transitions -->";
const END: &str = "<!-- end of transitions -->";
