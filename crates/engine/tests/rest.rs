//! Tests that compressed connections take little memory, and that compression loses no state.

mod pair;

use delivery::{LinkEvent, LinkId};
use engine::EngineConfig;
use pair::{LinkPlan, Pair, caps};
use semantics::Request;

const NEVER: u64 = u64::MAX;

/// Creates a connection over `links` links. The engine compresses the connection after `rest_ns`
/// idle nanoseconds.
fn resting_after(rest_ns: u64, links: u8) -> Pair {
    let config = EngineConfig::default().rest_ns(rest_ns);
    Pair::connected_with(&vec![LinkPlan::default(); usize::from(links)], config)
}

/// Returns the state of the connection, as both ends report it.
fn state_of(pair: &Pair) -> String {
    format!("{:?} {:?}", pair.hosts[0].info(), pair.hosts[1].info())
}

/// Runs writes, reads and messages with pauses and lost frames. Returns the reports of both ends
/// after each pause.
fn history(rest_ns: u64, links: u8) -> Vec<String> {
    let mut pair = resting_after(rest_ns, links);
    let mut frames = 0_u32;
    pair.filter = Box::new(move |_, _| {
        frames += 1;
        !frames.is_multiple_of(17)
    });
    pair.fill(0, 1 << 20);
    let mut history = Vec::new();
    for round in 0..12_u64 {
        let writer = round as usize % 2;
        pair.write(writer, 0, [8, 3_000, 200_000][round as usize % 3], round);
        if round % 4 == 1 {
            let (key, address) = pair.remote(1 - writer, 0);
            let sink = pair.hosts[writer].region.id;
            let request = Request::Read { sink, sink_offset: 1 << 21, key, address };
            pair.post(writer, request, 5_000, 100 + round);
        }
        if round % 3 == 2 {
            pair.receive(1 - writer, 3 << 20, 4_000, 200 + round);
            pair.run_for(1_000_000);
            let source = pair.source(writer, 0);
            pair.post(writer, Request::Send { source }, 2_000, 300 + round);
        }
        pair.run_for(2_000_000_000);
        history.push(state_of(&pair));
        history.push(format!("{:?}", (pair.done(0), pair.done(1))));
    }
    history
}

#[test]
fn a_connection_continues_unchanged_after_being_compressed() {
    for links in [1, 3] {
        let awake = history(NEVER, links);
        let resting = history(1_000, links);
        for (round, (awake, resting)) in awake.iter().zip(&resting).enumerate() {
            assert_eq!(awake, resting, "{links} links, round {round}");
        }
        assert_eq!(awake.len(), resting.len());
    }
}

#[test]
fn inspecting_a_connection_does_not_decompress_it() {
    let mut pair = resting_after(1_000, 1);
    pair.run_for(1_000_000_000);
    let timers = [0, 1].map(|host: usize| pair.hosts[host].engine.poll_timeout());
    let before = state_of(&pair);
    for host in &mut pair.hosts {
        assert!(host.engine.is_idle());
        assert!(!host.engine.is_closing());
        host.engine.hasten_acknowledgements();
        host.engine.rest();
        assert!(!host.engine.has_work());
    }
    assert_eq!(state_of(&pair), before);
    assert_eq!([0, 1].map(|host: usize| pair.hosts[host].engine.poll_timeout()), timers);
}

#[test]
fn a_compressed_connection_handles_link_events() {
    let mut pair = resting_after(1_000, 2);
    pair.run_for(1_000_000_000);
    pair.set_up(0, 1, false);
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(1), LinkEvent::Down);
    pair.run_for(1_000_000_000);
    let is_given_up =
        |host: usize| pair.hosts[host].info().paths.iter().any(|path| path.counters.failures > 0);
    assert!(is_given_up(0) && is_given_up(1));
    pair.set_up(0, 1, true);
    let event = LinkEvent::Changed(caps(0, 1, &LinkPlan::default()));
    pair.hosts[0].engine.handle_link_event(pair.now, LinkId(1), event);
    pair.write(0, 0, 1_000_000, 1);
    pair.run_for(5_000_000_000);
    assert_eq!(pair.done(0).len(), 1);
    assert!(pair.hosts[0].engine.is_idle());
}

#[test]
fn a_compressed_connection_closes_normally() {
    let mut pair = resting_after(1_000, 1);
    pair.run_for(1_000_000_000);
    let handle = pair.hosts[0].connection.expect("it is connected");
    pair.hosts[0].engine.close(pair.now, handle, b"bye").expect("it is there");
    pair.run_for(2_000_000_000);
    for host in &pair.hosts {
        assert_eq!(host.closed().len(), 1);
        assert_eq!(host.engine.connection_count(), 0);
    }
}

#[test]
fn receives_are_posted_to_a_compressed_connection() {
    let mut pair = resting_after(1_000, 1);
    pair.run_for(1_000_000_000);
    for context in 0..3 {
        pair.receive(1, 4_096 * context, 4_096, context);
        pair.run_for(1_000_000_000);
        assert!(pair.hosts[1].engine.is_idle());
    }
    for context in 0..3 {
        let source = pair.source(0, 0);
        pair.post(0, Request::Send { source }, 4_000, context);
        pair.run_for(1_000_000_000);
    }
    assert_eq!((pair.done(0).len(), pair.done(1).len()), (3, 3));
}
