//! What the host's interfaces carry.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_uint};

/// The interface a link sends through, or the most restrictive one if it may use any.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Interface {
    /// Its name, for the interface requests of a socket.
    name: InterfaceName,
    /// Largest IP packet, in bytes.
    pub(super) mtu_bytes: u32,
    /// Whether it never leaves the host, so that its MTU is that of every path.
    pub(super) is_loopback: bool,
    /// Whether it is up and has a carrier.
    pub(super) is_running: bool,
}

type InterfaceName = [libc::c_char; libc::IFNAMSIZ];

impl Interface {
    /// The interface that has `address`; for an unspecified address the one with the smallest MTU
    /// among those that are up, loopback last. `None` if there is none.
    pub(super) fn of(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<Option<Self>> {
        let mut best: Option<Self> = None;
        for (name, candidate) in addresses()? {
            if address.is_unspecified() {
                let Ok(interface) = Self::query(socket, name) else { continue };
                let rank = |i: &Self| (!i.is_running, i.is_loopback, i.mtu_bytes);
                if best.as_ref().is_none_or(|best| rank(&interface) < rank(best)) {
                    best = Some(interface);
                }
            } else if candidate == address.to_canonical()
                || (address.is_loopback() && candidate.is_loopback())
            {
                // All of 127.0.0.0/8 is local though only 127.0.0.1 is listed.
                return Self::query(socket, name).map(Some);
            }
        }
        Ok(best)
    }

    /// The same interface as it is now: not running if it is gone, as it may come back.
    pub(super) fn refreshed(&self, socket: BorrowedFd<'_>) -> Self {
        Self::query(socket, self.name)
            .unwrap_or_else(|_| Self { is_running: false, ..self.clone() })
    }

    /// Nominal rate in bits per second of a real device; virtual ones name a rate that means nothing.
    pub(super) fn rate(&self) -> Option<u64> {
        let name: String =
            self.name.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect();
        let folder = format!("/sys/class/net/{name}");
        fs::metadata(format!("{folder}/device")).ok()?;
        let megabits: i64 =
            fs::read_to_string(format!("{folder}/speed")).ok()?.trim().parse().ok()?;
        u64::try_from(megabits).ok().filter(|&megabits| megabits > 0)?.checked_mul(1_000_000)
    }

    fn query(socket: BorrowedFd<'_>, name: InterfaceName) -> io::Result<Self> {
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { zeroed() };
        request.ifr_name = name;
        interface_request(socket, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: this request writes the member for the MTU.
        let mtu: c_int = unsafe { request.ifr_ifru.ifru_mtu };
        interface_request(socket, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: this request writes the member for the flags.
        let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        let running = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(Self {
            name,
            mtu_bytes: u32::try_from(mtu).unwrap_or(0),
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
            is_running: flags & running == running,
        })
    }
}

fn interface_request(
    socket: BorrowedFd<'_>,
    number: libc::c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: `request` outlives the call, and the kernel writes no more than an `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), number as _, ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Every IP address of the host and the name of its interface.
fn addresses() -> io::Result<Vec<(InterfaceName, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` outlives the call, which makes it a list to be given back below.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: a non-null link of the list made above is a valid entry until it is given back.
        let item = unsafe { &*entry };
        // SAFETY: the address, if any, is as long as its family says.
        if let Some(address) = unsafe { ip_address(item.ifa_addr) } {
            // SAFETY: every entry of the list has a name, a terminated string.
            let name = unsafe { CStr::from_ptr(item.ifa_name) };
            found.push((interface_name(name), address));
        }
        entry = item.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs` and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The name without its `:alias`, which interface requests would take for another interface.
fn interface_name(name: &CStr) -> InterfaceName {
    let mut bytes = [0; libc::IFNAMSIZ];
    let plain = name.to_bytes().iter().take_while(|&&byte| byte != b':');
    for (to, &from) in bytes.iter_mut().take(libc::IFNAMSIZ - 1).zip(plain) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    bytes
}

/// # Safety
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and valid by the caller's promise; each cast follows the family.
    unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Index of the interface with the link-local address `ip`, 0 if `ip` is no such address.
pub(super) fn scope_of(ip: IpAddr, given: u32) -> u32 {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() && given == 0 => addresses()
            .ok()
            .and_then(|list| list.into_iter().find(|(_, address)| *address == ip))
            // SAFETY: the name is terminated: `interface_name` leaves the last byte zero.
            .map_or(0, |(name, _)| unsafe { libc::if_nametoindex(name.as_ptr()) as c_uint }),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => given,
        _ => 0,
    }
}
