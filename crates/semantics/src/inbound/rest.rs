//! Compresses the receiving half of a connection's operations when the connection becomes idle, and
//! restores it later.

use mem::ProtectionDomain;
use wire_edge::{MessageNumber, OperationNumber};

use super::sharing::Share;
use super::{Inbound, InboundLimits};
use crate::receive_queue::ReceiveQueue;
use crate::slab::NIL;
use work::{Owner, Queues};

/// The receiving half of operations of an idle connection, compressed into few bytes.
#[derive(Debug)]
pub struct InboundAtRest {
    domain: ProtectionDomain,
    expected: OperationNumber,
    next_message: MessageNumber,
    /// `None` if the connection has no receives and is not a queue pair.
    rare: Option<Box<Rare>>,
}

/// State that most idle connections do not have.
#[derive(Debug, Default)]
struct Rare {
    queue_pair: bool,
    receives: Option<Box<ReceiveQueue>>,
    share: Option<Box<Share>>,
}

impl Inbound {
    /// Returns whether the half is idle: no operation of the peer is open, and no delivery waits.
    pub const fn is_at_rest(&self) -> bool {
        self.head == NIL && !self.stalled
    }

    /// Compresses this half, and returns the compressed state. The caller must no longer use the
    /// half itself. The compressed state does not contain the cached region, because a look-up of
    /// its key finds it again.
    ///
    /// # Panics
    /// Panics if the half is not [idle](Inbound::is_at_rest).
    pub fn rest(&mut self) -> InboundAtRest {
        assert!(self.is_at_rest(), "operations of the peer are open");
        let (queue_pair, share) = (self.queue_pair, self.share.take());
        // If the connection uses a shared receive queue, drop its own queue of receives when that
        // queue is empty. The next message allocates it again.
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

    /// Restores the half. State that was not compressed has the values of [`Inbound::new`].
    #[must_use]
    pub fn wake(self, owner: Owner, limits: InboundLimits, queues: &Queues) -> Inbound {
        let Self { domain, expected, next_message, rare } = self;
        let Rare { queue_pair, receives, share } = rare.map(|rare| *rare).unwrap_or_default();
        let new = Inbound::new(owner, domain, limits, queues);
        Inbound { expected, next_message, queue_pair, receives, share, ..new }
    }
}
