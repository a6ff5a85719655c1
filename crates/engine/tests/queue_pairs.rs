//! Tests of queue pairs: the order in which operations fail, and receives that connections share
//! (protocol.md §5.8).

mod pair;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use delivery::Instant;
use engine::{Closed, ConnectionHandle};
use mem::{Buffer, Rights};
use pair::Pair;
use semantics::{
    AccessFault, Completion, OperationError, Receive, Request, SharedReceives, Source,
};
use wire_edge::{CloseReason, Control, Header, RemoteKey, control_messages, decode};

const SECOND_NS: u64 = 1_000_000_000;

/// A seeded sequence of numbers.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number that is at least 0 and less than `below`.
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % below
    }
}

/// Creates two hosts with a queue pair over `links` links.
fn queue_pair(links: u8) -> Pair {
    let mut pair = Pair::new(links);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
    }
    pair.establish();
    pair
}

/// From this call on, drops `percent` percent of all frames.
fn lose(pair: &mut Pair, seed: u64, percent: u64) {
    let mut random = Random::new(seed);
    pair.filter = Box::new(move |_, _| random.below(100) >= percent);
}

fn results(done: &[Completion]) -> Vec<Result<(), OperationError>> {
    done.iter().map(|done| done.result).collect()
}

/// Returns a request with this key. The peer refuses the request if the key is wrong.
fn request(pair: &Pair, what: u64, key: RemoteKey) -> (Request, u32) {
    let (_, address) = pair.remote(1, 1 << 20);
    let sink = pair.hosts[0].region.id;
    match what {
        0 => (Request::Read { sink, sink_offset: 2 << 20, key, address }, 3000),
        1 => (Request::FetchAdd { key, address, operand: 1, sink: None }, 8),
        2 => (Request::Write { source: pair.source(0, 0), key, address }, 8),
        _ => (Request::Write { source: pair.source(0, 0), key, address }, 10_000),
    }
}

//= protocol.md: fault.1, fault.3, close.4, close.7
#[test]
fn a_bad_key_fails_its_operation_and_no_earlier_one() {
    let seeds = 1000;
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut pair = queue_pair(2);
        for context in 0..100 {
            pair.receive(1, 3 << 20, 4000, context);
        }
        pair.run_for(SECOND_NS / 100);
        lose(&mut pair, seed, 5);
        let at_fault = random.below(100);
        let good = pair.remote(1, 0).0;
        let mut messages = 0;
        for context in 0..100 {
            if context == at_fault {
                let what = random.below(4);
                let (request, length) = request(&pair, what, RemoteKey(good.0 ^ 0x5a5a));
                pair.post(0, request, length, context);
            } else if random.below(3) == 0 {
                messages += u64::from(context < at_fault);
                let source = pair.source(0, 0);
                pair.post(0, Request::Send { source }, 1 + random.below(4000) as u32, context);
            } else {
                let what = random.below(4);
                let (request, length) = request(&pair, what, good);
                pair.post(0, request, length, context);
            }
        }
        pair.run_for(20 * SECOND_NS);
        let at_fault = at_fault as usize;
        let done = pair.done(0);
        assert_eq!(
            done.iter().map(|done| done.context).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        let mut expected = vec![Ok(()); at_fault];
        expected.push(Err(OperationError::RemoteAccess(AccessFault::Key)));
        expected.resize(100, Err(OperationError::EndedByPeer));
        assert_eq!(results(&done), expected, "seed {seed}");
        let received = pair.done(1);
        assert_eq!(received.len(), 100);
        let successes = received.iter().filter(|done| done.result.is_ok()).count() as u64;
        assert_eq!(successes, messages, "seed {seed}");
        let reason = CloseReason::UnknownKey;
        assert_eq!(pair.hosts[0].closed(), [Closed::PeerRefused(reason)]);
        assert_eq!(pair.hosts[1].closed(), [Closed::PeerMisbehaved(reason)]);
        assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [0, 0]);
        pair.assert_idle();
    }
    println!("figure: bad keys in their order: {seeds}");
}

//= protocol.md: queue-pair.3
#[test]
fn missing_local_memory_fails_its_operation_in_order() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut pair = queue_pair(1 + (seed % 2) as u8);
        for context in 0..60 {
            pair.receive(1, 3 << 20, 4000, context);
        }
        pair.run_for(SECOND_NS / 100);
        lose(&mut pair, seed, 5 * (seed % 3).min(1));
        let at_fault = random.below(60);
        let pair::Host { memory, domain, .. } = &pair.hosts[0];
        let going = memory.register(*domain, Buffer::new(1 << 16), Rights::ALL).unwrap();
        let good = pair.remote(1, 0).0;
        for context in 0..60 {
            let source = pair.source(0, 0);
            let (request, length) = match random.below(5) {
                _ if context == at_fault => {
                    let (key, address) = pair.remote(1, 0);
                    let (region, offset) = (going.id, 0);
                    match random.below(3) {
                        0 => (
                            Request::Write {
                                source: Source::Region { region, offset },
                                key,
                                address,
                            },
                            60_000,
                        ),
                        1 => (Request::Send { source: Source::Region { region, offset } }, 100),
                        _ => (Request::Read { sink: region, sink_offset: 0, key, address }, 9_000),
                    }
                }
                4 => (Request::Send { source }, 1 + random.below(4000) as u32),
                what => request(&pair, what, good),
            };
            pair.post(0, request, length, context);
        }
        pair.hosts[0].memory.deregister(going.id).unwrap();
        pair.run_for(20 * SECOND_NS);
        let mut expected = vec![Ok(()); at_fault as usize];
        expected.push(Err(OperationError::LocalAccess));
        expected.resize(60, Err(OperationError::Flushed));
        assert_eq!(results(&pair.done(0)), expected, "seed {seed}");
        assert_eq!(pair.hosts[0].closed(), [Closed::OperationFailed]);
        assert_eq!(pair.hosts[1].closed(), [Closed::ByPeer]);
        assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [0, 0]);
        pair.assert_idle();
    }
}

/// The memory of a connection's next operation is gone, and the same connection has a pending
/// acknowledgement. A frame of another connection must not carry that acknowledgement.
#[test]
fn missing_memory_puts_no_acknowledgement_into_a_frame_of_another_connection() {
    for (links, length) in [(1, 8), (1, 1000), (2, 8), (2, 1000)] {
        let mut pair = queue_pair(links);
        let first = pair.hosts.each_ref().map(|host| host.connection);
        let second = [Some(pair.connect()), None];
        pair.run_for(SECOND_NS / 100);
        let second = [second[0], pair.hosts[1].connection];
        // Leave a pending acknowledgement on the first connection.
        (pair.hosts[0].connection, pair.hosts[1].connection) = (first[0], first[1]);
        pair.hosts[1].buffer.store_u64(64, 7);
        pair.write(1, 64, 8, 0);
        pair.turn(1);
        // This operation of the first connection stays outstanding, so the connection does not end
        // immediately.
        pair.write(0, 128, 8, 0);
        pair.turn(0);
        pair.run_until(SECOND_NS, "a write", |pair| pair.hosts[0].buffer.load_u64(64) == 7);
        let pair::Host { memory, domain, .. } = &pair.hosts[0];
        let going = memory.register(*domain, Buffer::new(1 << 16), Rights::ALL).unwrap();
        let (key, address) = pair.remote(1, 0);
        let source = Source::Region { region: going.id, offset: 0 };
        pair.post(0, Request::Write { source, key, address }, length, 1);
        pair.hosts[0].memory.deregister(going.id).unwrap();
        pair.hosts[0].connection = second[0];
        pair.write(0, 0, 8, 2);
        let written = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&written);
        pair.filter = Box::new(move |_, flight| {
            let is_write =
                |frame: &wire_edge::Frame<'_>| matches!(frame.header, Header::Write { .. });
            if let Some(frame) = decode(&flight.bytes).ok().filter(is_write) {
                seen.borrow_mut().push(frame.acks.is_some());
            }
            true
        });
        pair.turn(0);
        assert_eq!(*written.borrow(), [false], "{links} links, {length} bytes");
        pair.run_for(SECOND_NS);
        assert_eq!(results(&pair.done(0)), [Ok(()), Err(OperationError::LocalAccess), Ok(())]);
        assert_eq!(results(&pair.done(1)), [Ok(())], "its write is acknowledged");
        let counters = pair.hosts[0].info().paths[0].counters;
        assert_eq!(counters.piggybacked_acks_sent, 0);
    }
}

/// Creates connections between two hosts. At the second host, all connections take their receives
/// from one shared queue.
fn sharing(
    connections: usize,
    links: u8,
) -> (Pair, Arc<SharedReceives>, Vec<[Option<ConnectionHandle>; 2]>) {
    let shared = Arc::new(SharedReceives::new(1024));
    let mut pair = Pair::new(links);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
    }
    pair.hosts[1].terms.shared_receives = Some(Arc::clone(&shared));
    pair.establish();
    let mut handles = vec![pair.hosts.each_ref().map(|host| host.connection)];
    for _ in 1..connections {
        pair.connect();
        pair.run_for(SECOND_NS / 20);
        handles.push(pair.hosts.each_ref().map(|host| host.connection));
    }
    (pair, shared, handles)
}

/// Posts `count` receives of 4 KiB to the shared queue.
fn post_shared(pair: &mut Pair, shared: &SharedReceives, count: u64) {
    let region = pair.hosts[1].region.id;
    for context in 0..count {
        let receive = Receive { region, offset: 3 << 20, length: 4096, context };
        if shared.post(receive).unwrap() {
            let pair::Host { engine, memory, .. } = &mut pair.hosts[1];
            engine.on_receives_posted(pair.now, &memory.access(), shared);
        }
    }
}

//= protocol.md: shared.3, shared.4, queue-pair.4
#[test]
fn messages_beyond_the_shared_receives_wait_and_none_is_lost() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let (mut pair, shared, handles) = sharing(8, 1 + (seed % 2) as u8);
        post_shared(&mut pair, &shared, 3);
        lose(&mut pair, seed, [0, 5][(seed / 2 % 2) as usize]);
        let mut received = 0;
        for (number, [sender, _]) in (0..).zip(&handles) {
            pair.hosts[0].connection = *sender;
            for message in 0..20 {
                let (key, address) = pair.remote(1, 1 << 20);
                let source = pair.source(0, 0);
                let (request, immediate) = match random.below(3) {
                    0 => (Request::Write { source, key, address }, Some(7)),
                    _ => (Request::Send { source }, None),
                };
                let length = random.below(4000) as u32;
                let context = number * 100 + message;
                pair.post_with(0, request, length, context, immediate);
            }
        }
        let mut idle = 0;
        while received < 160 {
            pair.run_for(SECOND_NS / 100);
            let done = pair.done(1);
            assert!(done.iter().all(|done| done.result.is_ok()), "seed {seed}");
            idle = if done.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 500, "seed {seed}: {received} received");
            received += done.len();
            let more = random.below(12);
            post_shared(&mut pair, &shared, more);
        }
        pair.run_for(SECOND_NS);
        let done = pair.done(0);
        assert_eq!(done.len(), 160);
        assert!(done.iter().all(|done| done.result.is_ok()), "seed {seed}");
        for number in 0..8 {
            let own = done.iter().filter(|done| done.context / 100 == number);
            assert!(own.map(|done| done.context % 100).eq(0..20), "seed {seed}");
        }
        assert!(pair.hosts.iter().all(|host| host.closed().is_empty()));
    }
}

//= protocol.md: shared.3, shared.4
#[test]
fn no_connection_of_a_thousand_starves_at_a_shared_queue() {
    const CONNECTIONS: usize = 1000;
    const EACH: u64 = 6;
    let (mut pair, shared, handles) = sharing(CONNECTIONS, 1);
    let mut random = Random::new(1);
    for message in 0..EACH {
        for (number, [sender, _]) in (0..).zip(&handles) {
            pair.hosts[0].connection = *sender;
            let source = pair.source(0, 0);
            // The length of the message identifies the connection.
            let (request, length) = (Request::Send { source }, number);
            pair.post(0, request, length, u64::from(number) * EACH + message);
        }
    }
    let (mut received, mut of_each, mut idle) = (0, vec![0; CONNECTIONS], 0);
    let (mut sent, mut starved) = (0, None);
    while received < CONNECTIONS as u64 * EACH && idle < 500 {
        let more = random.below(200);
        post_shared(&mut pair, &shared, more);
        pair.run_for(SECOND_NS / 100);
        let before = received;
        for done in pair.done(1) {
            assert_eq!(done.result, Ok(()));
            of_each[done.bytes as usize] += 1;
            received += 1;
        }
        sent += pair.done(0).iter().filter(|done| done.result.is_ok()).count() as u64;
        if received >= CONNECTIONS as u64 * EACH / 2 {
            starved.get_or_insert_with(|| of_each.iter().filter(|&&had| had == 0).count());
        }
        idle = if received == before { idle + 1 } else { 0 };
    }
    pair.run_for(SECOND_NS);
    sent += pair.done(0).iter().filter(|done| done.result.is_ok()).count() as u64;
    let lost = CONNECTIONS as u64 * EACH - received.min(sent);
    // When half of all messages have arrived, each connection must have received some messages.
    let starved = starved.unwrap_or(CONNECTIONS);
    println!("figure: starved or lost: {}", starved as u64 + lost);
    assert_eq!((starved, lost), (0, 0));
    assert!(of_each.iter().all(|&had| had == EACH));
}

//= protocol.md: queue-pair.4
#[test]
fn a_peer_without_a_receive_is_no_sign_of_congestion() {
    let windows = [true, false].map(|shares| {
        let (mut pair, shared, _) = sharing(1, 1);
        if !shares {
            // For comparison, use connections with their own receives. Such a connection sends no
            // message without credit.
            pair.hosts[1].terms.shared_receives = None;
            pair.connect();
            pair.run_for(SECOND_NS / 20);
        }
        let source = pair.source(0, 0);
        for context in 0..200 {
            pair.post(0, Request::Send { source }, 4000, context);
        }
        for _ in 0..200 {
            pair.run_for(SECOND_NS / 1000);
            if shares {
                post_shared(&mut pair, &shared, 1);
            } else {
                pair.receive(1, 3 << 20, 4096, 0);
            }
        }
        pair.run_for(SECOND_NS);
        assert_eq!(pair.done(0).len(), 200);
        let path = pair.hosts[0].info().paths[0];
        assert_eq!((path.counters.packets_lost, path.counters.probe_timeouts), (0, 0));
        path.window_bytes
    });
    assert!(windows[0] >= windows[1], "{windows:?}");
}

//= protocol.md: queue-pair.4
#[test]
fn a_ready_notification_may_overtake_the_not_ready_notification() {
    let (mut pair, shared, _) = sharing(1, 2);
    let source = pair.source(0, 0);
    // Intercept the messages about receives.
    let said = Rc::new(RefCell::new(Vec::new()));
    let kept = Rc::clone(&said);
    pair.filter = Box::new(move |_, flight| {
        let is_said = says(&flight.bytes, |m| matches!(m, Control::NotReady(_) | Control::Ready));
        if is_said {
            kept.borrow_mut().push(flight.clone());
        }
        !is_said
    });
    pair.post(0, Request::Send { source }, 8, 0);
    while said.borrow().is_empty() {
        pair.step(Instant::NEVER);
    }
    post_shared(&mut pair, &shared, 1);
    pair.turn(1);
    // Deliver the messages in reverse order.
    let said = core::mem::take(&mut *said.borrow_mut());
    assert!(says(&said[said.len() - 1].bytes, |m| matches!(m, Control::Ready)));
    for mut flight in said.into_iter().rev() {
        pair.deliver(&mut flight);
    }
    pair.filter = Box::new(|_, _| true);
    pair.run_for(SECOND_NS);
    assert_eq!(results(&pair.done(0)), [Ok(())]);
    assert_eq!(results(&pair.done(1)), [Ok(())]);
}

//= protocol.md: queue-pair.5
#[test]
fn a_message_that_waits_too_long_for_a_receive_fails_and_earlier_messages_succeed() {
    for shares in [false, true] {
        let shared = Arc::new(SharedReceives::new(16));
        let mut pair = Pair::new(1);
        pair.hosts[0].terms.queue_pair = true;
        pair.hosts[0].terms.not_ready_ns = Some(SECOND_NS);
        pair.hosts[1].terms.queue_pair = true;
        if shares {
            pair.hosts[1].terms.shared_receives = Some(Arc::clone(&shared));
        }
        pair.establish();
        let post = |pair: &mut Pair| {
            if shares {
                post_shared(pair, &shared, 1);
            } else {
                pair.receive(1, 3 << 20, 4096, 0);
            }
        };
        let source = pair.source(0, 0);
        for context in 0..5 {
            pair.post(0, Request::Send { source }, 4000, context);
        }
        // Each message waits for less than the limit, but all messages together wait for longer
        // than the limit.
        for _ in 0..3 {
            pair.run_for(SECOND_NS * 8 / 10);
            post(&mut pair);
        }
        pair.run_for(SECOND_NS * 9 / 10);
        assert_eq!(results(&pair.done(0)), [Ok(()); 3], "{shares}");
        assert!(pair.hosts[0].closed().is_empty());
        pair.run_for(SECOND_NS * 2 / 10);
        let expected = [OperationError::ReceiverNotReady, OperationError::Flushed].map(Err);
        assert_eq!(results(&pair.done(0)), expected, "{shares}");
        assert_eq!(pair.hosts[0].closed(), [Closed::OperationFailed]);
        pair.run_for(SECOND_NS);
        assert_eq!(results(&pair.done(1)), [Ok(()); 3]);
        assert_eq!(pair.hosts[1].closed(), [Closed::ByPeer]);
    }
}

/// Returns whether a frame contains a control message for which `wanted` returns true.
fn says(bytes: &[u8], wanted: impl Fn(&Control<'_>) -> bool) -> bool {
    decode(bytes).is_ok_and(|frame| {
        matches!(frame.header, Header::Control)
            && control_messages(frame.payload).any(|message| message.is_ok_and(|m| wanted(&m)))
    })
}

//= protocol.md: fault.2
#[test]
fn a_receive_without_memory_fails_only_when_a_message_arrives_for_it() {
    let mut pair = queue_pair(1);
    pair.receive(1, 3 << 20, 4000, 0);
    let pair::Host { engine, connection, .. } = &mut pair.hosts[1];
    engine.post_failed_receive(connection.unwrap(), 4000, 1).unwrap();
    pair.receive(1, 3 << 20, 4000, 2);
    let source = pair.source(0, 0);
    pair.post(0, Request::Send { source }, 100, 0);
    pair.run_for(SECOND_NS);
    assert_eq!(results(&pair.done(1)), [Ok(())]);
    assert_eq!(results(&pair.done(0)), [Ok(())]);
    pair.post(0, Request::Send { source }, 100, 1);
    pair.post(0, Request::Send { source }, 100, 2);
    pair.run_for(SECOND_NS);
    let expected = [OperationError::LocalAccess, OperationError::Flushed].map(Err);
    assert_eq!(results(&pair.done(1)), expected);
    let expected = [OperationError::RemoteOperation, OperationError::EndedByPeer].map(Err);
    assert_eq!(results(&pair.done(0)), expected);
}
/// Counts retransmissions while the test posts the receives of a shared queue one after the other:
/// performance-notes, 47.
#[test]
#[ignore = "slow: run by hand, with --ignored --nocapture; prints the table of performance-notes, 47"]
fn retransmissions_when_shared_receives_run_out() {
    let cases = [
        (64, 100, 1),
        (64, 100, 16),
        (4000, 100, 1),
        (4000, 1000, 1),
        (4000, 1000, 8),
        (1 << 20, 20_000, 1),
    ];
    for (length, every_us, batch) in cases {
        let (mut pair, shared, _) = sharing(1, 1);
        let source = pair.source(0, 0);
        let (mut posted, mut received) = (0, 0);
        while received < MESSAGES {
            while posted < MESSAGES.min(received + 128) {
                pair.post(0, Request::Send { source }, length, posted);
                posted += 1;
            }
            pair.run_for(every_us * 1000);
            let region = pair.hosts[1].region.id;
            let receive = Receive { region, offset: 1 << 20, length: 1 << 20, context: 0 };
            for _ in 0..batch {
                if shared.post(receive).unwrap() {
                    let pair::Host { engine, memory, .. } = &mut pair.hosts[1];
                    engine.on_receives_posted(pair.now, &memory.access(), &shared);
                }
            }
            received += pair.done(1).len() as u64;
        }
        let sent = pair.hosts[0].info().paths[0].counters.payload_bytes_sent;
        let times = sent as f64 / (MESSAGES * u64::from(length)) as f64;
        println!("{length} B, {batch} receives every {every_us} us: {times:.1} times");
    }
}

/// Number of messages of one measurement.
const MESSAGES: u64 = 1000;
