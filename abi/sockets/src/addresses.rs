//! Converts socket addresses from and to the structures of the C library.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Returns true if an address is IPv4 or IPv6. Reads only two values from memory, because calls on
/// all sockets pay for this check.
pub(crate) fn is_internet(address: *const sockaddr, length: socklen_t) -> bool {
    if address.is_null() || (length as usize) < size_of::<sockaddr_in>() {
        return false;
    }
    // SAFETY: the address has `length` bytes, which is enough to contain the family.
    let family = c_int::from(unsafe { (*address).sa_family });
    matches!(family, libc::AF_INET | libc::AF_INET6)
}

/// Parses an IPv4 or IPv6 address. Returns `None` for other addresses.
///
/// # Safety
/// `address` must be null or have `length` bytes.
pub(crate) unsafe fn parsed(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    if !is_internet(address, length) {
        return None;
    }
    // SAFETY: the caller guarantees that the address has `length` bytes, and `is_internet` has
    // checked that this is enough.
    if c_int::from(unsafe { (*address).sa_family }) == libc::AF_INET {
        // SAFETY: the caller guarantees that the address has `length` bytes, and `is_internet` has
        // checked that this is enough.
        let found = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
        let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
        return Some(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into());
    }
    if (length as usize) < size_of::<sockaddr_in6>() {
        return None;
    }
    // SAFETY: the caller guarantees that the address has `length` bytes, and the check above
    // ensures that this is enough.
    let found = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
    let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
    let port = u16::from_be(found.sin6_port);
    Some(SocketAddrV6::new(ip, port, found.sin6_flowinfo, found.sin6_scope_id).into())
}

/// Returns the local address of a socket. Returns `None` if the address is not IPv4 or IPv6.
pub(crate) fn local(fd: c_int) -> Option<SocketAddr> {
    asked(fd, libc::getsockname)
}

/// Returns the peer's address of a socket. Returns `None` if the address is not IPv4 or IPv6.
pub(crate) fn peer(fd: c_int) -> Option<SocketAddr> {
    asked(fd, libc::getpeername)
}

fn asked(
    fd: c_int,
    ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    let address = storage.as_mut_ptr().cast();
    // SAFETY: there is room for `length` bytes.
    let result = unsafe { ask(fd, address, &raw mut length) };
    // SAFETY: the memory was zero before, and the kernel has written the first `length` bytes.
    if result == 0 { unsafe { parsed(address, length) } } else { None }
}

/// Writes an address to memory of the program, like the kernel does: as many bytes as fit, and to
/// `length` the full length of the address.
///
/// # Safety
/// The arguments must satisfy the contract of the C function `getsockname`.
pub(crate) unsafe fn give(of: SocketAddr, address: *mut sockaddr, length: *mut socklen_t) {
    let give = |from: *const u8, size: usize| {
        // SAFETY: the caller fulfils the `# Safety` section of this function.
        let room = unsafe { *length } as usize;
        // SAFETY: the caller guarantees that there is room for `length` bytes, and that `length`
        // can be written.
        unsafe {
            std::ptr::copy_nonoverlapping(from, address.cast(), room.min(size));
            length.write(size as socklen_t);
        }
    };
    match of {
        SocketAddr::V4(of) => {
            let found = sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: of.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*of.ip()).to_be() },
                sin_zero: [0; 8],
            };
            give((&raw const found).cast(), size_of_val(&found));
        }
        SocketAddr::V6(of) => {
            let found = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: of.port().to_be(),
                sin6_flowinfo: of.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: of.ip().octets() },
                sin6_scope_id: of.scope_id(),
            };
            give((&raw const found).cast(), size_of_val(&found));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_address_parses_to_the_same_address() {
        for text in ["10.1.2.3:80", "[fe80::1%7]:443", "[::ffff:10.1.2.3]:9"] {
            let wanted: SocketAddr = text.parse().expect("an address");
            let mut storage = MaybeUninit::<sockaddr_storage>::zeroed();
            let mut length = size_of::<sockaddr_storage>() as socklen_t;
            // SAFETY: there is room for `length` bytes.
            let found = unsafe {
                give(wanted, storage.as_mut_ptr().cast(), &raw mut length);
                parsed(storage.as_ptr().cast(), length)
            };
            assert_eq!(found, Some(wanted));
        }
    }

    #[test]
    fn an_address_too_short_or_of_another_family_is_refused() {
        let mut storage = MaybeUninit::<sockaddr_storage>::zeroed();
        // SAFETY: all zero is a valid value.
        let storage = unsafe { storage.assume_init_mut() };
        for (family, length) in [(libc::AF_UNIX, 128), (libc::AF_INET, 15), (libc::AF_INET6, 27)] {
            storage.ss_family = family as u16;
            // SAFETY: `storage` has `length` bytes.
            let found = unsafe { parsed((&raw const *storage).cast(), length) };
            assert_eq!(found, None);
        }
    }
}
