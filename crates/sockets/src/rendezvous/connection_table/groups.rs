//! The link groups in the connection table: how they are established and how they end.

use std::cmp::Reverse;
use std::fmt::Display;
use std::sync::Arc;

use delivery::Instant;
use engine::{Closed, ConnectRequest, ConnectionHandle, Terms};
use wire_edge::PeerAddr;

use crate::log::{LogLevel, note};
use crate::migration::machine::Event;
use crate::migration::offer::Offer;
use crate::reasons::Reason;
use crate::rendezvous::connection_table::{ConnectionTable, EngineTurn, SERVICE, Timer};
use crate::rendezvous::exchange::Site;
use crate::rendezvous::group::{Group, JOIN_WITHIN_NS};
use crate::wire::{Incarnation, decode_greeting, encode_greeting};

impl ConnectionTable {
    //= sockets-protocol.md: group.1, group.2, group.3, group.5
    /// Handles a peer's request for a group.
    pub(super) fn accept_group(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        connection: ConnectionHandle,
        at: PeerAddr,
        greeting: &[u8],
    ) {
        let peer = decode_greeting(greeting).ok().filter(|_| self.groups.admits(at));
        let Some(peer) = peer else {
            // An error means that the connection of the request has already ended.
            let _gone = turn.engine.reject(connection, &[]);
            return;
        };
        let own = encode_greeting(turn.exchange.incarnation);
        let domain = turn.memory.table().allocate_domain();
        let queue = Arc::clone(&self.queue);
        let accepted = turn.engine.accept(turn.now, connection, domain, queue, &own);
        let group = Group::new(turn.memory.table(), connection, domain, peer, at);
        match (accepted, group) {
            (Ok(()), Ok(group)) => {
                group.post_receive_buffers(turn.engine, turn.memory);
                self.insert_group(turn.now, group);
            }
            (Ok(()), Err(_)) => {
                let _gone = turn.engine.close(turn.now, connection, &[]);
            }
            (Err(_), group) => self.deferred.extend(group.ok().map(Group::into_deregistration)),
        }
    }

    /// Returns a group with the process `peer`, established or pending. If there is none, requests
    /// one.
    pub(super) fn group_with(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        peer: Incarnation,
        site: &Site,
        offer: &Offer,
    ) -> Result<ConnectionHandle, Reason> {
        if let Some(group) = self.groups.with(peer) {
            return Ok(group.handle());
        }
        let domain = turn.memory.table().allocate_domain();
        let mut address = offer.accepting;
        address.set_port(offer.port);
        let at = PeerAddr::from(address);
        let request = ConnectRequest {
            paths: vec![(site.link, at)],
            service: SERVICE,
            private_data: encode_greeting(turn.exchange.incarnation),
            domain,
            queues: Arc::clone(&self.queue).into(),
            terms: Terms::default(),
        };
        let handle = turn.engine.connect(turn.now, request).map_err(|_refused| Reason::NoGroup)?;
        let Ok(group) = Group::new(turn.memory.table(), handle, domain, peer, at) else {
            let _gone = turn.engine.close(turn.now, handle, &[]);
            return Err(Reason::Memory);
        };
        group.post_receive_buffers(turn.engine, turn.memory);
        self.insert_group(turn.now, group);
        Ok(handle)
    }

    fn insert_group(&mut self, now: Instant, group: Group) {
        let handle = group.handle();
        self.round_robin.open(handle);
        self.groups.insert(group);
        self.look_later(handle, now.after_ns(JOIN_WITHIN_NS));
    }

    fn look_later(&mut self, handle: ConnectionHandle, at: Instant) {
        let owner = handle.owner();
        self.timers.push(Reverse((at, Timer::Group(owner.index(), owner.life()))));
    }

    //= sockets-protocol.md: group.6
    /// Checks whether a group is in use. If not, closes the group.
    pub(super) fn on_group_due(&mut self, turn: &mut EngineTurn<'_, '_>, handle: ConnectionHandle) {
        let Some(group) = self.groups.get_mut(handle) else { return };
        if let Some(after_ns) = group.look() {
            return self.look_later(handle, turn.now.after_ns(after_ns));
        }
        let peer = group.peer.0;
        note(LogLevel::Debug, format_args!("the link group with {peer:032x} is not used"));
        self.close_group(turn, handle);
    }

    /// Starts to close a group. The engine then reports that the connection has ended, and that
    /// event removes the group.
    fn close_group(&mut self, turn: &mut EngineTurn<'_, '_>, handle: ConnectionHandle) {
        self.groups.retire(handle);
        let _gone = turn.engine.close(turn.now, handle, &[]);
    }

    pub(super) fn on_established(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
    ) {
        let Some(group) = self.groups.get_mut(handle) else { return };
        group.is_established = true;
        // Pending messages can be posted now.
        self.round_robin.wake(handle);
        let joiners = std::mem::take(&mut group.joiners);
        for id in joiners {
            self.step(turn, id, Event::GroupUp);
        }
    }

    //= sockets-protocol.md: group.4
    pub(super) fn on_group_lost(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        reason: Closed,
    ) {
        let Some(peer) = self.groups.get(handle).map(|group| group.peer) else { return };
        note(
            LogLevel::Debug,
            format_args!("the link group with {:032x} has ended: {reason}", peer.0),
        );
        // Handle operations that completed before the group ended.
        self.take_completions(turn);
        let Some(group) = self.groups.remove(handle) else { return };
        self.round_robin.close(handle);
        for id in &group.joiners {
            self.step(turn, *id, Event::GroupLost);
        }
        for number in group.streams() {
            self.lose_stream(turn, number, group.is_condemned);
        }
        self.deferred.push(group.into_deregistration());
    }

    /// Ends a group, because its peer has violated the protocol.
    pub(super) fn condemn(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        why: &dyn Display,
    ) {
        if let Some(group) = self.groups.get_mut(handle) {
            group.is_condemned = true;
        }
        note(
            LogLevel::Warn,
            format_args!(
                "a peer has violated the protocol, so the library resets its connections: {why}"
            ),
        );
        self.close_group(turn, handle);
    }
}
