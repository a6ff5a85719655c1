//! Connection manager events.

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

/// An event: the C structure, and the library's event behind it.
type ReportedEvent = Shell<rdma_cm_event, Event>;

/// `rdma_get_cm_event`.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(export_name = "ethernot_rdma_get_cm_event")]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    number("rdma_get_cm_event", || {
        if event.is_null() {
            return invalid("the pointer for the event is null");
        }
        // SAFETY: guaranteed by the caller; of a destroyed channel the shell is kept.
        if event_loop::is_of(channel) && unsafe { Channel::ours(channel, "channel") }.is_err() {
            event_loop::wait_for_exit();
        }
        // SAFETY: guaranteed by the caller. `take` succeeds only if the channel exists.
        unsafe {
            *event = take(channel)?;
            event_loop::on_event(channel, (*channel).fd);
        }
        Ok(0)
    })
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(export_name = "ethernot_rdma_ack_cm_event")]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    number("rdma_ack_cm_event", || {
        if event.is_null() {
            return invalid("there is no event");
        }
        // SAFETY: guaranteed by the caller.
        unsafe { acknowledge(event) };
        Ok(0)
    })
}

/// Waits for the next event of a channel, and updates the C structure of the event's id.
///
/// # Safety
/// The channel is null or valid.
pub(super) unsafe fn take(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Error> {
    // SAFETY: guaranteed by the caller.
    let event = unsafe { Channel::ours(channel, "channel") }?.get()?;
    let id = if event.kind == EventKind::ConnectRequest {
        // SAFETY: the listening id cannot be destroyed before the event is acknowledged, so it
        // exists.
        unsafe { child(&event) }
    } else {
        named(&event.id)
    };
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    if !id.is_null() {
        // SAFETY: the id was created just above, or cannot be destroyed before the event is
        // acknowledged.
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
/// The event is from [`take`].
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: guaranteed by the caller.
    if let Ok(ours) = unsafe { ReportedEvent::ours(event, "event") } {
        ours.acknowledge();
    }
    // SAFETY: guaranteed by the caller; a program does not use an event after it has acknowledged
    // it.
    unsafe { ReportedEvent::free(event) };
}

/// Returns the C structure of an id.
fn named(id: &Id) -> *mut rdma_cm_id {
    ptr::with_exposed_provenance_mut(id.user.load(Ordering::Acquire))
}

/// Creates the C structure for the id of a connection request, with the channel and context of the
/// listening id.
unsafe fn child(event: &Event) -> *mut rdma_cm_id {
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    // SAFETY: guaranteed by the caller.
    let Some(listens) = (unsafe { listener.as_ref() }) else { return ptr::null_mut() };
    ids::name(&event.id, listens.channel, listens.context, false)
}

unsafe fn show(id: *mut rdma_cm_id, kind: EventKind) -> Result<(), Error> {
    match kind {
        EventKind::AddressResolved => {
            // SAFETY: guaranteed by the caller.
            unsafe { ids::refresh(id) }
        }
        EventKind::RouteResolved => {
            // SAFETY: guaranteed by the caller.
            unsafe { ids::show_path(id) }
        }
        EventKind::ConnectRequest => {
            // SAFETY: guaranteed by the caller.
            unsafe {
                ids::refresh(id)?;
                ids::show_path(id)
            }
        }
        EventKind::Established => {
            // SAFETY: guaranteed by the caller.
            unsafe { set_state(id, STATE_SENDING) };
            Ok(())
        }
        EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
            // SAFETY: guaranteed by the caller.
            unsafe { set_state(id, STATE_ERROR) };
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Stores the state of the queue pair in its C structure, where programs read it.
///
/// # Safety
/// The id was created here.
pub(super) unsafe fn set_state(id: *mut rdma_cm_id, state: c_int) {
    // SAFETY: guaranteed by the caller.
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
        (said.as_ptr().cast::<c_void>(), said.len() as u8)
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
            // Both parts of the union are filled in: programs may read the private data in either
            // one.
            // SAFETY: all fields are numbers or pointers, for which zeros are valid.
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

/// `RDMA_CM_EVENT_CONNECT_REQUEST` and `..._REJECTED`.
pub(super) const CONNECT_REQUEST: c_uint = EventKind::ConnectRequest as c_uint;
pub(super) const REJECTED: c_uint = EventKind::Rejected as c_uint;

/// `IBV_QPS_RTS` and `IBV_QPS_ERR`.
pub(super) const STATE_SENDING: c_int = 3;
pub(super) const STATE_ERROR: c_int = 6;
