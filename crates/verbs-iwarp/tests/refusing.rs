//! Tests of a listener that has no room for a request.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rdma_cm::{Caller, Exchange, Listener, PortSpace, Refusal, Request};
use verbs::Strictness;
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

#[test]
fn a_listener_without_room_rejects_and_the_device_goes_on() {
    let managed = verbs_iwarp::device("iwarp0", Strictness::Lenient).expect("the host has one");
    let manager = &managed.manager;
    let claim = manager.claim((Ipv4Addr::LOCALHOST, 0).into(), PortSpace::Tcp).expect("a port");
    let _listening =
        manager.listen(&*claim, PortSpace::Tcp, Arc::new(Full)).expect("the port is free");
    for round in 0..3 {
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
        assert!(frame.flags.reject, "round {round}");
    }
}
