//! Asynchronous events of devices and objects.

use std::sync::Arc;

use crate::completion_queue::CompletionQueue;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// Kind of the event.
    pub kind: AsyncEventKind,
    /// The object to which the event belongs.
    pub element: EventElement,
}

/// Kinds of events, with the numbers of `ibv_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum AsyncEventKind {
    /// A completion queue has overrun: a completion found no room in it and is lost.
    CompletionQueueError = 0,
    /// A queue pair has failed, and its own work requests are not the cause. An example is an
    /// overrun of its completion queue.
    QueuePairFatal = 1,
    /// The peer sent an invalid request.
    RequestError = 2,
    /// The peer accessed memory without the right to do so.
    AccessError = 3,
    /// The peer has sent a message, but the program has not moved this queue pair to RTS yet.
    CommunicationEstablished = 4,
    /// The queue pair is in SQD, and all its sends that were in flight have completed.
    SendQueueDrained = 5,
    /// The device has failed.
    DeviceFatal = 8,
    /// The port is active again.
    PortActive = 9,
    /// The port is down.
    PortError = 10,
    /// The shared receive queue has fewer receives than its limit.
    ReceiveLimitReached = 15,
    /// The queue pair is in ERR. From now on, it takes no receives from its shared receive queue.
    LastReceiveReached = 16,
    /// The table of GIDs has changed.
    GidChange = 18,
}

/// The object to which an event belongs.
#[derive(Clone, Debug)]
pub enum EventElement {
    /// A completion queue.
    CompletionQueue(Arc<CompletionQueue>),
    /// A queue pair.
    QueuePair(Arc<QueuePair>),
    /// A shared receive queue.
    SharedReceiveQueue(Arc<SharedReceiveQueue>),
    /// A port.
    Port(u8),
    /// The device.
    Device,
}

impl EventElement {
    pub(crate) fn on_taken(&self) {
        match self {
            Self::CompletionQueue(queue) => queue.async_events().on_taken(),
            Self::QueuePair(queue_pair) => queue_pair.async_events().on_taken(),
            Self::SharedReceiveQueue(queue) => queue.async_events().on_taken(),
            Self::Port(_) | Self::Device => {}
        }
    }

    pub(crate) fn acknowledge(&self) {
        match self {
            Self::CompletionQueue(queue) => queue.async_events().acknowledge(1),
            Self::QueuePair(queue_pair) => queue_pair.async_events().acknowledge(1),
            Self::SharedReceiveQueue(queue) => queue.async_events().acknowledge(1),
            Self::Port(_) | Self::Device => {}
        }
    }

    /// Returns the value that the C API stores with the object, such as [`QueuePair::user`].
    /// Returns 0 for a port and for the device.
    pub fn user(&self) -> usize {
        let user = match self {
            Self::CompletionQueue(queue) => &queue.user,
            Self::QueuePair(queue_pair) => &queue_pair.user,
            Self::SharedReceiveQueue(queue) => &queue.user,
            Self::Port(_) | Self::Device => return 0,
        };
        crate::device::cookie(user)
    }
}
