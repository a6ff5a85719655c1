//! Identifiers on the wire. Each type offers only the arithmetic that has a meaning for it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The id that an endpoint chose for a connection. Other hosts cannot guess the id.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(pub u32);

/// 16 random bits that an end chose for one connection. Each frame contains the epoch that its
/// receiver chose.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Epoch(pub u16);

/// Index of a link within one connection, 0 to [`LinkIndex::MAX`]. Both ends use the same index for
/// a link.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkIndex(pub u8);

impl LinkIndex {
    /// The largest index. The wire has four bits for an index.
    pub const MAX: u8 = 15;
}

/// Number of a packet on one link of one connection in one direction. The protocol never reuses a
/// packet number.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PacketNumber(pub u64);

impl PacketNumber {
    /// Returns the low 32 bits, which the wire carries.
    pub const fn truncate(self) -> u32 {
        self.0 as u32
    }

    //= protocol.md: packet.2
    /// Returns the packet number nearest to `expected` whose low 32 bits are `wire`.
    ///
    /// The result is correct if the true packet number is within 2^31 of `expected`.
    pub const fn expand(wire: u32, expected: Self) -> Self {
        let distance = wire.wrapping_sub(expected.0 as u32).cast_signed();
        Self(expected.0.wrapping_add_signed(distance as i64))
    }

    /// Returns the number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Sequence number of an operation, modulo 2^32. The operations of each direction of a connection
/// have consecutive numbers. Compare two numbers only if they lie within a window far smaller than
/// 2^31.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct OperationNumber(pub u32);

impl OperationNumber {
    /// Returns the number of the next operation.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the distance from `earlier` to this number, in operations. The result is negative if
    /// this number is earlier.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }
}

/// Sequence number of a message, modulo 2^32. Only messages that consume a posted receive are
/// counted.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct MessageNumber(pub u32);

impl MessageNumber {
    /// Returns the number of the next message.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the distance from `earlier` to this number, in messages. The result is negative if
    /// this number is earlier.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }
}

/// The key by which peers access a memory region (iWARP: `STag`). Other hosts cannot guess a key,
/// and each registration has a new key.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RemoteKey(pub u32);

/// Number by which datagrams name a queue pair of an endpoint. The number has 24 bits.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QueuePairNumber(u32);

impl QueuePairNumber {
    /// The largest number. In a datagram to a group, it stands for all queue pairs in the group.
    pub const GROUP: Self = Self((1 << 24) - 1);

    /// Creates the value from a number; returns `None` if the number has more than 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::GROUP.0 { Some(Self(number)) } else { None }
    }

    //= protocol.md: slot.1
    /// Returns the number whose high 12 bits are `slot` and whose low 12 bits are `index`. Returns
    /// `None` if one of the two has more than 12 bits, or if the number is reserved. The reserved
    /// numbers are 0, 1 and [`Self::GROUP`].
    pub const fn at(slot: u16, index: u16) -> Option<Self> {
        let number = (slot as u32) << 12 | index as u32;
        let is_own = slot < 1 << 12 && index < 1 << 12 && number > 1 && number != Self::GROUP.0;
        if is_own { Some(Self(number)) } else { None }
    }

    /// Returns the slot: the high 12 bits. The slot alone determines the port of the queue pair on
    /// its host.
    pub const fn slot(self) -> u16 {
        (self.0 >> 12) as u16
    }

    /// Returns the index within the slot: the low 12 bits.
    pub const fn index(self) -> u16 {
        self.0 as u16 & 0xfff
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the bytes of the number in a frame.
    #[inline]
    pub(crate) const fn to_le_bytes(self) -> [u8; 3] {
        let [low, middle, high, _] = self.0.to_le_bytes();
        [low, middle, high]
    }

    /// Decodes the bytes of the number in a frame.
    #[inline]
    pub(crate) const fn from_le_bytes([low, middle, high]: [u8; 3]) -> Self {
        Self(u32::from_le_bytes([low, middle, high, 0]))
    }
}

/// Address of a peer on one link. There are three kinds:
///
/// * a UDP socket address,
/// * a MAC address, and the port of an endpoint,
/// * the identity of a host, and the number of an endpoint that shares memory with other processes
///   of that host.
///
/// Layout, 20 bytes: family (4, 6, 1 for a MAC or 2 for shared memory), one zero byte, port
/// big-endian, then 16 address bytes. Unused address bytes are zero.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PeerAddr(pub [u8; 20]);

impl PeerAddr {
    /// Creates the address of the endpoint at `port` of the station `mac`.
    pub const fn mac(mac: [u8; 6], port: u16) -> Self {
        let mut bytes = [0; 20];
        bytes[0] = 1;
        bytes.split_at_mut(2).1.split_at_mut(2).0.copy_from_slice(&port.to_be_bytes());
        bytes.split_at_mut(4).1.split_at_mut(6).0.copy_from_slice(&mac);
        Self(bytes)
    }

    /// Returns the MAC address and the port, if this is an address on raw Ethernet. Otherwise
    /// returns `None`.
    pub const fn to_mac(self) -> Option<([u8; 6], u16)> {
        let a = &self.0;
        if a[0] != 1 {
            return None;
        }
        Some(([a[4], a[5], a[6], a[7], a[8], a[9]], u16::from_be_bytes([a[2], a[3]])))
    }

    /// Creates the address of endpoint number `endpoint` on the host with identity `host`. Only
    /// peers on the same host can use this address.
    pub const fn shared_memory(host: u64, endpoint: u64) -> Self {
        let mut bytes = [0; 20];
        bytes[0] = 2;
        bytes.split_at_mut(4).1.split_at_mut(8).0.copy_from_slice(&host.to_be_bytes());
        bytes.split_at_mut(12).1.copy_from_slice(&endpoint.to_be_bytes());
        Self(bytes)
    }

    /// Returns the identity of the host and the number of the endpoint, if this is a shared-memory
    /// address. Otherwise returns `None`.
    pub fn to_shared_memory(self) -> Option<(u64, u64)> {
        let number = |at: usize| {
            let bytes = self.0.get(at..at + 8)?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        if self.is_shared_memory() { number(4).zip(number(12)) } else { None }
    }

    /// Returns whether this is a shared-memory address.
    #[inline]
    pub const fn is_shared_memory(&self) -> bool {
        self.0[0] == 2
    }

    /// Returns the address without its port or endpoint number. The result is equal for all
    /// endpoints of a host.
    #[must_use]
    pub fn host(self) -> Self {
        let mut bytes = self.0;
        let endpoint = if self.is_shared_memory() { 12..20 } else { 2..4 };
        for byte in bytes.iter_mut().skip(endpoint.start).take(endpoint.len()) {
            *byte = 0;
        }
        Self(bytes)
    }

    /// Returns whether this is a group address: multicast or broadcast of IP, or multicast of
    /// Ethernet.
    pub fn is_group(self) -> bool {
        match self.to_socket().map(|socket| socket.ip().to_canonical()) {
            Some(IpAddr::V4(ip)) => ip.is_multicast() || ip.is_broadcast(),
            Some(IpAddr::V6(ip)) => ip.is_multicast(),
            None => self.0[0] == 1 && self.0[4] & 1 != 0,
        }
    }

    /// Returns the address as a global identifier (GID) of 16 bytes. An IPv6 address does not
    /// change, and an IPv4 address is mapped to IPv6. For a MAC address or a shared-memory address,
    /// returns a link-local IPv6 address that contains the numbers of the address.
    pub fn to_gid(self) -> [u8; 16] {
        let mut gid = [0; 16];
        match self.0[0] {
            4 => {
                gid[10..12].copy_from_slice(&[0xff, 0xff]);
                gid[12..].copy_from_slice(&self.0[4..8]);
            }
            6 => gid.copy_from_slice(&self.0[4..]),
            1 => {
                // Use the derivation of RFC 4291, appendix A.
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..11].copy_from_slice(&self.0[4..7]);
                gid[8] ^= 2;
                gid[11..13].copy_from_slice(&[0xff, 0xfe]);
                gid[13..].copy_from_slice(&self.0[7..10]);
            }
            _ => {
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..].copy_from_slice(&self.0[12..]);
            }
        }
        gid
    }

    /// Returns the socket address, if this is a UDP address. Otherwise returns `None`.
    pub fn to_socket(self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([self.0[2], self.0[3]]);
        let mut address = [0; 16];
        address.copy_from_slice(&self.0[4..]);
        match self.0[0] {
            4 => Some(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::new(address[0], address[1], address[2], address[3])),
                port,
            )),
            6 => Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(address)), port)),
            _ => None,
        }
    }
}

impl From<SocketAddr> for PeerAddr {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; 20];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => {
                bytes[0] = 4;
                bytes[4..8].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes[0] = 6;
                bytes[4..].copy_from_slice(&ip.octets());
            }
        }
        Self(bytes)
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(socket) = self.to_socket() {
            return write!(f, "{socket}");
        }
        if let Some((host, endpoint)) = self.to_shared_memory() {
            return write!(f, "shm:{host:016x}/{endpoint:016x}");
        }
        let Some((m, port)) = self.to_mac() else { return write!(f, "{:02x?}", self.0) };
        write!(
            f,
            "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}/{port}",
            m[0], m[1], m[2], m[3], m[4], m[5]
        )
    }
}

impl fmt::Debug for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
