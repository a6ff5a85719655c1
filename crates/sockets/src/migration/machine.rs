//! How one end of a connection moves, and comes home: which events bring it from which phase to which, and what is to be
//! done then. No I/O, no locks, no clock: events and the time come in, actions go out. `docs/sockets-protocol.md` has the
//! whole table, which a test compares with this.

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

/// Where one end of a connection is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Phase {
    /// TCP has its bytes, and nothing was said to the peer.
    OnTcp,
    /// The side that accepted sends offers; the side that connected has its rendezvous socket open for one.
    Offering,
    /// An offer was taken, and the link group is not there yet.
    Grouping,
    /// The peer was asked to join. Its switch marker may come in TCP.
    Joining,
    /// The peer's switch marker is to be written into the TCP connection.
    Switching,
    /// The bytes of this side go by the group, behind the switch marker.
    OnEdge,
    /// On the edge, and to go home when the program has read what came by TCP.
    Returning,
    /// Nothing goes by the group any more. Calls of the program wait.
    GoingHome,
    /// Nothing comes from the peer any more, nor goes to it. What has come can be read.
    PeerLost,
    /// On TCP. The peer was asked, and the group was lost before the answer, or the answer is late. Its switch marker
    /// may come.
    Unanswered,
    /// On TCP. The peer was asked, and its answer counts no more; but its switch marker may come, which resets the
    /// connection.
    Watching,
    /// The kernel has it, for good.
    Ended(Reason),
}

/// What happens to one end of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Event {
    /// It is to move: the rendezvous socket is open, or the first offer is sent.
    Begin,
    /// Bytes have gone over it for the first time.
    Bytes,
    /// [`Migration::due`] has come.
    Time,
    /// An offer for it has come to its rendezvous socket.
    Offer,
    /// An offer of another version of the protocol has come.
    OtherVersion,
    /// The link group is there.
    GroupUp,
    /// The group has ended.
    GroupLost,
    /// The group or the stream cannot be made.
    NoStream(Reason),
    /// The peer takes the offer.
    Join,
    /// The peer has joined.
    Joined,
    /// The peer has refused to.
    Refused(Refusal),
    /// The peer knows that the stream is no more.
    Forgotten,
    /// The peer has written the whole switch marker of this side, and the group in which it would have answered is
    /// lost.
    MarkerCame,
    /// The switch marker that this side writes is in TCP.
    MarkerWritten,
    /// TCP has no room for the switch marker, or for the rest of it.
    MarkerWaits {
        /// Some of it is written.
        has_begun: bool,
    },
    /// The switch marker must not be written yet, because the switch marker of this side has not come.
    MarkerEarly,
    /// A thread of the program is inside a call, out of which it comes at once.
    InCall,
    /// The switch marker cannot be written.
    MarkerFails(Reason),
    /// It is to stay on TCP.
    Stay(Reason),
    /// The program shuts down.
    Shut(Half),
    /// The program has closed its last descriptor in this process.
    Closed,
    /// The process is about to end.
    ProcessEnds,
    /// It is to go home.
    Return,
    /// It has written down how far it is, and takes and posts no more.
    LeaveEdge,
    /// All its bytes are in TCP.
    Arrived,
    /// The peer is gone, or has reset the connection, or was reset.
    PeerLost,
}

/// What the program shuts down.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Half {
    /// It reads no more.
    Read,
    /// It writes no more.
    Write,
    /// Neither.
    Both,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Action {
    /// Send the offer again.
    SendOffer,
    /// Close the rendezvous socket, and find or make the link group of the offer.
    FindGroup,
    /// Make the stream, and look for its switch marker in TCP from then on.
    MakeStream,
    /// Ask the peer to join.
    SendJoin,
    /// Tell the peer that this side has joined.
    SendJoined,
    /// Tell the peer that it has not.
    SendRefused(Refusal),
    /// Tell the peer that the stream is no more.
    SendReset,
    /// Look whether the peer has written the switch marker of this side, and look again when it may have.
    LookForMarker,
    /// Try to write the peer's switch marker; or the switch marker of this side, if that of the peer is not known.
    WriteMarker,
    /// Put the stream in the place of the TCP socket.
    Switch,
    /// Read TCP. The program does not see the switch marker that may come.
    Await,
    /// Read TCP. A switch marker that comes resets the connection.
    Watch,
    /// Shut down TCP as the program has asked.
    ShutTcp,
    /// The kernel has it from now on.
    Leave(Reason),
    /// Take the rings back: the peer does not write to them.
    DropStream,
}

/// One end of a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Migration {
    role: Role,
    phase: Phase,
    /// When [`Event::Time`] is wanted.
    due: Instant,
    /// When the offer is sent, and until when it holds.
    offering: Option<Offering>,
    /// When it is tried to write the switch marker.
    attempts: Option<Attempts>,
    has_bytes: bool,
    /// TCP had no room for the switch marker: nothing else is written before it.
    is_held: bool,
    /// Some of the switch marker is written.
    has_begun_marker: bool,
    /// What the program has shut down before it moved.
    reads_no_more: bool,
    writes_no_more: bool,
    /// The program has closed it in this process.
    is_closed: bool,
    /// What was shut down in TCP before it moved.
    has_shut_reads: bool,
    has_shut_writes: bool,
    /// The peer is gone, and the switch marker is written all the same, because some of it was.
    is_peer_lost: bool,
    /// The group is lost.
    is_group_lost: bool,
    /// It goes home as soon as the switch marker is written.
    is_to_return: bool,
    /// The switch marker of this side is written back, because that of the peer is not known.
    is_echoing: bool,
    /// Why it is left to TCP if no switch marker comes.
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

    /// When [`Event::Time`] is wanted.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// Whether nothing but the switch marker is written into TCP.
    pub(crate) const fn is_held(&self) -> bool {
        self.is_held && matches!(self.phase, Phase::Switching)
    }

    /// Whether the program has closed it in this process.
    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the switch marker of this side is written back, and not that of the peer.
    pub(crate) const fn is_echoing(&self) -> bool {
        self.is_echoing
    }

    /// Whether nothing more can be written into TCP, because it was shut down before the connection moved.
    pub(crate) const fn has_ended_tcp(&self) -> bool {
        self.has_shut_writes
    }

    /// What the program has shut down before it moved.
    pub(crate) const fn shut(&self) -> Option<Shutdown> {
        match (self.reads_no_more, self.writes_no_more) {
            (true, true) => Some(Shutdown::Both),
            (true, false) => Some(Shutdown::Read),
            (false, true) => Some(Shutdown::Write),
            (false, false) => None,
        }
    }

    /// Takes in an event. What does not matter in its phase changes nothing.
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
                // The offer counts from now on.
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

    /// The first offer is sent.
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
                // A peer that does not use the connection has no rendezvous socket open: nothing is lost by waiting.
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
            // It could write a part of the switch marker only.
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

    /// The peer's switch marker is to be written.
    fn switch(&mut self, now: Instant) -> Vec<Action> {
        self.enter(Phase::Switching, Instant::NEVER);
        self.attempts = Some(Attempts::new(now));
        vec![Action::WriteMarker]
    }

    //= sockets-protocol.md: join.5, join.6
    /// Takes in an event while the peer may still have moved its direction. The program uses TCP meanwhile.
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
            // It has not moved, so that no switch marker comes.
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

    /// The group is lost while the peer's answer was awaited. If the peer has moved its direction its switch marker
    /// comes.
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
            // A part of a switch marker cannot be left to the peer's program: the rest is tried until TCP fails, which
            // says all.
            Event::MarkerFails(Reason::Descriptors) if self.has_begun_marker => self.wait(now),
            Event::MarkerFails(reason) if is_accepting && self.has_begun_marker => {
                let mut actions = self.leave(reason);
                actions.extend([Action::SendReset, Action::DropStream]);
                actions
            }
            Event::MarkerFails(reason) if is_accepting => self.give_up(reason),
            // The peer has moved its direction already: there is no way back.
            Event::MarkerFails(_) => {
                let mut actions = self.watch(Reason::NoGroup);
                actions.push(Action::SendReset);
                actions
            }
            Event::GroupLost if is_accepting && !self.has_begun_marker => {
                self.leave(Reason::NoGroup)
            }
            // The peer has moved its direction, or has a part of a switch marker: the switch marker is written, and the
            // stream goes home.
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

    /// The switch marker is not written, and the peer learns that.
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
    /// What comes of the peer after this side has given up.
    fn on_late_answer(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Joined => vec![Action::SendReset],
            // The program has left it while the peer asked.
            Event::Join if self.phase == Phase::Ended(Reason::Closed) => {
                vec![Action::SendRefused(Refusal::Closed)]
            }
            Event::Join => vec![Action::SendRefused(Refusal::OnlyTcp)],
            // It has not moved, so that no switch marker comes.
            Event::Refused(_) if self.phase == Phase::Watching => {
                let mut actions = self.leave(self.why);
                actions.push(Action::DropStream);
                actions
            }
            Event::Refused(_) | Event::Forgotten => vec![Action::DropStream],
            _ => Vec::new(),
        }
    }

    /// What the program and its process do.
    fn on_program(&mut self, event: Event) -> Vec<Action> {
        let is_early = matches!(self.phase, Phase::OnTcp | Phase::Offering | Phase::Grouping);
        let is_moving = matches!(self.phase, Phase::Joining | Phase::Switching);
        let is_waiting = matches!(self.phase, Phase::Unanswered | Phase::Watching);
        match event {
            Event::Stay(reason) if is_early => self.leave(reason),
            // Nothing is told any more.
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
                    // It goes behind the switch marker, if that is written.
                    Phase::Joining | Phase::Switching => Vec::new(),
                    Phase::Unanswered if self.reads_no_more => self.watch(self.why),
                    Phase::Unanswered | Phase::Watching => {
                        drop(self.shut_tcp());
                        vec![Action::ShutTcp]
                    }
                    // No switch marker can follow the end.
                    _ => self.leave(Reason::Closed),
                }
            }
            _ => Vec::new(),
        }
    }

    //= sockets-protocol.md: home.1, home.4, home.5
    fn on_edge(&mut self, event: Event) -> Vec<Action> {
        let next = match (self.phase, event) {
            // The peer has seen the switch marker before this side knows that it is written.
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

    /// It is left to TCP.
    fn leave(&mut self, reason: Reason) -> Vec<Action> {
        let mut actions = self.shut_tcp();
        self.enter(Phase::Ended(reason), Instant::NEVER);
        actions.push(Action::Leave(reason));
        actions
    }

    //= sockets-protocol.md: join.5, join.6
    /// It goes on with TCP, and answers the peer's switch marker if that comes.
    fn give_up_waiting(&mut self, reason: Reason) -> Vec<Action> {
        if self.reads_no_more {
            // Neither the switch marker nor a record can be taken out of TCP.
            return self.watch(reason);
        }
        self.go_on_by_tcp(Phase::Unanswered, Action::Await, reason)
    }

    /// It goes on with TCP, and cannot answer the peer's switch marker if that comes.
    fn watch(&mut self, reason: Reason) -> Vec<Action> {
        self.go_on_by_tcp(Phase::Watching, Action::Watch, reason)
    }

    /// The kernel answers a switch marker that comes for what is closed.
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

    /// Shuts TCP down where the program has asked for it and that was deferred until the move.
    fn shut_tcp(&mut self) -> Vec<Action> {
        let is_due = self.reads_no_more && !self.has_shut_reads
            || self.writes_no_more && !self.has_shut_writes;
        (self.has_shut_reads, self.has_shut_writes) = (self.reads_no_more, self.writes_no_more);
        if is_due { vec![Action::ShutTcp] } else { Vec::new() }
    }
}

#[cfg(test)]
impl Migration {
    /// As if all that it waits for began, and is due, at the one time that there is in `explored_tests`.
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

/// For how long the edge connection may take, in nanoseconds: its first frames may be lost several times. The connection
/// works meanwhile, by TCP.
const GROUP_WITHIN_NS: u64 = 2_000_000_000;

/// For how long the answer to a join may take, in nanoseconds: the peer is there and answers at once, unless its TCP
/// connection is full, for which it waits half as long. It works meanwhile, by TCP.
pub(crate) const ANSWER_WITHIN_NS: u64 = 10_000_000_000;
