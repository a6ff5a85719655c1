//! Free TCP ports for servers that tests start.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

/// The ports to choose from. The kernel chooses the ports of clients from 32768 on unless it is
/// configured otherwise, so no connection of another test takes such a port between the choice and
/// the start of the server. Ports from 20000 on belong to tests that name their port.
const FIRST: u32 = 10_000;
const COUNT: u32 = 10_000;

/// How many ports lie between the first ports of two processes with successive ids.
const STRIDE: u32 = 97;

/// Finds a TCP port that no program uses on this host. A later call finds another port.
///
/// # Panics
/// Panics if there is no free port.
pub(crate) fn free_tcp_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = process::id().wrapping_mul(STRIDE);
    let mut ports = (0..COUNT).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        u16::try_from(port).expect("the last port is below 20000")
    });
    ports.find(|&port| is_free(port)).expect("a port that is free")
}

/// Returns whether a socket can be bound to the port. The socket does not listen: a child process
/// that another thread starts at the same time has a copy of the socket until the child executes
/// its program, and a listening copy would look like the server. The socket also has no
/// `SO_REUSEADDR`, so a port with connections in any state, `TIME_WAIT` included, is not free.
fn is_free(port: u16) -> bool {
    let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let made = made.expect("a socket");
    let [a, b, c, d] = Ipv4Addr::LOCALHOST.octets();
    bind(made.as_raw_fd(), &SockaddrIn::new(a, b, c, d, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn clients_are_not_given_the_port() {
        let chosen = free_tcp_port();
        let clients = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let clients = clients.expect("Linux has the file");
        let first: u16 = clients
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .expect("two numbers");
        if first < 32_768 {
            println!("skipped: clients are configured to have ports from {first} on");
            return;
        }
        assert!(chosen < first, "{chosen} may be given to a client");
        assert_ne!(free_tcp_port(), chosen);
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let held = free_tcp_port();
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, held)).expect("it is free");
        for _ in 0..COUNT {
            assert_ne!(free_tcp_port(), held);
        }
    }
}
