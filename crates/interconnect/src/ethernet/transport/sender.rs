//! The sending end of a connection: transmission and retransmission of frames.

use std::collections::VecDeque;

use super::rate::Rate;
use super::window::{Progress, Window};
use super::{NONE, Recovery, Segment, TransportConfiguration, TransportCounts, is_before};

/// The sending end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) class: u8,
    /// Whether the connection waits for its turn to send, and the index of the connection whose
    /// turn is next.
    pub(super) is_ready: bool,
    pub(super) next_ready: u32,
    /// Time of the scheduled timer event; [`u64::MAX`] if none is scheduled.
    pub(super) timer_ps: u64,
    /// Time when the retransmission timeout expires; [`u64::MAX`] if no frame awaits an
    /// acknowledgement.
    deadline_ps: u64,
    /// Number of consecutive timeouts.
    backoff: u32,
    /// Smoothed round-trip time and its mean deviation, in picoseconds; 0 before the first
    /// measurement.
    round_trip_ps: u64,
    variation_ps: u64,
    window: Window,
    /// Pacing rate; `None` if the connection is not paced.
    pub(super) rate: Option<Rate>,
    /// Messages with frames that are not acknowledged.
    messages: VecDeque<Outgoing>,
    /// First frame that is not acknowledged.
    acknowledged: u32,
    /// Next frame to send, if no frame needs to be retransmitted.
    next: u32,
    /// First frame that has never been sent.
    sent: u32,
    /// Number of the frame after the last frame of the last message.
    end: u32,
    /// Number of the next transmission.
    transmission: u32,
    recovery: Sending,
}

/// State of the frames in flight. It depends on the rule for retransmissions.
#[derive(Clone, Debug)]
enum Sending {
    /// State for go-back-N. The transmission with the number `transmission` carried the frame
    /// `sequence`. All later transmissions carried the later frames in order.
    InOrder {
        sequence: u32,
        transmission: u32,
    },
    Selective(Box<Scoreboard>),
}

/// State of frames with selective repeat.
#[derive(Clone, Debug, Default)]
struct Scoreboard {
    /// State of each frame, from the first frame without acknowledgement to the last frame sent.
    slots: VecDeque<Slot>,
    /// Frames in the order of their transmissions. `order_start` is the number of the first of
    /// these transmissions.
    order: VecDeque<u32>,
    order_start: u32,
    /// Frames to retransmit.
    lost: VecDeque<u32>,
    /// Number of frames that are neither acknowledged nor declared lost.
    in_flight: u32,
    /// Latest transmission that has been acknowledged.
    newest: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slot {
    /// The frame is in flight. Contains the number of the frame's latest transmission.
    InFlight(u32),
    Lost,
    Acknowledged,
}

/// A message that is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    /// Number by which frames refer to this message.
    pub(super) name: u32,
    /// Number of frames of the message, and payload of the last frame in bytes.
    pub(super) frames: u32,
    pub(super) last_bytes: u32,
    /// Number of the first frame of the message.
    first: u32,
}

/// A data frame that a host sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) sequence: u32,
    pub(super) transmission: u32,
    pub(super) message: u32,
    /// Payload in bytes if this is the message's last frame; `None` for a full frame.
    pub(super) last_bytes: Option<u32>,
    pub(super) is_again: bool,
}

impl Outgoing {
    pub(super) const fn new(name: u32, frames: u32, last_bytes: u32) -> Self {
        Self { name, frames, last_bytes, first: 0 }
    }
}

impl Sender {
    pub(super) fn new(
        configuration: &TransportConfiguration,
        source: u32,
        destination: u32,
        class: u8,
    ) -> Self {
        let recovery = match configuration.recovery {
            Recovery::GoBackN => Sending::InOrder { sequence: 0, transmission: FIRST },
            Recovery::SelectiveRepeat => Sending::Selective(Box::new(Scoreboard {
                order_start: FIRST,
                ..Scoreboard::default()
            })),
        };
        Self {
            source,
            destination,
            class,
            is_ready: false,
            next_ready: NONE,
            timer_ps: u64::MAX,
            deadline_ps: u64::MAX,
            backoff: 0,
            round_trip_ps: 0,
            variation_ps: 0,
            window: Window::new(configuration),
            rate: None,
            messages: VecDeque::new(),
            acknowledged: 0,
            next: 0,
            sent: 0,
            end: 0,
            transmission: FIRST,
            recovery,
        }
    }

    /// Returns this sender with a pacing rate.
    pub(super) fn with_rate(self, rate: Option<Rate>) -> Self {
        Self { rate, ..self }
    }

    /// Returns the earliest time at which pacing permits the next frame, in picoseconds.
    pub(super) fn paced_until_ps(&self) -> u64 {
        self.rate.as_ref().map_or(0, Rate::next_ps)
    }

    /// Adds a message that the connection must send.
    pub(super) fn post(&mut self, message: Outgoing) {
        self.messages.push_back(Outgoing { first: self.end, ..message });
        self.end = self.end.wrapping_add(message.frames);
    }

    /// Returns whether the sender has a frame to send and its window permits it.
    pub(super) fn may_send(&self) -> bool {
        let is_lost = match &self.recovery {
            Sending::InOrder { .. } => false,
            Sending::Selective(scoreboard) => !scoreboard.lost.is_empty(),
        };
        (is_lost || self.next != self.end) && self.in_flight() < self.window.frames()
    }

    fn in_flight(&self) -> u32 {
        match &self.recovery {
            Sending::InOrder { .. } => self.next.wrapping_sub(self.acknowledged),
            Sending::Selective(scoreboard) => scoreboard.in_flight,
        }
    }

    /// Returns the next frame to send. The sender must be [allowed to send](Self::may_send).
    pub(super) fn depart(
        &mut self,
        configuration: &TransportConfiguration,
        now_ps: u64,
    ) -> Departure {
        let transmission = self.transmission;
        self.transmission = transmission.wrapping_add(1);
        let again = match &mut self.recovery {
            Sending::InOrder { .. } => None,
            Sending::Selective(scoreboard) => {
                let again = scoreboard.lost.pop_front();
                scoreboard.depart(self.acknowledged, again.unwrap_or(self.next), transmission);
                again
            }
        };
        let sequence = again.unwrap_or_else(|| {
            let next = self.next;
            self.next = next.wrapping_add(1);
            next
        });
        let is_again = is_before(sequence, self.sent);
        if !is_again {
            self.sent = self.next;
        }
        if self.deadline_ps == u64::MAX {
            self.deadline_ps = now_ps + self.timeout_ps(configuration);
        }
        let (message, last_bytes) = self.message_of(sequence);
        Departure { sequence, transmission, message, last_bytes, is_again }
    }

    /// Returns the `name` of the message to which a frame belongs. If the frame is the message's
    /// last, also returns its payload in bytes.
    fn message_of(&self, sequence: u32) -> (u32, Option<u32>) {
        let start = self.messages.front().map_or(0, |message| message.first);
        let offset = sequence.wrapping_sub(start);
        let is_begun = |message: &Outgoing| message.first.wrapping_sub(start) <= offset;
        let at = self.messages.partition_point(is_begun).saturating_sub(1);
        let message = self.messages[at];
        let is_last = sequence.wrapping_sub(message.first) == message.frames - 1;
        (message.name, is_last.then_some(message.last_bytes))
    }

    /// Handles an acknowledgement.
    pub(super) fn on_acknowledged(
        &mut self,
        configuration: &TransportConfiguration,
        segment: &Segment,
        (is_marked, now_ps): (bool, u64),
        counts: &mut TransportCounts,
    ) {
        let was_full = self.in_flight() >= self.window.frames();
        let round_trip_ps = now_ps - segment.sent_ps;
        self.measure(round_trip_ps);
        counts.acknowledgements += 1;
        counts.marked += u64::from(is_marked);
        counts.round_trips_ps += round_trip_ps;
        counts.round_trip_max_ps = counts.round_trip_max_ps.max(round_trip_ps);
        counts.windows_256ths += self.window.frames_256ths();
        counts.rates_mbps += self.rate.as_ref().map_or(0, |rate| rate.bps() / 1_000_000);
        let is_progress = is_before(self.acknowledged, segment.expected);
        let newly = match &mut self.recovery {
            Sending::Selective(scoreboard) => scoreboard.settle(self.acknowledged, segment),
            Sending::InOrder { .. } if is_progress => {
                segment.expected.wrapping_sub(self.acknowledged)
            }
            Sending::InOrder { .. } => 0,
        };
        if is_progress {
            self.advance(segment.expected);
            self.backoff = 0;
            let has_ended = self.acknowledged == self.sent;
            self.deadline_ps =
                if has_ended { u64::MAX } else { now_ps + self.timeout_ps(configuration) };
        }
        let (acknowledged, sent) = (self.acknowledged, self.sent);
        let progress =
            Progress { newly, is_marked, round_trip_ps, was_full, acknowledged, sent, now_ps };
        self.window.on_progress(configuration, &progress);
        if self.find_lost(segment.transmission, configuration.loss_threshold_frames.max(1)) {
            self.window.on_loss(configuration, (acknowledged, sent), now_ps);
        }
    }

    /// Advances to `expected`: all frames before it are acknowledged.
    fn advance(&mut self, expected: u32) {
        self.acknowledged = expected;
        if let Sending::InOrder { sequence, transmission } = &mut self.recovery
            && is_before(self.next, expected)
        {
            // The receiver already has some frames that the sender was about to retransmit. The
            // sender skips these frames.
            self.next = expected;
            (*sequence, *transmission) = (expected, self.transmission);
        }
        while let Some(first) = self.messages.front()
            && !is_before(expected, first.first.wrapping_add(first.frames))
        {
            self.messages.pop_front();
        }
    }

    /// Declares frames lost if their transmission was at least `threshold` transmissions before
    /// `answered`, the acknowledged transmission. Returns whether any frame was declared lost.
    fn find_lost(&mut self, answered: u32, threshold: u32) -> bool {
        match &mut self.recovery {
            Sending::InOrder { sequence, transmission } => {
                let after = self.acknowledged.wrapping_sub(*sequence);
                let own = transmission.wrapping_add(after);
                let is_lost = self.acknowledged != self.next
                    && !is_before(answered, own.wrapping_add(threshold));
                if is_lost {
                    self.go_back();
                }
                is_lost
            }
            Sending::Selective(scoreboard) => {
                let newest = scoreboard.newest;
                let is_late =
                    |transmission: u32| !is_before(newest, transmission.wrapping_add(threshold));
                scoreboard.give_up(self.acknowledged, is_late)
            }
        }
    }

    fn go_back(&mut self) {
        self.next = self.acknowledged;
        if let Sending::InOrder { sequence, transmission } = &mut self.recovery {
            (*sequence, *transmission) = (self.next, self.transmission);
        }
    }

    /// Updates the smoothed round-trip time and its deviation, according to RFC 6298.
    const fn measure(&mut self, round_trip_ps: u64) {
        if self.round_trip_ps == 0 {
            (self.round_trip_ps, self.variation_ps) = (round_trip_ps, round_trip_ps / 2);
            return;
        }
        let apart_ps = self.round_trip_ps.abs_diff(round_trip_ps);
        self.variation_ps = (3 * self.variation_ps + apart_ps) / 4;
        self.round_trip_ps = (7 * self.round_trip_ps + round_trip_ps) / 8;
    }

    fn timeout_ps(&self, configuration: &TransportConfiguration) -> u64 {
        let measured_ps = self.round_trip_ps + 4 * self.variation_ps;
        configuration.timeout_ps.max(measured_ps).max(1) << self.backoff.min(BACKOFF_MAX)
    }

    /// Returns the time for which a timer event must be scheduled. Returns `None` if no event is
    /// needed, or if an event is scheduled that is early enough.
    pub(super) fn arm(&mut self) -> Option<u64> {
        let is_paced = self.rate.is_some() && !self.is_ready && self.may_send();
        let paced_ps = if is_paced { self.paced_until_ps() } else { u64::MAX };
        let time_ps = self.deadline_ps.min(paced_ps);
        if time_ps >= self.timer_ps {
            return None;
        }
        self.timer_ps = time_ps;
        Some(time_ps)
    }

    /// Handles a timer event. If the retransmission timeout has expired, declares all frames in
    /// flight lost and returns true.
    pub(super) fn on_timer(&mut self, configuration: &TransportConfiguration, now_ps: u64) -> bool {
        if self.timer_ps != now_ps {
            return false;
        }
        self.timer_ps = u64::MAX;
        if self.deadline_ps > now_ps {
            return false;
        }
        self.deadline_ps = u64::MAX;
        self.backoff += 1;
        match &mut self.recovery {
            Sending::InOrder { .. } => self.go_back(),
            Sending::Selective(scoreboard) => {
                scoreboard.give_up(self.acknowledged, |_| true);
            }
        }
        self.window.on_timeout(configuration, self.sent);
        true
    }
}

impl Scoreboard {
    /// Records that a frame is sent.
    fn depart(&mut self, acknowledged: u32, sequence: u32, transmission: u32) {
        let at = sequence.wrapping_sub(acknowledged) as usize;
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Slot::InFlight(transmission),
            None => self.slots.push_back(Slot::InFlight(transmission)),
        }
        self.order.push_back(sequence);
        self.in_flight += 1;
        self.forget_found(acknowledged);
    }

    /// Removes frames from the front of the retransmission list for as long as the first frame of
    /// the list has already arrived at the receiver.
    fn forget_found(&mut self, start: u32) {
        let (slots, lost) = (&self.slots, &mut self.lost);
        let is_there = |sequence: &mut u32| {
            slots.get(sequence.wrapping_sub(start) as usize) != Some(&Slot::Lost)
        };
        while lost.pop_front_if(is_there).is_some() {}
    }

    /// Records an acknowledgement. Returns how many frames this acknowledgement is the first to
    /// confirm.
    fn settle(&mut self, acknowledged: u32, segment: &Segment) -> u32 {
        let mut newly = 0;
        let mut note = |slot: Slot| {
            self.in_flight -= u32::from(matches!(slot, Slot::InFlight(_)));
            newly += u32::from(slot != Slot::Acknowledged);
        };
        let mut start = acknowledged;
        while is_before(start, segment.expected) {
            self.slots.pop_front().into_iter().for_each(&mut note);
            start = start.wrapping_add(1);
        }
        let at = segment.sequence.wrapping_sub(start) as usize;
        if let Some(slot) = self.slots.get_mut(at) {
            note(std::mem::replace(slot, Slot::Acknowledged));
        }
        if is_before(self.newest, segment.transmission) {
            self.newest = segment.transmission;
        }
        self.forget_found(start);
        newly
    }

    /// Declares transmissions in flight lost, from the oldest on, until `is_late` returns false.
    /// Returns whether any transmission was declared lost.
    fn give_up(&mut self, acknowledged: u32, is_late: impl Fn(u32) -> bool) -> bool {
        let mut is_any = false;
        while let Some(&sequence) = self.order.front() {
            let slot = self.slots.get_mut(sequence.wrapping_sub(acknowledged) as usize);
            let current = slot.filter(|slot| **slot == Slot::InFlight(self.order_start));
            if current.is_some() && !is_late(self.order_start) {
                break;
            }
            if let Some(slot) = current {
                *slot = Slot::Lost;
                self.lost.push_back(sequence);
                self.in_flight -= 1;
                is_any = true;
            }
            self.order.pop_front();
            self.order_start = self.order_start.wrapping_add(1);
        }
        is_any
    }
}

/// Number of the first transmission of a connection.
const FIRST: u32 = 1;
/// Maximum number of doublings of a timeout. Even a timeout of a second plus the measured round
/// trip, doubled 20 times, stays far below the end of virtual time.
const BACKOFF_MAX: u32 = 20;
