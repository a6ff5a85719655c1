//! Tests of what the device logs about peers that break a rule of the set-up.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rdma_cm::{Caller, Exchange, Listener, PortSpace, Refusal, Request};
use verbs_iwarp::Settings;

/// Refuses each request.
struct Full;

impl Listener for Full {
    fn on_request(
        &self,
        _request: Request,
        _exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal> {
        Err(Refusal::of(3))
    }
}

/// Connects, sends these bytes, and waits for the end. Returns the own address.
fn send(to: SocketAddr, bytes: &[u8]) -> SocketAddr {
    let mut peer = TcpStream::connect(to).expect("it listens");
    peer.set_read_timeout(Some(Duration::from_mins(1))).expect("a time");
    let own = peer.local_addr().expect("it is connected");
    peer.write_all(bytes).expect("it is connected");
    // The device ends the connection, by a reset if bytes are left that it has not read.
    let _reset = peer.read_to_end(&mut Vec::new());
    own
}

/// Returns a request whose flags and length of private data are these.
fn request(flags: [u8; 2], length: u16, private_data: &[u8]) -> Vec<u8> {
    [b"MPA ID Req Frame", flags.as_slice(), &length.to_be_bytes(), private_data].concat()
}

#[test]
fn a_set_up_that_breaks_a_rule_is_logged_with_the_rule_and_the_peer() {
    let trace: PathBuf =
        std::env::temp_dir().join(format!("ethernot-iwarp-log-{}", std::process::id()));
    let settings = Settings { trace: Some(trace.clone()), ..Settings::new("iwarp0") };
    let managed = verbs_iwarp::device(settings).expect("the host has one");
    let manager = &managed.manager;
    let claim = manager.claim((Ipv4Addr::LOCALHOST, 0).into(), PortSpace::Tcp).expect("a port");
    let _listening =
        manager.listen(&*claim, PortSpace::Tcp, Arc::new(Full)).expect("the port is free");
    let early = [request([0, 1], 0, &[]), b"too early".to_vec()].concat();
    for (bytes, parts) in [
        (
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            ["the key differs at byte 0", "RFC 5044 section 7.1.1"],
        ),
        (request([0, 3], 0, &[]), ["MPA revision 3", "RFC 5044 section 7.1.1"]),
        (request([0, 2], 513, &[]), ["513 bytes of private data", "RFC 5044 section 7.1.1"]),
        (request([0x10, 2], 2, &[0; 2]), ["enhanced set-up with 2 bytes", "RFC 6581 section 6"]),
        (early, ["bytes before the set-up permits them", "RFC 5044 section 7.1"]),
        (request([0, 1], 0, &[]), ["rejected the request", "no program listens"]),
    ] {
        let peer = send(claim.address(), &bytes);
        let log = std::fs::read_to_string(&trace).expect("the device has opened it");
        let line = log.lines().find(|line| line.contains(&peer.to_string()));
        let line = line.unwrap_or_else(|| panic!("nothing about {peer} in\n{log}"));
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
    }
    std::fs::remove_file(&trace).expect("it is there");
}
