//! Events, as programs know them.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use rdma_cm::{Details, Event, EventKind, Id};
use verbs::Error;

use super::ids::{self, Channel};
use super::layout::{
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_event_param, rdma_ud_param,
};
use crate::address::to_c;
use crate::failure::{invalid, number};
use crate::shell::Shell;

/// An event, and what is ours of it.
type ReportedEvent = Shell<rdma_cm_event, Event>;

/// `rdma_get_cm_event`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_get_cm_event")]
pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    number("rdma_get_cm_event", || {
        if event.is_null() {
            return invalid("there is no place for the event");
        }
        // SAFETY: as the caller says.
        unsafe { *event = take(channel)? };
        Ok(0)
    })
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// As the manual page says.
#[unsafe(export_name = "ethernot_rdma_ack_cm_event")]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    number("rdma_ack_cm_event", || {
        if event.is_null() {
            return invalid("there is no event");
        }
        // SAFETY: as the caller says.
        unsafe { acknowledge(event) };
        Ok(0)
    })
}

/// Takes the next event, and updates the program's view of its id.
///
/// # Safety
/// The channel is there.
pub(super) unsafe fn take(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Error> {
    // SAFETY: as the caller says.
    let event = unsafe { Channel::ours(channel, "channel") }?.get()?;
    let id = if event.kind == EventKind::ConnectRequest {
        // SAFETY: the id that listens waits for the event, so it is there.
        unsafe { child(&event) }
    } else {
        named(&event.id)
    };
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    if !id.is_null() {
        // SAFETY: it waits for the event, or was just made.
        unsafe { show(id, event.kind) }?;
    }
    let param = param_of(&event);
    let (kind, status) = (event.kind as c_uint, event.status);
    let c = rdma_cm_event { id, listen_id: listener, event: kind, status, param };
    Ok(ReportedEvent::make(c, event))
}

/// The program does not need an event any more.
///
/// # Safety
/// The event is from [`take`].
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: as the caller says.
    if let Ok(ours) = unsafe { ReportedEvent::ours(event, "event") } {
        ours.acknowledge();
    }
    // SAFETY: as the caller says; what is acknowledged is used no more.
    unsafe { ReportedEvent::free(event) };
}

/// As the program knows an id.
fn named(id: &Id) -> *mut rdma_cm_id {
    ptr::with_exposed_provenance_mut(id.user.load(Ordering::Acquire))
}

/// The id of a connection that is asked for: it has the channel and the context of the one that listens.
unsafe fn child(event: &Event) -> *mut rdma_cm_id {
    let listener = event.listener.as_deref().map_or(ptr::null_mut(), named);
    // SAFETY: as the caller says.
    let Some(listens) = (unsafe { listener.as_ref() }) else { return ptr::null_mut() };
    ids::name(&event.id, listens.channel, listens.context, false)
}

unsafe fn show(id: *mut rdma_cm_id, kind: EventKind) -> Result<(), Error> {
    match kind {
        EventKind::AddressResolved => {
            // SAFETY: as the caller says.
            unsafe { ids::refresh(id) }
        }
        EventKind::RouteResolved => {
            // SAFETY: as the caller says.
            unsafe { ids::show_path(id) }
        }
        EventKind::ConnectRequest => {
            // SAFETY: as the caller says.
            unsafe {
                ids::refresh(id)?;
                ids::show_path(id)
            }
        }
        EventKind::Established => {
            // SAFETY: as the caller says.
            unsafe { set_state(id, STATE_SENDING) };
            Ok(())
        }
        EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
            // SAFETY: as the caller says.
            unsafe { set_state(id, STATE_ERROR) };
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Notes the state of the queue pair where programs look for it.
///
/// # Safety
/// The id is one that was made here.
pub(super) unsafe fn set_state(id: *mut rdma_cm_id, state: c_int) {
    // SAFETY: as the caller says.
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
            // What is not said of a connection is not said of datagrams either.
            // SAFETY: numbers and pointers, which may all be zero.
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
