//! Socket addresses in the kernel's format.

use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{c_int, sockaddr, socklen_t};
use wire_edge::PeerAddr;

/// Address family of a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the family that reaches `address`.
    pub(super) const fn of(address: &SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the kernel's number of the family.
    pub(super) const fn number(self) -> c_int {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }

    /// Returns the number of bytes of IP and UDP headers before a frame.
    pub(super) const fn header_bytes(self) -> u32 {
        match self {
            Self::V4 => 20 + 8,
            Self::V6 => 40 + 8,
        }
    }
}

/// A `sockaddr_in` or `sockaddr_in6`, as bytes. Both start with the family in host byte order and
/// the port in network byte order. The IPv4 address follows at byte 4, the IPv6 address at byte 8.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C, align(8))]
pub(super) struct SocketName([u8; 28]);

const _: () = assert!(size_of::<libc::sockaddr_in6>() == 28);
const _: () = assert!(size_of::<libc::sockaddr_in>() == 16);

impl SocketName {
    /// Size of the buffer that the kernel may fill, in bytes.
    pub(super) const BYTES: socklen_t = 28;

    /// Returns `address` in the kernel's format.
    pub(super) fn new(address: &SocketAddr) -> Self {
        let mut name = Self::default();
        match address {
            SocketAddr::V4(v4) => name.put_v4(*v4.ip(), v4.port()),
            SocketAddr::V6(v6) => name.put_v6(*v6.ip(), v6.port(), v6.scope_id()),
        }
        name
    }

    /// Returns the address of `peer` in the kernel's format, for a socket of `family`. Returns
    /// `None` if a socket of `family` cannot reach the peer.
    ///
    /// A [`PeerAddr`] does not contain the scope of a link-local address. A peer with a link-local
    /// address is on the network to which the socket is bound, so the scope of the socket's own
    /// address (`scope`) is correct.
    pub(super) fn of_peer(peer: PeerAddr, family: Family, scope: u32) -> Option<Self> {
        let mut name = Self::default();
        match (peer.to_socket()?, family) {
            (SocketAddr::V4(v4), Family::V4) => name.put_v4(*v4.ip(), v4.port()),
            (SocketAddr::V4(v4), Family::V6) => {
                name.put_v6(v4.ip().to_ipv6_mapped(), v4.port(), 0);
            }
            (SocketAddr::V6(_), Family::V4) => return None,
            (SocketAddr::V6(v6), Family::V6) => {
                let scope = if v6.ip().is_unicast_link_local() { scope } else { 0 };
                name.put_v6(*v6.ip(), v6.port(), scope);
            }
        }
        Some(name)
    }

    /// Returns the peer with this address; `None` if it is not a UDP address.
    pub(super) fn peer(&self) -> Option<PeerAddr> {
        self.socket().map(PeerAddr::from)
    }

    /// Returns the socket address in Rust's format; `None` if it is not a UDP address.
    pub(super) fn socket(&self) -> Option<SocketAddr> {
        let b = &self.0;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match c_int::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => Some((Ipv4Addr::new(b[4], b[5], b[6], b[7]), port).into()),
            libc::AF_INET6 => {
                let mut ip = [0; 16];
                ip.copy_from_slice(&b[8..24]);
                Some((Ipv6Addr::from(ip), port).into())
            }
            _ => None,
        }
    }

    /// Returns the number of bytes in use.
    pub(super) fn len(&self) -> socklen_t {
        let family = c_int::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        if family == libc::AF_INET { 16 } else { 28 }
    }

    /// Returns a pointer for the kernel to read.
    pub(super) const fn as_ptr(&self) -> *const sockaddr {
        self.0.as_ptr().cast()
    }

    /// Returns a pointer to which the kernel may write at most [`SocketName::BYTES`] bytes.
    pub(super) const fn as_mut_ptr(&mut self) -> *mut sockaddr {
        self.0.as_mut_ptr().cast()
    }

    fn put_v4(&mut self, ip: Ipv4Addr, port: u16) {
        self.0[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        self.0[2..4].copy_from_slice(&port.to_be_bytes());
        self.0[4..8].copy_from_slice(&ip.octets());
    }

    fn put_v6(&mut self, ip: Ipv6Addr, port: u16, scope: u32) {
        self.0[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        self.0[2..4].copy_from_slice(&port.to_be_bytes());
        self.0[8..24].copy_from_slice(&ip.octets());
        self.0[24..28].copy_from_slice(&scope.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_printed_name_of_a_peer_parses_to_the_same_peer() {
        for text in ["10.1.2.3:4791", "[2001:db8::7]:9", "[fe80::1]:65535"] {
            let peer = PeerAddr::from(addr(text));
            let name = SocketName::of_peer(peer, Family::of(&addr(text)), 3).unwrap();
            assert_eq!(name.peer(), Some(peer), "{text}");
        }
    }

    #[test]
    fn ipv4_peer_is_reached_through_a_dual_stack_socket() {
        let peer = PeerAddr::from(addr("10.1.2.3:4791"));
        let name = SocketName::of_peer(peer, Family::V6, 0).unwrap();
        assert_eq!(name.len(), 28);
        assert_eq!(name.peer(), Some(peer));
    }

    #[test]
    fn unreachable_kinds_of_peers_have_no_name() {
        let v6 = PeerAddr::from(addr("[2001:db8::7]:9"));
        assert_eq!(SocketName::of_peer(v6, Family::V4, 0), None);
        let mut mac = PeerAddr::default();
        mac.0[0] = 1;
        assert_eq!(SocketName::of_peer(mac, Family::V4, 0), None);
        assert_eq!(SocketName::default().peer(), None);
    }

    #[test]
    fn only_link_local_peers_get_the_scope_of_the_socket() {
        let local = PeerAddr::from(addr("[fe80::1]:1"));
        let name = SocketName::of_peer(local, Family::V6, 9).unwrap();
        assert_eq!(name.0[24..], 9u32.to_ne_bytes());
        let global = PeerAddr::from(addr("[2001:db8::7]:9"));
        let name = SocketName::of_peer(global, Family::V6, 9).unwrap();
        assert_eq!(name.0[24..], [0; 4]);
    }
}
