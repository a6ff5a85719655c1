//! Tests of regions that are dropped while operations and receives use them. This happens, for
//! example, when a timeout drops the future of a read.

#[path = "executor/mod.rs"]
mod executor;
mod pair;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use ethernot::{
    AccessFault, Buffer, Closed, Endpoint, Error, MemoryRegion, OperationError, OperationFailure,
    OperationOptions, Polling, RegionSlice, RemoteRegion, Rights,
};
use executor::{block_on, waker};
use pair::{BYTES, EVERYTHING, LIMIT, Pair, loopback};

const NONE: OperationOptions = OperationOptions::NONE;
/// Returns options that allow the library to defer the operation until the next operation.
fn later() -> OperationOptions {
    OperationOptions::NONE.more(true)
}

fn register(endpoint: &Endpoint, rights: Rights) -> (Arc<Buffer>, MemoryRegion) {
    let buffer = Buffer::new(BYTES);
    let region = endpoint.register(Arc::clone(&buffer), rights).expect("there is room");
    (buffer, region)
}

/// Waits until the endpoint has at most `regions` regions. Threads of the endpoint deregister
/// unused regions.
fn until_regions(endpoint: &Endpoint, regions: u32) {
    while endpoint.memory().regions() > regions {
        endpoint.drive().expect("not forked");
    }
}

/// Waits until the endpoint holds no reference to the buffer. Without this wait, another thread may
/// not have dropped the last reference yet.
fn until_freed(endpoint: &Endpoint, buffer: &Arc<Buffer>) {
    while Arc::strong_count(buffer) > 1 {
        endpoint.drive().expect("not forked");
    }
}

/// Makes two pairs. The client of the first has a progress thread, and the client of the second has
/// none.
fn pairs() -> [Pair; 2] {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    [true, false].map(|wanted| {
        let client = loopback().progress_thread(wanted);
        Pair::build(client, loopback(), rights)
    })
}

#[test]
fn a_read_continues_after_its_region_is_dropped() {
    for pair in pairs() {
        let client = &pair.client;
        pair.server.buffer.write(BYTES - 4, b"last");
        let (buffer, region) = register(&client.endpoint, Rights::LOCAL_WRITE);
        let read = client.connection.read(&region, 0, &pair.remote, 0, BYTES, later());
        let read = read.expect("it is posted");
        drop(region);
        assert_eq!(read.wait(Some(LIMIT)), Ok(0));
        let mut bytes = [0; 4];
        buffer.read(BYTES - 4, &mut bytes);
        assert_eq!((&bytes, client.connection.closed()), (b"last", None));
        until_freed(&client.endpoint, &buffer);
    }
}

#[test]
fn a_write_and_a_message_continue_after_their_regions_are_dropped() {
    for pair in pairs() {
        let (client, server) = (&pair.client, &pair.server);
        let posted = server.connection.receive(&server.region, BYTES / 2, 8).expect("it is posted");
        let [(first, written), (second, sent)] =
            [(); 2].map(|()| register(&client.endpoint, Rights::NONE));
        first.write(0, b"written");
        second.write(8, b"sent");
        let write = client.connection.write(&written, 0, &pair.remote, 0, 7, later());
        let send = client.connection.send(&sent, 8, 4, later());
        drop((written, sent));
        assert_eq!(send.expect("it is posted").wait(Some(LIMIT)), Ok(0));
        assert_eq!(write.expect("it is posted").wait(Some(LIMIT)), Ok(0));
        assert_eq!(posted.wait(Some(LIMIT)).expect("a message").to_vec().unwrap(), b"sent");
        assert_eq!(server.buffer.load_u8(6), b'n');
        until_regions(&client.endpoint, 1);
    }
}

#[test]
fn a_scatter_gather_operation_continues_after_its_regions_are_dropped() {
    for pair in pairs() {
        let client = &pair.client;
        pair.server.buffer.write(0, b"scattered");
        let kept = [(); 2].map(|()| register(&client.endpoint, Rights::LOCAL_WRITE));
        let [(first, one), (second, two)] = kept;
        let pieces: [RegionSlice<'_>; 2] = [one.slice(..4).unwrap(), two.slice(100..105).unwrap()];
        let read = client.connection.read_list(&pieces, &pair.remote, 0, later());
        let read = read.expect("it is posted");
        drop((one, two));
        assert_eq!(read.wait(Some(LIMIT)), Ok(0));
        assert_eq!((first.load_u8(3), second.load_u8(104)), (b't', b'd'));
        until_regions(&client.endpoint, 1);
    }
}

#[test]
fn a_message_arrives_in_a_dropped_region() {
    let pair = Pair::new();
    let server = &pair.server;
    let (buffer, region) = register(&server.endpoint, Rights::LOCAL_WRITE);
    let receive = server.connection.receive(&region, 8, 16).expect("it is posted");
    drop(region);
    let sent = pair.client.connection.send_bytes(b"in time", NONE).expect("it is posted");
    assert_eq!(sent.wait(Some(LIMIT)), Ok(0));
    let message = receive.wait(Some(LIMIT)).expect("a message");
    drop(receive);
    assert_eq!(server.endpoint.memory().regions(), 2, "the message keeps it");
    assert_eq!(message.to_vec().unwrap(), b"in time");
    drop(message);
    until_freed(&server.endpoint, &buffer);
}

#[test]
fn a_dropped_receive_with_a_dropped_region_still_consumes_its_message() {
    let pair = Pair::new();
    let server = &pair.server;
    let (_buffer, region) = register(&server.endpoint, Rights::LOCAL_WRITE);
    let mut given_up = server.connection.receive(&region, 8, 16).expect("it is posted");
    let polled = Pin::new(&mut given_up).poll(&mut Context::from_waker(&waker()));
    assert!(matches!(polled, Poll::Pending));
    drop((given_up, region));
    let sent = pair.client.connection.send_bytes(b"not lost", NONE).expect("it is posted");
    assert_eq!(sent.wait(Some(LIMIT)), Ok(0));
    let next = server.connection.receive(&server.region, 0, 16).expect("it is posted");
    assert_eq!(next.wait(Some(LIMIT)).expect("a message").to_vec().unwrap(), b"not lost");
    drop(next);
    until_regions(&server.endpoint, 1);
}

#[test]
fn peers_lose_access_at_once_to_a_dropped_region_that_is_still_in_use() {
    let still = loopback().progress_thread(false);
    let pair = Pair::build(still, loopback(), Rights::REMOTE_READ | Rights::LOCAL_WRITE);
    let (client, server) = (&pair.client, &pair.server);
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
    let (buffer, region) = register(&client.endpoint, rights);
    let offered = region.remote();
    let receive = client.connection.receive(&region, 0, 8).expect("it is posted");
    drop(region);
    let write = server.connection.write_bytes(b"late", &offered, 0, NONE).expect("it is posted");
    while !write.is_done() {
        client.endpoint.drive().expect("not forked");
    }
    let failure = OperationFailure::Failed(OperationError::RemoteAccess(AccessFault::Key));
    assert_eq!(write.wait(Some(LIMIT)), Err(failure));
    assert_eq!(buffer.load_u8(0), 0);
    drop(receive);
    until_regions(&client.endpoint, 1);
}

#[test]
fn dropping_the_whole_address_space_region_takes_effect_at_once() {
    // A thread inside the engine may send a write before the region is dropped. Such a write
    // succeeds, so the test needs several attempts.
    let failed = (0..ATTEMPTS).filter(|_| write_fails_without_the_address_space()).count();
    assert!(failed > 0, "all of {ATTEMPTS} writes were sent before the region was dropped");
}

const ATTEMPTS: usize = 20;

/// Posts a write and then drops the region of its bytes. Returns false if the write succeeded,
/// because the engine sent it before the drop. Otherwise checks the errors of the write and of the
/// connection, which ends, and returns true.
fn write_fails_without_the_address_space() -> bool {
    let pair = Pair::new();
    let client = &pair.client;
    let everything = client.endpoint.register_whole_address_space(Rights::NONE).expect("once");
    let address = client.buffer.address();
    let write = client.connection.write(&everything, address, &pair.remote, 0, 8, later());
    let write = write.expect("it is posted");
    drop(everything);
    assert_eq!(client.endpoint.memory().regions(), 1);
    let Err(failure) = write.wait(Some(LIMIT)) else { return false };
    assert_eq!(failure, OperationFailure::Failed(OperationError::LocalAccess));
    let ended = client.connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert_eq!(ended.0, Closed::LocalMemory);
    true
}

#[test]
fn memory_is_freed_when_the_connection_that_uses_it_ends() {
    let pair = Pair::new();
    let server = &pair.server;
    let (buffer, region) = register(&server.endpoint, Rights::LOCAL_WRITE);
    server.connection.post_receive(&region, 0, 8, 1).expect("it is posted");
    drop(region);
    assert_eq!(server.endpoint.memory().regions(), 2);
    server.connection.close(b"").expect("not forked");
    until_freed(&server.endpoint, &buffer);
}

#[test]
fn memory_is_freed_with_the_endpoint() {
    let pair = Pair::new();
    let (buffer, region) = register(&pair.server.endpoint, Rights::LOCAL_WRITE);
    pair.server.connection.post_receive(&region, 0, 8, 1).expect("it is posted");
    drop(region);
    let table = Arc::clone(pair.server.endpoint.memory());
    drop(pair);
    assert_eq!((table.regions(), Arc::strong_count(&buffer)), (0, 1));
}

/// Reads from the peer into a region that the future owns. Returns the last byte.
async fn read_own(
    endpoint: &Endpoint,
    connection: &ethernot::Connection,
    remote: &RemoteRegion,
    length: u64,
) -> Result<u8, Error> {
    let buffer = Buffer::new(length);
    let region = endpoint.register(Arc::clone(&buffer), Rights::LOCAL_WRITE)?;
    connection.read(&region, 0, remote, 0, length, NONE)?.await?;
    Ok(buffer.load_u8(length - 1))
}

#[test]
fn other_operations_continue_beside_dropped_futures() {
    for polling in [Polling::default(), Polling::NEVER] {
        let side = || loopback().polling(polling);
        let pair = Pair::build(side(), side(), Rights::REMOTE_READ);
        pair.server.buffer.write(0, &vec![7; BYTES as usize]);
        let (endpoint, connection) = (&pair.client.endpoint, &pair.client.connection);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let mut given_up =
                            Box::pin(read_own(endpoint, connection, &pair.remote, BYTES));
                        let waker = waker();
                        // The read may be complete at the first poll; either result is valid.
                        let polled = given_up.as_mut().poll(&mut Context::from_waker(&waker));
                        if let Poll::Ready(read) = polled {
                            assert_eq!(read.expect("the peer is there"), 7);
                        }
                    }
                });
            }
            for _ in 0..500 {
                let read = block_on(read_own(endpoint, connection, &pair.remote, 64));
                assert_eq!(read.expect("the peer is there"), 7);
            }
        });
        assert_eq!(connection.closed(), None);
        until_regions(endpoint, 1);
    }
}
