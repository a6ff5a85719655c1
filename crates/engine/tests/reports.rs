//! Tests of reports of the network about the addresses of peers, genuine and forged (protocol.md
//! §7.8).

mod pair;

use std::cell::RefCell;
use std::rc::Rc;

use delivery::{Evidence, LinkEvent, LinkId, LinkState};
use engine::{Closed, EngineConfig};
use pair::{LinkPlan, Pair, address};
use semantics::OperationError;

type Heads = Rc<RefCell<Vec<(u8, Evidence)>>>;

/// From this call on, records for each frame of the first host its link and the bytes that a report
/// would quote.
fn spy(pair: &mut Pair, passes: bool) -> Heads {
    let heads = Heads::default();
    let noted = Rc::clone(&heads);
    pair.filter = Box::new(move |_, flight| {
        if flight.to == 1 {
            noted.borrow_mut().push((flight.link, Evidence::quoted(&flight.bytes)));
        }
        passes || flight.to == 0
    });
    heads
}

/// Ends the second host. After that, nothing listens at its addresses.
fn kill(pair: &mut Pair) -> Heads {
    let heads = spy(pair, false);
    pair.hosts[1].paused = true;
    pair.wire.clear();
    heads
}

fn refuse(pair: &mut Pair, link: u8, evidence: Evidence) {
    let event = LinkEvent::Refused(address(1, link), evidence);
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(link), event);
}

/// Advances time by `ns` nanoseconds. During this time, the network reports a refusal for every
/// frame.
fn refuse_for(pair: &mut Pair, heads: &Heads, ns: u64) {
    let until = pair.now.after_ns(ns);
    loop {
        let goes_on = pair.step(until);
        let refused = core::mem::take(&mut *heads.borrow_mut());
        let was_quiet = refused.is_empty();
        for (link, evidence) in refused {
            refuse(pair, link, evidence);
        }
        if was_quiet && !goes_on {
            return;
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;

//= protocol.md: report.4
#[test]
fn a_killed_peer_is_detected_within_a_second() {
    for links in 1..4 {
        for (writes, keep_alive_ns) in [(3, 30 * SECOND_NS), (0, 2 * SECOND_NS)] {
            let config = EngineConfig::default().keep_alive_ns(keep_alive_ns);
            let plans = vec![LinkPlan::default(); links];
            let mut pair = Pair::connected_with(&plans, config);
            // Wait until shortly before the keep-alive timer of the idle connection expires. No
            // other timer expires at that time.
            pair.run_for(2 * SECOND_NS - 100_000_000);
            for context in 0..writes {
                pair.write(0, 0, 1 << 20, context);
            }
            let heads = kill(&mut pair);
            refuse_for(&mut pair, &heads, SECOND_NS);
            assert_eq!(pair.hosts[0].closed().len(), 1, "{links} links, {writes} writes");
            assert!(matches!(pair.hosts[0].closed()[..], [Closed::Refused(_)]));
            let results: Vec<_> = pair.done(0).iter().map(|done| done.result).collect();
            assert_eq!(results, vec![Err(OperationError::Unreachable); writes as usize]);
            assert_eq!(pair.hosts[0].engine.connection_count(), 0);
        }
    }
}

/// Creates idle connections of the first host to the second, in compressed form.
fn resting(connections: usize) -> Pair {
    let mut pair = Pair::connected(1);
    for _ in 1..connections {
        pair.connect();
    }
    pair.run_for(2 * SECOND_NS);
    assert!(pair.hosts.iter().all(|host| host.engine.is_idle()));
    assert_eq!(pair.hosts[0].established(), connections);
    pair
}

//= protocol.md: report.4
#[test]
fn a_killed_shared_memory_peer_is_detected_at_once_even_on_an_idle_connection() {
    pair::share_memory();
    let mut pair = resting(3);
    let heads = kill(&mut pair);
    // The driver first reports that the peer has ended, and then that nothing listens at the
    // address.
    refuse(&mut pair, 0, Evidence::Local);
    let until = pair.now.after_ns(SECOND_NS);
    loop {
        let goes_on = pair.step(until);
        let refused = core::mem::take(&mut *heads.borrow_mut());
        if refused.is_empty() && !goes_on {
            break;
        }
        for _ in refused {
            refuse(&mut pair, 0, Evidence::Local);
        }
    }
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0)); 3]);
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
}

//= protocol.md: report.6
#[test]
fn a_failure_that_one_connection_finds_applies_to_all_connections_of_the_address() {
    let mut pair = resting(3);
    let heads = kill(&mut pair);
    // The network reports only a few refusals. All of them concern frames of one connection.
    pair.write(0, 0, 8, 1);
    refuse_for(&mut pair, &heads, SECOND_NS);
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0)); 3]);
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
}

//= protocol.md: report.6
#[test]
fn a_failure_that_one_connection_finds_does_not_end_a_live_one() {
    let mut pair = resting(1);
    let refused = pair.hosts[0].connection;
    let lives = pair.connect();
    pair.run_for(2 * SECOND_NS);
    // Drop the frames of the first connection to the peer, and report that nothing listens at the
    // address of the peer.
    let heads = Heads::default();
    let noted = Rc::clone(&heads);
    let first = pair.hosts[0].engine.info(refused.unwrap()).map(|info| info.paths[0].counters);
    let mut names: Option<[u8; 4]> = None;
    assert!(first.is_some());
    pair.filter = Box::new(move |_, flight| {
        let name: [u8; 4] = flight.bytes[4..8].try_into().unwrap();
        let is_first = flight.to == 1 && *names.get_or_insert(name) == name;
        if is_first {
            noted.borrow_mut().push((0, Evidence::quoted(&flight.bytes)));
        }
        !is_first
    });
    pair.hosts[0].connection = refused;
    pair.write(0, 0, 8, 1);
    pair.turn(0);
    pair.hosts[0].connection = Some(lives);
    for context in 0..200 {
        pair.write(0, 0, 8, 1000 + context);
        refuse_for(&mut pair, &heads, 5_000_000);
    }
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0))]);
    assert_eq!(pair.done(0).iter().filter(|done| done.result.is_ok()).count(), 200);
    assert_eq!(pair.hosts[0].engine.connection_count(), 1);
}

//= protocol.md: report.4
#[test]
fn a_link_with_a_refused_address_fails_and_recovers() {
    let mut pair = Pair::connected(2);
    let heads = Heads::default();
    let noted = Rc::clone(&heads);
    pair.filter = Box::new(move |_, flight| {
        if (flight.to, flight.link) == (1, 1) {
            noted.borrow_mut().push((1, Evidence::quoted(&flight.bytes)));
        }
        flight.link == 0
    });
    pair.fill(0, 1 << 20);
    pair.write(0, 0, 1 << 20, 1);
    refuse_for(&mut pair, &heads, SECOND_NS);
    assert_eq!(pair.done(0).len(), 1);
    assert!(pair.same(1 << 20));
    let states =
        |pair: &Pair| pair.hosts[0].info().paths.iter().map(|p| p.state).collect::<Vec<_>>();
    assert_eq!(states(&pair), [LinkState::Up, LinkState::Probing]);
    pair.filter = Box::new(|_, _| true);
    pair.run_for(2 * SECOND_NS);
    assert_eq!(states(&pair), [LinkState::Up; 2]);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
}

//= protocol.md: report.4
#[test]
fn no_report_ends_a_connection_whose_peer_answers() {
    for links in 1..3 {
        let mut pair = Pair::connected(links);
        let heads = spy(&mut pair, true);
        pair.fill(0, 1 << 20);
        for round in 0..20 {
            pair.write(0, 0, if round % 4 == 0 { 8 } else { 1 << 20 }, round);
            // Even an attacker that sees all frames cannot end the connection by forged reports.
            refuse_for(&mut pair, &heads, 10_000_000);
            for count in 0..100 {
                let evidence = [Evidence::Hearsay, Evidence::Quoted([count; 16])];
                refuse(&mut pair, 0, evidence[usize::from(count % 2)]);
            }
            pair.turn(0);
        }
        pair.run_for(SECOND_NS);
        assert_eq!(pair.done(0).len(), 20);
        assert!(pair.same(1 << 20));
        assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
        assert!(pair.hosts[0].info().paths.iter().all(|path| path.state == LinkState::Up));
    }
}

//= protocol.md: report.1
#[test]
fn forged_reports_end_no_connection_with_a_briefly_silent_peer() {
    let mut pair = Pair::connected(1);
    pair.write(0, 0, 1 << 20, 1);
    pair.hosts[1].paused = true;
    for round in 0..3000_u64 {
        pair.run_for(1_000_000);
        refuse(&mut pair, 0, Evidence::Hearsay);
        let mut forged = [0; 16];
        forged[..8].copy_from_slice(&round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        forged[0] = 3;
        refuse(&mut pair, 0, Evidence::Quoted(forged));
    }
    pair.hosts[1].paused = false;
    pair.run_for(2 * SECOND_NS);
    assert_eq!(pair.done(0).len(), 1);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    assert!(pair.hosts[0].engine.counters().reports_ignored >= 3000);
}

//= protocol.md: report.2, report.5
#[test]
fn an_unproven_report_makes_a_quiet_connection_probe_its_peer() {
    let config = EngineConfig::default().rest_ns(u64::MAX);
    let mut pair = Pair::connected_with(&[LinkPlan::default()], config);
    pair.run_for(SECOND_NS);
    let before = pair.channels[0][0].frames;
    for _ in 0..1000 {
        refuse(&mut pair, 0, Evidence::Hearsay);
        pair.run_for(1_000);
    }
    let asked = pair.channels[0][0].frames - before;
    assert!((1..=12).contains(&asked), "{asked} frames");
    assert!(pair.hosts[0].closed().is_empty());
}

//= protocol.md: report.1
#[test]
fn a_report_that_quotes_a_foreign_frame_affects_no_connection() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000);
    let engine = &mut pair.hosts[0].engine;
    assert!(!engine.has_work());
    for event in [
        LinkEvent::Refused(address(1, 0), Evidence::Quoted([3; 16])),
        LinkEvent::TooBig(address(1, 0), 300, Evidence::Quoted([3; 16])),
        LinkEvent::Refused(address(1, 7), Evidence::Hearsay),
        LinkEvent::Descriptors,
    ] {
        engine.handle_link_event(pair.now, LinkId(0), event);
        assert!(!engine.has_work(), "{event:?}");
    }
    assert_eq!(engine.counters().reports_ignored, 2);
}

//= protocol.md: set-up.17
#[test]
fn only_a_refusal_of_the_request_itself_ends_a_connection_attempt() {
    let mut pair = Pair::new(1);
    pair.hosts[1].engine.listen(0);
    pair.connect();
    for evidence in [Evidence::Hearsay, Evidence::Quoted([0; 16]), Evidence::Quoted([3; 16])] {
        refuse(&mut pair, 0, evidence);
        pair.turn(0);
    }
    pair.run_for(SECOND_NS);
    assert_eq!(pair.hosts[0].established(), 1);
    pair.restart(0, 9);
    pair.connect();
    let heads = kill(&mut pair);
    refuse_for(&mut pair, &heads, 1_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0))]);
}

//= protocol.md: report.3
#[test]
fn a_forged_frame_size_lasts_only_until_the_next_probe() {
    let plan =
        LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1472, rate: None, offloads: false };
    let mut pair = Pair::connected_with(&[plan], EngineConfig::default());
    let size = |pair: &Pair| pair.hosts[0].info().paths[0].frame_bytes;
    let transfer = |pair: &mut Pair| {
        pair.write(0, 0, 1 << 20, 1);
        pair.run_for(100_000_000);
        assert_eq!(pair.done(0).len(), 1);
    };
    let too_big = |pair: &mut Pair, evidence| {
        let event = LinkEvent::TooBig(address(1, 0), 256, evidence);
        pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), event);
    };
    transfer(&mut pair);
    assert_eq!(size(&pair), 9000);
    too_big(&mut pair, Evidence::Quoted([3; 16]));
    assert_eq!(size(&pair), 9000, "a report that quotes no sent frame had an effect");
    let heads = spy(&mut pair, true);
    for _ in 0..30 {
        // Begin a write, so that the connection is not compressed when the report arrives.
        pair.write(0, 0, 8, 1);
        pair.turn(0);
        too_big(&mut pair, Evidence::Hearsay);
        assert_eq!(size(&pair), 1472, "a report without proof lowered the size below 1472 bytes");
        pair.run_for(100_000_000);
        pair.done(0);
        transfer(&mut pair);
        assert_eq!(size(&pair), 9000);
    }
    pair.write(0, 0, 8, 1);
    heads.borrow_mut().clear();
    pair.turn(0);
    let quoted = heads.borrow_mut()[0].1;
    pair.run_for(100_000);
    assert_eq!(pair.done(0).len(), 1);
    too_big(&mut pair, quoted);
    transfer(&mut pair);
    assert_eq!(size(&pair), 256, "a report that quotes a sent frame had no effect");
}
