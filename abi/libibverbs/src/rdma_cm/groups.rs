//! Multicast groups of ids.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use verbs::Error;

use super::addresses::needed;
use super::ids::{complete, ours};
use super::layout::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::failure::{invalid, number, unsupported};

/// Implements `rdma_join_multicast`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_join_multicast")]
pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    number("rdma_join_multicast", || unsafe { join(id, group, context, false) })
}

/// Implements `rdma_join_multicast_ex`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_join_multicast_ex")]
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    how: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(how) = (unsafe { how.as_ref() }) else { return invalid("there is no group") };
        if how.comp_mask & !(SAYS_ADDRESS | SAYS_FLAGS) != 0 {
            return unsupported("such attributes of a group");
        }
        if how.comp_mask & SAYS_ADDRESS == 0 {
            return invalid("there is no group");
        }
        let flags = if how.comp_mask & SAYS_FLAGS != 0 { how.join_flags } else { FULL };
        if flags > ONLY_SENDS {
            return invalid("unknown join flags of a group");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { join(id, how.addr, context, flags == ONLY_SENDS) }
    })
}

/// Implements `rdma_leave_multicast`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_leave_multicast")]
pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
) -> c_int {
    number("rdma_leave_multicast", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { ours(id)?.id.leave(needed(group)?)? };
        Ok(0)
    })
}

unsafe fn join(
    id: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
    only_sends: bool,
) -> Result<c_int, Error> {
    // SAFETY: the caller meets the requirements of this function.
    unsafe {
        ours(id)?.id.join(needed(group)?, context.expose_provenance(), only_sends)?;
        complete(id)?;
    }
    Ok(0)
}

/// Values of `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `..._JOIN_FLAGS`.
const SAYS_ADDRESS: u32 = 1;
const SAYS_FLAGS: u32 = 1 << 1;

/// Values of `RDMA_MC_JOIN_FLAG_FULLMEMBER` and `..._SENDONLY_FULLMEMBER`.
const FULL: u32 = 0;
const ONLY_SENDS: u32 = 1;
