//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{Error, ReceiveRequest, SharedReceiveQueue};

use crate::failure::{code, invalid, pointer, unsupported};
use crate::layout::{
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use crate::memory::{domain, handle};
use crate::post::{each, pieces};
use crate::{port, shell};

/// The library's state of a shared receive queue.
pub(crate) struct Shared {
    pub(crate) queue: Arc<SharedReceiveQueue>,
}

/// Implements `ibv_create_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_srq")]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    pointer("ibv_create_srq", || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_mut() }) else {
            return invalid("the attributes are null");
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(pd, init.srq_context, &mut init.attr) }
    })
}

/// Implements `ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer("ibv_create_srq_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { crate::device::of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_mut() }) else {
            return invalid("the attributes are null");
        };
        let is_basic = init.comp_mask & INIT_TYPE == 0 || init.srq_type == TYPE_BASIC;
        if !is_basic || init.comp_mask & !(INIT_TYPE | INIT_DOMAIN) != 0 {
            return unsupported("such a shared receive queue");
        }
        if init.comp_mask & INIT_DOMAIN == 0 {
            return invalid("a shared receive queue needs a protection domain");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { create(init.pd, init.srq_context, &mut init.attr) }
    })
}

unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut std::ffi::c_void,
    attributes: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let domain = &unsafe { domain(pd) }?.protects;
    let queue = domain.create_shared_queue(attributes.max_wr, attributes.max_sge)?;
    let found = queue.query()?;
    (attributes.max_wr, attributes.max_sge) = (found.receives, found.pieces);
    let c = ibv_srq {
        // SAFETY: the caller meets the requirements of this function.
        context: unsafe { (*pd).context },
        srq_context,
        pd,
        handle: handle(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let made = shell::Shared::make(c, Shared { queue: Arc::clone(&queue) });
    queue.user.store(made.expose_provenance(), Ordering::Release);
    Ok(made)
}

/// Implements `ibv_modify_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_modify_srq")]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    code("ibv_modify_srq", || {
        // SAFETY: the caller meets the requirements of this function.
        let queue = &unsafe { shell::Shared::ours(srq, "shared receive queue") }?.queue;
        // SAFETY: the caller meets the requirements of this function.
        let Some(attributes) = (unsafe { attributes.as_ref() }) else {
            return invalid("there are no attributes");
        };
        if mask & !(MASK_SIZE | MASK_LIMIT) != 0 {
            return invalid("unknown attributes of a shared receive queue");
        }
        if mask & MASK_SIZE != 0 && attributes.max_wr != queue.query()?.receives {
            return unsupported("resizing a shared receive queue");
        }
        if mask & MASK_LIMIT != 0 { queue.set_limit(attributes.srq_limit) } else { Ok(()) }
    })
}

/// Implements `ibv_query_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_srq")]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, into: *mut ibv_srq_attr) -> c_int {
    code("ibv_query_srq", || {
        // SAFETY: the caller meets the requirements of this function.
        let found = unsafe { shell::Shared::ours(srq, "shared receive queue") }?.queue.query()?;
        let c =
            ibv_srq_attr { max_wr: found.receives, max_sge: found.pieces, srq_limit: found.limit };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { port::write(into, &c, size_of::<ibv_srq_attr>()) }
    })
}

/// Implements `ibv_destroy_srq`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_destroy_srq")]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    code("ibv_destroy_srq", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Shared::ours(srq, "shared receive queue") }?.queue.destroy()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Shared::free(srq) };
        Ok(())
    })
}

/// Implements `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    code("ibv_post_srq_recv", || {
        // SAFETY: the caller meets the requirements of this function.
        let queue = &unsafe { shell::Shared::ours(srq, "shared receive queue") }?.queue;
        let post = |request: &ibv_recv_wr| {
            // SAFETY: the caller meets the requirements of this function.
            let pieces = unsafe { pieces(request.sg_list, request.num_sge) }?;
            let request = ReceiveRequest { id: request.wr_id, pieces };
            queue.post(&[request]).map_err(|(_, error)| error)
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { each(first, refused, |request| request.next, post) }
    })
}

/// Values of `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`.
const MASK_SIZE: c_int = 1;
const MASK_LIMIT: c_int = 2;

/// Values of `IBV_SRQ_INIT_ATTR_TYPE` and `..._PD`.
const INIT_TYPE: u32 = 1;
const INIT_DOMAIN: u32 = 2;

/// Value of `IBV_SRQT_BASIC`.
const TYPE_BASIC: c_int = 0;
