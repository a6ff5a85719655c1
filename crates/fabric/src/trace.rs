//! The trace of a run: a hash of all events, and the most recent events as text.

use core::fmt;
use std::collections::VecDeque;

use delivery::Instant;

/// Kinds of events in a trace. The discriminant is part of the hash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// A host passed a frame to its driver.
    Sent = 1,
    /// A driver refused a frame.
    Refused,
    /// A frame was dropped because a queue was full.
    QueueFull,
    /// A frame was lost at random.
    Lost,
    /// A frame was dropped because of a one-way cut or a link that was down.
    Cut,
    /// A frame was larger than the path carries.
    TooBig,
    /// Bits of a frame were flipped.
    Corrupted,
    /// A frame was duplicated.
    Duplicated,
    /// A frame was delayed so much that later frames overtake it.
    Reordered,
    /// A recorded frame was replayed.
    Replayed,
    /// A frame was marked with congestion experienced (ECN CE).
    Marked,
    /// A frame reached a host.
    Arrived,
    /// A frame was sent to an address that no port has.
    Unreachable,
    /// A receive buffer overflowed.
    Overrun,
    /// A host handled its timer.
    Timer,
    /// A link of a host changed its state.
    LinkChanged,
    /// A host was paused.
    Paused,
    /// A host runs again.
    Resumed,
    /// A host lost all its state.
    Restarted,
    /// The plan of faults changed the network.
    Altered,
    /// An application requested a connection.
    Connecting,
    /// A connection was established.
    Established,
    /// A connection ended.
    Closed,
    /// An application posted an operation.
    Posted,
    /// An operation completed.
    Completed,
    /// A message or notification reached an application.
    Received,
}

/// One event of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceEntry {
    /// Virtual time of the event.
    pub time: Instant,
    /// Kind of the event.
    pub kind: Kind,
    /// Index of the host or port.
    pub place: u32,
    /// A digest or number that distinguishes this event from others of the same kind.
    pub detail: u64,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = format!("{:?}", self.kind);
        write!(f, "{:?} {kind:<11} {:>3} {:016x}", self.time, self.place, self.detail)
    }
}

/// A hash of all events, and the most recent events.
///
/// Two runs of a seed must end with the same hash. If two runs differ in the time, kind, place or
/// content of an event, their hashes almost certainly differ after this event and after all later
/// events.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    tail: VecDeque<TraceEntry>,
    tail_entries_max: usize,
}

impl Trace {
    /// Creates an empty trace, which keeps the last `tail_entries_max` events.
    pub fn new(tail_entries_max: usize) -> Self {
        Self {
            hash: 0x9e37_79b9_7f4a_7c15,
            events: 0,
            tail: VecDeque::with_capacity(tail_entries_max),
            tail_entries_max,
        }
    }

    /// Adds an event.
    pub fn record(&mut self, time: Instant, kind: Kind, place: u32, detail: u64) {
        let subject = (kind as u64) << 32 | u64::from(place);
        self.hash = mix(mix(mix(self.hash, time.0), subject), detail);
        self.events += 1;
        if self.tail_entries_max == 0 {
            return;
        }
        if self.tail.len() == self.tail_entries_max {
            self.tail.pop_front();
        }
        self.tail.push_back(TraceEntry { time, kind, place, detail });
    }

    /// Returns the hash of all events so far.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of events recorded.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Returns the last events, oldest first.
    pub fn tail(&self) -> impl Iterator<Item = &TraceEntry> {
        self.tail.iter()
    }
}

/// Returns a 64-bit digest of a frame's bytes and length. The digest is fast, but not
/// cryptographic.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hash = mix(bytes.len() as u64, 0);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last))
}

/// Mixes `word` into `hash` by a 128-bit product.
const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ 0xa076_1d64_78bd_642f) as u128 * ((word ^ 0xe703_7ed1_a0b4_28db) as u128);
    // The rotation keeps the old hash even if one factor is zero.
    (product as u64) ^ ((product >> 64) as u64) ^ hash.rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_an_event_changes_the_hash() {
        let base = hash_of(&[(1, Kind::Sent, 2, 3)]);
        for other in [
            (2, Kind::Sent, 2, 3),
            (1, Kind::Lost, 2, 3),
            (1, Kind::Sent, 3, 3),
            (1, Kind::Sent, 2, 4),
        ] {
            assert_ne!(hash_of(&[other]), base, "{other:?}");
        }
        assert_eq!(hash_of(&[(1, Kind::Sent, 2, 3)]), base);
    }

    #[test]
    fn order_of_events_changes_the_hash() {
        let (a, b) = ((1, Kind::Sent, 2, 3), (1, Kind::Arrived, 2, 3));
        assert_ne!(hash_of(&[a, b]), hash_of(&[b, a]));
    }

    #[test]
    fn digest_sees_every_byte_and_the_length() {
        let bytes: Vec<u8> = (0..100).collect();
        let base = digest(&bytes);
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_ne!(digest(&changed), base, "byte {index}");
        }
        assert_ne!(digest(&[0; 8]), digest(&[0; 9]));
        assert_ne!(digest(&[]), digest(&[0]));
    }

    #[test]
    fn tail_keeps_the_last_events_only() {
        let mut trace = Trace::new(2);
        for time in 0..5 {
            trace.record(Instant(time), Kind::Timer, 0, 0);
        }
        assert_eq!(trace.tail().map(|entry| entry.time.0).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(trace.events(), 5);
    }

    fn hash_of(events: &[(u64, Kind, u32, u64)]) -> u64 {
        let mut trace = Trace::new(0);
        for &(time, kind, place, detail) in events {
            trace.record(Instant(time), kind, place, detail);
        }
        trace.hash()
    }
}
