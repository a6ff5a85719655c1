//! Messages between the library in two processes, as in `docs/sockets-protocol.md`. The bytes of
//! the programs travel by remote writes, not in messages.
//!
//! Numbers are big-endian. Decoding checks that a value is well-formed. The receiver must also
//! check the value against the state of the stream.

use thiserror::Error;
use wire_edge::RemoteKey;

/// A switch marker. A side writes it into the TCP connection, after the last byte that this side
/// sends by TCP. The peer chose the 16 bytes at random, and searches TCP for them.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct SwitchMarker(pub(crate) [u8; SwitchMarker::BYTES]);

impl SwitchMarker {
    /// Length of a switch marker in bytes.
    pub(crate) const BYTES: usize = 16;
}

impl std::fmt::Debug for SwitchMarker {
    /// Hides the bytes, because an attacker that knows them could forge the end of the TCP part.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SwitchMarker")
    }
}

/// A random number that identifies an offer while the offer is valid.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct OfferToken(pub(crate) u64);

/// A random number that identifies one run of a process's endpoint.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Incarnation(pub(crate) u128);

/// Identifies a stream at one end: the slot of the stream, and how many times the slot was used.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct StreamNumber(pub(crate) u32);

/// The receive ring of the process that sends the message. The peer writes to this ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RingLocation {
    pub(crate) key: RemoteKey,
    pub(crate) address: u64,
    /// Size of the ring in bytes: a power of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
    pub(crate) bytes: u32,
}

/// The description of one end of a stream, which this end sends to the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StreamEnd {
    pub(crate) number: StreamNumber,
    /// The switch marker that the peer must write into the TCP connection.
    pub(crate) marker: SwitchMarker,
    pub(crate) ring: RingLocation,
}

/// The error for an impossible value that the peer or the engine reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Implausible;

/// The reason why the accepting side refused a join.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// The offer is unknown, has expired, or an earlier Join has used it.
    UnknownToken = 1,
    /// The program has closed the connection.
    Closed = 2,
    /// The process has no free descriptors.
    Descriptors = 3,
    /// There is no memory for the stream.
    Memory = 4,
    /// TCP had no room for the switch marker.
    Busy = 5,
    /// The program uses a feature that only TCP has.
    OnlyTcp = 6,
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::UnknownToken,
        Self::Closed,
        Self::Descriptors,
        Self::Memory,
        Self::Busy,
        Self::OnlyTcp,
    ];
}

/// A message of a link group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// The connecting side takes an offer.
    Join { token: OfferToken, end: StreamEnd },
    /// The accepting side has moved its direction. `to` is the stream's number at the connecting
    /// side.
    Joined { to: StreamNumber, end: StreamEnd },
    /// The accepting side refuses the join. The connection stays on TCP.
    Refused { to: StreamNumber, refusal: Refusal },
    /// `consumed` is the number of bytes that the program has consumed since the stream began.
    Credit { to: StreamNumber, consumed: u64 },
    /// The sender ends its direction of the stream. `bytes` is the number of bytes sent since the
    /// stream began.
    End { to: StreamNumber, bytes: u64 },
    /// The connection is reset.
    Reset { to: StreamNumber },
    /// The sender returns its end of the stream to TCP, and writes no more bytes to the peer's
    /// ring.
    Home { to: StreamNumber },
}

/// The reason why bytes are not a valid message or offer.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Malformed {
    /// The length is wrong for this kind of message.
    #[error("wrong length of {0} bytes")]
    Length(usize),
    /// The kind is unknown.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// The magic number is wrong.
    #[error("bad magic number: not an Ethernot message")]
    Magic,
    /// The version is not [`VERSION`].
    #[error("protocol version {0}, but this side has version {VERSION}")]
    Version(u8),
    /// The ring is invalid.
    #[error("invalid ring of {bytes} bytes at {address:#x}")]
    Ring { bytes: u32, address: u64 },
    /// The reason of a refusal is unknown.
    #[error("unknown reason {0} of a refusal")]
    Refusal(u8),
    /// A number that must not be 0 is 0.
    #[error("a token, a port or an incarnation is 0")]
    Zero,
}

impl Message {
    /// Appends the encoded message, at most [`MESSAGE_BYTES_MAX`] bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Join { token, end } => {
                out.push(JOIN);
                out.extend(token.0.to_be_bytes());
                put_end(out, &end);
            }
            Self::Joined { to, end } => {
                put_head(out, JOINED, to);
                put_end(out, &end);
            }
            Self::Refused { to, refusal } => {
                put_head(out, REFUSED, to);
                out.push(refusal as u8);
            }
            Self::Credit { to, consumed } => {
                put_head(out, CREDIT, to);
                out.extend(consumed.to_be_bytes());
            }
            Self::End { to, bytes } => {
                put_head(out, END, to);
                out.extend(bytes.to_be_bytes());
            }
            Self::Reset { to } => put_head(out, RESET, to),
            Self::Home { to } => put_head(out, HOME, to),
        }
    }

    //= sockets-protocol.md: message.1, message.2
    /// Decodes a message.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8()? {
            JOIN => Self::Join { token: reader.token()?, end: reader.end()? },
            JOINED => Self::Joined { to: reader.number()?, end: reader.end()? },
            REFUSED => {
                let to = reader.number()?;
                let code = reader.u8()?;
                let refusal = Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == code);
                Self::Refused { to, refusal: refusal.ok_or(Malformed::Refusal(code))? }
            }
            CREDIT => Self::Credit { to: reader.number()?, consumed: reader.u64()? },
            END => Self::End { to: reader.number()?, bytes: reader.u64()? },
            RESET => Self::Reset { to: reader.number()? },
            HOME => Self::Home { to: reader.number()? },
            kind => return Err(Malformed::Kind(kind)),
        };
        reader.finish()?;
        Ok(message)
    }
}

//= sockets-protocol.md: group.2
/// Encodes a greeting: the magic number, the version, and the sender's incarnation. The request for
/// a link group and its acceptance each carry a greeting as private data.
pub(crate) fn encode_greeting(incarnation: Incarnation) -> Vec<u8> {
    let mut out = Vec::with_capacity(GREETING_BYTES);
    out.extend(MAGIC);
    out.push(VERSION);
    out.extend(incarnation.0.to_be_bytes());
    out
}

/// Decodes a greeting. Returns the incarnation of the sender.
pub(crate) fn decode_greeting(bytes: &[u8]) -> Result<Incarnation, Malformed> {
    let mut reader = Reader::new(bytes);
    reader.preamble()?;
    let incarnation = reader.incarnation()?;
    reader.finish()?;
    Ok(incarnation)
}

/// Reads the fields of a message in order.
pub(crate) struct Reader<'a> {
    all: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { all: bytes.len(), rest: bytes }
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed::Length(self.all))?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    fn number(&mut self) -> Result<StreamNumber, Malformed> {
        self.u32().map(StreamNumber)
    }

    pub(crate) fn token(&mut self) -> Result<OfferToken, Malformed> {
        let token = self.u64()?;
        if token == 0 { Err(Malformed::Zero) } else { Ok(OfferToken(token)) }
    }

    pub(crate) fn incarnation(&mut self) -> Result<Incarnation, Malformed> {
        let incarnation = u128::from_be_bytes(self.take()?);
        if incarnation == 0 { Err(Malformed::Zero) } else { Ok(Incarnation(incarnation)) }
    }

    //= sockets-protocol.md: version.1
    /// Checks the magic number and the version. They are the first fields in every version.
    pub(crate) fn preamble(&mut self) -> Result<(), Malformed> {
        if self.take()? != MAGIC {
            return Err(Malformed::Magic);
        }
        let version = self.u8()?;
        if version == VERSION { Ok(()) } else { Err(Malformed::Version(version)) }
    }

    //= sockets-protocol.md: message.3
    fn end(&mut self) -> Result<StreamEnd, Malformed> {
        let number = self.number()?;
        let marker = SwitchMarker(self.take()?);
        let (key, address, bytes) = (RemoteKey(self.u32()?), self.u64()?, self.u32()?);
        let is_ring = bytes.is_power_of_two()
            && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
            && address.checked_add(bytes.into()).is_some();
        if !is_ring {
            return Err(Malformed::Ring { bytes, address });
        }
        Ok(StreamEnd { number, marker, ring: RingLocation { key, address, bytes } })
    }

    pub(crate) const fn finish(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Length(self.all)) }
    }
}

fn put_head(out: &mut Vec<u8>, kind: u8, to: StreamNumber) {
    out.push(kind);
    out.extend(to.0.to_be_bytes());
}

fn put_end(out: &mut Vec<u8>, end: &StreamEnd) {
    out.extend(end.number.0.to_be_bytes());
    out.extend(end.marker.0);
    out.extend(end.ring.key.0.to_be_bytes());
    out.extend(end.ring.address.to_be_bytes());
    out.extend(end.ring.bytes.to_be_bytes());
}

/// Magic number of offers and greetings.
pub(crate) const MAGIC: [u8; 4] = *b"ENSO";

/// Protocol version of this crate.
pub(crate) const VERSION: u8 = 3;

/// Kinds of messages.
const JOIN: u8 = 1;
const JOINED: u8 = 2;
const REFUSED: u8 = 3;
const CREDIT: u8 = 4;
const END: u8 = 5;
const RESET: u8 = 6;
const HOME: u8 = 7;

/// The smallest ring in bytes, one page. A smaller ring is not worth a move.
pub(crate) const RING_BYTES_MIN: u32 = 4096;

/// The largest ring in bytes. The sum of two offsets in a ring must fit in 32 bits.
pub(crate) const RING_BYTES_MAX: u32 = 1 << 30;

/// Length of the longest message, a Join, in bytes. Each message fits in the inline data of a send
/// operation.
pub(crate) const MESSAGE_BYTES_MAX: usize = 45;

/// Length of a greeting in bytes.
const GREETING_BYTES: usize = 21;

/// Decodes any bytes as a message and as a greeting, for fuzzing. Checks that decoding does not
/// panic, and that an accepted value is encoded to the same bytes.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(again, bytes);
        assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    }
    if let Ok(incarnation) = decode_greeting(bytes) {
        assert_eq!(encode_greeting(incarnation), bytes);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn stream_end() -> impl Strategy<Value = StreamEnd> {
        (any::<u32>(), any::<[u8; 16]>(), any::<u32>(), 0..u64::MAX >> 1, 12_u32..=30).prop_map(
            |(number, marker, key, address, log)| StreamEnd {
                number: StreamNumber(number),
                marker: SwitchMarker(marker),
                ring: RingLocation { key: RemoteKey(key), address, bytes: 1 << log },
            },
        )
    }

    pub(crate) fn message() -> impl Strategy<Value = Message> {
        let to = any::<u32>().prop_map(StreamNumber);
        prop_oneof![
            (1..=u64::MAX, stream_end())
                .prop_map(|(token, end)| Message::Join { token: OfferToken(token), end }),
            (to.clone(), stream_end()).prop_map(|(to, end)| Message::Joined { to, end }),
            (to.clone(), prop::sample::select(Refusal::ALL.to_vec()))
                .prop_map(|(to, refusal)| Message::Refused { to, refusal }),
            (to.clone(), any::<u64>()).prop_map(|(to, consumed)| Message::Credit { to, consumed }),
            (to.clone(), any::<u64>()).prop_map(|(to, bytes)| Message::End { to, bytes }),
            to.clone().prop_map(|to| Message::Reset { to }),
            to.prop_map(|to| Message::Home { to }),
        ]
    }

    fn encoded(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    }

    //= sockets-protocol.md: message.3
    #[test]
    fn an_invalid_ring_location_is_refused() {
        let end = |bytes, address| StreamEnd {
            number: StreamNumber(1),
            marker: SwitchMarker([7; 16]),
            ring: RingLocation { key: RemoteKey(3), address, bytes },
        };
        let decoded =
            |end| Message::decode(&encoded(&Message::Joined { to: StreamNumber(2), end }));
        assert!(decoded(end(4096, u64::MAX - 4096)).is_ok());
        for (bytes, address) in
            [(0, 0), (2048, 0), (4097, 0), (1 << 31, 0), (4096, u64::MAX - 4095)]
        {
            assert_eq!(decoded(end(bytes, address)), Err(Malformed::Ring { bytes, address }));
        }
    }

    //= sockets-protocol.md: version.1, group.2
    #[test]
    fn a_greeting_of_another_version_is_recognized() {
        let mut bytes = encode_greeting(Incarnation(5));
        assert_eq!(decode_greeting(&bytes), Ok(Incarnation(5)));
        bytes[4] = 9;
        bytes.truncate(5);
        assert_eq!(decode_greeting(&bytes), Err(Malformed::Version(9)), "whatever follows");
    }

    #[test]
    fn a_switch_marker_is_not_printed() {
        assert_eq!(format!("{:?}", SwitchMarker([0xab; 16])), "SwitchMarker");
    }

    proptest! {
        //= sockets-protocol.md: message.1
        #[test]
        fn a_message_is_decoded_as_it_was_encoded(message in message()) {
            let bytes = encoded(&message);
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
        }

        //= sockets-protocol.md: message.2
        #[test]
        fn a_truncated_or_overlong_message_is_refused(message in message(), cut in 0..45_usize) {
            let mut bytes = encoded(&message);
            bytes.push(0);
            prop_assert_eq!(Message::decode(&bytes), Err(Malformed::Length(bytes.len())));
            bytes.truncate(cut.min(bytes.len() - 2));
            prop_assert_eq!(Message::decode(&bytes), Err(Malformed::Length(bytes.len())));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            fuzz_message(&bytes);
        }
    }
}
