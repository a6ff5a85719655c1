//! Routes from this host to queue pairs and multicast groups.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use delivery::LinkId;
use link::{GROUP_PORT, Slots};
use verbs::Gid;
use wire_edge::{PeerAddr, QueuePairNumber};

use super::addresses::Address;

/// The addresses of a device, and the UDP ports at which queue pairs of other hosts are reached.
/// Each address has its own link.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    /// Each address, with the index of its interface.
    own: Arc<[(IpAddr, u32)]>,
    slots: Slots,
}

impl Ways {
    pub(crate) fn new(addresses: &[Address], slots: Slots) -> Self {
        let own = addresses.iter().map(|address| (address.ip, address.interface)).collect();
        Self { own, slots }
    }

    /// Returns the link and the destination address for frames to a queue pair or a multicast
    /// group. If the local address `index` has the same address family as the destination, uses the
    /// link of this local address. Otherwise uses the first link with that family. Returns `None`
    /// if there is none.
    pub(crate) fn to(
        &self,
        index: usize,
        gid: Gid,
        number: QueuePairNumber,
    ) -> Option<(LinkId, PeerAddr)> {
        let ip = gid.address();
        let link = self.link_for(index, ip)?;
        //= protocol.md: datagram.8
        let address = if gid.is_group() {
            SocketAddr::new(ip, GROUP_PORT)
        } else {
            self.slots.address_of(ip, number)
        };
        Some((link, PeerAddr::from(address)))
    }

    /// Returns the link for frames to a host. If the local address `own` has the same address
    /// family as the host's address, returns the link of `own`. Otherwise returns the first link
    /// with that family.
    pub(crate) fn link_from(&self, own: IpAddr, to: IpAddr) -> Option<LinkId> {
        let index = self.own.iter().position(|(known, _)| *known == own).unwrap_or(usize::MAX);
        self.link_for(index, to)
    }

    fn link_for(&self, index: usize, ip: IpAddr) -> Option<LinkId> {
        let is_alike = |(own, _): &&(IpAddr, u32)| own.is_ipv4() == ip.is_ipv4();
        let named = self.own.get(index).filter(is_alike).map(|_| index);
        let link = named.or_else(|| self.own.iter().position(|own| is_alike(&own)))?;
        Some(LinkId(link as u8))
    }

    /// Returns the links on which to join a group. Each interface has one such link. This link
    /// receives all datagrams to the group on that interface.
    pub(crate) fn links_to_group(&self, group: IpAddr) -> Vec<LinkId> {
        let mut links: Vec<(u32, LinkId)> = Vec::new();
        for (index, (own, interface)) in self.own.iter().enumerate() {
            let is_known = links.iter().any(|(known, _)| known == interface);
            if own.is_ipv4() == group.is_ipv4() && !is_known {
                links.push((*interface, LinkId(index as u8)));
            }
        }
        links.into_iter().map(|(_, link)| link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways() -> Ways {
        let own = [("10.0.0.1", 2), ("10.0.0.2", 2), ("2001:db8::1", 2), ("10.0.3.1", 5)];
        let own = own.map(|(ip, interface)| (ip.parse().unwrap(), interface));
        Ways { own: own.into(), slots: Slots::default() }
    }

    fn gid(ip: &str) -> Gid {
        Gid::of(ip.parse().unwrap())
    }

    #[test]
    fn a_queue_pair_number_and_a_gid_resolve_to_a_route_of_the_same_family() {
        let number = QueuePairNumber::new(0x12_3456).unwrap();
        let to = |index, ip| ways().to(index, gid(ip), number).unwrap();
        let peer = |text: &str| PeerAddr::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(to(3, "10.0.3.9"), (LinkId(3), peer("10.0.3.9:61731")));
        assert_eq!(to(2, "10.0.3.9"), (LinkId(0), peer("10.0.3.9:61731")));
        assert_eq!(to(0, "2001:db8::9"), (LinkId(2), peer("[2001:db8::9]:61731")));
        assert_eq!(to(1, "239.1.2.3"), (LinkId(1), peer("239.1.2.3:61439")));
        let only = Ways { own: ways().own[..1].into(), slots: Slots::default() };
        assert_eq!(only.to(0, gid("2001:db8::9"), number), None);
    }

    #[test]
    fn each_interface_joins_a_multicast_group_once() {
        let links = |ip: &str| ways().links_to_group(ip.parse().unwrap());
        assert_eq!(links("239.1.2.3"), [LinkId(0), LinkId(3)]);
        assert_eq!(links("ff0e::1"), [LinkId(2)]);
    }
}
