//! Explores every order of events while the two ends of a stream return to TCP.
//!
//! The model has these events: programs read and write; a group carries and acknowledges bytes, and
//! is lost; TCP has room for two tokens, and a token is a byte or a record; each end may begin its
//! return at any time. The state of an end is the real [`Homing`]. All other parts are models.

use std::collections::{HashSet, VecDeque};

use super::{HomeStep, Homing, Record};

/// Faults that are inserted into the model on purpose. The exploration must find each of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Planted {
    Nothing,
    /// An end reports to the peer how many bytes have arrived in its ring, instead of how many
    /// bytes the program has read.
    NamesArrived,
    /// A program reads bytes of the ring after its end has reported the number of read bytes.
    TakesOn,
    /// The send ring drops acknowledged bytes that the peer's program has not read.
    ForgetsAcknowledged,
    /// An end continues to use the group after the peer has begun its return to TCP.
    DoesNotFollow,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Token {
    Record(u64),
    Byte(u64),
}

/// One end, and the bytes that this end sends.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct End {
    written: u64,
    posted: u64,
    /// `arrived`: number of bytes that have arrived in the peer's ring. `acknowledged`: number of
    /// these bytes that the peer has acknowledged to this end.
    arrived: u64,
    acknowledged: u64,
    /// `taken`: number of bytes that the peer's program has read from its ring. `known`: number of
    /// these bytes that the peer has reported to this end in a credit.
    taken: u64,
    known: u64,
    /// Number of bytes that the peer's program has received by any route.
    got: u64,
    tcp: VecDeque<Token>,
    homing: Option<Homing>,
    is_home: bool,
}

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct State {
    ends: [End; 2],
    is_lost: bool,
    has_seen_loss: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Write,
    Post,
    Arrive,
    Acknowledge,
    Take,
    Credit,
    Begin,
    SendTcp,
    ReadRecord,
    SeeLoss,
    Lose,
}

const EVENTS: [Event; 11] = [
    Event::Write,
    Event::Post,
    Event::Arrive,
    Event::Acknowledge,
    Event::Take,
    Event::Credit,
    Event::Begin,
    Event::SendTcp,
    Event::ReadRecord,
    Event::SeeLoss,
    Event::Lose,
];

/// Limits that keep the model small.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of bytes that each program writes.
    written: u64,
    /// Size of a ring in bytes.
    ring: u64,
}

/// Small limits. They give about 70 000 states.
const FEW: Limits = Limits { written: 2, ring: 1 };

/// Larger limits. They give 1.6 million states.
const MANY: Limits = Limits { written: 3, ring: 2 };

/// Number of tokens that fit in TCP.
const TCP: usize = 2;

impl State {
    /// Returns the state after an event. Returns `None` if the event cannot occur now, and an error
    /// if it breaks a guarantee to programs.
    fn after(
        &self,
        limits: Limits,
        planted: Planted,
        index: usize,
        event: Event,
    ) -> Option<Result<Self, String>> {
        let mut next = self.clone();
        let done = next.happen(limits, planted, index, event)?;
        Some(done.map(|()| next))
    }

    fn happen(
        &mut self,
        limits: Limits,
        planted: Planted,
        index: usize,
        event: Event,
    ) -> Option<Result<(), String>> {
        let is_lost = self.is_lost;
        let [own, peer] = if index == 0 {
            let [own, peer] = &mut self.ends;
            [own, peer]
        } else {
            let [peer, own] = &mut self.ends;
            [own, peer]
        };
        match event {
            Event::Write => {
                let kept = if planted == Planted::ForgetsAcknowledged {
                    own.acknowledged
                } else {
                    own.known
                };
                let has_room = match (own.is_home, &own.homing) {
                    (true, _) => own.tcp.len() < TCP,
                    (false, Some(_)) => false,
                    (false, None) => own.written - kept < limits.ring,
                };
                (own.written < limits.written && has_room).then_some(())?;
                if own.is_home {
                    own.tcp.push_back(Token::Byte(own.written));
                }
                own.written += 1;
            }
            Event::Post => {
                let may = own.homing.is_none() && !is_lost && own.posted < own.written;
                (may && own.posted - own.known < limits.ring).then_some(())?;
                own.posted += 1;
            }
            Event::Arrive => {
                (!is_lost && own.arrived < own.posted).then_some(())?;
                own.arrived += 1;
            }
            Event::Acknowledge => {
                (!is_lost && own.acknowledged < own.arrived).then_some(())?;
                own.acknowledged += 1;
            }
            Event::Credit => {
                let may = own.homing.is_none() && peer.homing.is_none() && !is_lost;
                (may && own.known < own.taken).then_some(())?;
                own.known = own.taken;
            }
            // The program reads bytes that the peer has written to TCP.
            Event::Take if own.is_home => {
                let Some(Token::Byte(byte)) = peer.tcp.front().copied() else { return None };
                peer.tcp.pop_front();
                if byte != peer.got {
                    return Some(Err(format!("byte {byte} comes by TCP after {}", peer.got)));
                }
                peer.got += 1;
            }
            Event::Take => {
                let may = own.homing.is_none() || planted == Planted::TakesOn;
                (may && peer.taken < peer.arrived).then_some(())?;
                if peer.taken != peer.got {
                    return Some(Err(format!(
                        "byte {} of the ring after {}",
                        peer.taken, peer.got
                    )));
                }
                peer.taken += 1;
                peer.got += 1;
            }
            Event::Begin => {
                own.homing.is_none().then_some(())?;
                own.begin(planted, peer);
            }
            Event::SendTcp => return own.send_tcp(limits, planted),
            Event::ReadRecord => return own.read_record(peer, planted),
            Event::Lose => {
                (!is_lost && index == 0).then_some(())?;
                self.is_lost = true;
            }
            Event::SeeLoss => {
                (is_lost && !self.has_seen_loss[index]).then_some(())?;
                if own.homing.is_none() {
                    own.begin(planted, peer);
                }
                self.has_seen_loss[index] = true;
            }
        }
        Some(Ok(()))
    }

    /// Returns true if all bytes have arrived and both ends agree. The result must be true in each
    /// state in which only the events [`Event::Begin`] and [`Event::Lose`] are possible.
    fn is_whole(&self, limits: Limits) -> bool {
        let is_agreed = self.ends[0].is_home == self.ends[1].is_home;
        is_agreed && self.ends.iter().all(|end| end.got == limits.written)
    }
}

impl End {
    fn begin(&mut self, planted: Planted, peer: &Self) {
        let taken = if planted == Planted::NamesArrived { peer.arrived } else { peer.taken };
        self.homing = Some(Homing::new(taken, self.written));
    }

    fn send_tcp(&mut self, limits: Limits, planted: Planted) -> Option<Result<(), String>> {
        let homing = self.homing.as_mut().filter(|_| !self.is_home)?;
        let (token, bytes) = match homing.step() {
            HomeStep::Record(record, done) => {
                assert_eq!(done, 0, "a record is one token");
                let record = Record::decode(record).expect("it is one");
                (Token::Record(record.taken), Record::BYTES)
            }
            HomeStep::Bytes(from) => {
                let forgotten = self.acknowledged.min(self.written.saturating_sub(limits.ring));
                if planted == Planted::ForgetsAcknowledged && from < forgotten {
                    return Some(Err(format!("byte {from} is lost")));
                }
                (Token::Byte(from), 1)
            }
            HomeStep::Home => {
                self.is_home = true;
                return Some(Ok(()));
            }
            HomeStep::Wait => return None,
        };
        (self.tcp.len() < TCP).then_some(())?;
        self.tcp.push_back(token);
        homing.on_sent(bytes);
        Some(Ok(()))
    }

    fn read_record(&mut self, peer: &mut Self, planted: Planted) -> Option<Result<(), String>> {
        let Some(Token::Record(taken)) = peer.tcp.front().copied() else { return None };
        peer.tcp.pop_front();
        if self.homing.is_none() {
            if planted == Planted::DoesNotFollow {
                return Some(Ok(()));
            }
            self.begin(planted, peer);
        }
        let (known, posted) = (self.known, self.posted);
        let homing = self.homing.as_mut().expect("it has begun");
        if homing.on_record(Record { taken }, known, posted).is_err() {
            return Some(Err(format!("a record of {taken} from {known} to {posted}")));
        }
        Some(Ok(()))
    }
}

/// Explores all reachable states. Returns their number, or the first broken guarantee.
fn explore(limits: Limits, planted: Planted) -> Result<usize, String> {
    let start = State::default();
    let (mut seen, mut next) = (HashSet::from([start.clone()]), VecDeque::from([start]));
    while let Some(state) = next.pop_front() {
        let mut goes_on = false;
        for (index, event) in
            [0, 1].into_iter().flat_map(|index| EVENTS.map(|event| (index, event)))
        {
            let Some(after) = state.after(limits, planted, index, event) else { continue };
            goes_on |= !matches!(event, Event::Begin | Event::Lose);
            let after = after?;
            if seen.insert(after.clone()) {
                next.push_back(after);
            }
        }
        if !goes_on && !state.is_whole(limits) {
            return Err(format!("it stops at {state:?}"));
        }
    }
    Ok(seen.len())
}

//= sockets-protocol.md: home.1, home.2, home.4, home.5
#[test]
fn every_order_of_events_delivers_all_bytes_once_and_both_ends_agree() {
    let states = explore(FEW, Planted::Nothing).expect("nothing is broken");
    assert!(states > 50_000, "{states}");
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn every_order_of_events_delivers_more_bytes_once_and_both_ends_agree() {
    let states = explore(MANY, Planted::Nothing).expect("nothing is broken");
    println!("figure: states of the way home: {states}");
}

#[test]
fn planted_faults_break_the_rules() {
    for planted in [
        Planted::NamesArrived,
        Planted::TakesOn,
        Planted::ForgetsAcknowledged,
        Planted::DoesNotFollow,
    ] {
        let found = explore(FEW, planted);
        assert!(found.is_err(), "{planted:?}: {found:?}");
    }
}
