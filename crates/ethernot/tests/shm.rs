//! Memory shared between endpoints of one host.
#![forbid(unsafe_code)]

mod pair;

use std::time::Duration;

use ethernot::{Endpoint, EndpointBuilder, OperationOptions, Rights};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

fn sharing() -> EndpointBuilder {
    loopback().shared_memory(true)
}

fn pair_of(client: EndpointBuilder, server: EndpointBuilder) -> Pair {
    let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
    Pair::build(client, server, rights)
}

/// Frames that an endpoint has received over shared memory.
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
        pair.client.connection.wait_completion(Some(Duration::from_millis(1))).expect("open");
        looks += 1;
        assert!(looks < 20_000, "no frame has come over shared memory");
    }
}

#[test]
fn two_endpoints_of_a_host_find_each_other_and_large_writes_take_the_memory() {
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
        assert_eq!(handle.wait(LIMIT), Ok(0));
    }
    let mut seen = vec![0; bytes.len()];
    pair.server.buffer.read(0, &mut seen);
    assert!(seen == bytes, "the bytes differ");
    let frames = frames_over_memory(&pair.server.endpoint) - before;
    assert!(frames >= 8 * 32, "{frames} frames of 32 KiB carried 8 MiB");
}

#[test]
fn an_endpoint_without_it_is_reached_as_before() {
    let pair = pair_of(sharing(), loopback());
    let handle = pair
        .client
        .connection
        .write(&pair.client.region, 0, &pair.remote, 0, 4096, OperationOptions::NONE)
        .expect("posted");
    assert_eq!(handle.wait(LIMIT), Ok(0));
    assert_eq!(frames_over_memory(&pair.client.endpoint), 0);
}
