//! Tests posting while another thread is inside the engine.

mod pair;

use std::sync::{Arc, Barrier};
use std::thread;

use engine::ConnectionHandle;
use mem::{Buffer, Region, Rights};
use pair::{Side, connect, connect_with, small_write};
use runtime::{Doorbell, RuntimeConfig};
use semantics::{CompletionKind, CompletionQueue, Operation, OperationFlags, PostError, Receive};

/// The completion queue of one connection is full, so 200 operations of this connection are held
/// back. Operations of another connection must not wait for them.
#[test]
fn operations_keep_their_order_behind_a_connection_that_is_not_polled() {
    let (client, server) = (Side::new(false), Side::new(false));
    let target = target(&server);
    let unpolled = Arc::new(CompletionQueue::new(1));
    let full = connect_with(&client, &server, &unpolled);
    let other = connect(&client, &server);
    post(&client, &unpolled, full, &small_write(target));
    drive_until(&client, &server, || !unpolled.is_empty());
    while_occupied(&client, || {
        for _ in 0..200 {
            post(&client, &unpolled, full, &notifying(target, u32::MAX));
        }
        post(&client, &client.queue, other, &notifying(target, 1));
    });
    // After `while_occupied`, no other thread is inside the engine, so this operation is posted
    // directly.
    post(&client, &client.queue, other, &notifying(target, 2));
    let mut notes = Vec::new();
    drive_until(&client, &server, || {
        notes.extend(server.queue.poll().and_then(|note| note.immediate));
        assert!([1, 2].starts_with(&notes), "{notes:?}");
        notes.len() == 2
    });
    // When the application polls the full connection, the operations that were held back continue
    // in order.
    drive_until(&client, &server, || {
        while unpolled.poll().is_some() {}
        notes.extend(server.queue.poll().and_then(|note| note.immediate));
        notes.len() >= 202
    });
    assert!(notes.iter().skip(2).all(|&note| note == u32::MAX), "{notes:?}");
    assert_eq!(client.runtime.counters().expect("not forked").refused_late, 0);
}

#[test]
fn a_receive_without_room_does_not_delay_operations() {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = false;
    config.engine.receives_max = 4;
    let (client, server) = (Side::with(config), Side::new(false));
    let target = target(&server);
    let connection = connect(&client, &server);
    let sink = Buffer::new(64);
    let sink = client.runtime.memory().register(client.domain, sink, Rights::LOCAL_WRITE);
    let region = sink.expect("it is registered").id;
    let receive = Receive { region, offset: 0, length: 64, context: 0 };
    let post_receive = || client.runtime.post(connection, &client.queue, receive, Doorbell::Ring);
    while post_receive().is_ok() {}
    assert_eq!(post_receive(), Err(PostError::ReceiveQueueFull(4).into()));
    while_occupied(&client, || post_receive().expect("it is handed over"));
    assert_eq!(post_receive(), Err(PostError::ReceiveQueueFull(4).into()));
    post(&client, &client.queue, connection, &small_write(target));
    drive_until(&client, &server, || {
        client.queue.poll().is_some_and(|done| done.kind == CompletionKind::Write)
    });
}

fn target(server: &Side) -> Region {
    let memory = server.runtime.memory();
    let region = memory.register(server.domain, Buffer::new(64), Rights::REMOTE_WRITE);
    region.expect("it is registered")
}

fn notifying(target: Region, immediate: u32) -> Operation {
    let flags = OperationFlags::default();
    Operation { flags, immediate: Some(immediate), ..small_write(target) }
}

fn post(side: &Side, queue: &Arc<CompletionQueue>, to: ConnectionHandle, operation: &Operation) {
    side.runtime.post(to, queue, operation, Doorbell::Ring).expect("it is posted or handed over");
}

/// Runs `work` while another thread is inside the engine of `side`. That thread leaves before this
/// returns.
fn while_occupied(side: &Side, work: impl FnOnce()) {
    let (entered, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let inside = (Arc::clone(&entered), Arc::clone(&done));
    thread::scope(|scope| {
        scope.spawn(|| {
            let occupied = side.runtime.control(move |_, _, _| {
                inside.0.wait();
                inside.1.wait();
            });
            occupied.expect("not forked");
        });
        entered.wait();
        work();
        done.wait();
    });
}

fn drive_until(client: &Side, server: &Side, mut is_met: impl FnMut() -> bool) {
    for _ in 0..DRIVES_MAX {
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        if is_met() {
            return;
        }
    }
    panic!("it does not come");
}

/// More calls of `drive` than any test here needs. The limit makes a failing test end.
const DRIVES_MAX: u32 = 1_000_000;
