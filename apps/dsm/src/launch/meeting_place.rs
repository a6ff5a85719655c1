//! The address at which the ranks meet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::error::LaunchError;

/// Returns an address of this host at which no program waits. A later call returns another one.
///
/// Its port is not one of those that the kernel gives to sockets which name none, so no such socket
/// takes it before rank 0 does.
///
/// # Errors
/// [`LaunchError::NoPort`].
pub fn free_meeting_place() -> Result<String, LaunchError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = first_choice();
    let mut ports = (0..PORTS).map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        FIRST + (start.wrapping_add(step) % PORTS) as u16
    });
    let free = ports.find(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    let none = LaunchError::NoPort { first: FIRST, last: FIRST + (PORTS - 1) as u16 };
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, free.ok_or(none)?)).to_string())
}

/// Returns the address at which the ranks on these hosts meet.
pub(super) fn of(hosts: &[String]) -> Result<String, LaunchError> {
    let Some(first) = hosts.first() else { return free_meeting_place() };
    let failed = |source| LaunchError::Address { host: first.clone(), source };
    let mut address = resolve(first).map_err(failed)?;
    let others = hosts.iter().filter(|host| *host != first).find_map(|host| resolve(host).ok());
    if let Some(other) = others.filter(|other| address.is_loopback() && !other.is_loopback()) {
        // The first host is this one, under a name that only this host knows.
        address = own_address_towards(other).map_err(failed)?;
    }
    let port = FIRST + (first_choice() % PORTS) as u16;
    Ok(SocketAddr::from((address, port)).to_string())
}

/// Returns the first address of a host, which may have a user in front.
fn resolve(host: &str) -> io::Result<IpAddr> {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    let mut addresses = (name, 0).to_socket_addrs()?;
    let found = addresses.next().ok_or_else(|| io::Error::other("it has no address"))?;
    Ok(found.ip())
}

/// Returns the address from which packets of this host go to another one. Sends nothing.
fn own_address_towards(other: IpAddr) -> io::Result<IpAddr> {
    let unspecified = if other.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(unspecified)?;
    socket.connect((other, FIRST))?;
    Ok(socket.local_addr()?.ip())
}

/// Returns a number that differs between processes which start one after the other.
fn first_choice() -> u32 {
    process::id().wrapping_mul(STRIDE)
}

/// The ports to choose from. The kernel gives ports from 32768 on to sockets that name none, unless
/// it is configured otherwise.
const FIRST: u16 = 10_000;
const PORTS: u32 = 10_000;

/// How many ports lie between the first choices of two processes with successive ids.
const STRIDE: u32 = 97;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_not_free_and_no_place_comes_twice() {
        let held = free_meeting_place().unwrap();
        let _held = UdpSocket::bind(&held).unwrap();
        for _ in 0..PORTS {
            assert_ne!(free_meeting_place().unwrap(), held);
        }
    }

    #[test]
    fn ranks_meet_at_the_first_host() {
        let hosts = ["user@127.0.0.2".to_owned(), "127.0.0.3".to_owned()];
        assert!(of(&hosts).unwrap().starts_with("127.0.0.2:1"));
        let error = of(&["no.such.host.invalid".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no.such.host.invalid") && error.contains("--meet"), "{error}");
    }
}
