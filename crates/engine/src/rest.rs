//! Connections at rest: packed into little memory.
//!
//! A connection takes 550 bytes and each of its links 1160, most of which is of use only while frames
//! come and go; packed, it is some 400 with one link. When nothing has happened for [`EngineConfig::rest_ns`](crate::EngineConfig::rest_ns) it is
//! packed: nothing is lost or rounded, so that it goes on as if it had never rested. It is unpacked when
//! it is taken out of the table, by whatever happens. The memory it had serves the next that wakes up,
//! so that connections which come and go allocate nothing but the packed form, and that when they fall
//! asleep.

use delivery::{Instant, Pack, Packer, Unpacker};
use mem::ProtectionDomain;
use semantics::{Inbound, InboundAtRest, InboundLimits, Outbound, OutboundAtRest, Owner, Queues};
use wire_edge::{CloseReason, OperationNumber};

use crate::connection::{Connection, Phase};
use crate::engine::{Engine, NOTHING_GRANTED, REPLIES_MAX};
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
    queues: Queues,
    inbound: InboundAtRest,
    outbound: OutboundAtRest,
    /// As [`Connection::keep_alive_at`].
    pub(crate) keep_alive_at: Instant,
    /// As [`Connection::listed_owing`].
    pub(crate) listed_owing: bool,
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
            && !(self.queued || self.listed_stalled || self.heard)
            && !(self.asked || self.report_now || self.join_due)
            && self.close_data.is_empty()
    }

    /// When a timer ends the rest of a connection [at rest](Connection::is_at_rest).
    pub(crate) fn rest_ends_at(&self) -> Instant {
        let challenges = self.paths.iter().map(|path| path.state.deadline());
        challenges.fold(self.keep_alive_at.min(self.join_deadline()), Instant::min)
    }

    /// Writes down a connection [at rest](Connection::is_at_rest), which is of no use any more: what is
    /// left of it is its memory.
    pub(crate) fn rest(&mut self, limits: InboundLimits) -> Resting {
        let bytes = self.pack();
        let resting = Resting {
            inbound: self.inbound.rest(),
            outbound: self.outbound.rest(),
            queues: self.queues.clone(),
            keep_alive_at: self.keep_alive_at,
            listed_owing: self.listed_owing,
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
                    queues: _,
                    handshake: _,
                    unconfirmed_at: _,
                    retry_at: _,
                    queued: _,
                    listed_stalled: _,
                    listed_owing: _,
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
    pub(crate) fn clear(&mut self, queues: &Queues, limits: InboundLimits) {
        self.paths.clear();
        self.joining = None;
        self.scheduler = None;
        self.inbound = Inbound::new(Owner::default(), ProtectionDomain::NONE, limits, queues);
        self.outbound = Outbound::new(Owner::default(), NOTHING_GRANTED, queues);
        self.queues = queues.clone();
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
        let queues = self.queues.clone();
        macro_rules! connection {
            ($($written:ident),*) => {
                Connection {
                    handle,
                    phase: Phase::Established,
                    paths,
                    $($written: Pack::unpack(&mut from),)*
                    join_due: false,
                    outbound: self.outbound.wake(handle.owner(), &queues),
                    inbound: Inbound::new(
                        handle.owner(),
                        ProtectionDomain::NONE,
                        limits,
                        &queues,
                    ),
                    queues,
                    handshake: None,
                    unconfirmed_at: None,
                    retry_at: Instant::NEVER,
                    queued: false,
                    listed_stalled: false,
                    listed_owing: self.listed_owing,
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
        connection.inbound = self.inbound.wake(handle.owner(), limits, &connection.queues);
        connection
    }
}

impl Engine {
    /// Packs all connections that are at rest now, without waiting whether something happens on them:
    /// for whoever knows that nothing will for a while. Looks at every connection.
    pub fn rest(&mut self) {
        for index in self.connections.indices() {
            let Some(connection) = self.connections.at(index) else { continue };
            if connection.is_at_rest() {
                let deadline = connection.rest_ends_at();
                self.connections.rest(index);
                self.timers.set(index, deadline);
            }
        }
        self.trim();
    }

    /// Packs a connection whose timer has come, if it has been at rest and nothing else is due.
    pub(crate) fn come_to_rest(&mut self, now: Instant, index: u32) -> bool {
        let Some(connection) = self.connections.at(index) else { return false };
        let deadline = connection.rest_ends_at();
        if deadline <= now || !connection.is_at_rest() {
            return false;
        }
        self.connections.rest(index);
        self.timers.set(index, deadline);
        self.trim();
        true
    }

    /// Gives back what many connections at a time, made or lost, have left behind in lists of the control
    /// path.
    fn trim(&mut self) {
        let (events, replies) =
            if self.config.allocates_ahead { (EVENTS_KEPT, REPLIES_MAX) } else { (0, 0) };
        if self.events.is_empty() && self.events.capacity() > events {
            self.events.shrink_to(events);
        }
        if self.replies.is_empty() && self.replies.capacity() > replies {
            self.replies.shrink_to(replies);
        }
    }

    /// A connection was taken out of the table for something of which it need not be served: it may go
    /// to rest again.
    pub(crate) fn rest_later(&mut self, connection: &Connection) {
        let index = connection.handle.index;
        let rests_at = self.turn_at.after_ns(self.config.rest_ns);
        if rests_at < self.timers.deadline(index) && connection.is_at_rest() {
            self.timers.set(index, rests_at);
        }
    }
}

/// News that an endpoint with few connections has at a time.
const EVENTS_KEPT: usize = 64;
