//! Tests of several connections that take their receives from one queue.

use std::sync::Arc;

use mem::{
    Buffer, MemoryTable, ProtectionDomain, Reach, Region, RegionId, Rights, TableLimits, Window,
};
use proptest::prelude::*;
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey,
};

use super::lies::{Lie, lie};
use super::pair::{MEMORY_BYTES, POOLS, Random};
use super::queue_pair::flags_of;
use super::script::{Frame, Script};
use crate::inbound::{Inbound, InboundLimits, Refusal, Surroundings, Verdict};
use crate::limits::SHARED_WINDOW;
use crate::outbound::{Outbound, PeerLimits};
use crate::pools::{PoolUse, Pools};
use work::SharedReceives;
use work::{
    Completion, CompletionQueue, OperationError, Owner, Piece, PieceList, PostError, Queues,
    Receive, StatusTable,
};

const LIMITS: InboundLimits = InboundLimits {
    operation_window: 64,
    read_depth: 4,
    order_pool_bytes: 64 * 1024,
    receives: 4,
    rights: Rights::ALL,
    patches: true,
};

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
        let pools = Pools::new(&POOLS, Arc::new(StatusTable::new(1)));
        let connections = Vec::new();
        let mut targets =
            Self { table, domain, memory, region, pools, queues, shared, connections };
        targets.connections = (0..count).map(|index| targets.connection(index, 1)).collect();
        targets
    }

    fn connection(&self, index: u32, life: u32) -> (Inbound, Outbound) {
        let peer = PeerLimits {
            operation_window: 64,
            read_depth: 1,
            order_pool_bytes: 1024,
            credit: MessageNumber(0),
            patches: true,
        };
        let owner = Owner::new(index, life);
        let mut inbound = Inbound::new(owner, self.domain, LIMITS, &self.queues);
        inbound.be_queue_pair();
        inbound.share_receives(Arc::clone(&self.shared));
        (inbound, Outbound::new(owner, peer, &self.queues))
    }

    fn handle(&mut self, index: usize, frame: &Frame) -> Verdict {
        let memory = self.table.access();
        let (inbound, outbound) = &mut self.connections[index];
        let mut around = Surroundings { memory: &memory, pools: &mut self.pools, outbound };
        inbound.handle(&mut around, frame.flags, &frame.header, &frame.payload[..])
    }

    /// Makes waiting connections take the remaining receives, and returns these connections. Their
    /// peers are honest.
    fn notify_ready(&mut self) -> Vec<usize> {
        let ready = self.ready_and_verdicts().map(|(index, verdict)| {
            assert_eq!(verdict, Verdict::Accepted);
            index
        });
        ready.collect()
    }

    fn ready_and_verdicts(&mut self) -> impl Iterator<Item = (usize, Verdict)> + '_ {
        core::iter::from_fn(|| {
            let index = self.shared.next_ready()?.index() as usize;
            let memory = self.table.access();
            let (inbound, outbound) = &mut self.connections[index];
            let mut around = Surroundings { memory: &memory, pools: &mut self.pools, outbound };
            Some((index, inbound.on_ready(&mut around)))
        })
    }

    fn receive(&self, context: u64) -> Receive {
        Receive { region: self.region.id, offset: 0, length: 256, context }
    }

    fn post(&mut self, context: u64) -> Vec<usize> {
        let is_waited_for = self.shared.post(self.receive(context)).unwrap();
        let ready = self.notify_ready();
        assert_eq!(is_waited_for, !ready.is_empty());
        ready
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
fn a_connection_with_shared_receives_grants_messages_beyond_posted_receives() {
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
fn a_message_beyond_the_grant_is_a_violation_and_consumes_nothing() {
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
fn the_longest_waiting_message_gets_the_next_receive_and_none_overtakes_it() {
    let mut targets = Targets::new(3, 8);
    let frames: Vec<_> = (0..3).map(|index| send(&mut SCRIPT.clone(), index + 1)).collect();
    for index in [1, 0, 1] {
        assert_eq!(targets.handle(index, &frames[index]), NOT_READY(0));
    }
    assert_eq!(targets.connections[1].0.lacks_receive(), Some(MessageNumber(0)));
    assert!(targets.shared.post(targets.receive(7)).unwrap());
    // The queue has one receive, and two connections wait for it.
    assert_eq!(targets.handle(2, &frames[2]), NOT_READY(0));
    assert_eq!(targets.notify_ready(), [1]);
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

//= protocol.md: shared.2
#[test]
fn the_first_message_without_a_receive_is_reported() {
    let mut targets = Targets::new(1, 8);
    let mut script = SCRIPT;
    let frames: Vec<_> = (0..4).map(|index| send(&mut script, index)).collect();
    for (message, first) in [(2, 2), (3, 2), (0, 0), (1, 0)] {
        assert_eq!(targets.handle(0, &frames[message]), NOT_READY(message as u32));
        let lacks = targets.connections[0].0.lacks_receive();
        assert_eq!(lacks, Some(MessageNumber(first)));
    }
}

//= protocol.md: shared.3
#[test]
fn a_thousand_waiting_connections_are_served_in_turn() {
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
fn early_messages_of_one_connection_leave_receives_for_others() {
    let mut targets = Targets::new(2, 64);
    for context in 0..10 {
        targets.post(context);
    }
    let mut script = SCRIPT;
    let frames: Vec<_> = (0..20).map(|index| send(&mut script, index)).collect();
    let pool = Verdict::Refused(Refusal::Pool);
    // The first five messages take five receives.
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
fn unconsumed_receives_of_a_connection_go_to_waiting_messages_or_to_the_queue_front() {
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
    assert_eq!(targets.notify_ready(), [1]);
    assert_eq!(targets.handle(1, &late), Verdict::Accepted);
    targets.post(9);
    for _ in 0..3 {
        assert_eq!(targets.handle(1, &send(&mut other, 1)), Verdict::Accepted);
    }
    assert_eq!(targets.contexts(), [1, 2, 3, 9]);
}

//= protocol.md: shared.6, fault.2
#[test]
fn a_faulty_shared_receive_completes_with_its_error_and_the_others_are_returned() {
    let good = Targets::new(1, 1).receive(0);
    let gone = (CloseReason::LocalMemoryGone, OperationError::LocalAccess);
    let too_long = (CloseReason::MessageTooLong, OperationError::MessageTooLong);
    for (bad, (reason, error)) in [
        (Receive { length: 4, ..good }, too_long),
        (Receive { offset: MEMORY_BYTES - 4, ..good }, gone),
        (Receive { offset: u64::MAX - 2, ..good }, gone),
        (Receive { region: RegionId::NONE, ..good }, gone),
    ] {
        let mut targets = Targets::new(1, 16);
        let is_nowhere = bad.region == RegionId::NONE;
        let region = if is_nowhere { bad.region } else { targets.region.id };
        targets.shared.post(Receive { region, ..bad }).unwrap();
        for context in 1..4 {
            targets.post(context);
        }
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
    }
}

#[test]
fn an_ended_connection_waits_for_no_receive() {
    let mut targets = Targets::new(2, 16);
    for index in 0..2 {
        assert_eq!(targets.handle(index, &send(&mut SCRIPT.clone(), 1)), NOT_READY(0));
    }
    targets.flush(0);
    assert_eq!(targets.post(0), [1]);
    assert_eq!(targets.shared.len(), 0);
}

#[test]
fn the_limit_is_reported_once_and_immediately_if_already_crossed() {
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
fn a_connection_with_shared_receives_has_none_of_its_own() {
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
fn a_compressed_connection_keeps_its_place_among_the_waiting_ones() {
    let mut targets = Targets::new(1, 4);
    let frame = send(&mut SCRIPT.clone(), 1);
    assert_eq!(targets.handle(0, &frame), NOT_READY(0));
    let inbound = &mut targets.connections[0].0;
    *inbound = inbound.rest().wake(Owner::new(0, 1), LIMITS, &targets.queues);
    assert_eq!(inbound.lacks_receive(), Some(MessageNumber(0)));
    assert_eq!(targets.post(3), [0]);
    let inbound = &mut targets.connections[0].0;
    *inbound = inbound.rest().wake(Owner::new(0, 1), LIMITS, &targets.queues);
    assert_eq!(targets.handle(0, &frame), Verdict::Accepted);
    assert_eq!(targets.contexts(), [3]);
}

#[test]
fn sge_lists_are_shared_and_returned_like_other_receives() {
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

/// The frames that a peer must send, and the reports that the target has sent to it.
struct Peer {
    frames: Vec<Frame>,
    /// The first operation that the peer does not send yet. It does not send later operations
    /// either.
    held: Option<u32>,
    /// Length, immediate and kind of each message, in order.
    messages: Vec<(u32, Option<u32>, bool)>,
    operations: u32,
    /// The operation that is at fault: it names a key that does not exist.
    at_fault: Option<u32>,
    ended: bool,
}

impl Peer {
    fn new(targets: &Targets, random: &mut Random, seed: u64) -> Self {
        let mut script = Script::new(flags_of(seed), 60 + random.below(60));
        let (mut frames, mut messages) = (Vec::new(), Vec::new());
        let operations = random.below(24) as u32;
        let (key, start) = targets.place();
        let at_fault = random.chance(20).then(|| random.below(24) as u32);
        for index in 0..operations {
            if at_fault == Some(index) {
                frames.extend(script.write((RemoteKey(5), start), &[1; 100], None));
                continue;
            }
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
        Self { frames, held: None, messages, operations, at_fault, ended: false }
    }

    /// Returns a random frame of the peer; `None` if the peer may not send this frame now.
    fn next(&self, random: &mut Random) -> Option<&Frame> {
        let frame = self.frames.get(random.below(self.frames.len().max(1)))?;
        (self.held.is_none_or(|held| frame.operation() < held)).then_some(frame)
    }

    /// Handles a verdict. Returns whether the connection continues.
    fn hear(&mut self, verdict: Verdict, operation: u32) -> bool {
        match verdict {
            Verdict::Refused(Refusal::NotReady(_)) => {
                self.held = Some(self.held.map_or(operation, |held| held.min(operation)));
            }
            Verdict::Violation { reason, operation } => {
                assert_eq!(reason, CloseReason::UnknownKey);
                assert_eq!(Some(operation.0), self.at_fault);
                return false;
            }
            _ => {}
        }
        true
    }
}

/// Several peers of one endpoint. All peers are honest, but some of their operations are at fault.
struct Interplay {
    random: Random,
    targets: Targets,
    peers: Vec<Peer>,
    posted: u64,
}

impl Interplay {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let targets = Targets::new(5, 64);
        let peers = (0..5).map(|_| Peer::new(&targets, &mut random, seed)).collect();
        Self { random, targets, peers, posted: 0 }
    }

    fn is_done(&self) -> bool {
        self.peers.iter().zip(&self.targets.connections).all(|(peer, (inbound, _))| {
            peer.ended || inbound.delivered() == OperationNumber(peer.operations)
        })
    }

    fn post_some(&mut self) {
        for _ in 0..self.random.below(4) {
            let (shared, plain) = (&self.targets.shared, self.targets.receive(self.posted));
            let offset = self.random.below(1000) as u64;
            let pieces = [Piece { region: plain.region, offset, length: 64 }; 4];
            let list = PieceList::new(&pieces).unwrap();
            let posted = if self.random.chance(30) {
                shared.post_list(list, self.posted)
            } else {
                shared.post(plain)
            };
            posted.unwrap();
            self.posted += 1;
        }
        self.notify_ready();
    }

    fn notify_ready(&mut self) {
        let ready: Vec<_> = self.targets.ready_and_verdicts().collect();
        for (index, verdict) in ready {
            self.peers[index].held = None;
            // A waiting message may have been delivered now. If so, a faulty operation after it may
            // be the first undelivered one.
            if !self.peers[index].hear(verdict, 0) {
                self.end(index);
            }
        }
    }

    fn end(&mut self, index: usize) {
        self.peers[index].ended = true;
        self.targets.flush(index);
        if self.targets.pools.take_refilled().is_some() {
            self.notify_ready();
        }
    }

    /// Delivers a random frame of a random peer.
    fn step(&mut self) {
        let index = self.random.below(5);
        if self.peers[index].ended {
            return;
        }
        let Some(frame) = self.peers[index].next(&mut self.random).cloned() else { return };
        let verdict = self.targets.handle(index, &frame);
        let goes_on = self.peers[index].hear(verdict, frame.operation());
        let (inbound, _) = &self.targets.connections[index];
        let peer = &mut self.peers[index];
        if goes_on && !(self.random.chance(1) && self.random.chance(5)) {
            let waits = inbound.lacks_receive().is_some();
            assert!(peer.held.is_none() || waits, "the peer would get no report");
            return;
        }
        assert!(goes_on || peer.at_fault == Some(inbound.delivered().0), "the fault is early");
        self.end(index);
    }

    /// Checks that each receive was consumed once or is still posted. Also checks that messages
    /// were reported in order.
    fn check(mut self) {
        let completions = self.targets.completions();
        for (index, peer) in self.peers.iter().enumerate() {
            let own = completions.iter().filter(|found| found.owner.index() == index as u32);
            let seen: Vec<_> =
                own.map(|found| (found.bytes, found.immediate, found.is_of_write())).collect();
            assert_eq!(seen[..], peer.messages[..seen.len()]);
            assert!(peer.ended || seen.len() == peer.messages.len());
            self.targets.flush(index);
        }
        let mut contexts: Vec<_> = completions.iter().map(|found| found.context).collect();
        contexts.sort_unstable();
        let consumed = contexts.len();
        contexts.dedup();
        assert_eq!(contexts.len(), consumed, "a receive was consumed twice");
        assert_eq!(self.targets.shared.len() + consumed, self.posted as usize, "one is lost");
        assert_eq!(self.targets.pools.in_use(), PoolUse::default());
    }
}

//= protocol.md: shared.2, shared.3, shared.4, shared.5, shared.6, fault.1
#[test]
fn every_message_consumes_one_shared_receive_under_any_interleaving() {
    for seed in 0..150 {
        let mut interplay = Interplay::new(seed);
        let mut steps = 0;
        while !interplay.is_done() {
            if interplay.random.chance(4) && interplay.targets.shared.len() < 20 {
                interplay.post_some();
            }
            interplay.step();
            steps += 1;
            assert!(steps < 200_000, "seed {seed}: no end");
        }
        interplay.check();
    }
}

impl Lie {
    /// Returns the frame of a peer. The frame may name a region, a window or an unknown key.
    fn frame(&self, targets: &Targets) -> Frame {
        let operation = OperationNumber(self.number);
        let keys = [targets.region.key, WINDOW, RemoteKey(5), targets.region.key];
        let key = keys[usize::from(self.key) % 4];
        let offset = if self.length == 0 { 0 } else { self.offset };
        let address = targets.region.start + self.address + u64::from(offset);
        let mut flags = Flags(self.flags & 0b1111);
        if self.length == 0 || self.kind > 3 {
            flags = flags.with(Flags::LAST);
        }
        let is_last = flags.contains(Flags::LAST);
        let immediate = (is_last && self.then.is_multiple_of(2)).then_some(7);
        let message = MessageNumber(u32::from(self.key));
        let header = match self.kind {
            0 | 1 => Header::Write { operation, offset, key, address, immediate },
            2 => Header::Send { operation, offset, message, immediate },
            3 => {
                let key = is_last.then_some(key);
                Header::SendInvalidate { operation, offset, message, key }
            }
            4 => Header::ReadRequest { operation, length: offset, key, address },
            _ => {
                let (opcode, operand, compare) = (AtomicOpcode::FetchAdd, 1, 0);
                Header::Atomic { operation, opcode, key, address, operand, compare }
            }
        };
        let length = if self.kind > 3 { 0 } else { usize::from(self.length) };
        Frame { flags, header, payload: vec![1; length] }
    }
}

const WINDOW: RemoteKey = RemoteKey(0x1234_5678);

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    //= protocol.md: peer.2
    /// Sends arbitrary frames that the decoder accepts, to connections that end and start again.
    #[test]
    fn no_sequence_of_frames_to_queue_pairs_panics_or_loses_a_receive(
        lies in proptest::collection::vec((0..3_usize, lie()), 1..200),
    ) {
        let mut targets = Targets::new(3, 16);
        let (mut posted, mut completed) = (0, 0);
        let mut lives = [1; 3];
        for (index, lie) in lies {
            let frame = lie.frame(&targets);
            targets.handle(index, &frame);
            match lie.then {
                0..6 => {
                    let receive = Receive { length: u32::from(lie.length), ..targets.receive(posted) };
                    posted += u64::from(targets.shared.post(receive).is_ok());
                    for _ in targets.ready_and_verdicts() {}
                }
                6..9 => {
                    let piece = Piece { region: targets.region.id, offset: lie.address, length: 50 };
                    let pieces = [piece; 5];
                    let list = PieceList::new(&pieces).unwrap();
                    posted += u64::from(targets.shared.post_list(list, posted).is_ok());
                    for _ in targets.ready_and_verdicts() {}
                }
                9 => {
                    let (region, remote_start) = (targets.region.id, targets.region.start);
                    let reach = Reach::Connection(Owner::new(index as u32, lives[index]).bits());
                    let rights = Rights::REMOTE_WRITE.union(Rights::REMOTE_READ);
                    let window =
                        Window { region, offset: 0, len: 4000, remote_start, rights, reach };
                    let _ = targets.table.bind(WINDOW, window);
                }
                10 => {
                    targets.flush(index);
                    let (_, outbound) = &mut targets.connections[index];
                    outbound.flush(&mut targets.pools, OperationError::Flushed, None);
                    while targets.pools.take_refilled().is_some() {
                        for _ in targets.ready_and_verdicts() {}
                    }
                    lives[index] += 1;
                    targets.connections[index] = targets.connection(index as u32, lives[index]);
                }
                11 => {
                    let (inbound, _) = &mut targets.connections[index];
                    if inbound.is_at_rest() {
                        let owner = Owner::new(index as u32, lives[index]);
                        *inbound = inbound.rest().wake(owner, LIMITS, &targets.queues);
                    }
                }
                _ => {}
            }
            completed += targets.completions().len();
            let waits = targets.connections.iter().any(|(inbound, _)| inbound.lacks_receive().is_some());
            prop_assert!(!waits || targets.shared.is_empty(), "one waits, and there is a receive");
        }
        for index in 0..3 {
            targets.flush(index);
            let (_, outbound) = &mut targets.connections[index];
            outbound.flush(&mut targets.pools, OperationError::Flushed, None);
        }
        completed += targets.completions().len();
        prop_assert_eq!(completed + targets.shared.len(), posted as usize);
        prop_assert_eq!(targets.pools.in_use(), PoolUse::default());
    }
}
