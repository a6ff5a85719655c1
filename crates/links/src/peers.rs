//! Parses the names of peers: the addresses to which an endpoint connects.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

use thiserror::Error;
use wire_edge::PeerAddr;

/// One address of a peer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum PeerSpec {
    /// `10.0.0.2:7471`: an IP address. UDP links send to this address. Links on raw Ethernet ask
    /// the kernel for the station that has the address.
    Socket(SocketAddr),
    /// `02:00:00:00:00:01/7471`: a station on raw Ethernet, and the port of the endpoint there.
    Station {
        /// MAC address of the station.
        mac: [u8; 6],
        /// The port.
        port: u16,
    },
    /// `any/7471`: any station that has an endpoint with this port, on the Ethernet of a raw link.
    /// The endpoint finds the station by a broadcast.
    AnyStation {
        /// The port.
        port: u16,
    },
}

/// The reason why a text is not an address of a peer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerSpecError {
    /// The text does not have one of the known forms.
    #[error(
        "{text:?} is not a peer; write HOST:PORT, or MAC/PORT (02:00:00:00:00:01/7471) or any/PORT \
         on raw Ethernet"
    )]
    Form {
        /// The text that was given.
        text: String,
    },
    /// The name could not be resolved.
    #[error("cannot resolve the address {text}: {source}; write HOST:PORT")]
    Resolve {
        /// The name that was given.
        text: String,
        /// The error of the system.
        source: io::Error,
    },
    /// No address was given.
    #[error("no address of a peer; name at least one")]
    None,
}

/// Types that programs may pass as addresses of a peer: socket addresses, `(host, port)`, text such
/// as `10.0.0.2:7471,02:00:00:00:00:01/7471`, and [`PeerSpec`].
pub trait IntoPeers {
    /// Returns the addresses of the peer. Resolves names.
    ///
    /// # Errors
    /// Returns [`PeerSpecError`]; each variant names one cause.
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError>;
}

impl PeerSpec {
    /// Parses a list of addresses, which commas separate, and resolves names.
    ///
    /// # Errors
    /// Returns [`PeerSpecError`]; each variant names one cause.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, PeerSpecError> {
        let mut peers = Vec::new();
        for item in text.split(',').map(str::trim) {
            if item.contains('/') {
                peers.push(item.parse()?);
            } else {
                let resolved = item.to_socket_addrs();
                let failed = |source| PeerSpecError::Resolve { text: item.into(), source };
                peers.extend(resolved.map_err(failed)?.map(Self::Socket));
            }
        }
        Ok(peers)
    }

    /// Converts an address from the form that frames contain. Returns `None` if users cannot write
    /// this kind of address.
    pub fn of_address(address: PeerAddr) -> Option<Self> {
        let station = || address.to_mac().map(|(mac, port)| Self::Station { mac, port });
        address.to_socket().map(Self::Socket).or_else(station)
    }

    /// Converts the address to the form that frames contain. Returns `None` for
    /// [`PeerSpec::AnyStation`], because the endpoint must first find the station by a broadcast.
    pub fn address(self) -> Option<PeerAddr> {
        match self {
            Self::Socket(socket) => Some(socket.into()),
            Self::Station { mac, port } => Some(PeerAddr::mac(mac, port)),
            Self::AnyStation { .. } => None,
        }
    }
}

impl FromStr for PeerSpec {
    type Err = PeerSpecError;

    /// Parses one address. Does not resolve names.
    fn from_str(text: &str) -> Result<Self, PeerSpecError> {
        let wrong = || PeerSpecError::Form { text: text.into() };
        let Some((station, port)) = text.split_once('/') else {
            return text.parse().map(Self::Socket).map_err(|_| wrong());
        };
        let port = port.parse().map_err(|_| wrong())?;
        if station == "any" {
            return Ok(Self::AnyStation { port });
        }
        let mac = parse_mac(station).ok_or_else(wrong)?;
        Ok(Self::Station { mac, port })
    }
}

impl fmt::Display for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => write!(f, "{socket}"),
            Self::Station { mac, port } => write!(f, "{}", PeerAddr::mac(*mac, *port)),
            Self::AnyStation { port } => write!(f, "any/{port}"),
        }
    }
}

/// Parses six hexadecimal numbers between colons.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut pairs = text.split(':');
    for byte in &mut mac {
        let pair = pairs.next().filter(|pair| matches!(pair.len(), 1 | 2))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    pairs.next().is_none().then_some(mac)
}

impl IntoPeers for &str {
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
        PeerSpec::parse_list(self)
    }
}

impl IntoPeers for String {
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
        PeerSpec::parse_list(&self)
    }
}

impl IntoPeers for &String {
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
        PeerSpec::parse_list(self)
    }
}

impl IntoPeers for (&str, u16) {
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
        let failed =
            |source| PeerSpecError::Resolve { text: format!("{}:{}", self.0, self.1), source };
        Ok(self.to_socket_addrs().map_err(failed)?.map(PeerSpec::Socket).collect())
    }
}

impl IntoPeers for (String, u16) {
    fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
        (self.0.as_str(), self.1).into_peers()
    }
}

impl From<SocketAddr> for PeerSpec {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

impl From<SocketAddrV4> for PeerSpec {
    fn from(address: SocketAddrV4) -> Self {
        Self::Socket(address.into())
    }
}

impl From<SocketAddrV6> for PeerSpec {
    fn from(address: SocketAddrV6) -> Self {
        Self::Socket(address.into())
    }
}

impl From<(IpAddr, u16)> for PeerSpec {
    fn from(address: (IpAddr, u16)) -> Self {
        Self::Socket(address.into())
    }
}

impl From<(Ipv4Addr, u16)> for PeerSpec {
    fn from(address: (Ipv4Addr, u16)) -> Self {
        Self::Socket(address.into())
    }
}

impl From<(Ipv6Addr, u16)> for PeerSpec {
    fn from(address: (Ipv6Addr, u16)) -> Self {
        Self::Socket(address.into())
    }
}

/// Implements [`IntoPeers`] for a type of address and for lists of it.
macro_rules! into_peers_by_value {
    ($($kind:ty),*) => {$(
        impl IntoPeers for $kind {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                Ok(vec![self.into()])
            }
        }

        impl IntoPeers for &$kind {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                Ok(vec![(*self).into()])
            }
        }

        impl IntoPeers for &[$kind] {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                Ok(self.iter().map(|&address| address.into()).collect())
            }
        }

        impl IntoPeers for Vec<$kind> {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                self.as_slice().into_peers()
            }
        }

        impl IntoPeers for &Vec<$kind> {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                self.as_slice().into_peers()
            }
        }

        impl<const N: usize> IntoPeers for [$kind; N] {
            fn into_peers(self) -> Result<Vec<PeerSpec>, PeerSpecError> {
                self.as_slice().into_peers()
            }
        }
    )*};
}

into_peers_by_value!(
    PeerSpec,
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_printed_peer_parses_to_the_same_peer(peer in prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| PeerSpec::Socket((ip, port).into())),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(|(ip, port)| PeerSpec::Socket((ip, port).into())),
            (any::<[u8; 6]>(), any::<u16>()).prop_map(|(mac, port)| PeerSpec::Station { mac, port }),
            any::<u16>().prop_map(|port| PeerSpec::AnyStation { port }),
        ]) {
            prop_assert_eq!(peer.to_string().parse::<PeerSpec>().unwrap(), peer);
            prop_assert_eq!(PeerSpec::parse_list(&peer.to_string()).unwrap(), vec![peer]);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-f0-9:/.]{0,30}") {
            let _ = text.parse::<PeerSpec>();
        }
    }

    #[test]
    fn an_invalid_peer_is_refused_with_the_valid_forms() {
        for text in ["1:2:3:4:5/7", "1:2:3:4:5:6:7/7", "1:2:3:4:5:g/7", "any/x", "any/", "/7"] {
            let error = PeerSpec::parse_list(text).unwrap_err().to_string();
            assert!(error.contains("MAC/PORT") && error.contains(text), "{error}");
        }
    }
}
