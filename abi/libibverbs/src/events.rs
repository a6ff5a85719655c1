//! Asynchronous events.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use verbs::{AsyncEvent, AsyncEventKind, Error, EventElement};

use crate::device::of;
use crate::failure::{invalid, number, silent};
use crate::layout::{ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::{port, shell};

/// Implements `ibv_get_async_event`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_get_async_event")]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    into: *mut ibv_async_event,
) -> c_int {
    number("ibv_get_async_event", || {
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { of(context) }?;
        if into.is_null() {
            return invalid("a pointer for the event is null");
        }
        let event = context.get_event()?;
        let element = match &event.element {
            EventElement::Port(port) => usize::from(*port),
            element => element.user(),
        };
        let c = ibv_async_event { element, event_type: event.kind as c_int };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { port::write(into, &c, size_of::<ibv_async_event>()) }.map(|()| 0)
    })
}

/// Implements `ibv_ack_async_event`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_ack_async_event")]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    silent("ibv_ack_async_event", (), || {
        // SAFETY: the caller meets the requirements of this function.
        let Some(event) = (unsafe { event.as_ref() }) else { return invalid("there is no event") };
        // SAFETY: an object with an unacknowledged event cannot be destroyed.
        unsafe { acknowledge(event) }
    });
}

unsafe fn acknowledge(event: &ibv_async_event) -> Result<(), Error> {
    let object = ptr::with_exposed_provenance_mut::<c_void>(event.element);
    let (context, element, kind) = match event.event_type {
        0 => {
            // SAFETY: the caller guarantees that the event belongs to a completion queue.
            let queue = &unsafe { shell::completions(object.cast::<ibv_cq>()) }?.queue;
            let element = EventElement::CompletionQueue(Arc::clone(queue));
            // SAFETY: the queue exists, and only acknowledgements write to the field.
            unsafe { shell::count(&raw mut (*object.cast::<ibv_cq>()).async_events_completed, 1) };
            (queue.context(), element, AsyncEventKind::CompletionQueueError)
        }
        1..=7 | 16 => {
            // SAFETY: the caller guarantees that the event belongs to a queue pair.
            let pair = &unsafe { shell::pair(object.cast::<ibv_qp>()) }?.pair;
            let element = EventElement::QueuePair(Arc::clone(pair));
            // SAFETY: the queue pair exists, and only acknowledgements write to the field.
            unsafe { shell::count(&raw mut (*object.cast::<ibv_qp>()).events_completed, 1) };
            (pair.context(), element, AsyncEventKind::QueuePairFatal)
        }
        14 | 15 => {
            // SAFETY: the caller guarantees that the event belongs to a shared receive queue.
            let queue =
                &unsafe { shell::Shared::ours(object.cast::<ibv_srq>(), "shared receive queue") }?
                    .queue;
            let element = EventElement::SharedReceiveQueue(Arc::clone(queue));
            // SAFETY: the queue exists, and only acknowledgements write to the field.
            unsafe { shell::count(&raw mut (*object.cast::<ibv_srq>()).events_completed, 1) };
            (queue.domain().context(), element, AsyncEventKind::ReceiveLimitReached)
        }
        // Events of ports and devices need no acknowledgement.
        _ => return Ok(()),
    };
    context.acknowledge_event(&AsyncEvent { kind, element });
    Ok(())
}
