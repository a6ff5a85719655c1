//! Compressed connections: idle connections whose state takes little memory.
//!
//! A connection takes 550 bytes and each of its links 1160 bytes. The ends need most of this state
//! only while they exchange frames. In compressed form, a connection with one link takes about 400
//! bytes. The engine compresses a connection when nothing has happened on it for
//! [`EngineConfig::rest_ns`](crate::EngineConfig::rest_ns).
//!
//! The compressed form is exact, so the connection later continues with the same state. The engine
//! expands a connection when it takes the connection out of the table. The engine keeps the memory
//! of a connection that it has compressed, and uses it for the next connection that it expands. So
//! expansion allocates nothing, and compression allocates only the compressed form.

use std::sync::Arc;

use delivery::Instant;
use mem::ProtectionDomain;
use semantics::{CompletionQueue, Inbound, InboundAtRest, InboundLimits, OutboundAtRest, Queues};

use crate::connection::Connection;
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::path::Path;
use crate::terms::OwnTerms;

/// A compressed connection.
#[derive(Debug)]
pub(crate) struct Resting {
    queue: Arc<CompletionQueue>,
    /// State that usual connections do not have.
    rare: Option<Box<Rare>>,
    inbound: InboundAtRest,
    outbound: OutboundAtRest,
    /// The value of [`Liveness::ask_at`](crate::liveness::Liveness::ask_at).
    pub(crate) keep_alive_at: Instant,
    /// All other state, compressed.
    bytes: Box<[u8]>,
}

/// State that only few connections have: own settings, or unusual queues. The usual case is a
/// single queue that reserves places.
#[derive(Debug)]
struct Rare {
    terms: Option<Box<OwnTerms>>,
    queues: Queues,
}

impl Connection {
    /// Returns the time of the first timer of a connection [at rest](Connection::is_at_rest). At
    /// that time, the engine expands the connection.
    pub(crate) fn rest_ends_at(&self) -> Instant {
        let challenges = self.paths().iter().map(Path::challenge_at);
        challenges.fold(self.liveness().ask_at().min(self.join_deadline()), Instant::min)
    }

    /// Compresses a connection [at rest](Connection::is_at_rest). After this call, `self` contains
    /// no valid state, and the caller may only reuse its memory.
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
    /// Returns the connection in its state before the compression, but without its receives. The
    /// receives stay in `self` until [`Resting::wake`]. `paths` contains no links; the links of the
    /// connection use the memory of `paths`.
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

    /// Returns the connection in its state before the compression. `paths` contains no links; the
    /// links of the connection use the memory of `paths`.
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

    /// Returns the compressed state of the peer's operations.
    pub(crate) const fn inbound(&self) -> &InboundAtRest {
        &self.inbound
    }

    /// Returns the queues that receive the completions.
    fn queues(&self) -> Queues {
        match &self.rare {
            Some(rare) => rare.queues.clone(),
            None => Arc::clone(&self.queue).into(),
        }
    }

    /// Returns the connection without its receives and without its own settings.
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
