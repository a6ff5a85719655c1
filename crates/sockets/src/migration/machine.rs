//! The state machine that moves one end of a connection to the edge and back: phases, events,
//! actions.
//!
//! It has no I/O, no locks and no clock: it receives events with the time, and returns actions.
//! `docs/sockets-protocol.md` has the whole table, and a test compares the table with this code.

#[cfg(test)]
mod decided_tests;
#[cfg(test)]
mod explored_tests;
#[cfg(test)]
mod table_tests;

use std::net::Shutdown;

use delivery::Instant;

use crate::migration::attempts::{Attempts, FIRST_WAIT_NS};
use crate::migration::offer::{OfferStep, Offering, RENDEZVOUS_OPEN_NS};
use crate::reasons::Reason;
use crate::settings::Role;
use crate::wire::Refusal;

/// Phase of one end of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Phase {
    /// On TCP. This side has sent nothing to the peer.
    OnTcp,
    /// The accepting side sends offers. The connecting side has its rendezvous socket open and
    /// waits for an offer.
    Offering,
    /// The connecting side has accepted an offer. The link group is not established yet.
    Grouping,
    /// The connecting side has sent a join. The peer's switch marker may come in TCP.
    Joining,
    /// This side is about to write its switch marker into the TCP connection.
    Switching,
    /// This side has written its switch marker. Its later bytes go over the link group.
    OnEdge,
    /// On the edge. This side returns to TCP when the program has read the bytes that came by TCP.
    Returning,
    /// The return to TCP has begun: the link group carries no more bytes, and calls of the program
    /// wait.
    GoingHome,
    /// The peer is lost: this side neither sends nor receives. The program can still read bytes
    /// that have arrived.
    PeerLost,
    /// On TCP. The join has no answer: the link group was lost first, or the answer is late. The
    /// peer's switch marker may come.
    Unanswered,
    /// On TCP. The answer to the join is ignored. If the peer's switch marker comes, the connection
    /// is reset.
    Watching,
    /// Permanently left to the kernel.
    Ended(Reason),
}

/// Event at one end of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Event {
    /// The connection begins to move: its rendezvous socket is open, or the first offer is sent.
    Begin,
    /// The first bytes have gone over the connection.
    Bytes,
    /// The time [`Migration::due`] has passed.
    Time,
    /// An offer has arrived at the rendezvous socket of the connection.
    Offer,
    /// An offer of another protocol version has arrived.
    OtherVersion,
    /// The link group is established.
    GroupUp,
    /// The link group is lost.
    GroupLost,
    /// The link group or the stream cannot be created.
    NoStream(Reason),
    /// The peer accepts the offer and asks to join.
    Join,
    /// The peer has answered the join: its direction moves.
    Joined,
    /// The peer has refused the join.
    Refused(Refusal),
    /// The peer has closed its end of the stream.
    Forgotten,
    /// The peer's whole switch marker is in TCP. The link group over which the peer would have
    /// answered is lost.
    MarkerCame,
    /// The whole switch marker of this side has been written into TCP.
    MarkerWritten,
    /// TCP has no room for the switch marker or for its rest.
    MarkerWaits {
        /// A part of the switch marker is written.
        has_begun: bool,
    },
    /// The switch marker must not be written yet, because the peer's switch marker has not come.
    MarkerEarly,
    /// The marker cannot be written now, because a thread of the program is within a call. That
    /// call returns at once.
    InCall,
    /// Writing the switch marker failed.
    MarkerFails(Reason),
    /// The connection is to stay on TCP.
    Stay(Reason),
    /// The program shuts down a direction.
    Shut(Half),
    /// The program has closed its last descriptor of the connection in this process.
    Closed,
    /// The process is about to end.
    ProcessEnds,
    /// The connection is to return to TCP.
    Return,
    /// The stream has recorded its positions. From now on it neither accepts nor posts bytes.
    LeaveEdge,
    /// All bytes of the stream are in TCP, and the return is complete.
    Arrived,
    /// The peer has ended or reset the connection, or this side has reset the peer.
    PeerLost,
}

/// The directions that the program shuts down.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Half {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    Both,
}

/// Actions, to be performed in the order in which they are returned.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Action {
    /// Send the offer.
    SendOffer,
    /// Close the rendezvous socket, and find or create the link group of the offer.
    FindGroup,
    /// Create the stream. From then on search TCP for its switch marker.
    MakeStream,
    /// Ask the peer to join.
    SendJoin,
    /// Notify the peer that this side joins.
    SendJoined,
    /// Notify the peer that this side does not join.
    SendRefused(Refusal),
    /// Notify the peer that the stream is closed.
    SendReset,
    /// Search TCP for the peer's switch marker. Search again when more bytes arrive.
    LookForMarker,
    /// Try to write the switch marker that the peer expects. If that marker is not known, echo the
    /// one that this side expects.
    WriteMarker,
    /// Replace the TCP socket by the stream.
    Switch,
    /// Let the library read TCP for the program, which does not see a switch marker that may come.
    Await,
    /// Let the library read TCP for the program. A switch marker that comes resets the connection.
    Watch,
    /// Shut TCP down in the directions that the program has shut.
    ShutTcp,
    /// Leave the connection to the kernel for this reason.
    Leave(Reason),
    /// Release the rings: the peer no longer writes to them.
    DropStream,
}

/// One end of a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Migration {
    role: Role,
    phase: Phase,
    /// The time at which [`Event::Time`] is due.
    due: Instant,
    /// Schedule of the offers of this side, and the time for which they hold.
    offering: Option<Offering>,
    /// Schedule of the attempts to write the switch marker.
    attempts: Option<Attempts>,
    has_bytes: bool,
    /// TCP had no room for the switch marker. Nothing else may be written before it.
    is_held: bool,
    /// A part of the switch marker has been written.
    has_begun_marker: bool,
    /// `reads_no_more`, `writes_no_more`: the directions that the program has shut down before the
    /// move.
    reads_no_more: bool,
    writes_no_more: bool,
    /// The program has closed the connection in this process.
    is_closed: bool,
    /// `has_shut_reads`, `has_shut_writes`: the directions that were shut down in TCP before the
    /// move.
    has_shut_reads: bool,
    has_shut_writes: bool,
    /// The peer is lost, but the switch marker is still written, because a part of it has been.
    is_peer_lost: bool,
    /// The group is lost.
    is_group_lost: bool,
    /// The connection returns to TCP as soon as the switch marker is written.
    is_to_return: bool,
    /// This side echoes the switch marker that it expects, because it does not know the one that
    /// the peer expects.
    is_echoing: bool,
    /// The reason why the connection stays on TCP if no switch marker comes.
    why: Reason,
}

impl Migration {
    pub(crate) const fn new(role: Role) -> Self {
        Self {
            role,
            phase: Phase::OnTcp,
            due: Instant::NEVER,
            offering: None,
            attempts: None,
            has_bytes: false,
            is_held: false,
            has_begun_marker: false,
            reads_no_more: false,
            writes_no_more: false,
            is_closed: false,
            has_shut_reads: false,
            has_shut_writes: false,
            is_peer_lost: false,
            is_group_lost: false,
            is_to_return: false,
            is_echoing: false,
            why: Reason::NoAnswer,
        }
    }

    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns when [`Event::Time`] is due.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// Returns whether the switch marker must be written before any other bytes.
    pub(crate) const fn is_held(&self) -> bool {
        self.is_held && matches!(self.phase, Phase::Switching)
    }

    /// Returns whether the program has closed the connection in this process.
    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether this side echoes the switch marker that it expects, instead of writing the
    /// one that the peer expects.
    pub(crate) const fn is_echoing(&self) -> bool {
        self.is_echoing
    }

    /// Returns whether TCP accepts no more bytes, because it was shut down before the move.
    pub(crate) const fn has_ended_tcp(&self) -> bool {
        self.has_shut_writes
    }

    /// Returns the directions that the program has shut down before the move.
    pub(crate) const fn shut(&self) -> Option<Shutdown> {
        match (self.reads_no_more, self.writes_no_more) {
            (true, true) => Some(Shutdown::Both),
            (true, false) => Some(Shutdown::Read),
            (false, true) => Some(Shutdown::Write),
            (false, false) => None,
        }
    }

    /// Handles an event and returns the actions to perform. An event without a meaning in the
    /// current phase changes nothing.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Stay(_) | Event::Shut(_) | Event::Closed | Event::ProcessEnds => {
                self.on_program(event)
            }
            Event::Return | Event::LeaveEdge | Event::Arrived | Event::PeerLost => {
                self.on_edge(event)
            }
            _ => match self.phase {
                Phase::OnTcp | Phase::Offering => self.on_offering(event, now),
                Phase::Grouping | Phase::Joining => self.on_joining(event, now),
                Phase::Switching => self.on_switching(event, now),
                Phase::Unanswered => self.on_unanswered(event, now),
                Phase::Watching | Phase::Ended(_) => self.on_late_answer(event),
                Phase::OnEdge | Phase::Returning | Phase::GoingHome | Phase::PeerLost => Vec::new(),
            },
        }
    }

    //= sockets-protocol.md: offer.3, offer.4, offer.5, version.2
    fn on_offering(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let is_offering = self.phase == Phase::Offering;
        match (self.role, event) {
            (Role::Connecting, Event::Begin) if !is_offering => {
                self.enter(Phase::Offering, now.after_ns(RENDEZVOUS_OPEN_NS))
            }
            (Role::Accepting, Event::Begin) if !is_offering => {
                self.phase = Phase::Offering;
                self.begin_offering(now)
            }
            (Role::Accepting, Event::Bytes) if !self.has_bytes => {
                self.has_bytes = true;
                // The offer is valid from the first bytes on.
                if is_offering { self.begin_offering(now) } else { Vec::new() }
            }
            (_, Event::Time) if !is_offering || now < self.due => Vec::new(),
            (Role::Connecting, Event::Time) => self.leave(Reason::NoOffer),
            (Role::Accepting, Event::Time) => self.offer(now),
            (Role::Connecting, Event::Offer) if is_offering => {
                self.enter(Phase::Grouping, now.after_ns(GROUP_WITHIN_NS));
                vec![Action::FindGroup]
            }
            (Role::Connecting, Event::OtherVersion) if is_offering => self.leave(Reason::Version),
            (Role::Accepting, Event::Join) if is_offering => self.join(now),
            _ => Vec::new(),
        }
    }

    /// Starts the schedule of offers, and sends the first one.
    fn begin_offering(&mut self, now: Instant) -> Vec<Action> {
        let mut offering = Offering::new(now);
        let _sent = offering.step(now);
        self.offering = Some(offering);
        self.due = now;
        self.offer(now)
    }

    fn offer(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(offering) = &mut self.offering {
            match offering.step(now) {
                OfferStep::Send => actions.push(Action::SendOffer),
                OfferStep::Wait(until) => {
                    self.due = until;
                    break;
                }
                // Waiting costs nothing: a peer that does not use the connection opens no
                // rendezvous socket.
                OfferStep::Expired if !self.has_bytes => {
                    self.due = Instant::NEVER;
                    break;
                }
                OfferStep::Expired => return self.leave(Reason::NoAnswer),
            }
        }
        actions
    }

    //= sockets-protocol.md: join.2, join.3
    fn join(&mut self, now: Instant) -> Vec<Action> {
        let step = self.offering.as_mut().map(|offering| offering.step(now));
        if step == Some(OfferStep::Expired) {
            return self.refuse(Reason::NoAnswer, Refusal::UnknownToken);
        }
        self.enter(Phase::Switching, Instant::NEVER);
        self.attempts = Some(Attempts::new(now));
        vec![Action::MakeStream, Action::WriteMarker]
    }

    //= sockets-protocol.md: join.1, join.4, join.5, join.6
    fn on_joining(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let is_asked = self.phase == Phase::Joining;
        match event {
            Event::GroupUp if !is_asked => {
                self.enter(Phase::Joining, now.after_ns(ANSWER_WITHIN_NS));
                vec![Action::MakeStream, Action::SendJoin]
            }
            Event::NoStream(reason) => self.leave(reason),
            Event::Time if now < self.due => Vec::new(),
            Event::Time if is_asked => self.give_up_waiting(Reason::NoAnswer),
            Event::GroupLost if is_asked => {
                let mut actions = self.give_up_waiting(Reason::NoGroup);
                actions.extend(self.on_group_lost(now));
                actions
            }
            Event::Time | Event::GroupLost => self.leave(Reason::NoGroup),
            // The peer could not write its whole switch marker.
            Event::Forgotten if is_asked => {
                let mut actions = self.watch(Reason::Refused);
                actions.push(Action::DropStream);
                actions
            }
            Event::Joined if is_asked => self.switch(now),
            Event::Refused(refusal) if is_asked => {
                let is_only_tcp = refusal == Refusal::OnlyTcp;
                let mut actions =
                    self.leave(if is_only_tcp { Reason::OnlyTcp } else { Reason::Refused });
                actions.push(Action::DropStream);
                actions
            }
            _ => Vec::new(),
        }
    }

    /// Begins to write the switch marker.
    fn switch(&mut self, now: Instant) -> Vec<Action> {
        self.enter(Phase::Switching, Instant::NEVER);
        self.attempts = Some(Attempts::new(now));
        vec![Action::WriteMarker]
    }

    //= sockets-protocol.md: join.5, join.6
    /// Handles an event while it is unknown whether the peer has moved its direction. The program
    /// uses TCP meanwhile.
    fn on_unanswered(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let is_lost = self.is_group_lost;
        match event {
            Event::GroupLost => self.on_group_lost(now),
            Event::Time if is_lost && now >= self.due => {
                self.due = Instant::NEVER;
                vec![Action::LookForMarker]
            }
            Event::MarkerEarly if is_lost => self.wait(now),
            Event::MarkerCame if is_lost => {
                (self.is_echoing, self.is_to_return) = (true, true);
                self.switch(now)
            }
            Event::Joined if !is_lost => {
                self.is_to_return = self.has_shut_writes;
                self.switch(now)
            }
            // The peer has not moved its direction, so no switch marker comes.
            Event::Refused(_) => {
                let mut actions = self.leave(self.why);
                actions.push(Action::DropStream);
                actions
            }
            Event::Forgotten => {
                let mut actions = self.watch(Reason::Refused);
                actions.push(Action::DropStream);
                actions
            }
            _ => Vec::new(),
        }
    }

    /// Handles the loss of the group while the answer to the join is pending. If the peer has moved
    /// its direction, its switch marker comes.
    fn on_group_lost(&mut self, now: Instant) -> Vec<Action> {
        if self.phase != Phase::Unanswered || self.is_group_lost {
            return Vec::new();
        }
        self.is_group_lost = true;
        self.attempts = Some(Attempts::new(now));
        vec![Action::LookForMarker]
    }

    //= sockets-protocol.md: join.3, join.4, join.6, group.4
    fn on_switching(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let is_accepting = self.role == Role::Accepting;
        match event {
            Event::NoStream(reason) if is_accepting => self.refuse(reason, refusal_of(reason)),
            Event::NoStream(reason) => self.leave(reason),
            Event::Time if now >= self.due => vec![Action::WriteMarker],
            Event::MarkerWritten => {
                let phase = match (self.is_peer_lost, self.is_to_return) {
                    (true, _) => Phase::PeerLost,
                    (false, true) => Phase::Returning,
                    (false, false) => Phase::OnEdge,
                };
                self.enter(phase, Instant::NEVER);
                if is_accepting {
                    vec![Action::Switch, Action::SendJoined]
                } else {
                    vec![Action::Switch]
                }
            }
            Event::MarkerWaits { has_begun } => {
                self.is_held = true;
                self.has_begun_marker |= has_begun;
                let has_ended = self.attempts.is_some_and(|attempts| attempts.have_ended(now));
                if is_accepting && has_ended && !self.has_begun_marker {
                    return self.give_up(Reason::Busy);
                }
                self.wait(now)
            }
            Event::MarkerEarly => self.wait(now),
            Event::InCall => self.enter(Phase::Switching, now.after_ns(FIRST_WAIT_NS)),
            // The peer's program must not read a part of a switch marker. Therefore the rest is
            // retried until TCP fails, which also resets the connection for the peer.
            Event::MarkerFails(Reason::Descriptors) if self.has_begun_marker => self.wait(now),
            Event::MarkerFails(reason) if is_accepting && self.has_begun_marker => {
                let mut actions = self.leave(reason);
                actions.extend([Action::SendReset, Action::DropStream]);
                actions
            }
            Event::MarkerFails(reason) if is_accepting => self.give_up(reason),
            // The peer has already moved its direction, so the connection cannot stay on TCP.
            Event::MarkerFails(_) => {
                let mut actions = self.watch(Reason::NoGroup);
                actions.push(Action::SendReset);
                actions
            }
            Event::GroupLost if is_accepting && !self.has_begun_marker => {
                self.leave(Reason::NoGroup)
            }
            // The peer has moved its direction, or has received a part of a switch marker. This
            // side completes its switch marker, and then the stream returns to TCP.
            Event::GroupLost => {
                (self.is_group_lost, self.is_to_return) = (true, true);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn wait(&mut self, now: Instant) -> Vec<Action> {
        if let Some(attempts) = &mut self.attempts {
            self.due = attempts.again(now);
        }
        Vec::new()
    }

    /// Gives up writing the switch marker, and sends the peer a refusal.
    fn give_up(&mut self, reason: Reason) -> Vec<Action> {
        let mut actions = self.refuse(reason, refusal_of(reason));
        actions.push(Action::DropStream);
        actions
    }

    fn refuse(&mut self, reason: Reason, refusal: Refusal) -> Vec<Action> {
        let mut actions = self.leave(reason);
        actions.push(Action::SendRefused(refusal));
        actions
    }

    //= sockets-protocol.md: join.5
    /// Handles a message of the peer that arrives after this side has given up.
    fn on_late_answer(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Joined => vec![Action::SendReset],
            // The program closed the connection before the peer's join arrived.
            Event::Join if self.phase == Phase::Ended(Reason::Closed) => {
                vec![Action::SendRefused(Refusal::Closed)]
            }
            Event::Join => vec![Action::SendRefused(Refusal::OnlyTcp)],
            // The peer has not moved its direction, so no switch marker comes.
            Event::Refused(_) if self.phase == Phase::Watching => {
                let mut actions = self.leave(self.why);
                actions.push(Action::DropStream);
                actions
            }
            Event::Refused(_) | Event::Forgotten => vec![Action::DropStream],
            _ => Vec::new(),
        }
    }

    /// Handles an event of the program or its process.
    fn on_program(&mut self, event: Event) -> Vec<Action> {
        let is_early = matches!(self.phase, Phase::OnTcp | Phase::Offering | Phase::Grouping);
        let is_moving = matches!(self.phase, Phase::Joining | Phase::Switching);
        let is_waiting = matches!(self.phase, Phase::Unanswered | Phase::Watching);
        match event {
            Event::Stay(reason) if is_early => self.leave(reason),
            // A process that ends reports no reason for its connections.
            Event::ProcessEnds if is_early => {
                self.enter(Phase::Ended(Reason::Closed), Instant::NEVER)
            }
            Event::ProcessEnds if is_moving => {
                self.is_closed = true;
                Vec::new()
            }
            Event::Closed => {
                self.is_closed = true;
                if is_early || is_waiting { self.leave(Reason::Closed) } else { Vec::new() }
            }
            Event::Shut(half) if is_early || is_moving || is_waiting => {
                self.reads_no_more |= half != Half::Write;
                self.writes_no_more |= half != Half::Read;
                match self.phase {
                    // The shutdown is deferred until the switch marker is written or given up.
                    Phase::Joining | Phase::Switching => Vec::new(),
                    Phase::Unanswered if self.reads_no_more => self.watch(self.why),
                    Phase::Unanswered | Phase::Watching => {
                        drop(self.shut_tcp());
                        vec![Action::ShutTcp]
                    }
                    // A switch marker cannot follow the end of TCP.
                    _ => self.leave(Reason::Closed),
                }
            }
            _ => Vec::new(),
        }
    }

    //= sockets-protocol.md: home.1, home.4, home.5
    fn on_edge(&mut self, event: Event) -> Vec<Action> {
        let next = match (self.phase, event) {
            // The peer may handle the switch marker before this side has noted that it is written.
            (Phase::Switching, Event::Return | Event::PeerLost) => {
                self.is_to_return |= event == Event::Return;
                self.is_peer_lost |= event == Event::PeerLost;
                Phase::Switching
            }
            (Phase::OnEdge, Event::Return) => Phase::Returning,
            (Phase::OnEdge | Phase::Returning, Event::LeaveEdge) => Phase::GoingHome,
            (Phase::GoingHome, Event::Arrived) => Phase::Ended(Reason::Home),
            (Phase::OnEdge | Phase::Returning | Phase::GoingHome, Event::PeerLost) => {
                Phase::PeerLost
            }
            (phase, _) => phase,
        };
        self.phase = next;
        Vec::new()
    }

    fn enter(&mut self, phase: Phase, due: Instant) -> Vec<Action> {
        (self.phase, self.due) = (phase, due);
        Vec::new()
    }

    /// Leaves the connection to TCP.
    fn leave(&mut self, reason: Reason) -> Vec<Action> {
        let mut actions = self.shut_tcp();
        self.enter(Phase::Ended(reason), Instant::NEVER);
        actions.push(Action::Leave(reason));
        actions
    }

    //= sockets-protocol.md: join.5, join.6
    /// Continues on TCP after the join was not answered in time, and waits for the peer's switch
    /// marker.
    fn give_up_waiting(&mut self, reason: Reason) -> Vec<Action> {
        if self.reads_no_more {
            // If the program does not read, neither the switch marker nor a record can be taken out
            // of TCP.
            return self.watch(reason);
        }
        self.go_on_by_tcp(Phase::Unanswered, Action::Await, reason)
    }

    /// Continues on TCP. If the peer's switch marker comes, the connection is reset.
    fn watch(&mut self, reason: Reason) -> Vec<Action> {
        self.go_on_by_tcp(Phase::Watching, Action::Watch, reason)
    }

    /// Enters `phase` with TCP as the route. A closed connection is left to the kernel, which
    /// answers a switch marker with a reset.
    fn go_on_by_tcp(&mut self, phase: Phase, reading: Action, reason: Reason) -> Vec<Action> {
        if self.is_closed {
            return self.leave(reason);
        }
        let mut actions = vec![reading];
        actions.extend(self.shut_tcp());
        self.enter(phase, Instant::NEVER);
        self.why = reason;
        actions
    }

    /// Shuts TCP down if the program has asked for it and the shutdown was deferred until the move.
    fn shut_tcp(&mut self) -> Vec<Action> {
        let is_due = self.reads_no_more && !self.has_shut_reads
            || self.writes_no_more && !self.has_shut_writes;
        (self.has_shut_reads, self.has_shut_writes) = (self.reads_no_more, self.writes_no_more);
        if is_due { vec![Action::ShutTcp] } else { Vec::new() }
    }
}

#[cfg(test)]
impl Migration {
    /// Sets all times to the only time that `explored_tests` uses.
    fn forget_times(&mut self) {
        let now = explored_tests::NOW;
        if self.due < Instant::NEVER {
            self.due = now;
        }
        self.offering = self.offering.map(|_| Offering::new(now));
        self.attempts = self.attempts.map(|_| Attempts::new(now));
    }
}

impl From<Shutdown> for Half {
    fn from(how: Shutdown) -> Self {
        match how {
            Shutdown::Read => Self::Read,
            Shutdown::Write => Self::Write,
            Shutdown::Both => Self::Both,
        }
    }
}

/// Returns the refusal to send to the peer for a reason of this side.
const fn refusal_of(reason: Reason) -> Refusal {
    match reason {
        Reason::Closed => Refusal::Closed,
        Reason::Descriptors => Refusal::Descriptors,
        Reason::OnlyTcp => Refusal::OnlyTcp,
        Reason::Busy => Refusal::Busy,
        _ => Refusal::Memory,
    }
}

/// The time within which the link group must be established, in nanoseconds. It allows for several
/// losses of the first frames. TCP carries the bytes meanwhile.
const GROUP_WITHIN_NS: u64 = 2_000_000_000;

/// The time within which the peer must answer a join, in nanoseconds. A live peer answers at once,
/// unless TCP has no room; then it gives up after half of this time. TCP carries the bytes
/// meanwhile.
pub(crate) const ANSWER_WITHIN_NS: u64 = 10_000_000_000;
