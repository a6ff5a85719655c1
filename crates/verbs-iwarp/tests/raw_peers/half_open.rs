//! Connections without a request, and requests that do not say what the initiator answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rdma_cm::PortSpace;

use crate::host::{Host, Refuses};
use crate::peer::{request, request_of_revision_1};

#[test]
fn a_port_accepts_64_connections_without_a_request_and_the_others_wait() {
    let host = Host::new();
    let manager = &host.managed.manager;
    let claim = manager.claim((Ipv4Addr::LOCALHOST, 0).into(), PortSpace::Tcp).expect("a port");
    let _listening = manager
        .listen(&*claim, PortSpace::Tcp, Arc::new(Refuses::default()))
        .expect("the port is free");
    let connect = || TcpStream::connect(claim.address()).expect("the kernel accepts");
    let mut silent: Vec<_> = (0..64).map(|_| connect()).collect();
    let mut asking = connect();
    asking.write_all(&request()).expect("room");
    asking.set_read_timeout(Some(Duration::from_millis(300))).expect("a time");
    let mut byte = [0];
    let waits = asking.read(&mut byte).map_err(|error| error.kind());
    assert_eq!(waits, Err(ErrorKind::WouldBlock), "the port is full");
    silent.pop();
    asking.set_read_timeout(None).expect("a time");
    assert_eq!(asking.read(&mut byte).expect("an answer"), 1);
}

#[test]
fn the_program_chooses_how_many_reads_an_initiator_of_revision_1_answers() {
    let host = Host::new();
    let manager = &host.managed.manager;
    let claim = manager.claim((Ipv4Addr::LOCALHOST, 0).into(), PortSpace::Tcp).expect("a port");
    let (requests, asked) = channel();
    let refuses = Arc::new(Refuses { requests: Some(requests) });
    let _listening = manager.listen(&*claim, PortSpace::Tcp, refuses).expect("the port is free");
    let mut asking = TcpStream::connect(claim.address()).expect("the kernel accepts");
    asking.write_all(&request_of_revision_1()).expect("room");
    let end = asked.recv().expect("a request").end;
    let depth = host.context.device().attributes().read_depth_max;
    assert_eq!((end.responder_resources, end.initiator_depth), (depth, depth));
}
