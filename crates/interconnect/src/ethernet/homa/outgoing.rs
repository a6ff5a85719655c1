//! Messages that a host sends, shortest remaining first.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;

/// Messages of a host that are not complete at their receivers.
#[derive(Clone, Debug, Default)]
pub(super) struct Sender {
    messages: BTreeMap<Key, Outgoing>,
    /// Messages with a frame that may be sent: by frames left, then in the order of posting.
    ready: BTreeSet<(u32, u64, Key)>,
    /// Number of messages posted so far.
    posted: u64,
}

/// A message that is being sent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// The message's name in its frames.
    pub(super) name: u32,
    pub(super) frames: u32,
    /// Payload of the last frame, in bytes.
    pub(super) last_bytes: u32,
    /// Number of frames that need no grant, and their class.
    unscheduled: u32,
    unscheduled_class: u8,
    /// First frame that was never sent.
    next: u32,
    /// Frames before this one may be sent. Granted frames have the class `granted_class`.
    granted: u32,
    granted_class: u8,
    /// Frames to retransmit.
    again: BTreeSet<u32>,
    /// Number of transmissions so far.
    transmissions: u32,
    /// Order of posting among the messages of its host.
    order: u64,
    /// When the receiver last sent a packet about the message, in picoseconds, and the number of
    /// timeouts since then.
    pub(super) news_ps: u64,
    pub(super) backoff: u32,
}

/// A data frame to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Departure {
    pub(super) frame: u32,
    pub(super) class: u8,
    pub(super) transmission: u32,
    pub(super) is_again: bool,
}

impl Outgoing {
    /// Creates a message that is posted now. The first `unscheduled` frames need no grant.
    pub(super) const fn new(
        (name, frames, last_bytes): (u32, u32, u32),
        (unscheduled, unscheduled_class): (u32, u8),
        now_ps: u64,
    ) -> Self {
        let unscheduled = if unscheduled < frames { unscheduled } else { frames };
        Self {
            name,
            frames,
            last_bytes,
            unscheduled,
            unscheduled_class,
            next: 0,
            granted: unscheduled,
            granted_class: unscheduled_class,
            again: BTreeSet::new(),
            transmissions: 0,
            order: 0,
            news_ps: now_ps,
            backoff: 0,
        }
    }

    fn may_send(&self) -> bool {
        !self.again.is_empty() || self.next < self.granted
    }

    const fn rank(&self, key: Key) -> (u32, u64, Key) {
        (self.frames - self.next, self.order, key)
    }

    fn depart(&mut self) -> Departure {
        let again = self.again.pop_first();
        let frame = again.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.transmissions += 1;
        let class = if again.is_some() || frame < self.unscheduled {
            self.unscheduled_class
        } else {
            self.granted_class
        };
        let transmission = self.transmissions;
        Departure { frame, class, transmission, is_again: again.is_some() }
    }

    /// Grants the frames before `until`, in a class.
    fn grant(&mut self, until: u32, class: u8) {
        if until > self.granted {
            self.granted = until.min(self.frames);
            self.granted_class = class;
        }
    }
}

impl Sender {
    /// Queues a message.
    pub(super) fn post(&mut self, key: Key, message: Outgoing) {
        let message = Outgoing { order: self.posted, ..message };
        self.posted += 1;
        self.ready.insert(message.rank(key));
        self.messages.insert(key, message);
    }

    pub(super) fn message(&self, key: Key) -> Option<&Outgoing> {
        self.messages.get(&key)
    }

    /// Returns whether a frame may be sent.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether a frame of this message may be sent.
    pub(super) fn is_ready(&self, key: Key) -> bool {
        self.messages.get(&key).is_some_and(Outgoing::may_send)
    }

    /// Returns the next frame to send, and its message.
    pub(super) fn depart(&mut self) -> Option<(Key, Departure)> {
        let (_, _, key) = self.ready.pop_first()?;
        let message = self.messages.get_mut(&key)?;
        let departure = message.depart();
        if message.may_send() {
            self.ready.insert(message.rank(key));
        }
        Some((key, departure))
    }

    /// Changes a message after a packet from its receiver. Ignores complete messages.
    fn change(&mut self, key: Key, now_ps: u64, change: impl FnOnce(&mut Outgoing)) {
        let Some(message) = self.messages.get_mut(&key) else { return };
        change(message);
        (message.news_ps, message.backoff) = (now_ps, 0);
        if message.may_send() {
            // Neither grants nor retransmissions change the rank.
            self.ready.insert(message.rank(key));
        }
    }

    /// Handles a grant of the frames before `until`, in a class.
    pub(super) fn on_granted(&mut self, key: Key, (until, class): (u32, u8), now_ps: u64) {
        self.change(key, now_ps, |message| message.grant(until, class));
    }

    /// Retransmits missing frames, except for those that were never sent. Also grants the frames
    /// before `until`.
    pub(super) fn on_resend(
        &mut self,
        key: Key,
        (first, frames): (u32, u32),
        until: u32,
        now_ps: u64,
    ) {
        self.change(key, now_ps, |message| {
            let end = first.saturating_add(frames).min(message.next);
            message.again.extend(first..end);
            message.grant(until, message.granted_class);
        });
    }

    /// Removes a message that is complete.
    pub(super) fn on_done(&mut self, key: Key) {
        if let Some(message) = self.messages.remove(&key) {
            self.ready.remove(&message.rank(key));
        }
    }

    /// Retransmits the first frame of a message after a timeout. If the receiver has the whole
    /// message, it answers; otherwise its own timer starts.
    pub(super) fn on_silence(&mut self, key: Key, now_ps: u64) {
        let Some(message) = self.messages.get_mut(&key) else { return };
        message.again.insert(0);
        message.news_ps = now_ps;
        message.backoff += 1;
        self.ready.insert(message.rank(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departures(sender: &mut Sender) -> Vec<(u32, u32, u8, bool)> {
        let next = || sender.depart();
        std::iter::from_fn(next).map(|(key, it)| (key.0, it.frame, it.class, it.is_again)).collect()
    }

    #[test]
    fn the_message_with_the_fewest_frames_left_goes_first() {
        let mut sender = Sender::default();
        for (to, frames) in [(1, 9), (2, 2), (3, 3), (4, 3)] {
            let class = u8::from(frames > 2);
            sender.post((to, 0), Outgoing::new((0, frames, 1), (3, class), 0));
        }
        let expected = [
            (2, 0, 0, false),
            (2, 1, 0, false),
            (3, 0, 1, false),
            (3, 1, 1, false),
            (3, 2, 1, false),
            (4, 0, 1, false),
            (4, 1, 1, false),
            (4, 2, 1, false),
            (1, 0, 1, false),
            (1, 1, 1, false),
            (1, 2, 1, false),
        ];
        assert_eq!(departures(&mut sender), expected);
        sender.on_granted((1, 0), (5, 3), 7);
        // An older grant does not reduce a newer one.
        sender.on_granted((1, 0), (4, 2), 8);
        assert_eq!(departures(&mut sender), [(1, 3, 3, false), (1, 4, 3, false)]);
        assert_eq!(sender.message((1, 0)).map(|message| message.news_ps), Some(8));
    }

    #[test]
    fn what_is_missing_and_was_sent_is_retransmitted() {
        let mut sender = Sender::default();
        sender.post((1, 0), Outgoing::new((0, 9, 1), (3, 0), 0));
        assert_eq!(departures(&mut sender).len(), 3);
        // A request also contains the grant, in case the grant was lost.
        sender.on_resend((1, 0), (1, 4), 4, 5);
        assert_eq!(departures(&mut sender), [(1, 1, 0, true), (1, 2, 0, true), (1, 3, 0, false)]);
        sender.on_silence((1, 0), 6);
        assert_eq!(departures(&mut sender), [(1, 0, 0, true)]);
        sender.on_silence((1, 0), 7);
        sender.on_done((1, 0));
        assert_eq!(departures(&mut sender), []);
        assert!(sender.message((1, 0)).is_none() && !sender.has_ready());
    }
}
