//! Queue pairs that take over a connection which an identifier of the connection manager ("id") has
//! requested or accepted (protocol.md §10.3).
//!
//! Threads outside the engine may call [`ConnectionTable::lend`], [`ConnectionTable::source`] and
//! [`ConnectionTable::has`]. All other functions must be called inside the engine.

use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Terms};
use mem::{MemoryAccess, ProtectionDomain};
use rdma_cm::End;
use verbs::{Error, QueuePair, QueuePairAttributes};
use work::Queues;

use super::{CONFIRM_NS, ConnectionTable, Phase, QueuePairEntry, Then, Wanted, be_patient, terms};
use crate::greeting::{Greeting, QueuePairPlace};
use crate::limits::READ_DEPTH;
use crate::source::QueuePairSource;
use crate::work::Ends;

/// A connection that a queue pair takes over.
pub(super) struct Given {
    handle: ConnectionHandle,
    /// Parameters of the peer's queue pair. `None` at the requester until the peer's answer
    /// arrives.
    peer: Option<End>,
    /// The peer that the queue pair expects; `None` until the queue pair is ready to send.
    wanted: Option<Wanted>,
    is_established: bool,
}

/// State of a connection that a queue pair takes over.
pub(super) enum Standing {
    /// This end has requested the connection.
    Asked,
    /// This end has accepted the connection, but the peer has not confirmed it.
    Accepted,
    /// The connection is established.
    Established(Ends),
}

impl ConnectionTable {
    /// Returns the work source of a queue pair if the queue pair may take over a connection. For
    /// this, it must belong to this device, have no connection and not search for a peer.
    pub(crate) fn lend(&self, queue_pair: &Arc<QueuePair>) -> Option<Arc<QueuePairSource>> {
        self.find(queue_pair, |entry| matches!(entry.phase, Phase::Open))
    }

    /// Returns the work source of a queue pair. Returns `None` if the queue pair does not belong to
    /// this device.
    pub(crate) fn source(&self, queue_pair: &Arc<QueuePair>) -> Option<Arc<QueuePairSource>> {
        self.find(queue_pair, |_| true)
    }

    fn find(
        &self,
        queue_pair: &Arc<QueuePair>,
        is_right: impl FnOnce(&QueuePairEntry) -> bool,
    ) -> Option<Arc<QueuePairSource>> {
        let tables = self.tables();
        let entry = tables.entries.get(&queue_pair.number())?;
        let is_it = Arc::ptr_eq(entry.source.queue_pair(), queue_pair) && is_right(entry);
        is_it.then(|| Arc::clone(&entry.source))
    }

    /// Returns whether a queue pair has this connection and has not closed it yet.
    pub(crate) fn has(&self, handle: ConnectionHandle) -> bool {
        self.tables().connections.contains_key(&handle)
    }

    /// Makes a queue pair take over a requested connection.
    pub(crate) fn give(&self, handle: ConnectionHandle, source: &QueuePairSource) {
        self.keep(source, Given { handle, peer: None, wanted: None, is_established: false });
    }

    /// Reverts [`ConnectionTable::give`], because the peer does not agree to the takeover. From now
    /// on, the queue pair can search for its peer like a queue pair without an id.
    pub(crate) fn take_back(&self, handle: ConnectionHandle) {
        let mut tables = self.tables();
        let Some(number) = tables.connections.remove(&handle) else { return };
        if let Some(entry) = tables.entries.get_mut(&number) {
            entry.phase = Phase::Open;
        }
    }

    /// Handles the peer's acceptance of this end's request. From now on, completions of the
    /// connection belong to the queue pair. Returns false if the queue pair no longer exists.
    pub(crate) fn meet(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        handle: ConnectionHandle,
        peer: &End,
    ) -> bool {
        let then = {
            let mut tables = self.tables();
            let Some(&number) = tables.connections.get(&handle) else { return false };
            let Some(entry) = tables.entries.get_mut(&number) else { return false };
            let Phase::Given(given) = &mut entry.phase else { return false };
            self.registry.own(handle.owner(), entry.source.queue_pair());
            given.peer = Some(*peer);
            entry.go_on(engine)
        };
        self.finish(engine, memory, now, then);
        true
    }

    /// Records that the requester's queue pair is ready to send to the peer `wanted`.
    pub(crate) fn take_over(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        handle: ConnectionHandle,
        wanted: Wanted,
    ) {
        let then = {
            let mut tables = self.tables();
            let Some(&number) = tables.connections.get(&handle) else { return };
            let Some(entry) = tables.entries.get_mut(&number) else { return };
            if let Phase::Given(given) = &mut entry.phase {
                given.wanted = Some(wanted);
            }
            entry.go_on(engine)
        };
        self.finish(engine, memory, now, then);
    }

    /// Accepts a request for a queue pair that is ready to send.
    ///
    /// # Errors
    /// Returns the error of the engine if the peer has withdrawn the request.
    pub(crate) fn accept_given(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        handle: ConnectionHandle,
        (source, wanted): (&Arc<QueuePairSource>, Wanted),
        (peer, reply): (&End, &[u8]),
    ) -> Result<(), Error> {
        let queue_pair = source.queue_pair();
        let terms = terms(queue_pair, &queue_pair.attributes(), CONFIRM_NS);
        self.registry.own(handle.owner(), queue_pair);
        let (domain, queues) = (source.domain(), queue_pair.queues());
        let accepted = engine.accept_under(now, handle, domain, queues, &terms, reply);
        if let Err(error) = accepted {
            self.registry.disown(&[handle.owner()]);
            return Err(Error::Invalid(error.to_string()));
        }
        let (peer, wanted) = (Some(*peer), Some(wanted));
        self.keep(source, Given { handle, peer, wanted, is_established: false });
        // Post receives now. The frame that establishes the connection may contain a message, and
        // the next frame may close the connection.
        source.set_receives(handle);
        self.finish(engine, memory, now, Then::Pull(Arc::clone(source)));
        Ok(())
    }

    fn keep(&self, source: &QueuePairSource, given: Given) {
        let number = source.queue_pair().number();
        let mut tables = self.tables();
        if let Some(entry) = tables.entries.get_mut(&number) {
            let handle = given.handle;
            entry.phase = Phase::Given(given);
            tables.connections.insert(handle, number);
        }
    }
}

impl QueuePairEntry {
    /// Records that the connection is established.
    pub(super) fn on_given_established(&mut self, engine: &mut Engine) -> Then {
        if let Phase::Given(given) = &mut self.phase {
            given.is_established = true;
        }
        self.go_on(engine)
    }

    /// If the connection is established and the parameters of the peer are known, the queue pair
    /// uses the connection from now on. If the queue pair is also ready to send, it becomes
    /// connected.
    fn go_on(&mut self, engine: &mut Engine) -> Then {
        let Phase::Given(Given { handle, peer: Some(peer), wanted, is_established: true }) =
            &self.phase
        else {
            return Then::Nothing;
        };
        let ends = Ends { sends: *handle, receives: *handle };
        self.source.set_ends(ends);
        if let Some(wanted) = *wanted {
            let greeting = greeting_of(peer, &wanted);
            be_patient(engine, ends, self.source.queue_pair(), &greeting);
            self.phase = Phase::Connected { ends, greeting, wanted, has_id: true };
        }
        Then::Pull(Arc::clone(&self.source))
    }
}

impl Given {
    pub(super) const fn handle(&self) -> ConnectionHandle {
        self.handle
    }

    /// Returns the state of the connection.
    pub(super) const fn standing(&self) -> Standing {
        let Self { handle, .. } = *self;
        match self.peer {
            None => Standing::Asked,
            Some(_) if !self.is_established => Standing::Accepted,
            Some(_) => Standing::Established(Ends { sends: handle, receives: handle }),
        }
    }

    /// Returns the peer, if it is known.
    pub(super) fn peer(&self) -> Option<QueuePairPlace> {
        self.peer.map(|peer| QueuePairPlace { number: peer.number, gid: peer.gid })
    }
}

/// Returns the protection domain, the completion queues and the terms for the request of a
/// connection that the queue pair takes over. `reads` is the maximum number of reads that the peer
/// may have in flight.
pub(crate) fn parts_of(
    source: &QueuePairSource,
    reads: u8,
    silence_ns: u64,
) -> (ProtectionDomain, Queues, Terms) {
    let queue_pair = source.queue_pair();
    let peer_reads_max = reads.min(READ_DEPTH);
    let attributes = QueuePairAttributes { peer_reads_max, ..queue_pair.attributes() };
    (source.domain(), queue_pair.queues(), terms(queue_pair, &attributes, silence_ns))
}

/// Returns the greeting that the peer would have sent if neither of the queue pairs had an id.
fn greeting_of(peer: &End, wanted: &Wanted) -> Greeting {
    Greeting {
        kind: peer.service,
        not_ready_timer: peer.not_ready_timer,
        life: 0,
        destination: wanted.expected.own,
        source: QueuePairPlace { number: peer.number, gid: peer.gid },
        receive_psn: peer.psn,
        // The peer has received this number in the exchange of the connection manager.
        send_psn: Some(wanted.expected.receive_psn),
    }
}
