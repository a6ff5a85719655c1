//! Connections on their way into a group: doors, offers, joins and their answers.

use std::cmp::Reverse;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use engine::ConnectionHandle;
use nix::sys::socket::{SockaddrStorage, recvfrom};

use super::{Desk, Offered, Timer, Turn};
use crate::attempts::{Attempts, FIRST_WAIT_NS};
use crate::bell::Bell;
use crate::connection::{Connection, Sealing};
use crate::group::Context;
use crate::offer::{OFFER_BYTES, Offer, OfferStep, Offering};
use crate::reasons::Reason;
use crate::stream::StreamParts;
use crate::table::{Entry, EntryStage};
use crate::upgrade::{AtAnswer, AtDoor, Joining};
use crate::wire::{Message, OfferToken, Refusal, StreamEnd, StreamNumber};

impl Desk {
    /// Datagrams have come to a door.
    pub(super) fn on_door(&mut self, turn: &mut Turn<'_, '_>, id: u64) {
        let mut room = [0; OFFER_BYTES + 1];
        loop {
            let Some(joiner) = self.joiners.get_mut(&id) else { return };
            let Some(door) = &joiner.door else { return };
            let Ok((length, Some(from))) = recvfrom::<SockaddrStorage>(door.as_raw_fd(), &mut room)
            else {
                return;
            };
            let (local, peer) = (joiner.connection.local(), joiner.connection.peer());
            // Strangers have no say, not even by their version.
            let from = ip_of(&from).filter(|from| from.to_canonical() == peer.ip().to_canonical());
            let Some(from) = from else { continue };
            // Until the link is there, offers are not taken: they come again.
            let Some(site) = turn.endpoint.site(local.ip()) else { continue };
            let datagram = Offer::decode(room.get(..length).unwrap_or_default());
            let is_ours = |offer: &Offer| offer.is_for(local, peer, from);
            match joiner.joining.on_datagram(turn.now, datagram, is_ours) {
                AtDoor::Ignore => {}
                AtDoor::Leave(reason) => return self.leave(turn, id, reason),
                AtDoor::Take(offer) => {
                    joiner.close_door(turn.endpoint);
                    self.timers.push(Reverse((joiner.joining.due(), Timer::Joiner(id))));
                    match self.group_with(turn, offer.incarnation, &site, &offer) {
                        Ok(handle) => self.join_group(turn, id, handle),
                        Err(reason) => self.leave(turn, id, reason),
                    }
                    return;
                }
            }
        }
    }

    fn join_group(&mut self, turn: &mut Turn<'_, '_>, id: u64, handle: ConnectionHandle) {
        let Some(group) = self.groups.get_mut(handle) else { return };
        if group.is_established {
            self.ask(turn, id, handle);
        } else {
            group.joiners.push(id);
        }
    }

    //= sockets-protocol.md: join.1
    /// Takes the offer: the group is there.
    pub(super) fn ask(&mut self, turn: &mut Turn<'_, '_>, id: u64, handle: ConnectionHandle) {
        let Some(joiner) = self.joiners.get_mut(&id) else { return };
        let Some(token) = joiner.joining.on_group(turn.now) else { return };
        let due = joiner.joining.due();
        let connection = Arc::clone(&joiner.connection);
        match self.begin(turn, handle, &connection, EntryStage::Asked(id)) {
            Ok(end) => {
                if let Some(joiner) = self.joiners.get_mut(&id) {
                    (joiner.group, joiner.stream) = (Some(handle), Some(end.number));
                }
                self.timers.push(Reverse((due, Timer::Joiner(id))));
                self.send(turn, handle, Message::Join { token, end }, Context::Message);
            }
            Err(reason) => self.leave(turn, id, reason),
        }
    }

    /// Makes the stream of a connection: TCP is read by us from now on, for the seal that the peer is told.
    fn begin(
        &mut self,
        turn: &mut Turn<'_, '_>,
        handle: ConnectionHandle,
        connection: &Arc<Connection>,
        stage: EntryStage,
    ) -> Result<StreamEnd, Reason> {
        let group = self.groups.get_mut(handle).ok_or(Reason::NoGroup)?;
        let endpoint = self.endpoint.upgrade().ok_or(Reason::NoEndpoint)?;
        let number = self.streams.next_number().ok_or(Reason::Memory)?;
        let rings = group.arena.take(turn.memory.table()).map_err(|_full| Reason::Memory)?;
        let (send, receive) = group.arena.parts(&rings);
        let (seal, bell) = (endpoint.random_seal(), Bell::new(&endpoint, number));
        let ringing = Box::new(bell.clone());
        let parts = StreamParts { send, receive, expected: seal, bell: ringing };
        let stream =
            connection.begin(parts).inspect_err(|_| self.graves.extend(group.give_back(&rings)))?;
        let (connection, timer) = (Arc::clone(connection), delivery::Instant::NEVER);
        let is_queued = false;
        let group = handle;
        let entry = Entry { stream, connection, bell, group, rings, seal, stage, is_queued, timer };
        self.streams.insert(number, entry);
        if let Some(group) = self.groups.get_mut(handle) {
            group.add_stream(number);
        }
        Ok(StreamEnd { number, seal, ring: rings.receive })
    }

    //= sockets-protocol.md: join.2, join.3
    /// A peer takes an offer.
    pub(super) fn on_join(
        &mut self,
        turn: &mut Turn<'_, '_>,
        handle: ConnectionHandle,
        token: OfferToken,
        end: StreamEnd,
    ) {
        let refuse = |refusal| Message::Refused { to: end.number, refusal };
        let Some(Offered { connection, mut offering, .. }) = self.take_offer(token) else {
            let refused = refuse(Refusal::UnknownToken);
            return self.send(turn, handle, refused, Context::Message);
        };
        if offering.step(turn.now) == OfferStep::Expired {
            connection.leave(Reason::NoAnswer);
            let refused = refuse(Refusal::UnknownToken);
            return self.send(turn, handle, refused, Context::Message);
        }
        let stage = EntryStage::Sealing(end, Attempts::new(turn.now));
        match self.begin(turn, handle, &connection, stage) {
            Ok(own) => self.seal(turn, own.number),
            Err(reason) => {
                connection.leave(reason);
                self.send(turn, handle, refuse(refusal_of(reason)), Context::Message);
            }
        }
    }

    //= sockets-protocol.md: join.3, join.4
    /// Writes the peer's seal into the TCP connection, if it may be written by now.
    pub(super) fn seal(&mut self, turn: &mut Turn<'_, '_>, number: StreamNumber) {
        let Some(entry) = self.streams.get_mut(number) else { return };
        let EntryStage::Sealing(end, attempts) = &mut entry.stage else { return };
        let end = *end;
        let handle = entry.group;
        let is_accepting = entry.connection.role() == crate::settings::Role::Accepting;
        // Whoever comes out of a TCP write from now on marks it again.
        entry.bell.unmark();
        let sealing = match entry.connection.seal(end.seal, end.ring.bytes) {
            Sealing::Busy if is_accepting && attempts.are_over(turn.now) => {
                entry.connection.give_up_seal()
            }
            sealing => sealing,
        };
        self.has_changed |= !matches!(sealing, Sealing::Busy | Sealing::InCall);
        match sealing {
            Sealing::Done => {
                entry.stage = EntryStage::Open { to: end.number, ring: end.ring };
                if is_accepting {
                    let own = StreamEnd { number, seal: entry.seal, ring: entry.rings.receive };
                    let joined = Message::Joined { to: end.number, end: own };
                    self.send(turn, handle, joined, Context::Message);
                }
                self.enqueue(number);
            }
            Sealing::Busy | Sealing::InCall => {
                let again = match sealing {
                    Sealing::InCall => turn.now.after_ns(FIRST_WAIT_NS),
                    _ => attempts.again(turn.now),
                };
                if again < entry.timer {
                    entry.timer = again;
                    self.timers.push(Reverse((again, Timer::Stream(number.0))));
                }
            }
            Sealing::Refused(reason) if is_accepting => {
                entry.connection.leave(reason);
                let refused = Message::Refused { to: end.number, refusal: refusal_of(reason) };
                self.forget_stream(number);
                self.send(turn, handle, refused, Context::Message);
            }
            // The peer has moved its direction already: there is no way back.
            // It is asked no more; its rings are free when the peer has answered.
            Sealing::Refused(_) => {
                entry.stage = EntryStage::Refused;
                entry.connection.leave(Reason::NoGroup);
                self.send(turn, handle, Message::Reset { to: end.number }, Context::Message);
            }
        }
    }

    //= sockets-protocol.md: join.4
    pub(super) fn on_joined(
        &mut self,
        turn: &mut Turn<'_, '_>,
        handle: ConnectionHandle,
        to: StreamNumber,
        end: StreamEnd,
    ) {
        let reset = Message::Reset { to: end.number };
        let Some(entry) = self.streams.of_group(handle, to) else {
            return self.send(turn, handle, reset, Context::Message);
        };
        let EntryStage::Asked(id) = entry.stage else {
            return self.send(turn, handle, reset, Context::Message);
        };
        let Some(mut joiner) = self.joiners.remove(&id) else { return };
        match joiner.joining.on_joined() {
            AtAnswer::Seal => {
                entry.stage = EntryStage::Sealing(end, Attempts::new(turn.now));
                self.seal(turn, to);
            }
            AtAnswer::Leave(_) | AtAnswer::Reset => {
                self.send(turn, handle, reset, Context::Message);
            }
        }
    }

    pub(super) fn on_refused(
        &mut self,
        turn: &mut Turn<'_, '_>,
        handle: ConnectionHandle,
        to: StreamNumber,
        refusal: Refusal,
    ) {
        let Some(entry) = self.streams.of_group(handle, to) else { return };
        let id = match entry.stage {
            EntryStage::Asked(id) => id,
            // It had been given up before.
            EntryStage::Refused => return self.forget_stream(to),
            EntryStage::Sealing(..) | EntryStage::Open { .. } => return,
        };
        let Some(joiner) = self.joiners.get_mut(&id) else { return };
        if let AtAnswer::Leave(reason) = joiner.joining.on_refused(refusal) {
            self.leave(turn, id, reason);
        }
    }

    /// A connection that is undecided is left to TCP, if `decide` says so.
    pub(super) fn give_up(
        &mut self,
        turn: &mut Turn<'_, '_>,
        id: u64,
        decide: impl FnOnce(&mut Joining) -> Option<Reason>,
    ) {
        let Some(joiner) = self.joiners.get_mut(&id) else { return };
        if let Some(reason) = decide(&mut joiner.joining) {
            self.leave(turn, id, reason);
        }
    }

    /// A joiner is left to TCP. Its stream, if the peer was asked, goes on looking for the seal: the peer may have moved
    /// its direction.
    fn leave(&mut self, turn: &mut Turn<'_, '_>, id: u64, reason: Reason) {
        let Some(mut joiner) = self.joiners.remove(&id) else { return };
        joiner.close_door(turn.endpoint);
        joiner.connection.leave(reason);
        let Some(number) = joiner.stream else { return };
        if matches!(reason, Reason::Refused | Reason::OnlyTcp) {
            return self.forget_stream(number);
        }
        // The peer may write to the ring still.
        if let Some(entry) = self.streams.get_mut(number) {
            entry.stage = EntryStage::Refused;
        }
    }

    /// A connection was left to TCP by the program, or by us before.
    pub(super) fn on_left(&mut self, turn: &mut Turn<'_, '_>, token: u64) {
        if let Some(offer) = self.offered.remove(&token) {
            self.offers.remove(&offer);
        }
        // Who was asked may have moved its direction: its answer is waited for.
        if self.joiners.get(&token).is_some_and(|joiner| joiner.stream.is_none()) {
            self.leave(turn, token, Reason::Closed);
        }
    }

    /// The connection of an offer that holds no more, or is taken.
    fn take_offer(&mut self, token: OfferToken) -> Option<Offered> {
        let offered = self.offers.remove(&token)?;
        self.offered.remove(&offered.connection.token());
        Some(offered)
    }

    pub(super) fn on_joiner_due(&mut self, turn: &mut Turn<'_, '_>, id: u64) {
        let now = turn.now;
        // An offer may have come while nobody had the time to look.
        self.on_door(turn, id);
        let Some(joiner) = self.joiners.get(&id) else { return };
        let due = joiner.joining.due();
        if due > now && due < delivery::Instant::NEVER {
            // It was entered again when it changed.
            return;
        }
        self.give_up(turn, id, |joining| joining.on_time(now));
    }

    /// The first bytes have gone over a connection: its offer counts from now, and was sent.
    pub(super) fn on_first_bytes(&mut self, turn: &mut Turn<'_, '_>, id: u64) {
        let Some(&token) = self.offered.get(&id) else { return };
        let Some(offered) = self.offers.get_mut(&token) else { return };
        offered.offering = Offering::new(turn.now);
        let _sent = offered.offering.step(turn.now);
        self.timers.push(Reverse((turn.now, Timer::Offer(token.0))));
    }

    //= sockets-protocol.md: offer.3, offer.4
    pub(super) fn on_offer_due(&mut self, turn: &mut Turn<'_, '_>, token: OfferToken) {
        let Some(offered) = self.offers.get_mut(&token) else { return };
        let wait = |until| Reverse((until, Timer::Offer(token.0)));
        match offered.offering.step(turn.now) {
            OfferStep::Send => {
                if let Some(site) = turn.endpoint.site(offered.offer.accepting.ip()) {
                    offered.connection.send_offer(&site, &offered.offer);
                }
                self.timers.push(wait(turn.now));
            }
            OfferStep::Wait(until) => self.timers.push(wait(until)),
            // A peer that does not use the connection has no door open: nothing is lost by waiting.
            OfferStep::Expired if !offered.connection.has_bytes() => {}
            OfferStep::Expired => {
                if let Some(offered) = self.take_offer(token) {
                    offered.connection.leave(Reason::NoAnswer);
                }
            }
        }
    }
}

/// What the peer is told.
const fn refusal_of(reason: Reason) -> Refusal {
    match reason {
        Reason::Closed => Refusal::Closed,
        Reason::Descriptors => Refusal::Descriptors,
        Reason::OnlyTcp => Refusal::OnlyTcp,
        Reason::Busy => Refusal::Busy,
        _ => Refusal::Memory,
    }
}

fn ip_of(from: &SockaddrStorage) -> Option<std::net::IpAddr> {
    let v4 = || from.as_sockaddr_in().map(|from| from.ip().into());
    let v6 = || from.as_sockaddr_in6().map(|from| from.ip().into());
    v4().or_else(v6)
}
