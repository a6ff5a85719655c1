//! The state machine that moves one end of a connection to the edge and back.
//!
//! The machine has no I/O, no locks and no clock. It receives each event together with the time,
//! and returns actions. `docs/sockets-protocol.md` contains the whole table of transitions. A test
//! compares that table with this code.

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

/// The phase of one end of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Phase {
    /// On TCP. This side has sent nothing to the peer.
    OnTcp,
    /// The accepting side sends offers. The connecting side has its rendezvous socket open and
    /// waits for an offer.
    Offering,
    /// The connecting side has taken an offer. The link group is not established yet.
    Grouping,
    /// The connecting side has sent Join. The peer's switch marker may arrive in TCP.
    Joining,
    /// This side is writing its switch marker into the TCP connection.
    Switching,
    /// This side has written its switch marker, and sends all later bytes over the link group.
    OnEdge,
    /// On the edge. This side begins its return to TCP when the program has read the bytes that
    /// came by TCP.
    Returning,
    /// This side is returning to TCP. The link group carries no more bytes of the stream, and the
    /// program's calls wait.
    GoingHome,
    /// The peer is lost. This side sends and receives no bytes. The program can still read bytes
    /// that have arrived.
    PeerLost,
    /// On TCP. Join has no answer yet, because the answer is late or the link group is lost. The
    /// peer's switch marker may still arrive.
    Unanswered,
    /// On TCP. This side ignores the answer to Join. If the peer's switch marker arrives, this side
    /// resets the connection.
    Watching,
    /// Left to the kernel permanently.
    Ended(Reason),
}

/// An event at one end of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Event {
    /// The connection begins to move. The connecting side has opened its rendezvous socket, or the
    /// accepting side sends its first offer.
    Begin,
    /// The connection has carried its first bytes.
    Bytes,
    /// The time that [`Migration::due`] returns has come.
    Time,
    /// An offer has arrived at the rendezvous socket of the connection.
    Offer,
    /// An offer of another protocol version has arrived at the rendezvous socket.
    OtherVersion,
    /// The link group is established.
    GroupUp,
    /// The link group is lost.
    GroupLost,
    /// The link group or the stream could not be created.
    NoStream(Reason),
    /// Join has arrived: the peer takes the offer.
    Join,
    /// Joined has arrived: the peer has moved its direction.
    Joined,
    /// Refused has arrived: the peer refuses the join.
    Refused(Refusal),
    /// Reset has arrived: the peer has no stream for this connection.
    Forgotten,
    /// The peer's whole switch marker has arrived in TCP. The link group is lost, so the peer's
    /// answer cannot arrive.
    MarkerCame,
    /// This side has written its whole switch marker into TCP.
    MarkerWritten,
    /// TCP has no room for the switch marker, or for the rest of it.
    MarkerWaits {
        /// True if a part of the switch marker is written.
        has_begun: bool,
    },
    /// The switch marker must not be written yet, because the peer's switch marker has not arrived.
    MarkerEarly,
    /// The switch marker cannot be written now, because a thread of the program is within a call.
    /// That call does not block, so a later attempt succeeds.
    InCall,
    /// Writing the switch marker failed.
    MarkerFails(Reason),
    /// The connection must stay on TCP, for this reason.
    Stay(Reason),
    /// The program shuts down one or both directions.
    Shut(Half),
    /// The program has closed its last descriptor of the connection in this process.
    Closed,
    /// The process is about to end.
    ProcessEnds,
    /// The connection must return to TCP.
    Return,
    /// The stream has recorded how many bytes the program has read and written. After this event
    /// the stream accepts and posts no bytes.
    LeaveEdge,
    /// All bytes of the stream are in TCP: the return is complete.
    Arrived,
    /// The peer has ended or reset the connection, or this side has sent Reset to the peer.
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

/// An action. The caller performs actions in the order in which they are returned.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Action {
    /// Send the offer.
    SendOffer,
    /// Close the rendezvous socket, and find or create the link group of the offer.
    FindGroup,
    /// Create the stream. After this, search the bytes from TCP for this side's switch marker.
    MakeStream,
    /// Send Join.
    SendJoin,
    /// Send Joined.
    SendJoined,
    /// Send Refused.
    SendRefused(Refusal),
    /// Send Reset.
    SendReset,
    /// Search TCP for the peer's switch marker. Repeat the search when more bytes arrive.
    LookForMarker,
    /// Try to write the switch marker that the peer expects. If this side does not know that
    /// marker, write an echo: the marker that this side expects.
    WriteMarker,
    /// Replace the TCP socket with the stream.
    Switch,
    /// Let the library read TCP for the program. The library hides a switch marker that arrives.
    Await,
    /// Let the library read TCP for the program. A switch marker that arrives resets the
    /// connection.
    Watch,
    /// Shut TCP down in the directions that the program has shut.
    ShutTcp,
    /// Leave the connection to the kernel, for this reason.
    Leave(Reason),
    /// Release the rings, because the peer no longer writes to them.
    DropStream,
}

/// The migration of one end of a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Migration {
    role: Role,
    phase: Phase,
    /// The time at which [`Event::Time`] is due.
    due: Instant,
    /// The schedule of this side's offers, and the time at which they expire.
    offering: Option<Offering>,
    /// The schedule of the attempts to write the switch marker.
    attempts: Option<Attempts>,
    has_bytes: bool,
    /// True if TCP had no room for the switch marker. The program's bytes must wait until the
    /// marker is written.
    is_held: bool,
    /// True if a part of the switch marker is written.
    has_begun_marker: bool,
    /// `reads_no_more`, `writes_no_more`: true for each direction that the program shut down before
    /// the connection moved.
    reads_no_more: bool,
    writes_no_more: bool,
    /// True if the program has closed the connection in this process.
    is_closed: bool,
    /// `has_shut_reads`, `has_shut_writes`: true for each direction that was shut down in TCP
    /// before the connection moved.
    has_shut_reads: bool,
    has_shut_writes: bool,
    /// True if the peer is lost. If a part of the switch marker is written, this side still writes
    /// the rest.
    is_peer_lost: bool,
    /// True if the link group is lost.
    is_group_lost: bool,
    /// True if the connection must return to TCP when the switch marker is written.
    is_to_return: bool,
    /// True if this side writes an echo: the switch marker that it expects itself. This side writes
    /// an echo if it does not know the marker that the peer expects.
    is_echoing: bool,
    /// The reason why the connection stays on TCP, if no switch marker arrives.
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

    /// Returns the time at which [`Event::Time`] is due.
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    /// Returns true if no byte may be written before the switch marker.
    pub(crate) const fn is_held(&self) -> bool {
        self.is_held && matches!(self.phase, Phase::Switching)
    }

    /// Returns true if the program has closed the connection in this process.
    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns true if this side writes an echo (the switch marker that it expects itself) instead
    /// of the marker that the peer expects.
    pub(crate) const fn is_echoing(&self) -> bool {
        self.is_echoing
    }

    /// Returns true if TCP accepts no more bytes, because it was shut down for writing before the
    /// connection moved.
    pub(crate) const fn has_ended_tcp(&self) -> bool {
        self.has_shut_writes
    }

    /// Returns the directions that the program shut down before the connection moved.
    pub(crate) const fn shut(&self) -> Option<Shutdown> {
        match (self.reads_no_more, self.writes_no_more) {
            (true, true) => Some(Shutdown::Both),
            (true, false) => Some(Shutdown::Read),
            (false, true) => Some(Shutdown::Write),
            (false, false) => None,
        }
    }

    /// Handles an event. Returns the actions that the caller must perform. An event that has no
    /// meaning in the current phase changes nothing.
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
                // The schedule of the offer starts again at the first bytes.
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

    /// Starts the schedule of offers, and sends the first offer.
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
                // Wait for the first byte of the connection, because waiting costs nothing. That
                // byte restarts the schedule of the offer.
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
            // The peer wrote a part of its switch marker and could not complete it.
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

    /// Begins to write this side's switch marker.
    fn switch(&mut self, now: Instant) -> Vec<Action> {
        self.enter(Phase::Switching, Instant::NEVER);
        self.attempts = Some(Attempts::new(now));
        vec![Action::WriteMarker]
    }

    //= sockets-protocol.md: join.5, join.6
    /// Handles an event while this side does not know whether the peer has moved its direction. The
    /// program uses TCP during this time.
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
            // The peer has not moved its direction, so no switch marker will arrive.
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

    /// Handles the loss of the link group while the answer to Join is pending. If the peer has
    /// moved its direction, its switch marker will arrive in TCP.
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
            // A part of the switch marker is in TCP, and the peer's program must not read it.
            // Therefore retry the rest until TCP fails. Such a failure also resets the connection
            // at the peer.
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
            // The peer has moved its direction, or a part of a switch marker is in TCP. Therefore
            // complete the switch marker, and then return to TCP.
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

    /// Stops writing the switch marker, and refuses the peer's join.
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
    /// Handles a message that arrives after this side has given up.
    fn on_late_answer(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Joined => vec![Action::SendReset],
            // The program closed the connection before the peer's Join arrived.
            Event::Join if self.phase == Phase::Ended(Reason::Closed) => {
                vec![Action::SendRefused(Refusal::Closed)]
            }
            Event::Join => vec![Action::SendRefused(Refusal::OnlyTcp)],
            // The peer has not moved its direction, so no switch marker will arrive.
            Event::Refused(_) if self.phase == Phase::Watching => {
                let mut actions = self.leave(self.why);
                actions.push(Action::DropStream);
                actions
            }
            Event::Refused(_) | Event::Forgotten => vec![Action::DropStream],
            _ => Vec::new(),
        }
    }

    /// Handles an event that the program or the end of its process caused.
    fn on_program(&mut self, event: Event) -> Vec<Action> {
        let is_early = matches!(self.phase, Phase::OnTcp | Phase::Offering | Phase::Grouping);
        let is_moving = matches!(self.phase, Phase::Joining | Phase::Switching);
        let is_waiting = matches!(self.phase, Phase::Unanswered | Phase::Watching);
        match event {
            Event::Stay(reason) if is_early => self.leave(reason),
            // At the end of the process, do not return the action `Leave`, because nothing uses the
            // connection after that.
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
                    // Defer the shutdown until the switch marker is written or given up.
                    Phase::Joining | Phase::Switching => Vec::new(),
                    Phase::Unanswered if self.reads_no_more => self.watch(self.why),
                    Phase::Unanswered | Phase::Watching => {
                        drop(self.shut_tcp());
                        vec![Action::ShutTcp]
                    }
                    // Leave the connection to TCP, because a switch marker cannot follow the end of
                    // TCP.
                    _ => self.leave(Reason::Closed),
                }
            }
            _ => Vec::new(),
        }
    }

    //= sockets-protocol.md: home.1, home.4, home.5
    fn on_edge(&mut self, event: Event) -> Vec<Action> {
        let next = match (self.phase, event) {
            // The peer may react to this side's switch marker before this side has recorded that
            // the marker is written.
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

    /// Leaves the connection to TCP. First shuts TCP down if a shutdown was deferred.
    fn leave(&mut self, reason: Reason) -> Vec<Action> {
        let mut actions = self.shut_tcp();
        self.enter(Phase::Ended(reason), Instant::NEVER);
        actions.push(Action::Leave(reason));
        actions
    }

    //= sockets-protocol.md: join.5, join.6
    /// Continues on TCP, because Join was not answered in time. The peer's switch marker may still
    /// arrive.
    fn give_up_waiting(&mut self, reason: Reason) -> Vec<Action> {
        if self.reads_no_more {
            // The program has shut down reading. So the library can read from TCP neither a switch
            // marker nor the record with which the peer would return to TCP.
            return self.watch(reason);
        }
        self.go_on_by_tcp(Phase::Unanswered, Action::Await, reason)
    }

    /// Continues on TCP. If the peer's switch marker arrives, this side resets the connection.
    fn watch(&mut self, reason: Reason) -> Vec<Action> {
        self.go_on_by_tcp(Phase::Watching, Action::Watch, reason)
    }

    /// Enters `phase`, in which the program uses TCP. If the program has closed the connection,
    /// leaves the connection to the kernel instead. The kernel then resets the connection when a
    /// switch marker arrives.
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

    /// Shuts TCP down in the directions that the program shut down during the move.
    fn shut_tcp(&mut self) -> Vec<Action> {
        let is_due = self.reads_no_more && !self.has_shut_reads
            || self.writes_no_more && !self.has_shut_writes;
        (self.has_shut_reads, self.has_shut_writes) = (self.reads_no_more, self.writes_no_more);
        if is_due { vec![Action::ShutTcp] } else { Vec::new() }
    }
}

#[cfg(test)]
impl Migration {
    /// Sets all times to `explored_tests::NOW`, so that states that differ only in time are equal.
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

/// The time within which the link group must be established, in nanoseconds. It is long enough for
/// several retransmissions of the first frames. The program uses TCP during this time.
const GROUP_WITHIN_NS: u64 = 2_000_000_000;

/// The time within which the peer must answer Join, in nanoseconds. If TCP has room, a live peer
/// answers at once. If TCP has no room, the peer gives up after half of this time. The program uses
/// TCP during this time.
pub(crate) const ANSWER_WITHIN_NS: u64 = 10_000_000_000;
