//! Tests of the settings of a connection: whether the connection is a queue pair, and which limits
//! it grants.

mod pair;

use std::sync::Arc;

use delivery::{Evidence, LinkEvent, LinkId};
use engine::{Closed, ConnectError, ConnectRequest, EngineConfig, Grants, Terms};
use pair::{Pair, address};
use semantics::{
    Arm, CompletionQueue, OperationError, OperationFlags, PostError, Receive, Request,
};
use wire_edge::CloseReason;

const SECOND_NS: u64 = 1_000_000_000;

/// Creates a connection over one link, with terms for each end.
fn connected_under(terms: [Terms; 2]) -> Pair {
    let mut pair = Pair::new(1);
    for (host, terms) in pair.hosts.iter_mut().zip(terms) {
        host.terms = terms;
    }
    pair.establish();
    pair
}

fn granting(grants: Grants) -> Terms {
    Terms::default().grants(grants)
}

//= protocol.md: feature.1
#[test]
fn a_connection_is_a_queue_pair_if_both_ends_request_one() {
    for wanted in [[false, false], [false, true], [true, false], [true, true]] {
        let mut pair =
            connected_under(wanted.map(|queue_pair| Terms::default().queue_pair(queue_pair)));
        for _ in 0..2 {
            for host in &pair.hosts {
                assert_eq!(host.info().queue_pair, wanted == [true, true], "{wanted:?}");
            }
            // Check again after the engine has compressed the connections. The result must be the
            // same.
            pair.run_for(100_000_000);
            pair.hosts.iter_mut().for_each(|host| host.engine.rest());
        }
        pair.fill(0, 5_000);
        pair.write(0, 0, 5_000, 1);
        pair.run_for(100_000_000);
        assert_eq!(pair.done(0).len(), 1);
        assert!(pair.same(5_000));
    }
}

#[test]
fn grants_apply_to_their_own_connection_and_survive_compression() {
    let grants = Grants::default().read_depth(Some(0)).receives(Some(3));
    let mut pair = connected_under([Terms::default(), granting(grants)]);
    let first = pair.hosts.each_ref().map(|host| host.connection);
    pair.hosts[1].terms = Terms::default();
    pair.connect();
    pair.run_for(SECOND_NS);
    let second = pair.hosts.each_ref().map(|host| host.connection);
    for (own, [asks, grants]) in [(true, first), (false, second)] {
        pair.hosts[0].connection = asks;
        pair.hosts[1].connection = grants;
        pair.run_for(SECOND_NS);
        pair.hosts.iter_mut().for_each(|host| host.engine.rest());
        let (key, address) = pair.remote(1, 0);
        let sink = pair.hosts[0].region.id;
        let read = Request::Read { sink, sink_offset: 0, key, address };
        let refused = pair.try_post(0, read, 8, 1, OperationFlags::default());
        assert_eq!(refused == Err(PostError::ReadsRefused), own, "{refused:?}");
        let mut posted = 0;
        let full = loop {
            let region = pair.hosts[1].region.id;
            let receive = Receive { region, offset: 0, length: 8, context: 0 };
            let pair::Host { engine, memory, connection, .. } = &mut pair.hosts[1];
            match engine.post_receive(&memory.access(), connection.unwrap(), receive) {
                Ok(()) => posted += 1,
                Err(full) => break full,
            }
            pair.run_for(20_000_000);
        };
        let granted = if own { 3 } else { 1024 };
        assert_eq!((posted, full), (granted, PostError::ReceiveQueueFull(granted)));
    }
}

//= protocol.md: silence.4
#[test]
fn a_connection_may_have_its_own_silence_budget() {
    let impatient =
        Grants::default().silence_ns(Some(SECOND_NS)).keep_alive_ns(Some(2 * SECOND_NS));
    let mut pair = connected_under([granting(impatient), Terms::default()]);
    pair.run_for(10 * SECOND_NS);
    for host in 0..2 {
        pair.set_up(host, 0, false);
    }
    pair.run_for(3 * SECOND_NS + SECOND_NS / 10);
    assert_eq!(
        pair.hosts[0].closed(),
        [Closed::Unreachable { peer: address(1, 0), silence_ms: 1000 }]
    );
    assert_eq!(pair.hosts[1].closed(), []);
}

//= protocol.md: silence.4
#[test]
fn the_silence_budget_of_a_live_connection_can_be_changed() {
    let queue_pair = Terms::default().queue_pair(true);
    let mut pair = connected_under([queue_pair.clone(), queue_pair]);
    let be = |pair: &mut Pair, silence_ns, not_ready_ns| {
        let pair::Host { engine, connection, .. } = &mut pair.hosts[0];
        engine.set_patience(connection.unwrap(), silence_ns, not_ready_ns)
    };
    let source = pair.source(0, 0);
    pair.post(0, Request::Send { source }, 8, 1);
    pair.run_for(10 * SECOND_NS);
    assert_eq!(pair.done(0).len(), 0, "the send ended without a receive");
    pair.receive(1, 3 << 20, 4096, 0);
    pair.run_for(SECOND_NS);
    assert_eq!(pair.done(0).len(), 1);
    assert_eq!(be(&mut pair, 2 * SECOND_NS, Some(SECOND_NS)), Ok(()));
    for host in 0..2 {
        pair.set_up(host, 0, false);
    }
    pair.write(0, 0, 8, 2);
    pair.run_for(3 * SECOND_NS);
    assert_eq!(
        pair.hosts[0].closed(),
        [Closed::Unreachable { peer: address(1, 0), silence_ms: 2000 }]
    );
    assert!(be(&mut pair, 1, None).is_err(), "it is over");
}

#[test]
fn a_wait_for_a_receive_can_be_limited_after_it_began() {
    let queue_pair = Terms::default().queue_pair(true);
    let mut pair = connected_under([queue_pair.clone(), queue_pair]);
    let source = pair.source(0, 0);
    pair.post(0, Request::Send { source }, 8, 1);
    let handle = pair.hosts[0].connection.unwrap();
    assert_eq!(pair.hosts[0].engine.outstanding(handle), 1);
    pair.run_for(10 * SECOND_NS);
    assert_eq!(
        pair.hosts[0].engine.set_patience(handle, 5 * SECOND_NS, Some(11 * SECOND_NS)),
        Ok(())
    );
    pair.run_for(SECOND_NS / 2);
    assert_eq!(pair.done(0).len(), 0);
    pair.run_for(SECOND_NS);
    assert_eq!(pair.done(0)[0].result, Err(OperationError::ReceiverNotReady));
    assert_eq!(pair.hosts[0].engine.outstanding(handle), 0);
}

#[test]
fn unusable_grants_are_refused() {
    let mut pair = Pair::new(1);
    for grants in [
        Grants::default().read_depth(Some(4097)),
        Grants::default().silence_ns(Some(0)),
        Grants::default().keep_alive_ns(Some(0)),
    ] {
        let request = ConnectRequest {
            paths: vec![(LinkId(0), address(1, 0))],
            service: 0,
            private_data: Vec::new(),
            domain: pair.hosts[0].domain,
            queues: Arc::clone(&pair.hosts[0].queue).into(),
            terms: granting(grants),
        };
        let refused = pair.hosts[0].engine.connect(pair.now, request);
        assert!(matches!(refused, Err(ConnectError::Terms(_))), "{refused:?}");
    }
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
}

//= protocol.md: silence.4
#[test]
fn an_idle_queue_pair_detects_a_killed_peer_within_a_second() {
    let queue_pair = Terms::default().queue_pair(true);
    let mut pair = connected_under([queue_pair.clone(), queue_pair]);
    assert!(EngineConfig::default().keep_alive_ns > 10 * SECOND_NS);
    pair.run_for(10 * SECOND_NS);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    let quoted = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let noted = std::rc::Rc::clone(&quoted);
    pair.filter = Box::new(move |_, flight| {
        noted.borrow_mut().push(Evidence::quoted(&flight.bytes));
        false
    });
    pair.hosts[1].paused = true;
    pair.wire.clear();
    let until = pair.now.after_ns(SECOND_NS);
    loop {
        let goes_on = pair.step(until);
        let refused = core::mem::take(&mut *quoted.borrow_mut());
        if refused.is_empty() && !goes_on {
            break;
        }
        for evidence in refused {
            let event = LinkEvent::Refused(address(1, 0), evidence);
            pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), event);
        }
    }
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0))]);
}

/// Creates a queue pair between two hosts whose completion queues have `places` places.
fn queue_pairs_with_room_for(places: [usize; 2]) -> Pair {
    let mut pair = Pair::new(1);
    for (host, places) in pair.hosts.iter_mut().zip(places) {
        host.terms.queue_pair = true;
        host.queue = Arc::new(CompletionQueue::new(places));
    }
    pair.establish();
    pair
}

//= protocol.md: overrun.1
#[test]
fn a_completion_that_finds_no_room_ends_its_queue_pair() {
    for receives in [false, true] {
        let mut pair = queue_pairs_with_room_for(if receives { [64, 4] } else { [4, 64] });
        let overrun = usize::from(receives);
        // This is a second connection between the same endpoints. Its queues have room for
        // completions.
        let first = pair.hosts.each_ref().map(|host| host.connection);
        let queues = pair
            .hosts
            .each_mut()
            .map(|host| core::mem::replace(&mut host.queue, Arc::new(CompletionQueue::new(64))));
        pair.connect();
        pair.run_for(SECOND_NS / 10);
        let second = pair.hosts.each_ref().map(|host| host.connection);
        let source = pair.source(0, 0);
        for handles in [first, second] {
            for (host, handle) in pair.hosts.iter_mut().zip(handles) {
                host.connection = handle;
            }
            for context in 0..10 {
                pair.receive(1, 0, 64, context);
            }
            pair.run_for(SECOND_NS / 10);
            for context in 0..10 {
                pair.post(0, Request::Send { source }, 8, context);
            }
            pair.run_for(SECOND_NS / 10);
        }
        assert_eq!(pair.hosts[overrun].closed(), [Closed::Overrun]);
        let refused = Closed::PeerRefused(CloseReason::ResourceLimit);
        assert_eq!(pair.hosts[1 - overrun].closed(), [refused]);
        assert!(queues[overrun].is_overrun() && !queues[1 - overrun].is_overrun());
        // The queue still contains the completions that arrived before it was full.
        let kept: Vec<_> = std::iter::from_fn(|| queues[overrun].poll()).collect();
        assert_eq!(kept.iter().map(|done| done.context).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(kept.iter().all(|done| done.result.is_ok()));
        let other: Vec<_> = std::iter::from_fn(|| queues[1 - overrun].poll()).collect();
        assert_eq!(other.len(), 10, "each is accounted for once");
        assert_eq!(
            (pair.done(0).len(), pair.done(1).len()),
            (10, 10),
            "the other queue did not get all completions"
        );
        assert!(pair.hosts.iter().all(|host| host.info().established));
    }
}

//= protocol.md: silence.4
#[test]
fn one_of_many_idle_queue_pairs_probes_the_peer_and_all_detect_that_it_was_killed() {
    let mut pair = queue_pairs_with_room_for([64, 64]);
    for _ in 1..50 {
        pair.connect();
        pair.run_for(SECOND_NS / 1000);
    }
    pair.run_for(10 * SECOND_NS);
    let before = pair.frames;
    pair.run_for(10 * SECOND_NS);
    let frames = pair.frames - before;
    assert!(frames <= 200, "{frames} frames in ten seconds");
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    // The network reports only six refusals.
    let quoted = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let noted = std::rc::Rc::clone(&quoted);
    pair.filter = Box::new(move |_, flight| {
        noted.borrow_mut().push(Evidence::quoted(&flight.bytes));
        false
    });
    pair.hosts[1].paused = true;
    pair.wire.clear();
    let mut left = 6_usize;
    let until = pair.now.after_ns(SECOND_NS);
    loop {
        let goes_on = pair.step(until);
        let refused = core::mem::take(&mut *quoted.borrow_mut());
        if refused.is_empty() && !goes_on {
            break;
        }
        for evidence in refused.into_iter().take(left) {
            left -= 1;
            let event = LinkEvent::Refused(address(1, 0), evidence);
            pair.hosts[0].engine.handle_link_event(pair.now, LinkId(0), event);
        }
    }
    assert_eq!(pair.hosts[0].closed(), [Closed::Refused(address(1, 0)); 50]);
}

#[test]
fn a_fired_completion_queue_is_handed_out_once() {
    let mut pair = Pair::new(1);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
        host.queue = Arc::new(CompletionQueue::with_events(64));
    }
    pair.establish();
    let source = pair.source(0, 0);
    for context in 0..2 {
        pair.receive(1, 0, 64, context);
    }
    pair.run_for(SECOND_NS / 10);
    for host in &pair.hosts {
        assert!(host.queue.arm(Arm::Next));
    }
    for context in 0..2 {
        pair.post(0, Request::Send { source }, 8, context);
    }
    pair.run_for(SECOND_NS / 10);
    for host in &mut pair.hosts {
        let fired = host.engine.take_fired();
        assert!(fired.is_some_and(|fired| Arc::ptr_eq(&fired, &host.queue)));
        assert!(host.engine.take_fired().is_none());
    }
}
