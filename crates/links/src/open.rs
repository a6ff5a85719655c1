//! Opens links by their names.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use link::host::{self, Interface, InterfaceAddress};
use link::{Link, PacketConfig, PacketLink, ShmLink, UdpConfig, UdpLink, XdpConfig, XdpLink};

use crate::error::BindError;
use crate::nearest::nearest;
use crate::spec::{LinkSpec, RawOptions, UdpPlace, XdpOptions};

/// Settings for opening links.
#[derive(Clone, Debug)]
pub struct Opener {
    /// Settings of UDP links.
    pub udp: UdpConfig,
    /// Port of links whose name contains no port; 0 picks a free port.
    pub port: u16,
}

/// An open link, and where it is on the host.
pub(crate) struct Opened {
    pub(crate) link: Box<dyn Link>,
    pub(crate) place: LinkPlace,
}

/// The interface and addresses of a link on the host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LinkPlace {
    /// Index of the link's interface; `None` if the link is on no particular interface.
    pub(crate) interface: Option<u32>,
    /// The link's IP address, if it has one.
    pub(crate) ip: Option<IpAddr>,
    /// Values that distinguish the link's frames, if the link is on raw Ethernet.
    pub(crate) raw: Option<Raw>,
}

/// Values that distinguish the frames of a link on raw Ethernet from other frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Raw {
    pub(crate) ethertype: u16,
    pub(crate) vlan: Option<u16>,
}

impl Opener {
    /// Opens the link that `spec` names. `host` is the list of interfaces.
    pub(crate) fn open(&self, spec: &LinkSpec, host: &[Interface]) -> Result<Opened, BindError> {
        match spec {
            LinkSpec::Interface { interface, port } => {
                let interface = find(interface, host)?;
                if best_address(interface, |_| true).is_some() {
                    return self.open_udp_on(interface, *port);
                }
                let options = RawOptions { port: *port, ..RawOptions::default() };
                self.open_packet(interface, options).map_err(|error| BindError::NoKind {
                    interface: interface.name.clone(),
                    source: Box::new(error),
                })
            }
            LinkSpec::Udp { place: UdpPlace::Interface(interface), port } => {
                self.open_udp_on(find(interface, host)?, *port)
            }
            LinkSpec::Udp { place: UdpPlace::Address { ip, zone }, port } => {
                let zone = zone.as_deref().map(|zone| find(zone, host)).transpose()?;
                let scope = zone.map_or(0, |interface| interface.index);
                self.open_udp(*ip, scope, *port, owner(*ip, host))
            }
            LinkSpec::Packet { interface, options } => {
                self.open_packet(find(interface, host)?, *options)
            }
            LinkSpec::Xdp { interface, queue, options } => {
                self.open_xdp(find(interface, host)?, *queue, *options)
            }
            LinkSpec::SharedMemory => {
                Ok(Opened { link: Box::new(ShmLink::open()?), place: LinkPlace::default() })
            }
        }
    }

    /// Opens the link with this name.
    ///
    /// # Errors
    /// Returns [`BindError`]; each variant names one cause.
    pub fn open_named(&self, name: &str) -> Result<Box<dyn Link>, BindError> {
        Ok(self.open(&name.parse()?, &host()?)?.link)
    }

    /// Opens a UDP link on the best address of an interface.
    fn open_udp_on(&self, interface: &Interface, port: Option<u16>) -> Result<Opened, BindError> {
        let best = best_address(interface, |_| true);
        let address =
            best.ok_or_else(|| BindError::NoIpAddress { interface: interface.name.clone() })?;
        let scope = if is_link_local(address.ip) { interface.index } else { 0 };
        self.open_udp(address.ip, scope, port, Some(interface.index))
    }

    /// Opens a UDP link on an address. The address belongs to the interface with index `interface`.
    pub(crate) fn open_udp(
        &self,
        ip: IpAddr,
        scope: u32,
        port: Option<u16>,
        interface: Option<u32>,
    ) -> Result<Opened, BindError> {
        let port = port.unwrap_or(self.port);
        let address = match ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        };
        let link = Box::new(UdpLink::bind(address, &self.udp)?);
        Ok(Opened { link, place: LinkPlace { interface, ip: Some(ip), raw: None } })
    }

    fn open_packet(&self, interface: &Interface, options: RawOptions) -> Result<Opened, BindError> {
        let mut config =
            PacketConfig::new(&*interface.name).port(options.port.unwrap_or(self.port));
        config.vlan = options.vlan;
        config.ethertype = options.ethertype.unwrap_or(config.ethertype);
        let link = Box::new(PacketLink::open(&config)?);
        let raw = Raw { ethertype: config.ethertype, vlan: config.vlan };
        Ok(Opened { link, place: LinkPlace::on_ethernet(interface, raw) })
    }

    fn open_xdp(
        &self,
        interface: &Interface,
        queue: u32,
        options: XdpOptions,
    ) -> Result<Opened, BindError> {
        let XdpOptions { raw, mode, busy_poll } = options;
        let config = XdpConfig::new(&*interface.name).queue(queue).mode(mode).busy_poll(busy_poll);
        let mut config = config.port(raw.port.unwrap_or(self.port)).vlan(raw.vlan);
        config.ethertype = raw.ethertype.unwrap_or(config.ethertype);
        let link = Box::new(XdpLink::open(&config)?);
        let raw = Raw { ethertype: config.ethertype, vlan: config.vlan };
        Ok(Opened { link, place: LinkPlace::on_ethernet(interface, raw) })
    }
}

impl LinkPlace {
    fn on_ethernet(interface: &Interface, raw: Raw) -> Self {
        Self { interface: Some(interface.index), ip: None, raw: Some(raw) }
    }
}

/// Returns the interfaces of this host.
pub(crate) fn host() -> Result<Vec<Interface>, BindError> {
    host::interfaces().map_err(BindError::Interfaces)
}

/// Returns the links of an endpoint for which the program names no link: a UDP link on each
/// interface that is up and has a carrier and an address, except loopback. If there is no such
/// interface, returns a UDP link on the loopback interface.
pub(crate) fn usable(host: &[Interface]) -> Vec<LinkSpec> {
    let on = |interface: &Interface| LinkSpec::Udp {
        place: UdpPlace::Interface(interface.name.clone()),
        port: None,
    };
    let usable = || host.iter().filter(|interface| interface.is_usable_by_ip());
    let mut specs: Vec<_> = usable().filter(|interface| !interface.is_loopback).map(on).collect();
    if specs.is_empty() {
        specs.extend(usable().take(1).map(on));
    }
    specs.truncate(DEFAULT_LINKS_MAX);
    specs
}

/// Returns the interface with this name.
pub(crate) fn find<'a>(name: &str, host: &'a [Interface]) -> Result<&'a Interface, BindError> {
    host.iter().find(|interface| interface.name == name).ok_or_else(|| {
        let names = || host.iter().map(|interface| interface.name.as_str());
        BindError::NoInterface {
            name: name.into(),
            nearest: nearest(name, names()).map(Into::into),
            existing: names().map(Into::into).collect(),
        }
    })
}

/// Returns the address of the interface that most peers can reach. Considers only addresses for
/// which `is_wanted` returns true. Prefers addresses that are not link-local, then IPv4 addresses.
fn best_address(
    interface: &Interface,
    is_wanted: impl Fn(&InterfaceAddress) -> bool,
) -> Option<&InterfaceAddress> {
    let wanted = interface.addresses.iter().filter(|address| is_wanted(address));
    wanted.min_by_key(|address| (is_link_local(address.ip), address.ip.is_ipv6()))
}

/// Returns the index of the interface that has this address.
pub(crate) fn owner(ip: IpAddr, host: &[Interface]) -> Option<u32> {
    let has = |interface: &&Interface| interface.addresses.iter().any(|a| a.ip == ip);
    host.iter().find(has).map(|interface| interface.index)
}

pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Maximum number of links that an endpoint opens by default. This is half of the 16 links that an
/// endpoint may have, so that programs can add others.
const DEFAULT_LINKS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_that_leads_off_the_host_is_used_by_default() {
        let host = [
            interface("lo", &["127.0.0.1"], true),
            interface("eth0", &["10.0.0.1"], true),
            interface("eth1", &[], true),
            interface("eth2", &["10.0.2.1"], false),
            interface("eth3", &["fe80::1", "2001:db8::1"], true),
        ];
        let names: Vec<_> = usable(&host).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["udp:eth0", "udp:eth3"]);
        let [loopback, ..] = host;
        assert_eq!(usable(&[loopback]).len(), 1, "alone, loopback will do");
    }

    #[test]
    fn addresses_with_a_wider_scope_come_first() {
        for (addresses, best) in [
            (&["fe80::1", "2001:db8::1", "10.0.0.1"][..], "10.0.0.1"),
            (&["169.254.1.1", "2001:db8::1"], "2001:db8::1"),
            (&["fe80::1", "169.254.1.1"], "169.254.1.1"),
            (&["fe80::1"], "fe80::1"),
        ] {
            let interface = interface("eth0", addresses, true);
            let found = best_address(&interface, |_| true).unwrap();
            assert_eq!(found.ip.to_string(), best);
        }
    }

    fn interface(name: &str, addresses: &[&str], is_running: bool) -> Interface {
        let mut interface = Interface::default();
        interface.name = name.into();
        interface.is_running = is_running;
        interface.is_loopback = name == "lo";
        interface.addresses = addresses
            .iter()
            .map(|ip| InterfaceAddress { ip: ip.parse().unwrap(), prefix_bits: 24 })
            .collect();
        interface
    }
}
