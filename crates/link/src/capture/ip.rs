//! The Ethernet and IP headers of a captured frame or segment, and the checksum of the Internet
//! protocols.

use std::net::{IpAddr, Ipv4Addr};

/// Appends an Ethernet header with locally administered addresses. Each address ends with the last
/// four bytes of the IP address, so that different hosts have different Ethernet addresses.
pub(super) fn put_ethernet(out: &mut Vec<u8>, from: IpAddr, to: IpAddr, ethertype: u16) {
    for ip in [to, from] {
        let end = match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => {
                let [.., a, b, c, d] = v6.octets();
                [a, b, c, d]
            }
        };
        out.extend_from_slice(&[2, 0]);
        out.extend_from_slice(&end);
    }
    out.extend_from_slice(&ethertype.to_be_bytes());
}

pub(super) fn ipv4_header(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    total: u16,
    ecn: u8,
) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[1] = ecn;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6] = DONT_FRAGMENT;
    header[8] = HOP_LIMIT;
    header[9] = protocol;
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let checksum = fold(sum(&header));
    header[10..12].copy_from_slice(&checksum);
    header
}

/// Adds big-endian 16-bit words. The last word is padded with zero.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum::<u64>() + last
}

/// Returns the one's complement of a one's-complement sum.
pub(super) fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

pub(super) const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
