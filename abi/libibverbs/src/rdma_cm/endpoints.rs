//! Ids with blocking calls, created from the result of [`rdma_getaddrinfo`](super::resolution).

use std::ffi::c_int;
use std::ptr;

use verbs::Error;

use super::addresses::{needed, of_c};
use super::events::{self, CONNECT_REQUEST};
use super::ids::{complete, create, destroy, migrate, ours, refresh, release_event};
use super::layout::{rdma_addrinfo, rdma_cm_id};
use super::pairs::{self, rdma_destroy_qp, rdma_destroy_srq};
use super::resolution::PASSIVE;
use crate::failure::{invalid, number, silent};
use crate::layout::{ibv_pd, ibv_qp_init_attr};

/// `rdma_create_ep`.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(export_name = "ethernot_rdma_create_ep")]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_ep", || {
        // SAFETY: guaranteed by the caller.
        let (Some(found), false) = (unsafe { found.as_ref() }, id.is_null()) else {
            return invalid("the address information or the pointer for the id is null");
        };
        let service = (found.ai_qp_type != 0).then_some(found.ai_qp_type);
        // SAFETY: guaranteed by the caller.
        let made =
            unsafe { create(ptr::null_mut(), ptr::null_mut(), found.ai_port_space, service) }?;
        // SAFETY: guaranteed by the caller.
        if let Err(error) = unsafe { set_up(made, found, domain, init) } {
            // SAFETY: no other thread knows the address.
            let _ = unsafe { destroy(made) };
            return Err(error);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { *id = made };
        Ok(0)
    })
}

unsafe fn set_up(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    let ours = unsafe { ours(id)? };
    // SAFETY: guaranteed by the caller.
    let init = unsafe { init.as_mut() };
    if found.ai_flags & PASSIVE != 0 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            ours.id.bind(needed(found.ai_src_addr)?)?;
            refresh(id)?;
        }
        if let Some(init) = init {
            ours.own().pair = Some(*init);
        }
        if !domain.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { (*id).pd = domain };
        }
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        ours.id.resolve_address(of_c(found.ai_src_addr)?, needed(found.ai_dst_addr)?)?;
        complete(id)?;
        ours.id.resolve_route()?;
        complete(id)?;
    }
    let Some(init) = init else { return Ok(()) };
    // SAFETY: guaranteed by the caller.
    init.qp_type = unsafe { (*id).qp_type };
    // SAFETY: guaranteed by the caller.
    unsafe { pairs::create(id, domain, init) }
}

/// `rdma_destroy_ep`.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(export_name = "ethernot_rdma_destroy_ep")]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    silent("rdma_destroy_ep", (), || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            ours(id)?;
            rdma_destroy_qp(id);
            rdma_destroy_srq(id);
            destroy(id)
        }
    });
}

/// `rdma_get_request`.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(export_name = "ethernot_rdma_get_request")]
pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    number("rdma_get_request", || {
        // SAFETY: guaranteed by the caller.
        let ours = unsafe { ours(listener)? };
        if !ours.is_synchronous() || id.is_null() {
            return invalid(
                "rdma_get_request needs an id without an event channel, and a pointer for the new id",
            );
        }
        // SAFETY: guaranteed by the caller.
        unsafe { release_event(listener) };
        // SAFETY: guaranteed by the caller.
        let event = unsafe { events::take((*listener).channel) }?;
        // SAFETY: created just above.
        let (kind, status, asked) = unsafe { ((*event).event, (*event).status, (*event).id) };
        if kind != CONNECT_REQUEST || status != 0 || asked.is_null() {
            // SAFETY: created just above.
            unsafe { events::acknowledge(event) };
            let number = if status == 0 { libc::EINVAL } else { status.abs() };
            return Err(Error::System { what: "waiting for a connection request".into(), number });
        }
        let pair = ours.own().pair;
        // SAFETY: the id was created just above; the caller guarantees the listener.
        let set_up = unsafe { take_over(listener, asked, pair) };
        if let Err(error) = set_up {
            // SAFETY: no other thread knows the addresses.
            unsafe {
                events::acknowledge(event);
                let _ = destroy(asked);
            }
            return Err(error);
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            (*asked).event = event;
            *id = asked;
        }
        Ok(0)
    })
}

/// Moves the id of a request to a channel of its own, and creates its queue pair with the
/// attributes given for the listener.
unsafe fn take_over(
    listener: *mut rdma_cm_id,
    asked: *mut rdma_cm_id,
    pair: Option<ibv_qp_init_attr>,
) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { migrate(asked, ptr::null_mut()) }?;
    let Some(mut init) = pair else { return Ok(()) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        init.qp_type = (*asked).qp_type;
        pairs::create(asked, (*listener).pd, &raw mut init)
    }
}
