//! The way home: how one end of a stream goes back to TCP behind its last byte on the edge.
//!
//! Each end writes a *record* into the TCP connection, behind the switch marker: how many bytes its program has taken
//! out of the ring. From there on the peer writes the stream into the TCP connection, behind a record of its own. What
//! the ring holds beyond that comes a second time, by TCP, so that nothing has to be kept here. This is the state of
//! one end, without any I/O: counts go in, and what is to be written next comes out.

#[cfg(test)]
mod explored_tests;

use crate::wire::Implausible;

//= sockets-protocol.md: home.1
/// What an end writes into the TCP connection behind its switch marker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    /// Bytes of the peer's ring part that the program has taken.
    pub(crate) taken: u64,
}

impl Record {
    /// Bytes of a record.
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&HOME);
        bytes[4..].copy_from_slice(&self.taken.to_be_bytes());
        bytes
    }

    /// Whether these bytes, fewer than a record has, may be the beginning of one.
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        let known = bytes.len().min(HOME.len());
        bytes.len() < Self::BYTES && bytes[..known] == HOME[..known]
    }

    /// The record that these bytes are, if they are one.
    pub(crate) fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let (magic, taken) = bytes.split_first_chunk()?;
        let taken = u64::from_be_bytes(taken.try_into().ok()?);
        (*magic == HOME).then_some(Self { taken })
    }
}

/// How far one end has come.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Homing {
    record: [u8; Record::BYTES],
    /// Bytes of the record that TCP has.
    recorded: usize,
    /// The first byte of the stream that TCP does not have yet, once the peer's record is here.
    next: Option<u64>,
    /// The stream's last byte before the way home began.
    written: u64,
}

/// What is to be written into the TCP connection next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeStep {
    /// The record, behind the first bytes of it.
    Record([u8; Record::BYTES], usize),
    /// Nothing, until the peer's record is here.
    Wait,
    /// Bytes of the stream from this one on, up to the last that the program has written.
    Bytes(u64),
    /// Nothing more: the kernel does the rest.
    Home,
}

impl Homing {
    /// The program has taken so many bytes of the ring and takes no more, and has written so many and writes no more.
    pub(crate) fn new(taken: u64, written: u64) -> Self {
        Self { record: Record { taken }.encode(), recorded: 0, next: None, written }
    }

    /// The same of an end whose direction of TCP has ended: the peer takes that for a record of 0 bytes.
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

    /// TCP has taken so many bytes of what [`Homing::step`] has said.
    ///
    /// # Panics
    /// If these are more than it has said.
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
    /// The peer's record is here. This end knows that the peer has taken `known` bytes at least, and has posted `posted`.
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

    /// Whether the peer's record is here.
    pub(crate) const fn has_record(&self) -> bool {
        self.next.is_some()
    }
}

/// What a record begins with.
const HOME: [u8; 4] = *b"HOME";

/// Any bytes as a record: no panic, and what is accepted survives encoding.
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
