//! Tests of limits. If a fragment exceeds a limit, it is refused and arrives again later. No data
//! is lost, and all operations complete.

use mem::Rights;
use wire_edge::{Flags, Header, MessageNumber, OperationNumber};

use super::pair::{Config, Pair, Side, assert_completed_in_order, flags, operation, remote, write};
use crate::inbound::STEPS;
use crate::inbound::{Inbound, InboundLimits, Refusal, Surroundings, Verdict};
use crate::limits::{LIST_SHARE, LISTS_MAX};
use crate::limits::{OPERATION_SHARE, PoolLimits};
use crate::outbound::{Outbound, PeerLimits};
use work::{Operation, OperationError, Order, Owner, Piece, PieceList, PostError, Request, Source};

fn header(pair: &Pair, number: u32, offset: u32) -> Header {
    let (key, address) = remote(pair, u64::from(offset));
    Header::Write { operation: OperationNumber(number), offset, key, address, immediate: None }
}

//= protocol.md: operation.5, operation.9
#[test]
fn operations_beyond_the_window_are_refused_and_not_sent() {
    let mut pair = Pair::new(Config { window: 4, ..Config::default() }, 1);
    let refused = Verdict::Refused(Refusal::Window);
    let beyond = header(&pair, 4, 0);
    assert_eq!(pair.sides[1].handle(Flags::LAST, &beyond, &[1]), refused);
    let inside = header(&pair, 3, 0);
    assert_eq!(pair.sides[1].handle(Flags::LAST, &inside, &[1]), Verdict::Accepted);
    let mut pair = Pair::new(Config { window: 4, ..Config::default() }, 1);
    for index in 0..6 {
        let write = write(&pair, index, 0, 8, flags(Order::Relaxed));
        pair.sides[0].post(&write).unwrap();
    }
    let side = &mut pair.sides[0];
    for _ in 0..4 {
        assert!(side.fragment(200).is_some());
    }
    assert!(side.fragment(200).is_none());
    assert!(!side.outbound.wants_to_send());
    assert!(side.outbound.on_delivered(&mut side.pools, OperationNumber(1), MessageNumber(0)));
    assert!(side.fragment(200).is_some());
    assert!(side.fragment(200).is_none());
}

//= protocol.md: pool.6
#[test]
fn a_connection_may_post_half_of_the_free_records_and_at_least_its_share() {
    let mut config = Config::default();
    config.pools.operations = 40;
    let mut pair = Pair::new(config, 1);
    let write = write(&pair, 0, 0, 8, flags(Order::Relaxed));
    let side = &mut pair.sides[0];
    let all = |posted: &mut dyn FnMut() -> Result<(), PostError>| {
        let mut count = 0;
        while posted().is_ok() {
            count += 1;
        }
        count - OPERATION_SHARE
    };
    assert_eq!(all(&mut || side.post(&write).map(|_| ())), 20);
    assert_eq!(side.post(&write), Err(PostError::NoOperationLeft(20 + OPERATION_SHARE)));
    // Later connections get fewer and fewer records. The last connections get only their guaranteed
    // operations.
    let found = [0, 1, 2, 3, 4, 5, 6].map(|connection| {
        let mut other = another(side, 8 + connection);
        all(&mut || other.post(side, &write))
    });
    assert_eq!(found, [10, 5, 3, 1, 1, 0, 0]);
    assert_eq!(side.pools.in_use().operations, 40 + 8 * OPERATION_SHARE);
}

/// Returns a connection that has posted `count` operations and sent all fragments that it may send.
fn sent(side: &mut Side, connection: u32, operation: &Operation, count: u32) -> Other {
    let mut other = another(side, connection);
    other.outbound.be_queue_pair();
    assert!(other.outbound.on_delivered(
        &mut side.pools,
        OperationNumber(0),
        MessageNumber(1 << 20)
    ));
    for _ in 0..count {
        other.post(side, operation).unwrap();
        let memory = side.table.access();
        // If the window of the peer is exhausted, this returns no fragment.
        let fragment = other.outbound.next_fragment(&memory, &mut side.pools, 200);
        assert!(fragment.is_ok());
    }
    other
}

//= protocol.md: pool.6
#[test]
fn connections_waiting_for_receives_leave_the_others_their_full_share() {
    let pools = PoolLimits::default();
    let config = Config { pools, queue: 1 << 20, queue_pair: true, ..Config::default() };
    let mut pair = Pair::new(config, 1);
    let source = Source::Region { region: pair.sides[0].source, offset: 0 };
    let send = operation(Request::Send { source }, 0, 8, flags(Order::Strict));
    let side = &mut pair.sides[0];
    // Most connections get the report of the missing receive when they have sent few operations. At
    // that time, some connections have a whole window in flight.
    let mut waiting = Vec::new();
    for connection in 0..4000 {
        let count = if connection < 200 { 256 } else { OPERATION_SHARE };
        let mut other = sent(side, 8 + connection, &send, count);
        assert!(other.outbound.on_not_ready(&mut side.pools, MessageNumber(0)));
        waiting.push(other);
    }
    let mut healthy = sent(side, 7, &send, pools.operations / 2 + OPERATION_SHARE);
    assert!(healthy.post(side, &send).is_err());
    healthy.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    // When the connections resume, their operations in flight reduce the room of others again.
    for other in &mut waiting {
        other.outbound.on_ready(&mut side.pools);
    }
    let mut late = sent(side, 7, &send, OPERATION_SHARE);
    assert!(late.post(side, &send).is_err());
    late.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    for other in &mut waiting {
        other.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    }
    let mut alone = sent(side, 7, &send, pools.operations / 2 + OPERATION_SHARE);
    alone.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

//= protocol.md: pool.6
#[test]
fn each_connection_keeps_its_share_of_lists() {
    let mut pair = Pair::new(Config { queue_pair: true, ..Config::default() }, 1);
    let side = &mut pair.sides[0];
    let piece = Piece { region: side.source, offset: 0, length: 8 };
    let pieces = [piece; 2];
    let list = PieceList::new(&pieces).unwrap();
    let lists = &mut side.pools.lists;
    // One connection takes half of all lists. Others take the rest.
    let mut own = 0;
    while lists.store(list, own).is_ok() {
        own += 1;
    }
    assert_eq!(own, LISTS_MAX / 2);
    while lists.grants_another(LIST_SHARE) {
        lists.keep(list);
    }
    for own in 0..LIST_SHARE {
        lists.store(list, own).unwrap();
    }
    assert_eq!(lists.store(list, LIST_SHARE), Err(PostError::NoListLeft(LIST_SHARE)));
}

#[test]
fn an_operation_without_room_for_its_completion_is_refused() {
    let pair = Pair::new(Config::default(), 1);
    let write = write(&pair, 0, 0, 8, flags(Order::Relaxed));
    let mut pair = Pair::new(Config { queue: 1, ..Config::default() }, 1);
    pair.sides[0].post(&write).unwrap();
    assert_eq!(pair.sides[0].post(&write), Err(PostError::CompletionQueueFull(1)));
}

//= protocol.md: length.5
#[test]
fn operations_out_of_range_are_refused_when_posted() {
    let mut pair = Pair::new(Config::default(), 1);
    let (key, address) = remote(&pair, 0);
    let source = Source::Region { region: pair.sides[0].source, offset: 0 };
    let inline = Source::Inline([0; 64]);
    let post = |pair: &mut Pair, request, length| {
        pair.sides[0].post(&operation(request, 0, length, flags(Order::Relaxed)))
    };
    let long = (1 << 31) + 1;
    let request = Request::Write { source, key, address: 0 };
    assert_eq!(post(&mut pair, request, long), Err(PostError::TooLong(u64::from(long))));
    let request = Request::Write { source, key, address: u64::MAX - 7 };
    let range = PostError::RemoteRange { address: u64::MAX - 7, length: 8 };
    assert_eq!(post(&mut pair, request, 8), Err(range));
    assert!(post(&mut pair, request, 7).is_ok());
    let request = Request::Send { source: inline };
    assert_eq!(post(&mut pair, request, 65), Err(PostError::InlineTooLong(65)));
    let request = Request::Send { source };
    assert!(matches!(post(&mut pair, request, 1 << 21), Err(PostError::LocalAccess(_))));
    let request = Request::FetchAdd { key, address: address + 4, operand: 0, sink: None };
    assert_eq!(post(&mut pair, request, 8), Err(PostError::Misaligned(address + 4)));
    let sink = pair.sides[0].source;
    let request = Request::Read { sink, sink_offset: 0, key, address };
    assert!(matches!(post(&mut pair, request, 8), Err(PostError::LocalAccess(_))));
    assert_eq!(pair.sides[0].pools.in_use().operations, 1);
}

//= protocol.md: receive.7, operation.8
#[test]
fn a_hole_beyond_the_limit_is_refused_until_holes_are_filled() {
    let mut pair = Pair::new(Config::default(), 1);
    let holes = crate::range_set::RANGES_MAX as u32;
    for hole in 0..holes {
        let header = header(&pair, 0, 10 + hole * 20);
        assert_eq!(pair.sides[1].handle(Flags::NONE, &header, &[1; 10]), Verdict::Accepted);
    }
    let refused = Verdict::Refused(Refusal::Ranges);
    let far = header(&pair, 0, 8_000);
    assert_eq!(pair.sides[1].handle(Flags::LAST, &far, &[1; 10]), refused);
    assert_eq!(pair.sides[1].bytes()[8_000], 0);
    let first = header(&pair, 0, 0);
    assert_eq!(pair.sides[1].handle(Flags::NONE, &first, &[1; 5]), refused);
    assert_eq!(pair.sides[1].handle(Flags::NONE, &first, &[1; 10]), Verdict::Accepted);
    // This fragment covers many gaps and fills all of them.
    assert_eq!(pair.sides[1].handle(Flags::NONE, &first, &[2; 4000]), Verdict::Accepted);
    assert_eq!(pair.sides[1].handle(Flags::LAST, &far, &[1; 10]), Verdict::Accepted);
    let rest = header(&pair, 0, 3970);
    assert_eq!(pair.sides[1].handle(Flags::NONE, &rest, &[1; 4_030]), Verdict::Accepted);
    assert_eq!(pair.sides[1].inbound.delivered(), OperationNumber(1));
}

//= protocol.md: pool.1
#[test]
fn a_full_order_pool_refuses_only_fragments_that_must_wait() {
    let mut pair = Pair::new(Config { order_pool_bytes: 100, ..Config::default() }, 1);
    let tail = Flags::LAST.with(Flags::STRICT);
    let headers: Vec<_> = (0..4).map(|number| header(&pair, number, 0)).collect();
    let side = &mut pair.sides[1];
    assert_eq!(side.handle(tail, &headers[1], &[2; 60]), Verdict::Accepted);
    let refused = Verdict::Refused(Refusal::Pool);
    assert_eq!(side.handle(tail, &headers[2], &[3; 60]), refused);
    assert_eq!(side.handle(Flags::LAST, &headers[3], &[4; 60]), Verdict::Accepted);
    assert_eq!(side.handle(tail, &headers[0], &[1; 60]), Verdict::Accepted);
    assert_eq!(side.inbound.delivered(), OperationNumber(2));
    assert_eq!(side.handle(tail, &headers[2], &[3; 60]), Verdict::Accepted);
    assert_eq!(side.inbound.delivered(), OperationNumber(4));
    assert_eq!(side.bytes()[..60], [4; 60]);
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

//= protocol.md: pool.4
/// Records of waiting operations never prevent the first undelivered operation of any connection
/// from getting a record.
#[test]
fn the_next_operation_in_order_always_gets_a_record() {
    let mut config = Config::default();
    config.pools.incoming = 5;
    let mut pair = Pair::new(config, 1);
    let whole: Vec<_> = (0..8).map(|number| header(&pair, number, 0)).collect();
    let second = header(&pair, 0, 10);
    let side = &mut pair.sides[1];
    let mut other = another(side, 8);
    let refused = Verdict::Refused(Refusal::Pool);
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for header in &whole[1..5] {
        here.push(side.handle(Flags::LAST, header, &[1; 8]));
        there.push(other.handle(side, Flags::LAST, header, &[1; 8]));
    }
    // A connection may open another record only if it has fewer records than are free. One record
    // therefore always stays free for new connections.
    assert_eq!(here, [Verdict::Accepted, Verdict::Accepted, refused, refused]);
    assert_eq!(there, here);
    // The first undelivered operations arrive in two parts, so each needs a record.
    assert_eq!(side.handle(Flags::LAST, &second, &[1; 8]), Verdict::Accepted);
    assert_eq!(other.handle(side, Flags::LAST, &second, &[1; 8]), Verdict::Accepted);
    assert_eq!(side.pools.in_use().incoming, 6);
    assert_eq!(other.handle(side, Flags::NONE, &whole[0], &[1; 10]), Verdict::Accepted);
    assert_eq!(side.handle(Flags::NONE, &whole[0], &[1; 10]), Verdict::Accepted);
    assert_eq!(side.inbound.delivered(), OperationNumber(3));
    assert_eq!(other.inbound.delivered(), OperationNumber(3));
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

/// A connection that uses the same records as the side's own connection.
struct Other {
    inbound: Inbound,
    outbound: Outbound,
}

impl Other {
    fn post(&mut self, side: &mut Side, operation: &Operation) -> Result<(), PostError> {
        let memory = side.table.access();
        self.outbound.post(&memory, &mut side.pools, operation).map(|_| ())
    }

    fn handle(
        &mut self,
        side: &mut Side,
        flags: Flags,
        header: &Header,
        payload: &[u8],
    ) -> Verdict {
        let memory = side.table.access();
        let Self { inbound, outbound } = self;
        let mut around = Surroundings { memory: &memory, pools: &mut side.pools, outbound };
        inbound.handle(&mut around, flags, header, payload)
    }
}

fn another(side: &Side, connection: u32) -> Other {
    let limits = InboundLimits {
        operation_window: 1024,
        read_depth: 64,
        order_pool_bytes: 256 * 1024,
        receives: 0,
        rights: Rights::ALL,
        patches: true,
    };
    let granted = PeerLimits {
        operation_window: 1024,
        read_depth: 64,
        order_pool_bytes: 256 * 1024,
        credit: MessageNumber(0),
        patches: true,
    };
    Other {
        inbound: Inbound::new(
            Owner::new(connection, 1),
            side.domain,
            limits,
            &side.queue.clone().into(),
        ),
        outbound: Outbound::new(Owner::new(connection, 1), granted, &side.queue.clone().into()),
    }
}

//= protocol.md: pool.5
#[test]
fn peers_that_leave_operations_open_block_no_other_peer() {
    let config = Config { pools: PoolLimits::default(), ..Config::default() };
    let mut pair = Pair::new(config, 1);
    let tail = Flags::LAST.with(Flags::STRICT);
    let whole: Vec<_> = (0..1024).map(|number| header(&pair, number, 0)).collect();
    let ends: Vec<_> = (0..1024).map(|number| header(&pair, number, 8)).collect();
    let side = &mut pair.sides[1];
    // There are as many connections as records, so some connections cannot open any record for a
    // later operation.
    let mut greedy: Vec<_> = (0..2048).map(|number| another(side, 10 + number)).collect();
    for peer in &mut greedy {
        for header in &whole[1..] {
            if peer.handle(side, tail, header, &[1; 8]) != Verdict::Accepted {
                break;
            }
        }
        // The end of the first undelivered operation arrives, but its beginning never does.
        let verdict = peer.handle(side, Flags::STRICT, &ends[0], &[1; 8]);
        assert_eq!(verdict, Verdict::Accepted);
    }
    let limit = u32::from(u16::try_from(greedy.len()).unwrap());
    assert!(side.pools.in_use().incoming <= PoolLimits::default().incoming + limit);
    let mut honest = another(side, 1);
    for header in &whole[..100] {
        assert_eq!(honest.handle(side, tail, header, &[2; 8]), Verdict::Accepted);
    }
    for (body, end) in whole[100..200].iter().zip(&ends[100..]) {
        let before = honest.inbound.delivered();
        // If there is no room, the end of the first undelivered operation is refused. Therefore the
        // test delivers it a second time.
        honest.handle(side, tail, end, &[3; 8]);
        assert_eq!(honest.handle(side, Flags::STRICT, body, &[3; 8]), Verdict::Accepted);
        honest.handle(side, tail, end, &[3; 8]);
        assert_eq!(honest.inbound.delivered(), before.next());
    }
    for peer in &mut greedy {
        peer.inbound.flush(&mut side.pools, OperationError::Flushed);
    }
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

//= protocol.md: pool.5
#[test]
fn two_greedy_peers_leave_a_third_an_equal_share() {
    let config = Config { pools: PoolLimits::default(), ..Config::default() };
    let mut pair = Pair::new(config, 1);
    let tail = Flags::LAST.with(Flags::STRICT);
    let whole: Vec<_> = (0..1024).map(|number| header(&pair, number, 0)).collect();
    let side = &mut pair.sides[1];
    let taken = [10, 11, 12].map(|connection| {
        let mut peer = another(side, connection);
        let taken =
            |header: &&Header| peer.handle(side, tail, header, &[1; 8]) == Verdict::Accepted;
        whole[1..].iter().filter(taken).count()
    });
    // A single peer gets a block of the order pool for each operation in its window.
    assert_eq!(taken[0], 1023);
    assert_eq!(taken[1], 513);
    assert_eq!(taken[2], 256);
}

//= protocol.md: pool.4
#[test]
fn readers_that_never_acknowledge_leave_an_answer_record_for_others() {
    let config = Config { pools: PoolLimits::default(), ..Config::default() };
    let mut pair = Pair::new(config, 1);
    let (key, address) = remote(&pair, 0);
    let read = |number| {
        let operation = OperationNumber(number);
        Header::ReadRequest { operation, length: 8, key, address }
    };
    let side = &mut pair.sides[1];
    let mut greedy: Vec<_> = (0..2048).map(|number| another(side, 10 + number)).collect();
    for peer in &mut greedy {
        for number in 0..64 {
            peer.handle(side, Flags::LAST, &read(number), &[]);
        }
        assert!(peer.inbound.delivered() != OperationNumber(0));
    }
    let mut honest = another(side, 1);
    for number in 0..100 {
        honest.handle(side, Flags::LAST, &read(number), &[]);
        assert_eq!(honest.inbound.delivered(), OperationNumber(number + 1));
        let memory = side.table.access();
        let fragment = honest.outbound.next_fragment(&memory, &mut side.pools, 200);
        let carried = fragment.unwrap().unwrap().carried;
        honest.outbound.on_acknowledged(&mut side.pools, carried);
    }
    for peer in &mut greedy {
        peer.inbound.flush(&mut side.pools, OperationError::Flushed);
        peer.outbound.flush(&mut side.pools, OperationError::Flushed, None);
    }
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
}

/// A peer creates as many ranges of newer bytes as it can: many operations with many ranges each.
/// Then a frame of an older operation is placed among these ranges. This must take few steps,
/// because otherwise a peer could keep the engine busy.
#[test]
fn a_late_writer_finds_the_newer_ranges_in_few_steps() {
    let pools = PoolLimits::default();
    let mut pair = Pair::new(Config { pools, window: 1024, ..Config::default() }, 1);
    for number in 1..1024 {
        for range in 0..crate::range_set::RANGES_MAX as u32 {
            let (key, address) = remote(&pair, u64::from(range * 8 + number % 4 * 2));
            let (operation, offset) = (OperationNumber(number), range * 8);
            let header = Header::Write { operation, offset, key, address, immediate: None };
            pair.sides[1].handle(Flags::NONE, &header, &[number as u8]);
        }
    }
    let before = STEPS.get();
    let frame = header(&pair, 0, 0);
    assert_eq!(pair.sides[1].handle(Flags::STRICT, &frame, &[9; 1440]), Verdict::Accepted);
    let steps = STEPS.get() - before;
    // The two walks visit all operations, their first ranges and all further ranges.
    assert!(steps <= 2 * (2 * 1023 + 2048), "{steps} steps");
}

//= protocol.md: pool.3
#[test]
fn tiny_pools_only_slow_things_down() {
    for seed in 0..100 {
        let mut config = Config { window: 16, order_pool_bytes: 300, ..Config::default() };
        config.pools.operations = 3;
        config.pools.incoming = 1;
        config.pools.order_blocks = 1;
        config.pools.retransmissions = 0;
        let mut pair = Pair::new(config, seed);
        let order = if seed % 2 == 0 { Order::Strict } else { Order::Relaxed };
        let writes: Vec<_> =
            (0..20).map(|i| write(&pair, i, i as u64 * 100, 350, flags(order))).collect();
        pair.run(&writes, &mut |_| {});
        assert_completed_in_order(&pair, 20);
    }
}

//= protocol.md: credit.1
#[test]
fn limits_reported_late_unblock_earlier_operations() {
    let mut pair = Pair::new(Config { window: 0, ..Config::default() }, 1);
    let write = write(&pair, 0, 0, 8, flags(Order::Relaxed));
    let side = &mut pair.sides[0];
    side.post(&write).unwrap();
    assert!(side.fragment(200).is_none());
    side.outbound.set_peer_limits(PeerLimits {
        operation_window: 1,
        read_depth: 0,
        order_pool_bytes: 0,
        credit: MessageNumber(0),
        patches: true,
    });
    assert!(side.outbound.wants_to_send());
    assert!(side.fragment(200).is_some());
}

//= protocol.md: violation.1, violation.2
#[test]
fn access_faults_name_their_cause_and_change_no_memory() {
    use wire_edge::CloseReason;
    let mut pair = Pair::new(Config::default(), 1);
    let side = &mut pair.sides[1];
    let buffer = mem::Buffer::new(64);
    let read_only = side.table.register(side.domain, buffer, Rights::REMOTE_READ).unwrap();
    let whole = side.region;
    let mut write = |number: u32, key, address| {
        let operation = OperationNumber(number);
        let header = Header::Write { operation, offset: 0, key, address, immediate: None };
        match side.handle(Flags::LAST, &header, &[1; 8]) {
            Verdict::Violation { reason, operation } => {
                assert_eq!(operation, OperationNumber(number));
                reason
            }
            verdict => panic!("{verdict:?}"),
        }
    };
    for number in [0, 1] {
        let end = whole.start + whole.len;
        assert_eq!(write(number, whole.key, end - 7), CloseReason::OutOfRange);
        let unknown = wire_edge::RemoteKey(whole.key.0 ^ 0x1234);
        assert_eq!(write(number + 2, unknown, whole.start), CloseReason::UnknownKey);
        assert_eq!(write(number + 4, read_only.key, read_only.start), CloseReason::RightMissing);
    }
    side.inbound.flush(&mut side.pools, OperationError::Flushed);
    assert_eq!(side.pools.in_use(), crate::pools::PoolUse::default());
    assert_eq!(side.bytes(), vec![0; 8192]);
}
