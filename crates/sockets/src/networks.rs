//! The networks in which connections may move. They come from the settings, and from this host's
//! interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::rules::{Network, NetworkError};

/// Networks in which connections may move. The default is the networks of this host's interfaces.
#[derive(Clone, Debug)]
pub(crate) struct Networks {
    named: Vec<Network>,
    /// The networks of this host's interfaces when they were last read; `None` if the settings
    /// exclude them.
    host: Option<Arc<Mutex<Found>>>,
}

#[derive(Debug, Default)]
struct Found {
    networks: Vec<Network>,
    /// The time at which the interfaces were last read; `None` before the first connection. The
    /// library does not read them earlier, because most programs make no connection.
    at: Option<Instant>,
}

impl Networks {
    /// Parses a list of networks, addresses, and the words `host`, `all` and `none`.
    pub(crate) fn parse(text: &str) -> Result<Self, NetworkError> {
        let mut networks = Self { named: Vec::new(), host: None };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "host" => networks.host = Some(Arc::default()),
                "all" => {
                    let any: [IpAddr; 2] =
                        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
                    networks.named.extend(any.iter().filter_map(|&any| Network::of(any, 0)));
                }
                "none" => {}
                network => networks.named.push(network.parse()?),
            }
        }
        Ok(networks)
    }

    /// Returns true if the address is in one of the networks.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        let has = |networks: &[Network]| networks.iter().any(|network| network.contains(address));
        if has(&self.named) {
            return true;
        }
        let Some(host) = &self.host else { return false };
        let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
        if has(&host.networks) {
            return true;
        }
        // The host may have a new interface, so read the interfaces again.
        host.look_again() && has(&host.networks)
    }
}

impl Default for Networks {
    fn default() -> Self {
        Self { named: Vec::new(), host: Some(Arc::default()) }
    }
}

impl Found {
    /// Reads the interfaces, if the last read was at least [`MOMENT`] ago. Returns true if this
    /// call read them.
    #[expect(clippy::disallowed_methods, reason = "how old is what is known of the host")]
    fn look_again(&mut self) -> bool {
        let now = Instant::now();
        if self.at.is_some_and(|at| now.duration_since(at) < MOMENT) {
            return false;
        }
        self.at = Some(now);
        self.networks = of_interfaces();
        true
    }
}

/// Returns the networks of all interfaces that are up. For a point-to-point interface, returns the
/// peer's address.
fn of_interfaces() -> Vec<Network> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let mut networks = Vec::new();
    for interface in interfaces.filter(|found| found.flags.contains(InterfaceFlags::IFF_UP)) {
        let ip = |address: Option<&SockaddrStorage>| address.and_then(ip_of);
        let address = ip(interface.address.as_ref());
        let bits = ip(interface.netmask.as_ref()).and_then(bits_of);
        if let (Some(address), Some(bits)) = (address, bits) {
            networks.extend(Network::of(address, bits));
        }
        if interface.flags.contains(InterfaceFlags::IFF_POINTOPOINT)
            && let Some(peer) = ip(interface.destination.as_ref())
        {
            networks.extend(Network::of(peer, if peer.is_ipv4() { 32 } else { 128 }));
        }
    }
    networks
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = || address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
    v4().or_else(v6)
}

/// Returns the prefix length of a network mask. Returns `None` if the mask has a one after a zero.
fn bits_of(mask: IpAddr) -> Option<u8> {
    let (ones, all) = match mask {
        IpAddr::V4(mask) => (mask.to_bits().leading_ones(), mask.to_bits().count_ones()),
        IpAddr::V6(mask) => (mask.to_bits().leading_ones(), mask.to_bits().count_ones()),
    };
    u8::try_from(ones).ok().filter(|_| ones == all)
}

/// The time for which the library uses the networks of the interfaces before it reads them again.
const MOMENT: Duration = Duration::from_secs(1);

/// Maps an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(_), ip) if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contain(networks: &str, address: &str) -> bool {
        Networks::parse(networks).unwrap().contain(address.parse().unwrap())
    }

    #[test]
    fn networks_are_named_by_number_or_word() {
        assert!(contain("10.0.0.0/8, fd00::/8", "10.1.2.3"));
        assert!(contain("10.0.0.0/8,fd00::/8", "fd00::1"));
        assert!(!contain("10.0.0.0/8", "192.0.2.1"));
        assert!(contain("all", "192.0.2.1") && contain("all", "2001:db8::1"));
        assert!(contain("192.0.2.1", "192.0.2.1") && !contain("192.0.2.1", "192.0.2.2"));
        assert!(!contain("none", "127.0.0.1"));
        assert!(Networks::parse("10.0.0.0/8,nowhere").is_err());
    }

    #[test]
    fn this_host_has_loopback_and_no_documentation_addresses() {
        let loopback =
            of_interfaces().iter().any(|network| network.contains([127, 0, 0, 1].into()));
        if !loopback {
            println!("skipped: the loopback interface is down");
            return;
        }
        assert!(contain("host", "127.0.0.1"));
        assert!(contain("host", "::ffff:127.0.0.1"));
        assert!(!contain("host", "198.51.100.1"));
    }

    #[test]
    fn a_mask_has_ones_and_then_zeros() {
        assert_eq!(bits_of([255, 255, 240, 0].into()), Some(20));
        assert_eq!(bits_of([255, 0, 255, 0].into()), None);
        assert_eq!(bits_of("ffff:ffff::".parse().unwrap()), Some(32));
    }
}
