//! Tests receives that one thread posts while another thread is inside the engine.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::{Arc, mpsc};
use std::thread;

use mem::{Buffer, MemoryTable, Rights, TableLimits};
use semantics::{
    CompletionQueue, Inbound, InboundLimits, Outbound, Owner, PeerLimits, PoolLimits, Pools,
    Queues, Receive, SharedReceives, StatusTable, Surroundings, Verdict,
};
use wire_edge::{Flags, Header, MessageNumber, OperationNumber};

const COUNT: u64 = if cfg!(miri) { 50 } else { 20_000 };

/// Posts receives. If a connection waits for a receive, notifies the other thread.
fn post_all(shared: &SharedReceives, receive: Receive, ring: &mpsc::Sender<()>) {
    let mut posted = 0;
    while posted < COUNT {
        match shared.post(Receive { context: posted, ..receive }) {
            Ok(is_waited_for) => {
                posted += 1;
                if is_waited_for {
                    ring.send(()).unwrap();
                }
            }
            Err(_) => thread::yield_now(),
        }
    }
}

//= protocol.md: shared.3
#[test]
fn a_receive_posted_by_another_thread_wakes_the_waiting_connection() {
    let table = MemoryTable::new(TableLimits::default(), [3, 4]);
    let domain = table.allocate_domain();
    let region = table.register(domain, Buffer::new(64), Rights::LOCAL_WRITE).unwrap();
    let queue = Arc::new(CompletionQueue::new(16));
    let queues = Queues::of_queue_pair(Arc::clone(&queue), Arc::clone(&queue));
    let limits = InboundLimits {
        operation_window: 8,
        read_depth: 1,
        order_pool_bytes: 64,
        receives: 1,
        rights: Rights::ALL,
        patches: true,
    };
    let peer = PeerLimits {
        operation_window: 8,
        read_depth: 1,
        order_pool_bytes: 64,
        credit: MessageNumber(0),
        patches: true,
    };
    let shared = Arc::new(SharedReceives::new(8));
    let mut inbound = Inbound::new(Owner::new(0, 1), domain, limits, &queues);
    inbound.be_queue_pair();
    inbound.share_receives(Arc::clone(&shared));
    let mut outbound = Outbound::new(Owner::new(0, 1), peer, &queues);
    let mut pools = Pools::new(&PoolLimits::default(), Arc::new(StatusTable::new(1)));

    let receive = Receive { region: region.id, offset: 0, length: 64, context: 0 };
    let (ring, rung) = mpsc::channel();
    let poster = thread::spawn({
        let shared = Arc::clone(&shared);
        move || post_all(&shared, receive, &ring)
    });
    for number in 0..COUNT {
        let (operation, message) = (OperationNumber(number as u32), MessageNumber(number as u32));
        let header = Header::Send { operation, offset: 0, message, immediate: None };
        loop {
            let memory = table.access();
            let outbound = &mut outbound;
            let mut around = Surroundings { memory: &memory, pools: &mut pools, outbound };
            if inbound.handle(&mut around, Flags::LAST, &header, &[1; 8][..]) == Verdict::Accepted {
                break;
            }
            while shared.next_ready().is_none() {
                rung.recv().expect("a waiting connection is notified of the next receive");
            }
            assert_eq!(inbound.on_ready(&mut around), Verdict::Accepted);
        }
        assert_eq!(queue.poll().map(|found| found.context), Some(number));
    }
    poster.join().unwrap();
}
