//! Tests of connections over `AF_XDP` links. They need root.
#![forbid(unsafe_code)]

mod hosts;

use ethernot::{Buffer, Endpoint, LinkState, OperationOptions, PeerSpec, RemoteRegion, Rights};
use hosts::{EndpointHost as _, LIMIT, Target};
use testbed::host::{Host, until};

#[test]
fn written_bytes_are_read_back() {
    let Some([a, b]) = Host::pair() else { return };
    let Some([target, client]) = endpoints(&a, &b, &["edge0"]) else { return };
    let mut target = Target::new(target, BYTES);
    let peer = station(&target.endpoint);
    let [connection, _accepted] = target.is_written_by(&a, &client, peer);
    let readable = target.endpoint.register(target.memory.clone(), Rights::REMOTE_READ).unwrap();
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).unwrap();
    let own = Buffer::new(BYTES);
    let local = client.register(own.clone(), Rights::LOCAL_WRITE).unwrap();
    for seed in 0..8 {
        let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 31 + i / 251 + seed) as u8).collect();
        own.write(0, &bytes);
        let options = OperationOptions::NONE;
        let write = connection.write(&local, 0, &remote, 0, BYTES, options);
        write.unwrap().wait(Some(LIMIT)).unwrap();
        let mut found = vec![0; BYTES as usize];
        target.memory.read(0, &mut found);
        assert!(found == bytes, "the bytes written differ");
        own.write(0, &vec![0; BYTES as usize]);
        let read = connection.read(&local, 0, &readable.remote(), 0, BYTES, options);
        read.unwrap().wait(Some(LIMIT)).unwrap();
        own.read(0, &mut found);
        assert!(found == bytes, "the bytes read differ");
    }
}

#[test]
fn transfers_continue_while_the_mtu_changes_and_an_interface_goes_down() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    let Some([target, client]) = endpoints(&a, &b, &["edge0", "edge1"]) else { return };
    let mut target = Target::new(target, BYTES);
    let peer = station(&target.endpoint);
    let [connection, _accepted] = target.is_written_by(&a, &client, peer);
    let up = || {
        let paths = connection.info().unwrap().map_or(vec![], |info| info.paths);
        paths.iter().filter(|path| path.state == LinkState::Up).count()
    };
    until(|| up() == 2);
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).unwrap();
    let own = Buffer::new(BYTES);
    let local = client.register(own.clone(), Rights::LOCAL_WRITE).unwrap();
    let transfer = |seed: u8| {
        own.write(0, &vec![seed; BYTES as usize]);
        let write = connection.write(&local, 0, &remote, 0, BYTES, OperationOptions::NONE);
        write.unwrap().wait(Some(LIMIT)).unwrap();
        let mut found = vec![0; BYTES as usize];
        target.memory.read(0, &mut found);
        assert!(found.iter().all(|&byte| byte == seed), "the bytes written differ");
    };
    for (seed, mtu) in [(1, 9000), (2, 1400), (3, 3000)] {
        for host in [&a, &b] {
            host.ip(&format!("link set edge0 mtu {mtu}"));
        }
        transfer(seed);
    }
    a.ip("link set edge0 down");
    transfer(4);
    until(|| up() == 1);
    a.ip("link set edge0 up");
    transfer(5);
    until(|| up() == 2);
}

#[test]
fn a_smaller_mtu_of_the_peer_on_a_second_link_is_discovered_and_the_link_kept() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    b.ip("link set edge1 mtu 1300");
    let Some([target, client]) = endpoints(&a, &b, &["edge0", "edge1"]) else { return };
    let mut target = Target::new(target, BYTES);
    let peer = station(&target.endpoint);
    let [connection, _accepted] = target.is_written_by(&a, &client, peer);
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).unwrap();
    let own = Buffer::new(BYTES);
    let local = client.register(own.clone(), Rights::LOCAL_WRITE).unwrap();
    // The interface accepts 4 additional bytes for a VLAN tag. The path-MTU search stops at most 16
    // bytes below the largest size that passes. So the test accepts a range of sizes.
    let is_found =
        |bytes| (1300 - ENVELOPE_BYTES - 16..=1300 + 4 - ENVELOPE_BYTES).contains(&bytes);
    let found = || {
        let write = connection.write(&local, 0, &remote, 0, BYTES, OperationOptions::NONE);
        write.unwrap().wait(Some(LIMIT)).unwrap();
        let paths = connection.info().unwrap().map_or(vec![], |info| info.paths);
        let edge1 = paths.iter().find(|path| path.link.0 == 1);
        assert!(edge1.is_none_or(|path| path.counters.suspicions == 0), "{edge1:?}");
        edge1.is_some_and(|path| path.state == LinkState::Up && is_found(path.frame_bytes))
    };
    until(found);
}

/// Makes an endpoint on each host with links on these interfaces. The endpoint of `b` is the first
/// in the result. Returns `None` if the kernel does not support `AF_XDP`.
fn endpoints(a: &Host, b: &Host, interfaces: &[&str]) -> Option<[Endpoint; 2]> {
    let links: Vec<String> = interfaces.iter().map(|name| format!("xdp:{name}:0")).collect();
    let open = |host: &Host| match host.endpoint(&links.join(",")) {
        Ok(endpoint) => Some(endpoint),
        Err(error) if error.contains("kernel has no AF_XDP") => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    Some([open(b)?, open(a)?])
}

fn station(endpoint: &Endpoint) -> PeerSpec {
    PeerSpec::of_address(endpoint.links().unwrap()[0].1).unwrap()
}

const BYTES: u64 = 300_000;
const ENVELOPE_BYTES: u16 = 12;
