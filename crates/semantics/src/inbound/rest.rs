//! What a resting connection keeps of the operations of its peer.

use mem::ProtectionDomain;
use wire_edge::{MessageNumber, OperationNumber};

use super::sharing::Share;
use super::{Inbound, InboundLimits};
use crate::receive_queue::ReceiveQueue;
use crate::slab::NIL;
use crate::{Owner, Queues};

/// The receiving half of the operations of a connection at rest.
#[derive(Debug)]
pub struct InboundAtRest {
    domain: ProtectionDomain,
    expected: OperationNumber,
    next_message: MessageNumber,
    /// Nothing, if it has no receives and is no queue pair.
    rare: Option<Box<Rare>>,
}

/// What most connections have not.
#[derive(Debug, Default)]
struct Rare {
    queue_pair: bool,
    receives: Option<Box<ReceiveQueue>>,
    share: Option<Box<Share>>,
}

impl Inbound {
    /// Whether no operation of the peer is open or waits.
    pub const fn is_at_rest(&self) -> bool {
        self.head == NIL && !self.stalled
    }

    /// Takes out what must be kept while the half is at rest; the half itself is of no use any more.
    /// Which region was written to last is forgotten, and found again by its key.
    ///
    /// # Panics
    /// If it is not [at rest](Inbound::is_at_rest).
    pub fn rest(&mut self) -> InboundAtRest {
        assert!(self.is_at_rest(), "operations of the peer are open");
        let (queue_pair, share) = (self.queue_pair, self.share.take());
        // Memory for what is taken of a shared queue comes back with the next message.
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
    /// The receives that were posted, if there are any.
    pub(crate) fn receives(&self) -> Option<&ReceiveQueue> {
        self.rare.as_ref()?.receives.as_deref()
    }

    /// Restores the half as it was; all but what was kept is as in [`Inbound::new`].
    #[must_use]
    pub fn wake(self, owner: Owner, limits: InboundLimits, queues: &Queues) -> Inbound {
        let Self { domain, expected, next_message, rare } = self;
        let Rare { queue_pair, receives, share } = rare.map(|rare| *rare).unwrap_or_default();
        let new = Inbound::new(owner, domain, limits, queues);
        Inbound { expected, next_message, queue_pair, receives, share, ..new }
    }
}
