//! Connections at rest: packed into little memory.
//!
//! A connection takes 550 bytes and each of its links 1160, most of which is of use only while frames
//! come and go; packed, it is some 400 with one link. When nothing has happened for [`EngineConfig::rest_ns`](crate::EngineConfig::rest_ns) it is
//! packed: nothing is lost or rounded, so that it goes on as if it had never rested. It is unpacked when
//! it is taken out of the table, by whatever happens. The memory it had serves the next that wakes up,
//! so that connections which come and go allocate nothing but the packed form, and that when they fall
//! asleep.

use std::sync::Arc;

use delivery::Instant;
use mem::ProtectionDomain;
use semantics::{CompletionQueue, Inbound, InboundAtRest, InboundLimits, OutboundAtRest, Queues};

use crate::connection::Connection;
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::path::Path;
use crate::terms::OwnTerms;

/// A connection on which nothing happens.
#[derive(Debug)]
pub(crate) struct Resting {
    queue: Arc<CompletionQueue>,
    /// What ordinary connections have not.
    rare: Option<Box<Rare>>,
    inbound: InboundAtRest,
    outbound: OutboundAtRest,
    /// As [`Liveness::ask_at`](crate::liveness::Liveness::ask_at).
    pub(crate) keep_alive_at: Instant,
    /// Everything else, packed.
    bytes: Box<[u8]>,
}

/// What few connections have: terms of their own, or not one queue whose places are promised.
#[derive(Debug)]
struct Rare {
    terms: Option<Box<OwnTerms>>,
    queues: Queues,
}

impl Connection {
    /// When a timer ends the rest of a connection [at rest](Connection::is_at_rest).
    pub(crate) fn rest_ends_at(&self) -> Instant {
        let challenges = self.paths().iter().map(Path::challenge_at);
        challenges.fold(self.liveness().ask_at().min(self.join_deadline()), Instant::min)
    }

    /// Writes down a connection [at rest](Connection::is_at_rest), which is of no use any more: what is
    /// left of it is its memory.
    pub(crate) fn rest(&mut self, limits: InboundLimits) -> Resting {
        debug_assert!(self.is_at_rest(), "packing loses nothing that is pending");
        let bytes = self.pack();
        let (queues, keep_alive_at) = (self.queues(), self.liveness().ask_at());
        let (inbound, outbound) = self.operations();
        let (inbound, outbound) = (inbound.rest(), outbound.rest());
        let (queue, terms) = (Arc::clone(&queues.send), self.take_terms());
        let is_usual = queues.promises && Arc::ptr_eq(&queues.send, &queues.receive);
        let rare = (terms.is_some() || !is_usual).then(|| Box::new(Rare { terms, queues }));
        let resting = Resting { queue, rare, inbound, outbound, keep_alive_at, bytes };
        debug_assert_eq!(
            resting.read(self.handle(), limits, LinkSet::default()).pack(),
            resting.bytes
        );
        resting
    }
}

impl Resting {
    /// The connection as it was, its links in `paths`, which is empty. Receives stay here until
    /// [`Resting::wake`].
    pub(crate) fn read(
        &self,
        handle: ConnectionHandle,
        limits: InboundLimits,
        paths: LinkSet,
    ) -> Connection {
        let queues = self.queues();
        let mut connection = self.read_usual(handle, limits, paths, queues);
        connection.set_terms(self.rare.as_ref().and_then(|rare| rare.terms.clone()));
        connection
    }

    /// The connection as it was, its links in `paths`, which is empty.
    pub(crate) fn wake(
        mut self,
        handle: ConnectionHandle,
        limits: InboundLimits,
        paths: LinkSet,
    ) -> Connection {
        let queues = self.queues();
        let terms = self.rare.take().and_then(|rare| rare.terms);
        let limits = terms.as_ref().map_or(limits, |terms| terms.limits());
        let mut connection = self.read_usual(handle, limits, paths, queues.clone());
        connection.set_terms(terms);
        connection.wake_inbound(self.inbound.wake(handle.owner(), limits, &queues));
        connection
    }

    /// What is kept of the operations of its peer.
    pub(crate) const fn inbound(&self) -> &InboundAtRest {
        &self.inbound
    }

    /// Where its completions go.
    fn queues(&self) -> Queues {
        match &self.rare {
            Some(rare) => rare.queues.clone(),
            None => Arc::clone(&self.queue).into(),
        }
    }

    /// The connection, but for its receives and for terms of its own.
    fn read_usual(
        &self,
        handle: ConnectionHandle,
        limits: InboundLimits,
        paths: LinkSet,
        queues: Queues,
    ) -> Connection {
        let inbound = Inbound::new(handle.owner(), ProtectionDomain::NONE, limits, &queues);
        let outbound = self.outbound.wake(handle.owner(), &queues);
        let operations = (inbound, outbound, queues);
        Connection::unpack(&self.bytes, handle, paths, operations, self.keep_alive_at)
    }
}
