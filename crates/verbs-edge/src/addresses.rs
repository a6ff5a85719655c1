//! Addresses and port attributes of a device. They depend only on the host's interfaces.

use std::net::IpAddr;

use link::host::Interface;
use links::{LinkSpec, UdpPlace};
use verbs::{Error, Gid, GidEntry, GidKind, PortAttributes, PortState};

/// An IP address of a device, at which peers reach its queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// Index of the interface that has the address; 0 if no interface has it.
    pub(crate) interface: u32,
    is_running: bool,
    mtu_bytes: u32,
    rate: Option<u64>,
}

/// The addresses and links that a device uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Addresses in the order of the GID table.
    pub(crate) addresses: Vec<Address>,
    /// Links that belong to none of `addresses`, for example raw Ethernet interfaces.
    pub(crate) others: Vec<LinkSpec>,
    /// Whether the device has a shared-memory link to other processes of this host.
    pub(crate) shares_memory: bool,
}

impl Places {
    /// Returns the addresses and links for `specs`, in the order of `specs`. If `specs` is empty,
    /// returns shared memory and the addresses of all interfaces that lead to other hosts.
    pub(crate) fn of(specs: &[LinkSpec], host: &[Interface]) -> Result<Self, Error> {
        let mut places = Self::default();
        if specs.is_empty() {
            places.shares_memory = true;
            places.addresses = usable(host);
        }
        for spec in specs {
            match spec {
                LinkSpec::Udp { port: Some(_), .. } | LinkSpec::Interface { port: Some(_), .. } => {
                    let what =
                        "names a port, but queue pair numbers determine the ports; remove the port";
                    return Err(Error::Invalid(format!("link {spec} {what}")));
                }
                LinkSpec::Udp { place: UdpPlace::Address { ip, zone: None }, .. } => {
                    let owner = host.iter().find(|interface| has(interface, *ip));
                    places.add([Address::new(*ip, owner)]);
                }
                LinkSpec::Udp { place: UdpPlace::Interface(name), .. }
                | LinkSpec::Interface { interface: name, .. } => {
                    let interface = host.iter().find(|interface| interface.name == *name);
                    let interface = interface
                        .ok_or_else(|| Error::Invalid(format!("there is no interface {name}")))?;
                    places.add(of_interface(interface));
                }
                LinkSpec::SharedMemory => places.shares_memory = true,
                other => places.others.push(other.clone()),
            }
        }
        if places.addresses.is_empty() {
            let what = "no interface has an IP address by which queue pairs could be reached";
            return Err(Error::Invalid(what.into()));
        }
        places.addresses.truncate(ADDRESSES_MAX);
        Ok(places)
    }

    fn add(&mut self, addresses: impl IntoIterator<Item = Address>) {
        for address in addresses {
            if self.addresses.iter().all(|known| known.ip != address.ip) {
                self.addresses.push(address);
            }
        }
    }

    /// Returns the same addresses, with the current states of their interfaces. An address that an
    /// interface got later is not in the result. An address that its interface has lost stays in
    /// the result, with the state of that interface.
    #[must_use]
    pub(crate) fn now(&self, host: &[Interface]) -> Self {
        let mut places = self.clone();
        for address in &mut places.addresses {
            let by_ip = host.iter().find(|interface| has(interface, address.ip));
            let by_number = || host.iter().find(|interface| interface.index == address.interface);
            let index = address.interface;
            *address = Address::new(address.ip, by_ip.or_else(by_number));
            address.interface = if address.interface == 0 { index } else { address.interface };
        }
        places
    }

    /// Returns the GID table.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        let entry = |(index, address): (u32, &Address)| GidEntry {
            gid: Gid::of(address.ip),
            kind: GidKind::RoceV2,
            index,
            interface: address.interface,
        };
        (0..).zip(&self.addresses).map(entry).collect()
    }

    /// Returns the attributes of the port.
    pub(crate) fn port(&self) -> PortAttributes {
        let is_active = self.addresses.iter().any(|address| address.is_running);
        let running = self.addresses.iter().filter(|address| address.is_running == is_active);
        PortAttributes {
            state: if is_active { PortState::Active } else { PortState::Down },
            active_mtu: running.clone().map(Address::datagram_bytes).min().unwrap_or(256),
            gids: self.addresses.len() as u32,
            rate: running.filter_map(|address| address.rate).max(),
        }
    }
}

impl Address {
    fn new(ip: IpAddr, interface: Option<&Interface>) -> Self {
        Self {
            ip,
            interface: interface.map_or(0, |interface| interface.index),
            is_running: interface.is_some_and(|interface| interface.is_running),
            mtu_bytes: interface.map_or(MTU_USUAL, |interface| interface.mtu_bytes),
            rate: interface.and_then(|interface| interface.rate),
        }
    }

    /// Returns the maximum payload of a datagram in bytes (protocol.md §10, datagram.2).
    fn datagram_bytes(&self) -> u32 {
        let headers = if self.ip.is_ipv4() { IPV4_AND_UDP } else { IPV6_AND_UDP };
        let room = self.mtu_bytes.saturating_sub(headers + DATAGRAM_HEADER);
        [4096, 2048, 1024, 512].into_iter().find(|&bytes| bytes <= room).unwrap_or(256)
    }
}

/// Returns the addresses of all interfaces that are up and lead to other hosts. If there is none,
/// returns one address of the loopback interface.
fn usable(host: &[Interface]) -> Vec<Address> {
    let addresses: Vec<Address> = leaving(host).into_iter().flat_map(of_interface).collect();
    if !addresses.is_empty() {
        return addresses;
    }
    let by_ip = |interface: &&Interface| interface.is_usable_by_ip();
    host.iter().filter(by_ip).flat_map(of_interface).take(1).collect()
}

/// Returns the interfaces that are up, lead to other hosts and have a usable address.
pub(crate) fn leaving(host: &[Interface]) -> Vec<&Interface> {
    let is_one = |interface: &&Interface| {
        interface.is_usable_by_ip() && !interface.is_loopback && !of_interface(interface).is_empty()
    };
    host.iter().filter(is_one).collect()
}

/// Returns the addresses of an interface, IPv4 first. Leaves out link-local addresses, because such
/// an address is incomplete without a zone.
fn of_interface(interface: &Interface) -> Vec<Address> {
    let mut ips: Vec<IpAddr> = interface.addresses.iter().map(|address| address.ip).collect();
    ips.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    ips.sort_by_key(IpAddr::is_ipv6);
    ips.into_iter().map(|ip| Address::new(ip, Some(interface))).collect()
}

fn has(interface: &Interface, ip: IpAddr) -> bool {
    interface.addresses.iter().any(|address| address.ip == ip)
        // All addresses of 127.0.0.0/8 belong to this host, although the loopback interface lists
        // only one of them.
        || (interface.is_loopback && ip.is_loopback() && ip.is_ipv4())
}

/// Maximum number of addresses of a device. Each address takes one of the 16 links of an endpoint.
/// Addresses take at most half of the links, so that the other half stays free for other links.
const ADDRESSES_MAX: usize = 8;

/// MTU in bytes that this module assumes for an address without an interface.
const MTU_USUAL: u32 = 1500;

const IPV4_AND_UDP: u32 = 28;
const IPV6_AND_UDP: u32 = 48;
const DATAGRAM_HEADER: u32 = 16;

#[cfg(test)]
mod tests {
    use link::host::InterfaceAddress;

    use super::*;

    fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
        let mut interface = Interface::default();
        (interface.index, interface.name) = (index, name.into());
        (interface.is_running, interface.is_loopback) = (true, name == "lo");
        interface.mtu_bytes = if name == "lo" { 65_536 } else { 1500 };
        interface.addresses = addresses
            .iter()
            .map(|ip| InterfaceAddress { ip: ip.parse().unwrap(), prefix_bits: 24 })
            .collect();
        interface
    }

    fn host() -> Vec<Interface> {
        let mut down = interface(4, "eth2", &["10.0.2.1"]);
        down.is_running = false;
        vec![
            interface(1, "lo", &["127.0.0.1", "::1"]),
            interface(2, "eth0", &["fe80::1", "2001:db8::1", "10.0.0.1", "10.0.0.2"]),
            interface(3, "eth1", &[]),
            down,
            interface(5, "eth3", &["10.0.3.1"]),
        ]
    }

    fn ips(links: &str, host: &[Interface]) -> Result<Vec<String>, Error> {
        let specs =
            if links.is_empty() { Vec::new() } else { LinkSpec::parse_list(links).unwrap() };
        let places = Places::of(&specs, host)?;
        Ok(places.addresses.iter().map(|address| address.ip.to_string()).collect())
    }

    #[test]
    fn every_address_that_leads_off_the_host_belongs_to_the_device() {
        let all = ["10.0.0.1", "10.0.0.2", "2001:db8::1", "10.0.3.1"];
        assert_eq!(ips("", &host()).unwrap(), all);
        assert_eq!(ips("", &host()[..1]).unwrap(), ["127.0.0.1"]);
        assert!(ips("", &[]).is_err());
    }

    #[test]
    fn named_addresses_and_interfaces_resolve_and_wrong_ones_are_refused() {
        assert_eq!(ips("udp:127.0.0.1", &host()).unwrap(), ["127.0.0.1"]);
        assert_eq!(
            ips("eth3,udp:10.0.3.1,udp:eth0,shm", &host()).unwrap()[..2],
            ["10.0.3.1", "10.0.0.1"]
        );
        for wrong in ["udp:127.0.0.1:7", "eth7", "shm", "packet:eth0", "eth1"] {
            assert!(ips(wrong, &host()).is_err(), "{wrong}");
        }
        let specs = LinkSpec::parse_list("eth0,packet:eth1,shm").unwrap();
        let places = Places::of(&specs, &host()).unwrap();
        assert!(places.shares_memory && places.others == specs[1..2]);
    }

    #[test]
    fn gids_are_mapped_addresses_by_index() {
        let places = Places::of(&[], &host()).unwrap();
        let gids = places.gids();
        assert_eq!(gids.iter().map(|entry| entry.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(gids[0].gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!((gids[0].interface, gids[3].interface), (2, 5));
        assert_eq!(gids[2].gid.address(), "2001:db8::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_port_is_down_if_its_own_interfaces_are_whatever_the_others_do() {
        let places = Places::of(&[], &host()[..2]).unwrap();
        let state = |host: &[Interface]| places.now(host).port().state;
        assert_eq!(state(&host()), PortState::Active);
        let mut down = host();
        down[1].is_running = false;
        assert_eq!(state(&down), PortState::Down);
        down[1].addresses.clear();
        assert_eq!(state(&down), PortState::Down);
        down[1].is_running = true;
        assert_eq!(state(&down), PortState::Active);
        down.remove(1);
        assert_eq!(state(&down), PortState::Down);
        assert_eq!(places.now(&down).gids(), places.gids());
    }

    #[test]
    fn a_port_is_active_while_one_of_its_interfaces_is() {
        let port =
            |links| Places::of(&LinkSpec::parse_list(links).unwrap(), &host()).unwrap().port();
        assert_eq!(
            (port("eth0,eth2").state, port("eth2").state),
            (PortState::Active, PortState::Down)
        );
        assert_eq!((port("eth0").active_mtu, port("udp:127.0.0.9").active_mtu), (1024, 4096));
        assert_eq!(port("eth0,eth3").gids, 4);
    }
}
