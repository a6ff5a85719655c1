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
use semantics::{
    CompletionQueue, Inbound, InboundAtRest, InboundLimits, Outbound, OutboundAtRest, Owner,
};
use wire_edge::{CloseReason, OperationNumber};

use crate::connection::{Connection, NOTHING_GRANTED, Phase};
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::path::Path;

/// Calls a macro with the fields of a connection, but for its paths, that are written down: one list, so
/// that they are read in the order in which they were written.
macro_rules! with_written_fields {
    ($callee:ident) => {
        $callee!(
            id,
            peer_id,
            epoch,
            peer_epoch,
            peer,
            joining,
            told_addresses,
            scheduler,
            silence,
            hello_key,
            retries,
            heard_at,
            compares_links,
            spread_at,
            arrives_at,
            in_step,
            asked_on,
            unasked,
            furthest,
            told_credit,
            told_delivered
        )
    };
}

/// A connection on which nothing happens.
#[derive(Debug)]
pub(crate) struct Resting {
    queue: Arc<CompletionQueue>,
    inbound: InboundAtRest,
    outbound: OutboundAtRest,
    /// As [`Connection::keep_alive_at`].
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
            && self.retry_at == Instant::NEVER
            && self.silence.deadline() == Instant::NEVER
            && !(self.heard || self.asked || self.report_now || self.join_due)
            && self.close_data.is_empty()
    }

    /// When a timer ends the rest of a connection [at rest](Connection::is_at_rest).
    pub(crate) fn rest_ends_at(&self) -> Instant {
        let challenges = self.paths.iter().map(Path::challenge_at);
        challenges.fold(self.keep_alive_at.min(self.join_deadline()), Instant::min)
    }

    /// Writes down a connection [at rest](Connection::is_at_rest), which is of no use any more: what is
    /// left of it is its memory.
    pub(crate) fn rest(&mut self, limits: InboundLimits) -> Resting {
        let bytes = self.pack();
        let resting = Resting {
            inbound: self.inbound.rest(),
            outbound: self.outbound.rest(),
            queue: Arc::clone(&self.queue),
            keep_alive_at: self.keep_alive_at,
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
        let mut to = Packer::new(self.heard_at);
        macro_rules! pack {
            ($($written:ident),*) => {
                let Self {
                    paths,
                    $($written,)*
                    handle: _,
                    phase: _,
                    join_due: _,
                    outbound: _,
                    inbound: _,
                    queue: _,
                    handshake: _,
                    unconfirmed_at: _,
                    retry_at: _,
                    heard: _,
                    keep_alive_at: _,
                    asked: _,
                    report_now: _,
                    close: _,
                    close_data: _,
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
        self.joining = None;
        self.scheduler = None;
        self.inbound =
            Inbound::new(Owner::default(), ProtectionDomain::NONE, limits, Arc::clone(queue));
        self.outbound = Outbound::new(Owner::default(), NOTHING_GRANTED, Arc::clone(queue));
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
                    join_due: false,
                    outbound: self.outbound.wake(handle.owner(), Arc::clone(&queue)),
                    inbound: Inbound::new(
                        handle.owner(),
                        ProtectionDomain::NONE,
                        limits,
                        Arc::clone(&queue),
                    ),
                    queue,
                    handshake: None,
                    unconfirmed_at: None,
                    retry_at: Instant::NEVER,
                    heard: false,
                    keep_alive_at: self.keep_alive_at,
                    asked: false,
                    report_now: false,
                    close: (CloseReason::Finished, OperationNumber(0)),
                    close_data: Vec::new(),
                }
            };
        }
        let connection = with_written_fields!(connection);
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
        connection.inbound = self.inbound.wake(handle.owner(), limits, self.queue);
        connection
    }
}
