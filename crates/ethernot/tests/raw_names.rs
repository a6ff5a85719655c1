//! Tests of named links on raw Ethernet, and of peers that these links find. They need root.
#![forbid(unsafe_code)]

mod hosts;

use std::sync::Arc;

use ethernot::{ConnectError, Endpoint, LinkState, PeerSpec};
use hosts::{EndpointHost as _, Target, write};
use testbed::host::{Host, until};

#[test]
fn peers_on_raw_ethernet_are_found_by_station_and_by_broadcast() {
    let Some([a, b]) = Host::pair() else { return };
    let mut target = Target::new(b.endpoint("packet:edge0:7471").unwrap(), 64);
    let station = PeerSpec::of_address(target.endpoint.links().unwrap()[0].1).unwrap();
    assert!(matches!(station, PeerSpec::Station { port: 7471, .. }), "{station}");
    let client = a.endpoint("packet:edge0").unwrap();
    target.is_written_by(&a, &client, station);
    target.is_written_by(&a, &client, "any/7471");
    // Without an IP address, the endpoint chooses a packet link for the interface.
    let client = a.endpoint("edge0").unwrap();
    assert!(client.local_addresses().unwrap().is_empty());
    target.is_written_by(&a, &client, station.to_string());
}

#[test]
fn the_station_of_an_ip_address_is_resolved() {
    let Some([a, b]) = Host::pair() else { return };
    a.ip("address add 10.9.9.1/24 dev edge0");
    b.ip("address add 10.9.9.2/24 dev edge0");
    let mut target = Target::new(b.endpoint("packet:edge0:7471").unwrap(), 64);
    let client = a.endpoint("packet:edge0").unwrap();
    target.is_written_by(&a, &client, "10.9.9.2:7471");
}

#[test]
fn udp_and_raw_ethernet_serve_one_connection() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    a.ip("address add 10.9.9.1/24 dev edge0");
    b.ip("address add 10.9.9.2/24 dev edge0");
    let mut target = Target::new(b.endpoint("edge0:7471,packet:edge1:7471").unwrap(), 64);
    let client = a.endpoint("edge0,packet:edge1").unwrap();
    let peers = "10.9.9.2:7471";
    let [connection, _accepted] = target.is_written_by(&a, &client, peers);
    until(|| links_up(&connection) == 2);
}

#[test]
fn xdp_links_carry_connections() {
    let Some([a, b]) = Host::pair() else { return };
    let mut target = match b.endpoint("xdp:edge0:0/port=7471") {
        Ok(endpoint) => Target::new(endpoint, 64),
        Err(error) if error.contains("kernel has no AF_XDP") => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let error = b.endpoint("xdp:edge0/port=7472").unwrap_err();
    assert!(error.contains("edge0"), "{error}");
    let error = b.endpoint("xdp:edge0:99/port=7473").unwrap_err();
    assert!(error.contains("no queue 99"), "{error}");
    let client = a.endpoint("packet:edge0").unwrap();
    let station = PeerSpec::of_address(target.endpoint.links().unwrap()[0].1).unwrap();
    target.is_written_by(&a, &client, station);
}

#[test]
fn another_vlan_is_another_network() {
    let Some([a, b]) = Host::pair() else { return };
    let mut target = Target::new(b.endpoint("packet:edge0:7471/vlan=7").unwrap(), 64);
    let stranger = a.endpoint("packet:edge0/vlan=8").unwrap();
    let outcome = a.run(move || stranger.connect("any/7471").map(drop));
    assert!(matches!(outcome, Err(ConnectError::Neighbour(_))), "{outcome:?}");
    let client = a.endpoint("packet:edge0/vlan=7").unwrap();
    target.is_written_by(&a, &client, "any/7471");
}

#[test]
fn two_endpoints_cannot_have_one_port_of_an_interface() {
    let Some([a, _b]) = Host::pair() else { return };
    let _first = a.endpoint("packet:edge0:7471").unwrap();
    let error = a.endpoint("packet:edge0:7471").unwrap_err();
    assert!(error.contains("7471") && error.contains("in use"), "{error}");
    let _tagged = a.endpoint("packet:edge0:7471/vlan=5").unwrap();
}

#[test]
fn a_returning_interface_gets_its_link_back() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    a.ip("address add 10.9.9.1/24 dev edge0");
    b.ip("address add 10.9.9.2/24 dev edge0");
    let mut target = Target::new(b.endpoint("udp:edge0:7471,packet:edge1:7471").unwrap(), 64);
    let client = a.endpoint("udp:edge0,packet:edge1").unwrap();
    let peers = "10.9.9.2:7471";
    let [connection, _accepted] = target.is_written_by(&a, &client, peers);
    // The thread that drives the endpoint recreates the endpoint's sockets, so this thread must run
    // on the host.
    let connection = Arc::new(connection);
    let up = || {
        let connection = Arc::clone(&connection);
        a.run(move || links_up(&connection))
    };
    let write = |offset, byte: &'static [u8]| {
        let connection = Arc::clone(&connection);
        a.run(move || write(&connection, offset, byte));
    };
    until(|| up() == 2);
    a.ip("link delete edge1");
    until(|| up() == 1);
    write(5, b"x");
    a.connect_to(&b, "edge1");
    until(|| up() == 2);
    write(6, b"y");
    assert_eq!([target.memory.load_u8(5), target.memory.load_u8(6)], [b'x', b'y']);
}

#[test]
fn a_link_whose_interface_stays_away_is_removed_and_recreated() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    a.ip("address add 10.9.9.1/24 dev edge0");
    let endpoint = a.endpoint("udp:edge0,packet:edge1:7471").unwrap();
    let count = || endpoint.links().unwrap().len();
    assert_eq!(count(), 2);
    a.ip("link delete edge1");
    until(|| count() == 1);
    a.connect_to(&b, "edge1");
    until(|| count() == 2);
    // An endpoint keeps its last link, because the interface may return.
    let lone = a.endpoint("packet:edge1").unwrap();
    a.ip("link delete edge1");
    until(|| count() == 1);
    assert_eq!(lone.links().unwrap().len(), 1);
}

#[test]
fn the_reason_why_a_link_cannot_return_is_reported() {
    let Some([a, b]) = Host::pair() else { return };
    a.connect_to(&b, "edge1");
    for number in 0..2 {
        a.ip(&format!("address add 10.9.{number}.1/24 dev edge{number}"));
    }
    let endpoint = a.endpoint("udp:edge0,udp:edge1").unwrap();
    let count = || endpoint.links().unwrap().len();
    assert_eq!((count(), endpoint.link_problems().len()), (2, 0));
    a.ip("link delete edge1");
    until(|| count() == 1);
    a.connect_to(&b, "edge1");
    until(|| !endpoint.link_problems().is_empty());
    let problem = endpoint.link_problems()[0].to_string();
    assert!(problem.starts_with("link udp:edge1: ") && problem.contains("address"), "{problem}");
    a.ip("address add 10.9.1.1/24 dev edge1");
    until(|| count() == 2 && endpoint.link_problems().is_empty());
}

fn links_up(connection: &ethernot::Connection) -> usize {
    let info = connection.info().unwrap().expect("it is not over");
    info.paths.iter().filter(|path| path.state == LinkState::Up).count()
}

#[test]
fn the_error_for_a_raw_link_names_the_missing_capability() {
    let endpoint = Endpoint::with_links("packet:lo");
    if let Err(error) = endpoint {
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    }
}

#[test]
fn connections_use_interfaces_added_later() {
    let Some([a, b]) = Host::pair() else { return };
    a.ip("address add 10.9.9.1/24 dev edge0");
    b.ip("address add 10.9.9.2/24 dev edge0");
    let mut target = Target::new(b.run(|| Endpoint::builder().port(7471).build().unwrap()), 64);
    let client = a.run(|| Endpoint::builder().build().unwrap());
    let [connection, _accepted] = target.is_written_by(&a, &client, "10.9.9.2:7471");
    assert_eq!(links_up(&connection), 1);
    a.connect_to(&b, "edge1");
    a.ip("address add 10.9.8.1/24 dev edge1");
    b.ip("address add 10.9.8.2/24 dev edge1");
    until(|| links_up(&connection) == 2);
    write(&connection, 8, b"z");
    assert_eq!(target.memory.load_u8(8), b'z');
}
