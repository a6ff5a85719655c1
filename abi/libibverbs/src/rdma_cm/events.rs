//! Events of the connection manager.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use rdma_cm::{Details, Event, EventKind, Id};
use verbs::Error;

use super::event_loop;
use super::ids::{self, Channel};
use super::layout::{
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_event_param, rdma_ud_param,
};
use crate::address::to_c;
use crate::failure::{invalid, number};
use crate::shell::Shell;

/// An event: the C structure, followed by the library's event.
type ReportedEvent = Shell<rdma_cm_event, Event>;

/// Implements `rdma_get_cm_event`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_get_cm_event")]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    number("rdma_get_cm_event", || {
        if event.is_null() {
            return invalid("the pointer for the event is null");
        }
        // SAFETY: the caller meets the requirements of this function. The memory of a destroyed
        // channel is kept for some time, so it may be read.
        let exists = unsafe { Channel::ours(channel, "channel") }.is_ok();
        if !exists && event_loop::takes_events_of(channel) {
            event_loop::wait_for_exit();
        }
        // SAFETY: the caller meets the requirements of this function. `take` succeeds only if the
        // channel exists.
        unsafe {
            *event = take(channel)?;
            event_loop::on_event(channel, (*channel).fd);
        }
        Ok(0)
    })
}

/// Implements `rdma_ack_cm_event`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_rdma_ack_cm_event")]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    number("rdma_ack_cm_event", || {
        if event.is_null() {
            return invalid("there is no event");
        }
        // SAFETY: the caller meets the requirements of this function.
        unsafe { acknowledge(event) };
        Ok(0)
    })
}

/// Waits for the next event of a channel and returns it. Updates the C structure of the event's id.
///
/// # Safety
/// The channel must be null or valid.
pub(super) unsafe fn take(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Error> {
    // SAFETY: the caller meets the requirements of this function.
    let event = unsafe { Channel::ours(channel, "channel") }?.get()?;
    let id = if event.kind == EventKind::ConnectRequest {
        // SAFETY: the listening id exists, because it cannot be destroyed before the program has
        // acknowledged the event.
        unsafe { child(&event) }
    } else {
        named(&event.id)
    };
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    if !id.is_null() {
        // SAFETY: the id exists. Either it was created just above, or it cannot be destroyed before
        // the program has acknowledged the event.
        unsafe { show(id, event.kind) }?;
    }
    let param = param_of(&event);
    let (kind, status) = (event.kind as c_uint, event.status);
    let c = rdma_cm_event { id, listen_id: listener, event: kind, status, param };
    Ok(ReportedEvent::make(c, event))
}

/// Acknowledges an event and frees its C structure.
///
/// # Safety
/// The event must come from [`take`].
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller meets the requirements of this function.
    if let Ok(ours) = unsafe { ReportedEvent::ours(event, "event") } {
        ours.acknowledge();
    }
    // SAFETY: the caller meets the requirements of this function. After a program has acknowledged
    // an event, it must not use the event.
    unsafe { ReportedEvent::free(event) };
}

/// Returns the C structure of an id.
fn named(id: &Id) -> *mut rdma_cm_id {
    ptr::with_exposed_provenance_mut(id.user.load(Ordering::Acquire))
}

/// Creates the C structure for the id of a connection request. The id has the channel and the
/// context of the listening id.
unsafe fn child(event: &Event) -> *mut rdma_cm_id {
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    // SAFETY: the caller meets the requirements of this function.
    let Some(listens) = (unsafe { listener.as_ref() }) else { return ptr::null_mut() };
    ids::name(&event.id, listens.channel, listens.context, false)
}

unsafe fn show(id: *mut rdma_cm_id, kind: EventKind) -> Result<(), Error> {
    match kind {
        EventKind::AddressResolved => {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { ids::refresh(id) }
        }
        EventKind::RouteResolved => {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { ids::show_path(id) }
        }
        EventKind::ConnectRequest => {
            // SAFETY: the caller meets the requirements of this function.
            unsafe {
                ids::refresh(id)?;
                ids::show_path(id)
            }
        }
        EventKind::Established => {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { set_state(id, STATE_SENDING) };
            Ok(())
        }
        EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
            // SAFETY: the caller meets the requirements of this function.
            unsafe { set_state(id, STATE_ERROR) };
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Stores `state` in the C structure of the id's queue pair, where programs read it. Does nothing
/// if the id has no queue pair, or if the queue pair carries datagrams.
///
/// # Safety
/// This library must have created the id.
pub(super) unsafe fn set_state(id: *mut rdma_cm_id, state: c_int) {
    // SAFETY: the caller meets the requirements of this function.
    if let Some(pair) = unsafe { (*id).qp.as_mut() }
        && pair.qp_type != ids::TYPE_DATAGRAM
    {
        pair.state = state;
    }
}

fn param_of(event: &Event) -> rdma_event_param {
    let said = &event.private_data;
    let (data, len) = if said.is_empty() {
        (ptr::null(), 0)
    } else {
        // The structure has only 8 bits for the length. The pointer covers all the data.
        (said.as_ptr().cast::<c_void>(), u8::try_from(said.len()).unwrap_or(u8::MAX))
    };
    match event.details {
        Details::Datagrams(details) => rdma_event_param {
            ud: rdma_ud_param {
                private_data: if event.kind == EventKind::MulticastJoin
                    || event.kind == EventKind::MulticastError
                {
                    ptr::with_exposed_provenance(details.cookie)
                } else {
                    data
                },
                private_data_len: len,
                ah_attr: to_c(&details.path),
                qp_num: details.number,
                qkey: details.queue_key,
            },
        },
        Details::Connection(details) => rdma_event_param {
            conn: rdma_conn_param {
                private_data: data,
                private_data_len: len,
                responder_resources: details.responder_resources,
                initiator_depth: details.initiator_depth,
                flow_control: u8::from(details.flow_control),
                retry_count: details.retries,
                rnr_retry_count: details.not_ready_retries,
                srq: u8::from(details.is_shared),
                qp_num: details.number,
            },
        },
        Details::None => {
            // Fill in both variants of the union, because a program may read the private data from
            // either variant.
            // SAFETY: all fields are numbers or pointers, for which zero is a valid value.
            let mut param: rdma_event_param = unsafe { std::mem::zeroed() };
            param.conn.private_data = data;
            param.conn.private_data_len = len;
            if event.id.service() == verbs::QueuePairType::Datagram {
                param.ud.private_data = data;
                param.ud.private_data_len = len;
            }
            param
        }
    }
}

/// Values of `RDMA_CM_EVENT_CONNECT_REQUEST` and `..._REJECTED`.
pub(super) const CONNECT_REQUEST: c_uint = EventKind::ConnectRequest as c_uint;
pub(super) const REJECTED: c_uint = EventKind::Rejected as c_uint;

/// Values of `IBV_QPS_RTS` and `IBV_QPS_ERR`.
pub(super) const STATE_SENDING: c_int = 3;
pub(super) const STATE_ERROR: c_int = 6;
