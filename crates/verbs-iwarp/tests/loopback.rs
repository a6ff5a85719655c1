//! Tests of ids that are bound to loopback addresses.

use std::net::SocketAddr;

use rdma_cm::{EventChannel, Id, ManagedHost, PortSpace};
use verbs_iwarp::Settings;

/// If an id had the device, libfabric would listen at the loopback address alone.
#[test]
fn an_id_bound_to_a_loopback_address_has_no_device_and_listens() {
    let managed = verbs_iwarp::device(Settings::new("iwarp0")).expect("the host has one");
    let host = ManagedHost::new(vec![managed]);
    let channel = EventChannel::new(&host).expect("a channel");
    let id = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
    id.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    assert!(id.device().is_none());
    id.listen(1).expect("it listens");
    let at = id.local().expect("an address");
    std::net::TcpStream::connect(at).expect("it listens");
}
