//! Ports of an interface. Each port belongs to one endpoint of the host.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Exclusive use of a port on an interface. The kernel releases the port when the value is dropped
/// or the process ends.
///
/// The claim is a Unix socket bound to an abstract name. In one network namespace, only one socket
/// can have the name. Without the claim, two processes could receive at one port. Both would then
/// answer each frame.
#[derive(Debug)]
pub(crate) struct PortClaim {
    _socket: UnixDatagram,
    port: u16,
}

impl PortClaim {
    //= protocol.md: envelope.7
    /// Claims `port` on interface number `interface` under an `EtherType` and VLAN. If `port` is 0,
    /// claims a free port. On two interfaces, this call most likely chooses different free ports.
    /// The port then distinguishes interfaces that have the same station address, for example the
    /// interfaces of a bond.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::AddrInUse`] if another endpoint uses the port, or if no port is
    /// free.
    pub(crate) fn take(
        interface: u32,
        ethertype: u16,
        vlan: Option<u16>,
        port: u16,
    ) -> io::Result<Self> {
        if port != 0 {
            return Self::take_exactly(interface, ethertype, vlan, port);
        }
        let first = std::process::id().wrapping_add(interface.wrapping_mul(PORTS_APART));
        let first = first % u32::from(FREE_PORTS);
        for offset in 0..u32::from(FREE_PORTS) {
            let port = FREE_PORT_MIN + ((first + offset) % u32::from(FREE_PORTS)) as u16;
            match Self::take_exactly(interface, ethertype, vlan, port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                taken => return taken,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// Returns the claimed port.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    fn take_exactly(
        interface: u32,
        ethertype: u16,
        vlan: Option<u16>,
        port: u16,
    ) -> io::Result<Self> {
        let vlan = vlan.unwrap_or(0);
        let name = format!("ethernot-{interface}-{ethertype:04x}-{vlan}-{port}");
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        Ok(Self { _socket: socket, port })
    }
}

/// First port that is assigned automatically. The ports from here are the dynamic ports of RFC
/// 6335.
const FREE_PORT_MIN: u16 = 49_152;
const FREE_PORTS: u16 = u16::MAX - FREE_PORT_MIN + 1;

/// Distance between the ports that [`PortClaim::take`] tries first on interfaces with consecutive
/// numbers. If a port is in use, `take` tries the next ports. So that it does not reach the first
/// port of the next interface, the distance is larger than the number of ports that a host usually
/// uses on one interface. The distance is odd, so a sequence of interfaces uses all 2^14 ports
/// before it repeats a port.
const PORTS_APART: u32 = 1021;

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that no interface has, so that the tests do not disturb real links.
    const INTERFACE: u32 = u32::MAX - 1;

    //= protocol.md: envelope.7
    #[test]
    fn a_port_belongs_to_one_owner_until_it_is_dropped() {
        let take = |vlan, port| PortClaim::take(INTERFACE, 0x88b5, vlan, port);
        let claim = take(None, 7).unwrap();
        assert_eq!(take(None, 7).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let elsewhere = [take(Some(2), 7), take(None, 8)];
        assert!(elsewhere.iter().all(Result::is_ok));
        drop(claim);
        assert_eq!(take(None, 7).unwrap().port(), 7);
    }

    #[test]
    fn free_ports_differ() {
        let claims = [0, 0, 0].map(|port| PortClaim::take(INTERFACE, 0x88b6, None, port).unwrap());
        assert!(claims.iter().all(|claim| claim.port() >= FREE_PORT_MIN));
        assert!(claims[0].port() != claims[1].port() && claims[1].port() != claims[2].port());
    }

    #[test]
    fn free_ports_of_different_interfaces_differ() {
        let ports: Vec<u16> = (0..40)
            .map(|i| PortClaim::take(INTERFACE - 1 - i, 0x88b7, None, 0).unwrap().port())
            .collect();
        let different: std::collections::HashSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
    }
}
