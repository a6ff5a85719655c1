//! Connections that join a group. [`Migration`](crate::migration::Migration) decides which actions
//! are necessary; this module performs them.

use std::cmp::Reverse;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use engine::ConnectionHandle;
use nix::sys::socket::{SockaddrStorage, recvfrom};

use crate::calls::connection::Connection;
use crate::migration::machine::{Action, Event, Phase};
use crate::migration::offer::{OFFER_BYTES, Offer};
use crate::reasons::Reason;
use crate::rendezvous::connection_table::{ConnectionTable, EngineTurn, Timer, Undecided};
use crate::rendezvous::doorbell::Doorbell;
use crate::rendezvous::group::Context;
use crate::rendezvous::stream_table::StreamEntry;
use crate::transport::stream::StreamParts;
use crate::wire::{Malformed, Message, OfferToken, Refusal, StreamEnd, StreamNumber};

impl ConnectionTable {
    /// Adds a connection that begins to move: its rendezvous socket is open, or its first offer is
    /// sent.
    pub(super) fn begin(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        connection: &Arc<Connection>,
        rendezvous_socket: Option<OwnedFd>,
        offer: Option<Offer>,
    ) {
        let id = connection.token();
        if let Some(offer) = &offer {
            self.offers.insert(offer.token, id);
        }
        let (group, stream, peer) = (None, None, None);
        let (connection, timer) = (Arc::clone(connection), delivery::Instant::NEVER);
        let has_bytes = connection.has_bytes();
        let undecided =
            Undecided { connection, rendezvous_socket, offer, group, stream, peer, timer };
        self.undecided.insert(id, undecided);
        self.step(turn, id, Event::Begin);
        if has_bytes {
            self.step(turn, id, Event::Bytes);
        }
    }

    /// Handles an event of a connection that is about to move.
    pub(super) fn step(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64, event: Event) {
        let Some(undecided) = self.undecided.get(&id) else { return };
        let actions = undecided.connection.on(event, turn.now);
        self.act(turn, id, &actions);
    }

    fn act(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64, actions: &[Action]) {
        for action in actions {
            let done = match *action {
                Action::FindGroup => self.find_group(turn, id),
                Action::MakeStream => self.make_stream(turn, id),
                Action::WriteMarker => {
                    self.write_marker(turn, id);
                    Ok(())
                }
                Action::LookForMarker => {
                    self.look_for_marker(turn, id);
                    Ok(())
                }
                action => {
                    self.act_on_peer(turn, id, action);
                    Ok(())
                }
            };
            if let Err(reason) = done {
                // Skip the remaining actions, because they need the group and the stream.
                return self.step(turn, id, Event::NoStream(reason));
            }
        }
        self.settle_undecided(turn, id);
    }

    /// Performs an action that needs only the peer, the group and the stream.
    fn act_on_peer(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64, action: Action) {
        let Some(undecided) = self.undecided.get(&id) else { return };
        let &Undecided { group, stream, peer, offer, .. } = undecided;
        if action == Action::SendOffer {
            undecided.connection.send_offer();
            return;
        }
        let own = stream.and_then(|number| {
            let entry = self.streams.get_mut(number)?;
            if let (Action::Switch, Some(peer)) = (action, peer) {
                entry.open = Some((peer.number, peer.ring));
            }
            Some(StreamEnd { number, marker: entry.marker, ring: entry.rings.receive })
        });
        let token = offer.map(|offer| offer.token);
        let to = peer.map(|peer| peer.number);
        let message = match (action, own, to, token) {
            (Action::SendJoin, Some(end), _, Some(token)) => Message::Join { token, end },
            (Action::SendJoined, Some(end), Some(to), _) => Message::Joined { to, end },
            (Action::SendRefused(refusal), _, Some(to), _) => Message::Refused { to, refusal },
            (Action::SendReset, _, Some(to), _) => Message::Reset { to },
            (Action::DropStream, Some(end), ..) => return self.forget_stream(end.number),
            (Action::Switch, Some(end), ..) => return self.enqueue(end.number),
            _ => return,
        };
        if let Some(group) = group {
            self.send(turn, group, message, Context::Message);
        }
    }

    /// Removes the connection if its route is decided. Otherwise sets the connection's timer.
    /// Called after each event.
    pub(super) fn settle_undecided(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) {
        let Some(undecided) = self.undecided.get_mut(&id) else { return };
        let is_undecided = matches!(
            undecided.connection.phase(),
            Phase::OnTcp
                | Phase::Offering
                | Phase::Grouping
                | Phase::Joining
                | Phase::Switching
                | Phase::Unanswered
        );
        if is_undecided {
            let due = undecided.connection.due();
            if due < undecided.timer {
                undecided.timer = due;
                self.timers.push(Reverse((due, Timer::Undecided(id))));
            }
            return;
        }
        self.has_changed = true;
        undecided.close_rendezvous_socket(turn.exchange);
        if let Some(offer) = undecided.offer {
            self.offers.remove(&offer.token);
        }
        self.undecided.remove(&id);
    }

    pub(super) fn on_undecided_due(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) {
        // An offer may have arrived while no thread was polling the socket.
        self.on_rendezvous_socket(turn, id);
        if let Some(undecided) = self.undecided.get_mut(&id) {
            undecided.timer = delivery::Instant::NEVER;
        }
        self.step(turn, id, Event::Time);
    }

    //= sockets-protocol.md: offer.2, offer.5, version.2
    /// Handles the datagrams that have arrived at a rendezvous socket.
    pub(super) fn on_rendezvous_socket(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) {
        let mut room = [0; OFFER_BYTES + 1];
        loop {
            let Some(undecided) = self.undecided.get_mut(&id) else { return };
            let Some(rendezvous_socket) = &undecided.rendezvous_socket else { return };
            let Ok((length, Some(from))) =
                recvfrom::<SockaddrStorage>(rendezvous_socket.as_raw_fd(), &mut room)
            else {
                return;
            };
            let (local, peer) = (undecided.connection.local(), undecided.connection.peer());
            // Ignore datagrams from other addresses, even those with another version.
            let from = ip_of(&from).filter(|from| from.to_canonical() == peer.ip().to_canonical());
            let Some(from) = from else { continue };
            // Do not take an offer before the link is open. The peer repeats its offer.
            if turn.exchange.site(local.ip()).is_none() {
                continue;
            }
            match Offer::decode(room.get(..length).unwrap_or_default()) {
                Ok(offer) if offer.is_for(local, peer, from) => {
                    undecided.offer = Some(offer);
                    self.step(turn, id, Event::Offer);
                }
                Err(Malformed::Version(_)) => self.step(turn, id, Event::OtherVersion),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn find_group(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) -> Result<(), Reason> {
        let Some(undecided) = self.undecided.get_mut(&id) else { return Ok(()) };
        undecided.close_rendezvous_socket(turn.exchange);
        let offer = undecided.offer.ok_or(Reason::NoOffer)?;
        let site = turn.exchange.site(undecided.connection.local().ip());
        let site = site.ok_or(Reason::NoEndpoint)?;
        let handle = self.group_with(turn, offer.incarnation, &site, &offer)?;
        if let Some(undecided) = self.undecided.get_mut(&id) {
            undecided.group = Some(handle);
        }
        let Some(group) = self.groups.get_mut(handle) else { return Err(Reason::NoGroup) };
        if group.is_established {
            self.step(turn, id, Event::GroupUp);
        } else {
            group.joiners.push(id);
        }
        Ok(())
    }

    /// Creates the stream of a connection. After this, the library reads TCP, and searches the
    /// bytes for the switch marker that this side expects.
    fn make_stream(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) -> Result<(), Reason> {
        let Some(undecided) = self.undecided.get_mut(&id) else { return Ok(()) };
        let handle = undecided.group.ok_or(Reason::NoGroup)?;
        let connection = Arc::clone(&undecided.connection);
        let group = self.groups.get_mut(handle).ok_or(Reason::NoGroup)?;
        let number = self.streams.next_number().ok_or(Reason::Memory)?;
        let rings = group.arena.take(turn.memory.table()).map_err(|_full| Reason::Memory)?;
        let (send, receive) = group.arena.parts(&rings);
        let (marker, doorbell) =
            (self.exchange.random_marker(), Doorbell::new(&self.exchange, number));
        let stream_doorbell = Box::new(doorbell.clone());
        let echo = undecided.peer.map(|peer| peer.marker);
        let parts =
            StreamParts { send, receive, expected: marker, echo, doorbell: stream_doorbell };
        let stream = connection
            .make_stream(parts)
            .inspect_err(|_| self.deferred.extend(group.give_back(&rings)))?;
        let (group, open, is_queued, timer) = (handle, None, false, delivery::Instant::NEVER);
        let entry = StreamEntry {
            stream,
            connection,
            doorbell,
            group,
            rings,
            marker,
            open,
            is_queued,
            timer,
        };
        self.streams.insert(number, entry);
        if let Some(group) = self.groups.get_mut(handle) {
            group.add_stream(number);
        }
        if let Some(undecided) = self.undecided.get_mut(&id) {
            undecided.stream = Some(number);
        }
        Ok(())
    }

    //= sockets-protocol.md: join.6
    /// Tries to write into TCP the switch marker that the peer expects. If this side does not know
    /// that marker, writes an echo: the marker that this side expects.
    pub(super) fn write_marker(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) {
        let Some(undecided) = self.undecided.get(&id) else { return };
        let Some(entry) = undecided.stream.and_then(|number| self.streams.get(number)) else {
            return;
        };
        // Clear the mark first, so that a later change of TCP marks the stream again.
        entry.doorbell.unmark();
        let known = undecided.peer.map(|peer| (peer.marker, Some(peer.ring.bytes)));
        let known = known.filter(|_| !undecided.connection.is_echoing());
        let (marker, ring) = known.unwrap_or((entry.marker, None));
        let actions = undecided.connection.write_marker(marker, ring, turn.now);
        self.act(turn, id, &actions);
    }

    //= sockets-protocol.md: join.6
    /// Searches TCP for the peer's switch marker, after the group was lost before the peer
    /// answered.
    pub(super) fn look_for_marker(&mut self, turn: &mut EngineTurn<'_, '_>, id: u64) {
        let seen =
            self.undecided.get(&id).and_then(|undecided| undecided.connection.look_for_marker());
        if let Some(event) = seen {
            self.step(turn, id, event);
        }
    }

    //= sockets-protocol.md: join.2
    /// Handles Join from a peer.
    pub(super) fn on_join(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        token: OfferToken,
        end: StreamEnd,
    ) {
        let known = self.offers.remove(&token);
        let undecided = known.and_then(|id| Some((id, self.undecided.get_mut(&id)?)));
        let Some((id, undecided)) = undecided else {
            let refused = Message::Refused { to: end.number, refusal: Refusal::UnknownToken };
            return self.send(turn, handle, refused, Context::Message);
        };
        (undecided.group, undecided.peer) = (Some(handle), Some(end));
        self.step(turn, id, Event::Join);
    }

    //= sockets-protocol.md: join.4
    pub(super) fn on_joined(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        to: StreamNumber,
        end: StreamEnd,
    ) {
        let id = self.streams.of_group(handle, to).map(|entry| entry.connection.token());
        let asked = id.and_then(|id| Some((id, self.undecided.get_mut(&id)?)));
        match asked {
            Some((id, undecided)) if undecided.peer.is_none() => {
                undecided.peer = Some(end);
                self.step(turn, id, Event::Joined);
            }
            // This side has given up the move, or the peer has sent Joined a second time.
            _ => {
                let reset = Message::Reset { to: end.number };
                self.send(turn, handle, reset, Context::Message);
            }
        }
    }

    pub(super) fn on_refused(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        to: StreamNumber,
        refusal: Refusal,
    ) {
        if self.streams.of_group(handle, to).is_some_and(|entry| entry.open.is_none()) {
            self.on_answer(turn, to, Event::Refused(refusal));
        }
    }

    /// Handles a message with which the peer reports that it has no stream for this connection. The
    /// peer therefore does not write to the ring. This side may already have given up its stream.
    pub(super) fn on_answer(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        number: StreamNumber,
        event: Event,
    ) {
        let Some(entry) = self.streams.get(number) else { return };
        let id = entry.connection.token();
        if self.undecided.contains_key(&id) {
            self.step(turn, id, event);
        } else if entry.connection.on(event, turn.now).contains(&Action::DropStream) {
            self.forget_stream(number);
        }
    }
}

fn ip_of(from: &SockaddrStorage) -> Option<std::net::IpAddr> {
    let v4 = from.as_sockaddr_in().map(|from| from.ip().into());
    v4.or_else(|| from.as_sockaddr_in6().map(|from| from.ip().into()))
}
