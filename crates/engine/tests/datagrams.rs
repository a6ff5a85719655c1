//! Tests of datagrams between ports of two endpoints: which datagrams arrive, which are dropped,
//! and which wait.

mod pair;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use delivery::{LinkEvent, LinkId, RxFrame};
use engine::{DatagramError, DatagramPort, Emitted, EngineConfig, OutgoingDatagram, PortRequest};
use mem::{AccessError, Payload};
use pair::{BUFFER_BYTES, Flight, Host, LinkPlan, Pair, address, caps, share_memory};
use semantics::{
    Completion, CompletionKind, CompletionQueue, OperationError, Piece, PieceList, Receive,
    Request, SharedReceives,
};
use wire_edge::{Datagram, PeerAddr, QueuePairNumber, route_header};

const KEY: u32 = 0x1111_2222;
/// Bytes of the route header.
const ROUTE: u32 = 40;

fn number(number: u32) -> QueuePairNumber {
    QueuePairNumber::new(number).expect("24 bits")
}

fn request(host: &Host, own: u32) -> PortRequest {
    let queue = &host.queue;
    let (send, receive) = (Arc::clone(queue), Arc::clone(queue));
    PortRequest {
        number: number(own),
        key: KEY,
        send,
        receive,
        receives_max: 16,
        shared_receives: None,
    }
}

/// Opens port 0xa0 on the first host and port 0xa1 on the second host.
fn ports(pair: &mut Pair) -> [DatagramPort; 2] {
    [0, 1].map(|host| open(pair, host, 0xa0 + host as u32))
}

fn open(pair: &mut Pair, host: usize, own: u32) -> DatagramPort {
    let request = request(&pair.hosts[host], own);
    pair.hosts[host].engine.open_datagram_port(request).expect("a port")
}

/// Returns a datagram from the first host to the port of the second host.
fn to_other(context: u64) -> OutgoingDatagram {
    OutgoingDatagram {
        link: LinkId(0),
        to: address(1, 0),
        destination: number(0xa1),
        key: KEY,
        immediate: None,
        solicited: false,
        signalled: true,
        context,
    }
}

fn piece(pair: &Pair, host: usize, offset: u64, length: u32) -> Piece {
    Piece { region: pair.hosts[host].region.id, offset, length }
}

fn post(
    pair: &mut Pair,
    port: DatagramPort,
    datagram: &OutgoingDatagram,
    pieces: &[Piece],
) -> Result<(), DatagramError> {
    let Host { engine, memory, .. } = &mut pair.hosts[0];
    let list = PieceList::new(pieces).expect("a list");
    engine.post_datagram(&memory.access(), port, datagram, list)
}

/// Sends a datagram with the first `length` bytes of memory.
fn send(pair: &mut Pair, port: DatagramPort, length: u32, context: u64) {
    let pieces = [piece(pair, 0, 0, length)];
    post(pair, port, &to_other(context), &pieces).expect("posted");
}

fn receive(pair: &mut Pair, port: DatagramPort, offset: u64, length: u32, context: u64) {
    let Host { engine, memory, region, .. } = &mut pair.hosts[1];
    let receive = Receive { region: region.id, offset, length, context };
    engine.post_datagram_receive(&memory.access(), port, receive).expect("posted");
}

fn read(pair: &Pair, host: usize, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    pair.hosts[host].buffer.read(offset, &mut bytes);
    bytes
}

fn contexts(done: &[Completion]) -> Vec<u64> {
    done.iter().map(|completion| completion.context).collect()
}

/// Passes a frame to the second host, as if it came from the first.
fn deliver(pair: &mut Pair, datagram: Datagram, payload: &[u8]) {
    let bytes = [&datagram.encode()[..], payload].concat();
    pair.deliver(&mut Flight { to: 1, link: 0, from: address(0, 0), bytes });
}

const GOOD: fn() -> Datagram = || Datagram {
    destination: number(0xa1),
    source: number(0xa0),
    key: KEY,
    immediate: None,
    solicited: false,
};

//= protocol.md: datagram.3, datagram.7
#[test]
fn a_datagram_arrives_behind_a_route_header_with_its_sender() {
    let mut pair = Pair::new(1);
    let [from, to] = ports(&mut pair);
    pair.fill(0, 1000);
    receive(&mut pair, to, 8192, 2000, 7);
    let datagram = OutgoingDatagram { immediate: Some(5), solicited: true, ..to_other(3) };
    let pieces = [piece(&pair, 0, 100, 700)];
    post(&mut pair, from, &datagram, &pieces).expect("posted");
    pair.turn(0);
    let sent = pair.done(0);
    assert_eq!(contexts(&sent), [3], "it is complete when it was handed over");
    assert_eq!((sent[0].kind, sent[0].bytes, sent[0].result), (CompletionKind::Send, 700, Ok(())));
    assert_eq!(sent[0].owner, from.owner());
    pair.run_for(1_000_000);
    let [done] = pair.done(1)[..] else { panic!("one receive") };
    let expected = Completion {
        context: 7,
        owner: to.owner(),
        kind: CompletionKind::Receive,
        result: Ok(()),
        bytes: 700 + ROUTE,
        immediate: Some(5),
        solicited: true,
        value: 0xa0,
    };
    assert_eq!(done, expected);
    assert_eq!(read(&pair, 1, 8192, ROUTE), route_header(address(0, 0), address(1, 0), 700));
    assert_eq!(read(&pair, 1, 8192 + 40, 700), read(&pair, 0, 100, 700));
    assert_eq!(pair.frames, 1, "nothing was answered");
    pair.assert_idle();
}

#[test]
fn a_datagram_is_gathered_from_sges_and_scattered_into_sges() {
    let mut pair = Pair::new(1);
    let [from, to] = ports(&mut pair);
    pair.fill(0, 4000);
    let Host { engine, memory, region, .. } = &mut pair.hosts[1];
    let piece_of = |offset, length| Piece { region: region.id, offset, length };
    let places = [piece_of(0, 40), piece_of(1000, 0), piece_of(2000, 33), piece_of(5000, 900)];
    let list = PieceList::new(&places).expect("a list");
    engine.post_datagram_receive_list(&memory.access(), to, list, 1).expect("posted");
    engine.post_datagram_receive_list(&memory.access(), to, list, 2).expect("posted");
    let pieces = [piece(&pair, 0, 10, 100), piece(&pair, 0, 3000, 0), piece(&pair, 0, 500, 300)];
    post(&mut pair, from, &to_other(1), &pieces).expect("posted");
    pair.run_for(1_000_000);
    let [done] = pair.done(1)[..] else { panic!("one receive") };
    assert_eq!((done.context, done.bytes), (1, 440));
    let sent = [read(&pair, 0, 10, 100), read(&pair, 0, 500, 300)].concat();
    assert_eq!([read(&pair, 1, 2000, 33), read(&pair, 1, 5000, 367)].concat(), sent);
    assert_eq!(read(&pair, 1, 0, 1), [0x60]);
    // The next datagram uses the entries of the next receive.
    pair.done(0);
    send(&mut pair, from, 0, 2);
    pair.run_for(1_000_000);
    let [done] = pair.done(1)[..] else { panic!("one receive") };
    assert_eq!((done.context, done.bytes), (2, ROUTE));
}

/// Returns the bytes after the route header in each receive.
fn bodies(pair: &Pair, receives: u64, len: u32) -> Vec<Vec<u8>> {
    (0..receives).map(|at| read(pair, 1, at * 200 + u64::from(ROUTE), len)).collect()
}

//= protocol.md: datagram.4, datagram.9
#[test]
fn datagrams_without_a_receive_wait_in_order() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    for body in [b"0", b"1", b"2"] {
        deliver(&mut pair, GOOD(), body);
    }
    assert_eq!(pair.done(1), []);
    for context in 0..2 {
        receive(&mut pair, to, context * 200, 100, context);
    }
    // A datagram that arrives now does not overtake the waiting datagrams.
    deliver(&mut pair, GOOD(), b"3");
    for context in 2..5 {
        receive(&mut pair, to, context * 200, 100, context);
    }
    deliver(&mut pair, GOOD(), b"4");
    assert_eq!(contexts(&pair.done(1)), [0, 1, 2, 3, 4]);
    assert_eq!(bodies(&pair, 5, 1).concat(), b"01234");
    let counters = *pair.hosts[1].engine.counters();
    let expected = (3 + 1, 5, 0);
    let datagrams = (counters.datagrams_kept, counters.datagrams_received);
    assert_eq!((datagrams.0, datagrams.1, counters.datagrams_without_receive), expected);
}

//= protocol.md: datagram.9
#[test]
fn a_datagram_waits_at_most_one_second_for_a_receive() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    deliver(&mut pair, GOOD(), b"old");
    pair.run_for(500_000_000);
    deliver(&mut pair, GOOD(), b"new");
    pair.run_for(600_000_000);
    let now = pair.now;
    pair.hosts[1].engine.note_time(now);
    receive(&mut pair, to, 0, 100, 0);
    assert_eq!(contexts(&pair.done(1)), [0]);
    assert_eq!(bodies(&pair, 1, 3).concat(), b"new");
    assert_eq!(pair.hosts[1].engine.counters().datagrams_without_receive, 1);
}

//= protocol.md: datagram.9
#[test]
fn waiting_datagrams_are_limited_per_port_and_in_total() {
    let mut pair = Pair::new(1);
    for own in 0..20 {
        open(&mut pair, 1, 0x100 + own);
    }
    for _ in 0..100 {
        for own in 0..20 {
            deliver(&mut pair, Datagram { destination: number(0x100 + own), ..GOOD() }, &[0; 4096]);
        }
    }
    let counters = *pair.hosts[1].engine.counters();
    assert_eq!(counters.datagrams_kept + counters.datagrams_without_receive, 2000);
    let most = (4 << 20) / (4096 + u64::from(ROUTE));
    let least = 16 * ((256 << 10) / (4096 + 200));
    assert!((least..=most).contains(&counters.datagrams_kept), "{counters:?}");
}

//= protocol.md: datagram.9
#[test]
fn waiting_datagrams_are_dropped_with_their_port_and_its_receives() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    deliver(&mut pair, GOOD(), b"for nobody");
    pair.hosts[1].engine.forget_datagram_receives(to).expect("open");
    receive(&mut pair, to, 0, 100, 1);
    assert_eq!(pair.done(1), []);
    deliver(&mut pair, GOOD(), b"this");
    assert_eq!(contexts(&pair.done(1)), [1]);
    deliver(&mut pair, GOOD(), b"for its former life");
    pair.hosts[1].engine.close_datagram_port(to).expect("open");
    let to = open(&mut pair, 1, 0xa1);
    receive(&mut pair, to, 0, 100, 2);
    assert_eq!(pair.done(1), []);
    assert_eq!(pair.hosts[1].engine.counters().datagrams_without_receive, 2);
}

//= protocol.md: datagram.9
#[test]
fn posting_a_shared_receive_reports_a_waiting_datagram() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    let ports = [0xa1, 0xb1].map(|own| open_sharing(&mut pair, own, &shared));
    deliver(&mut pair, GOOD(), b"0");
    deliver(&mut pair, Datagram { destination: number(0xb1), ..GOOD() }, b"1");
    let region = pair.hosts[1].region.id;
    for context in 0..2 {
        let receive = Receive { region, offset: 200 * context, length: 100, context };
        assert_eq!(shared.post(receive), Ok(true), "datagrams wait for it");
    }
    let Host { engine, memory, .. } = &mut pair.hosts[1];
    engine.on_receives_posted(pair.now, &memory.access(), &shared);
    let mut bodies = bodies(&pair, 2, 1).concat();
    bodies.sort_unstable();
    assert_eq!(bodies, b"01");
    assert_eq!(contexts(&pair.done(1)), [0, 1]);
    share(&pair, &shared, 0, 100, 2);
    // When a port is closed, the engine drops the datagrams that wait for receives of the port.
    deliver(&mut pair, GOOD(), b"takes it");
    deliver(&mut pair, GOOD(), b"waits");
    pair.hosts[1].engine.close_datagram_port(ports[0]).expect("open");
    share(&pair, &shared, 0, 100, 3);
}

//= protocol.md: datagram.3, datagram.4, datagram.5
#[test]
fn an_undeliverable_datagram_is_dropped_and_counted_without_an_answer() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    receive(&mut pair, to, 0, ROUTE + 8, 7);
    deliver(&mut pair, Datagram { destination: number(0xa2), ..GOOD() }, b"nobody");
    deliver(&mut pair, Datagram { destination: number(0xff_ffff), ..GOOD() }, b"no group");
    deliver(&mut pair, Datagram { key: KEY + 1, ..GOOD() }, b"key");
    deliver(&mut pair, GOOD(), b"nine bytes");
    let mut short = Flight { to: 1, link: 0, from: address(0, 0), bytes: vec![10; 15] };
    pair.deliver(&mut short);
    let counters = *pair.hosts[1].engine.counters();
    assert_eq!(counters.datagrams_without_receive, 0);
    assert_eq!(counters.datagrams_unknown, 2);
    assert_eq!(counters.datagrams_wrong_key, 1);
    assert_eq!(counters.datagrams_too_long, 1);
    assert_eq!(counters.malformed, 1);
    assert_eq!(counters.datagrams_received, 0);
    assert_eq!(pair.done(1), []);
    // The receive has not been consumed.
    deliver(&mut pair, GOOD(), b"8 bytes.");
    assert_eq!(contexts(&pair.done(1)), [7]);
    assert_eq!(read(&pair, 1, 40, 8), b"8 bytes.");
    pair.run_for(10_000_000);
    assert_eq!(pair.frames, 0, "nothing was answered");
    pair.assert_idle();
}

//= protocol.md: datagram.5
#[test]
fn an_endpoint_without_ports_answers_no_datagram() {
    let mut pair = Pair::new(1);
    deliver(&mut pair, GOOD(), &[0; 100]);
    pair.run_for(10_000_000);
    assert_eq!(pair.hosts[1].engine.counters().datagrams_unknown, 1);
    assert_eq!(pair.frames, 0);
}

//= protocol.md: datagram.2
#[test]
fn a_datagram_beyond_the_link_mtu_is_refused_when_posted() {
    let wide = LinkPlan { frame_bytes_max: 8972, ..LinkPlan::default() };
    let mut pair = Pair::with(&[LinkPlan::default(), wide], EngineConfig::default());
    let [from, to] = ports(&mut pair);
    let payload_max = |pair: &mut Pair, link| pair.hosts[0].engine.datagram_payload_max(link);
    assert_eq!(payload_max(&mut pair, LinkId(0)), Some(1024));
    assert_eq!(payload_max(&mut pair, LinkId(1)), Some(4096));
    assert_eq!(payload_max(&mut pair, LinkId(2)), None);
    let on = |link: u8| OutgoingDatagram {
        link: LinkId(link),
        to: address(1, link),
        ..to_other(u64::from(link))
    };
    for (link, length, payload_max) in [(0, 1025, 1024), (1, 4097, 4096)] {
        let pieces = [piece(&pair, 0, 0, length)];
        let refused = post(&mut pair, from, &on(link), &pieces);
        assert_eq!(refused, Err(DatagramError::TooLong { length, payload_max }));
        receive(&mut pair, to, 0, 5000, 1);
        let pieces = [piece(&pair, 0, 0, length - 1)];
        post(&mut pair, from, &on(link), &pieces).expect("posted");
        pair.run_for(1_000_000);
        assert_eq!(pair.done(1)[0].bytes, length - 1 + ROUTE);
    }
    let pieces = [piece(&pair, 0, 0, 1)];
    assert_eq!(post(&mut pair, from, &on(2), &pieces), Err(DatagramError::UnknownLink(2)));
}

#[test]
fn datagrams_to_one_peer_leave_in_batches() {
    let mut pair = Pair::new(1);
    let [from, _] = ports(&mut pair);
    let batches = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&batches);
    pair.take = Box::new(move |_, _, frames| {
        seen.borrow_mut().push(frames);
        Emitted::Taken(frames)
    });
    for context in 0..100 {
        send(&mut pair, from, 64, context);
    }
    pair.turn(0);
    // Batches of these links have 44 frames.
    assert_eq!(*batches.borrow(), [44, 44, 12]);
    assert_eq!(contexts(&pair.done(0)), (0..100).collect::<Vec<_>>());
    assert_eq!(pair.hosts[0].engine.counters().datagrams_sent, 100);
}

#[test]
fn datagrams_refused_by_a_full_driver_wait_in_order() {
    let mut pair = Pair::new(2);
    let [from, to] = ports(&mut pair);
    for context in 0..10 {
        receive(&mut pair, to, context * 100, 100, context);
    }
    pair.take = Box::new(|_, link, frames| Emitted::Taken(if link == 0 { 3 } else { frames }));
    for context in 0..8 {
        pair.hosts[0].buffer.write(0, &[context as u8]);
        send(&mut pair, from, 1, context);
    }
    let other = OutgoingDatagram { link: LinkId(1), to: address(1, 1), ..to_other(100) };
    let pieces = [piece(&pair, 0, 0, 1)];
    post(&mut pair, from, &other, &pieces).expect("posted");
    pair.turn(0);
    assert_eq!(
        contexts(&pair.done(0)),
        [0, 1, 2, 100],
        "the datagram over the other link waits for the full link"
    );
    assert!(pair.hosts[0].more && !pair.hosts[0].engine.is_idle());
    pair.turn(0);
    pair.turn(0);
    assert_eq!(contexts(&pair.done(0)), [3, 4, 5, 6, 7]);
    assert!(!pair.hosts[0].more);
    pair.run_for(1_000_000);
    let bytes: Vec<u8> = (0..9).map(|at| read(&pair, 1, at * 100 + 40, 1)[0]).collect();
    assert_eq!(bytes, [0, 1, 2, 7, 3, 4, 5, 6, 7]);
    pair.assert_idle();
}

#[test]
fn a_datagram_that_may_have_been_sent_is_not_retransmitted() {
    let mut pair = Pair::new(1);
    let [from, to] = ports(&mut pair);
    for context in 0..10 {
        receive(&mut pair, to, context * 100, 100, context);
    }
    pair.take = Box::new(|_, _, frames| match frames {
        0..3 => Emitted::Taken(frames),
        _ => Emitted::Doubtful { taken: 1, doubtful: 1 },
    });
    for context in 0..5 {
        pair.hosts[0].buffer.write(0, &[context as u8]);
        send(&mut pair, from, 1, context);
    }
    pair.run_for(1_000_000);
    assert_eq!(contexts(&pair.done(0)), [0, 1, 2, 3, 4]);
    let bytes: Vec<u8> = (0..6).map(|at| read(&pair, 1, at * 100 + 40, 1)[0]).collect();
    assert_eq!(bytes[..5], [0, 1, 2, 3, 4]);
    assert_eq!(contexts(&pair.done(1)).len(), 5, "each came once");
}

#[test]
fn a_peer_that_does_not_read_its_ring_blocks_no_other_peer() {
    share_memory();
    let mut pair = Pair::new(1);
    let [from, _] = ports(&mut pair);
    pair.take = Box::new(|_, _, _| Emitted::Taken(0));
    send(&mut pair, from, 64, 1);
    pair.turn(0);
    assert_eq!(contexts(&pair.done(0)), [1]);
    let counters = *pair.hosts[0].engine.counters();
    assert_eq!((counters.datagrams_sent, counters.datagrams_not_sent), (0, 1));
    assert!(!pair.hosts[0].more);
}

#[test]
fn the_datagram_queue_is_bounded() {
    let mut pair = Pair::new(1);
    let [from, _] = ports(&mut pair);
    for context in 0..1024 {
        send(&mut pair, from, 1, context);
    }
    let pieces = [piece(&pair, 0, 0, 1)];
    let refused = post(&mut pair, from, &to_other(0), &pieces);
    assert_eq!(refused, Err(DatagramError::TooManyWaiting(1024)));
    pair.turn(0);
    send(&mut pair, from, 1, 0);
}

#[test]
fn on_a_link_that_is_down_datagrams_are_lost() {
    let mut pair = Pair::new(1);
    let [from, _] = ports(&mut pair);
    let now = pair.now;
    pair.hosts[0].engine.handle_link_event(now, LinkId(0), LinkEvent::Down);
    send(&mut pair, from, 64, 1);
    pair.turn(0);
    assert_eq!(contexts(&pair.done(0)), [1]);
    assert_eq!(pair.frames, 0);
    pair.assert_idle();
}

#[test]
fn missing_memory_fails_only_its_own_datagram() {
    let mut pair = Pair::new(1);
    let [from, to] = ports(&mut pair);
    let Host { memory, domain, .. } = &pair.hosts[0];
    let gone = memory.register(*domain, mem::Buffer::new(4096), mem::Rights::NONE).expect("memory");
    let dead = Piece { region: gone.id, offset: 0, length: 900 };
    post(&mut pair, from, &to_other(1), &[dead]).expect("posted");
    send(&mut pair, from, 900, 2);
    pair.hosts[0].memory.deregister(gone.id).expect("registered");
    pair.turn(0);
    let done = pair.done(0);
    assert_eq!(contexts(&done), [1, 2]);
    assert_eq!(
        done.iter().map(|done| done.result).collect::<Vec<_>>(),
        [Err(OperationError::LocalAccess), Ok(())]
    );
    let refused = post(&mut pair, from, &to_other(3), &[dead]);
    assert!(matches!(refused, Err(DatagramError::LocalAccess(AccessError::InvalidKey { .. }))));
    let two = [piece(&pair, 0, 0, 1), dead];
    assert!(matches!(
        post(&mut pair, from, &to_other(3), &two),
        Err(DatagramError::LocalAccess(_))
    ));
    // A datagram also fails if the driver finds its payload unmapped.
    send(&mut pair, from, 900, 4);
    send(&mut pair, from, 900, 5);
    let first = Rc::new(RefCell::new(true));
    pair.take = Box::new(move |_, _, frames| {
        if first.replace(false) { Emitted::PayloadUnmapped(1) } else { Emitted::Taken(frames) }
    });
    pair.turn(0);
    let results: Vec<_> = pair.done(0).iter().map(|done| (done.context, done.result)).collect();
    assert_eq!(results, [(4, Ok(())), (5, Err(OperationError::LocalAccess))]);
    // A receive completes with an error if its memory is gone.
    let Host { engine, memory, domain, .. } = &mut pair.hosts[1];
    let sink = memory.register(*domain, mem::Buffer::new(4096), mem::Rights::ALL).expect("memory");
    let posted = Receive { region: sink.id, offset: 0, length: 100, context: 9 };
    engine.post_datagram_receive(&memory.access(), to, posted).expect("posted");
    memory.deregister(sink.id).expect("registered");
    pair.done(1);
    deliver(&mut pair, GOOD(), b"x");
    let [done] = pair.done(1)[..] else { panic!("one receive") };
    assert_eq!((done.context, done.result), (9, Err(OperationError::LocalAccess)));
}

#[test]
fn a_closed_port_flushes_posted_work_and_reopens_as_a_new_port() {
    let mut pair = Pair::new(1);
    let [from, to] = ports(&mut pair);
    assert_eq!(
        pair.hosts[0].engine.open_datagram_port(request(&pair.hosts[0], 0xa0)),
        Err(DatagramError::NumberInUse(number(0xa0)))
    );
    assert_eq!(
        pair.hosts[0].engine.open_datagram_port(request(&pair.hosts[0], 0xff_ffff)),
        Err(DatagramError::NumberOfGroup)
    );
    send(&mut pair, from, 64, 1);
    receive(&mut pair, to, 0, 100, 2);
    for (host, port, context) in [(0, from, 1), (1, to, 2)] {
        pair.hosts[host].engine.close_datagram_port(port).expect("open");
        let [done] = pair.done(host)[..] else { panic!("one completion") };
        assert_eq!((done.context, done.result), (context, Err(OperationError::Flushed)));
        assert_eq!(pair.hosts[host].engine.close_datagram_port(port), Err(DatagramError::Closed));
    }
    let pieces = [piece(&pair, 0, 0, 1)];
    assert_eq!(post(&mut pair, from, &to_other(1), &pieces), Err(DatagramError::Closed));
    let again = open(&mut pair, 0, 0xa0);
    assert_ne!(again.owner(), from.owner());
    assert_eq!(post(&mut pair, from, &to_other(1), &pieces), Err(DatagramError::Closed));
    pair.run_for(1_000_000);
    assert_eq!(pair.frames, 0);
    pair.assert_idle();
}

#[test]
fn a_changed_datagram_key_admits_only_datagrams_with_the_new_key() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    receive(&mut pair, to, 0, 100, 1);
    pair.hosts[1].engine.set_datagram_key(to, 5).expect("open");
    deliver(&mut pair, GOOD(), b"x");
    assert_eq!(pair.done(1), []);
    deliver(&mut pair, Datagram { key: 5, ..GOOD() }, b"x");
    assert_eq!(contexts(&pair.done(1)), [1]);
}

#[test]
fn a_port_with_an_overrun_queue_accepts_no_more_work() {
    let mut pair = Pair::new(1);
    let small = Arc::new(CompletionQueue::new(1));
    let (send, receives) = (Arc::clone(&small), Arc::clone(&small));
    let request = PortRequest {
        number: number(0xa1),
        key: KEY,
        send,
        receive: receives,
        receives_max: 4,
        shared_receives: None,
    };
    let port = pair.hosts[1].engine.open_datagram_port(request).expect("a port");
    for context in 0..3 {
        receive(&mut pair, port, 0, 100, context);
    }
    for _ in 0..3 {
        deliver(&mut pair, GOOD(), b"x");
    }
    assert!(small.is_overrun());
    assert_eq!(small.poll().map(|done| done.context), Some(0));
    assert_eq!(pair.hosts[1].engine.counters().datagrams_without_receive, 1);
    let Host { engine, memory, region, .. } = &mut pair.hosts[1];
    let again = Receive { region: region.id, offset: 0, length: 100, context: 3 };
    let refused = engine.post_datagram_receive(&memory.access(), port, again);
    assert_eq!(refused, Err(DatagramError::Overrun));
}

#[test]
fn a_receive_needs_writable_memory_and_their_number_is_limited() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    let Host { engine, memory, domain, region, .. } = &mut pair.hosts[1];
    let fixed = memory.register(*domain, mem::Buffer::new(64), mem::Rights::NONE).expect("memory");
    let mut post = |region, offset, length| {
        let receive = Receive { region, offset, length, context: 0 };
        engine.post_datagram_receive(&memory.access(), to, receive)
    };
    let refused = post(fixed.id, 0, 64);
    assert!(matches!(refused, Err(DatagramError::LocalAccess(AccessError::Permission { .. }))));
    for offset in [BUFFER_BYTES - 63, u64::MAX - 3] {
        let refused = post(region.id, offset, 64);
        assert!(matches!(refused, Err(DatagramError::LocalAccess(AccessError::Bounds { .. }))));
    }
    for _ in 0..16 {
        assert_eq!(post(region.id, 0, 64), Ok(()));
    }
    assert_eq!(post(region.id, 0, 64), Err(DatagramError::ReceiveQueueFull(16)));
}

/// The receive without memory fails when a datagram consumes it.
#[test]
fn a_receive_without_memory_fails_with_the_datagram_that_takes_it() {
    let mut pair = Pair::new(1);
    let [one, two] = ports(&mut pair);
    let engine = &mut pair.hosts[1].engine;
    engine.post_failed_datagram_receive(two, 100, 1).expect("there is room");
    receive(&mut pair, two, 0, 100, 2);
    assert!(pair.done(1).is_empty());
    send(&mut pair, one, 8, 7);
    send(&mut pair, one, 8, 8);
    pair.run_for(1_000_000);
    let done = pair.done(1);
    let found: Vec<_> = done.iter().map(|done| (done.context, done.result)).collect();
    assert_eq!(found, [(1, Err(OperationError::LocalAccess)), (2, Ok(()))]);
}

#[test]
fn withdrawn_receives_are_not_flushed() {
    let mut pair = Pair::new(1);
    let [_, two] = ports(&mut pair);
    receive(&mut pair, two, 0, 100, 1);
    pair.hosts[1].engine.forget_datagram_receives(two).expect("it is open");
    receive(&mut pair, two, 0, 100, 2);
    pair.hosts[1].engine.close_datagram_port(two).expect("it is open");
    assert_eq!(contexts(&pair.done(1)), [2]);
}

fn share(pair: &Pair, shared: &SharedReceives, offset: u64, length: u32, context: u64) {
    let region = pair.hosts[1].region.id;
    let receive = Receive { region, offset, length, context };
    assert_eq!(shared.post(receive), Ok(false));
}

fn open_sharing(pair: &mut Pair, own: u32, shared: &Arc<SharedReceives>) -> DatagramPort {
    let request = request(&pair.hosts[1], own);
    let request = PortRequest { shared_receives: Some(Arc::clone(shared)), ..request };
    pair.hosts[1].engine.open_datagram_port(request).expect("a port")
}

//= protocol.md: datagram.4
#[test]
fn ports_share_receives_in_the_order_in_which_they_were_posted() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    let ports = [0xa1, 0xb1].map(|own| open_sharing(&mut pair, own, &shared));
    let list = [piece(&pair, 1, 5000, 30), piece(&pair, 1, 6000, 300)];
    share(&pair, &shared, 0, 100, 1);
    let list = PieceList::new(&list).expect("a list");
    assert_eq!(shared.post_list(list, 2), Ok(false));
    share(&pair, &shared, 2000, 100, 3);
    for own in [0xb1, 0xa1, 0xb1] {
        deliver(&mut pair, Datagram { destination: number(own), ..GOOD() }, b"of three");
    }
    let done = pair.done(1);
    assert_eq!(contexts(&done), [1, 2, 3]);
    assert!(done.iter().all(|done| done.bytes == ROUTE + 8 && done.result.is_ok()));
    let owners = done.iter().map(|done| done.owner);
    assert!(owners.eq([1, 0, 1].map(|at: usize| ports[at].owner())));
    assert_eq!(read(&pair, 1, u64::from(ROUTE), 8), b"of three");
    // The last ten bytes of the header are in the second entry.
    assert_eq!(read(&pair, 1, 6010, 8), b"of three");
    assert_eq!(read(&pair, 1, 2000 + u64::from(ROUTE), 8), b"of three");
    deliver(&mut pair, GOOD(), b"none is left");
    assert_eq!(pair.hosts[1].engine.counters().datagrams_kept, 1);
    assert_eq!(pair.done(1), []);
}

//= protocol.md: datagram.4
#[test]
fn a_shared_receive_that_is_too_short_for_a_datagram_stays_the_oldest() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    let port = open_sharing(&mut pair, 0xa1, &shared);
    share(&pair, &shared, 0, ROUTE + 5, 1);
    share(&pair, &shared, 1000, 100, 2);
    deliver(&mut pair, GOOD(), b"longer");
    assert_eq!((pair.done(1).len(), shared.len()), (0, 2));
    assert_eq!(pair.hosts[1].engine.counters().datagrams_too_long, 1);
    deliver(&mut pair, GOOD(), b"short");
    deliver(&mut pair, GOOD(), b"longer");
    assert_eq!(contexts(&pair.done(1)), [1, 2]);
    // Receives that no datagram consumed stay in the shared queue after the port is closed.
    share(&pair, &shared, 0, 100, 3);
    pair.hosts[1].engine.close_datagram_port(port).expect("open");
    assert_eq!((pair.done(1).len(), shared.len()), (0, 1));
}

#[test]
fn a_port_with_shared_receives_has_none_of_its_own() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    let port = open_sharing(&mut pair, 0xa1, &shared);
    let Host { engine, memory, region, .. } = &mut pair.hosts[1];
    let receive = Receive { region: region.id, offset: 0, length: 100, context: 0 };
    let refused = engine.post_datagram_receive(&memory.access(), port, receive);
    assert_eq!(refused, Err(DatagramError::ReceivesShared));
}

#[test]
fn a_shared_receive_with_missing_memory_fails_with_the_datagram_that_takes_it() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    open_sharing(&mut pair, 0xa1, &shared);
    for (context, offset) in (0..).zip([BUFFER_BYTES - 10, u64::MAX - 3]) {
        share(&pair, &shared, offset, 100, context);
        deliver(&mut pair, GOOD(), b"x");
        let [done] = pair.done(1)[..] else { panic!("one completion") };
        assert_eq!((done.context, done.bytes), (context, 0));
        assert_eq!(done.result, Err(OperationError::LocalAccess));
    }
}

#[test]
fn crossing_the_limit_of_shared_receives_is_reported_once() {
    let mut pair = Pair::new(1);
    let shared = Arc::new(SharedReceives::new(8));
    open_sharing(&mut pair, 0xa1, &shared);
    for context in 0..4 {
        share(&pair, &shared, 0, 100, context);
    }
    assert!(!shared.arm_limit(3));
    let reports_few: Vec<bool> = (0..4)
        .map(|_| {
            deliver(&mut pair, GOOD(), b"x");
            pair.hosts[1].engine.take_below_limit().is_some()
        })
        .collect();
    assert_eq!(reports_few, [false, true, false, false]);
}

//= protocol.md: datagram.4, shared.3
#[test]
fn a_datagram_takes_no_receive_from_a_waiting_connection() {
    let shared = Arc::new(SharedReceives::new(8));
    let mut pair = Pair::new(1);
    for host in &mut pair.hosts {
        host.terms.queue_pair = true;
    }
    pair.hosts[1].terms.shared_receives = Some(Arc::clone(&shared));
    pair.establish();
    let port = open_sharing(&mut pair, 0xa1, &shared);
    let source = pair.source(0, 0);
    pair.post(0, Request::Send { source }, 8, 0);
    pair.run_for(1_000_000);
    let region = pair.hosts[1].region.id;
    let receive = Receive { region, offset: 0, length: 100, context: 1 };
    assert_eq!(shared.post(receive), Ok(true), "the connection waits for it");
    deliver(&mut pair, GOOD(), b"x");
    assert_eq!(pair.hosts[1].engine.counters().datagrams_kept, 1);
    let Host { engine, memory, .. } = &mut pair.hosts[1];
    engine.on_receives_posted(pair.now, &memory.access(), &shared);
    pair.run_for(100_000_000);
    let done = pair.done(1);
    assert_eq!(contexts(&done), [1]);
    assert_ne!(done[0].owner, port.owner());
}

//= protocol.md: datagram.6
#[test]
fn a_multicast_datagram_reaches_only_group_members() {
    let mut pair = Pair::new(1);
    let [_, first] = ports(&mut pair);
    let (second, third) = (open(&mut pair, 1, 0xb0), open(&mut pair, 1, 0xb1));
    let group = |last: u8| PeerAddr::from(std::net::SocketAddr::from(([239, 1, 1, last], 61_439)));
    for (at, port) in [first, second, third].into_iter().enumerate() {
        receive(&mut pair, port, at as u64 * 1000, 100, at as u64);
    }
    let engine = &mut pair.hosts[1].engine;
    assert_eq!(engine.join_datagram_group(first, group(1)), Ok(()));
    assert_eq!(engine.join_datagram_group(second, group(1)), Ok(()));
    assert_eq!(engine.join_datagram_group(second, group(1)), Ok(()));
    assert_eq!(engine.join_datagram_group(third, group(2)), Ok(()));
    let one = address(0, 0);
    assert_eq!(engine.join_datagram_group(third, one), Err(DatagramError::NotGroup(one)));
    let frame = |pair: &mut Pair, datagram: Datagram, last| {
        let mut bytes = [&datagram.encode()[..], b"all"].concat();
        let Host { engine, memory, .. } = &mut pair.hosts[1];
        let frame = RxFrame {
            bytes: &mut bytes,
            outside: Payload::EMPTY,
            received_at: pair.now,
            congestion_experienced: false,
            from: address(0, 0),
        };
        engine.handle_group_frame(&memory.access(), group(last), frame);
    };
    frame(&mut pair, GOOD(), 1);
    let all = Datagram { destination: QueuePairNumber::GROUP, ..GOOD() };
    frame(&mut pair, all, 3);
    assert_eq!(pair.done(1), []);
    assert_eq!(pair.hosts[1].engine.counters().datagrams_unknown, 2);
    frame(&mut pair, all, 1);
    assert_eq!(contexts(&pair.done(1)), [0, 1]);
    assert_eq!(read(&pair, 1, 1000, 40), route_header(address(0, 0), group(1), 3));
    let engine = &mut pair.hosts[1].engine;
    assert_eq!(engine.leave_datagram_group(first, group(1)), Ok(()));
    assert!(engine.has_datagram_group(group(1)));
    assert_eq!(engine.leave_datagram_group(second, group(1)), Ok(()));
    assert!(!engine.has_datagram_group(group(1)));
    assert_eq!(engine.close_datagram_port(third), Ok(()));
    assert!(!engine.has_datagram_group(group(2)));
    frame(&mut pair, all, 1);
    frame(&mut pair, all, 2);
    assert_eq!(pair.hosts[1].engine.counters().datagrams_unknown, 4);
}

#[test]
fn a_datagram_payload_outside_the_frame_is_received() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    receive(&mut pair, to, 0, 100, 1);
    receive(&mut pair, to, 200, 100, 2);
    let mut deliver = |bytes: &[u8]| {
        let Host { engine, memory, .. } = &mut pair.hosts[1];
        let (mut bytes, from) = (bytes.to_vec(), address(0, 0));
        let (received_at, outside) = (pair.now, Payload::from(b"outside".as_slice()));
        let congestion_experienced = false;
        let frame =
            RxFrame { bytes: &mut bytes, outside, received_at, congestion_experienced, from };
        engine.handle_frame(pair.now, &memory.access(), LinkId(0), frame);
    };
    deliver(&GOOD().encode());
    deliver(&[&GOOD().encode()[..], b"more"].concat());
    assert_eq!(read(&pair, 1, 40, 7), b"outside");
    assert_eq!(contexts(&pair.done(1)), [1]);
    assert_eq!(pair.hosts[1].engine.counters().malformed, 1);
}

#[test]
fn a_removed_link_delivers_no_datagrams() {
    let mut pair = Pair::new(1);
    let [_, to] = ports(&mut pair);
    receive(&mut pair, to, 0, 100, 1);
    pair.hosts[1].engine.detach_link(LinkId(0));
    deliver(&mut pair, GOOD(), b"x");
    assert_eq!(pair.done(1), []);
    let caps = caps(1, 0, &LinkPlan::default());
    pair.hosts[1].engine.attach_link(LinkId(0), caps).expect("a link");
    deliver(&mut pair, GOOD(), b"x");
    assert_eq!(contexts(&pair.done(1)), [1]);
}

#[test]
fn datagrams_pass_beside_a_connection() {
    let mut pair = Pair::connected(1);
    let [from, to] = ports(&mut pair);
    pair.fill(0, 20_000);
    receive(&mut pair, to, 100_000, 2000, 1);
    pair.write(0, 0, 20_000, 5);
    send(&mut pair, from, 1024, 6);
    pair.run_for(5_000_000);
    assert!(pair.same(20_000));
    assert_eq!(read(&pair, 1, 100_040, 1024), read(&pair, 0, 0, 1024));
    let mut done = contexts(&pair.done(0));
    done.sort_unstable();
    assert_eq!(done, [5, 6]);
}
