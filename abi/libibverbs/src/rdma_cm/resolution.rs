//! `rdma_getaddrinfo`: resolves names with the system's resolver, and returns the addresses in the
//! form that ids need.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use libc::{addrinfo, sockaddr};
use rdma_cm::PortSpace;
use verbs::Error;

use super::addresses::{len, of_c, storage};
use super::ids::{TYPE_DATAGRAM, TYPE_RELIABLE};
use super::layout::rdma_addrinfo;
use crate::failure::{invalid, number};

/// Implements `rdma_getaddrinfo`. Returns 0 on success, the error code of the system's resolver
/// (`EAI_...`) if the resolver fails, and -1 on any other error.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_getaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    found: *mut *mut rdma_addrinfo,
) -> c_int {
    number("rdma_getaddrinfo", || {
        // SAFETY: the caller meets the requirements of this function.
        let hints = unsafe { hints.as_ref() };
        let says_nothing = node.is_null()
            && service.is_null()
            && hints.is_none_or(|hints| hints.ai_dst_addr.is_null() && hints.ai_src_addr.is_null());
        if says_nothing || found.is_null() {
            return invalid(
                "there is no node, service or address, or the pointer for the result is null",
            );
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { find(node, service, hints, found) }
    })
}

unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    found: *mut *mut rdma_addrinfo,
) -> Result<c_int, Error> {
    let wanted = Wanted::of(hints);
    if node.is_null() && service.is_null() {
        // SAFETY: the caller meets the requirements of this function.
        let made = unsafe { wanted.copy(hints) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { *found = made };
        return Ok(0);
    }
    // SAFETY: all fields are numbers or pointers, for which zero is a valid value.
    let mut asked: addrinfo = unsafe { std::mem::zeroed() };
    asked.ai_family = if wanted.family == FAMILY_IB { libc::AF_UNSPEC } else { wanted.family };
    asked.ai_socktype =
        if wanted.qp_type == TYPE_DATAGRAM { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    asked.ai_flags = if wanted.flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 }
        | if wanted.flags & NUMERIC != 0 { libc::AI_NUMERICHOST } else { 0 };
    let mut list: *mut addrinfo = ptr::null_mut();
    // SAFETY: the caller guarantees the strings; the other pointers refer to local variables.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const asked, &raw mut list) };
    if code != 0 {
        return Ok(code);
    }
    // Like librdmacm, use only the first entry of the list.
    // SAFETY: `getaddrinfo` returned this list above.
    let first = unsafe { list.as_ref() }.map(|first| (first.ai_addr, first.ai_canonname));
    let made = match first {
        // SAFETY: the entry belongs to the list that `getaddrinfo` returned.
        Some((address, name)) => unsafe { wanted.make(address, name, hints) },
        None => invalid("nothing was found"),
    };
    // SAFETY: `getaddrinfo` returned the list.
    unsafe { libc::freeaddrinfo(list) };
    // SAFETY: the caller meets the requirements of this function.
    unsafe { *found = made? };
    Ok(0)
}

/// The request to the resolver: the hints of the program, completed with defaults.
struct Wanted {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    space: c_int,
}

impl Wanted {
    fn of(hints: Option<&rdma_addrinfo>) -> Self {
        let says = |of: fn(&rdma_addrinfo) -> c_int| hints.map_or(0, of);
        let flags = says(|hints| hints.ai_flags);
        let (qp_type, space) = (says(|hints| hints.ai_qp_type), says(|hints| hints.ai_port_space));
        let udp = PortSpace::Udp as c_int;
        let is_datagram =
            qp_type == TYPE_DATAGRAM || space == udp || space == PortSpace::IpOverIb as c_int;
        let usual_type = if is_datagram { TYPE_DATAGRAM } else { TYPE_RELIABLE };
        let usual_space = if is_datagram { udp } else { PortSpace::Tcp as c_int };
        let family = says(|hints| hints.ai_family);
        Self {
            flags,
            family,
            qp_type: if qp_type == 0 { usual_type } else { qp_type },
            space: if space == 0 { usual_space } else { space },
        }
    }

    /// Returns a result. For a listener, `address` from the resolver becomes the source address;
    /// otherwise it becomes the destination address. The other address comes from the hints.
    unsafe fn make(
        &self,
        address: *const sockaddr,
        name: *const c_char,
        hints: Option<&rdma_addrinfo>,
    ) -> Result<*mut rdma_addrinfo, Error> {
        let is_passive = self.flags & PASSIVE != 0;
        // SAFETY: the caller meets the requirements of this function.
        let known = unsafe { of_c(address) }?;
        let other =
            hints.map(|hints| if is_passive { hints.ai_dst_addr } else { hints.ai_src_addr });
        // SAFETY: the caller meets the requirements of this function.
        let other = unsafe { of_c(other.unwrap_or(ptr::null_mut())) }?;
        // SAFETY: the caller meets the requirements of this function.
        let name = if name.is_null() { ptr::null_mut() } else { unsafe { libc::strdup(name) } };
        if is_passive {
            self.found(known, other, name, ptr::null_mut())
        } else {
            self.found(other, known, ptr::null_mut(), name)
        }
    }

    /// Returns a result with both addresses from the hints.
    unsafe fn copy(&self, hints: Option<&rdma_addrinfo>) -> Result<*mut rdma_addrinfo, Error> {
        let Some(hints) = hints else { return invalid("there are no hints") };
        // SAFETY: the caller meets the requirements of this function.
        let (source, destination) = unsafe { (of_c(hints.ai_src_addr)?, of_c(hints.ai_dst_addr)?) };
        self.found(source, destination, ptr::null_mut(), ptr::null_mut())
    }

    /// Creates a result. The result owns the names. A name must be null or come from the C
    /// library's allocator.
    fn found(
        &self,
        source: Option<SocketAddr>,
        destination: Option<SocketAddr>,
        source_name: *mut c_char,
        destination_name: *mut c_char,
    ) -> Result<*mut rdma_addrinfo, Error> {
        let family = source.or(destination).map_or(self.family, |address| {
            if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
        });
        let found = rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.space,
            ai_src_len: source.map_or(0, len),
            ai_dst_len: destination.map_or(0, len),
            ai_src_addr: source.map_or(ptr::null_mut(), allocated_address),
            ai_dst_addr: destination.map_or(ptr::null_mut(), allocated_address),
            ai_src_canonname: source_name,
            ai_dst_canonname: destination_name,
            ai_route_len: 0,
            ai_route: ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        };
        let is_short = (source.is_some() && found.ai_src_addr.is_null())
            || (destination.is_some() && found.ai_dst_addr.is_null());
        let place = if is_short { ptr::null_mut() } else { allocated(found) };
        if place.is_null() {
            // SAFETY: all pointers in the result are null or come from the C library's allocator.
            unsafe { free_what_it_holds(&found) };
            return Err(Error::NoRoom("the C library has no memory for an address".into()));
        }
        Ok(place)
    }
}

/// Moves a value to memory from the C library's allocator. Returns null if there is no memory.
fn allocated<T>(value: T) -> *mut T {
    // SAFETY: the allocator aligns memory for every C type, and the allocation has the size of the
    // value.
    unsafe {
        let place = libc::malloc(size_of::<T>()).cast::<T>();
        if !place.is_null() {
            place.write(value);
        }
        place
    }
}

fn allocated_address(address: SocketAddr) -> *mut sockaddr {
    allocated(storage(Some(address))).cast()
}

/// Frees the memory to which the fields of `found` point, except the next entry. Does not free
/// `found` itself.
///
/// # Safety
/// All pointers of `found` must be null or come from the C library's allocator. After this call,
/// they must not be used.
unsafe fn free_what_it_holds(found: &rdma_addrinfo) {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        libc::free(found.ai_src_addr.cast());
        libc::free(found.ai_dst_addr.cast());
        libc::free(found.ai_src_canonname.cast());
        libc::free(found.ai_dst_canonname.cast());
        libc::free(found.ai_route);
        libc::free(found.ai_connect);
    }
}

/// Implements `rdma_freeaddrinfo`. Frees every part of the list with the C library's allocator,
/// because some programs, such as libfabric, build such lists with `malloc`, or replace parts of a
/// list from `rdma_getaddrinfo`.
///
/// # Safety
/// All pointers in the list must be null or come from the C library's allocator.
#[unsafe(export_name = "ethernot_rdma_freeaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(found: *mut rdma_addrinfo) {
    let mut next = found;
    while !next.is_null() {
        let found = next;
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            next = (*found).ai_next;
            free_what_it_holds(&*found);
            libc::free(found.cast());
        }
    }
}

/// Value of `AF_IB`. If a program asks for this family, the library asks the system's resolver for
/// addresses of any family, like librdmacm does.
const FAMILY_IB: c_int = 27;

/// Values of `RAI_PASSIVE` and `RAI_NUMERICHOST`.
pub(super) const PASSIVE: c_int = 1;
const NUMERIC: c_int = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroed() -> rdma_addrinfo {
        // SAFETY: all fields are numbers or pointers, for which zero is a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// Returns the result of `rdma_getaddrinfo` for a listener on port 7471.
    fn passive() -> *mut rdma_addrinfo {
        let hints = rdma_addrinfo { ai_flags: PASSIVE | NUMERIC, ..zeroed() };
        let mut found = ptr::null_mut();
        // SAFETY: the strings end with a zero, and all pointers refer to local variables.
        let code = unsafe {
            rdma_getaddrinfo(
                c"127.0.0.1".as_ptr(),
                c"7471".as_ptr(),
                &raw const hints,
                &raw mut found,
            )
        };
        assert_eq!(code, 0);
        found
    }

    #[test]
    fn programs_may_replace_resolved_addresses() {
        let found = passive();
        // SAFETY: the result was created above. Its address is replaced by memory from the C
        // library's allocator.
        unsafe {
            assert_eq!((*found).ai_family, libc::AF_INET);
            let before = of_c((*found).ai_src_addr).unwrap();
            let bytes = (*found).ai_src_len as usize;
            let own = libc::malloc(bytes);
            libc::memcpy(own, (*found).ai_src_addr.cast(), bytes);
            libc::free((*found).ai_src_addr.cast());
            (*found).ai_src_addr = own.cast();
            assert_eq!(of_c((*found).ai_src_addr).unwrap(), before);
            rdma_freeaddrinfo(found);
        }
    }

    #[test]
    fn programs_may_free_their_own_address_lists() {
        // SAFETY: the memory is zeroed and comes from the C library's allocator. It is linked to a
        // result of `rdma_getaddrinfo`.
        unsafe {
            let own = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
            (*own).ai_src_addr = libc::calloc(1, 48).cast();
            (*own).ai_route = libc::malloc(64);
            (*own).ai_connect = libc::malloc(56);
            (*own).ai_next = passive();
            rdma_freeaddrinfo(own);
        }
    }
}
