//! `rdma_getaddrinfo`: what the system's resolver finds, as ids need it.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use libc::{addrinfo, sockaddr, sockaddr_storage, socklen_t};
use verbs::Error;
use verbs::cm::PortSpace;

use super::addresses::{len, of_c, storage};
use super::ids::{TYPE_DATAGRAM, TYPE_RELIABLE};
use super::layout::rdma_addrinfo;
use crate::failure::{invalid, number};

/// What is found, with the addresses behind it.
#[repr(C)]
struct Found {
    c: rdma_addrinfo,
    source: sockaddr_storage,
    destination: sockaddr_storage,
    /// Names were copied by the C library.
    source_name: *mut c_char,
    destination_name: *mut c_char,
}

/// `rdma_getaddrinfo`. Returns what the system's resolver does, or -1.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_getaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    found: *mut *mut rdma_addrinfo,
) -> c_int {
    number("rdma_getaddrinfo", || {
        // SAFETY: as the caller says.
        let hints = unsafe { hints.as_ref() };
        let says_nothing = node.is_null()
            && service.is_null()
            && hints.is_none_or(|hints| hints.ai_dst_addr.is_null() && hints.ai_src_addr.is_null());
        if says_nothing || found.is_null() {
            return invalid("neither a name nor a port to look for");
        }
        // SAFETY: as the caller says.
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
        // SAFETY: as the caller says.
        let made = unsafe { wanted.copy(hints) }?;
        // SAFETY: as the caller says.
        unsafe { *found = made };
        return Ok(0);
    }
    // SAFETY: a structure of numbers and pointers, which may all be zero.
    let mut asked: addrinfo = unsafe { std::mem::zeroed() };
    asked.ai_family = if wanted.family == FAMILY_IB { libc::AF_UNSPEC } else { wanted.family };
    asked.ai_socktype =
        if wanted.qp_type == TYPE_DATAGRAM { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    asked.ai_flags = if wanted.flags & PASSIVE != 0 { libc::AI_PASSIVE } else { 0 }
        | if wanted.flags & NUMERIC != 0 { libc::AI_NUMERICHOST } else { 0 };
    let mut list: *mut addrinfo = ptr::null_mut();
    // SAFETY: the texts are as the caller says, the rest is here.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const asked, &raw mut list) };
    if code != 0 {
        return Ok(code);
    }
    // SAFETY: it was just found; the first is taken, as others do.
    let first = unsafe { list.as_ref() }.map(|first| (first.ai_addr, first.ai_canonname));
    let made = match first {
        // SAFETY: the same.
        Some((address, name)) => unsafe { wanted.make(address, name, hints) },
        None => invalid("nothing was found"),
    };
    // SAFETY: it was found above.
    unsafe { libc::freeaddrinfo(list) };
    // SAFETY: as the caller says.
    unsafe { *found = made? };
    Ok(0)
}

/// What is asked for.
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

    /// What was found of one side; the other one is as the hints say.
    unsafe fn make(
        &self,
        address: *const sockaddr,
        name: *const c_char,
        hints: Option<&rdma_addrinfo>,
    ) -> Result<*mut rdma_addrinfo, Error> {
        let is_passive = self.flags & PASSIVE != 0;
        // SAFETY: as the caller says.
        let known = unsafe { of_c(address) }?;
        let other =
            hints.map(|hints| if is_passive { hints.ai_dst_addr } else { hints.ai_src_addr });
        // SAFETY: as the caller says.
        let other = unsafe { of_c(other.unwrap_or(ptr::null_mut())) }?;
        // SAFETY: as the caller says.
        let name = if name.is_null() { ptr::null_mut() } else { unsafe { libc::strdup(name) } };
        Ok(if is_passive {
            self.found(known, other, name, ptr::null_mut())
        } else {
            self.found(other, known, ptr::null_mut(), name)
        })
    }

    /// What the hints say.
    unsafe fn copy(&self, hints: Option<&rdma_addrinfo>) -> Result<*mut rdma_addrinfo, Error> {
        let Some(hints) = hints else { return invalid("there is nothing to look for") };
        // SAFETY: as the caller says.
        let (source, destination) = unsafe { (of_c(hints.ai_src_addr)?, of_c(hints.ai_dst_addr)?) };
        Ok(self.found(source, destination, ptr::null_mut(), ptr::null_mut()))
    }

    fn found(
        &self,
        source: Option<std::net::SocketAddr>,
        destination: Option<std::net::SocketAddr>,
        source_name: *mut c_char,
        destination_name: *mut c_char,
    ) -> *mut rdma_addrinfo {
        let family = source.or(destination).map_or(self.family, |address| {
            if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
        });
        let made = Box::into_raw(Box::new(Found {
            c: rdma_addrinfo {
                ai_flags: self.flags,
                ai_family: family,
                ai_qp_type: self.qp_type,
                ai_port_space: self.space,
                ai_src_len: source.map_or(0, len),
                ai_dst_len: destination.map_or(0, len),
                ai_src_addr: ptr::null_mut(),
                ai_dst_addr: ptr::null_mut(),
                ai_src_canonname: source_name,
                ai_dst_canonname: destination_name,
                ai_route_len: 0,
                ai_route: ptr::null_mut(),
                ai_connect_len: 0,
                ai_connect: ptr::null_mut(),
                ai_next: ptr::null_mut(),
            },
            source: storage(source),
            destination: storage(destination),
            source_name,
            destination_name,
        }));
        let pointer = |len: socklen_t, place: *mut sockaddr_storage| {
            if len == 0 { ptr::null_mut() } else { place.cast::<sockaddr>() }
        };
        // SAFETY: it was just made, and stays where it is.
        unsafe {
            (*made).c.ai_src_addr = pointer((*made).c.ai_src_len, &raw mut (*made).source);
            (*made).c.ai_dst_addr = pointer((*made).c.ai_dst_len, &raw mut (*made).destination);
        }
        made.cast()
    }
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// The list is from [`rdma_getaddrinfo`], or null.
#[unsafe(export_name = "ethernot_rdma_freeaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(found: *mut rdma_addrinfo) {
    let mut next = found;
    while !next.is_null() {
        // SAFETY: as the caller says.
        let found = ManuallyDrop::new(unsafe { Box::from_raw(next.cast::<Found>()) });
        let after = found.c.ai_next;
        // SAFETY: the C library has allocated both, or they are null.
        unsafe {
            libc::free(found.source_name.cast::<c_void>());
            libc::free(found.destination_name.cast::<c_void>());
        }
        drop(ManuallyDrop::into_inner(found));
        next = after;
    }
}

/// `AF_IB`: of which librdmacm asks the resolver nothing, either.
const FAMILY_IB: c_int = 27;

/// `RAI_PASSIVE` and `RAI_NUMERICHOST`.
pub(super) const PASSIVE: c_int = 1;
const NUMERIC: c_int = 1 << 1;
