//! Whether TCP connections can move here, as far as this host has a say.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use super::Verdict;
use crate::surroundings::find_sockets_library;

/// The library is there, and UDP reaches this host itself, at the port of a TCP socket.
pub(super) fn verdict() -> Verdict {
    let found = find_sockets_library();
    let verdict = match found {
        Ok(_) => Verdict::yes("yes"),
        Err(error) => Verdict::no("no", error.to_string(), None),
    };
    verdict.and_then(|| {
        knock().map_err(|error| {
            format!("UDP from this host to itself: {error}; a firewall or a sandbox may stop it")
        })
    })
}

/// Sends a datagram to a UDP socket that has the address and port of a TCP socket, where offers come.
fn knock() -> io::Result<()> {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let rendezvous = UdpSocket::bind(tcp.local_addr()?)?;
    rendezvous.set_read_timeout(Some(PATIENCE))?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    other.send_to(b"ethernot", rendezvous.local_addr()?)?;
    let mut bytes = [0; 16];
    rendezvous.recv_from(&mut bytes).map(|_| ())
}

/// On one host it takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
