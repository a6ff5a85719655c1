//! Port spaces: which services ids have, and how much they may say when they meet.

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
    /// `RDMA_PS_IB`: whatever the queue pair is.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the port space of a number.
    pub const fn of_number(number: u16) -> Option<Self> {
        match number {
            0x0002 => Some(Self::IpOverIb),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// Returns the service of its queue pairs, if the program does not name one.
    pub const fn service(self) -> QueuePairType {
        match self {
            Self::Tcp | Self::Ib => QueuePairType::Reliable,
            Self::Udp | Self::IpOverIb => QueuePairType::Datagram,
        }
    }
}

/// How many bytes programs may say, and how many they get: what came is filled up with zeros to the
/// length that a message of InfiniBand's connection manager has room for (IBA volume 1, 12.6), less the header that
/// the port spaces of IP addresses have there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PrivateLimits {
    /// With a request.
    pub request: usize,
    /// With an acceptance.
    pub reply: usize,
    /// With a refusal.
    pub refusal: usize,
}

impl PrivateLimits {
    /// Returns the limits of ids of this port space, whose queue pairs give this service.
    pub const fn of(space: PortSpace, service: QueuePairType) -> Self {
        let header = if matches!(space, PortSpace::Ib) { 0 } else { IP_HEADER_BYTES };
        match service {
            QueuePairType::Datagram => Self { request: 216 - header, reply: 136, refusal: 136 },
            _ => Self { request: 92 - header, reply: 196, refusal: 148 },
        }
    }
}

/// Bytes of the longest of them.
pub(crate) const PRIVATE_MAX: usize = 216;

/// The header in which the port spaces of IP addresses say who asks whom.
const IP_HEADER_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_over_ip_have_56_and_180_bytes() {
        let request = |space, service| PrivateLimits::of(space, service).request;
        assert_eq!(request(PortSpace::Tcp, QueuePairType::Reliable), 56);
        assert_eq!(request(PortSpace::Udp, QueuePairType::Datagram), 180);
        assert_eq!(request(PortSpace::Ib, QueuePairType::Reliable), 92);
        assert_eq!(request(PortSpace::Ib, QueuePairType::Datagram), PRIVATE_MAX);
    }

    #[test]
    fn a_port_space_is_that_of_its_number() {
        for space in [PortSpace::IpOverIb, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            assert_eq!(PortSpace::of_number(space as u16), Some(space));
        }
        assert_eq!(PortSpace::of_number(0), None);
    }
}
