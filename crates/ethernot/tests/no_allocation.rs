//! Tests that awaited operations and receives allocate no memory after set-up.

#[path = "../../runtime/tests/counting/mod.rs"]
mod counting;
#[path = "executor/mod.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod executor;
#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use counting::allocations;
use ethernot::{EngineConfig, OperationHandle, OperationOptions, Polling, ReceiveHandle, Rights};
use executor::{block_on_with, waker};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

/// Performs 64 concurrent operations, and sends a message.
async fn converse(
    pair: &Pair,
    handles: &mut Vec<OperationHandle>,
    receives: &mut Vec<ReceiveHandle>,
) {
    let (client, server) = (&pair.client.connection, &pair.server);
    for _ in 0..64 {
        let add = client.fetch_add(&pair.remote, 0, 1, OperationOptions::NONE);
        handles.push(add.expect("it is posted"));
    }
    for handle in handles.drain(..) {
        handle.await.expect("it succeeds");
    }
    receives.push(server.connection.receive(&server.region, 0, 8).expect("it is posted"));
    let sent = client.send_bytes(b"hello", OperationOptions::NONE).expect("it is posted");
    for receive in receives.drain(..) {
        assert_eq!(receive.await.expect("a message").len(), 5);
    }
    sent.await.expect("it is received");
}

#[test]
fn awaited_operations_and_receives_allocate_nothing() {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    for polling in [Polling::default(), Polling::NEVER] {
        // Turn off compression. If the host does not run this test for a long time, the endpoint
        // would compress its idle connections, and compression allocates memory.
        let engine = EngineConfig::default().rest_ns(u64::MAX);
        let side = || loopback().polling(polling).engine(engine.clone());
        let pair = Pair::build(side(), side(), rights);
        let (mut handles, mut receives) = (Vec::with_capacity(64), Vec::with_capacity(1));
        let waker = waker();
        block_on_with(&waker, async {
            for _ in 0..100 {
                converse(&pair, &mut handles, &mut receives).await;
            }
            let before = allocations();
            for _ in 0..100 {
                converse(&pair, &mut handles, &mut receives).await;
            }
            // From time to time, both ends compare their links. The frames for this are allocated.
            let (allocations, operations) = (allocations() - before, 100 * 66);
            assert!(allocations < operations / 50, "{allocations} with {polling:?}");
        });
        assert!(pair.client.endpoint.shutdown(Some(LIMIT)).is_ok());
    }
}
