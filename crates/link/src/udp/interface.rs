//! Lookup of the interface of an IP address.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::{c_int, c_uint};

use crate::interface::{Interface, InterfaceName};

/// Returns the interface that has `address`, or `None` if there is none. For an unspecified
/// address, returns the interface with the smallest MTU. Prefers running interfaces to others, and
/// any other interface to loopback.
pub(super) fn interface_of(
    socket: BorrowedFd<'_>,
    address: IpAddr,
) -> io::Result<Option<Interface>> {
    let mut best: Option<Interface> = None;
    for (name, candidate) in addresses()? {
        if address.is_unspecified() {
            let Ok(interface) = Interface::query(socket, name) else { continue };
            let rank = |i: &Interface| (!i.is_running, i.is_loopback, i.mtu_bytes);
            if best.as_ref().is_none_or(|best| rank(&interface) < rank(best)) {
                best = Some(interface);
            }
        } else if candidate == address.to_canonical()
            || (address.is_loopback() && candidate.is_loopback())
        {
            // Every address of 127.0.0.0/8 belongs to the loopback interface, although the kernel
            // lists only 127.0.0.1.
            return Interface::query(socket, name).map(Some);
        }
    }
    Ok(best)
}

/// Returns every IP address of the host with the name of its interface.
fn addresses() -> io::Result<Vec<(InterfaceName, IpAddr)>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` outlives the call, which sets it to a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: a non-null pointer in the list is a valid entry until the list is freed.
        let item = unsafe { &*entry };
        // SAFETY: the address, if any, has the length of its family.
        if let Some(address) = unsafe { ip_address(item.ifa_addr) } {
            // SAFETY: every entry of the list has a name, which is a terminated string.
            let name = unsafe { CStr::from_ptr(item.ifa_name) };
            if let Some(name) = InterfaceName::new(name.to_bytes()) {
                found.push((name, address));
            }
        }
        entry = item.ifa_next;
    }
    // SAFETY: `list` came from `getifaddrs`, and no reference into it remains.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` must be null or point to a socket address with the length of its family.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and valid by the caller's guarantee. Each cast matches the family.
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

/// Returns the index of the interface that has the address `ip`; 0 if no interface has it.
pub(super) fn index_of(ip: IpAddr) -> u32 {
    let list = addresses().unwrap_or_default();
    list.into_iter()
        .find(|(_, address)| *address == ip)
        // SAFETY: the name is terminated.
        .map_or(0, |(name, _)| unsafe { libc::if_nametoindex(name.as_ptr()) as c_uint })
}

/// Returns the scope for `ip`. For a link-local address this is `given`, or the index of its
/// interface if `given` is 0. For any other address it is 0.
pub(super) fn scope_of(ip: IpAddr, given: u32) -> u32 {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() && given == 0 => index_of(ip),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => given,
        _ => 0,
    }
}
