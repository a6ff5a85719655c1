//! Messages that a host receives: arrived frames, missing frames and grants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{HomaConfiguration, Key};

/// The messages that a host receives.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    overcommitment: usize,
    rtt_frames: u32,
    /// First class of granted frames.
    scheduled: u8,
    classes: u8,
    oldest_percent: u32,
    messages: BTreeMap<Key, Incoming>,
    /// Messages that need grants, ordered by the number of frames that have not arrived, then by
    /// message.
    waiting: BTreeSet<(u32, Key)>,
    /// Messages that need grants, ordered by the arrival of their first frame at the host.
    by_age: BTreeSet<(u64, Key)>,
    /// Number of messages that the host has received or begun to receive.
    known: u64,
    /// Number of frames that the host should now grant to the oldest message, in hundredths.
    due_percent: u32,
    /// For each source, the numbers of its complete messages.
    complete: BTreeMap<u32, Complete>,
    /// Grants that are not sent yet.
    grants: VecDeque<Grant>,
}

/// A message that has not arrived completely.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    frames: u32,
    /// Number of frames that have arrived.
    count: u32,
    /// First frame that has not arrived.
    first_missing: u32,
    /// Bitmap of arrived frames: frame n is bit n % 64 of word n / 64.
    there: Vec<u64>,
    /// First frame that is not granted; the sender may send the frames before it.
    pub(super) granted: u32,
    age: u64,
    /// Number of packets about this message that this host has sent to the sender.
    pub(super) transmissions: u32,
    /// Time when the last new frame arrived, in picoseconds, and the number of timeouts after that
    /// time.
    pub(super) news_ps: u64,
    pub(super) backoff: u32,
    /// Whether a timer of this message is scheduled.
    pub(super) has_timer: bool,
}

/// Numbers of complete messages: all numbers below `before`, and the numbers in `after`.
#[derive(Clone, Debug, Default)]
struct Complete {
    before: u32,
    after: BTreeSet<u32>,
}

/// A grant that is not sent yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Grant {
    pub(super) key: Key,
    pub(super) until: u32,
    pub(super) class: u8,
}

/// What an arriving data frame contributes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// The frame was missing, and other frames of the message are still missing.
    New,
    /// The frame was the last missing one, so the message is complete.
    Last,
    /// The frame had arrived before.
    Duplicate,
    /// The message was complete before the frame arrived.
    Late,
}

impl Incoming {
    fn has(&self, frame: u32) -> bool {
        let word = self.there.get(frame as usize / 64).copied().unwrap_or_default();
        word >> (frame % 64) & 1 != 0
    }

    fn set(&mut self, frame: u32) {
        let word = frame as usize / 64;
        if self.there.len() <= word {
            self.there.resize(word + 1, 0);
        }
        self.there[word] |= 1 << (frame % 64);
        self.count += 1;
        while self.has(self.first_missing) {
            self.first_missing += 1;
        }
    }

    const fn left(&self) -> u32 {
        self.frames - self.count
    }

    /// Returns whether frames are missing that the sender is allowed to send.
    pub(super) const fn is_expected(&self) -> bool {
        self.count < self.granted
    }

    /// Returns the runs of missing frames that the sender is allowed to send. Each entry has the
    /// first frame and the length of a run.
    pub(super) fn gaps(&self) -> Vec<(u32, u32)> {
        let mut gaps: Vec<(u32, u32)> = Vec::new();
        for frame in (self.first_missing..self.granted).filter(|&frame| !self.has(frame)) {
            if let Some((first, frames)) = gaps.last_mut()
                && *first + *frames == frame
            {
                *frames += 1;
                continue;
            }
            if gaps.len() == GAPS_MAX {
                break;
            }
            gaps.push((frame, 1));
        }
        gaps
    }
}

impl Receiver {
    pub(super) fn new(configuration: &HomaConfiguration, rtt_frames: u32, classes: u8) -> Self {
        Self {
            overcommitment: configuration.overcommitment.max(1) as usize,
            rtt_frames,
            scheduled: configuration.unscheduled_classes.clamp(1, classes),
            classes,
            oldest_percent: configuration.oldest_percent,
            messages: BTreeMap::new(),
            waiting: BTreeSet::new(),
            by_age: BTreeSet::new(),
            known: 0,
            due_percent: 0,
            complete: BTreeMap::new(),
            grants: VecDeque::new(),
        }
    }

    pub(super) fn message(&mut self, key: Key) -> Option<&mut Incoming> {
        self.messages.get_mut(&key)
    }

    /// Handles the arrival of a frame of a message with `frames` frames.
    pub(super) fn take(&mut self, key: Key, frame: u32, frames: u32, now_ps: u64) -> Verdict {
        if self.complete.get(&key.0).is_some_and(|complete| complete.has(key.1)) {
            return Verdict::Late;
        }
        let message = self.messages.entry(key).or_insert_with(|| {
            let message = Incoming {
                frames,
                count: 0,
                first_missing: 0,
                there: Vec::new(),
                granted: self.rtt_frames.min(frames),
                age: self.known,
                transmissions: 0,
                news_ps: now_ps,
                backoff: 0,
                has_timer: false,
            };
            self.known += 1;
            if message.granted < frames {
                self.waiting.insert((message.left(), key));
                self.by_age.insert((message.age, key));
            }
            message
        });
        if message.has(frame) {
            return Verdict::Duplicate;
        }
        let is_waiting = self.waiting.remove(&(message.left(), key));
        message.set(frame);
        (message.news_ps, message.backoff) = (now_ps, 0);
        if message.left() == 0 {
            self.by_age.remove(&(message.age, key));
            self.messages.remove(&key);
            self.complete.entry(key.0).or_default().add(key.1);
            return Verdict::Last;
        }
        if is_waiting {
            self.waiting.insert((message.left(), key));
        }
        Verdict::New
    }

    /// Creates the grants that the receiver can give after the arrival of a frame.
    pub(super) fn grant(&mut self) {
        self.grant_to_shortest();
        if self.oldest_percent > 0 && !self.by_age.is_empty() {
            self.due_percent += self.oldest_percent;
            if self.due_percent >= 100 {
                self.due_percent -= 100;
                self.grant_to_oldest();
            }
        }
    }

    /// Grants frames of the messages that lack the fewest frames. Of each of these messages, the
    /// frames that are granted but have not arrived fit in one round trip. The granted frames use
    /// the last classes, so that earlier classes stay free for shorter messages.
    fn grant_to_shortest(&mut self) {
        let mut is_complete = true;
        while is_complete {
            is_complete = false;
            let active = self.waiting.len().min(self.overcommitment);
            for (place, &(_, key)) in self.waiting.iter().take(active).enumerate() {
                let Some(message) = self.messages.get_mut(&key) else { continue };
                let until = message.count.saturating_add(self.rtt_frames).min(message.frames);
                if until > message.granted {
                    message.granted = until;
                    let class = self.classes.saturating_sub((active - place).min(255) as u8);
                    let class = class.max(self.scheduled).min(self.classes - 1);
                    self.grants.push_back(Grant { key, until, class });
                    is_complete |= until == message.frames;
                }
            }
            if is_complete {
                // Removes completely granted messages, so that other messages get grants.
                self.forget_granted();
            }
        }
    }

    /// Grants one more frame to the oldest message, in the first class of granted frames.
    fn grant_to_oldest(&mut self) {
        let Some(&(_, key)) = self.by_age.first() else { return };
        let Some(message) = self.messages.get_mut(&key) else { return };
        let most = message.count.saturating_add(2 * self.rtt_frames);
        if message.granted < most.min(message.frames) {
            message.granted += 1;
            let class = self.scheduled.min(self.classes - 1);
            self.grants.push_back(Grant { key, until: message.granted, class });
            self.forget_granted();
        }
    }

    /// Removes messages from the lists of messages that need grants, if all of their frames are
    /// granted. Checks only messages with unsent grants.
    fn forget_granted(&mut self) {
        for &Grant { key, until, .. } in &self.grants {
            if let Some(message) = self.messages.get(&key)
                && until == message.frames
            {
                self.waiting.remove(&(message.left(), key));
                self.by_age.remove(&(message.age, key));
            }
        }
    }

    /// Removes and returns the next grant to send.
    pub(super) fn poll_grant(&mut self) -> Option<Grant> {
        self.grants.pop_front()
    }
}

impl Complete {
    fn has(&self, number: u32) -> bool {
        number < self.before || self.after.contains(&number)
    }

    fn add(&mut self, number: u32) {
        self.after.insert(number);
        while self.after.remove(&self.before) {
            self.before += 1;
        }
    }
}

/// Maximum number of runs of missing frames in one round of requests.
const GAPS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::tests::CONFIGURATION;
    use super::*;

    fn receiver(configuration: HomaConfiguration) -> Receiver {
        Receiver::new(&configuration, 3, 4)
    }

    /// Handles a frame. Returns the new grants: source, end of the granted frames, class.
    fn granted(receiver: &mut Receiver, from: u32, frame: u32, frames: u32) -> Vec<(u32, u32, u8)> {
        assert_ne!(receiver.take((from, 0), frame, frames, 0), Verdict::Late);
        receiver.grant();
        let grants = std::iter::from_fn(|| receiver.poll_grant());
        grants.map(|it| (it.key.0, it.until, it.class)).collect()
    }

    #[test]
    fn a_message_has_a_round_trip_of_frames_in_flight() {
        let mut receiver = receiver(CONFIGURATION);
        assert_eq!(granted(&mut receiver, 1, 0, 6), [(1, 4, 3)]);
        assert_eq!(granted(&mut receiver, 1, 2, 6), [(1, 5, 3)]);
        // A duplicate frame allows no further grant.
        assert_eq!(granted(&mut receiver, 1, 2, 6), []);
        assert_eq!(granted(&mut receiver, 1, 1, 6), [(1, 6, 3)]);
        assert_eq!(granted(&mut receiver, 1, 3, 6), []);
        // No frame of this message needs a grant.
        assert_eq!(granted(&mut receiver, 2, 0, 3), []);
    }

    #[test]
    fn the_shortest_messages_get_grants_and_others_follow() {
        let mut receiver = receiver(CONFIGURATION);
        assert_eq!(granted(&mut receiver, 1, 0, 20), [(1, 4, 3)]);
        assert_eq!(granted(&mut receiver, 2, 0, 9), [(2, 4, 2)]);
        // The third message lacks the fewest frames, so the first message waits.
        assert_eq!(granted(&mut receiver, 3, 0, 5), [(3, 4, 2)]);
        assert_eq!(granted(&mut receiver, 1, 1, 20), []);
        // All frames of the third message are then granted. The receiver therefore grants frames of
        // the first message again.
        assert_eq!(granted(&mut receiver, 3, 1, 5), [(3, 5, 2), (1, 5, 3)]);
    }

    #[test]
    fn the_oldest_message_gets_its_share_of_grants() {
        let mut receiver =
            receiver(HomaConfiguration { overcommitment: 1, oldest_percent: 50, ..CONFIGURATION });
        assert_eq!(granted(&mut receiver, 1, 0, 90), [(1, 4, 3)]);
        let frames: Vec<_> =
            (0..8).flat_map(|frame| granted(&mut receiver, 2, frame, 30)).collect();
        let oldest = frames.iter().filter(|grant| grant.0 == 1);
        assert_eq!(oldest.collect::<Vec<_>>(), [&(1, 5, 2), &(1, 6, 2), &(1, 7, 2)]);
        let others: Vec<u32> = frames.iter().filter(|it| it.0 == 2).map(|it| it.1).collect();
        assert_eq!(others, [4, 5, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn gaps_are_granted_frames_that_have_not_arrived() {
        let mut receiver = receiver(CONFIGURATION);
        for frame in [0, 2, 5, 6] {
            assert_eq!(receiver.take((1, 0), frame, 70, 5), Verdict::New);
        }
        receiver.grant();
        let message = receiver.message((1, 0)).expect("it is not complete");
        // Four frames have arrived. Three more are granted, so the sender may have sent seven.
        assert_eq!((message.granted, message.is_expected()), (7, true));
        assert_eq!(message.gaps(), [(1, 1), (3, 2)]);
        assert_eq!(message.news_ps, 5);
    }

    #[test]
    fn late_frames_of_complete_messages_are_recognized() {
        let mut receiver = receiver(CONFIGURATION);
        assert_eq!(receiver.take((1, 1), 0, 1, 0), Verdict::Last);
        assert_eq!(receiver.take((1, 1), 0, 1, 0), Verdict::Late);
        assert_eq!(receiver.take((1, 0), 1, 2, 0), Verdict::New);
        assert_eq!(receiver.take((1, 0), 1, 2, 0), Verdict::Duplicate);
        assert_eq!(receiver.take((1, 0), 0, 2, 0), Verdict::Last);
        assert_eq!(receiver.complete[&1].before, 2);
        assert!(receiver.complete[&1].after.is_empty() && receiver.messages.is_empty());
        assert!(receiver.waiting.is_empty() && receiver.by_age.is_empty());
    }
}
