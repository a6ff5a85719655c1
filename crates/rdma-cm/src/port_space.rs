//! Port spaces. The port space of an id determines its transport service and the maximum sizes of
//! its private data.

use verbs::QueuePairType;

/// The port space of an id.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u16)]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`: datagrams.
    IpOverIb = 0x0002,
    /// `RDMA_PS_TCP`: reliable connections.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: reliable connections or datagrams, depending on the type of the queue pair.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space with this number, if there is one.
    pub const fn of_number(number: u16) -> Option<Self> {
        match number {
            0x0002 => Some(Self::IpOverIb),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// Returns the transport service that queue pairs in this port space have by default.
    pub const fn service(self) -> QueuePairType {
        match self {
            Self::Tcp | Self::Ib => QueuePairType::Reliable,
            Self::Udp | Self::IpOverIb => QueuePairType::Datagram,
        }
    }
}

/// Maximum sizes of private data in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PrivateDataLimits {
    /// Maximum size in a request, in bytes.
    pub request: usize,
    /// Maximum size in an acceptance, in bytes.
    pub reply: usize,
    /// Maximum size in a rejection, in bytes.
    pub refusal: usize,
}

impl PrivateDataLimits {
    /// Limits of iWARP's connection manager. A message has room for 512 bytes (RFC 5044 section
    /// 7.1). The parameters of the enhanced connection setup take 4 of them (RFC 6581 section 9).
    pub const IWARP: Self = Self { request: 508, reply: 508, refusal: 508 };

    /// Returns the limits of InfiniBand's connection manager for ids with this port space and
    /// service.
    ///
    /// A limit is the room for private data in a message (IBA volume 1, 12.6). In the IP port
    /// spaces, a header in requests occupies a part of this room, so the limit for requests is
    /// smaller.
    pub const fn infiniband(space: PortSpace, service: QueuePairType) -> Self {
        let header = if matches!(space, PortSpace::Ib) { 0 } else { IP_HEADER_BYTES };
        match service {
            QueuePairType::Datagram => Self { request: 216 - header, reply: 136, refusal: 136 },
            _ => Self { request: 92 - header, reply: 196, refusal: 148 },
        }
    }
}

/// The largest of all sizes in [`PrivateDataLimits::infiniband`], in bytes.
pub(crate) const PRIVATE_MAX: usize = 216;

/// Size in bytes of the header in requests of the IP port spaces. It contains IP addresses and
/// ports.
const IP_HEADER_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_over_ip_have_56_and_180_bytes() {
        let request = |space, service| PrivateDataLimits::infiniband(space, service).request;
        assert_eq!(request(PortSpace::Tcp, QueuePairType::Reliable), 56);
        assert_eq!(request(PortSpace::Udp, QueuePairType::Datagram), 180);
        assert_eq!(request(PortSpace::Ib, QueuePairType::Reliable), 92);
        assert_eq!(request(PortSpace::Ib, QueuePairType::Datagram), PRIVATE_MAX);
    }

    #[test]
    fn a_port_space_decodes_from_its_number() {
        for space in [PortSpace::IpOverIb, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            assert_eq!(PortSpace::of_number(space as u16), Some(space));
        }
        assert_eq!(PortSpace::of_number(0), None);
    }
}
