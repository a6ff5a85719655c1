//! Events of devices and objects beside completions.

use std::sync::Arc;

use crate::completion_queue::CompletionQueue;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Something has happened.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// What.
    pub kind: AsyncEventKind,
    /// To whom.
    pub element: EventElement,
}

/// What can happen: numbered as `ibv_event_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum AsyncEventKind {
    /// A completion queue was overrun.
    CompletionQueueError = 0,
    /// A queue pair failed for another reason than its work.
    QueuePairFatal = 1,
    /// The peer asked for what is impossible.
    RequestError = 2,
    /// The peer asked for what it may not have.
    AccessError = 3,
    /// The peer speaks although this side has not moved on to RTS.
    CommunicationEstablished = 4,
    /// In SQD: no work is in flight any more.
    SendQueueDrained = 5,
    /// The device has failed.
    DeviceFatal = 8,
    /// The port carries something again.
    PortActive = 9,
    /// The port carries nothing any more.
    PortError = 10,
    /// Fewer receives than wanted are left.
    ReceiveLimitReached = 15,
    /// A queue pair in ERR takes no more from its shared queue.
    LastReceiveReached = 16,
    /// The table of GIDs has changed.
    GidChange = 18,
}

/// To whom something has happened.
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

    /// Returns the cookie of the object ([`QueuePair::user`] and so on), 0 for a port or the device.
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
