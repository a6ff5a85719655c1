//! Random faults for some time, followed by a period without faults. At the end, each posted
//! operation must have taken effect exactly once.

mod pair;

use delivery::{LinkEvent, LinkId};
use engine::{Emitted, EngineConfig};
use pair::{Host, LinkPlan, Pair, address, caps};
use semantics::{CompletionKind, OperationFlags, Order, Request};

/// Bytes of memory that only one operation uses. `OPERATIONS` is the number of operations of each
/// host.
const PLACE_BYTES: u64 = 16_384;
const OPERATIONS: u64 = 100;

/// A seeded sequence of numbers.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % sides
    }
}

fn post(pair: &mut Pair, dice: &mut Dice, host: usize, context: u64) -> CompletionKind {
    let place = context * PLACE_BYTES;
    // The first host writes to the first half of memory, the second host to the second half.
    let own = host as u64 * (OPERATIONS * PLACE_BYTES);
    let flags = OperationFlags {
        signalled: true,
        fence_before: dice.roll(8) == 0,
        fence_after: dice.roll(8) == 0,
        order: if dice.roll(2) == 0 { Order::Relaxed } else { Order::Strict },
        ..OperationFlags::default()
    };
    let length = [0, 8, 100, 1460, 5000, 16_000][dice.roll(6) as usize];
    let source = pair.source(host, own + place);
    let (key, address) = pair.remote(1 - host, own + place);
    let counter = pair.remote(1 - host, pair::BUFFER_BYTES - 8).1;
    let sink = pair.hosts[host].region.id;
    let (request, length, kind) = match dice.roll(5) {
        0 | 1 => (Request::Write { source, key, address }, length, CompletionKind::Write),
        2 => {
            // At this offset, the memories of both hosts are equal from the start.
            let same = 3_600_000;
            let address = pair.remote(1 - host, same).1;
            let read = Request::Read { sink, sink_offset: same, key, address };
            (read, length, CompletionKind::Read)
        }
        3 => (
            Request::FetchAdd { key, address: counter, operand: 1, sink: None },
            8,
            CompletionKind::FetchAdd,
        ),
        _ => (Request::Send { source }, length.min(4000), CompletionKind::Send),
    };
    pair.try_post(host, request, length, context, flags).unwrap();
    kind
}

fn disturb(pair: &mut Pair, dice: &mut Dice, links: u8) {
    let (host, link) = (dice.roll(2) as usize, dice.roll(u64::from(links)) as u8);
    match dice.roll(11) {
        0 | 1 => {
            let up = !pair.channels[host][usize::from(link)].up;
            pair.set_up(host, usize::from(link), up);
        }
        2 => {
            pair.hosts[host].engine.handle_link_event(pair.now, LinkId(link), LinkEvent::Down);
        }
        3 => {
            let event = LinkEvent::Changed(caps(host, link, &LinkPlan::default()));
            pair.hosts[host].engine.handle_link_event(pair.now, LinkId(link), event);
        }
        4 if links > 1 => {
            let Host { engine, connection, .. } = &mut pair.hosts[0];
            let _ = engine.remove_path(connection.unwrap(), link);
        }
        5 => {
            let now = pair.now;
            let Host { engine, connection, .. } = &mut pair.hosts[host];
            let _ =
                engine.add_path(now, connection.unwrap(), LinkId(link), address(1 - host, link));
        }
        6 => pair.hosts[host].paused ^= true,
        // After this change, the order of frames in the network can change.
        7 | 8 => {
            pair.channels[host][usize::from(link)].delay_ns = 1_000 + dice.roll(200_000);
        }
        9 => {
            let later = dice.roll(1_000_000);
            let again: Vec<_> =
                pair.wire.iter().map(|(key, flight)| (*key, flight.clone())).collect();
            for ((at, number), flight) in again {
                if number < 1 << 32 {
                    pair.wire.insert((at.after_ns(later), number | 1 << 32), flight);
                }
            }
        }
        _ => pair.hosts[host].engine.hasten_acknowledgements(),
    }
}

fn heal(pair: &mut Pair, links: u8) {
    pair.filter = Box::new(|_, _| true);
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    for host in 0..2 {
        pair.hosts[host].paused = false;
        for link in 0..links {
            pair.set_up(host, usize::from(link), true);
            let event = LinkEvent::Changed(caps(host, link, &LinkPlan::default()));
            pair.hosts[host].engine.handle_link_event(pair.now, LinkId(link), event);
        }
    }
}

/// Creates two hosts with pending work and a faulty network between them.
fn disturbed_pair(seed: u64, dice: &mut Dice, links: u8) -> Pair {
    let plan = LinkPlan { rate: Some(1_000_000_000), ..LinkPlan::default() };
    let config = EngineConfig::default()
        .order_pool_bytes([0, 4000, 1 << 18][dice.roll(3) as usize])
        .read_depth(1 + dice.roll(8) as u16)
        .operation_window([2, 16, 1024][dice.roll(3) as usize])
        .rest_ns([1, 1_000_000, u64::MAX][seed as usize % 3])
        // The budget is long, because faults must not end the connection in this test.
        .silence_budget_ns(600_000_000_000);
    let mut pair = Pair::connected_with(&vec![plan; usize::from(links)], config);
    pair.hosts[0].buffer.write(3_600_000, &[0xee; 16_000]);
    pair.hosts[1].buffer.write(3_600_000, &[0xee; 16_000]);
    for host in 0..2 {
        let from = host as u64 * OPERATIONS * PLACE_BYTES;
        let bytes: Vec<u8> = (0..OPERATIONS * PLACE_BYTES).map(|i| (i / 7 + from) as u8).collect();
        pair.hosts[host].buffer.write(from, &bytes);
    }
    let (loss, share) = (dice.roll(20), 1 + dice.roll(30));
    let mut own = Dice(seed ^ 0x5555);
    pair.filter = Box::new(move |_, _| own.roll(100) >= loss);
    let mut own = Dice(seed ^ 0xaaaa);
    pair.take = Box::new(move |_, _, frames| {
        let some = own.roll(frames as u64 + 1) as usize;
        Emitted::Taken(if own.roll(share) == 0 { some } else { frames })
    });
    pair
}

/// The kinds of the operations that each host posted, in order.
type Posted = [Vec<CompletionKind>; 2];

fn post_and_disturb(pair: &mut Pair, dice: &mut Dice, links: u8) -> Posted {
    let mut kinds = [Vec::new(), Vec::new()];
    let mut receives = [0; 2];
    for context in 0..OPERATIONS {
        for host in 0..2 {
            kinds[host].push(post(pair, dice, host, context));
            if dice.roll(4) == 0 {
                pair.receive(host, 3_300_000, 4000, receives[host]);
                receives[host] += 1;
            }
        }
        if dice.roll(3) == 0 {
            disturb(pair, dice, links);
        }
        pair.run_for(dice.roll(3_000_000));
    }
    heal(pair, links);
    for host in 0..2 {
        while receives[host] < sends(&kinds[1 - host]) {
            pair.receive(host, 3_300_000, 4000, receives[host]);
            receives[host] += 1;
        }
    }
    kinds
}

fn sends(kinds: &[CompletionKind]) -> u64 {
    kinds.iter().filter(|kind| **kind == CompletionKind::Send).count() as u64
}

/// Runs until all operations are complete. Returns the completions of each host, with their
/// contexts.
fn complete(pair: &mut Pair, seed: u64, kinds: &Posted) -> [Vec<(u64, CompletionKind)>; 2] {
    let mut done = [Vec::new(), Vec::new()];
    let mut received = [0, 0];
    pair.run_until(60_000_000_000, &format!("seed {seed}"), |pair| {
        for host in 0..2 {
            for completion in pair.done(host) {
                assert_eq!(completion.result, Ok(()), "seed {seed}");
                if completion.kind == CompletionKind::Receive {
                    assert_eq!(completion.context, received[host], "receives are in order");
                    received[host] += 1;
                } else {
                    done[host].push((completion.context, completion.kind));
                }
            }
        }
        done.iter().all(|done| done.len() as u64 == OPERATIONS)
            && (0..2).all(|host| received[host] == sends(&kinds[1 - host]))
    });
    done
}

/// Asserts that the writes and atomics of `host` took effect exactly once at the other host.
fn assert_effects(pair: &Pair, seed: u64, host: usize, kinds: &[CompletionKind]) {
    let adds = kinds.iter().filter(|kind| **kind == CompletionKind::FetchAdd).count();
    let counted = pair.hosts[1 - host].buffer.load_u64(pair::BUFFER_BYTES - 8);
    assert_eq!(counted, adds as u64, "seed {seed}: atomics happen once");
    let (mut bytes, mut there) = ([0; 16_000], [0; 16_000]);
    for (context, kind) in (0..).zip(kinds) {
        if *kind == CompletionKind::Write {
            let at = host as u64 * OPERATIONS * PLACE_BYTES + context * PLACE_BYTES;
            pair.hosts[host].buffer.read(at, &mut bytes);
            pair.hosts[1 - host].buffer.read(at, &mut there);
            let written = there.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            assert!(bytes[..written] == there[..written], "seed {seed}, write {context}");
        }
    }
}

fn run(seed: u64) -> u64 {
    let mut dice = Dice(seed);
    let links = 1 + dice.roll(3) as u8;
    let mut pair = disturbed_pair(seed, &mut dice, links);
    let kinds = post_and_disturb(&mut pair, &mut dice, links);
    let done = complete(&mut pair, seed, &kinds);
    for host in 0..2 {
        let expected: Vec<_> = (0..).zip(kinds[host].iter().copied()).collect();
        assert_eq!(done[host], expected, "seed {seed}: once each, and in order");
        assert_effects(&pair, seed, host, &kinds[host]);
        assert!(pair.hosts[host].closed().is_empty(), "seed {seed}");
    }
    pair.run_for(5_000_000_000);
    for host in &pair.hosts {
        assert_eq!(host.engine.pool_use(), semantics::PoolUse::default(), "seed {seed}");
    }
    let (now, handle) = (pair.now, pair.hosts[0].connection.unwrap());
    pair.hosts[0].engine.close(now, handle, &[]).unwrap();
    pair.run_for(5_000_000_000);
    pair.assert_idle();
    pair.frames
}

//= protocol.md: complete.3
#[test]
fn posted_operations_happen_exactly_once_under_faults() {
    let seeds = std::env::var("SOAK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    let first = std::env::var("SOAK_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(1);
    for seed in first..first + seeds {
        let frames = run(seed);
        if seed % 8 == 0 {
            assert_eq!(frames, run(seed), "seed {seed} does not repeat exactly");
        }
    }
}
