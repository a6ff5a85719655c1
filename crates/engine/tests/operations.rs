//! Tests of operations of every kind between two engines.

mod pair;

use pair::{BUFFER_BYTES, Pair};
use semantics::{CompletionKind, Request};

#[test]
fn small_and_large_writes_arrive_and_complete_in_order() {
    let mut pair = Pair::connected(1);
    pair.fill(0, BUFFER_BYTES);
    for (index, (offset, length)) in
        [(0, 8), (8, 0), (8, 4096), (4104, 1 << 20), (1_052_680, 100_000)].into_iter().enumerate()
    {
        let (key, address) = pair.remote(1, offset);
        let source = pair.source(0, offset);
        pair.post(0, Request::Write { source, key, address }, length, index as u64);
    }
    pair.run_for(200_000_000);
    let done = pair.done(0);
    assert_eq!(done.iter().map(|c| c.context).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(done.iter().all(|c| c.result.is_ok()), "{done:?}");
    assert!(pair.same(1_152_680));
    pair.assert_idle();
}

//= protocol.md: again.1
#[test]
fn every_kind_of_operation_works_under_loss_on_two_links() {
    for links in [1, 2] {
        let mut pair = Pair::connected(links);
        pair.fill(1, BUFFER_BYTES);
        pair.filter = Box::new(|frame, _| frame % 11 != 3);
        pair.receive(1, 2_000_000, 5000, 77);
        pair.hosts[1].buffer.store_u64(1_000_000, 40);
        let (key, address) = pair.remote(1, 1_000_000);
        pair.post(0, Request::FetchAdd { key, address, operand: 2, sink: None }, 8, 1);
        pair.post(0, Request::CompareSwap { key, address, compare: 42, swap: 7, sink: None }, 8, 2);
        let sink = pair.hosts[0].region.id;
        let (key, address) = pair.remote(1, 0);
        pair.post(0, Request::Read { sink, sink_offset: 0, key, address }, 1_000_000, 3);
        let source = pair.source(0, 0);
        pair.post(0, Request::Send { source }, 5000, 4);
        pair.write(0, 3_000_000, 500_000, 5);
        pair.run_for(2_000_000_000);
        let done = pair.done(0);
        let seen: Vec<_> = done.iter().map(|c| (c.context, c.value, c.result)).collect();
        assert_eq!(
            seen,
            [(1, 40, Ok(())), (2, 42, Ok(())), (3, 0, Ok(())), (4, 0, Ok(())), (5, 0, Ok(()))]
        );
        assert_eq!(pair.hosts[1].buffer.load_u64(1_000_000), 7);
        assert!(pair.same(1_000_000));
        let received = pair.done(1);
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].kind, received[0].bytes), (CompletionKind::Receive, 5000));
        pair.assert_idle();
    }
}

//= protocol.md: close.4
#[test]
fn a_wrong_key_fails_its_operation_and_ends_the_connection() {
    let mut pair = Pair::connected(1);
    let (key, address) = pair.remote(1, 0);
    let source = pair.source(0, 0);
    let wrong = wire_edge::RemoteKey(key.0 ^ 1);
    pair.post(0, Request::Write { source, key: wrong, address }, 8, 1);
    pair.post(0, Request::Write { source, key, address }, 8, 2);
    pair.run_for(2_000_000_000);
    let done = pair.done(0);
    assert_eq!(
        done.iter().map(|c| (c.context, c.result)).collect::<Vec<_>>(),
        [
            (1, Err(semantics::OperationError::RemoteAccess(semantics::AccessFault::Key))),
            (2, Err(semantics::OperationError::EndedByPeer))
        ]
    );
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
    assert_eq!(pair.hosts[1].engine.connection_count(), 0);
}
