//! Resolves an IP address to a station, through the kernel's neighbour table.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant as HostInstant};

use super::PacketError;
use crate::ethernet::Station;
use crate::interface::Interface;
use crate::netlink::{Socket, attributes, put_attribute, u16_at};
use crate::wait::wait_readable;

/// Finds the station that has `address` on the network of `interface`.
///
/// Reads the kernel's neighbour table. If the address is not in the table, sends a datagram to the
/// discard port of that address. The datagram makes the kernel query the network (ARP, or neighbour
/// discovery for IPv6). Waits for the result for at most `limit`.
///
/// # Errors
/// Returns [`PacketError::NoAnswer`] if no station answers for the address.
pub fn resolve(interface: &str, address: IpAddr, limit: Duration) -> Result<Station, PacketError> {
    let known = Interface::named(interface).map_err(|e| PacketError::of_interface(interface, e))?;
    let Some(own) = known.station else {
        return Err(PacketError::NotEthernet { interface: interface.to_string() });
    };
    if known.is_loopback {
        return Ok(own);
    }
    let failed = |attempt| move |source| PacketError::new(interface, attempt, source);
    let mut table = Table::open().map_err(failed("open a netlink socket"))?;
    let deadline = HostInstant::now() + limit;
    let mut knock_at = None;
    loop {
        let seen = table.find(&known, address).map_err(failed("read the table of neighbours"))?;
        if let Some(station) = seen {
            return Ok(station);
        }
        let now = HostInstant::now();
        if now >= deadline {
            return Err(PacketError::NoAnswer {
                interface: interface.to_string(),
                who: address.to_string(),
                limit_ms: limit.as_millis(),
            });
        }
        if knock_at.is_none_or(|at| now >= at) {
            knock(&known, address);
            knock_at = Some(now + KNOCK);
        }
        let next = knock_at.unwrap_or(deadline).min(deadline);
        wait_readable(&[table.news.as_fd()], next.saturating_duration_since(now).min(LOOK));
        // Ignore errors: the next search fails, too, if the socket is unusable.
        let _ = table.news.take_events();
    }
}

/// Sends an empty datagram to the address, which makes the kernel resolve it.
fn knock(interface: &Interface, address: IpAddr) {
    let (from, to): (SocketAddr, SocketAddr) = match address {
        IpAddr::V4(_) => ((Ipv4Addr::UNSPECIFIED, 0).into(), (address, DISCARD).into()),
        IpAddr::V6(v6) => (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            SocketAddrV6::new(v6, DISCARD, 0, interface.index).into(),
        ),
    };
    // Ignore errors: if there is no route, the search ends at the time limit.
    if let Ok(socket) = UdpSocket::bind(from) {
        let _ = socket.send_to(&[], to);
    }
}

/// The kernel's neighbour table.
struct Table {
    requests: Socket,
    /// A socket that becomes readable when an entry has changed.
    news: Socket,
}

impl Table {
    fn open() -> io::Result<Self> {
        Ok(Self { requests: Socket::route(0)?, news: Socket::route(RTMGRP_NEIGH)? })
    }

    /// Returns the station of the entry, if the state of the entry permits the kernel to send to
    /// that station.
    fn find(&mut self, interface: &Interface, address: IpAddr) -> io::Result<Option<Station>> {
        let mut request = Vec::with_capacity(NDMSG_BYTES + 20);
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        request.extend_from_slice(&[family as u8, 0, 0, 0]);
        request.extend_from_slice(&interface.index.to_ne_bytes());
        // The last fields (state, flags and type) have a meaning only in the answer, so they are
        // zero here.
        request.resize(NDMSG_BYTES, 0);
        match address {
            IpAddr::V4(v4) => put_attribute(&mut request, NDA_DST, &v4.octets()),
            IpAddr::V6(v6) => put_attribute(&mut request, NDA_DST, &v6.octets()),
        }
        let mut station = None;
        let asked = self.requests.ask(libc::RTM_GETNEIGH, 0, &request, &mut |answer: &[u8]| {
            station = station_of(answer);
        });
        match asked {
            Ok(()) => Ok(station),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the station in a `struct ndmsg` with its attributes, or `None` if the entry has no
/// usable station.
fn station_of(entry: &[u8]) -> Option<Station> {
    let state = u16_at(entry, 8)?;
    (state & NUD_VALID != 0).then_some(())?;
    let mut attributes = attributes(entry.get(NDMSG_BYTES..)?);
    let (_, station) = attributes.find(|&(kind, _)| kind == NDA_LLADDR)?;
    station.try_into().ok()
}

/// Size of `struct ndmsg`: family, padding, interface number, state, flags, type.
const NDMSG_BYTES: usize = 12;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const RTMGRP_NEIGH: u32 = 4;

/// States of an entry whose station is known (the kernel's `NUD_VALID`): permanent, no ARP,
/// reachable, probed, stale, delayed.
const NUD_VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08;

/// The discard port. Either it has no listener, or its listener discards datagrams (RFC 863).
const DISCARD: u16 = 9;

/// Pause between two datagrams. The kernel repeats its own requests to the network once a second.
const KNOCK: Duration = Duration::from_millis(500);

/// Longest wait for a notification. Without a limit, the wait would not end if the notification is
/// lost.
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an entry in `state` with these attributes.
    fn entry(state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; NDMSG_BYTES];
        bytes[8..10].copy_from_slice(&state.to_ne_bytes());
        for (kind, value) in attributes {
            put_attribute(&mut bytes, *kind, value);
        }
        bytes
    }

    #[test]
    fn the_station_of_a_valid_entry_is_found() {
        let attributes: [(u16, &[u8]); 2] =
            [(NDA_DST, &[10, 0, 0, 1]), (NDA_LLADDR, &[1, 2, 3, 4, 5, 6])];
        assert_eq!(station_of(&entry(2, &attributes)), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(station_of(&entry(1, &attributes)), None, "incomplete");
        assert_eq!(station_of(&entry(2, &attributes[..1])), None);
        assert_eq!(station_of(&entry(2, &[(NDA_LLADDR, &[1, 2, 3])])), None);
    }

    #[test]
    fn a_truncated_entry_has_no_station() {
        let whole = entry(2, &[(NDA_LLADDR, &[1; 6])]);
        for end in 0..NDMSG_BYTES + 10 {
            assert_eq!(station_of(&whole[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn an_address_without_an_entry_has_no_station() {
        let interface = Interface::named("lo").unwrap();
        let found = Table::open()
            .and_then(|mut table| table.find(&interface, Ipv4Addr::new(192, 0, 2, 1).into()));
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn loopback_has_one_station() {
        let found = resolve("lo", Ipv4Addr::LOCALHOST.into(), Duration::ZERO);
        assert_eq!(found.unwrap(), [0; 6]);
        let error = resolve("no-such", Ipv4Addr::LOCALHOST.into(), Duration::ZERO).unwrap_err();
        assert!(matches!(error, PacketError::NoSuchInterface { .. }), "{error}");
    }
}
