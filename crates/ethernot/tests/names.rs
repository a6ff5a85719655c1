//! Tests of endpoints with named links, and of endpoints that choose their links.
#![forbid(unsafe_code)]

use std::process::Command;
use std::thread;
use std::time::Duration;

use ethernot::{
    BindError, Buffer, ConnectError, Connection, Endpoint, LinkId, OperationOptions, PeerAddr,
    RemoteRegion, Rights,
};
use nix::sched::{CloneFlags, unshare};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_endpoint_without_a_named_link_is_reached_over_loopback() {
    let server = Endpoint::builder().build().expect("the host has loopback");
    let first = server.local_addresses().expect("not forked")[0];
    let client = Endpoint::builder().build().expect("the host has loopback");
    write_over(&server, &client, &first.to_string());
}

#[test]
fn an_interface_name_is_enough() {
    let server = Endpoint::with_links("lo").expect("everybody has loopback");
    let address = server.local_addresses().expect("not forked")[0];
    assert!(address.ip().is_loopback());
    let client = Endpoint::with_links("udp:lo:0").expect("everybody has loopback");
    write_over(&server, &client, &address.to_string());
}

#[test]
fn the_port_is_that_of_the_link_or_the_endpoint() {
    // Another test may take the port between these two calls. The test then tries another port.
    let at_free_port = || {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Some((free, Endpoint::builder().links("lo").port(free).build().ok()?))
    };
    let (free, endpoint) = (0..20).find_map(|_| at_free_port()).expect("a port is free");
    assert_eq!(endpoint.local_addresses().expect("not forked")[0].port(), free);
    let error = Endpoint::with_links(format!("udp:127.0.0.1:{free}")).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn links_are_added_by_address_host_and_interface() {
    let endpoint = Endpoint::bind("127.0.0.1:0").expect("everybody has loopback");
    for name in ["127.0.0.2:0", "localhost:0", "lo", "udp:127.0.0.3"] {
        endpoint.add_link(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert_eq!(endpoint.links().expect("not forked").len(), 5);
    assert!(matches!(endpoint.add_link("nosuch0"), Err(BindError::NoInterface { .. })));
}

#[test]
fn the_error_for_a_wrong_name_lists_the_valid_names() {
    for (links, parts) in [
        ("nosuch0", &["nosuch0", "this host has lo"][..]),
        ("lo,udp:l0", &["l0", "did you mean \"lo\"?"]),
        ("packet:nosuch0", &["nosuch0", "this host has lo"]),
        ("udp:192.0.2.77", &["192.0.2.77", "no interface of this host has that address"]),
        ("paket:lo", &["paket", "did you mean \"packet\"?", "character 1"]),
    ] {
        let error = Endpoint::with_links(links).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{links}: {error}");
    }
    let endpoint = Endpoint::with_links("lo").expect("everybody has loopback");
    let error = endpoint.connect("02:00:00:00:00:01/7").unwrap_err();
    assert!(matches!(error, ConnectError::NoWay { .. }), "{error}");
    let error = endpoint.connect("02:00:00:00:00/7").unwrap_err();
    assert!(error.to_string().contains("MAC/PORT"), "{error}");
}

#[test]
fn every_usable_interface_is_used_and_new_ones_are_added() {
    in_namespace(|| {
        ip("link set lo up");
        let endpoint = Endpoint::builder().build().expect("the host has loopback");
        assert_eq!(addresses(&endpoint), ["127.0.0.1"]);
        ip("link add edge0 type veth peer name edge1");
        ip("address add 10.9.1.1/24 dev edge0");
        ip("link set edge0 up");
        ip("link set edge1 up");
        until(|| addresses(&endpoint) == ["127.0.0.1", "10.9.1.1"]);
        let second = Endpoint::builder().build().expect("an interface leaves the host");
        assert_eq!(addresses(&second), ["10.9.1.1"], "loopback does not leave the host");
        // To reach the peer's address, the client needs a loopback link, which it adds.
        let lone = Endpoint::with_links("lo").expect("everybody has loopback");
        let address = lone.local_addresses().expect("not forked")[0];
        write_over(&lone, &second, &address.to_string());
        assert_eq!(addresses(&second), ["10.9.1.1", "127.0.0.1"]);
    });
}

#[test]
fn a_link_follows_its_interface_to_another_address() {
    in_namespace(|| {
        ip("link add edge0 type veth peer name edge1");
        ip("link set edge1 up");
        ip("link set edge0 up");
        ip("address add 10.9.1.1/24 dev edge0");
        let endpoint = Endpoint::with_links("edge0").expect("it has an address");
        assert_eq!(addresses(&endpoint), ["10.9.1.1"]);
        ip("address delete 10.9.1.1/24 dev edge0");
        ip("address add 10.9.2.1/24 dev edge0");
        until(|| addresses(&endpoint) == ["10.9.2.1"]);
        ip("link delete edge0");
        ip("link add edge0 type veth peer name edge1");
        ip("link set edge1 up");
        ip("link set edge0 up");
        ip("address add 10.9.3.1/24 dev edge0");
        until(|| addresses(&endpoint) == ["10.9.3.1"]);
    });
}

#[test]
fn the_error_for_an_interface_without_an_address_names_the_remedy() {
    in_namespace(|| {
        ip("link add edge0 type veth peer name edge1");
        ip("link set edge1 up");
        ip("link set edge0 up");
        let error = Endpoint::with_links("udp:edge0").map(drop);
        // The kernel may have assigned a link-local address already. In this case there is no
        // error.
        if let Err(error) = error {
            assert!(matches!(error, BindError::NoIpAddress { .. }), "{error}");
            assert!(error.to_string().contains("packet:edge0"), "{error}");
        }
    });
}

/// Connects `client` to `server`, and writes into the server's memory. Returns the client's
/// connection.
fn write_over(server: &Endpoint, client: &Endpoint, address: &str) -> Connection {
    let memory = Buffer::new(64);
    let region = server.register(memory.clone(), Rights::REMOTE_WRITE).expect("there is room");
    let listener = server.listen(0).expect("no other listens");
    let offered = region.remote().to_bytes();
    let accepting = thread::spawn(move || {
        let request = listener.accept(Some(LIMIT)).expect("in time");
        request.accept(&offered).expect("the peer is there")
    });
    let connection = client.connect(address).expect("the server listens");
    let _accepted = accepting.join().expect("no panic");
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).expect("a region");
    let write = connection.write_bytes(b"hello", &remote, 0, OperationOptions::NONE);
    write.expect("it is posted").wait(Some(LIMIT)).expect("it arrives");
    assert_eq!(memory.load_u8(4), b'o');
    connection
}

fn addresses(endpoint: &Endpoint) -> Vec<String> {
    let links: Vec<(LinkId, PeerAddr)> = endpoint.links().expect("not forked");
    let ip = |(_, address): &(LinkId, PeerAddr)| address.to_socket().map(|s| s.ip().to_string());
    links.iter().filter_map(ip).collect()
}

/// Runs `test` in its own network namespace. The namespace is removed when the thread and its
/// endpoints have ended.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            println!("skipped: a network namespace needs root ({error})");
            return;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return;
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("it is installed");
    assert!(status.success(), "ip {arguments}");
}

/// Waits until `condition` returns true, for at most about 20 seconds.
fn until(condition: impl Fn() -> bool) {
    for _ in 0..4000 {
        if condition() {
            return;
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    panic!("the condition did not become true in time");
}
