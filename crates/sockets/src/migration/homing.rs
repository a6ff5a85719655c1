//! The return of one end of a stream to TCP, which is called *going home*.
//!
//! Each end writes a *record* into the TCP connection, after the switch marker. The record contains
//! the number of bytes that the program at this end has read from its receive ring. Each end then
//! writes its own stream into TCP, beginning at the position in the peer's record. In this way the
//! bytes that are still in a receive ring arrive a second time by TCP, so each end can discard its
//! ring.
//!
//! This module holds the state of one end, without I/O. Its functions take numbers of bytes and
//! return what the caller must write next.

#[cfg(test)]
mod explored_tests;

use crate::wire::Implausible;

//= sockets-protocol.md: home.1
/// The record with which an end begins its return. The end writes it into the TCP connection, after
/// its switch marker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    /// Number of bytes that this end's program has read from the ring.
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

    /// Returns true if these bytes are a proper prefix that may begin a record. Returns false for a
    /// whole record.
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        let known = bytes.len().min(HOME.len());
        bytes.len() < Self::BYTES && bytes[..known] == HOME[..known]
    }

    /// Decodes a record. Returns `None` if the bytes do not begin with the magic number.
    pub(crate) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let (magic, taken) = bytes.split_first_chunk()?;
        let taken = u64::from_be_bytes(taken.try_into().ok()?);
        (*magic == HOME).then_some(Self { taken })
    }
}

/// The progress of one end that returns to TCP.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Homing {
    record: [u8; Record::BYTES],
    /// Number of bytes of the record that TCP has accepted.
    recorded: usize,
    /// The position of the next byte to write to TCP. `None` until the peer's record has arrived.
    next: Option<u64>,
    /// Number of bytes that the program had written to the stream when this end began its return.
    written: u64,
}

/// The next step of an end that returns to TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeStep {
    /// Write the record, from this offset to its end.
    Record([u8; Record::BYTES], usize),
    /// Write nothing until the peer's record has arrived.
    Wait,
    /// Write the bytes of the stream, from this position to the last byte that the program has
    /// written.
    Bytes(u64),
    /// Write nothing, because all bytes are in TCP. From this point on, the kernel handles the
    /// connection.
    Home,
}

impl Homing {
    /// Begins the return of an end whose program has read `taken` bytes from the ring and has
    /// written `written` bytes. Neither number may change after this call.
    pub(crate) fn new(taken: u64, written: u64) -> Self {
        Self { record: Record { taken }.encode(), recorded: 0, next: None, written }
    }

    /// Does the same as [`Homing::new`] for an end that has shut TCP down for writing. This end
    /// writes no record. Instead, the peer treats the end of TCP like a record with the number 0.
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

    /// Records that TCP has accepted `bytes` bytes of the step that [`Homing::step`] returned.
    ///
    /// # Panics
    /// Panics if the step has fewer bytes.
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
    /// Handles the peer's record. `known` is the number of bytes that the peer has already
    /// confirmed to have read. `posted` is the number of bytes that this end has posted. Returns an
    /// error if the record's number is less than `known` or greater than `posted`.
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

    /// Returns true if the peer's record has arrived.
    pub(crate) const fn has_record(&self) -> bool {
        self.next.is_some()
    }
}

/// Magic number of a record.
const HOME: [u8; 4] = *b"HOME";

/// Decodes any bytes as a record, for fuzzing. Checks that decoding does not panic, and that
/// accepted bytes are encoded to the same bytes.
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
    fn a_record_is_written_first_and_then_the_bytes_after_those_the_peer_consumed() {
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
    fn an_implausible_record_is_refused() {
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
