//! Messages that a host sends. The host first sends the message with the fewest unsent frames.

use std::collections::{BTreeMap, BTreeSet};

use super::Key;

/// The messages that a host sends and that their receivers have not received completely.
#[derive(Clone, Debug, Default)]
pub(super) struct Sender {
    messages: BTreeMap<Key, Outgoing>,
    /// Messages with a frame that the host may send, ordered by the number of unsent frames, then
    /// by the time of posting.
    ready: BTreeSet<(u32, u64, Key)>,
    /// Number of messages posted so far.
    posted: u64,
}

/// A message that is being sent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// Number by which frames refer to this message.
    pub(super) name: u32,
    pub(super) frames: u32,
    /// Payload of the last frame, in bytes.
    pub(super) last_bytes: u32,
    /// Number of frames that need no grant.
    unscheduled: u32,
    unscheduled_class: u8,
    /// First frame that the host has never sent.
    next: u32,
    /// First frame that the host may not send yet.
    granted: u32,
    granted_class: u8,
    /// Frames that the receiver wants retransmitted.
    again: BTreeSet<u32>,
    /// Number of transmissions so far.
    transmissions: u32,
    /// Place of the message in the order of posting at this host.
    order: u64,
    /// Time when the receiver's last packet about the message arrived, in picoseconds, and the
    /// number of timeouts after that time.
    pub(super) news_ps: u64,
    pub(super) backoff: u32,
}

/// A data frame that the host sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Departure {
    pub(super) frame: u32,
    pub(super) class: u8,
    pub(super) transmission: u32,
    pub(super) is_again: bool,
}

impl Outgoing {
    /// Creates a message that a rank posts now. Its first `unscheduled` frames need no grant.
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

    /// Permits the frames before `until`. These frames get the class `class`.
    fn grant(&mut self, until: u32, class: u8) {
        if until > self.granted {
            self.granted = until.min(self.frames);
            self.granted_class = class;
        }
    }
}

impl Sender {
    /// Adds a message that the host wants to send.
    pub(super) fn post(&mut self, key: Key, message: Outgoing) {
        let message = Outgoing { order: self.posted, ..message };
        self.posted += 1;
        self.ready.insert(message.rank(key));
        self.messages.insert(key, message);
    }

    pub(super) fn message(&self, key: Key) -> Option<&Outgoing> {
        self.messages.get(&key)
    }

    /// Returns whether the host may send a frame of any message.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether the host may send a frame of this message.
    pub(super) fn is_ready(&self, key: Key) -> bool {
        self.messages.get(&key).is_some_and(Outgoing::may_send)
    }

    /// Chooses the next frame to send. Returns its message and the frame.
    pub(super) fn depart(&mut self) -> Option<(Key, Departure)> {
        let (_, _, key) = self.ready.pop_first()?;
        let message = self.messages.get_mut(&key)?;
        let departure = message.depart();
        if message.may_send() {
            self.ready.insert(message.rank(key));
        }
        Some((key, departure))
    }

    /// Applies a packet from the receiver to the message that the packet names. Does nothing if the
    /// message is complete.
    fn change(&mut self, key: Key, now_ps: u64, change: impl FnOnce(&mut Outgoing)) {
        let Some(message) = self.messages.get_mut(&key) else { return };
        change(message);
        (message.news_ps, message.backoff) = (now_ps, 0);
        if message.may_send() {
            // Grants and retransmissions do not change the place of the message in `ready`.
            // Inserting the message again therefore has no effect if `ready` contains it already.
            self.ready.insert(message.rank(key));
        }
    }

    /// Handles a grant: the host may send the frames before `until`, in the class `class`.
    pub(super) fn on_granted(&mut self, key: Key, (until, class): (u32, u8), now_ps: u64) {
        self.change(key, now_ps, |message| message.grant(until, class));
    }

    /// Handles a request for missing frames: retransmits those missing frames that the host sent
    /// already. The request also grants the frames before `until`.
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

    /// Removes a message that its receiver has received completely.
    pub(super) fn on_done(&mut self, key: Key) {
        if let Some(message) = self.messages.remove(&key) {
            self.ready.remove(&message.rank(key));
        }
    }

    /// Retransmits the first frame of a message after a timeout. A receiver that has the whole
    /// message answers this frame. A receiver that lacks frames starts its own timer.
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
    fn the_message_with_the_fewest_remaining_frames_is_sent_first() {
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
        // If an older grant arrives late, it does not reduce the newer grant.
        sender.on_granted((1, 0), (4, 2), 8);
        assert_eq!(departures(&mut sender), [(1, 3, 3, false), (1, 4, 3, false)]);
        assert_eq!(sender.message((1, 0)).map(|message| message.news_ps), Some(8));
    }

    #[test]
    fn sent_and_missing_frames_are_retransmitted() {
        let mut sender = Sender::default();
        sender.post((1, 0), Outgoing::new((0, 9, 1), (3, 0), 0));
        assert_eq!(departures(&mut sender).len(), 3);
        // A request for retransmission contains the grant too, in case the grant was lost.
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
