//! Free TCP ports for servers that tests start.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

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
    let free = ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    free.expect("a port that is free")
}

#[cfg(test)]
mod tests {
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
