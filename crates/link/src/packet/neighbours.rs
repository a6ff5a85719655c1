//! Resolves an IP address to a station, through the kernel's neighbour table.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant as HostInstant};

use super::PacketError;
use crate::Interface;
use crate::ethernet::Station;
use crate::wait::wait_readable;

/// Finds the station that has `address` on the network of `interface`.
///
/// Reads the kernel's neighbour table. If the address is not in the table, sends a datagram to the
/// discard port of that address. The datagram makes the kernel query the network (ARP, or neighbour
/// discovery for IPv6). Waits for the result until `limit`.
///
/// # Errors
/// [`PacketError::NoAnswer`] if no station answers for the address.
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
        table.discard_news();
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
    requests: OwnedFd,
    /// A socket that becomes readable when an entry has changed.
    news: OwnedFd,
    sequence: u32,
}

/// A request for one entry, in the kernel's format.
#[repr(C)]
struct Request {
    header: libc::nlmsghdr,
    neighbour: NeighbourMessage,
    attribute: Attribute,
    address: [u8; 16],
}

/// `struct ndmsg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct NeighbourMessage {
    family: u8,
    padding: [u8; 3],
    interface_index: i32,
    state: u16,
    flags: u8,
    kind: u8,
}

/// `struct rtattr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    bytes: u16,
    kind: u16,
}

impl Table {
    fn open() -> io::Result<Self> {
        Ok(Self { requests: netlink(0)?, news: netlink(RTMGRP_NEIGH)?, sequence: 0 })
    }

    fn discard_news(&self) {
        let mut byte = [0_u8; 1];
        for _ in 0..NEWS_MAX {
            // SAFETY: the kernel writes at most one byte, the length of the buffer.
            let received = unsafe {
                let fd = self.news.as_raw_fd();
                libc::recv(fd, byte.as_mut_ptr().cast(), byte.len(), libc::MSG_DONTWAIT)
            };
            if received < 0 {
                break;
            }
        }
    }

    /// Returns the station of the entry, if the state of the entry permits the kernel to send to
    /// that station.
    fn find(&mut self, interface: &Interface, address: IpAddr) -> io::Result<Option<Station>> {
        self.sequence += 1;
        let mut request = Request {
            // SAFETY: all-zero bytes are a valid header.
            header: unsafe { zeroed() },
            neighbour: NeighbourMessage {
                family: libc::AF_INET as u8,
                padding: [0; 3],
                interface_index: interface.index.cast_signed(),
                state: 0,
                flags: 0,
                kind: 0,
            },
            attribute: Attribute { bytes: 0, kind: NDA_DST },
            address: [0; 16],
        };
        let address_bytes = match address {
            IpAddr::V4(v4) => {
                if let Some(room) = request.address.first_chunk_mut() {
                    *room = v4.octets();
                }
                4
            }
            IpAddr::V6(v6) => {
                request.neighbour.family = libc::AF_INET6 as u8;
                request.address = v6.octets();
                16
            }
        };
        request.attribute.bytes = (size_of::<Attribute>() + address_bytes) as u16;
        let len = size_of::<Request>() - 16 + address_bytes;
        request.header.nlmsg_len = len as u32;
        request.header.nlmsg_type = libc::RTM_GETNEIGH;
        request.header.nlmsg_flags = libc::NLM_F_REQUEST as u16;
        request.header.nlmsg_seq = self.sequence;
        // SAFETY: `request` is plain data without padding and at least `len` bytes long.
        let sent =
            unsafe { libc::send(self.requests.as_raw_fd(), (&raw const request).cast(), len, 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        self.read_answer()
    }

    fn read_answer(&self) -> io::Result<Option<Station>> {
        let mut buffer = [0_u8; ANSWER_BYTES];
        loop {
            // The kernel answers before `send` returns, so this call does not wait.
            // SAFETY: the kernel writes at most the length of the buffer.
            let received = unsafe {
                let fd = self.requests.as_raw_fd();
                libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
            };
            let Ok(received) = usize::try_from(received) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock => return Ok(None),
                    _ => return Err(error),
                }
            };
            return parse(buffer.get(..received).unwrap_or_default(), self.sequence);
        }
    }
}

/// Parses the kernel's answer. Returns the station, or `None` if the entry has no usable station.
fn parse(message: &[u8], sequence: u32) -> io::Result<Option<Station>> {
    let number = |at: usize| message.get(at..at + 4)?.first_chunk().map(|b| u32::from_ne_bytes(*b));
    let half = |at: usize| message.get(at..at + 2)?.first_chunk().map(|b| u16::from_ne_bytes(*b));
    let (Some(kind), Some(answered)) = (half(4), number(8)) else { return Ok(None) };
    if answered != sequence {
        return Ok(None);
    }
    if kind == libc::NLMSG_ERROR as u16 {
        let errno = number(HEADER_BYTES).map_or(0, |number| -number.cast_signed());
        return match errno {
            0 | libc::ENOENT => Ok(None),
            _ => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    let state = half(HEADER_BYTES + 8).unwrap_or(0);
    if kind != libc::RTM_NEWNEIGH || state & NUD_VALID == 0 {
        return Ok(None);
    }
    let mut at = HEADER_BYTES + size_of::<NeighbourMessage>();
    while let (Some(bytes), Some(kind)) = (half(at), half(at + 2)) {
        let bytes = usize::from(bytes);
        if bytes < size_of::<Attribute>() {
            break;
        }
        let value = message.get(at + size_of::<Attribute>()..at + bytes).unwrap_or_default();
        if kind == NDA_LLADDR {
            return Ok(value.try_into().ok());
        }
        at += bytes.next_multiple_of(4);
    }
    Ok(None)
}

fn netlink(groups: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid `sockaddr_nl`.
    let mut name: libc::sockaddr_nl = unsafe { zeroed() };
    name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    name.nl_groups = groups;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `name` is `len` initialised bytes, which the kernel only reads.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = size_of::<libc::nlmsghdr>();

/// Size of the answer buffer. An entry with its attributes takes about 100 bytes.
const ANSWER_BYTES: usize = 4096;

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

/// Longest wait for a notification, because notifications can be lost.
const LOOK: Duration = Duration::from_millis(100);

/// Maximum number of notifications discarded per call.
const NEWS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer about an entry in `state` with these attributes.
    fn answer(state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + size_of::<NeighbourMessage>()];
        bytes[4..6].copy_from_slice(&libc::RTM_NEWNEIGH.to_ne_bytes());
        bytes[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[HEADER_BYTES + 8..HEADER_BYTES + 10].copy_from_slice(&state.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn station_of_a_good_entry_is_found() {
        let attributes: [(u16, &[u8]); 2] =
            [(NDA_DST, &[10, 0, 0, 1]), (NDA_LLADDR, &[1, 2, 3, 4, 5, 6])];
        assert_eq!(parse(&answer(2, &attributes), 7).unwrap(), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(parse(&answer(1, &attributes), 7).unwrap(), None, "incomplete");
        assert_eq!(parse(&answer(2, &attributes), 8).unwrap(), None, "not what was asked");
        assert_eq!(parse(&answer(2, &attributes[..1]), 7).unwrap(), None);
        let short: [(u16, &[u8]); 1] = [(NDA_LLADDR, &[1, 2, 3])];
        assert_eq!(parse(&answer(2, &short), 7).unwrap(), None);
    }

    #[test]
    fn errors_are_distinguished_from_missing_entries() {
        let error = |errno: i32| {
            let mut bytes = vec![0; HEADER_BYTES + 4];
            bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes[8..12].copy_from_slice(&7_u32.to_ne_bytes());
            bytes[HEADER_BYTES..].copy_from_slice(&(-errno).to_ne_bytes());
            parse(&bytes, 7).map_err(|error| error.raw_os_error())
        };
        assert_eq!(error(libc::ENOENT), Ok(None));
        assert_eq!(error(libc::EPERM), Err(Some(libc::EPERM)));
    }

    #[test]
    fn any_bytes_are_parsed() {
        let whole = answer(2, &[(NDA_LLADDR, &[1; 6])]);
        for end in 0..whole.len() {
            let _ = parse(&whole[..end], 7);
        }
        let mut endless = whole.clone();
        endless[HEADER_BYTES + 12..HEADER_BYTES + 14].fill(0);
        assert_eq!(parse(&endless, 7).unwrap(), None);
    }

    #[test]
    fn loopback_has_one_station() {
        let found = resolve("lo", Ipv4Addr::LOCALHOST.into(), Duration::ZERO);
        assert_eq!(found.unwrap(), [0; 6]);
        let error = resolve("no-such", Ipv4Addr::LOCALHOST.into(), Duration::ZERO).unwrap_err();
        assert!(matches!(error, PacketError::NoSuchInterface { .. }), "{error}");
    }
}
