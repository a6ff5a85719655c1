//! Transport protocols of devices, and the properties that follow from the protocol alone.

use std::fmt;

/// Transport protocol of a device.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// The transport of InfiniBand (IBA volume 1) over UDP and IP, which is `RoCE` version 2. The
    /// edge protocol offers the same services, so that edge devices report this transport.
    InfiniBand,
    /// iWARP, which is RDMA over TCP: RDMAP (RFC 5040) over DDP (RFC 5041) over MPA (RFC 5044).
    Iwarp,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::InfiniBand, Self::Iwarp];

    /// Returns the type of the device's node.
    pub const fn node_type(self) -> NodeType {
        match self {
            Self::InfiniBand => NodeType::ChannelAdapter,
            Self::Iwarp => NodeType::RdmaAdapter,
        }
    }

    /// Returns which call connects a queue pair.
    pub const fn connector(self) -> Connector {
        match self {
            Self::InfiniBand => Connector::Modification,
            Self::Iwarp => Connector::Manager,
        }
    }

    /// Returns the number of entries of a port's table of partition keys. iWARP has no partitions,
    /// so that its table is empty.
    pub const fn partition_keys(self) -> u16 {
        match self {
            Self::InfiniBand => 1,
            Self::Iwarp => 0,
        }
    }

    /// Returns the capabilities of a port, as bits of `ibv_port_cap_flags`.
    pub const fn port_capabilities(self) -> u32 {
        match self {
            Self::InfiniBand => CONNECTION_MANAGER | ADDRESSES_AS_GIDS,
            Self::Iwarp => CONNECTION_MANAGER,
        }
    }
}

impl fmt::Display for Transport {
    /// Writes the name of the transport as users write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
        })
    }
}

/// Type of the node that a device is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeType {
    /// A channel adapter of InfiniBand or `RoCE`.
    ChannelAdapter,
    /// An RDMA network interface controller (RNIC), the adapter of iWARP.
    RdmaAdapter,
}

impl NodeType {
    /// Returns the number in `ibv_node_type`.
    pub const fn number(self) -> u8 {
        match self {
            Self::ChannelAdapter => 1,
            Self::RdmaAdapter => 4,
        }
    }

    /// Returns the text that the kernel shows in the file `node_type`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::ChannelAdapter => "1: CA",
            Self::RdmaAdapter => "4: RNIC",
        }
    }
}

/// The call that connects a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Connector {
    /// `ibv_modify_qp`, with the address and the number of the peer's queue pair.
    ///
    /// The ids of the connection manager call it for their queue pairs when the program reads the
    /// event of the acceptance. If an id has no queue pair, the program gets the event
    /// `CONNECT_RESPONSE`, connects a queue pair and establishes the connection.
    Modification,
    /// The connection manager only. Its wire (the transport) moves the queue pair to RTS before it
    /// reports the acceptance.
    ///
    /// Each request and each acceptance of an id needs a queue pair: that of the id, or one that
    /// the program has created itself and names by its number. The program gets the event
    /// `ESTABLISHED` and no other event.
    Manager,
}

/// Kind of a GID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GidKind {
    /// An IP address, as in `RoCE` version 2.
    RoceV2,
    /// The station address (MAC address) of an interface in the first 6 bytes, and zeros after it.
    /// The kernel gives iWARP devices GIDs of this kind.
    Station,
}

impl GidKind {
    /// Returns the text that the kernel shows for such a GID in the folder `gid_attrs/types`. The
    /// kernel has only two texts, and shows the first one for all GIDs that are no IP addresses.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Station => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// Value of `IBV_PORT_CM_SUP`.
const CONNECTION_MANAGER: u32 = 1 << 16;

/// Value of `IBV_PORT_IP_BASED_GIDS`.
const ADDRESSES_AS_GIDS: u32 = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_node_type_begins_with_its_number() {
        for transport in Transport::ALL {
            let node_type = transport.node_type();
            let number = format!("{}: ", node_type.number());
            assert!(node_type.text().starts_with(&number), "{transport}");
        }
    }

    #[test]
    fn only_infiniband_has_partitions_and_gids_that_are_ip_addresses() {
        let of = |transport: Transport| (transport.partition_keys(), transport.port_capabilities());
        assert_eq!(of(Transport::InfiniBand), (1, 0x0401_0000));
        assert_eq!(of(Transport::Iwarp), (0, 0x0001_0000));
    }
}
