//! Which endpoint of the host has which port on an interface.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A port that no other endpoint on the interface has while this lives.
///
/// The claim is a socket with a name in the kernel's abstract namespace: it is exclusive, it ends
/// with the process however that ends, and it belongs to the network namespace, as the interface
/// does.
#[derive(Debug)]
pub(crate) struct PortClaim {
    /// Holds the name.
    _socket: UnixDatagram,
    /// The port.
    pub(crate) port: u16,
}

impl PortClaim {
    /// Claims `port`, or a free one if it is 0.
    ///
    /// # Errors
    /// Of kind [`io::ErrorKind::AddrInUse`] if somebody has it, or all.
    pub(crate) fn new(
        interface_index: u32,
        ethertype: u16,
        vlan: Option<u16>,
        port: u16,
    ) -> io::Result<Self> {
        let vlan = vlan.unwrap_or(0);
        let claim = |port: u16| {
            let name = format!("ethernot/{interface_index}/{ethertype:04x}/{vlan}/{port}");
            let address = SocketAddr::from_abstract_name(name)?;
            let socket = UnixDatagram::bind_addr(&address)?;
            Ok(Self { _socket: socket, port })
        };
        if port != 0 {
            return claim(port);
        }
        let range = u32::from(u16::MAX - EPHEMERAL_FIRST) + 1;
        let start = RandomState::new().build_hasher().finish() as u32 % range;
        for attempt in 0..range {
            match claim(EPHEMERAL_FIRST + ((start + attempt) % range) as u16) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

/// First port that is taken when any will do, as for UDP (RFC 6335, section 6).
const EPHEMERAL_FIRST: u16 = 49_152;

#[cfg(test)]
mod tests {
    use super::*;

    /// No interface has this index, so that no link on this host is in the way.
    const INDEX: u32 = u32::MAX;

    #[test]
    fn port_belongs_to_one_until_it_lets_go() {
        let port = PortClaim::new(INDEX, 0x88b5, None, 0).unwrap().port;
        assert!(port >= EPHEMERAL_FIRST);
        let first = PortClaim::new(INDEX, 0x88b5, None, port).unwrap();
        let error = PortClaim::new(INDEX, 0x88b5, None, port).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(PortClaim::new(INDEX, 0x88b6, None, port).is_ok());
        assert!(PortClaim::new(INDEX, 0x88b5, Some(5), port).is_ok());
        assert!(PortClaim::new(INDEX - 1, 0x88b5, None, port).is_ok());
        assert_ne!(PortClaim::new(INDEX, 0x88b5, None, 0).unwrap().port, port);
        drop(first);
        assert!(PortClaim::new(INDEX, 0x88b5, None, port).is_ok());
    }
}
