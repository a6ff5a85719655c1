//! The current network interfaces of the host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ethtool::{self, Channels};
use crate::netlink::{Socket, attributes, text, u16_at, u32_at};

/// A network interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Interface {
    /// The interface's number. The kernel does not reuse the number of a deleted interface for a
    /// long time.
    pub index: u32,
    /// The interface's name.
    pub name: String,
    /// The type of a virtual interface: `veth`, `bridge`, `vlan`…
    pub kind: Option<String>,
    /// The station address, for Ethernet and loopback interfaces.
    pub mac: Option<[u8; 6]>,
    /// True if this is a loopback interface.
    pub is_loopback: bool,
    /// True if the administrator has set the interface up.
    pub is_up: bool,
    /// True if the interface is up and has a carrier.
    pub is_running: bool,
    /// Largest packet, in bytes.
    pub mtu_bytes: u32,
    /// Largest MTU that the driver accepts, in bytes, if known.
    pub mtu_bytes_max: Option<u32>,
    /// Maximum number of transmit queues and of receive queues.
    pub queues: (u32, u32),
    /// Queues in use, if the driver reports them.
    pub channels: Option<Channels>,
    /// The queueing discipline for outgoing packets: `noqueue`, `fq_codel`, `tbf`…
    pub queueing_discipline: String,
    /// The driver's name, if the driver reports it.
    pub driver: Option<String>,
    /// Nominal rate in bits per second, if the driver reports one. For a virtual interface, the
    /// value is meaningless.
    pub rate: Option<u64>,
    /// Usable addresses, in the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
    /// XDP programs that are attached to the interface.
    pub programs: Vec<AttachedProgram>,
    /// XDP features of the driver: the bits of the kernel's `netdev_xdp_act`; `None` before Linux
    /// 6.3.
    pub xdp_features: Option<u64>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_bits: u8,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttachedProgram {
    /// The program's number in the kernel.
    pub id: u32,
    /// The place at which the program runs.
    pub mode: ProgramMode,
}

/// The place at which an XDP program runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ProgramMode {
    /// The program runs in the driver.
    Native,
    /// The program runs after the driver, on the kernel's packet buffers.
    Generic,
    /// The program runs on the network card.
    Offloaded,
}

impl Interface {
    /// Returns whether the driver runs XDP programs itself; `None` if unknown.
    pub fn has_native_xdp(&self) -> Option<bool> {
        self.xdp_features.map(|features| features & XDP_REDIRECT == XDP_REDIRECT)
    }

    /// Returns whether the driver supports zero-copy `AF_XDP` sockets; `None` if unknown.
    pub fn has_zero_copy_xdp(&self) -> Option<bool> {
        self.xdp_features.map(|features| features & XDP_ZERO_COPY != 0)
    }

    /// Returns whether a link over IP can use the interface: it is up, with a carrier and an
    /// address.
    pub fn is_usable_by_ip(&self) -> bool {
        self.is_running && !self.addresses.is_empty()
    }
}

/// Returns all interfaces of the network namespace, in the order of their numbers.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::route(0)?;
    let mut found: Vec<Interface> = Vec::new();
    // The request is a zeroed `struct ifinfomsg`: all families.
    socket.ask(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; 16], &mut |body: &[u8]| {
        found.extend(interface(body));
    })?;
    // The request is a zeroed `struct ifaddrmsg`: all families.
    socket.ask(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; 8], &mut |body: &[u8]| {
        if let Some((index, address)) = address(body)
            && let Some(interface) = found.iter_mut().find(|interface| interface.index == index)
        {
            interface.addresses.push(address);
        }
    })?;
    found.sort_by_key(|interface| interface.index);
    let driver = ethtool::Asker::open()?;
    let mut features = ethtool::XdpFeatures::open();
    for interface in &mut found {
        let name = interface.name.as_bytes();
        interface.driver = driver.driver(name);
        interface.channels = driver.channels(name);
        interface.rate = driver.rate(name);
        interface.xdp_features = features.as_mut().and_then(|all| all.of(interface.index));
    }
    Ok(found)
}

/// Parses an `RTM_NEWLINK`.
fn interface(body: &[u8]) -> Option<Interface> {
    let device_type = u16_at(body, 2)?;
    let flags = u32_at(body, 8)?.cast_signed();
    let running = libc::IFF_UP | libc::IFF_RUNNING;
    let mut interface = Interface {
        index: u32_at(body, 4)?,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_up: flags & libc::IFF_UP != 0,
        is_running: flags & running == running,
        ..Interface::default()
    };
    let is_ethernet = matches!(device_type, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK);
    for (kind, content) in attributes(body.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => interface.name = text(content),
            libc::IFLA_MTU => interface.mtu_bytes = u32_at(content, 0)?,
            libc::IFLA_QDISC => interface.queueing_discipline = text(content),
            libc::IFLA_ADDRESS if is_ethernet => interface.mac = content.try_into().ok(),
            libc::IFLA_NUM_TX_QUEUES => interface.queues.0 = u32_at(content, 0)?,
            libc::IFLA_NUM_RX_QUEUES => interface.queues.1 = u32_at(content, 0)?,
            libc::IFLA_LINKINFO => {
                let mut parts = attributes(content);
                interface.kind = parts.find(|(kind, _)| *kind == INFO_KIND).map(|(_, c)| text(c));
            }
            IFLA_MAX_MTU => {
                interface.mtu_bytes_max = u32_at(content, 0).filter(|&bytes| bytes > 0);
            }
            libc::IFLA_XDP => interface.programs = programs(content),
            _ => {}
        }
    }
    (!interface.name.is_empty()).then_some(interface)
}

/// Parses an attribute `IFLA_XDP`; returns the attached programs.
fn programs(content: &[u8]) -> Vec<AttachedProgram> {
    let mut programs = Vec::new();
    let mut plain = None;
    let mut attached = 0;
    for (kind, content) in attributes(content) {
        let mode = match kind {
            XDP_ATTACHED => {
                attached = content.first().copied().unwrap_or(0);
                continue;
            }
            XDP_PROG_ID => {
                plain = u32_at(content, 0);
                continue;
            }
            XDP_DRV_PROG_ID => ProgramMode::Native,
            XDP_SKB_PROG_ID => ProgramMode::Generic,
            XDP_HW_PROG_ID => ProgramMode::Offloaded,
            _ => continue,
        };
        programs.extend(u32_at(content, 0).map(|id| AttachedProgram { id, mode }));
    }
    if programs.is_empty() {
        // Older kernels report one program, and its mode in a separate attribute.
        let mode = match attached {
            2 => ProgramMode::Generic,
            3 => ProgramMode::Offloaded,
            _ => ProgramMode::Native,
        };
        programs.extend(plain.map(|id| AttachedProgram { id, mode }));
    }
    programs.retain(|program| program.id != 0);
    programs
}

/// Parses an `RTM_NEWADDR`. Returns the interface's number and the address, if the address is
/// usable.
fn address(body: &[u8]) -> Option<(u32, InterfaceAddress)> {
    let (family, prefix_bits) = (*body.first()?, *body.get(1)?);
    let mut flags = u32::from(*body.get(2)?);
    let index = u32_at(body, 4)?;
    let (mut local, mut remote) = (None, None);
    for (kind, content) in attributes(body.get(8..)?) {
        match kind {
            libc::IFA_LOCAL => local = ip(family, content),
            libc::IFA_ADDRESS => remote = ip(family, content),
            libc::IFA_FLAGS => flags = u32_at(content, 0)?,
            _ => {}
        }
    }
    let is_unusable = flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0;
    let ip = local.or(remote)?;
    (!is_unusable).then_some((index, InterfaceAddress { ip, prefix_bits }))
}

/// Returns the IP address in `bytes`.
pub(super) fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

/// Numbers of `linux/if_link.h`.
const INFO_KIND: u16 = 1;
const IFLA_MAX_MTU: u16 = 51;
const XDP_ATTACHED: u16 = 2;
const XDP_PROG_ID: u16 = 4;
const XDP_DRV_PROG_ID: u16 = 5;
const XDP_SKB_PROG_ID: u16 = 6;
const XDP_HW_PROG_ID: u16 = 7;

/// Bits of `netdev_xdp_act` (`linux/netdev.h`): basic and redirect; zero copy.
const XDP_REDIRECT: u64 = 0b11;
const XDP_ZERO_COPY: u64 = 0b1000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_netlink_answer_is_parsed_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = (interface(&bytes), address(&bytes), programs(&bytes));
        }
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|interface| interface.is_loopback).unwrap();
        assert_eq!(loopback.name, "lo");
        assert!(loopback.mtu_bytes > 0);
    }
}
