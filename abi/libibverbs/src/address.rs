//! Address handles, and membership of queue pairs in multicast groups.

use std::ffi::c_int;
use std::sync::Arc;

use verbs::{AddressHandle, AddressVectorAttributes, Error, Gid, answer_to};

use crate::completion::completion_of;
use crate::device::of;
use crate::failure::{code, invalid, number, pointer};
use crate::layout::{
    Aligned, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_qp,
    ibv_wc,
};
use crate::memory::{domain, handle};
use crate::{port, shell};

/// The library's state of an address handle.
pub(crate) struct Address {
    pub(crate) handle: Arc<AddressHandle>,
}

/// Implements `ibv_create_ah`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_ah")]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attributes: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    pointer("ibv_create_ah", || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(attributes) = (unsafe { attributes.as_ref() }) else {
            return invalid("there is no address");
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(pd, &of_c(attributes)) }
    })
}

/// Implements `ibv_create_ah_from_wc`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_ah_from_wc")]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer("ibv_create_ah_from_wc", || {
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { domain(pd) }?.protects.context();
        // SAFETY: the caller meets the requirements of this function.
        let attributes = unsafe { answer(context, port, wc, grh) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(pd, &attributes) }
    })
}

/// Implements `ibv_init_ah_from_wc`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_init_ah_from_wc")]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    into: *mut ibv_ah_attr,
) -> c_int {
    number("ibv_init_ah_from_wc", || {
        // SAFETY: the caller meets the requirements of this function.
        let attributes = unsafe { answer(of(context)?, port, wc, grh) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { port::write(into, &to_c(&attributes), size_of::<ibv_ah_attr>()) }.map(|()| 0)
    })
}

/// Implements `ibv_destroy_ah`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_destroy_ah")]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code("ibv_destroy_ah", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Address::ours(ah, "address handle") }?.handle.destroy()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Address::free(ah) };
        Ok(())
    })
}

/// Implements `ibv_attach_mcast`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_attach_mcast")]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    code("ibv_attach_mcast", || unsafe { set_membership(qp, gid, true) })
}

/// Implements `ibv_detach_mcast`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_detach_mcast")]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    code("ibv_detach_mcast", || unsafe { set_membership(qp, gid, false) })
}

unsafe fn set_membership(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    is_member: bool,
) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let Some(gid) = (unsafe { gid.as_ref() }) else { return invalid("there is no group") };
    // SAFETY: the caller meets the requirements of this function.
    unsafe { shell::pair(qp) }?.pair.set_membership(Gid(*gid), is_member)
}

unsafe fn create(pd: *mut ibv_pd, to: &AddressVectorAttributes) -> Result<*mut ibv_ah, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let made = unsafe { domain(pd) }?.protects.create_address_handle(to)?;
    // SAFETY: the caller meets the requirements of this function.
    let context = unsafe { (*pd).context };
    Ok(shell::Address::make(ibv_ah { context, pd, handle: handle() }, Address { handle: made }))
}

/// Returns the path for an answer to a received datagram. `wc` is the datagram's completion, and
/// `grh` is its route header.
unsafe fn answer(
    context: &verbs::Context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<AddressVectorAttributes, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let Some(wc) = (unsafe { wc.as_ref() }) else { return invalid("there is no completion") };
    if grh.is_null() {
        return invalid("there is no route header");
    }
    // SAFETY: the caller meets the requirements of this function. The header may be unaligned, and
    // this read needs no alignment.
    let header = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    answer_to(context, port, &completion_of(wc), &header)
}

/// Converts a path from its C structure.
pub(crate) fn of_c(c: &ibv_ah_attr) -> AddressVectorAttributes {
    AddressVectorAttributes {
        gid: Gid(c.grh.dgid.0),
        source_index: c.grh.sgid_index,
        flow_label: c.grh.flow_label,
        hop_limit: c.grh.hop_limit,
        traffic_class: c.grh.traffic_class,
        lid: c.dlid,
        service_level: c.sl,
        source_path_bits: c.src_path_bits,
        rate: c.static_rate,
        is_global: c.is_global != 0,
        port: c.port_num,
    }
}

/// Converts a path to its C structure.
pub(crate) fn to_c(path: &AddressVectorAttributes) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: Aligned(path.gid.0),
            flow_label: path.flow_label,
            sgid_index: path.source_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.lid,
        sl: path.service_level,
        src_path_bits: path.source_path_bits,
        static_rate: path.rate,
        is_global: u8::from(path.is_global),
        port_num: path.port,
    }
}
