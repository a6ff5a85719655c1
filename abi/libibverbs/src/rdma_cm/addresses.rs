//! Converts socket addresses from and to C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use verbs::Error;

use crate::failure::invalid;

/// Converts an address from C. Returns `None` if the pointer is null or the family is unspecified.
///
/// # Safety
/// The pointer must be null, or point to a complete address of its family.
pub(super) unsafe fn of_c(address: *const sockaddr) -> Result<Option<SocketAddr>, Error> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller meets the requirements of this function.
    match c_int_of(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the caller meets the requirements of this function. The address may be
            // unaligned, and this read needs no alignment.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: the caller meets the requirements of this function. The address may be
            // unaligned, and this read needs no alignment.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()))
        }
        // An address that a program has not set has this family.
        libc::AF_UNSPEC => Ok(None),
        // `librdmacm` without support for `AF_IB` also rejects all other families.
        other => Err(Error::Invalid(format!("addresses of family {other}"))),
    }
}

/// Converts an address from C. Returns an error if the address is not specified.
///
/// # Safety
/// The requirements are those of [`of_c`].
pub(super) unsafe fn needed(address: *const sockaddr) -> Result<SocketAddr, Error> {
    // SAFETY: the caller meets the requirements of this function.
    match unsafe { of_c(address) }? {
        Some(address) => Ok(address),
        None => invalid("there is no address"),
    }
}

/// Converts an address to C. Returns zeros for `None`.
pub(super) fn storage(address: Option<SocketAddr>) -> sockaddr_storage {
    // SAFETY: all fields are numbers, for which zero is a valid value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        None => {}
        Some(SocketAddr::V4(v4)) => {
            let c = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for every address.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(c) };
        }
        Some(SocketAddr::V6(v6)) => {
            let c = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is large enough and aligned for every address.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// Returns the size in bytes of the C structure for an address.
pub(super) const fn len(address: SocketAddr) -> socklen_t {
    match address {
        SocketAddr::V4(_) => size_of::<sockaddr_in>() as socklen_t,
        SocketAddr::V6(_) => size_of::<sockaddr_in6>() as socklen_t,
    }
}

fn c_int_of(family: libc::sa_family_t) -> libc::c_int {
    libc::c_int::from(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_converts_to_c_and_back() {
        for text in ["10.1.2.3:7471", "[fd00::1]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = storage(Some(address));
            // SAFETY: created just above.
            let back = unsafe { of_c((&raw const c).cast()) }.unwrap();
            assert_eq!(back, Some(address));
        }
        let nothing = storage(None);
        // SAFETY: the address was created just above.
        assert_eq!(unsafe { of_c((&raw const nothing).cast()) }, Ok(None));
        let mut strange = nothing;
        strange.ss_family = 27;
        // SAFETY: for an unknown family, the function reads only the family.
        assert!(unsafe { of_c((&raw const strange).cast()) }.is_err());
    }
}
