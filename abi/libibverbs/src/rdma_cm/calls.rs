//! The calls that have an id as an argument.

use std::ffi::{c_int, c_uint, c_void};

use libc::sockaddr;
use rdma_cm::{AcceptOptions, ConnectOptions, IdOption};
use verbs::{Error, QueuePairType};

use super::addresses::{needed, of_c};
use super::events::{STATE_ERROR, STATE_SENDING, set_state};
use super::ids::{complete, ours, refresh};
use super::layout::{rdma_cm_id, rdma_conn_param};
use crate::failure::{invalid, number, unsupported};

/// Implements `rdma_bind_addr`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_bind_addr")]
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
) -> c_int {
    number("rdma_bind_addr", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?.id.bind(needed(address)?)?;
            refresh(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_resolve_addr`. Ignores the timeout, because the result is available at once.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_resolve_addr")]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    number("rdma_resolve_addr", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?.id.resolve_address(of_c(source)?, needed(to)?)?;
            complete(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_resolve_route`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_resolve_route")]
pub(crate) unsafe extern "C" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    number("rdma_resolve_route", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?.id.resolve_route()?;
            complete(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_listen`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_listen")]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    number("rdma_listen", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?.id.listen(u32::try_from(backlog).unwrap_or(0))?;
            refresh(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_connect`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_connect")]
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    number("rdma_connect", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            let options = options_of(param)?.unwrap_or_else(usual);
            ours(id)?.id.connect(&options)?;
            complete(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_accept`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_accept")]
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    number("rdma_accept", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            let options = options_of(param)?;
            let ours = ours(id)?;
            ours.id.accept(&AcceptOptions { options, queue_key: None })?;
            set_state(id, STATE_SENDING);
            // Do not wait for an event of a datagram id, because a datagram id gets no event after
            // it has accepted a request.
            if ours.id.service() != QueuePairType::Datagram {
                complete(id)?;
            }
        }
        Ok(0)
    })
}

/// Implements `rdma_reject`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_reject")]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    len: u8,
) -> c_int {
    number("rdma_reject", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)?.id.reject(&said(private_data, len)?)? };
        Ok(0)
    })
}

/// Implements `rdma_establish`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_establish")]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    number("rdma_establish", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)? }.id.establish()?;
        Ok(0)
    })
}

/// Implements `rdma_disconnect`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_disconnect")]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    number("rdma_disconnect", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe {
            ours(id)?.id.disconnect()?;
            set_state(id, STATE_ERROR);
            complete(id)?;
        }
        Ok(0)
    })
}

/// Implements `rdma_notify`. Programs call this function when a message has arrived before the
/// event that reports the connection. This library needs no such call, so the function only checks
/// the id.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_notify")]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: c_uint) -> c_int {
    number("rdma_notify", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)? };
        Ok(0)
    })
}

/// Implements `rdma_set_option`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_set_option")]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    number("rdma_set_option", || {
        // SAFETY: the caller meets the requirements of this function.
        let id = &unsafe { ours(id)? }.id;
        if level != LEVEL_ID {
            return unsupported("options of other levels than RDMA_OPTION_ID");
        }
        let is_long = name == OPTION_REUSE || name == OPTION_FAMILY;
        if value.is_null() || len != if is_long { size_of::<c_int>() } else { 1 } {
            return invalid("the value of the option is null or has the wrong length");
        }
        // SAFETY: the caller meets the requirements of this function. The value is `len` bytes
        // long.
        let byte = unsafe { value.cast::<u8>().read() };
        // SAFETY: the caller meets the requirements of this function. A number is read only after
        // the length of the option was checked.
        let is_set = || unsafe { value.cast::<c_int>().read_unaligned() } != 0;
        id.set_option(match name {
            OPTION_TOS => IdOption::TypeOfService(byte),
            OPTION_REUSE => IdOption::ReuseAddress(is_set()),
            OPTION_FAMILY => IdOption::OneFamily(is_set()),
            OPTION_TIMEOUT => IdOption::AcknowledgementTimeout(byte),
            _ => return unsupported("such an option"),
        })?;
        Ok(0)
    })
}

/// Converts the parameters of a connection. Returns `None` if the pointer is null.
unsafe fn options_of(param: *const rdma_conn_param) -> Result<Option<ConnectOptions>, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let Some(c) = (unsafe { param.as_ref() }) else { return Ok(None) };
    let unless_max = |wanted: u8| (wanted != MAX).then_some(wanted);
    Ok(Some(ConnectOptions {
        // SAFETY: the caller meets the requirements of this function.
        private_data: unsafe { said(c.private_data, c.private_data_len) }?,
        responder_resources: unless_max(c.responder_resources),
        initiator_depth: unless_max(c.initiator_depth),
        flow_control: c.flow_control != 0,
        retries: c.retry_count.min(7),
        not_ready_retries: c.rnr_retry_count.min(7),
        external: (c.srq != 0, c.qp_num),
    }))
}

/// Returns the parameters of a connection for which the program passes none.
fn usual() -> ConnectOptions {
    ConnectOptions { retries: 7, not_ready_retries: 7, ..ConnectOptions::default() }
}

unsafe fn said(private_data: *const c_void, len: u8) -> Result<Vec<u8>, Error> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if private_data.is_null() {
        return invalid("the private data is null, but its length is not 0");
    }
    // SAFETY: the caller meets the requirements of this function.
    Ok(unsafe { std::slice::from_raw_parts(private_data.cast::<u8>(), len.into()) }.to_vec())
}

/// Value of `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`, which means that the program wants the
/// maximum.
const MAX: u8 = 0xff;

/// `RDMA_OPTION_ID` and its options.
const LEVEL_ID: c_int = 0;
const OPTION_TOS: c_int = 0;
const OPTION_REUSE: c_int = 1;
const OPTION_FAMILY: c_int = 2;
const OPTION_TIMEOUT: c_int = 3;
