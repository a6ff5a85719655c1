//! Tests of a listener that has no room for a request, and of what its replies ask for.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rdma_cm::{Caller, Exchange, Listener, PortClaim, PortSpace, Refusal, Request};
use verbs_iwarp::Settings;
use wire_iwarp::{
    EnhancedSetup, Parsed, Revision, SETUP_FRAME_BYTES_MAX, SetupFlags, SetupFrame, SetupKind,
    decode_setup,
};

/// Refuses each request, and drops its exchange inside the turn of the device.
struct Full;

impl Listener for Full {
    fn on_request(
        &self,
        _request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal> {
        drop(exchange);
        Err(Refusal::of(3))
    }
}

/// Connects to a port whose listener has no room. Returns the flags of the reply.
fn rejection(claim: &dyn PortClaim) -> SetupFlags {
    let mut peer = TcpStream::connect(claim.address()).expect("it listens");
    peer.set_read_timeout(Some(Duration::from_mins(1))).expect("a time");
    let request = SetupFrame {
        kind: SetupKind::Request,
        revision: Revision::Two,
        flags: SetupFlags { enhanced: true, ..SetupFlags::default() },
        enhanced: Some(EnhancedSetup { ird: 4, ord: 4, ..EnhancedSetup::default() }),
        private_data: b"room?",
    };
    let mut bytes = [0; SETUP_FRAME_BYTES_MAX];
    let length = request.encode(&mut bytes).expect("it fits");
    peer.write_all(&bytes[..length]).expect("it is connected");
    let mut reply = Vec::new();
    peer.read_to_end(&mut reply).expect("the device answers and closes");
    let parsed = decode_setup(SetupKind::Reply, &reply).expect("a reply");
    let Parsed::Complete { frame, .. } = parsed else { panic!("half a reply: {reply:?}") };
    frame.flags
}

/// Starts a device and a listener without room. Calls `check` with the listener's port.
fn with_full_listener(settings: Settings, check: impl FnOnce(&dyn PortClaim)) {
    let managed = verbs_iwarp::device(settings).expect("the host has one");
    let manager = &managed.manager;
    let claim = manager.claim((Ipv4Addr::LOCALHOST, 0).into(), PortSpace::Tcp).expect("a port");
    let _listening =
        manager.listen(&*claim, PortSpace::Tcp, Arc::new(Full)).expect("the port is free");
    check(&*claim);
}

#[test]
fn a_listener_without_room_rejects_and_the_device_goes_on() {
    with_full_listener(Settings::new("iwarp0"), |claim| {
        for round in 0..3 {
            assert!(rejection(claim).reject, "round {round}");
        }
    });
}

#[test]
fn a_device_asks_for_the_crcs_and_markers_of_its_settings() {
    for (crc, markers) in [(false, false), (false, true), (true, false), (true, true)] {
        with_full_listener(Settings { crc, markers, ..Settings::new("iwarp0") }, |claim| {
            let flags = rejection(claim);
            assert_eq!((flags.crc, flags.markers), (crc, markers));
        });
    }
}
