//! After the maximum number of datagrams has waited once, sending and receiving datagrams does not
//! allocate memory.

#[path = "../../runtime/tests/counting/mod.rs"]
mod counting;
mod pair;

use std::sync::Arc;

use counting::allocations;
use delivery::{LinkId, RxFrame};
use engine::{DatagramPort, Emitted, OutgoingDatagram, PortRequest};
use mem::Payload;
use pair::{Host, Pair, address};
use semantics::{Piece, PieceList, Receive};
use wire_edge::QueuePairNumber;

/// Number of receives and datagrams per turn.
const BURST: u64 = 64;

fn open(host: &mut Host, number: u32) -> DatagramPort {
    let request = PortRequest {
        number: QueuePairNumber::new(number).expect("24 bits"),
        key: 1,
        send: Arc::clone(&host.queue),
        receive: Arc::clone(&host.queue),
        receives_max: 1024,
        shared_receives: None,
    };
    host.engine.open_datagram_port(request).expect("a port")
}

/// Sends a burst of datagrams, which the second host receives immediately. Returns the number of
/// received datagrams.
fn exchange(pair: &mut Pair, ports: [DatagramPort; 2], frame: &mut Vec<u8>) -> u64 {
    let now = pair.now;
    let [sender, receiver] = &mut pair.hosts;
    let datagram = OutgoingDatagram {
        link: LinkId(0),
        to: address(1, 0),
        destination: ports[1].number(),
        key: 1,
        immediate: None,
        solicited: false,
        signalled: true,
        context: 0,
    };
    let (own, other) = (sender.memory.access(), receiver.memory.access());
    for at in 0..BURST {
        let (region, offset) = (receiver.region.id, at * 200);
        let receive = Receive { region, offset, length: 104, context: at };
        receiver.engine.post_datagram_receive(&other, ports[1], receive).expect("posted");
        let pieces = [Piece { region: sender.region.id, offset, length: 64 }];
        let list = PieceList::new(&pieces).expect("a list");
        sender.engine.post_datagram(&own, ports[0], &datagram, list).expect("posted");
    }
    sender.engine.poll_transmit(now, &own, &mut |link, batch| {
        for index in 0..batch.len() {
            frame.clear();
            frame.extend_from_slice(batch.frame(index).header);
            let frame = RxFrame {
                bytes: frame,
                outside: Payload::EMPTY,
                received_at: now,
                congestion_experienced: false,
                from: address(0, 0),
            };
            receiver.engine.handle_frame(now, &other, link, frame);
        }
        Emitted::Taken(batch.len())
    });
    while sender.queue.poll().is_some() {}
    std::iter::from_fn(|| receiver.queue.poll()).count() as u64
}

/// This file has only one test, because the allocator would also count the allocations of other
/// tests.
#[test]
fn ten_thousand_datagrams_allocate_nothing() {
    let mut pair = Pair::new(1);
    let [sender, receiver] = &mut pair.hosts;
    let ports = [open(sender, 1), open(receiver, 2)];
    let mut frame = Vec::with_capacity(256);
    for _ in 0..4 {
        assert_eq!(exchange(&mut pair, ports, &mut frame), BURST);
    }
    let before = allocations();
    for _ in 0..10_000 / BURST {
        assert_eq!(exchange(&mut pair, ports, &mut frame), BURST);
    }
    assert_eq!(allocations(), before);
}
