//! Tests of completions of queue pairs. Queue pairs reserve no room in their completion queues, and
//! an operation that reports no completion uses no room.

use std::sync::Arc;

use wire_edge::{MessageNumber, OperationNumber};

use super::pair::{Config, Pair, Side, flags, write};
use crate::inbound::{Inbound, InboundLimits};
use crate::outbound::{Outbound, PeerLimits};
use work::{
    CompletionKind, CompletionQueue, Operation, OperationFlags, Order, Owner, Queues, Receive,
};

const SIGNALLED: OperationFlags = flags(Order::Relaxed);
const UNSIGNALLED: OperationFlags = OperationFlags { signalled: false, ..SIGNALLED };

/// Returns a pair. The first side has a queue of `capacity` entries without reserved room.
fn pair(capacity: usize) -> Pair {
    Pair::new(Config { promises: false, queue: capacity, ..Config::default() }, 1)
}

/// Posts these operations, sends them, and reports all of them as delivered.
fn deliver(side: &mut Side, operations: &[Operation]) {
    for operation in operations {
        side.post(operation).unwrap();
    }
    while side.fragment(128).is_some() {}
    let delivered = OperationNumber(operations.len() as u32);
    assert!(side.outbound.on_delivered(&mut side.pools, delivered, MessageNumber(0)));
}

#[test]
fn unsignalled_work_of_a_queue_pair_takes_no_completion_slot() {
    let mut pair = pair(1);
    let mut writes: Vec<_> = (0..20).map(|i| write(&pair, i, 0, 8, UNSIGNALLED)).collect();
    writes.push(write(&pair, 20, 0, 8, SIGNALLED));
    let side = &mut pair.sides[0];
    deliver(side, &writes);
    assert!(!side.outbound.is_overrun());
    side.poll();
    assert_eq!(side.completions.iter().map(|found| found.context).collect::<Vec<_>>(), [20]);
    assert_eq!(side.completions[0].owner, Owner::new(7, 1));
}

#[test]
fn completions_beyond_the_room_overrun_a_queue_pair_and_keep_older_ones() {
    let mut pair = pair(2);
    let writes: Vec<_> = (0..3).map(|i| write(&pair, i, 0, 8, SIGNALLED)).collect();
    let side = &mut pair.sides[0];
    deliver(side, &writes);
    assert!(side.outbound.is_overrun() && side.queue.is_overrun());
    side.poll();
    assert_eq!(side.completions.iter().map(|found| found.context).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn receives_of_a_queue_pair_are_posted_beyond_the_room_for_completions() {
    let mut pair = pair(1);
    let side = &mut pair.sides[0];
    for context in 0..3 {
        side.post_receive(0, 8, context).unwrap();
    }
    assert!(!side.inbound.is_overrun());
}

#[test]
fn an_armed_queue_that_fires_is_reported_to_the_thread_that_wakes_its_waiters() {
    let mut pair = pair(8);
    let queues = [(); 2].map(|()| Arc::new(CompletionQueue::with_events(4)));
    let [send, receive] = [&queues[0], &queues[1]].map(Arc::clone);
    let side = &mut pair.sides[0];
    let peer = PeerLimits {
        operation_window: 8,
        read_depth: 1,
        order_pool_bytes: 1024,
        credit: MessageNumber(0),
        patches: true,
    };
    let terms = Queues::of_queue_pair(send, receive);
    side.outbound = Outbound::new(Owner::new(3, 9), peer, &terms);
    assert!(queues[0].arm(work::Arm::Next));
    let write = write(&pair, 0, 0, 8, SIGNALLED);
    let side = &mut pair.sides[0];
    deliver(side, &[write]);
    let fired = side.pools.take_fired().expect("it was armed");
    assert!(Arc::ptr_eq(&fired, &queues[0]));
    assert!(side.pools.take_fired().is_none());
    assert_eq!(queues[0].poll().map(|found| found.owner), Some(Owner::new(3, 9)));
}

#[test]
fn operations_and_receives_may_complete_to_different_queues() {
    let pair = pair(8);
    let side = &pair.sides[0];
    let queues = [(); 2].map(|()| Arc::new(CompletionQueue::new(4)));
    let [send, receive] = [&queues[0], &queues[1]].map(Arc::clone);
    let terms = Queues::of_queue_pair(send, receive);
    let limits = InboundLimits {
        operation_window: 8,
        read_depth: 1,
        order_pool_bytes: 1024,
        receives: 4,
        rights: mem::Rights::ALL,
        patches: true,
    };
    let mut inbound = Inbound::new(Owner::default(), side.domain, limits, &terms);
    let memory = side.table.access();
    let receive = Receive { region: side.region.id, offset: 0, length: 8, context: 5 };
    inbound.post_receive(&memory, receive).unwrap();
    drop(memory);
    let mut pair = pair;
    inbound.flush(&mut pair.sides[0].pools, work::OperationError::Flushed);
    assert!(queues[0].is_empty());
    let found = queues[1].poll().expect("flushed");
    assert_eq!((found.kind, found.context), (CompletionKind::Receive, 5));
}
