//! Tests of memory shared between endpoints of one host.
#![forbid(unsafe_code)]

mod copy;
mod pair;

use std::time::{Duration, Instant};

use ethernot::{
    Closed, ConnectOptions, Endpoint, EndpointBuilder, OperationOptions, Rights, WaitError,
};
use nix::sys::signal::Signal;
use pair::{EVERYTHING, LIMIT, Pair, loopback};

fn sharing() -> EndpointBuilder {
    loopback().shared_memory(true)
}

fn pair_of(client: EndpointBuilder, server: EndpointBuilder) -> Pair {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    Pair::build(client, server, rights)
}

/// Returns the number of frames that an endpoint has received over shared memory.
fn frames_over_memory(endpoint: &Endpoint) -> u64 {
    let links = endpoint.links().expect("not forked");
    let shared = links.into_iter().filter(|(_, address)| address.is_shared_memory());
    let statistics =
        shared.filter_map(|(link, _)| endpoint.link_statistics(link).expect("not forked"));
    statistics.map(|statistics| statistics.receive_frames).sum()
}

/// Waits until the connection has a usable path over shared memory.
fn await_memory(pair: &Pair) {
    let mut looks = 0;
    while frames_over_memory(&pair.client.endpoint) == 0
        || frames_over_memory(&pair.server.endpoint) == 0
    {
        let _none = pair.client.connection.wait_completion(Some(Duration::from_millis(1)));
        looks += 1;
        assert!(looks < 20_000, "no frame has come over shared memory");
    }
}

#[test]
fn endpoints_of_one_host_use_shared_memory_for_large_writes() {
    let pair = pair_of(sharing(), sharing());
    await_memory(&pair);
    let before = frames_over_memory(&pair.server.endpoint);
    let bytes: Vec<u8> = (0..pair::BYTES).map(|i| (i * 7 % 251) as u8).collect();
    pair.client.buffer.write(0, &bytes);
    for _ in 0..8 {
        let handle = pair
            .client
            .connection
            .write(&pair.client.region, 0, &pair.remote, 0, pair::BYTES, OperationOptions::NONE)
            .expect("posted");
        assert_eq!(handle.wait(Some(LIMIT)), Ok(0));
    }
    let mut seen = vec![0; bytes.len()];
    pair.server.buffer.read(0, &mut seen);
    assert!(seen == bytes, "the bytes differ");
    let frames = frames_over_memory(&pair.server.endpoint) - before;
    assert!(frames >= 8 * 16, "{frames} frames of 64 KiB carried 8 MiB");
}

#[test]
fn an_endpoint_without_shared_memory_is_reached_over_udp() {
    let pair = pair_of(sharing(), loopback());
    let handle = pair
        .client
        .connection
        .write(&pair.client.region, 0, &pair.remote, 0, 4096, OperationOptions::NONE)
        .expect("posted");
    assert_eq!(handle.wait(Some(LIMIT)), Ok(0));
    assert_eq!(frames_over_memory(&pair.client.endpoint), 0);
}

#[test]
fn a_named_link_is_used_and_no_memory_is_shared() {
    let pair = Pair::new();
    let links = pair.client.endpoint.links().expect("not forked");
    assert!(links.iter().all(|(_, address)| !address.is_shared_memory()), "{links:?}");
    let named = Endpoint::with_links("udp:127.0.0.1,shm").expect("both links");
    let links = named.links().expect("not forked");
    assert!(links.iter().any(|(_, address)| address.is_shared_memory()), "{links:?}");
}

#[test]
fn a_killed_peer_ends_the_connection_and_its_memory_is_freed() {
    if copy::argument().is_some() {
        serve_until_killed();
    }
    let name = "a_killed_peer_ends_the_connection_and_its_memory_is_freed";
    let (server, address) = copy::start(name, "serve");
    let endpoint = sharing().build().expect("an endpoint");
    let options = ConnectOptions::new().service(7).limit(Some(LIMIT));
    let connection = endpoint.connect_with(address, options).expect("the copy accepts");
    let mut looks = 0;
    while frames_over_memory(&endpoint) == 0 {
        let _none = connection.wait_completion(Some(Duration::from_millis(1)));
        looks += 1;
        assert!(looks < 20_000, "no frame has come over shared memory");
    }
    assert!(maps_shared_memory());
    copy::end(server, Signal::SIGKILL);
    let mut looks = 0;
    while maps_shared_memory() {
        // After the end of the connection, waits for completions return at once. Sleep instead.
        std::thread::park_timeout(Duration::from_millis(1));
        looks += 1;
        assert!(looks < 20_000, "the memory is still there");
    }
    drop(connection);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long it took is printed, not judged")]
fn an_idle_connection_over_memory_ends_when_its_peer_is_killed() {
    if copy::argument().is_some() {
        serve_until_killed();
    }
    let name = "an_idle_connection_over_memory_ends_when_its_peer_is_killed";
    let (server, address) = copy::start(name, "serve");
    let endpoint = sharing().build().expect("an endpoint");
    let options = ConnectOptions::new().service(7).limit(Some(LIMIT));
    let connections: Vec<_> = (0..3)
        .map(|_| endpoint.connect_with(&*address, options.clone()).expect("the copy accepts"))
        .collect();
    let mut looks = 0;
    while frames_over_memory(&endpoint) == 0 {
        let _none = connections[0].wait_completion(Some(Duration::from_millis(1)));
        looks += 1;
        assert!(looks < 20_000, "no frame has come over shared memory");
    }
    // After this wait, the connections have compared their links and are idle. Their next frame is
    // a keep-alive.
    let limit = Duration::from_millis(3_500);
    let none = connections[0].wait_completion(Some(limit));
    assert_eq!(none, Err(WaitError::TimedOut { limit }));
    let killed_at = Instant::now();
    copy::end(server, Signal::SIGKILL);
    // The connections must end before a keep-alive is due.
    for connection in connections {
        let closed = connection.wait_closed(Some(LIMIT)).expect("it ends");
        assert!(matches!(closed, (Closed::Refused(_), _)), "{closed:?}");
    }
    println!("figure: killed peer noticed over shared memory: {}", killed_at.elapsed().as_millis());
}

/// Returns whether this process maps memory that a link shares.
fn maps_shared_memory() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has maps");
    maps.contains("/memfd:ethernot")
}

fn serve_until_killed() -> ! {
    let endpoint = sharing().build().expect("an endpoint");
    let listener = endpoint.listen(7).expect("the service is free");
    copy::say(&endpoint.local_addresses().expect("not forked")[0].to_string());
    let mut connections = Vec::new();
    loop {
        if let Ok(request) = listener.accept(Some(LIMIT)) {
            connections.push(request.accept(&[]).expect("the peer is there"));
        }
    }
}
