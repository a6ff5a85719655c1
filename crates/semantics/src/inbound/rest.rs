//! The receiving half of operations while a connection is at rest.

use mem::ProtectionDomain;
use wire_edge::{MessageNumber, OperationNumber};

use super::sharing::Share;
use super::{Inbound, InboundLimits};
use crate::receive_queue::ReceiveQueue;
use crate::slab::NIL;
use crate::{Owner, Queues};

/// The compressed receiving half of operations of a connection at rest.
#[derive(Debug)]
pub struct InboundAtRest {
    domain: ProtectionDomain,
    expected: OperationNumber,
    next_message: MessageNumber,
    /// `None` if the connection has no receives and is no queue pair.
    rare: Option<Box<Rare>>,
}

/// State that most connections do not have.
#[derive(Debug, Default)]
struct Rare {
    queue_pair: bool,
    receives: Option<Box<ReceiveQueue>>,
    share: Option<Box<Share>>,
}

impl Inbound {
    /// Returns whether no operation of the peer is open or waits.
    pub const fn is_at_rest(&self) -> bool {
        self.head == NIL && !self.stalled
    }

    /// Extracts the state to keep while the half is at rest; the half itself must not be used any
    /// more. The region last written to is not kept; its key finds it again.
    ///
    /// # Panics
    /// If it is not [at rest](Inbound::is_at_rest).
    pub fn rest(&mut self) -> InboundAtRest {
        assert!(self.is_at_rest(), "operations of the peer are open");
        let (queue_pair, share) = (self.queue_pair, self.share.take());
        // Memory for receives from a shared queue is allocated again with the next message.
        let receives =
            self.receives.take().filter(|receives| share.is_none() || receives.len() > 0);
        let is_rare = queue_pair || receives.is_some();
        InboundAtRest {
            domain: self.domain,
            expected: self.expected,
            next_message: self.next_message,
            rare: is_rare.then(|| Box::new(Rare { queue_pair, receives, share })),
        }
    }
}

impl InboundAtRest {
    /// Returns the posted receives, if there are any.
    pub(crate) fn receives(&self) -> Option<&ReceiveQueue> {
        self.rare.as_ref()?.receives.as_deref()
    }

    /// Restores the half. State that was not kept is as in [`Inbound::new`].
    #[must_use]
    pub fn wake(self, owner: Owner, limits: InboundLimits, queues: &Queues) -> Inbound {
        let Self { domain, expected, next_message, rare } = self;
        let Rare { queue_pair, receives, share } = rare.map(|rare| *rare).unwrap_or_default();
        let new = Inbound::new(owner, domain, limits, queues);
        Inbound { expected, next_message, queue_pair, receives, share, ..new }
    }
}
