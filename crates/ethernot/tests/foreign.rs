//! Tests that an endpoint refuses objects of another endpoint of the same process. It must refuse
//! them even if it has an object with the same number.
#![forbid(unsafe_code)]

mod pair;

use std::sync::Arc;

use ethernot::{
    CompletionQueue, ConnectOptions, Operation, OperationFlags, OperationOptions, ProtectionDomain,
    Request, Rights,
};
use pair::{LIMIT, Pair, loopback};

/// Both regions have the same number, because each is the first region of its endpoint.
#[test]
fn every_call_refuses_a_region_of_another_endpoint_and_changes_no_memory() {
    let pair = Pair::new();
    let (client, remote) = (&pair.client.connection, &pair.remote);
    let foreign = &pair.server.region;
    pair.server.buffer.write(0, b"theirs");
    pair.client.buffer.write(0, b"ours..");
    let none = OperationOptions::NONE;
    let read = client.read(foreign, 0, remote, 0, 6, none).map(drop);
    let write = client.write(foreign, 0, remote, 64, 6, none).map(drop);
    let send = client.send(foreign, 0, 6, none).map(drop);
    let receive = client.post_receive(foreign, 0, 6, 1);
    let plain = client.post(&read_into(foreign, remote));
    let later = client.post_later(&read_into(foreign, remote));
    for (call, outcome) in [
        ("read", read),
        ("write", write),
        ("send", send),
        ("post_receive", receive),
        ("post", plain),
        ("post_later", later),
    ] {
        is_refused(call, outcome);
    }
    let whole = client.fetch_add(remote, 1024, 0, none).expect("the connection goes on");
    assert_eq!(whole.wait(Some(LIMIT)), Ok(0));
    let mut bytes = [0; 6];
    pair.client.buffer.read(0, &mut bytes);
    assert_eq!(&bytes, b"ours..", "memory of the own endpoint was written");
}

#[test]
fn a_region_of_another_endpoint_is_neither_adopted_nor_deregistered() {
    let pair = Pair::new();
    let foreign = *pair.server.region.region();
    let memory = pair.client.endpoint.memory();
    is_refused("deregister", memory.deregister(foreign.id));
    assert_eq!(memory.regions(), 1, "another region was deregistered");
    is_refused("adopt", pair.client.endpoint.adopt(foreign).map(drop));
    assert_eq!((memory.regions(), pair.server.endpoint.memory().regions()), (1, 1));
    let access = memory.access();
    is_refused("region", access.region(foreign.id));
    is_refused("source", access.source(foreign.id, 0, 1));
    is_refused("resolve_local", access.resolve_local(foreign.id, 0, 1, Rights::NONE));
}

#[test]
fn a_domain_of_another_endpoint_is_refused() {
    let (client, server) = (loopback().build().unwrap(), loopback().build().unwrap());
    let foreign = server.domain();
    let buffer = ethernot::Buffer::new(64);
    is_refused("register_in", client.register_in(foreign, buffer, Rights::NONE).map(drop));
    let options = || ConnectOptions::new().domain(foreign).limit(Some(LIMIT));
    let listener = server.listen(0).unwrap();
    let address = server.local_addresses().unwrap()[0];
    is_refused("connect", client.connect_with(address, options()).map(drop));
    let none = ConnectOptions::new().domain(ProtectionDomain::NONE).limit(Some(LIMIT));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect_with(address, none));
        let request = listener.accept(Some(LIMIT)).expect("a request");
        let wrong = ConnectOptions::new().domain(client.domain()).limit(Some(LIMIT));
        is_refused("accept", request.accept_with(wrong).map(drop));
        assert!(connecting.join().unwrap().is_err(), "a request that is dropped is rejected");
    });
}

#[test]
fn a_completion_queue_serves_one_endpoint() {
    let (client, server) = (loopback().build().unwrap(), loopback().build().unwrap());
    let queue = Arc::new(CompletionQueue::new(16));
    let options = || ConnectOptions::new().queue(Arc::clone(&queue)).limit(Some(LIMIT));
    let listener = server.listen(0).unwrap();
    let address = server.local_addresses().unwrap()[0];
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect_with(address, options()));
        let request = listener.accept(Some(LIMIT)).expect("a request");
        let accepted = request.accept(b"").unwrap();
        let connected = connecting.join().unwrap().unwrap();
        let connecting = scope.spawn(|| client.connect(address));
        let request = listener.accept(Some(LIMIT)).expect("a request");
        is_refused("accept", request.accept_with(options()).map(drop));
        assert!(connecting.join().unwrap().is_err(), "a request that is dropped is rejected");
        is_refused("connect", server.connect_with(address, options()).map(drop));
        is_refused("poll", server.poll(&queue));
        is_refused("wait_completion", server.wait_completion(&queue, Some(LIMIT)));
        assert_eq!(client.poll(&queue).unwrap(), None);
        drop((accepted, connected));
    });
}

#[test]
fn a_slot_of_another_operation_is_refused() {
    let pair = Pair::new();
    let mut operation = read_into(&pair.client.region, &pair.remote);
    operation.status = Some(0);
    let outcome = pair.client.connection.post(&operation);
    let error = outcome.expect_err("somebody else may hold a handle of it").to_string();
    assert!(error.contains("status"), "{error}");
}

fn read_into(region: &ethernot::MemoryRegion, remote: &ethernot::RemoteRegion) -> Operation {
    let sink = region.region().id;
    let request = Request::Read { sink, sink_offset: 0, key: remote.key, address: remote.address };
    let flags = OperationFlags::default();
    Operation { request, length: 6, flags, immediate: None, context: 0, status: None }
}

/// Checks that the error contains the cause and the remedy.
fn is_refused<T: std::fmt::Debug, E: std::error::Error>(call: &str, outcome: Result<T, E>) {
    let error = outcome.expect_err(call).to_string();
    assert!(error.contains("another endpoint"), "{call}: {error}");
}
