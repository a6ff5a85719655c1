//! Parses the names of links and peers that users write, opens links, and adapts the links when
//! interfaces change.
//!
//! A library for programs uses these types together with a [`runtime::Runtime`]:
//!
//! * [`LinkSpec`] parses names.
//! * [`NamedLinks`] opens links for names, and adapts them when interfaces change.
//! * [`Follower`] is the thread that watches the interfaces.
//! * [`rank_pairs`] decides which link to try for which address of a peer.
#![forbid(unsafe_code)]

mod error;
mod follow;
mod open;
mod pairs;
mod parse;
mod peers;
mod problem;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use link::XdpMode;
use strsim::osa_distance;

pub use error::BindError;
pub use follow::{Follower, Linked, NamedLinks, Wanted};
pub use open::Opener;
pub use pairs::rank_pairs;
pub use parse::{LinkSpecError, LinkSpecProblem};
pub use peers::{IntoPeers, PeerSpec, PeerSpecError};
pub use problem::LinkProblem;

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
    /// Parses a list of at least one link. Commas separate the links.
    ///
    /// # Errors
    /// Returns [`LinkSpecError`] with the part of the text that is not a link.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, LinkSpecError> {
        parse::list(text)
    }

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

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        parse::one(text)
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

/// Returns the name that the user probably meant by `wrong`. This is the most similar name, if it
/// differs from `wrong` in at most a third of the characters of `wrong`.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = names.map(|name| (osa_distance(wrong, name), name));
    let limit = wrong.chars().count().max(3) / 3;
    distances.filter(|&(distance, _)| distance <= limit).min_by_key(|&(d, _)| d).map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let names = ["eth0", "enp3s0", "wlan0"];
        let near = |wrong| nearest(wrong, names.into_iter());
        assert_eq!(near("eht0"), Some("eth0"));
        assert_eq!(near("eth1"), Some("eth0"));
        assert_eq!(near("enp3s1"), Some("enp3s0"));
        assert_eq!(near("wlan"), Some("wlan0"));
        assert_eq!(near("infiniband"), None);
    }
}
