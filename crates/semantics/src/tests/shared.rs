//! Several connections that take their receives from one queue.

use std::sync::Arc;

use mem::{Buffer, MemoryTable, ProtectionDomain, Region, RegionId, Rights, TableLimits};
use wire_edge::{CloseReason, Flags, MessageNumber, OperationNumber, RemoteKey};

use super::pair::{MEMORY_BYTES, POOLS, Random};
use super::queue_pair::flags_of;
use super::script::{Frame, Script};
use crate::limits::SHARED_WINDOW;
use crate::{
    Completion, CompletionQueue, Inbound, InboundLimits, OperationError, Outbound, Owner,
    PeerLimits, Piece, PieceList, PoolUse, Pools, PostError, Queues, Receive, Refusal,
    SharedReceives, StatusTable, Surroundings, Verdict,
};

const LIMITS: InboundLimits =
    InboundLimits { operation_window: 64, read_depth: 4, order_pool_bytes: 64 * 1024, receives: 4 };

/// The targets of several queue pairs of one endpoint.
struct Targets {
    table: MemoryTable,
    domain: ProtectionDomain,
    memory: Arc<Buffer>,
    region: Region,
    pools: Pools,
    queues: Queues,
    shared: Arc<SharedReceives>,
    connections: Vec<(Inbound, Outbound)>,
}

impl Targets {
    fn new(count: u32, capacity: usize) -> Self {
        let table = MemoryTable::new(TableLimits::default(), [3, 4]);
        let domain = table.allocate_domain();
        let memory = Buffer::new(MEMORY_BYTES);
        let region = table.register(domain, Arc::clone(&memory), Rights::ALL).unwrap();
        let queue = Arc::new(CompletionQueue::new(1 << 16));
        let queues = Queues::of_queue_pair(Arc::clone(&queue), queue);
        let shared = Arc::new(SharedReceives::new(capacity));
        let peer = PeerLimits {
            operation_window: 64,
            read_depth: 1,
            order_pool_bytes: 1024,
            credit: MessageNumber(0),
        };
        let connection = |index| {
            let owner = Owner::new(index, 1);
            let mut inbound = Inbound::new(owner, domain, LIMITS, &queues);
            inbound.be_queue_pair();
            inbound.share_receives(Arc::clone(&shared));
            (inbound, Outbound::new(owner, peer, &queues))
        };
        let connections = (0..count).map(connection).collect();
        let pools = Pools::new(&POOLS, Arc::new(StatusTable::new(1)));
        Self { table, domain, memory, region, pools, queues, shared, connections }
    }

    fn handle(&mut self, index: usize, frame: &Frame) -> Verdict {
        let memory = self.table.access();
        let (inbound, outbound) = &mut self.connections[index];
        let mut around = Surroundings { memory: &memory, pools: &mut self.pools, outbound };
        inbound.handle(&mut around, frame.flags, &frame.header, &frame.payload[..])
    }

    /// Has connections that waited take what there is, and says which they are.
    fn tell_ready(&mut self) -> Vec<usize> {
        let mut told = Vec::new();
        while let Some(owner) = self.shared.next_ready() {
            let index = owner.index() as usize;
            let memory = self.table.access();
            let (inbound, outbound) = &mut self.connections[index];
            let mut around = Surroundings { memory: &memory, pools: &mut self.pools, outbound };
            assert_eq!(inbound.on_ready(&mut around), Verdict::Accepted);
            told.push(index);
        }
        told
    }

    fn receive(&self, context: u64) -> Receive {
        Receive { region: self.region.id, offset: 0, length: 256, context }
    }

    fn post(&mut self, context: u64) -> Vec<usize> {
        let is_waited_for = self.shared.post(self.receive(context)).unwrap();
        let told = self.tell_ready();
        assert_eq!(is_waited_for, !told.is_empty());
        told
    }

    fn flush(&mut self, index: usize) {
        self.connections[index].0.flush(&mut self.pools, OperationError::Flushed);
    }

    fn completions(&self) -> Vec<Completion> {
        core::iter::from_fn(|| self.queues.receive.poll()).collect()
    }

    fn contexts(&self) -> Vec<u64> {
        self.completions().iter().map(|found| found.context).collect()
    }

    fn place(&self) -> (RemoteKey, u64) {
        (self.region.key, self.region.start)
    }
}

const NOT_READY: fn(u32) -> Verdict =
    |message| Verdict::Refused(Refusal::NotReady(MessageNumber(message)));

fn send(script: &mut Script, byte: u8) -> Frame {
    script.send(&[byte; 8], None).remove(0)
}

const SCRIPT: Script = Script::new(Flags::NONE, 64);

//= protocol.md: shared.1
#[test]
fn a_connection_that_shares_receives_grants_messages_that_have_none_yet() {
    let mut targets = Targets::new(1, 8);
    let inbound = &targets.connections[0].0;
    assert_eq!(inbound.credit(), MessageNumber(64));
    let wide = InboundLimits { operation_window: 1024, ..LIMITS };
    let mut inbound = Inbound::new(Owner::new(0, 1), targets.domain, wide, &targets.queues);
    inbound.be_queue_pair();
    inbound.share_receives(Arc::clone(&targets.shared));
    assert_eq!(inbound.credit(), MessageNumber(SHARED_WINDOW));
    targets.post(0);
    assert_eq!(targets.handle(0, &send(&mut SCRIPT.clone(), 1)), Verdict::Accepted);
    assert_eq!(targets.connections[0].0.credit(), MessageNumber(65));
}

//= protocol.md: credit.3
#[test]
fn a_message_beyond_what_is_granted_is_a_violation_and_takes_nothing() {
    let mut targets = Targets::new(1, 8);
    targets.post(0);
    let mut script = Script { message: 64, ..SCRIPT };
    let (reason, operation) = (CloseReason::ProtocolViolation, OperationNumber(0));
    let frame = send(&mut script, 1);
    assert_eq!(targets.handle(0, &frame), Verdict::Violation { reason, operation });
    assert_eq!(targets.shared.len(), 1);
}

//= protocol.md: shared.2, shared.3
#[test]
fn whoever_waits_longest_gets_the_next_receive_and_nobody_overtakes_him() {
    let mut targets = Targets::new(3, 8);
    let frames: Vec<_> = (0..3).map(|index| send(&mut SCRIPT.clone(), index + 1)).collect();
    for index in [1, 0, 1] {
        assert_eq!(targets.handle(index, &frames[index]), NOT_READY(0));
    }
    assert_eq!(targets.connections[1].0.lacks_receive(), Some(MessageNumber(0)));
    assert!(targets.shared.post(targets.receive(7)).unwrap());
    // There is one receive, and two connections wait for it.
    assert_eq!(targets.handle(2, &frames[2]), NOT_READY(0));
    assert_eq!(targets.tell_ready(), [1]);
    for index in [0, 2] {
        assert_eq!(targets.handle(index, &frames[index]), NOT_READY(0));
    }
    assert_eq!(targets.handle(1, &frames[1]), Verdict::Accepted);
    assert_eq!((targets.post(8), targets.post(9)), (vec![0], vec![2]));
    assert_eq!(targets.post(10), [0; 0]);
    for index in [2, 0] {
        assert_eq!(targets.handle(index, &frames[index]), Verdict::Accepted);
    }
    assert_eq!(targets.contexts(), [7, 9, 8]);
    assert_eq!(targets.shared.len(), 1);
}

//= protocol.md: shared.3
#[test]
fn a_thousand_connections_in_want_are_served_in_turns() {
    const COUNT: usize = 1000;
    let mut targets = Targets::new(COUNT as u32, COUNT);
    let mut scripts = vec![SCRIPT; COUNT];
    for round in 0..3 {
        let frames: Vec<_> = scripts.iter_mut().map(|script| send(script, 1)).collect();
        for (index, frame) in frames.iter().enumerate() {
            assert_eq!(targets.handle(index, frame), NOT_READY(round));
        }
        for (index, frame) in frames.iter().enumerate() {
            assert_eq!(targets.post(index as u64), [index]);
            assert_eq!(targets.handle(index, frame), Verdict::Accepted);
        }
        assert_eq!(targets.contexts(), (0..COUNT as u64).collect::<Vec<_>>());
    }
}

//= protocol.md: shared.5
#[test]
fn early_messages_of_one_connection_do_not_take_all_receives() {
    let mut targets = Targets::new(2, 64);
    for context in 0..10 {
        targets.post(context);
    }
    let mut script = SCRIPT;
    let frames: Vec<_> = (0..20).map(|index| send(&mut script, index)).collect();
    let pool = Verdict::Refused(Refusal::Pool);
    // Five receives are taken, for the first five messages.
    let verdicts: Vec<_> = (1..20).map(|index| targets.handle(0, &frames[index])).collect();
    assert_eq!(verdicts[..4], [Verdict::Accepted; 4]);
    assert!(verdicts[4..].iter().all(|verdict| *verdict == pool));
    assert_eq!(targets.shared.len(), 5);
    let mut other = SCRIPT;
    for _ in 0..5 {
        assert_eq!(targets.handle(1, &send(&mut other, 9)), Verdict::Accepted);
    }
    assert_eq!(targets.handle(1, &send(&mut other, 9)), NOT_READY(5));
    assert_eq!(targets.handle(0, &frames[0]), Verdict::Accepted);
    assert_eq!(targets.connections[0].0.delivered(), OperationNumber(5));
}

//= protocol.md: shared.2, shared.4
#[test]
fn a_write_with_an_immediate_waits_for_a_shared_receive_before_or_after_it_is_placed() {
    let mut targets = Targets::new(1, 8);
    let mut script = SCRIPT;
    let place = targets.place();
    let first = script.write(place, &[1; 8], Some(1)).remove(0);
    let second = script.write((place.0, place.1 + 8), &[2; 8], Some(2)).remove(0);
    assert_eq!(targets.handle(0, &first), NOT_READY(0));
    assert_eq!(targets.handle(0, &second), Verdict::Accepted);
    assert_eq!(targets.post(5), [0]);
    assert_eq!(targets.handle(0, &first), Verdict::Accepted);
    let (inbound, _) = &targets.connections[0];
    assert_eq!((inbound.delivered(), inbound.is_stalled()), (OperationNumber(1), true));
    assert_eq!(inbound.lacks_receive(), Some(MessageNumber(1)));
    assert_eq!(targets.handle(0, &second), NOT_READY(1));
    assert_eq!(targets.post(6), [0]);
    let (inbound, _) = &targets.connections[0];
    assert_eq!((inbound.delivered(), inbound.is_stalled()), (OperationNumber(2), false));
    let seen: Vec<_> =
        targets.completions().iter().map(|found| (found.context, found.immediate)).collect();
    assert_eq!(seen, [(5, Some(1)), (6, Some(2))]);
    assert_eq!(targets.pools.in_use(), PoolUse::default());
}

//= protocol.md: shared.6
#[test]
fn what_a_connection_has_not_consumed_goes_back_before_all_others_and_to_those_that_wait() {
    let mut targets = Targets::new(2, 16);
    for context in 0..8 {
        targets.post(context);
    }
    let mut script = SCRIPT;
    let frames: Vec<_> = (0..4).map(|index| send(&mut script, index)).collect();
    assert_eq!(targets.handle(0, &frames[0]), Verdict::Accepted);
    assert_eq!(targets.handle(0, &frames[3]), Verdict::Accepted);
    assert_eq!(targets.contexts(), [0]);
    let mut other = SCRIPT;
    for _ in 4..8 {
        assert_eq!(targets.handle(1, &send(&mut other, 1)), Verdict::Accepted);
    }
    assert_eq!(targets.contexts(), [4, 5, 6, 7]);
    let late = send(&mut other, 1);
    assert_eq!(targets.handle(1, &late), NOT_READY(4));
    targets.flush(0);
    assert_eq!(targets.contexts(), [0; 0]);
    assert_eq!(targets.shared.len(), 3);
    let refilled = targets.pools.take_refilled().expect("somebody waits");
    assert!(Arc::ptr_eq(&refilled, &targets.shared));
    assert_eq!(targets.tell_ready(), [1]);
    assert_eq!(targets.handle(1, &late), Verdict::Accepted);
    targets.post(9);
    for _ in 0..3 {
        assert_eq!(targets.handle(1, &send(&mut other, 1)), Verdict::Accepted);
    }
    assert_eq!(targets.contexts(), [1, 2, 3, 9]);
}

//= protocol.md: shared.6, fault.2
#[test]
fn a_shared_receive_at_fault_completes_with_it_and_the_others_go_back() {
    let mut targets = Targets::new(1, 16);
    let short = Receive { length: 4, ..targets.receive(0) };
    let beyond = Receive { offset: MEMORY_BYTES - 4, ..targets.receive(0) };
    let nowhere = Receive { region: RegionId::NONE, ..targets.receive(0) };
    let wraps = Receive { offset: u64::MAX - 2, ..targets.receive(0) };
    for (bad, reason, error) in [
        (short, CloseReason::MessageTooLong, OperationError::MessageTooLong),
        (beyond, CloseReason::LocalMemoryGone, OperationError::LocalAccess),
        (nowhere, CloseReason::LocalMemoryGone, OperationError::LocalAccess),
        (wraps, CloseReason::LocalMemoryGone, OperationError::LocalAccess),
    ] {
        targets.shared.post(bad).unwrap();
        targets.post(1);
        targets.post(2);
        targets.post(3);
        let mut script = SCRIPT;
        let frames: Vec<_> = (0..2).map(|index| send(&mut script, index)).collect();
        assert_eq!(targets.handle(0, &frames[1]), Verdict::Accepted);
        let operation = OperationNumber(0);
        let verdict = targets.handle(0, &frames[0]);
        assert_eq!(verdict, Verdict::Violation { reason, operation });
        targets.flush(0);
        let results: Vec<_> =
            targets.completions().iter().map(|found| (found.context, found.result)).collect();
        assert_eq!(results, [(0, Err(error))]);
        assert_eq!(targets.shared.len(), 3);
        assert!(targets.pools.take_refilled().is_none());
        targets = Targets::new(1, 16);
    }
}

#[test]
fn a_connection_that_ends_waits_no_more() {
    let mut targets = Targets::new(2, 16);
    for index in 0..2 {
        assert_eq!(targets.handle(index, &send(&mut SCRIPT.clone(), 1)), NOT_READY(0));
    }
    targets.flush(0);
    assert_eq!(targets.post(0), [1]);
    assert_eq!(targets.shared.len(), 0);
}

#[test]
fn the_limit_is_told_once_and_at_once_if_there_are_fewer() {
    let mut targets = Targets::new(1, 16);
    assert!(targets.shared.arm_limit(1));
    for context in 0..6 {
        targets.post(context);
    }
    assert!(!targets.shared.arm_limit(4));
    let mut script = SCRIPT;
    let mut below = || {
        assert_eq!(targets.handle(0, &send(&mut script, 1)), Verdict::Accepted);
        targets.pools.take_below_limit().is_some()
    };
    assert_eq!([below(), below(), below(), below()], [false, false, true, false]);
    assert!(!targets.shared.arm_limit(2));
    assert!(!targets.shared.arm_limit(0));
    assert_eq!(targets.handle(0, &send(&mut script, 1)), Verdict::Accepted);
    assert!(targets.pools.take_below_limit().is_none());
}

#[test]
fn a_connection_that_shares_receives_has_none_of_its_own() {
    let mut targets = Targets::new(1, 2);
    let memory = targets.table.access();
    let receive = targets.receive(0);
    let inbound = &mut targets.connections[0].0;
    assert_eq!(inbound.post_receive(&memory, receive), Err(PostError::ReceivesShared));
    let list = PieceList::new(&[]).unwrap();
    let posted = inbound.post_receive_list(&memory, &mut targets.pools, list, 0);
    assert_eq!(posted, Err(PostError::ReceivesShared));
    assert_eq!(
        (targets.shared.post(receive), targets.shared.post(receive)),
        (Ok(false), Ok(false))
    );
    assert_eq!(targets.shared.post(receive), Err(PostError::ReceiveQueueFull(2)));
    assert_eq!(targets.shared.post_list(list, 0), Err(PostError::ReceiveQueueFull(2)));
}

#[test]
fn a_connection_at_rest_keeps_its_place_among_those_that_wait() {
    let mut targets = Targets::new(1, 4);
    let frame = send(&mut SCRIPT.clone(), 1);
    assert_eq!(targets.handle(0, &frame), NOT_READY(0));
    let inbound = &mut targets.connections[0].0;
    *inbound = inbound.rest().wake(Owner::new(0, 1), LIMITS, &targets.queues, true);
    assert_eq!(inbound.lacks_receive(), Some(MessageNumber(0)));
    assert_eq!(targets.post(3), [0]);
    let inbound = &mut targets.connections[0].0;
    *inbound = inbound.rest().wake(Owner::new(0, 1), LIMITS, &targets.queues, true);
    assert_eq!(targets.handle(0, &frame), Verdict::Accepted);
    assert_eq!(targets.contexts(), [3]);
}

#[test]
fn lists_of_pieces_are_shared_and_given_back_like_other_receives() {
    let mut targets = Targets::new(2, 4);
    let piece = Piece { region: targets.region.id, offset: 16, length: 4 };
    let pieces = [piece, Piece { offset: 100, ..piece }];
    let list = PieceList::new(&pieces).unwrap();
    for context in 0..2 {
        assert_eq!(targets.shared.post_list(list, context), Ok(false));
    }
    let mut script = SCRIPT;
    let frames: Vec<_> = (0..2).map(|_| send(&mut script, 7)).collect();
    assert_eq!(targets.handle(0, &frames[1]), Verdict::Refused(Refusal::Pool));
    assert_eq!(targets.pools.in_use().lists, 1);
    targets.flush(0);
    assert_eq!(targets.pools.in_use().lists, 0);
    for frame in &frames {
        assert_eq!(targets.handle(1, frame), Verdict::Accepted);
    }
    assert_eq!(targets.contexts(), [0, 1]);
    let mut bytes = vec![0; MEMORY_BYTES as usize];
    targets.memory.read(0, &mut bytes);
    assert_eq!((&bytes[16..20], &bytes[100..104]), (&[7; 4][..], &[7; 4][..]));
    assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 8);
    assert_eq!(targets.pools.in_use(), PoolUse::default());
}

/// What a peer has to send, and what it knows of the target.
struct Peer {
    frames: Vec<Frame>,
    /// Operations from this one on are kept back.
    held: Option<u32>,
    /// Length, immediate and kind of each message, in order.
    messages: Vec<(u32, Option<u32>, bool)>,
    operations: u32,
    ended: bool,
}

impl Peer {
    fn new(targets: &Targets, random: &mut Random, seed: u64) -> Self {
        let mut script = Script::new(flags_of(seed), 60 + random.below(60));
        let (mut frames, mut messages) = (Vec::new(), Vec::new());
        let operations = random.below(24) as u32;
        let (key, start) = targets.place();
        for index in 0..operations {
            let bytes = vec![index as u8; random.below(250)];
            let immediate = random.chance(50).then_some(index);
            let is_write = random.chance(50);
            if !is_write || immediate.is_some() {
                messages.push((bytes.len() as u32, immediate, is_write));
            }
            frames.extend(if is_write {
                script.write((key, start + 4096), &bytes, immediate)
            } else {
                script.send(&bytes, immediate)
            });
        }
        Self { frames, held: None, messages, operations, ended: false }
    }

    /// One frame that a requester might send now.
    fn next(&self, random: &mut Random) -> Option<&Frame> {
        let frame = self.frames.get(random.below(self.frames.len().max(1)))?;
        (self.held.is_none_or(|held| frame.operation() < held)).then_some(frame)
    }

    fn hear(&mut self, verdict: Verdict, operation: u32) {
        match verdict {
            Verdict::Refused(Refusal::NotReady(_)) => {
                self.held = Some(self.held.map_or(operation, |held| held.min(operation)));
            }
            Verdict::Violation { .. } => panic!("an honest frame is a violation: {verdict:?}"),
            _ => {}
        }
    }
}

//= protocol.md: shared.2, shared.3, shared.4, shared.5, shared.6
#[test]
fn every_message_meets_one_shared_receive_whatever_happens_between_connections() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut targets = Targets::new(5, 64);
        let mut peers: Vec<_> = (0..5).map(|_| Peer::new(&targets, &mut random, seed)).collect();
        let (mut posted, mut steps) = (0_u64, 0);
        let is_done = |targets: &Targets, peers: &[Peer]| {
            peers.iter().zip(&targets.connections).all(|(peer, (inbound, _))| {
                peer.ended || inbound.delivered() == OperationNumber(peer.operations)
            })
        };
        while !is_done(&targets, &peers) {
            steps += 1;
            assert!(steps < 200_000, "seed {seed}: no end");
            if random.chance(4) && targets.shared.len() < 20 {
                let count = random.below(4) as u64;
                for context in posted..posted + count {
                    targets.shared.post(targets.receive(context)).unwrap();
                }
                posted += count;
                targets.tell_ready().into_iter().for_each(|index| peers[index].held = None);
            }
            let index = random.below(5);
            if random.chance(1) && random.chance(5) && !peers[index].ended {
                peers[index].ended = true;
                targets.flush(index);
                if targets.pools.take_refilled().is_some() {
                    targets.tell_ready().into_iter().for_each(|index| peers[index].held = None);
                }
            }
            if peers[index].ended {
                continue;
            }
            let Some(frame) = peers[index].next(&mut random).cloned() else { continue };
            let verdict = targets.handle(index, &frame);
            peers[index].hear(verdict, frame.operation());
            let waits = targets.connections[index].0.lacks_receive().is_some();
            assert!(peers[index].held.is_none() || waits, "nobody would tell the peer to go on");
        }
        let completions = targets.completions();
        for (index, peer) in peers.iter().enumerate() {
            let own = completions.iter().filter(|found| found.owner.index() == index as u32);
            let seen: Vec<_> =
                own.map(|found| (found.bytes, found.immediate, found.is_of_write())).collect();
            assert_eq!(seen[..], peer.messages[..seen.len()], "seed {seed}");
            assert!(peer.ended || seen.len() == peer.messages.len());
        }
        for index in 0..5 {
            targets.flush(index);
        }
        let mut contexts: Vec<_> = completions.iter().map(|found| found.context).collect();
        contexts.sort_unstable();
        let consumed = contexts.len();
        contexts.dedup();
        assert_eq!(contexts.len(), consumed, "seed {seed}: a receive was consumed twice");
        assert_eq!(targets.shared.len() + consumed, posted as usize, "seed {seed}: one is lost");
        assert_eq!(targets.pools.in_use(), PoolUse::default());
    }
}
