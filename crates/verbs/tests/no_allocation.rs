//! Checks that posting, taking, completing, polling and flushing work do not allocate memory.

#[path = "../../runtime/tests/counting/mod.rs"]
mod counting;
#[expect(dead_code, reason = "its wire carries nothing here")]
#[path = "rules/loopback.rs"]
mod loopback;

use std::sync::Arc;

use verbs::{
    AttributeMask, Device, Modification, Provider, QueuePair, QueuePairAttributes, QueuePairInit,
    QueuePairLimits, QueuePairState, QueuePairType, ReceiveRequest, SendFlags, SendOpcode,
    SendRequest, WorkCompletion,
};
use work::{Completion, CompletionKind, Owner, Push};

use counting::allocations;
use loopback::Loopback;

fn go(queue_pair: &QueuePair, state: QueuePairState, mask: u32) {
    let path = verbs::AddressVectorAttributes {
        is_global: true,
        port: 1,
        ..verbs::AddressVectorAttributes::default()
    };
    let attributes =
        QueuePairAttributes { path_mtu: 1024, port: 1, path, ..QueuePairAttributes::default() };
    let current = queue_pair.state();
    let mask = AttributeMask(mask);
    let change = Modification { mask, state, current, drained_event: false, attributes };
    queue_pair.modify(&change).expect("a transition");
}

fn send(inline: &[u8]) -> SendRequest<'_> {
    SendRequest {
        id: 1,
        opcode: SendOpcode::Send { immediate: None },
        flags: SendFlags { signalled: true, ..SendFlags::default() },
        pieces: &[],
        inline: Some(inline),
        to: None,
    }
}

/// Acts as the wire (the transport of the queue pair): takes a send and a receive and completes
/// both.
fn carry(queue_pair: &QueuePair, queue: &work::CompletionQueue, owner: Owner) {
    let sent = queue_pair.next_send().map(|send| send.sequence()).expect("a send");
    queue_pair.send_taken();
    let received = queue_pair.next_receive().map(|receive| receive.sequence()).expect("a receive");
    queue_pair.receive_taken();
    for (context, kind) in [(sent, CompletionKind::Send), (received, CompletionKind::Receive)] {
        let completion = Completion {
            context,
            owner,
            kind,
            result: Ok(()),
            bytes: 0,
            immediate: None,
            solicited: false,
            value: 0,
        };
        assert_eq!(queue.push(&completion), Push::Added);
    }
}

#[test]
fn posting_performing_and_polling_work_allocates_nothing() {
    let device = Loopback::new();
    let context = Device::new(device.clone()).open().expect("a context");
    let domain = context.allocate_domain().expect("a domain");
    let queue = context.create_completion_queue(64, None).expect("a queue");
    let init = QueuePairInit {
        service: QueuePairType::Reliable,
        send_queue: Arc::clone(&queue),
        receive_queue: Arc::clone(&queue),
        shared_queue: None,
        limits: QueuePairLimits { sends: 16, receives: 16, ..QueuePairLimits::default() },
        signals_all: false,
    };
    let queue_pair = domain.create_queue_pair(&init).expect("a queue pair");
    go(&queue_pair, QueuePairState::Init, 0x39);
    go(&queue_pair, QueuePairState::ReadyToReceive, 0x12_9181);
    go(&queue_pair, QueuePairState::ReadyToSend, 0x1_2e01);
    let owner = Owner::new(7, 7);
    device.registry().own(owner, &queue_pair);
    let mut out = [WorkCompletion::NOTHING; 4];
    let round = |out: &mut [WorkCompletion]| {
        queue_pair.post_receive(&[ReceiveRequest { id: 2, pieces: &[] }]).expect("a receive");
        queue_pair.post_send(&[send(b"by value")]).expect("a send");
        carry(&queue_pair, queue.work(), owner);
        assert_eq!(queue.poll(out), Ok(2));
    };
    // Warm up. The completion queue allocates memory when it first becomes full, and the first
    // inline send allocates memory too.
    for _ in 0..300 {
        round(&mut out);
    }
    let before = allocations();
    for _ in 0..100 {
        round(&mut out);
    }
    assert_eq!(allocations(), before, "posting and polling");

    go(&queue_pair, QueuePairState::Error, 1);
    let flush = |out: &mut [WorkCompletion]| {
        queue_pair.post_send(&[send(b"by value")]).expect("a send");
        assert_eq!(queue.poll(out), Ok(1));
    };
    flush(&mut out);
    let before = allocations();
    for _ in 0..100 {
        flush(&mut out);
    }
    assert_eq!(allocations(), before, "flushing");
}
