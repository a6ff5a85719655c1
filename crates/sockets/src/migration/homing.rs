//! How one end of a stream goes home: back to TCP, after its last byte on the edge.
//!
//! Each end writes a *record* into the TCP connection, behind the switch marker: how many bytes its program has taken
//! out of the ring. Behind a record of its own, the peer writes the stream from that byte on into the TCP connection.
//! Bytes that the ring still holds come a second time by TCP, so nothing has to be kept here. This is the state of one
//! end, without any I/O: it is given counts, and says what to write next.

#[cfg(test)]
mod explored_tests;

use crate::wire::Implausible;

//= sockets-protocol.md: home.1
/// What an end writes into the TCP connection behind its switch marker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    /// Bytes of the ring that the program has taken.
    pub(crate) taken: u64,
}

impl Record {
    /// Length of a record in bytes.
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&HOME);
        bytes[4..].copy_from_slice(&self.taken.to_be_bytes());
        bytes
    }

    /// Returns whether these bytes, fewer than a record has, may be its beginning.
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        let known = bytes.len().min(HOME.len());
        bytes.len() < Self::BYTES && bytes[..known] == HOME[..known]
    }

    /// Decodes a record; `None` if the bytes are something else.
    pub(crate) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let (magic, taken) = bytes.split_first_chunk()?;
        let taken = u64::from_be_bytes(taken.try_into().ok()?);
        (*magic == HOME).then_some(Self { taken })
    }
}

/// The progress of one end.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Homing {
    record: [u8; Record::BYTES],
    /// Bytes of the record that were written to TCP.
    recorded: usize,
    /// The next byte of the stream to write to TCP, once the peer's record has come.
    next: Option<u64>,
    /// Length of the stream when the end began to go home.
    written: u64,
}

/// What to write into the TCP connection next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeStep {
    /// The record, from this offset on.
    Record([u8; Record::BYTES], usize),
    /// Nothing, until the peer's record has come.
    Wait,
    /// Bytes of the stream, from this position to the last that the program has written.
    Bytes(u64),
    /// Nothing more. The kernel does the rest.
    Home,
}

impl Homing {
    /// The program has taken `taken` bytes of the ring and takes no more, and has written `written` bytes and writes no
    /// more.
    pub(crate) fn new(taken: u64, written: u64) -> Self {
        Self { record: Record { taken }.encode(), recorded: 0, next: None, written }
    }

    /// As [`Homing::new`] for an end that has shut TCP down for writing. The peer takes the end of TCP as a record of 0
    /// bytes.
    pub(crate) fn without_record(written: u64) -> Self {
        Self { recorded: Record::BYTES, ..Self::new(0, written) }
    }

    pub(crate) const fn step(&self) -> HomeStep {
        if self.recorded < Record::BYTES {
            return HomeStep::Record(self.record, self.recorded);
        }
        match self.next {
            None => HomeStep::Wait,
            Some(next) if next < self.written => HomeStep::Bytes(next),
            Some(_) => HomeStep::Home,
        }
    }

    /// TCP has taken `bytes` bytes of what [`Homing::step`] returned.
    ///
    /// # Panics
    /// If that was less.
    pub(crate) fn on_sent(&mut self, bytes: usize) {
        if self.recorded < Record::BYTES {
            self.recorded += bytes;
            assert!(self.recorded <= Record::BYTES, "a record has {} bytes", Record::BYTES);
        } else if let Some(next) = &mut self.next {
            *next += bytes as u64;
            assert!(*next <= self.written, "no more is sent than was written");
        }
    }

    //= sockets-protocol.md: home.2
    /// Handles the peer's record. The peer has taken at least `known` bytes, and this end has posted `posted`.
    pub(crate) fn on_record(
        &mut self,
        record: Record,
        known: u64,
        posted: u64,
    ) -> Result<(), Implausible> {
        if self.next.is_some() || !(known..=posted).contains(&record.taken) {
            return Err(Implausible);
        }
        self.next = Some(record.taken);
        Ok(())
    }

    /// Returns whether the peer's record has come.
    pub(crate) const fn has_record(&self) -> bool {
        self.next.is_some()
    }
}

/// Magic of a record.
const HOME: [u8; 4] = *b"HOME";

/// Decodes any bytes as a record: checks that nothing panics, and that accepted bytes are encoded the same.
pub fn fuzz_record(bytes: &[u8]) {
    if let Ok(bytes) = <[u8; Record::BYTES]>::try_from(bytes)
        && let Some(record) = Record::decode(bytes)
    {
        assert_eq!(record.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    //= sockets-protocol.md: home.1
    #[test]
    fn a_record_is_written_before_all_else_and_bytes_from_where_the_peer_says() {
        let mut homing = Homing::new(7, 30);
        let record = Record { taken: 7 }.encode();
        assert_eq!(homing.step(), HomeStep::Record(record, 0));
        homing.on_sent(5);
        assert_eq!(homing.step(), HomeStep::Record(record, 5));
        homing.on_sent(7);
        assert_eq!(homing.step(), HomeStep::Wait);
        assert_eq!(homing.on_record(Record { taken: 10 }, 8, 20), Ok(()));
        assert_eq!(homing.step(), HomeStep::Bytes(10));
        homing.on_sent(20);
        assert_eq!(homing.step(), HomeStep::Home);
    }

    //= sockets-protocol.md: home.2
    #[test]
    fn a_record_that_cannot_be_is_refused() {
        for (taken, known, posted) in [(7, 8, 20), (21, 8, 20)] {
            let mut homing = Homing::new(0, 30);
            assert_eq!(homing.on_record(Record { taken }, known, posted), Err(Implausible));
            assert!(!homing.has_record());
        }
        let mut homing = Homing::new(0, 30);
        assert_eq!(homing.on_record(Record { taken: 8 }, 8, 20), Ok(()));
        assert_eq!(homing.on_record(Record { taken: 8 }, 8, 20), Err(Implausible), "once");
    }

    proptest! {
        #[test]
        fn a_record_is_decoded_as_it_was_encoded(taken: u64) {
            prop_assert_eq!(Record::decode(Record { taken }.encode()), Some(Record { taken }));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            fuzz_record(&bytes);
        }
    }
}
