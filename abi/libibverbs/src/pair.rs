//! Queue pairs.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{
    AttributeMask, DeviceAttributes, Error, Modification, QueuePair, QueuePairAttributes,
    QueuePairInit, QueuePairLimits, QueuePairState, QueuePairType,
};

use crate::address::{of_c, to_c};
use crate::builder::Builder;
use crate::failure::{code, invalid, pointer, unsupported};
use crate::layout::{
    ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq,
};
use crate::memory::{domain, handle};
use crate::{builder, port, shell};

/// The library's state of a queue pair.
pub(crate) struct Pair {
    pub(crate) pair: Arc<QueuePair>,
    /// The state for building work requests with `ibv_wr_start`. `None` if the program did not ask
    /// for this when it created the queue pair.
    pub(crate) builder: Option<Builder>,
}

/// Implements `ibv_create_qp`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_create_qp")]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    pointer("ibv_create_qp", || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_mut() }) else {
            return invalid("the attributes are null");
        };
        // SAFETY: the caller meets the requirements of this function.
        let made = unsafe { create(pd, init, None) }?;
        // SAFETY: created just above.
        init.cap = unsafe { capabilities(made) }?;
        Ok(made)
    })
}

/// Implements `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer("ibv_create_qp_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        let device = unsafe { crate::device::of(context) }?.device().attributes();
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_mut() }) else {
            return invalid("the attributes are null");
        };
        if init.comp_mask & !(INIT_DOMAIN | INIT_FLAGS | INIT_SEND_OPERATIONS) != 0 {
            return unsupported("such attributes of a queue pair");
        }
        if init.comp_mask & INIT_DOMAIN == 0 {
            return invalid("a queue pair needs a protection domain");
        }
        if init.comp_mask & INIT_FLAGS != 0 && init.create_flags != 0 {
            return unsupported("such flags of a queue pair");
        }
        let plain = init.plain();
        let is_built = init.comp_mask & INIT_SEND_OPERATIONS != 0;
        let operations = is_built.then_some((device, init.send_ops_flags));
        // SAFETY: the caller meets the requirements of this function.
        let made = unsafe { create(init.pd, &plain, operations) }?;
        // SAFETY: created just above.
        init.cap = unsafe { capabilities(made) }?;
        Ok(made)
    })
}

/// Implements `ibv_qp_to_qp_ex`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_qp_to_qp_ex")]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller meets the requirements of this function.
    match unsafe { shell::pair(qp) } {
        Ok(Pair { builder: Some(_), .. }) => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// Implements `ibv_modify_qp`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_modify_qp")]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    code("ibv_modify_qp", || {
        // SAFETY: the caller meets the requirements of this function.
        let pair = &unsafe { shell::pair(qp) }?.pair;
        if attributes.is_null() {
            return invalid("there are no attributes");
        }
        let mask = AttributeMask(mask.cast_unsigned());
        // SAFETY: the caller meets the requirements of this function.
        pair.modify(&unsafe { modification(mask, attributes) }?)?;
        if mask.contains(AttributeMask::STATE) {
            // SAFETY: the caller meets the requirements of this function. Only one thread at a time
            // may change a queue pair.
            unsafe { (*qp).state = (*attributes).qp_state };
        }
        Ok(())
    })
}

/// Implements `ibv_query_qp`. Returns all attributes and ignores the mask.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_qp")]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code("ibv_query_qp", || {
        // SAFETY: the caller meets the requirements of this function.
        let found = unsafe { shell::pair(qp) }?.pair.query()?;
        let cap = c_limits(&found.limits);
        let state = state_code(found.state);
        let said = &found.attributes;
        let path = to_c(&said.path);
        let c = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: port::mtu_code(said.path_mtu),
            path_mig_state: 0,
            qkey: said.queue_key,
            rq_psn: said.receive_psn,
            sq_psn: said.send_psn,
            dest_qp_num: said.destination,
            qp_access_flags: said.access,
            cap,
            ah_attr: path,
            alt_ah_attr: to_c(&verbs::AddressVectorAttributes::default()),
            pkey_index: said.partition_key_index,
            alt_pkey_index: 0,
            en_sqd_async_notify: 0,
            sq_draining: u8::from(found.is_draining),
            max_rd_atomic: said.reads_max,
            max_dest_rd_atomic: said.peer_reads_max,
            min_rnr_timer: said.not_ready_timer,
            port_num: said.port,
            timeout: said.timeout,
            retry_cnt: said.retries,
            rnr_retry: said.not_ready_retries,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { port::write(attributes, &c, size_of::<ibv_qp_attr>()) }?;
        // SAFETY: the caller meets the requirements of this function.
        let pair = unsafe { &mut *qp };
        pair.state = state;
        let c = ibv_qp_init_attr {
            qp_context: pair.qp_context,
            send_cq: pair.send_cq,
            recv_cq: pair.recv_cq,
            srq: pair.srq,
            cap,
            qp_type: pair.qp_type,
            sq_sig_all: c_int::from(found.signals_all),
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { port::write(init, &c, size_of::<ibv_qp_init_attr>()) }
    })
}

/// Implements `ibv_destroy_qp`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_destroy_qp")]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code("ibv_destroy_qp", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::pair(qp) }?.pair.destroy()?;
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::Pair::free(qp.cast()) };
        Ok(())
    })
}

/// Creates a queue pair.
///
/// If the program builds work requests with `ibv_wr_start`, `operations` has the operations that it
/// wants for this (bits of `ibv_qp_create_send_ops_flags`), and the attributes of the device.
///
/// # Safety
/// The arguments must meet the requirements of the manual page of `ibv_create_qp`.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    operations: Option<(&DeviceAttributes, u64)>,
) -> Result<*mut ibv_qp, Error> {
    let service = match init.qp_type {
        TYPE_RELIABLE => QueuePairType::Reliable,
        TYPE_UNRELIABLE => QueuePairType::Unreliable,
        TYPE_DATAGRAM => QueuePairType::Datagram,
        _ => return unsupported("queue pair types other than RC, UC and UD"),
    };
    if let Some((device, wanted)) = operations {
        builder::check_operations(device, service, wanted)?;
    }
    // SAFETY: the caller meets the requirements of this function.
    let wanted = unsafe { init_of(service, init) }?;
    // SAFETY: the caller meets the requirements of this function.
    let pair = unsafe { domain(pd) }?.protects.create_queue_pair(&wanted)?;
    let builder = operations.map(|_| Builder::default());
    // SAFETY: the caller meets the requirements of this function.
    let context = unsafe { (*pd).context };
    let base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: handle(),
        qp_num: pair.number(),
        state: state_code(QueuePairState::Reset),
        qp_type: init.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let c = builder::structure(base, operations.map_or(0, |(_, wanted)| wanted));
    let made = shell::Pair::make(c, Pair { pair: Arc::clone(&pair), builder }).cast::<ibv_qp>();
    pair.user.store(made.expose_provenance(), Ordering::Release);
    Ok(made)
}

unsafe fn init_of(service: QueuePairType, init: &ibv_qp_init_attr) -> Result<QueuePairInit, Error> {
    let queue = |queue: *mut ibv_cq| {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::completions(queue) }.map(|ours| Arc::clone(&ours.queue))
    };
    let shared = |srq: *mut ibv_srq| {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { shell::Shared::ours(srq, "shared receive queue") }
            .map(|ours| Arc::clone(&ours.queue))
    };
    Ok(QueuePairInit {
        service,
        send_queue: queue(init.send_cq)?,
        receive_queue: queue(init.recv_cq)?,
        shared_queue: if init.srq.is_null() { None } else { Some(shared(init.srq)?) },
        limits: QueuePairLimits {
            sends: init.cap.max_send_wr,
            receives: init.cap.max_recv_wr,
            send_pieces: init.cap.max_send_sge,
            receive_pieces: init.cap.max_recv_sge,
            inline: init.cap.max_inline_data,
        },
        signals_all: init.sq_sig_all != 0,
    })
}

/// Returns the actual sizes of a queue pair.
unsafe fn capabilities(qp: *mut ibv_qp) -> Result<ibv_qp_cap, Error> {
    // SAFETY: the caller meets the requirements of this function.
    Ok(c_limits(&unsafe { shell::pair(qp) }?.pair.limits()))
}

fn c_limits(limits: &QueuePairLimits) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: limits.sends,
        max_recv_wr: limits.receives,
        max_send_sge: limits.send_pieces,
        max_recv_sge: limits.receive_pieces,
        max_inline_data: limits.inline,
    }
}

/// Converts a change of attributes. Reads only the fields that the mask names, because programs
/// leave the other fields uninitialised.
///
/// # Safety
/// `c` must point to attributes. The fields that the mask names must be initialised.
unsafe fn modification(mask: AttributeMask, c: *const ibv_qp_attr) -> Result<Modification, Error> {
    macro_rules! said {
        ($bit:ident: $field:ident) => {
            if mask.contains(AttributeMask::$bit) {
                // SAFETY: the caller meets the requirements of this function.
                Some(unsafe { (&raw const (*c).$field).read() })
            } else {
                None
            }
        };
    }
    let state = |code: Option<c_int>| match code.map(state_of) {
        Some(Some(state)) => Ok(state),
        Some(None) => invalid("no such state"),
        None => Ok(QueuePairState::Reset),
    };
    let path_mtu = match said!(PATH_MTU: path_mtu).map(port::mtu_bytes) {
        Some(Some(bytes)) => bytes,
        Some(None) => return invalid("no such MTU"),
        None => 0,
    };
    Ok(Modification {
        mask,
        state: state(said!(STATE: qp_state))?,
        current: state(said!(CURRENT_STATE: cur_qp_state))?,
        drained_event: said!(DRAINED_EVENT: en_sqd_async_notify).is_some_and(|wanted| wanted != 0),
        attributes: QueuePairAttributes {
            path_mtu,
            queue_key: said!(QUEUE_KEY: qkey).unwrap_or_default(),
            receive_psn: said!(RECEIVE_PSN: rq_psn).unwrap_or_default(),
            send_psn: said!(SEND_PSN: sq_psn).unwrap_or_default(),
            destination: said!(DESTINATION: dest_qp_num).unwrap_or_default(),
            access: said!(ACCESS: qp_access_flags).unwrap_or_default(),
            path: said!(PATH: ah_attr).map(|path| of_c(&path)).unwrap_or_default(),
            reads_max: said!(READS_MAX: max_rd_atomic).unwrap_or_default(),
            peer_reads_max: said!(PEER_READS_MAX: max_dest_rd_atomic).unwrap_or_default(),
            not_ready_timer: said!(NOT_READY_TIMER: min_rnr_timer).unwrap_or_default(),
            timeout: said!(TIMEOUT: timeout).unwrap_or_default(),
            retries: said!(RETRIES: retry_cnt).unwrap_or_default(),
            not_ready_retries: said!(NOT_READY_RETRIES: rnr_retry).unwrap_or_default(),
            partition_key_index: said!(PARTITION_KEY: pkey_index).unwrap_or_default(),
            port: said!(PORT: port_num).unwrap_or_default(),
        },
    })
}

pub(crate) fn state_of(code: c_int) -> Option<QueuePairState> {
    QueuePairState::ALL.get(usize::try_from(code).ok()?).copied()
}

fn state_code(state: QueuePairState) -> c_int {
    QueuePairState::ALL
        .iter()
        .position(|other| *other == state)
        .map_or(-1, |place| c_int::try_from(place).unwrap_or(-1))
}

/// Values of `IBV_QPT_RC`, `IBV_QPT_UC` and `IBV_QPT_UD`.
const TYPE_RELIABLE: c_int = 2;
const TYPE_UNRELIABLE: c_int = 3;
const TYPE_DATAGRAM: c_int = 4;

/// Values of `IBV_QP_INIT_ATTR_PD`, `..._CREATE_FLAGS` and `..._SEND_OPS_FLAGS`.
const INIT_DOMAIN: u32 = 1;
const INIT_FLAGS: u32 = 1 << 2;
const INIT_SEND_OPERATIONS: u32 = 1 << 6;
