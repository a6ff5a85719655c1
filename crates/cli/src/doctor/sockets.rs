//! Finds out whether this host lets TCP connections move to the edge. The peer's host is not
//! checked.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use super::Verdict;
use crate::surroundings::find_sockets_library;

/// Checks that the library is installed, and that UDP datagrams from this host arrive at the port
/// of a TCP socket.
pub(super) fn verdict() -> Verdict {
    let found = find_sockets_library();
    let verdict = match found {
        Ok(_) => Verdict::yes("yes"),
        Err(error) => Verdict::no("no", error.to_string(), None),
    };
    verdict.and_then(|| {
        knock().map_err(|error| {
            format!(
                "send UDP from this host to itself: {error}; check whether a firewall or a sandbox \
                 blocks it"
            )
        })
    })
}

/// Sends a datagram to a UDP socket that has the same address and port as a TCP socket. An offer of
/// the sockets protocol is such a datagram.
fn knock() -> io::Result<()> {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let rendezvous = UdpSocket::bind(tcp.local_addr()?)?;
    rendezvous.set_read_timeout(Some(PATIENCE))?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    other.send_to(b"ethernot", rendezvous.local_addr()?)?;
    let mut bytes = [0; 16];
    rendezvous.recv_from(&mut bytes).map(|_| ())
}

/// Time limit for the datagram to arrive. On one host this takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
