//! The IP, UDP and Ethernet headers of a captured frame. If the frame crossed no wire, these are
//! the headers that it would have on a wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire_edge::{ETHERTYPE_DEFAULT, EnvelopeKind, PeerAddr};

use super::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, HOP_LIMIT, fold, ipv4_header, put_ethernet, sum};
use crate::ethernet::{EthernetHeader, Framing, Station};

/// Addresses and congestion mark of a captured frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: PeerAddr,
    pub(super) to: PeerAddr,
    pub(super) congestion_experienced: bool,
    /// The EtherType and VLAN, for frames between Ethernet stations.
    pub(super) ethernet: Option<EthernetHeader>,
}

impl Envelope {
    /// Appends headers, then `frame`. For addresses of sockets, the headers are Ethernet, IP and
    /// UDP. For addresses of stations, the headers are the raw Ethernet header and the edge
    /// envelope.
    ///
    /// Returns false and appends nothing if the frame is larger than any datagram.
    #[must_use]
    pub(super) fn put(&self, out: &mut Vec<u8>, frame: &[u8]) -> bool {
        let Ok(udp_len) = u16::try_from(frame.len() + UDP_HEADER_BYTES) else { return false };
        match (self.from.to_socket(), self.to.to_socket()) {
            (None, None) => {
                let (Some((station, port)), Some(to)) = (station(self.from), station(self.to))
                else {
                    return false;
                };
                let is_in_memory = self.from.to_shared_memory().is_some();
                let made_up = EthernetHeader { ethertype: ETHERTYPE_DEFAULT, vlan: None };
                let Some(header) = self.ethernet.or(is_in_memory.then_some(made_up)) else {
                    return false;
                };
                put_raw(
                    out,
                    Framing { station, ethertype: header.ethertype, vlan: header.vlan, port },
                    to,
                    frame,
                )
            }
            (from, to) => {
                let (from, to) = ends(from, to);
                self.put_ip(out, from, to, udp_len, frame)
            }
        }
    }

    fn put_ip(
        &self,
        out: &mut Vec<u8>,
        from: SocketAddr,
        to: SocketAddr,
        udp_len: u16,
        frame: &[u8],
    ) -> bool {
        let ecn = if self.congestion_experienced { 3 } else { 2 };
        let mut udp = [0; UDP_HEADER_BYTES];
        udp[..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let Some(total) = udp_len.checked_add(20) else { return false };
                put_ethernet(out, from.ip(), to.ip(), ETHERTYPE_IPV4);
                // The UDP checksum stays zero, which means "none".
                out.extend_from_slice(&ipv4_header(source, destination, PROTOCOL_UDP, total, ecn));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let checksum = udp6_checksum(source, destination, &udp, frame);
                udp[6..].copy_from_slice(&checksum);
                put_ethernet(out, from.ip(), to.ip(), ETHERTYPE_IPV6);
                out.extend_from_slice(&[0x60, ecn << 4, 0, 0]);
                out.extend_from_slice(&udp_len.to_be_bytes());
                out.extend_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
                out.extend_from_slice(&source.octets());
                out.extend_from_slice(&destination.octets());
            }
            _ => return false,
        }
        out.extend_from_slice(&udp);
        out.extend_from_slice(frame);
        true
    }
}

/// Appends a frame with raw Ethernet headers. Returns false and appends nothing if the frame is too
/// long.
fn put_raw(out: &mut Vec<u8>, framing: Framing, to: (Station, u16), frame: &[u8]) -> bool {
    let start = out.len();
    out.resize(start + framing.header_bytes(), 0);
    out.extend_from_slice(frame);
    let is_put =
        out.get_mut(start..).is_some_and(|slot| framing.put(EnvelopeKind::Frame, to, slot));
    if !is_put {
        out.truncate(start);
    }
    is_put
}

/// Returns the station and port of an address on raw Ethernet. For an address in shared memory,
/// derives a locally administered station and a port from the endpoint's number. Station and port
/// together distinguish the endpoints of a host.
fn station(address: PeerAddr) -> Option<(Station, u16)> {
    if let Some((_host, endpoint)) = address.to_shared_memory() {
        let mut station = [2; 6];
        station[1..].copy_from_slice(&endpoint.to_le_bytes()[..5]);
        return Some((station, (endpoint >> 40) as u16));
    }
    address.to_mac()
}

/// Returns both addresses in one address family. If a socket serves both families, its own address
/// is the unspecified IPv6 address. For an IPv4 peer, that address becomes the unspecified IPv4
/// address.
fn ends(from: Option<SocketAddr>, to: Option<SocketAddr>) -> (SocketAddr, SocketAddr) {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let (from, to) = (from.unwrap_or(nowhere), to.unwrap_or(nowhere));
    let as_v4 = |end: SocketAddr| (Ipv4Addr::UNSPECIFIED, end.port()).into();
    match (from.is_ipv4(), to.is_ipv4()) {
        (true, false) => (from, as_v4(to)),
        (false, true) => (as_v4(from), to),
        _ => (from, to),
    }
}

fn udp6_checksum(from: Ipv6Addr, to: Ipv6Addr, udp: &[u8], frame: &[u8]) -> [u8; 2] {
    let len = (udp.len() + frame.len()) as u64;
    let total = sum(&from.octets())
        + sum(&to.octets())
        + len
        + u64::from(PROTOCOL_UDP)
        + sum(udp)
        + sum(frame);
    match fold(total) {
        // In IPv6, zero would mean that there is no checksum.
        [0, 0] => [0xff, 0xff],
        checksum => checksum,
    }
}

const UDP_HEADER_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::Arrival;

    fn peer(text: &str) -> PeerAddr {
        text.parse::<SocketAddr>().unwrap().into()
    }

    fn put(from: PeerAddr, to: PeerAddr, frame: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let ethernet = Some(EthernetHeader { ethertype: 0x88b6, vlan: Some(7) });
        Envelope { from, to, congestion_experienced: true, ethernet }
            .put(&mut out, frame)
            .then_some(out)
    }

    #[test]
    fn ipv4_header_checksum_holds() {
        let out = put(peer("10.0.0.1:5"), peer("10.0.0.2:6"), b"frame").unwrap();
        assert_eq!(fold(sum(&out[14..34])), [0, 0]);
        assert_eq!(out.len(), 14 + 20 + 8 + 5);
        assert_eq!(out[15], 3);
    }

    #[test]
    fn ipv6_udp_checksum_holds() {
        let out = put(peer("[fd00::1]:5"), peer("[fd00::2]:6"), b"frame").unwrap();
        let pseudo = sum(&out[22..54]) + 13 + 17;
        assert_eq!(fold(pseudo + sum(&out[54..])), [0, 0]);
    }

    #[test]
    fn a_dual_stack_end_uses_the_family_of_the_other_end() {
        let out = put(peer("[::]:5"), peer("10.0.0.2:6"), b"frame").unwrap();
        assert_eq!(out[12..14], [8, 0]);
        assert_eq!(out[26..30], [0; 4]);
    }

    #[test]
    fn captured_frames_between_stations_look_as_on_the_wire() {
        let (from, to) = (PeerAddr::mac([2; 6], 8), PeerAddr::mac([4; 6], 9));
        let mut out = put(from, to, b"frame").unwrap();
        assert_eq!(out[..18], [4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 7, 0x88, 0xb6]);
        let framing = Framing { station: [4; 6], ethertype: 0x88b6, vlan: Some(7), port: 9 };
        let arrival = framing.check(&mut out, None);
        assert_eq!(arrival, Ok(Arrival::Frame { from, bytes: &mut b"frame".to_owned() }));
    }

    #[test]
    fn captured_shared_memory_frames_look_like_raw_ethernet_and_distinguish_their_ends() {
        let ends = [0x0807_0605_0403_0201, 9].map(|end| PeerAddr::shared_memory(1, end));
        let [from, to] = ends;
        let envelope = Envelope { from, to, congestion_experienced: false, ethernet: None };
        let mut out = Vec::new();
        // This is the longest frame of a link over shared memory.
        assert!(envelope.put(&mut out, &vec![7; 65_504]));
        assert_eq!(out[..14], [2, 9, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 0x88, 0xb5]);
        assert_eq!(out[18..22], [0, 0, 7, 6]);
    }

    #[test]
    fn frame_beyond_a_datagram_is_refused() {
        let ends = (peer("10.0.0.1:5"), peer("10.0.0.2:6"));
        assert!(put(ends.0, ends.1, &vec![0; 65_507]).is_some());
        assert!(put(ends.0, ends.1, &vec![0; 65_508]).is_none());
    }
}
