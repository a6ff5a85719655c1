//! Tests of flow control, of operations whose memory is gone or not accessible, and of drivers that
//! accept only a part of a batch.

mod pair;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use delivery::Instant;
use engine::{Closed, Emitted, EngineConfig};
use mem::{Buffer, Region, Rights};
use pair::{LinkPlan, Pair};
use semantics::{
    AccessFault, CompletionKind, OperationError, OperationFlags, Order, PostError, Request, Source,
};
use wire_edge::{CloseReason, Header, decode};

fn results(pair: &Pair, host: usize) -> Vec<(u64, Result<(), OperationError>)> {
    pair.done(host).iter().map(|done| (done.context, done.result)).collect()
}

//= protocol.md: credit.2, credit.4, news.1
#[test]
fn a_waiting_send_gets_its_receive_even_if_the_notification_is_lost() {
    for lost in [0, 1, 5] {
        let mut pair = Pair::connected(1);
        let source = pair.source(0, 0);
        pair.post(0, Request::Send { source }, 100, 1);
        pair.write(0, 0, 100, 2);
        pair.run_for(3_000_000_000);
        assert!(pair.done(0).is_empty(), "both wait");
        assert!(pair.frames < 400, "{} frames while waiting", pair.frames);
        let mut left = lost;
        pair.filter = Box::new(move |_, flight| {
            let hit = flight.to == 0 && left > 0;
            left -= i32::from(hit);
            !hit
        });
        pair.receive(1, 1000, 200, 7);
        pair.run_for(1_000_000_000);
        assert_eq!(results(&pair, 0), [(1, Ok(())), (2, Ok(()))]);
        assert_eq!(results(&pair, 1), [(7, Ok(()))]);
        pair.assert_idle();
    }
}

//= protocol.md: violation.5
#[test]
fn a_receive_that_is_too_small_ends_the_connection_and_completes_everything() {
    let mut pair = Pair::connected(1);
    pair.receive(1, 0, 50, 7);
    let source = pair.source(0, 0);
    pair.post(0, Request::Send { source }, 100, 1);
    pair.run_for(3_000_000_000);
    assert_eq!(pair.hosts[1].closed(), [Closed::PeerMisbehaved(CloseReason::MessageTooLong)]);
    assert_eq!(pair.hosts[0].closed(), [Closed::PeerRefused(CloseReason::MessageTooLong)]);
    assert_eq!(pair.done(0).len(), 1);
    assert_eq!(pair.done(1).len(), 1);
    pair.assert_idle();
}

//= protocol.md: answer.10
#[test]
fn outstanding_reads_never_exceed_the_peers_read_depth() {
    let config = EngineConfig::default().read_depth(3);
    let mut pair = Pair::connected_with(&[LinkPlan::default(); 2], config);
    let asked = Rc::new(Cell::new((0_i64, 0_i64)));
    let count = Rc::clone(&asked);
    pair.filter = Box::new(move |_, flight| {
        let (mut now, mut most) = count.get();
        if let Ok(frame) = decode(&flight.bytes) {
            match frame.header {
                Header::ReadRequest { .. } | Header::Atomic { .. } => now += 1,
                Header::AtomicResponse { .. } | Header::ReadResponse { offset: 0, .. } => now -= 1,
                _ => {}
            }
        }
        most = most.max(now);
        count.set((now, most));
        true
    });
    pair.fill(1, 100_000);
    for context in 0..40 {
        let sink = pair.hosts[0].region.id;
        let (key, address) = pair.remote(1, 0);
        if context % 3 == 0 {
            let (key, address) = pair.remote(1, 2_000_000);
            pair.post(0, Request::FetchAdd { key, address, operand: 1, sink: None }, 8, context);
        } else {
            let request = Request::Read { sink, sink_offset: 0, key, address };
            pair.post(0, request, 50_000, context);
        }
    }
    pair.run_for(1_000_000_000);
    assert_eq!(pair.done(0).len(), 40);
    assert!(asked.get().1 <= 3, "{} at a time", asked.get().1);
    assert!(pair.same(50_000));
    let none = EngineConfig::default().read_depth(0);
    let mut pair = Pair::connected_with(&[LinkPlan::default()], none);
    let (key, address) = pair.remote(1, 0);
    let add = Request::FetchAdd { key, address, operand: 1, sink: None };
    let refused = pair.try_post(0, add, 8, 1, OperationFlags::default());
    assert!(matches!(refused, Err(PostError::ReadsRefused)), "{refused:?}");
}

//= protocol.md: pool.2
#[test]
fn fences_fit_an_order_pool_of_any_size() {
    for (pool, blocks) in [(0, 1), (3000, 2), (1 << 18, 4), (1 << 18, 1024)] {
        let mut config = EngineConfig::default().order_pool_bytes(pool);
        config.pools.order_blocks = blocks;
        let gigabit = LinkPlan { rate: Some(1_000_000_000), ..LinkPlan::default() };
        let slow = LinkPlan { rate: Some(100_000_000), ..LinkPlan::default() };
        let mut pair = Pair::connected_with(&[gigabit, slow], config);
        pair.fill(0, 1_000_000);
        pair.filter = Box::new(|frame, _| frame % 17 != 5);
        for context in 0..40_u64 {
            let (key, address) = pair.remote(1, context * 20_000);
            let source = pair.source(0, context * 20_000);
            let flags = OperationFlags {
                signalled: true,
                fence_before: context % 4 == 1,
                fence_after: context % 7 == 2,
                order: if context % 3 == 0 { Order::Strict } else { Order::Relaxed },
                ..OperationFlags::default()
            };
            let write = Request::Write { source, key, address };
            pair.try_post(0, write, 20_000, context, flags).unwrap();
        }
        let mut done = Vec::new();
        pair.run_until(20_000_000_000, "fenced writes", |pair| {
            done.extend(results(pair, 0));
            done.len() == 40
        });
        assert_eq!(done, (0..40).map(|context| (context, Ok(()))).collect::<Vec<_>>());
        assert!(pair.same(800_000));
        assert!(pair.hosts[0].closed().is_empty());
        pair.run_for(1_000_000_000);
        pair.assert_idle();
    }
}

//= protocol.md: answer.2, violation.3
#[test]
fn denied_access_ends_the_connection_and_changes_no_memory() {
    use AccessFault::{Key, Range, Right};
    for case in 0..6 {
        let mut pair = Pair::connected(1);
        pair.hosts[0].buffer.write(0, &[0x55; 4096]);
        let host = &pair.hosts[1];
        let readonly = Buffer::new(4096);
        let region =
            host.memory.register(host.domain, Arc::clone(&readonly), Rights::REMOTE_READ).unwrap();
        let strange = host.memory.allocate_domain();
        let other = Buffer::new(4096);
        let elsewhere = host.memory.register(strange, Arc::clone(&other), Rights::ALL).unwrap();
        let (key, start) = (host.region.key, host.region.start);
        let end = start + pair::BUFFER_BYTES;
        let source = pair.source(0, 0);
        let sink = pair.hosts[0].region.id;
        let (request, length, fault) = match case {
            0 => (Request::Write { source, key, address: end - 4000 }, 4096, Range),
            1 => (Request::Write { source, key: region.key, address: region.start }, 64, Right),
            2 => (Request::Write { source, key: elsewhere.key, address: elsewhere.start }, 8, Key),
            3 => (Request::Read { sink, sink_offset: 0, key, address: end - 8 }, 16, Range),
            4 => {
                let (key, address) = (region.key, region.start);
                (Request::FetchAdd { key, address, operand: 1, sink: None }, 8, Right)
            }
            _ => (Request::Read { sink, sink_offset: 0, key, address: start - 1 }, 16, Range),
        };
        pair.post(0, request, length, 1);
        pair.write(0, 0, 100, 2);
        pair.run_for(3_000_000_000);
        let expected = Err(OperationError::RemoteAccess(fault));
        let first = results(&pair, 0);
        assert_eq!(first[0], (1, expected), "case {case}");
        assert_eq!(first.len(), 2, "case {case}");
        assert!(matches!(pair.hosts[1].closed()[..], [Closed::PeerMisbehaved(_)]), "case {case}");
        for buffer in [readonly, other] {
            let mut bytes = [0; 4096];
            buffer.read(0, &mut bytes);
            assert_eq!(bytes, [0; 4096], "case {case}");
        }
        pair.assert_idle();
    }
    let mut pair = Pair::connected(1);
    let (key, address) = pair.remote(1, 4);
    let add = Request::FetchAdd { key, address, operand: 1, sink: None };
    let refused = pair.try_post(0, add, 8, 1, OperationFlags::default());
    assert!(matches!(refused, Err(PostError::Misaligned(_))), "{refused:?}");
    assert!(pair.hosts[0].info().established);
}

//= protocol.md: violation.6
#[test]
fn deregistering_a_region_during_an_operation_ends_the_connection() {
    for at_target in [false, true] {
        for kind in 0..3 {
            let gigabit = LinkPlan { rate: Some(1_000_000_000), ..LinkPlan::default() };
            let mut pair = Pair::connected_with(&[gigabit], EngineConfig::default());
            let buffers = [0, 1].map(|_| Buffer::new(1 << 20));
            let regions = [0, 1].map(|host: usize| {
                let Host { memory, domain, .. } = &pair.hosts[host];
                memory.register(*domain, Arc::clone(&buffers[host]), Rights::ALL).unwrap()
            });
            let source = Source::Region { region: regions[0].id, offset: 0 };
            let (key, address) = (regions[1].key, regions[1].start);
            let request = match kind {
                0 => Request::Write { source, key, address },
                1 => Request::Read { sink: regions[0].id, sink_offset: 0, key, address },
                _ => Request::Send { source },
            };
            if kind == 2 {
                let receive = semantics::Receive {
                    region: regions[1].id,
                    offset: 0,
                    length: 1 << 20,
                    context: 9,
                };
                let Host { engine, memory, connection, .. } = &mut pair.hosts[1];
                engine.post_receive(&memory.access(), connection.unwrap(), receive).unwrap();
                pair.run_for(1_000_000);
            }
            pair.post(0, request, 1 << 20, 1);
            pair.write(0, 0, 8, 2);
            pair.run_for(2_000_000);
            let host = usize::from(at_target);
            pair.hosts[host].memory.deregister(regions[host].id).unwrap();
            pair.run_for(3_000_000_000);
            let done = results(&pair, 0);
            assert_eq!(done.len(), 2, "target {at_target}, kind {kind}");
            assert!(done.iter().all(|done| done.1.is_err()), "{done:?}");
            assert_eq!(pair.done(1).len(), usize::from(kind == 2));
            assert_eq!(pair.hosts.each_ref().map(|host| host.closed().len()), [1, 1]);
            pair.assert_idle();
        }
    }
}

use pair::Host;

#[test]
fn operations_complete_when_a_driver_takes_partial_batches_or_none() {
    for seed in 1..=20_u64 {
        let links = 1 + seed as u8 % 2;
        let mut pair = Pair::connected(links);
        pair.fill(0, 1_000_000);
        let mut state = seed;
        let clock = Rc::clone(&pair.clock);
        let mut full_until = Instant(0);
        pair.take = Box::new(move |_, _, frames| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let dice = (state >> 33) as usize;
            if dice.is_multiple_of(50) {
                // From time to time, the driver is full for longer than the shortest probe timeout.
                full_until = clock.get().after_ns(dice as u64 % 2_000_000);
            }
            if clock.get() < full_until {
                return Emitted::Taken(0);
            }
            Emitted::Taken(if dice.is_multiple_of(3) { dice % (frames + 1) } else { frames })
        });
        pair.receive(1, 3_000_000, 5000, 9);
        pair.write(0, 0, 1_000_000, 1);
        let source = pair.source(0, 0);
        pair.post(0, Request::Send { source }, 5000, 2);
        let (key, address) = pair.remote(1, 0);
        let sink = pair.hosts[0].region.id;
        pair.post(0, Request::Read { sink, sink_offset: 0, key, address }, 500_000, 3);
        pair.run_for(5_000_000_000);
        assert_eq!(results(&pair, 0), [(1, Ok(())), (2, Ok(())), (3, Ok(()))], "seed {seed}");
        assert!(pair.same(1_000_000));
        pair.assert_idle();
        let counters = pair.hosts[0].info().paths.iter().fold((0, 0), |sum, path| {
            (sum.0 + path.counters.frames_sent, sum.1 + path.counters.bytes_sent)
        });
        let seen: u64 = pair.channels[0].iter().map(|channel| channel.frames).sum();
        // The counters omit handshake frames and frames that a full driver refused.
        let counted = counters.0;
        assert!(
            counted.abs_diff(seen) <= HANDSHAKE_FRAMES,
            "seed {seed}: {counted} counted, {seen} seen"
        );
    }
}

#[test]
fn acknowledgements_leave_while_another_connection_keeps_the_driver_full() {
    let mut pair = Pair::connected(1);
    pair.take = Box::new({
        let mut turn = 0;
        move |host, _, frames| {
            turn += 1;
            Emitted::Taken(if host == 1 && turn % 4 != 0 { 0 } else { frames })
        }
    });
    pair.fill(0, 1_000_000);
    pair.write(0, 0, 1_000_000, 1);
    let start = pair.now;
    let mut done = 0;
    pair.run_until(1_000_000_000, "the write", |pair| {
        done += pair.done(0).len();
        done == 1
    });
    assert!(pair.now.since_ns(start) < 50_000_000);
    let timeouts: u64 =
        pair.hosts[0].info().paths.iter().map(|path| path.counters.probe_timeouts).sum();
    assert_eq!(timeouts, 0, "refused acknowledgements are sent later, not lost");
}

#[test]
fn unmapped_payload_ends_only_its_own_connection() {
    let mut pair = Pair::connected(1);
    pair.write(0, 0, 1_000_000, 1);
    pair.write(0, 0, 1_000_000, 2);
    pair.take = Box::new(|host, _, frames| {
        if host == 0 && frames > 1 { Emitted::PayloadUnmapped(0) } else { Emitted::Taken(frames) }
    });
    pair.run_for(3_000_000_000);
    let done = results(&pair, 0);
    assert_eq!(done, [(1, Err(OperationError::LocalAccess)), (2, Err(OperationError::Flushed))]);
    assert_eq!(pair.hosts[0].closed(), [Closed::LocalMemory]);
    assert_eq!(pair.hosts[1].closed(), [Closed::PeerRefused(CloseReason::LocalMemoryGone)]);
    pair.assert_idle();
}

/// Posts the first operation of each end. The first host sends a message, which waits for a
/// receive. The second host reads memory of the first host.
fn pair_that_answers() -> (Pair, Region) {
    let mut pair = Pair::connected(1);
    let Host { memory, domain, .. } = &pair.hosts[0];
    let read = memory.register(*domain, Buffer::new(1 << 20), Rights::REMOTE_READ).unwrap();
    pair.post(0, Request::Send { source: Source::Inline([1; 64]) }, 8, 1);
    let (key, address) = (read.key, read.start);
    let sink = pair.hosts[1].region.id;
    pair.post(1, Request::Read { sink, sink_offset: 0, key, address }, 1 << 20, 2);
    (pair, read)
}

fn assert_the_read_is_to_blame(pair: &mut Pair) {
    pair.run_for(3_000_000_000);
    assert_eq!(results(pair, 0), [(1, Err(OperationError::Flushed))]);
    let refused = OperationError::RemoteAccess(AccessFault::Key);
    assert_eq!(results(pair, 1), [(2, Err(refused))]);
    assert_eq!(pair.hosts[0].closed(), [Closed::LocalMemory]);
    assert_eq!(pair.hosts[1].closed(), [Closed::PeerRefused(CloseReason::UnknownKey)]);
    pair.assert_idle();
}

//= protocol.md: answer.8
#[test]
fn deregistered_memory_of_an_answer_fails_the_read_and_no_local_operation() {
    let (mut pair, read) = pair_that_answers();
    pair.run_for(200_000);
    pair.hosts[0].memory.deregister(read.id).unwrap();
    assert_the_read_is_to_blame(&mut pair);
}

#[test]
fn unmapped_memory_of_an_answer_fails_the_read_and_no_local_operation() {
    let (mut pair, _read) = pair_that_answers();
    pair.take = Box::new(|host, _, frames| {
        if host == 0 && frames > 1 { Emitted::PayloadUnmapped(0) } else { Emitted::Taken(frames) }
    });
    assert_the_read_is_to_blame(&mut pair);
}

#[test]
fn unmapped_payload_fails_its_own_operation_and_none_before_it() {
    let mut pair = Pair::connected(1);
    pair.write(0, 0, 1000, 2);
    pair.write(0, 0, 1000, 3);
    pair.write(0, 0, 1000, 4);
    pair.take = Box::new(|host, _, frames| {
        if host == 0 && frames == 3 { Emitted::PayloadUnmapped(1) } else { Emitted::Taken(frames) }
    });
    pair.run_for(3_000_000_000);
    let flushed = Err(OperationError::Flushed);
    assert_eq!(
        results(&pair, 0),
        [(2, flushed), (3, Err(OperationError::LocalAccess)), (4, flushed)]
    );
}

//= protocol.md: notify.2
#[test]
fn notifications_are_kept_for_an_application_that_does_not_poll() {
    let mut pair = Pair::new(1);
    pair.hosts[1].queue = Arc::new(semantics::CompletionQueue::new(4));
    pair.establish();
    let (key, address) = pair.remote(1, 0);
    let source = pair.source(0, 0);
    for context in 0..20 {
        let operation = semantics::Operation {
            request: Request::Write { source, key, address },
            length: 64,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: Some(context as u32),
            context,
            status: None,
        };
        let Host { engine, memory, connection, .. } = &mut pair.hosts[0];
        engine.post(&memory.access(), connection.unwrap(), &operation).unwrap();
    }
    pair.run_for(1_000_000_000);
    assert!(pair.done(0).len() <= 4);
    let mut seen = Vec::new();
    let until = pair.now.after_ns(2_000_000_000);
    while seen.len() < 20 && pair.now < until {
        seen.extend(pair.done(1));
        pair.run_for(25_000_000);
    }
    let immediates: Vec<_> = seen.iter().filter_map(|done| done.immediate).collect();
    assert_eq!(immediates, (0..20).collect::<Vec<_>>());
    assert!(seen.iter().all(|done| done.kind == CompletionKind::Notification));
    pair.run_for(100_000_000);
    pair.assert_idle();
}

/// Each answer also acknowledges the frame that it answers, so a ping-pong needs only one frame in
/// each direction.
#[test]
fn a_ping_pong_sends_no_separate_acknowledgements() {
    const ROUNDS: u64 = 300;
    let mut pair = Pair::connected(1);
    pair.run_for(1_000_000_000);
    let before = pair.hosts.each_ref().map(|host| host.info().paths[0].counters);
    for round in 1..=ROUNDS {
        for host in [0, 1] {
            pair.hosts[host].buffer.store_u64(host as u64 * 8, round);
            pair.write(host, host as u64 * 8, 8, round);
            pair.run_until(10_000_000, "a write", |pair| {
                pair.hosts[1 - host].buffer.load_u64(host as u64 * 8) == round
            });
        }
        assert_eq!(pair.done(0).len(), 1, "complete with the answer");
    }
    for (host, before) in pair.hosts.iter().zip(before) {
        let now = host.info().paths[0].counters;
        assert_eq!(now.data_frames_sent - before.data_frames_sent, ROUNDS);
        assert_eq!(now.frames_sent - before.frames_sent, ROUNDS, "frames in all");
    }
}

/// An upper limit for the frames of a handshake on two links.
const HANDSHAKE_FRAMES: u64 = 8;
