//! Explores every order of events at the two ends of a connection that moves, up to a number of
//! steps.
//!
//! The model has these events: programs write, read, shut down, close, or need TCP; offers arrive;
//! a group carries messages, and may be lost at any time; TCP has room for two or three tokens, and
//! a switch marker is two tokens; ends return to TCP; time passes at one end and not at its peer,
//! as when a process is stopped.
//!
//! The real [`Migration`] and [`Homing`] make the decisions of the ends. All other parts are
//! models.

use std::collections::{HashSet, VecDeque};

use delivery::Instant;

use super::{Action, Event, Half, Migration, Phase};
use crate::migration::homing::{HomeStep, Homing, Record};
use crate::reasons::Reason;
use crate::settings::Role;
use crate::wire::Refusal;

/// Faults that are inserted into the model on purpose. The exploration must find each of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Planted {
    Nothing,
    /// An end that has given up the group reads TCP and does not search for a switch marker.
    DoesNotWatch,
    /// The connecting end discards the peer's answer when the group is lost.
    ForgetsAnswer,
    /// The accepting end is reset if the group is lost before the switch marker has arrived.
    DoesNotWait,
    /// The accepting end gives up if the group is lost while it is writing the marker.
    LeavesRestOfMarker,
    /// The connecting end does not echo its switch marker.
    DoesNotEcho,
    /// The program of the connecting end continues to write after the echo.
    WritesBehindEcho,
    /// The connecting end's program reads the ring, although this end cannot report that to the
    /// peer.
    ReadsRingBehindEnd,
    /// An end that waits for the peer's switch marker is reset when TCP ends instead.
    ResetsAtEnd,
    /// An end gives up a switch marker of which a part is written.
    LeavesPartOfMarker,
    /// A program writes between two parts of a switch marker.
    WritesInMarker,
    /// A program reads bytes of the ring before the switch marker has arrived.
    ReadsRingFirst,
    /// An end ignores a late answer.
    IgnoresLateAnswer,
    /// A shutdown during the move shuts TCP down at once.
    ShutsAtOnce,
    /// An end does not follow a peer that returns to TCP directly after the move.
    ForgetsReturn,
    /// If the program closes the connection during the move, its end stops the move and uses TCP.
    LeavesWhenClosed,
    /// An end does not release its rings after the peer has refused.
    KeepsRings,
}

/// A token in TCP.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Token {
    Byte(u8),
    /// Half of a switch marker.
    Marker(u8),
    /// Half of an echoed switch marker.
    Echo(u8),
    Record(u8),
    End,
}

/// A message in the group.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Message {
    Join,
    Joined,
    Refused(Refusal),
    Reset,
    Byte,
    Credit(u8),
    End,
    Home,
}

/// The mode in which the program's reads take bytes out of TCP.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
enum Reading {
    #[default]
    Plain,
    Expecting,
    Awaiting,
    Watching,
}

/// One end, and the bytes and messages that this end sends.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct End {
    migration: Migration,
    reading: Reading,
    has_stream: bool,
    has_rings: bool,
    /// Number of halves of a switch marker. `marker_written`: halves that this end has written.
    /// `seen`: halves of the peer's marker that this end has received.
    marker_written: u8,
    seen: u8,
    /// True if the end reads no bytes of its ring and posts none to the peer's ring.
    is_ringless: bool,
    /// Number of bytes that the program has written (`written`) and read (`got`).
    written: u8,
    got: u8,
    /// Number of bytes that were written before the switch marker.
    by_tcp: u8,
    /// Numbers of ring bytes: sent by this end; arrived in the peer's ring; read by the program
    /// from this end's ring; and read by the peer's program, according to the peer's credits.
    posted: u8,
    arrived: u8,
    taken: u8,
    known: u8,
    homing: Option<Homing>,
    /// The peer's record; `None` before it arrives, and after this end has handled it.
    record: Option<u8>,
    is_shut: bool,
    has_ended_tcp: bool,
    has_reported: bool,
    peer_ended: bool,
    has_heard: bool,
    has_seen_loss: bool,
    is_reset: bool,
    /// True if the peer returns to TCP and posts nothing more.
    is_peer_home: bool,
    /// Number of tokens that fit in TCP.
    room: usize,
    tcp: VecDeque<Token>,
    group: VecDeque<Message>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct State {
    ends: [End; 2],
    is_offered: bool,
    is_lost: bool,
    /// True if an event has occurred that justifies a reset.
    is_excused: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Begin,
    Time,
    LongTime,
    Offer,
    GroupUp,
    Deliver,
    Marker,
    MarkerCame,
    Write,
    Read,
    Shut,
    Close,
    Stay,
    Return,
    LeaveEdge,
    Post,
    Credit,
    Home,
    Lose,
    SeeLoss,
    SeeReset,
}

const STEPS: [Step; 21] = [
    Step::Begin,
    Step::Time,
    Step::LongTime,
    Step::Offer,
    Step::GroupUp,
    Step::Deliver,
    Step::Marker,
    Step::MarkerCame,
    Step::Write,
    Step::Read,
    Step::Shut,
    Step::Close,
    Step::Stay,
    Step::Return,
    Step::LeaveEdge,
    Step::Post,
    Step::Credit,
    Step::Home,
    Step::Lose,
    Step::SeeLoss,
    Step::SeeReset,
];

/// Steps that need not occur. Every other possible step occurs eventually.
const FREE: [Step; 10] = [
    Step::Begin,
    Step::Time,
    Step::LongTime,
    Step::Offer,
    Step::Write,
    Step::Shut,
    Step::Close,
    Step::Stay,
    Step::Return,
    Step::Lose,
];

/// Size of a ring in bytes.
const RING: u8 = 2;

/// The constant time. `forget_times` sets all due times to it, so a timer can fire at any step.
pub(super) const NOW: Instant = Instant(100_000_000_000);

/// A time after every time limit.
const LATE: Instant = Instant(2 * NOW.0);

type Broken = String;

impl End {
    fn new(role: Role, room: usize) -> Self {
        Self {
            migration: Migration::new(role),
            reading: Reading::Plain,
            has_stream: false,
            has_rings: false,
            marker_written: 0,
            seen: 0,
            is_ringless: false,
            written: 0,
            got: 0,
            by_tcp: 0,
            posted: 0,
            arrived: 0,
            taken: 0,
            known: 0,
            homing: None,
            record: None,
            is_shut: false,
            has_ended_tcp: false,
            has_reported: false,
            peer_ended: false,
            has_heard: false,
            has_seen_loss: false,
            is_reset: false,
            is_peer_home: false,
            room,
            tcp: VecDeque::new(),
            group: VecDeque::new(),
        }
    }

    fn phase(&self) -> Phase {
        self.migration.phase()
    }

    fn is_on_edge(&self) -> bool {
        matches!(
            self.phase(),
            Phase::OnEdge | Phase::Returning | Phase::GoingHome | Phase::PeerLost
        )
    }

    /// Returns true if the connection has returned to TCP.
    fn is_home(&self) -> bool {
        self.phase() == Phase::Ended(Reason::Home)
    }

    fn is_closed(&self) -> bool {
        self.migration.is_closed()
    }

    fn reset(&mut self) {
        self.is_reset = true;
        drop(self.migration.on(Event::PeerLost, NOW));
    }

    fn end_tcp(&mut self) {
        if !self.has_ended_tcp {
            self.has_ended_tcp = true;
            self.tcp.push_back(Token::End);
        }
    }

    /// Returns true if, as far as this end knows, the peer's ring is full.
    fn is_full(&self) -> bool {
        self.written - self.by_tcp - self.known >= RING
    }
}

impl State {
    fn new(room: usize) -> Self {
        let ends = [Role::Connecting, Role::Accepting].map(|role| End::new(role, room));
        Self { ends, is_offered: false, is_lost: false, is_excused: false }
    }

    /// Passes an event to an end, and performs the actions that the end's state machine returns.
    fn feed(&mut self, planted: Planted, index: usize, event: Event, now: Instant) {
        let end = &mut self.ends[index];
        let phase = end.phase();
        let is_ignored = match planted {
            Planted::ForgetsReturn => event == Event::Return && phase == Phase::Switching,
            Planted::IgnoresLateAnswer => event == Event::Joined && phase == Phase::Unanswered,
            Planted::DoesNotEcho => event == Event::MarkerCame,
            _ => false,
        };
        if is_ignored {
            return;
        }
        let event = match event {
            Event::MarkerWaits { .. } if planted == Planted::LeavesPartOfMarker => {
                Event::MarkerWaits { has_begun: false }
            }
            Event::GroupLost
                if planted == Planted::LeavesRestOfMarker && end.marker_written == 1 =>
            {
                Event::PeerLost
            }
            event => event,
        };
        let mut actions = end.migration.on(event, now);
        if planted == Planted::ForgetsAnswer && event == Event::GroupLost && index == 0 {
            actions = end.migration.watch(Reason::NoGroup);
        }
        if planted == Planted::LeavesWhenClosed && event == Event::Closed && end.has_stream {
            actions = end.migration.leave(Reason::Closed);
        }
        for action in actions {
            self.act(planted, index, action, now);
        }
        self.ends[index].migration.forget_times();
    }

    fn act(&mut self, planted: Planted, index: usize, action: Action, now: Instant) {
        let is_lost = self.is_lost;
        let end = &mut self.ends[index];
        let mut send = |message| {
            if !is_lost {
                end.group.push_back(message);
            }
        };
        match action {
            Action::SendOffer => self.is_offered = true,
            // Separate steps perform these actions.
            Action::FindGroup | Action::Switch | Action::LookForMarker => {}
            Action::MakeStream => {
                (end.has_stream, end.has_rings) = (true, true);
                end.reading = Reading::Expecting;
            }
            Action::SendJoin => send(Message::Join),
            Action::SendJoined => send(Message::Joined),
            Action::SendRefused(refusal) => send(Message::Refused(refusal)),
            Action::SendReset => send(Message::Reset),
            Action::WriteMarker => self.write_marker(planted, index, now),
            Action::Await | Action::Watch if planted == Planted::DoesNotWatch => {
                end.reading = Reading::Plain;
            }
            Action::Await => end.reading = Reading::Awaiting,
            Action::Watch => end.reading = Reading::Watching,
            Action::ShutTcp => end.end_tcp(),
            Action::Leave(_) => {
                end.reading = Reading::Plain;
                if end.is_closed() {
                    end.end_tcp();
                }
            }
            Action::DropStream if planted == Planted::KeepsRings => {}
            Action::DropStream => end.has_rings = false,
        }
    }

    /// Returns true if the peer's whole switch marker is in TCP. Bytes that the program may read
    /// can precede it.
    fn is_marker_there(&self, index: usize) -> bool {
        self.ends[1 - index].tcp.contains(&Token::Marker(1))
    }

    fn write_marker(&mut self, planted: Planted, index: usize, now: Instant) {
        let is_marker_there = self.is_marker_there(index);
        let (end, peer) = two(&mut self.ends, index);
        if end.phase() != Phase::Switching {
            return;
        }
        // The peer has closed the connection, so its kernel answers bytes with a reset.
        let is_deaf = peer.is_closed() && matches!(peer.phase(), Phase::Ended(_));
        let is_echo = end.migration.is_echoing();
        let event = if index == 0 && !is_marker_there {
            let is_lost = peer.tcp.front() == Some(&Token::End);
            if is_lost { Event::MarkerFails(Reason::Closed) } else { Event::MarkerEarly }
        } else if end.migration.has_ended_tcp() {
            // The peer treats the end of TCP like a whole switch marker.
            end.marker_written = 2;
            Event::MarkerWritten
        } else if end.has_ended_tcp {
            Event::MarkerFails(Reason::Closed)
        } else {
            let is_whole = end.marker_written == 2;
            while end.marker_written < 2 && end.tcp.len() < end.room {
                let half = end.marker_written;
                end.tcp.push_back(if is_echo { Token::Echo(half) } else { Token::Marker(half) });
                end.marker_written += 1;
            }
            match end.marker_written {
                // The peer may read the marker before this end takes its next step.
                2 if !is_whole => return,
                2 => Event::MarkerWritten,
                _ if is_deaf => Event::MarkerFails(Reason::Closed),
                begun => Event::MarkerWaits { has_begun: begun > 0 },
            }
        };
        if event == Event::MarkerWritten {
            end.by_tcp = end.written;
            end.reading = Reading::Plain;
            end.is_ringless |= is_echo || end.migration.has_ended_tcp();
            // After the marker is written and before the phase changes, the stream reads TCP.
            while self.pump(planted, index) {}
        }
        self.feed(planted, index, event, now);
        // If the peer was lost while this end wrote the switch marker, the stream is reset.
        let end = &mut self.ends[index];
        end.is_reset |= end.phase() == Phase::PeerLost;
    }

    /// Makes the stream read from TCP the switch marker that it expects, and the record after it.
    /// The program reads the bytes before the marker. Returns true if the state has changed.
    fn pump(&mut self, planted: Planted, index: usize) -> bool {
        let (own, peer) = two(&mut self.ends, index);
        let front = peer.tcp.front().copied();
        match front {
            Some(Token::Marker(half) | Token::Echo(half)) if own.seen == half => {
                own.seen += 1;
                own.is_ringless |= own.seen == 2 && front == Some(Token::Echo(half));
                peer.tcp.pop_front();
                true
            }
            // The peer has not moved its direction, so the end of TCP counts as its switch marker.
            Some(Token::End) if own.seen == 0 && index == 1 && !own.is_reset => {
                if planted == Planted::ResetsAtEnd {
                    own.reset();
                    return true;
                }
                (own.seen, own.is_ringless, own.record) = (2, true, Some(0));
                self.feed(planted, index, Event::Return, NOW);
                true
            }
            // The program has closed the connection, so the stream discards its bytes.
            Some(Token::Byte(_)) if own.is_closed() && own.seen < 2 => {
                peer.tcp.pop_front();
                true
            }
            // Only a record may follow a switch marker.
            Some(Token::Byte(_)) if own.seen == 2 && own.record.is_none() => {
                let is_early = own.homing.as_ref().is_none_or(|homing| !homing.has_record());
                let is_first = is_early && !own.is_reset;
                if is_first {
                    own.reset();
                }
                is_first
            }
            Some(Token::Record(taken)) if own.seen == 2 => {
                peer.tcp.pop_front();
                own.record = Some(taken);
                self.feed(planted, index, Event::Return, NOW);
                true
            }
            _ => false,
        }
    }

    /// Returns the state after a step. Returns `None` if the step cannot occur now, and an error if
    /// it breaks a guarantee to programs.
    fn after(&self, planted: Planted, index: usize, step: Step) -> Option<Result<Self, Broken>> {
        let mut next = self.clone();
        let done = next.happen(planted, index, step)?;
        if next != *self || done.is_err() { Some(done.map(|()| next)) } else { None }
    }

    fn happen(&mut self, planted: Planted, index: usize, step: Step) -> Option<Result<(), Broken>> {
        let is_lost = self.is_lost;
        let (own, peer) = two(&mut self.ends, index);
        let phase = own.phase();
        // An end that has written its switch marker handles the event `MarkerWritten` before any
        // other step.
        let is_about_to = phase == Phase::Switching && own.marker_written == 2;
        (!is_about_to || step == Step::Marker).then_some(())?;
        match step {
            Step::Begin => {
                (phase == Phase::OnTcp).then_some(())?;
                if index == 1 {
                    self.is_offered = true;
                }
                self.feed(planted, index, Event::Begin, NOW);
            }
            Step::Time | Step::LongTime => {
                (own.migration.due() < Instant::NEVER).then_some(())?;
                let now = if step == Step::Time { NOW } else { LATE };
                self.feed(planted, index, Event::Time, now);
            }
            Step::Offer => {
                (index == 0 && self.is_offered && phase == Phase::Offering).then_some(())?;
                self.is_offered = false;
                self.feed(planted, index, Event::Offer, NOW);
            }
            Step::GroupUp => {
                (phase == Phase::Grouping).then_some(())?;
                let event = if is_lost { Event::GroupLost } else { Event::GroupUp };
                self.feed(planted, index, event, NOW);
            }
            Step::Deliver => {
                let message = peer.group.pop_front()?;
                return Some(self.deliver(planted, index, message));
            }
            Step::Marker => {
                (phase == Phase::Switching).then_some(())?;
                self.write_marker(planted, index, NOW);
            }
            Step::MarkerCame => {
                let is_awaited = phase == Phase::Unanswered && own.has_seen_loss;
                (is_awaited && self.is_marker_there(index)).then_some(())?;
                self.feed(planted, index, Event::MarkerCame, NOW);
            }
            Step::Write => return own.write(planted).then_some(Ok(())),
            Step::Read => return self.read(planted, index),
            Step::Shut => {
                (!own.is_shut && !own.is_closed() && phase != Phase::GoingHome).then_some(())?;
                own.is_shut = true;
                if own.is_home() || planted == Planted::ShutsAtOnce && !own.is_on_edge() {
                    own.end_tcp();
                }
                self.feed(planted, index, Event::Shut(Half::Write), NOW);
                let own = &mut self.ends[index];
                if matches!(own.phase(), Phase::Ended(_)) {
                    own.end_tcp();
                }
            }
            Step::Close => {
                (!own.is_closed() && phase != Phase::GoingHome).then_some(())?;
                self.is_excused = true;
                own.is_shut = true;
                if matches!(phase, Phase::Ended(_)) {
                    own.end_tcp();
                }
                self.feed(planted, index, Event::Closed, NOW);
            }
            Step::Stay => self.feed(planted, index, Event::Stay(Reason::Forked), NOW),
            Step::Return => {
                (phase == Phase::OnEdge && own.seen == 2 && !own.is_reset).then_some(())?;
                self.feed(planted, index, Event::Return, NOW);
            }
            Step::LeaveEdge => return self.leave_edge(planted, index),
            Step::Post => return own.post(is_lost).then_some(Ok(())),
            Step::Credit => {
                let may = own.is_on_edge() && own.homing.is_none() && !is_lost && !own.is_reset;
                let may = may && !own.is_ringless;
                let credit = Message::Credit(peer.taken);
                let is_first = peer.known < peer.taken && !own.group.contains(&credit);
                (may && is_first).then_some(())?;
                own.group.push_back(credit);
            }
            Step::Home => return self.go_home(planted, index),
            Step::Lose => {
                let is_up = self.ends.iter().any(|end| end.has_stream);
                (index == 0 && !is_lost && is_up).then_some(())?;
                self.is_lost = true;
                for end in &mut self.ends {
                    end.group.clear();
                }
            }
            Step::SeeLoss => return self.see_loss(planted, index),
            Step::SeeReset => return self.see_reset(index),
        }
        Some(Ok(()))
    }

    fn deliver(&mut self, planted: Planted, index: usize, message: Message) -> Result<(), Broken> {
        let (own, peer) = two(&mut self.ends, index);
        match message {
            Message::Join if own.phase() == Phase::OnTcp => {
                return Err("a join of an offer that was not made".into());
            }
            Message::Join => self.feed(planted, index, Event::Join, NOW),
            Message::Joined => self.feed(planted, index, Event::Joined, NOW),
            Message::Refused(refusal) => {
                self.feed(planted, index, Event::Refused(refusal), NOW);
            }
            Message::Reset if own.is_on_edge() => {
                own.reset();
                if !self.is_lost {
                    self.ends[index].group.push_back(Message::Reset);
                }
            }
            Message::Reset => self.feed(planted, index, Event::Forgotten, NOW),
            Message::Byte if !own.has_rings => {
                return Err("a byte for rings that were given back".into());
            }
            Message::Byte => peer.arrived += 1,
            Message::Credit(taken) => {
                if !own.homing.as_ref().is_some_and(Homing::has_record) {
                    own.known = own.known.max(taken);
                }
            }
            Message::End => own.peer_ended = true,
            Message::Home => {
                own.is_peer_home = true;
                own.has_rings &= !own.is_home();
            }
        }
        Ok(())
    }

    fn read(&mut self, planted: Planted, index: usize) -> Option<Result<(), Broken>> {
        let (own, peer) = two(&mut self.ends, index);
        (!own.is_closed() && !own.is_reset && !own.has_heard).then_some(())?;
        let is_in_tcp = own.seen < 2 && own.is_on_edge() || !own.is_on_edge();
        if own.is_on_edge() {
            let takes_ring = own.seen == 2 && !own.is_ringless
                || planted == Planted::ReadsRingFirst
                || own.seen == 2 && planted == Planted::ReadsRingBehindEnd;
            let may = own.homing.is_none() || own.phase() == Phase::PeerLost;
            if takes_ring && may && peer.taken < peer.arrived {
                let byte = peer.by_tcp + peer.taken;
                peer.taken += 1;
                return Some(own.get(byte));
            }
            if takes_ring && own.seen == 2 && may && own.peer_ended && peer.taken == peer.arrived {
                return Some(own.see_end(peer));
            }
        }
        match peer.tcp.front().copied()? {
            Token::Byte(byte) if is_in_tcp => {
                peer.tcp.pop_front();
                Some(own.get(byte))
            }
            // The token for the end stays in the queue, so programs can read it many times.
            Token::End if !own.is_on_edge() => Some(own.see_end(peer)),
            Token::End if own.is_on_edge() && own.seen == 0 => {
                self.pump(planted, index).then_some(Ok(()))
            }
            Token::End if own.seen == 2 && own.record.is_some() => None,
            Token::End if own.homing.as_ref().is_some_and(Homing::has_record) => None,
            // TCP has ended after a switch marker or within one.
            Token::End if !own.peer_ended && own.phase() != Phase::PeerLost => {
                own.reset();
                Some(Ok(()))
            }
            Token::Marker(_) | Token::Echo(_) | Token::Record(_) if own.is_on_edge() => {
                self.pump(planted, index).then_some(Ok(()))
            }
            Token::Marker(_) => match own.reading {
                Reading::Plain => Some(Err("a program reads a switch marker".into())),
                Reading::Awaiting if peer.tcp.get(1) != Some(&Token::End) => None,
                Reading::Expecting => None,
                Reading::Awaiting | Reading::Watching => {
                    own.reset();
                    Some(Ok(()))
                }
            },
            Token::Echo(_) => Some(Err("a program reads the switch marker of its own side".into())),
            Token::Record(_) if own.is_home() => Some(Err("a program reads a record".into())),
            Token::Byte(_) | Token::End | Token::Record(_) => None,
        }
    }

    fn leave_edge(&mut self, planted: Planted, index: usize) -> Option<Result<(), Broken>> {
        let is_lost = self.is_lost;
        let (own, peer) = two(&mut self.ends, index);
        let may = own.phase() == Phase::Returning && own.seen == 2 && !own.is_reset;
        (may && own.homing.is_none()).then_some(())?;
        let written = (own.written - own.by_tcp).into();
        own.homing = Some(if own.migration.has_ended_tcp() {
            Homing::without_record(written)
        } else {
            Homing::new(peer.taken.into(), written)
        });
        if !is_lost {
            own.group.push_back(Message::Home);
        }
        self.feed(planted, index, Event::LeaveEdge, NOW);
        Some(Ok(()))
    }

    fn see_reset(&mut self, index: usize) -> Option<Result<(), Broken>> {
        let (own, peer) = two(&mut self.ends, index);
        // If the peer has closed the connection, the peer's kernel answers with a reset.
        let is_closed = peer.is_closed() && matches!(peer.phase(), Phase::Ended(_));
        let is_answered = is_closed && own.is_on_edge() && !own.tcp.is_empty();
        ((peer.is_reset || is_answered) && !own.is_reset).then_some(())?;
        own.reset();
        Some(Ok(()))
    }

    fn go_home(&mut self, planted: Planted, index: usize) -> Option<Result<(), Broken>> {
        if self.ends[index].is_on_edge() && self.pump(planted, index) {
            return Some(Ok(()));
        }
        let own = &mut self.ends[index];
        let may = own.phase() == Phase::GoingHome && !own.is_reset;
        let (known, posted) = (own.known.into(), own.posted.into());
        let homing = own.homing.as_mut().filter(|_| may)?;
        if let Some(taken) = own.record.take() {
            let record = Record { taken: taken.into() };
            let taken_in = homing.on_record(record, known, posted);
            return Some(taken_in.map_err(|_| format!("a record of {taken} of {posted}")));
        }
        let (token, bytes) = match homing.step() {
            HomeStep::Wait => return None,
            HomeStep::Record(record, _) => {
                let record = Record::decode(record).expect("it is one");
                (Token::Record(record.taken as u8), Record::BYTES)
            }
            HomeStep::Bytes(from) => (Token::Byte(own.by_tcp + from as u8), 1),
            HomeStep::Home => {
                own.has_rings = !own.is_peer_home && !own.has_seen_loss;
                if own.is_shut {
                    own.end_tcp();
                }
                self.feed(planted, index, Event::Arrived, NOW);
                return Some(Ok(()));
            }
        };
        (own.tcp.len() < own.room).then_some(())?;
        homing.on_sent(bytes);
        own.tcp.push_back(token);
        Some(Ok(()))
    }

    //= sockets-protocol.md: home.4
    fn see_loss(&mut self, planted: Planted, index: usize) -> Option<Result<(), Broken>> {
        let is_lost = self.is_lost;
        let own = &mut self.ends[index];
        (is_lost && !own.has_seen_loss && own.has_stream).then_some(())?;
        own.has_seen_loss = true;
        if own.is_on_edge() {
            let is_ending = own.peer_ended && own.has_reported;
            let is_early = own.seen < 2 && planted == Planted::DoesNotWait;
            if own.homing.is_none() && (is_early || is_ending) {
                own.reset();
                // Both directions have ended, so this reset takes no bytes from the programs.
                self.is_excused |= is_ending;
            } else {
                self.feed(planted, index, Event::Return, NOW);
            }
            return Some(Ok(()));
        }
        self.feed(planted, index, Event::GroupLost, NOW);
        let own = &mut self.ends[index];
        if !matches!(own.phase(), Phase::Switching | Phase::Unanswered) {
            own.has_rings = false;
        }
        Some(Ok(()))
    }

    /// Checks that no end is reset without a cause.
    fn check_resets(&self) -> Result<(), Broken> {
        let is_reset = self.ends.iter().any(|end| end.is_reset);
        if is_reset && !self.is_excused { Err("reset for no reason".into()) } else { Ok(()) }
    }

    /// Checks a state in which no further step is possible: every guarantee to programs must hold.
    fn check_rest(&self) -> Result<(), Broken> {
        let [one, other] = &self.ends;
        if one.is_reset || other.is_reset {
            return Ok(());
        }
        if one.is_on_edge() != other.is_on_edge() {
            return Err("one end is on the edge, the other is not".into());
        }
        for (own, peer) in [(one, other), (other, one)] {
            let is_in_flight =
                matches!(own.phase(), Phase::Switching | Phase::Returning | Phase::GoingHome);
            if is_in_flight && !self.is_excused {
                return Err(format!("an end stays {:?}", own.phase()));
            }
            let is_heard = !own.is_closed() && !peer.is_closed();
            if is_heard && own.got != peer.written {
                return Err(format!("{} of {} bytes have come", own.got, peer.written));
            }
            if is_heard && peer.is_shut && !own.has_heard {
                return Err("the end does not come".into());
            }
            let is_decided = matches!(own.phase(), Phase::Ended(_));
            if own.has_rings && is_decided && !self.is_lost {
                return Err("the rings are kept".into());
            }
        }
        Ok(())
    }
}

impl End {
    fn write(&mut self, planted: Planted) -> bool {
        if self.is_shut || self.is_closed() || self.is_reset || self.written >= WRITTEN {
            return false;
        }
        let writes_behind = self.is_ringless && planted == Planted::WritesBehindEcho;
        if self.is_on_edge() && !writes_behind {
            let may = self.phase() != Phase::GoingHome && !self.is_full();
            self.written += u8::from(may);
            return may;
        }
        let is_held = self.migration.is_held() && planted != Planted::WritesInMarker;
        if is_held || self.tcp.len() >= self.room {
            return false;
        }
        self.tcp.push_back(Token::Byte(self.written));
        self.written += 1;
        if self.migration.role == Role::Accepting {
            drop(self.migration.on(Event::Bytes, NOW));
            self.migration.forget_times();
        }
        true
    }

    fn post(&mut self, is_lost: bool) -> bool {
        let is_off = is_lost || self.is_ringless || self.is_reset;
        if !self.is_on_edge() || self.homing.is_some() || is_off {
            return false;
        }
        if self.posted < self.written - self.by_tcp {
            self.posted += 1;
            self.group.push_back(Message::Byte);
            return true;
        }
        let is_due = self.is_shut && !self.has_reported;
        if is_due {
            self.has_reported = true;
            self.group.push_back(Message::End);
        }
        is_due
    }

    fn get(&mut self, byte: u8) -> Result<(), Broken> {
        if byte != self.got {
            return Err(format!("byte {byte} comes after {} others", self.got));
        }
        self.got += 1;
        Ok(())
    }

    fn see_end(&mut self, peer: &Self) -> Result<(), Broken> {
        self.has_heard = true;
        if self.got == peer.written {
            Ok(())
        } else {
            Err(format!("the end comes after {} of {} bytes", self.got, peer.written))
        }
    }
}

fn two(ends: &mut [End; 2], index: usize) -> (&mut End, &mut End) {
    let [one, other] = ends;
    if index == 0 { (one, other) } else { (other, one) }
}

/// Number of bytes that each program writes.
const WRITTEN: u8 = 2;

/// Explores all states within `depth` steps, breadth first. Returns the number of states, or the
/// first broken guarantee and the steps that lead to it.
fn explore(
    room: usize,
    start: &[(usize, Step)],
    depth: usize,
    planted: Planted,
) -> Result<usize, Broken> {
    let mut state = State::new(room);
    for (index, step) in start {
        state = state.after(planted, *index, *step).expect("it can happen")?;
    }
    let mut seen = HashSet::from([state.clone()]);
    let mut layer = vec![state];
    for _ in 0..depth {
        let mut next = Vec::new();
        for state in layer {
            let mut has_to = false;
            for (index, step) in
                [0, 1].into_iter().flat_map(|index| STEPS.map(|step| (index, step)))
            {
                let Some(after) = state.after(planted, index, step) else { continue };
                has_to |= !FREE.contains(&step);
                let after = after.and_then(|after| after.check_resets().map(|()| after));
                let after =
                    after.map_err(|why| format!("{why}: {step:?} at {index} of {state:#?}"))?;
                if seen.insert(after.clone()) {
                    next.push(after);
                }
            }
            if !has_to {
                state.check_rest().map_err(|why| format!("{why}: {state:#?}"))?;
            }
        }
        layer = next;
    }
    Ok(seen.len())
}

/// Both ends have begun, and the offer is about to arrive.
const BEGUN: [(usize, Step); 2] = [(0, Step::Begin), (1, Step::Begin)];

/// The connecting end has taken the offer, and the group is established.
const ASKED: [(usize, Step); 4] =
    [(0, Step::Begin), (1, Step::Begin), (0, Step::Offer), (0, Step::GroupUp)];

/// The group is lost before the connecting end has received the answer.
const LOST: [(usize, Step); 8] = [
    (0, Step::Begin),
    (1, Step::Begin),
    (0, Step::Offer),
    (0, Step::GroupUp),
    (1, Step::Deliver),
    (1, Step::Marker),
    (0, Step::Lose),
    (0, Step::SeeLoss),
];

/// The answer arrives after the connecting end gave up and its program has shut TCP down.
const LATE_ANSWER: [(usize, Step); 11] = [
    (0, Step::Begin),
    (1, Step::Begin),
    (0, Step::Offer),
    (0, Step::GroupUp),
    (1, Step::Deliver),
    (1, Step::Marker),
    (0, Step::Time),
    (0, Step::Shut),
    (1, Step::Write),
    (1, Step::Post),
    (0, Step::Deliver),
];

/// Both ends have moved.
const MOVED: [(usize, Step); 10] = [
    (0, Step::Begin),
    (1, Step::Begin),
    (0, Step::Offer),
    (0, Step::GroupUp),
    (1, Step::Deliver),
    (1, Step::Marker),
    (0, Step::Deliver),
    (0, Step::Marker),
    (1, Step::Home),
    (1, Step::Home),
];

//= sockets-protocol.md: join.3, join.4, join.6, marker.1, group.4
#[test]
fn every_order_of_events_delivers_bytes_once_and_both_ends_agree() {
    let mut states = 0;
    for (room, start, depth) in [
        (2, &BEGUN[..], 8),
        (2, &ASKED, 9),
        (3, &ASKED, 8),
        (3, &LOST, 10),
        (3, &LATE_ANSWER, 10),
        (2, &MOVED, 8),
    ] {
        let explored = explore(room, start, depth, Planted::Nothing);
        states += explored.unwrap_or_else(|why| panic!("{why}"));
    }
    assert!(states > 50_000, "{states}");
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn two_ends_keep_the_rules_over_fourteen_events() {
    let mut states = 0;
    for (room, start) in [(2, &BEGUN[..]), (2, &ASKED), (3, &LOST), (3, &LATE_ANSWER), (2, &MOVED)]
    {
        let explored = explore(room, start, 14, Planted::Nothing);
        states += explored.unwrap_or_else(|why| panic!("{why}"));
    }
    println!("figure: states of two ends that move, after up to 14 events: {states}");
}

#[test]
fn planted_faults_break_the_rules() {
    for (planted, room, start, depth) in [
        (Planted::DoesNotWatch, 2, &ASKED[..], 8),
        (Planted::ForgetsAnswer, 2, &ASKED, 9),
        (Planted::DoesNotWait, 2, &ASKED, 9),
        (Planted::LeavesRestOfMarker, 2, &ASKED, 9),
        (Planted::DoesNotEcho, 2, &ASKED, 9),
        (Planted::WritesBehindEcho, 3, &LOST, 9),
        (Planted::ReadsRingBehindEnd, 3, &LATE_ANSWER, 12),
        (Planted::ResetsAtEnd, 2, &ASKED, 9),
        (Planted::LeavesPartOfMarker, 2, &ASKED, 9),
        (Planted::WritesInMarker, 2, &ASKED, 9),
        (Planted::ReadsRingFirst, 3, &ASKED, 9),
        (Planted::IgnoresLateAnswer, 2, &ASKED, 8),
        (Planted::ShutsAtOnce, 2, &ASKED, 8),
        (Planted::ForgetsReturn, 3, &MOVED[..7], 9),
        (Planted::LeavesWhenClosed, 2, &ASKED, 8),
        (Planted::KeepsRings, 2, &ASKED, 8),
    ] {
        let found = explore(room, start, depth, planted);
        assert!(found.is_err(), "{planted:?}: {found:?}");
    }
}
