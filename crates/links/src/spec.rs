//! A link in the form in which users write it, and its options.

use std::fmt;
use std::net::IpAddr;

use link::XdpMode;

/// A link in the form in which users write it: `eth0`, `udp:10.0.0.1:7471`, `packet:eth1/vlan=100`,
/// `xdp:eth2:0`, `shm`.
///
/// Commas separate several links; [`LinkSpec::parse_list`] parses such a list. The characters `:`
/// and `/` separate the parts of a link, because no interface name contains them.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum LinkSpec {
    /// `eth0` or `eth0:7471`: a link on this interface. It is a UDP link if the interface has an IP
    /// address, and otherwise a link on raw Ethernet.
    Interface {
        /// Name of the interface.
        interface: String,
        /// Port of the endpoint.
        port: Option<u16>,
    },
    /// `udp:10.0.0.1`, `udp:[fe80::1%eth0]:7471`, `udp:eth0`: UDP. Before an address, `udp:` may be
    /// omitted.
    Udp {
        /// The address or interface.
        place: UdpPlace,
        /// Port of the endpoint.
        port: Option<u16>,
    },
    /// `packet:eth1`, `packet:eth1:7471/vlan=100/ethertype=0x88b6`: raw Ethernet over the kernel's
    /// packet sockets.
    Packet {
        /// Name of the interface.
        interface: String,
        /// Port, VLAN and `EtherType`.
        options: RawOptions,
    },
    /// `xdp:eth2`, `xdp:eth2:0/port=7471/mode=native`: raw Ethernet over the kernel's fast path
    /// (`AF_XDP`).
    Xdp {
        /// Name of the interface.
        interface: String,
        /// Receive queue of the interface.
        queue: u32,
        /// Port, VLAN, `EtherType`, mode and busy polling.
        options: XdpOptions,
    },
    /// `shm`: memory shared with processes of this host.
    SharedMemory,
}

/// The address or interface of a UDP link.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum UdpPlace {
    /// An address of this host.
    Address {
        /// The address.
        ip: IpAddr,
        /// The interface of a link-local address (`fe80::1%eth0`).
        zone: Option<String>,
    },
    /// The best address of an interface.
    Interface(String),
}

/// Options of a link on raw Ethernet.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub struct RawOptions {
    /// Port of the endpoint on the interface.
    pub port: Option<u16>,
    /// Identifier of the VLAN in the tag of frames, 1 to 4094 (IEEE 802.1Q).
    pub vlan: Option<u16>,
    /// `EtherType` of the frames.
    pub ethertype: Option<u16>,
}

/// Options of an `AF_XDP` link.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub struct XdpOptions {
    /// Options of all links on raw Ethernet.
    pub raw: RawOptions,
    /// The mode that the link must use. If `None`, the link uses the best mode that works.
    pub mode: Option<XdpMode>,
    /// If true, polls of the link make the network card's driver process the receive queue (busy
    /// polling), so that the queue needs no interrupts.
    pub busy_poll: bool,
}

delivery::setters!(RawOptions { port: Option<u16>, vlan: Option<u16>, ethertype: Option<u16> });

delivery::setters!(XdpOptions { raw: RawOptions, mode: Option<XdpMode>, busy_poll: bool });

impl LinkSpec {
    /// Returns the name of the interface, if the link names one.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Interface { interface, .. }
            | Self::Udp { place: UdpPlace::Interface(interface), .. }
            | Self::Packet { interface, .. }
            | Self::Xdp { interface, .. } => Some(interface),
            Self::Udp { place: UdpPlace::Address { zone, .. }, .. } => zone.as_deref(),
            Self::SharedMemory => None,
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface { interface, port } => {
                f.write_str(interface)?;
                port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            Self::Udp { place, port } => {
                f.write_str("udp:")?;
                match place {
                    UdpPlace::Interface(interface) => f.write_str(interface)?,
                    UdpPlace::Address { ip: IpAddr::V4(ip), .. } => write!(f, "{ip}")?,
                    UdpPlace::Address { ip, zone: None } => write!(f, "[{ip}]")?,
                    UdpPlace::Address { ip, zone: Some(zone) } => write!(f, "[{ip}%{zone}]")?,
                }
                port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            Self::Packet { interface, options } => {
                write!(f, "packet:{interface}")?;
                if let Some(port) = options.port {
                    write!(f, ":{port}")?;
                }
                RawOptions { port: None, ..*options }.fmt(f)
            }
            Self::Xdp { interface, queue, options } => {
                write!(f, "xdp:{interface}:{queue}")?;
                options.fmt(f)
            }
            Self::SharedMemory => f.write_str("shm"),
        }
    }
}

impl XdpOptions {
    fn fmt(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)?;
        if let Some(mode) = self.mode {
            write!(f, "/mode={mode}")?;
        }
        if self.busy_poll { f.write_str("/busy-poll=yes") } else { Ok(()) }
    }
}

impl RawOptions {
    fn fmt(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(port) = self.port {
            write!(f, "/port={port}")?;
        }
        if let Some(vlan) = self.vlan {
            write!(f, "/vlan={vlan}")?;
        }
        if let Some(ethertype) = self.ethertype {
            write!(f, "/ethertype={ethertype:#06x}")?;
        }
        Ok(())
    }
}
