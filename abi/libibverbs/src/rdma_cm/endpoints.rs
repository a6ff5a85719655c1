//! Ids with which calls block until their event has arrived. Programs create such ids from the
//! result of [`rdma_getaddrinfo`](super::resolution).

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

/// Implements `rdma_create_ep`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_ep")]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_ep", || {
        // SAFETY: the caller meets the requirements of this function.
        let (Some(found), false) = (unsafe { found.as_ref() }, id.is_null()) else {
            return invalid("the address information or the pointer for the id is null");
        };
        let service = (found.ai_qp_type != 0).then_some(found.ai_qp_type);
        // SAFETY: the caller meets the requirements of this function.
        let made =
            unsafe { create(ptr::null_mut(), ptr::null_mut(), found.ai_port_space, service) }?;
        // SAFETY: the caller meets the requirements of this function.
        if let Err(error) = unsafe { set_up(made, found, domain, init) } {
            // SAFETY: no other thread has the address of the id.
            let _ = unsafe { destroy(made) };
            return Err(error);
        }
        // SAFETY: the caller meets the requirements of this function.
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
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id)? };
    // SAFETY: the caller meets the requirements of this function.
    let init = unsafe { init.as_mut() };
    if found.ai_flags & PASSIVE != 0 {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours.id.bind(needed(found.ai_src_addr)?)?;
            refresh(id)?;
        }
        if let Some(init) = init {
            ours.own().pair = Some(*init);
        }
        if !domain.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { (*id).pd = domain };
        }
        return Ok(());
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        ours.id.resolve_address(of_c(found.ai_src_addr)?, needed(found.ai_dst_addr)?)?;
        complete(id)?;
        ours.id.resolve_route()?;
        complete(id)?;
    }
    let Some(init) = init else { return Ok(()) };
    // SAFETY: the caller meets the requirements of this function.
    init.qp_type = unsafe { (*id).qp_type };
    // SAFETY: the caller meets the requirements of this function.
    unsafe { pairs::create(id, domain, init) }
}

/// Implements `rdma_destroy_ep`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_destroy_ep")]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    silent("rdma_destroy_ep", (), || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?;
            rdma_destroy_qp(id);
            rdma_destroy_srq(id);
            destroy(id)
        }
    });
}

/// Implements `rdma_get_request`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_get_request")]
pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    number("rdma_get_request", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { ours(listener)? };
        if !ours.is_synchronous() || id.is_null() {
            return invalid(
                "rdma_get_request needs an id without an event channel, and a pointer for the new id",
            );
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { release_event(listener) };
        // SAFETY: the caller meets the requirements of this function.
        let event = unsafe { events::take((*listener).channel) }?;
        // SAFETY: `take` created the event just above.
        let (kind, status, asked) = unsafe { ((*event).event, (*event).status, (*event).id) };
        if kind != CONNECT_REQUEST || status != 0 || asked.is_null() {
            // SAFETY: `take` created the event just above.
            unsafe { events::acknowledge(event) };
            let number = if status == 0 { libc::EINVAL } else { status.abs() };
            return Err(Error::System { what: "waiting for a connection request".into(), number });
        }
        let pair = ours.own().pair;
        // SAFETY: `take` created the id just above; the caller guarantees the listener.
        let set_up = unsafe { take_over(listener, asked, pair) };
        if let Err(error) = set_up {
            // SAFETY: no other thread has the addresses of the event and the id.
            unsafe {
                events::acknowledge(event);
                let _ = destroy(asked);
            }
            return Err(error);
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            (*asked).event = event;
            *id = asked;
        }
        Ok(0)
    })
}

/// Moves the id of a request to a channel of its own. If the program has passed attributes for
/// queue pairs with the listener, creates the queue pair of the id.
unsafe fn take_over(
    listener: *mut rdma_cm_id,
    asked: *mut rdma_cm_id,
    pair: Option<ibv_qp_init_attr>,
) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { migrate(asked, ptr::null_mut()) }?;
    let Some(mut init) = pair else { return Ok(()) };
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        init.qp_type = (*asked).qp_type;
        pairs::create(asked, (*listener).pd, &raw mut init)
    }
}
