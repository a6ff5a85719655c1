//! Queue pairs and shared receive queues of ids.

use std::ffi::{c_int, c_void};
use std::ptr;

use verbs::{Error, QueuePairState};

use super::events::STATE_SENDING;
use super::ids::{TYPE_DATAGRAM, ours};
use super::layout::rdma_cm_id;
use crate::address::to_c;
use crate::completion::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::failure::{invalid, number, silent, unsupported};
use crate::layout::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_srq_init_attr,
};
use crate::pair::{create_qp_ex, ibv_create_qp, ibv_destroy_qp, state_of};
use crate::port::mtu_code;
use crate::shared::{ibv_create_srq, ibv_destroy_srq};
use crate::shell;

/// Implements `rdma_create_qp`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_qp")]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_qp", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(id, domain, init) }?;
        Ok(0)
    })
}

/// Creates the queue pair of an id. If the program passes no completion queue for sends or
/// receives, creates this queue too.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `rdma_create_qp`.
pub(super) unsafe fn create(
    id: *mut rdma_cm_id,
    domain: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { ours(id)? };
    // SAFETY: the caller meets the requirements of this function.
    let Some(init) = (unsafe { init.as_mut() }) else { return invalid("the attributes are null") };
    // SAFETY: the caller meets the requirements of this function.
    let domain = unsafe { domain_of(id, domain) }?;
    let mut filled = *init;
    let make = |filled: &mut ibv_qp_init_attr| {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ibv_create_qp(domain, filled) }
    };
    // SAFETY: the caller meets the requirements of this function.
    unsafe { create_with(id, &mut filled, make) }?;
    init.cap = filled.cap;
    // SAFETY: the caller meets the requirements of this function.
    unsafe { (*id).pd = domain };
    Ok(())
}

/// Implements `rdma_create_qp_ex`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_qp_ex")]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr_ex,
) -> c_int {
    number("rdma_create_qp_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)? };
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_mut() }) else {
            return invalid("the attributes are null");
        };
        let said = if init.comp_mask & INIT_DOMAIN == 0 { ptr::null_mut() } else { init.pd };
        // SAFETY: the caller meets the requirements of this function.
        let domain = unsafe { domain_of(id, said) }?;
        init.pd = domain;
        init.comp_mask |= INIT_DOMAIN;
        let mut filled = init.plain();
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { (*id).verbs };
        let make = |filled: &mut ibv_qp_init_attr| {
            (init.send_cq, init.recv_cq, init.srq) = (filled.send_cq, filled.recv_cq, filled.srq);
            // SAFETY: the caller meets the requirements of this function.
            unsafe { create_qp_ex(context, init) }
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create_with(id, &mut filled, make) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { (*id).pd = domain };
        Ok(0)
    })
}

/// Returns the protection domain that the program passes. If the program passes none, returns the
/// id's protection domain.
unsafe fn domain_of(id: *mut rdma_cm_id, domain: *mut ibv_pd) -> Result<*mut ibv_pd, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let (own, context) = unsafe { ((*id).pd, (*id).verbs) };
    let domain = if domain.is_null() { own } else { domain };
    if context.is_null() || domain.is_null() {
        return invalid("the id has no device yet");
    }
    // SAFETY: the caller meets the requirements of this function.
    if unsafe { (*domain).context } != context {
        return invalid("the protection domain belongs to another context than the id");
    }
    Ok(domain)
}

unsafe fn create_with(
    id: *mut rdma_cm_id,
    init: &mut ibv_qp_init_attr,
    make: impl FnOnce(&mut ibv_qp_init_attr) -> *mut ibv_qp,
) -> Result<(), Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id)? };
    // SAFETY: the caller meets the requirements of this function.
    let c = unsafe { &mut *id };
    if !c.qp.is_null() || init.qp_type != c.qp_type {
        return invalid("the id has a queue pair already, or is for another type of queue pair");
    }
    let differ = |own: *mut ibv_cq, said: *mut ibv_cq| {
        !own.is_null() && !said.is_null() && !ptr::eq(own, said)
    };
    if differ(c.recv_cq, init.recv_cq) || differ(c.send_cq, init.send_cq) {
        return invalid("the id has other completion queues");
    }
    if init.srq.is_null() {
        init.srq = c.srq;
    }
    for (is_send, entries) in [(true, init.cap.max_send_wr), (false, init.cap.max_recv_wr)] {
        let said = if is_send { &mut init.send_cq } else { &mut init.recv_cq };
        let own = if is_send { c.send_cq } else { c.recv_cq };
        if said.is_null() {
            *said = own;
        }
        if said.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            *said = unsafe { make_queue(id, is_send, entries) }?;
        }
    }
    let (send_queue, receive_queue) = (init.send_cq, init.recv_cq);
    let made = make(init);
    if made.is_null() {
        let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // SAFETY: the caller meets the requirements of this function.
        unsafe { destroy_queues(id) };
        return Err(Error::System { what: "creating the queue pair".into(), number });
    }
    // SAFETY: the queue pair was created just above.
    let pair = &unsafe { shell::pair(made) }?.pair;
    if let Err(error) = ours.id.take_queue_pair(pair) {
        // SAFETY: no other thread has the address of the queue pair.
        unsafe {
            ibv_destroy_qp(made);
            destroy_queues(id);
        }
        return Err(error);
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        (*made).state = if (*made).qp_type == TYPE_DATAGRAM { STATE_SENDING } else { STATE_INIT };
        (*id).qp = made;
        // Do not store the program's shared receive queue in the id. The library destroys a queue
        // that is stored in the id, but this queue belongs to the program.
        ((*id).send_cq, (*id).recv_cq) = (send_queue, receive_queue);
    }
    Ok(())
}

/// Creates a completion queue for the id, with a completion channel of its own.
unsafe fn make_queue(
    id: *mut rdma_cm_id,
    is_send: bool,
    entries: u32,
) -> Result<*mut ibv_cq, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let ours = unsafe { ours(id)? };
    // SAFETY: the caller meets the requirements of this function.
    let c = unsafe { &mut *id };
    // SAFETY: the device of an id stays open.
    let channel: *mut ibv_comp_channel = unsafe { ibv_create_comp_channel(c.verbs) };
    let failed = || {
        let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Error::System { what: "creating a completion queue".into(), number }
    };
    if channel.is_null() {
        return Err(failed());
    }
    let entries = c_int::try_from(entries.max(1)).unwrap_or(c_int::MAX);
    // SAFETY: the channel was created just above.
    let queue = unsafe { ibv_create_cq(c.verbs, entries, id.cast::<c_void>(), channel, 0) };
    if queue.is_null() {
        let error = failed();
        // SAFETY: no other thread has the address of the channel.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(error);
    }
    let mut own = ours.own();
    if is_send {
        (c.send_cq, c.send_cq_channel, own.has_send_queue) = (queue, channel, true);
    } else {
        (c.recv_cq, c.recv_cq_channel, own.has_receive_queue) = (queue, channel, true);
    }
    Ok(queue)
}

/// Removes the completion queues from the id. Destroys those that the library has created, but not
/// those of the program.
unsafe fn destroy_queues(id: *mut rdma_cm_id) {
    // SAFETY: the caller meets the requirements of this function.
    let Ok(ours) = (unsafe { ours(id) }) else { return };
    // SAFETY: the caller meets the requirements of this function.
    let c = unsafe { &mut *id };
    let mut own = ours.own();
    let is_own = std::mem::take(&mut own.has_send_queue);
    // SAFETY: if the queue is the id's own, `make_queue` created it.
    unsafe { destroy_queue(is_own, &mut c.send_cq, &mut c.send_cq_channel) };
    let is_own = std::mem::take(&mut own.has_receive_queue);
    // SAFETY: if the queue is the id's own, `make_queue` created it.
    unsafe { destroy_queue(is_own, &mut c.recv_cq, &mut c.recv_cq_channel) };
}

unsafe fn destroy_queue(
    is_own: bool,
    queue: &mut *mut ibv_cq,
    channel: &mut *mut ibv_comp_channel,
) {
    let (queue, channel) =
        (std::mem::replace(queue, ptr::null_mut()), std::mem::replace(channel, ptr::null_mut()));
    if is_own {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ibv_destroy_cq(queue);
            ibv_destroy_comp_channel(channel);
        }
    }
}

/// Implements `rdma_destroy_qp`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_destroy_qp")]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    silent("rdma_destroy_qp", (), || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { ours(id)? };
        // SAFETY: the caller meets the requirements of this function.
        let pair = unsafe { std::mem::replace(&mut (*id).qp, ptr::null_mut()) };
        if pair.is_null() {
            return Ok(());
        }
        ours.id.release_queue_pair();
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ibv_destroy_qp(pair);
            destroy_queues(id);
        }
        Ok(())
    });
}

/// Implements `rdma_create_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_srq")]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    domain: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    number("rdma_create_srq", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)? };
        // SAFETY: the caller meets the requirements of this function.
        if unsafe { !(*id).srq.is_null() } {
            return invalid("the id has a shared receive queue already");
        }
        // SAFETY: the caller meets the requirements of this function.
        let domain = unsafe { domain_of(id, domain) }?;
        // SAFETY: the caller meets the requirements of this function.
        let made = unsafe { ibv_create_srq(domain, init) };
        if made.is_null() {
            let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            return Err(Error::System { what: "creating a shared receive queue".into(), number });
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            (*id).srq = made;
            (*id).pd = domain;
        }
        Ok(0)
    })
}

/// Implements `rdma_create_srq_ex`. Supports only the attributes that [`rdma_create_srq`] has.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_create_srq_ex")]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    init: *mut crate::layout::ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    let Some(said) = (unsafe { init.as_ref() }) else {
        return number("rdma_create_srq_ex", || invalid("the attributes are null"));
    };
    if said.comp_mask & SRQ_TYPE != 0 && said.srq_type != SRQ_BASIC {
        return number("rdma_create_srq_ex", || unsupported("such shared receive queues"));
    }
    let domain = if said.comp_mask & SRQ_DOMAIN == 0 { ptr::null_mut() } else { said.pd };
    // SAFETY: the extended structure starts with the fields of the plain one.
    unsafe { rdma_create_srq(id, domain, init.cast()) }
}

/// Implements `rdma_destroy_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_destroy_srq")]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    silent("rdma_destroy_srq", (), || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)? };
        // SAFETY: the caller meets the requirements of this function.
        let shared = unsafe { std::mem::replace(&mut (*id).srq, ptr::null_mut()) };
        if !shared.is_null() {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { ibv_destroy_srq(shared) };
        }
        Ok(())
    });
}

/// Implements `rdma_init_qp_attr`. Returns the attributes for a queue pair that the program
/// connects itself.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_init_qp_attr")]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    number("rdma_init_qp_attr", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { ours(id)? };
        // SAFETY: the caller meets the requirements of this function.
        let (Some(c), false) = (unsafe { attributes.as_mut() }, mask.is_null()) else {
            return invalid("the pointer for the attributes or the mask is null");
        };
        let Some(to) = state_of(c.qp_state) else { return invalid("no such state") };
        let change = ours.id.modification(to)?;
        let said = &change.attributes;
        c.path_mtu = mtu_code(said.path_mtu);
        c.qkey = said.queue_key;
        c.rq_psn = said.receive_psn;
        c.sq_psn = said.send_psn;
        c.dest_qp_num = said.destination;
        c.qp_access_flags = said.access;
        c.ah_attr = to_c(&said.path);
        c.pkey_index = said.partition_key_index;
        c.max_rd_atomic = said.reads_max;
        c.max_dest_rd_atomic = said.peer_reads_max;
        c.min_rnr_timer = said.not_ready_timer;
        c.port_num = if to == QueuePairState::Init { said.port } else { 1 };
        c.timeout = said.timeout;
        c.retry_cnt = said.retries;
        c.rnr_retry = said.not_ready_retries;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { *mask = change.mask.0.cast_signed() };
        Ok(0)
    })
}

/// Value of `IBV_QPS_INIT`.
const STATE_INIT: c_int = 1;

/// Value of `IBV_QP_INIT_ATTR_PD`.
const INIT_DOMAIN: u32 = 1;

/// Values of `IBV_SRQ_INIT_ATTR_TYPE` and `..._PD`, and `IBV_SRQT_BASIC`.
const SRQ_TYPE: u32 = 1;
const SRQ_DOMAIN: u32 = 1 << 1;
const SRQ_BASIC: c_int = 0;
