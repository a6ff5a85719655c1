//! Decides which link to try for which address of a peer.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use delivery::LinkId;
use wire_edge::PeerAddr;

/// Pairs links with addresses of the peer, and returns the pairs in this order:
///
/// 1. The pairs in which the link has the address from which the kernel sends to the peer's
///    address. `sources` maps each address of the peer to this local address.
/// 2. The other pairs. Pairs whose two addresses have a longer common prefix come first.
///
/// Each link and each address is in at most one pair. So if two hosts have links in several
/// networks, each network gets one pair.
pub fn rank_pairs(
    links: &[(LinkId, PeerAddr)],
    peers: &[PeerAddr],
    sources: &HashMap<IpAddr, IpAddr, impl BuildHasher>,
) -> Vec<(LinkId, PeerAddr)> {
    let mut candidates = Vec::new();
    let station_of = |link| {
        let mut stations = links.iter().filter(|(_, local)| local.to_mac().is_some());
        stations.position(|&(other, _)| other == link)
    };
    let station_at = |remote| {
        let mut stations = peers.iter().filter(|peer| peer.to_mac().is_some());
        stations.position(|&other| other == remote)
    };
    for &(link, local) in links {
        for (position, &remote) in peers.iter().enumerate() {
            let rank = match (local.to_socket(), remote.to_socket()) {
                (Some(local), Some(remote)) => {
                    let source = sources.get(&remote.ip().to_canonical());
                    let is_routed = source == Some(&local.ip().to_canonical());
                    nearness(local.ip(), remote.ip()).map(|bits| (is_routed, bits))
                }
                // A MAC address does not show the network of the station. So pair the first local
                // station with the first station of the peer, the second with the second, and so
                // on.
                _ => station_of(link)
                    .zip(station_at(remote))
                    .map(|(ours, theirs)| (false, u32::from(ours == theirs))),
            };
            if let Some(rank) = rank {
                candidates.push((rank, position, link, remote));
            }
        }
    }
    candidates.sort_by_key(|&(rank, position, link, _)| (Reverse(rank), position, link));
    let mut pairs: Vec<(LinkId, PeerAddr)> = Vec::new();
    for (_, _, link, remote) in candidates {
        if pairs.iter().all(|&(l, r)| l != link && r != remote) {
            pairs.push((link, remote));
        }
    }
    pairs
}

/// Returns the number of leading bits that are equal in both addresses. Addresses in one network
/// have more equal bits than addresses in different networks. Returns 0 if the local address is
/// unspecified, and `None` if the addresses are of different families.
fn nearness(local: IpAddr, remote: IpAddr) -> Option<u32> {
    match (local, remote.to_canonical()) {
        // A socket on the unspecified IPv6 address carries IPv4 as well.
        (IpAddr::V6(local), IpAddr::V4(_)) if local.is_unspecified() => Some(0),
        (local, _) if local.is_unspecified() && local.is_ipv4() == remote.is_ipv4() => Some(0),
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn pairs(links: &[&str], addresses: &[&str]) -> Vec<(u8, String)> {
        let links: Vec<_> = links
            .iter()
            .enumerate()
            .map(|(index, link)| (LinkId(index as u8), PeerAddr::from(socket(link))))
            .collect();
        let addresses: Vec<_> =
            addresses.iter().map(|address| PeerAddr::from(socket(address))).collect();
        let pairs = rank_pairs(&links, &addresses, &HashMap::new());
        pairs.into_iter().map(|(link, peer)| (link.0, peer.to_string())).collect()
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect("a literal address")
    }

    #[test]
    fn links_are_paired_with_the_address_in_their_network() {
        assert_eq!(
            pairs(&["10.0.1.1:7", "10.0.2.1:7"], &["10.0.2.9:1", "10.0.1.9:1"]),
            [(1, "10.0.2.9:1".to_string()), (0, "10.0.1.9:1".to_string())]
        );
    }

    #[test]
    fn each_link_and_each_address_is_used_once() {
        assert_eq!(pairs(&["10.0.1.1:7", "10.0.1.2:7"], &["10.0.1.9:1"]).len(), 1);
        assert_eq!(pairs(&["10.0.1.1:7"], &["10.0.1.9:1", "10.0.1.8:1"]).len(), 1);
    }

    #[test]
    fn the_route_of_the_kernel_comes_before_the_nearest_address() {
        let link = |index, text| (LinkId(index), PeerAddr::from(socket(text)));
        let links = [link(0, "10.0.0.5:7"), link(1, "192.168.1.5:7")];
        let peer = socket("192.168.200.1:1");
        let nearest = rank_pairs(&links, &[peer.into()], &HashMap::new());
        assert_eq!(nearest, [(LinkId(1), peer.into())]);
        let sources = HashMap::from([(peer.ip(), socket("10.0.0.5:0").ip())]);
        assert_eq!(rank_pairs(&links, &[peer.into()], &sources), [(LinkId(0), peer.into())]);
    }

    #[test]
    fn stations_are_paired_in_their_order() {
        let station = |last| PeerAddr::mac([2, 0, 0, 0, 0, last], 7);
        let links = [
            (LinkId(0), PeerAddr::from(socket("10.0.0.5:7"))),
            (LinkId(3), station(1)),
            (LinkId(5), station(2)),
        ];
        let peers = [station(9), station(8), station(7)];
        let pairs = rank_pairs(&links, &peers, &HashMap::new());
        assert_eq!(pairs, [(LinkId(3), station(9)), (LinkId(5), station(8))]);
    }

    #[test]
    fn addresses_of_different_families_are_not_paired() {
        assert!(pairs(&["10.0.1.1:7"], &["[fe80::1]:1"]).is_empty());
        assert_eq!(pairs(&["[::]:7"], &["10.0.1.9:1"]).len(), 1);
    }
}
