//! Ids for programs that wait for everything: made of what [`rdma_getaddrinfo`](super::resolution) has found.

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
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_create_ep")]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_ep", || {
        // SAFETY: as the caller says.
        let (Some(found), false) = (unsafe { found.as_ref() }, id.is_null()) else {
            return invalid("there is nothing found, or no place for the id");
        };
        let service = (found.ai_qp_type != 0).then_some(found.ai_qp_type);
        // SAFETY: as the caller says.
        let made =
            unsafe { create(ptr::null_mut(), ptr::null_mut(), found.ai_port_space, service) }?;
        // SAFETY: as the caller says.
        if let Err(error) = unsafe { set_up(made, found, domain, init) } {
            // SAFETY: no other thread has its address.
            let _ = unsafe { destroy(made) };
            return Err(error);
        }
        // SAFETY: as the caller says.
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
    // SAFETY: as the caller says.
    let ours = unsafe { ours(id)? };
    // SAFETY: as the caller says.
    let init = unsafe { init.as_mut() };
    if found.ai_flags & PASSIVE != 0 {
        // SAFETY: as the caller says.
        unsafe {
            ours.id.bind(needed(found.ai_src_addr)?)?;
            refresh(id)?;
        }
        if let Some(init) = init {
            ours.own().pair = Some(*init);
        }
        if !domain.is_null() {
            // SAFETY: as the caller says.
            unsafe { (*id).pd = domain };
        }
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe {
        ours.id.resolve_address(of_c(found.ai_src_addr)?, needed(found.ai_dst_addr)?)?;
        complete(id)?;
        ours.id.resolve_route()?;
        complete(id)?;
    }
    let Some(init) = init else { return Ok(()) };
    // SAFETY: as the caller says.
    init.qp_type = unsafe { (*id).qp_type };
    // SAFETY: as the caller says.
    unsafe { pairs::create(id, domain, init) }
}

/// `rdma_destroy_ep`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_destroy_ep")]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    silent("rdma_destroy_ep", (), || {
        // SAFETY: as the caller says.
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
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_get_request")]
pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    number("rdma_get_request", || {
        // SAFETY: as the caller says.
        let ours = unsafe { ours(listener)? };
        if !ours.is_synchronous() || id.is_null() {
            return invalid("requests are taken so by ids without a channel");
        }
        // SAFETY: as the caller says.
        unsafe { release_event(listener) };
        // SAFETY: as the caller says.
        let event = unsafe { events::take((*listener).channel) }?;
        // SAFETY: it was just made.
        let (kind, status, asked) = unsafe { ((*event).event, (*event).status, (*event).id) };
        if kind != CONNECT_REQUEST || status != 0 || asked.is_null() {
            // SAFETY: it was just made.
            unsafe { events::acknowledge(event) };
            let number = if status == 0 { libc::EINVAL } else { status.abs() };
            return Err(Error::System { what: "waiting for a request".into(), number });
        }
        let pair = ours.own().pair;
        // SAFETY: the id was just made; that which listens is as the caller says.
        let set_up = unsafe { take_over(listener, asked, pair) };
        if let Err(error) = set_up {
            // SAFETY: no other thread has their addresses.
            unsafe {
                events::acknowledge(event);
                let _ = destroy(asked);
            }
            return Err(error);
        }
        // SAFETY: as the caller says.
        unsafe {
            (*asked).event = event;
            *id = asked;
        }
        Ok(0)
    })
}

/// Makes the id of a request one whose program waits, and its queue pair as that of the listening id.
unsafe fn take_over(
    listener: *mut rdma_cm_id,
    asked: *mut rdma_cm_id,
    pair: Option<ibv_qp_init_attr>,
) -> Result<(), Error> {
    // SAFETY: as the caller says.
    unsafe { migrate(asked, ptr::null_mut()) }?;
    let Some(mut init) = pair else { return Ok(()) };
    // SAFETY: as the caller says.
    unsafe {
        init.qp_type = (*asked).qp_type;
        pairs::create(asked, (*listener).pd, &raw mut init)
    }
}
