//! Queue pairs: faults in the order of operations, and receives that connections share (protocol.md §5.8).

mod pair;

use engine::Closed;
use mem::{Buffer, Rights};
use pair::Pair;
use semantics::{AccessFault, Completion, OperationError, Request, Source};
use wire_edge::{CloseReason, RemoteKey};

const SECOND_NS: u64 = 1_000_000_000;

/// Numbers that a seed gives.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to `below`, which is not reached.
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % below
    }
}

/// Two hosts with a queue pair over so many links.
fn queue_pair(links: u8) -> Pair {
    let mut pair = Pair::new(links);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
    }
    pair.establish();
    pair
}

/// From now on, of a hundred frames so many are lost.
fn lose(pair: &mut Pair, seed: u64, percent: u64) {
    let mut random = Random::new(seed);
    pair.filter = Box::new(move |_, _| random.below(100) >= percent);
}

fn results(done: &[Completion]) -> Vec<Result<(), OperationError>> {
    done.iter().map(|done| done.result).collect()
}

/// Any request that a peer may refuse, with this key.
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
fn a_bad_key_fails_its_operation_and_none_before_it() {
    for seed in 0..1000 {
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
}

//= protocol.md: queue-pair.3
#[test]
fn local_memory_that_goes_fails_its_operation_in_its_turn() {
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
        assert_eq!(pair.hosts[0].closed(), [Closed::LocalMemory]);
        assert_eq!(pair.hosts[1].closed(), [Closed::ByPeer]);
        assert_eq!(pair.hosts.each_ref().map(|host| host.engine.connection_count()), [0, 0]);
        pair.assert_idle();
    }
}
