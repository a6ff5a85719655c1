//! Connections at rest: packed into little memory.
//!
//! A connection takes 550 bytes and each of its links 1160, most of which is of use only while frames
//! come and go; packed, it is some 400 with one link. When nothing has happened for [`EngineConfig::rest_ns`](crate::EngineConfig::rest_ns) it is
//! packed: nothing is lost or rounded, so that it goes on as if it had never rested. It is unpacked when
//! it is taken out of the table, by whatever happens. The memory it had serves the next that wakes up,
//! so that connections which come and go allocate nothing but the packed form, and that when they fall
//! asleep.

use std::sync::Arc;

use delivery::{Instant, Pack, Packer, Unpacker};
use mem::ProtectionDomain;
use semantics::{CompletionQueue, Inbound, InboundAtRest, InboundLimits, Outbound, OutboundAtRest};

use crate::close_notice::CloseNotice;
use crate::connection::{Connection, NOTHING_GRANTED, Phase};
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::pairs::Pairs;
use crate::path::Path;
use crate::spreading::Spreading;

/// Calls a macro with the fields of a connection, but for its paths, that are written down: one list, so
/// that they are read in the order in which they were written.
macro_rules! with_written_fields {
    ($callee:ident) => {
        $callee!(
            id, peer_id, epoch, peer_epoch, peer, pairs, spreading, liveness, hello_key, retry,
            asks, requests, told
        )
    };
}

/// A connection on which nothing happens.
#[derive(Debug)]
pub(crate) struct Resting {
    queue: Arc<CompletionQueue>,
    inbound: InboundAtRest,
    outbound: OutboundAtRest,
    /// As [`Liveness::ask_at`](crate::liveness::Liveness::ask_at).
    pub(crate) keep_alive_at: Instant,
    /// Everything else, packed.
    bytes: Box<[u8]>,
}

impl Connection {
    /// Whether nothing is under way: it is established, nothing is in flight, owed or awaited, and there
    /// is nothing to say. Only a timer or something new can change that.
    pub(crate) fn is_at_rest(&self) -> bool {
        // What is most often under way first: this is asked whenever a connection was served.
        self.outbound.is_at_rest()
            && self.paths.iter().all(Path::is_at_rest)
            && self.inbound.is_at_rest()
            && self.phase == Phase::Established
            && self.handshake.is_none()
            && self.unconfirmed_at.is_none()
            && self.retry.is_paused()
            && self.liveness.is_at_rest()
            && self.told.is_at_rest()
            && !self.pairs.is_due()
            && self.close.is_empty()
    }

    /// When a timer ends the rest of a connection [at rest](Connection::is_at_rest).
    pub(crate) fn rest_ends_at(&self) -> Instant {
        let challenges = self.paths.iter().map(Path::challenge_at);
        challenges.fold(self.liveness.ask_at().min(self.join_deadline()), Instant::min)
    }

    /// Writes down a connection [at rest](Connection::is_at_rest), which is of no use any more: what is
    /// left of it is its memory.
    pub(crate) fn rest(&mut self, limits: InboundLimits) -> Resting {
        let bytes = self.pack();
        let resting = Resting {
            inbound: self.inbound.rest(),
            outbound: self.outbound.rest(),
            queue: Arc::clone(&self.queue),
            keep_alive_at: self.liveness.ask_at(),
            bytes,
        };
        debug_assert_eq!(
            resting.read(self.handle, limits, LinkSet::default()).pack(),
            resting.bytes
        );
        resting
    }

    /// What [`Resting`] does not keep as it is. Fields that are not written have one value in all
    /// connections at rest.
    fn pack(&self) -> Box<[u8]> {
        let mut to = Packer::new(self.liveness.heard_at());
        macro_rules! pack {
            ($($written:ident),*) => {
                let Self {
                    paths,
                    $($written,)*
                    handle: _,
                    phase: _,
                    outbound: _,
                    inbound: _,
                    queue: _,
                    handshake: _,
                    unconfirmed_at: _,
                    close: _,
                } = self;
                paths.pack(&mut to);
                $($written.pack(&mut to);)*
            };
        }
        with_written_fields!(pack);
        to.finish()
    }

    /// Lets go of everything but memory.
    pub(crate) fn clear(&mut self, queue: &Arc<CompletionQueue>, limits: InboundLimits) {
        self.paths.clear();
        self.pairs = Pairs::default();
        self.spreading = Spreading::default();
        self.inbound = Inbound::new(0, ProtectionDomain::NONE, limits, Arc::clone(queue));
        self.outbound = Outbound::new(0, NOTHING_GRANTED, Arc::clone(queue));
        self.queue = Arc::clone(queue);
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
        let mut from = Unpacker::new(&self.bytes);
        let paths = paths.unpack(&mut from);
        let queue = Arc::clone(&self.queue);
        macro_rules! connection {
            ($($written:ident),*) => {
                Connection {
                    handle,
                    phase: Phase::Established,
                    paths,
                    $($written: Pack::unpack(&mut from),)*
                    outbound: self.outbound.wake(handle.index, Arc::clone(&queue)),
                    inbound: Inbound::new(
                        handle.index,
                        ProtectionDomain::NONE,
                        limits,
                        Arc::clone(&queue),
                    ),
                    queue,
                    handshake: None,
                    unconfirmed_at: None,
                    close: CloseNotice::default(),
                }
            };
        }
        let mut connection = with_written_fields!(connection);
        connection.liveness.wake(self.keep_alive_at);
        assert!(from.is_at_end(), "a connection is read as it was written");
        connection
    }

    /// The connection as it was, its links in `paths`, which is empty.
    pub(crate) fn wake(
        self,
        handle: ConnectionHandle,
        limits: InboundLimits,
        paths: LinkSet,
    ) -> Connection {
        let mut connection = self.read(handle, limits, paths);
        connection.inbound = self.inbound.wake(handle.index, limits, self.queue);
        connection
    }
}
