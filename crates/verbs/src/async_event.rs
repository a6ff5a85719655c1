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
    /// Object that the event is about.
    pub element: EventElement,
}

/// Kinds of events, numbered as `ibv_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum AsyncEventKind {
    /// A completion queue has overrun.
    CompletionQueueError = 0,
    /// A queue pair has failed for a reason other than its work.
    QueuePairFatal = 1,
    /// The peer sent an invalid request.
    RequestError = 2,
    /// The peer asked for memory that it may not access.
    AccessError = 3,
    /// The peer has sent a message although this queue pair is not in RTS yet.
    CommunicationEstablished = 4,
    /// In SQD: no work is in flight.
    SendQueueDrained = 5,
    /// The device has failed.
    DeviceFatal = 8,
    /// The port is active again.
    PortActive = 9,
    /// The port is down.
    PortError = 10,
    /// Fewer receives are left than the limit of the shared receive queue.
    ReceiveLimitReached = 15,
    /// A queue pair in ERR consumes no more receives of its shared receive queue.
    LastReceiveReached = 16,
    /// The table of GIDs has changed.
    GidChange = 18,
}

/// The object that an event is about.
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

    /// Returns the value that the C API stores with the object ([`QueuePair::user`] and so on); 0
    /// for a port or the device.
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
