//! Tests of the changes that idle connections detect (protocol.md §4.3, §7.7).

mod pair;

use delivery::LinkState;
use engine::{Closed, EngineConfig};
use mem::{Buffer, Rights};
use pair::{Host, Pair};
use semantics::{AccessFault, OperationError, Request};
use wire_edge::{CloseReason, Control, Header, LinkStatus, control_messages, decode};

/// Pause between the questions of an idle connection, in nanoseconds.
const KEEP_ALIVE_NS: u64 = 30_000_000_000;
/// Longest silence of the peer after a question, in nanoseconds. A longer silence ends the
/// connection.
const SILENCE_NS: u64 = 5_000_000_000;

/// Returns the number of frames on the wire in the next `ns` nanoseconds.
fn frames_in(pair: &mut Pair, ns: u64) -> u64 {
    let before = pair.frames;
    pair.run_for(ns);
    pair.frames - before
}

fn set_all(pair: &mut Pair, link: usize, up: bool) {
    for host in 0..2 {
        pair.set_up(host, link, up);
    }
}

fn is_gone(closed: &[Closed]) -> bool {
    matches!(closed, [Closed::Unreachable { silence_ms: 5000, .. }])
}

//= protocol.md: silence.3
#[test]
fn an_idle_connection_stays_alive_with_few_frames() {
    for links in 1..4_u8 {
        let mut pair = Pair::connected(links);
        pair.run_for(10_000_000_000);
        // Each end asks at most once in 30 s on each link, and each question causes one answer.
        let most = 20 * 2 * u64::from(links) * 2;
        let frames = frames_in(&mut pair, 20 * KEEP_ALIVE_NS);
        assert!((20..=most).contains(&frames), "{frames} frames on {links} links");
        assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
        pair.assert_idle();
    }
}

#[test]
fn without_keep_alive_an_idle_connection_sends_nothing() {
    let config = EngineConfig::default().keep_alive_ns(u64::MAX);
    let mut pair = Pair::connected_with(&[pair::LinkPlan::default()], config);
    pair.run_for(1_000_000_000);
    set_all(&mut pair, 0, false);
    assert_eq!(frames_in(&mut pair, 100 * KEEP_ALIVE_NS), 0);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
}

#[test]
fn an_idle_connection_survives_a_short_cut_of_its_only_link_and_ends_after_a_long_one() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    set_all(&mut pair, 0, false);
    pair.run_for(KEEP_ALIVE_NS - 2_000_000_000);
    set_all(&mut pair, 0, true);
    pair.run_for(10 * KEEP_ALIVE_NS);
    assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    set_all(&mut pair, 0, false);
    pair.run_for(KEEP_ALIVE_NS + SILENCE_NS + 1_000_000_000);
    assert!(pair.hosts.iter().all(|host| is_gone(&host.closed())));
    assert!(pair.hosts.iter().all(|host| host.engine.connection_count() == 0));
}

//= protocol.md: silence.5
/// A client without a progress thread reads and then computes. The client sends its pending
/// acknowledgements at its next poll.
#[test]
fn a_client_that_computes_after_a_read_keeps_its_connection_as_an_idle_client_does() {
    for (computes_ns, survives) in [
        (SILENCE_NS + 1_000_000_000, true),
        (KEEP_ALIVE_NS + SILENCE_NS - 1_000_000_000, true),
        (KEEP_ALIVE_NS + SILENCE_NS + 1_000_000_000, false),
    ] {
        let mut pair = Pair::connected(1);
        pair.run_for(1_000_000_000);
        read_by(&mut pair, 0, 1);
        while pair.done(0).is_empty() {
            let until = pair.now.after_ns(1_000_000);
            pair.step(until);
        }
        pair.hosts[0].paused = true;
        pair.run_for(computes_ns);
        pair.hosts[0].paused = false;
        read_by(&mut pair, 0, 2);
        pair.run_for(SILENCE_NS);
        let ended = pair.done(0)[0].result;
        let lost = Err(OperationError::PeerRestarted);
        assert_eq!(ended, if survives { Ok(()) } else { lost }, "after {computes_ns} ns");
    }
}

//= protocol.md: silence.2
/// The silence budget applies to the peer while an application of this end waits.
#[test]
fn an_operation_does_not_wait_for_a_computing_peer() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    pair.hosts[0].paused = true;
    read_by(&mut pair, 1, 1);
    pair.run_for(SILENCE_NS + 100_000_000);
    assert_eq!(pair.done(1)[0].result, Err(OperationError::Unreachable));
    assert!(is_gone(&pair.hosts[1].closed()));
}

fn read_by(pair: &mut Pair, host: usize, context: u64) {
    let (key, address) = pair.remote(1 - host, 0);
    let sink = pair.hosts[host].region.id;
    pair.post(host, Request::Read { sink, sink_offset: 0, key, address }, 8, context);
}

#[test]
fn an_idle_connection_detects_a_restarted_peer() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    pair.restart(1, 77);
    pair.run_for(KEEP_ALIVE_NS + 1_000_000_000);
    assert_eq!(pair.hosts[0].closed(), [Closed::PeerRestarted]);
}

//= protocol.md: compare.1
#[test]
fn an_idle_connection_detects_a_dead_link_and_its_recovery() {
    for dead in 0..2 {
        for direction in 0..3 {
            let mut pair = Pair::connected(2);
            pair.run_for(10_000_000_000);
            for host in (0..2).filter(|&host| direction != 1 - host) {
                pair.set_up(host, dead, false);
            }
            let is = |pair: &Pair, up: bool| {
                let ends = pair.hosts.iter().map(Host::info);
                ends.flat_map(|info| info.paths).all(|path| {
                    let works = path.state == LinkState::Up;
                    works == (up || usize::from(path.link.0) != dead)
                })
            };
            pair.run_until(KEEP_ALIVE_NS + SILENCE_NS, "it is found out", |pair| is(pair, false));
            pair.run_for(1_000_000_000);
            set_all(&mut pair, dead, true);
            pair.run_until(SILENCE_NS, "the link is back", |pair| is(pair, true));
            assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
        }
    }
}

//= protocol.md: compare.2, compare.3
#[test]
fn a_link_known_to_one_end_only_is_removed() {
    for host in 0..2 {
        let mut pair = Pair::connected(3);
        pair.run_for(10_000_000_000);
        // All reports of removed links are lost, so only the comparison of links shows that a link
        // was removed.
        pair.filter = Box::new(|_, flight| {
            let Ok(frame) = decode(&flight.bytes) else { return true };
            let mut messages = control_messages(frame.payload)
                .take_while(|_| matches!(frame.header, Header::Control));
            messages
                .all(|message| !matches!(message, Ok(Control::LinkStatus(_, LinkStatus::Removed))))
        });
        let handle = pair.hosts[host].connection.unwrap();
        pair.hosts[host].engine.remove_path(handle, 2).unwrap();
        pair.run_until(3 * KEEP_ALIVE_NS, "both ends have the same links", |pair| {
            let left = |host: usize| {
                let paths = pair.hosts[host].info().paths;
                paths.iter().map(|path| path.index).collect::<Vec<_>>()
            };
            left(0) == left(1)
        });
        assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    }
}

//= protocol.md: remove.4
#[test]
fn both_ends_may_remove_different_links_while_all_frames_are_lost() {
    for outage_ns in [300_000_000, 700_000_000, 1_400_000_000, 3_000_000_000] {
        for links in 2..5_u8 {
            let mut pair = Pair::connected(links);
            pair.run_for(10_000_000_000);
            let handles = pair.hosts.each_ref().map(|host| host.connection.unwrap());
            for link in 0..links {
                set_all(&mut pair, usize::from(link), false);
            }
            for (link, (host, handle)) in (0..).zip(pair.hosts.iter_mut().zip(handles)) {
                host.engine.remove_path(handle, link).unwrap();
            }
            pair.run_for(outage_ns);
            for link in 0..links {
                set_all(&mut pair, usize::from(link), true);
            }
            pair.fill(0, 100_000);
            pair.write(0, 0, 100_000, 1);
            pair.run_for(2 * KEEP_ALIVE_NS);
            assert_eq!(pair.done(0).iter().map(|done| done.result).collect::<Vec<_>>(), [Ok(())]);
            assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
            let ends = pair.hosts.each_ref().map(|host| {
                let mut indices: Vec<u8> = host.info().paths.iter().map(|p| p.index).collect();
                indices.sort_unstable();
                indices
            });
            assert_eq!(ends[0], ends[1], "{links} links, {outage_ns} ns");
            assert!(ends[0].len() >= usize::from(links).saturating_sub(2).max(1));
            let paths = pair.hosts.iter().flat_map(|host| host.info().paths);
            assert!(paths.into_iter().all(|path| path.state == LinkState::Up));
        }
    }
}

//= protocol.md: answer.8
#[test]
fn memory_may_be_deregistered_while_only_the_acknowledgement_of_a_read_is_missing() {
    for length in [8, 200, 1000, 50_000] {
        let mut pair = Pair::connected(1);
        pair.run_for(1_000_000_000);
        read(&mut pair, length);
        pair.run_until(1_000_000_000, "the read is done", |pair| {
            // The peer has sent its acknowledgements, and all of them were lost.
            pair.hosts[0].info().outstanding == 0
        });
        pair.wire.clear();
        let region = pair.hosts[1].region.id;
        pair.hosts[1].memory.deregister(region).unwrap();
        pair.run_for(2_000_000_000);
        let results: Vec<_> = pair.done(0).iter().map(|done| done.result).collect();
        assert_eq!(results, [Ok(())]);
        assert!(pair.hosts.iter().all(|host| host.closed().is_empty()), "{length}");
        pair.assert_idle();
    }
}

//= protocol.md: answer.9
#[test]
fn deregistering_memory_before_a_read_is_answered_ends_the_connection() {
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    pair.filter = Box::new(|_, flight| {
        let frame = decode(&flight.bytes);
        !frame.is_ok_and(|frame| matches!(frame.header, Header::ReadResponse { .. }))
    });
    read(&mut pair, 1000);
    pair.run_for(100_000);
    let region = pair.hosts[1].region.id;
    pair.hosts[1].memory.deregister(region).unwrap();
    pair.run_for(2_000_000_000);
    let results: Vec<_> = pair.done(0).iter().map(|done| done.result).collect();
    assert!(results == [Err(OperationError::RemoteAccess(AccessFault::Key))], "{results:?}");
    for host in &pair.hosts {
        assert_eq!(host.closed(), [Closed::PeerRefused(CloseReason::LocalMemoryGone)]);
    }
    pair.assert_idle();
}

//= protocol.md: answer.8, queue-pair.3
#[test]
fn a_queue_pair_read_with_a_lost_source_fails_after_all_earlier_work_completes() {
    let (pair, results) = reads_of_memory_that_goes(1000);
    let gone = OperationError::RemoteAccess(AccessFault::Key);
    assert_eq!(results, [Ok(()), Err(gone), Err(OperationError::Flushed)]);
    assert_eq!(pair.hosts[1].closed(), [Closed::ByPeer]);
}

//= protocol.md: answer.9, fault.3
#[test]
fn deregistering_the_source_of_a_queue_pair_read_ends_it_after_earlier_answers() {
    let (pair, results) = reads_of_memory_that_goes(1 << 20);
    let gone = OperationError::RemoteAccess(AccessFault::Key);
    assert_eq!(results, [Ok(()), Err(gone), Err(OperationError::EndedByPeer)]);
    assert_eq!(pair.hosts[0].closed(), [Closed::PeerRefused(CloseReason::UnknownKey)]);
    assert_eq!(pair.hosts[1].closed(), [Closed::PeerMisbehaved(CloseReason::UnknownKey)]);
}

/// Returns the results of two reads and a write on a queue pair. The second read has `length`
/// bytes. The memory of the second read is deregistered while this read is outstanding. The answer
/// to the first read arrives late, and the answer to the second read never arrives.
fn reads_of_memory_that_goes(length: u32) -> (Pair, Vec<Result<(), OperationError>>) {
    let mut pair = Pair::new(1);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
    }
    pair.establish();
    let Host { memory, domain, .. } = &pair.hosts[1];
    let staying = memory.register(*domain, Buffer::new(4096), Rights::ALL).unwrap();
    let mut left = 8;
    pair.filter =
        Box::new(move |_, flight| match decode(&flight.bytes).map(|frame| frame.header) {
            Ok(Header::ReadResponse { operation, .. }) if operation.0 == 0 => {
                left -= i32::from(left > 0);
                left == 0
            }
            Ok(Header::ReadResponse { .. }) => false,
            _ => true,
        });
    let sink = pair.hosts[0].region.id;
    let (key, address) = (staying.key, staying.start);
    pair.post(0, Request::Read { sink, sink_offset: 0, key, address }, 1000, 0);
    read(&mut pair, length);
    pair.write(0, 0, 8, 2);
    pair.run_for(100_000);
    let region = pair.hosts[1].region.id;
    pair.hosts[1].memory.deregister(region).unwrap();
    pair.run_for(2_000_000_000);
    let results = pair.done(0).iter().map(|done| done.result).collect();
    pair.assert_idle();
    (pair, results)
}

fn read(pair: &mut Pair, length: u32) {
    let (key, address) = pair.remote(1, 0);
    let sink = pair.hosts[0].region.id;
    pair.post(0, Request::Read { sink, sink_offset: 0, key, address }, length, 1);
    pair.turn(0);
}
