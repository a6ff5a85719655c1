//! Handshake frames (protocol.md §2).

use crate::VERSION;
use crate::address::{ADDRESS_BYTES, Addresses};
use crate::error::DecodeError;
use crate::fields::{self, Layout, MAGIC_BYTES, layout_end};
use crate::flags::Kind;
use crate::identity::{ConnectionId, Epoch};
use crate::octets::{get, put};
use crate::parameters::{PARAMETERS_BYTES, Parameters, ranged};
use crate::reason::RejectReason;

/// Size of a cookie, in bytes.
pub const COOKIE_BYTES: usize = layout_end(Layout::Cookie);
/// Maximum number of addresses in a frame. It equals the number of link indices of a connection.
pub const ADDRESSES_MAX: usize = 16;
/// Maximum number of bytes of private data in a frame.
pub const PRIVATE_BYTES_MAX: usize = 512;
/// Size of the largest handshake frame in bytes: a Hello with the maximum number of addresses and
/// the longest private data.
pub const HANDSHAKE_BYTES_MAX: usize = PREAMBLE_BYTES
    + PARAMETERS_BYTES
    + COOKIE_BYTES
    + COUNTS_BYTES
    + ADDRESSES_MAX * ADDRESS_BYTES
    + PRIVATE_BYTES_MAX;

const PREAMBLE_BYTES: usize = layout_end(Layout::Preamble);
const COUNTS_BYTES: usize = layout_end(Layout::Counts);
const REJECT_BYTES: usize = layout_end(Layout::Reject);
const RESET_BYTES: usize = layout_end(Layout::Reset);
const VERSIONS_BYTES: usize = layout_end(Layout::VersionMismatch);
const _: () = assert!(PREAMBLE_BYTES == 16 && COUNTS_BYTES == 8 && COOKIE_BYTES == 24);
const _: () = assert!(fields::ADDRESS_COUNT.range.1 == ADDRESSES_MAX as u64);
const _: () = assert!(fields::PRIVATE_LENGTH.range.1 == PRIVATE_BYTES_MAX as u64);

/// The start of every handshake frame of every version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Preamble {
    /// Step of the handshake. In a known version, this is one of [`fields::STEPS`].
    pub step: u8,
    /// Version of the protocol.
    pub version: u16,
    /// Connection id that the receiver chose, or 0.
    pub destination: ConnectionId,
    /// Connection id that the sender chose, or 0.
    pub source: ConnectionId,
}

/// A handshake frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HandshakeFrame<'a> {
    /// Version of the protocol. In a decoded frame, the version is [`VERSION`], except in a
    /// [`Handshake::VersionMismatch`].
    pub version: u16,
    /// Connection id that the receiver chose, or 0.
    pub destination: ConnectionId,
    /// Connection id that the sender chose, or 0.
    pub source: ConnectionId,
    /// The body of the frame.
    pub body: Handshake<'a>,
}

/// The body of a handshake frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handshake<'a> {
    /// Asks for a connection.
    Hello {
        /// The parameters of the initiator.
        parameters: Parameters,
        /// The cookie of a Retry. All bytes are 0 if the initiator has none.
        cookie: [u8; 24],
        /// Addresses of the initiator's links.
        addresses: Addresses<'a>,
        /// Data of the application, at most [`PRIVATE_BYTES_MAX`] bytes.
        private_data: &'a [u8],
    },
    /// Asks the initiator to repeat the Hello with this cookie.
    Retry {
        /// The cookie. If the initiator repeats it, the initiator has proved that it receives
        /// frames at its address.
        cookie: [u8; 24],
    },
    /// Accepts the connection. At the responder, the connection now exists.
    Accept {
        /// The parameters of the responder. The responder sets the service in them to 0.
        parameters: Parameters,
        /// Addresses of the responder's links.
        addresses: Addresses<'a>,
        /// Data of the application, at most [`PRIVATE_BYTES_MAX`] bytes.
        private_data: &'a [u8],
    },
    /// Rejects the connection.
    Reject {
        /// Why the responder rejects the connection.
        reason: RejectReason,
        /// Data of the application, at most [`PRIVATE_BYTES_MAX`] bytes.
        private_data: &'a [u8],
    },
    /// Reports that the application of the responder has the request and has not decided yet.
    Pending,
    /// Answers a connection frame if the sender of the Reset has no such connection.
    Reset {
        /// Epoch of the connection frame.
        epoch: Epoch,
        /// Packet number of the connection frame.
        packet: u32,
    },
    /// Answers a Hello of a version that the sender of this frame does not support. This body is
    /// the same in all versions.
    VersionMismatch {
        /// Lowest version that the sender supports.
        lowest: u16,
        /// Highest version that the sender supports.
        highest: u16,
    },
}

impl Handshake<'_> {
    /// Returns the number of the handshake step.
    pub const fn step(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Retry { .. } => 2,
            Self::Accept { .. } => 3,
            Self::Reject { .. } => 4,
            Self::Pending => 5,
            Self::Reset { .. } => 6,
            Self::VersionMismatch { .. } => 7,
        }
    }
}

impl HandshakeFrame<'_> {
    /// Writes the frame to the start of `out` and returns its length in bytes.
    ///
    /// # Panics
    /// Panics if `out` is too short, if there are more than [`ADDRESSES_MAX`] addresses, or if
    /// private data is longer than [`PRIVATE_BYTES_MAX`] bytes. An `out` of [`HANDSHAKE_BYTES_MAX`]
    /// bytes is always long enough.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut preamble = [0; PREAMBLE_BYTES];
        put!(&mut preamble, fields::PREAMBLE_KIND, [Kind::Handshake as u8]);
        put!(&mut preamble, fields::STEP, [self.body.step()]);
        put!(&mut preamble, fields::VERSION, self.version.to_le_bytes());
        put!(&mut preamble, fields::MAGIC, MAGIC_BYTES);
        put!(&mut preamble, fields::DESTINATION, self.destination.0.to_le_bytes());
        put!(&mut preamble, fields::SOURCE, self.source.0.to_le_bytes());
        let mut writer = Writer { out, at: 0 };
        writer.put(&preamble);
        match &self.body {
            Handshake::Hello { parameters, cookie, addresses, private_data } => {
                writer.put(&parameters.encode());
                writer.put(cookie);
                writer.put_lists(addresses, private_data);
            }
            Handshake::Retry { cookie } => writer.put(cookie),
            Handshake::Accept { parameters, addresses, private_data } => {
                writer.put(&Parameters { service: 0, ..*parameters }.encode());
                writer.put_lists(addresses, private_data);
            }
            Handshake::Reject { reason, private_data } => {
                assert!(private_data.len() <= PRIVATE_BYTES_MAX);
                let mut reject = [0; REJECT_BYTES];
                put!(&mut reject, fields::REJECT_REASON, reason.code().to_le_bytes());
                let length = private_data.len() as u16;
                put!(&mut reject, fields::REJECT_LENGTH, length.to_le_bytes());
                writer.put(&reject);
                writer.put(private_data);
            }
            Handshake::Pending => {}
            Handshake::Reset { epoch, packet } => {
                let mut reset = [0; RESET_BYTES];
                put!(&mut reset, fields::RESET_EPOCH, epoch.0.to_le_bytes());
                put!(&mut reset, fields::RESET_PACKET, packet.to_le_bytes());
                writer.put(&reset);
            }
            Handshake::VersionMismatch { lowest, highest } => {
                let mut versions = [0; VERSIONS_BYTES];
                put!(&mut versions, fields::LOWEST, lowest.to_le_bytes());
                put!(&mut versions, fields::HIGHEST, highest.to_le_bytes());
                writer.put(&versions);
            }
        }
        writer.at
    }
}

/// Decodes the preamble of a handshake frame of any version.
///
/// A receiver that does not support the version answers only a Hello, by a
/// [`Handshake::VersionMismatch`] to the source in the preamble. Because a `VersionMismatch` gets
/// no answer, two endpoints never answer each other's answers.
///
/// # Errors
/// Returns [`DecodeError`] if there are too few bytes, or if the kind, magic or link index is
/// wrong.
#[inline]
pub fn preamble(bytes: &[u8]) -> Result<Preamble, DecodeError> {
    split_preamble(bytes).map(|(preamble, _)| preamble)
}

//= protocol.md: preamble.1
/// Decodes a handshake frame. Checks all rules of protocol.md §2 that do not depend on the state of
/// the connection.
///
/// # Errors
/// Returns [`DecodeError::Version`] if the frame has another version and is not a
/// `VersionMismatch`. In that case, [`preamble`] returns the ids for an answer. Returns another
/// [`DecodeError`] if the frame is malformed.
pub fn decode_handshake(bytes: &[u8]) -> Result<HandshakeFrame<'_>, DecodeError> {
    let (preamble, rest) = split_preamble(bytes)?;
    if preamble.version != VERSION && preamble.step != 7 {
        return Err(DecodeError::Version(preamble.version));
    }
    let mut reader = Reader { rest };
    let body = match preamble.step {
        1 => {
            let parameters = Parameters::decode(reader.take("parameters")?)?;
            let cookie = *reader.take("cookie")?;
            let (addresses, private_data) = reader.take_lists()?;
            Handshake::Hello { parameters, cookie, addresses, private_data }
        }
        2 => Handshake::Retry { cookie: *reader.take("cookie")? },
        3 => {
            let parameters = Parameters::decode(reader.take("parameters")?)?;
            if parameters.service != 0 {
                let value = parameters.service.into();
                return Err(DecodeError::Range { field: fields::SERVICE.name, value });
            }
            let (addresses, private_data) = reader.take_lists()?;
            Handshake::Accept { parameters, addresses, private_data }
        }
        4 => {
            let reject = reader.take::<REJECT_BYTES>("body of Reject")?;
            let length = u16::from_le_bytes(get!(reject, fields::REJECT_LENGTH));
            let private_data = reader.take_private(ranged(&fields::REJECT_LENGTH, length)?)?;
            let code = u16::from_le_bytes(get!(reject, fields::REJECT_REASON));
            Handshake::Reject { reason: RejectReason::from_code(code), private_data }
        }
        5 => Handshake::Pending,
        6 => {
            let reset = reader.take::<RESET_BYTES>("body of Reset")?;
            Handshake::Reset {
                epoch: Epoch(u16::from_le_bytes(get!(reset, fields::RESET_EPOCH))),
                packet: u32::from_le_bytes(get!(reset, fields::RESET_PACKET)),
            }
        }
        7 => {
            let versions = reader.take::<VERSIONS_BYTES>("body of VersionMismatch")?;
            Handshake::VersionMismatch {
                lowest: u16::from_le_bytes(get!(versions, fields::LOWEST)),
                highest: u16::from_le_bytes(get!(versions, fields::HIGHEST)),
            }
        }
        step => return Err(DecodeError::Step(step)),
    };
    if !reader.rest.is_empty() {
        return Err(DecodeError::Trailing { part: "handshake frame", bytes: reader.rest.len() });
    }
    let Preamble { version, destination, source, .. } = preamble;
    Ok(HandshakeFrame { version, destination, source, body })
}

#[inline]
fn split_preamble(bytes: &[u8]) -> Result<(Preamble, &[u8]), DecodeError> {
    let Some((preamble, rest)) = bytes.split_first_chunk::<PREAMBLE_BYTES>() else {
        let found = bytes.len();
        return Err(DecodeError::Truncated { part: "preamble", needed: PREAMBLE_BYTES, found });
    };
    match Kind::from_first_byte(preamble[0])? {
        Kind::Handshake if preamble[0] == 0 => {}
        Kind::Handshake => return Err(DecodeError::HandshakeLink(preamble[0] >> 4)),
        other => return Err(DecodeError::NotHandshake(other)),
    }
    let magic = get!(preamble, fields::MAGIC);
    if magic != MAGIC_BYTES {
        return Err(DecodeError::Magic(magic));
    }
    let id = |bytes| ConnectionId(u32::from_le_bytes(bytes));
    let preamble = Preamble {
        step: u8::from_le_bytes(get!(preamble, fields::STEP)),
        version: u16::from_le_bytes(get!(preamble, fields::VERSION)),
        destination: id(get!(preamble, fields::DESTINATION)),
        source: id(get!(preamble, fields::SOURCE)),
    };
    Ok((preamble, rest))
}

/// Reads the parts of a frame in order.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self, part: &'static str) -> Result<&'a [u8; N], DecodeError> {
        let found = self.rest.len();
        let (taken, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated {
            part,
            needed: N,
            found,
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_slice(&mut self, part: &'static str, needed: usize) -> Result<&'a [u8], DecodeError> {
        let found = self.rest.len();
        let (taken, rest) = self.rest.split_at_checked(needed).ok_or(DecodeError::Truncated {
            part,
            needed,
            found,
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn take_private(&mut self, length: u16) -> Result<&'a [u8], DecodeError> {
        self.take_slice("private data", length.into())
    }

    /// Reads counts, addresses and private data.
    fn take_lists(&mut self) -> Result<(Addresses<'a>, &'a [u8]), DecodeError> {
        let counts = self.take::<COUNTS_BYTES>("counts")?;
        let count = u8::from_le_bytes(get!(counts, fields::ADDRESS_COUNT));
        let count = usize::from(ranged(&fields::ADDRESS_COUNT, count)?);
        let length = u16::from_le_bytes(get!(counts, fields::PRIVATE_LENGTH));
        let length = ranged(&fields::PRIVATE_LENGTH, length)?;
        let addresses = self.take_slice("addresses", count * ADDRESS_BYTES)?;
        let addresses = Addresses::decode(addresses.as_chunks().0)?;
        Ok((addresses, self.take_private(length)?))
    }
}

/// Writes the parts of a frame in order.
struct Writer<'a> {
    out: &'a mut [u8],
    /// Number of bytes written so far.
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.out[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    fn put_lists(&mut self, addresses: &Addresses<'_>, private_data: &[u8]) {
        assert!(addresses.len() <= ADDRESSES_MAX);
        assert!(private_data.len() <= PRIVATE_BYTES_MAX);
        let mut counts = [0; COUNTS_BYTES];
        put!(&mut counts, fields::ADDRESS_COUNT, [addresses.len() as u8]);
        put!(&mut counts, fields::PRIVATE_LENGTH, (private_data.len() as u16).to_le_bytes());
        self.put(&counts);
        for address in addresses.iter() {
            self.put(&address.0);
        }
        self.put(private_data);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::peek;
    use crate::generate::{address, mutations, parameters, reject_reason};
    use crate::identity::PeerAddr;

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(parts in parts()) {
            let frame = parts.frame();
            let bytes = encoded(&frame);
            prop_assert_eq!(decode_handshake(&bytes), Ok(frame));
            prop_assert_eq!(peek(&bytes), Ok((Kind::Handshake, frame.destination, Epoch(0))));
            for length in 0..bytes.len() {
                let truncated =
                    matches!(decode_handshake(&bytes[..length]), Err(DecodeError::Truncated { .. }));
                prop_assert!(truncated, "{length} of {} bytes", bytes.len());
            }
            let mut longer = bytes;
            longer.push(0);
            let trailing = DecodeError::Trailing { part: "handshake frame", bytes: 1 };
            prop_assert_eq!(decode_handshake(&longer), Err(trailing));
        }

        #[test]
        fn no_mutation_makes_the_decoder_panic(parts in parts(), mutations in mutations()) {
            let mut bytes = encoded(&parts.frame());
            for mutation in &mutations {
                mutation.apply(&mut bytes);
            }
            if let Ok(frame) = decode_handshake(&bytes) {
                let again = encoded(&frame);
                prop_assert_eq!(decode_handshake(&again), Ok(frame));
            }
        }

        //= protocol.md: peer.2
        #[test]
        fn no_bytes_make_the_decoder_panic(
            body in vec(any::<u8>(), 0..300),
            step in 0..9_u8,
        ) {
            let mut bytes = std::vec![0, step, 1, 0, b'E', b'T', b'H', b'N'];
            bytes.extend_from_slice(&body);
            let _ = decode_handshake(&bytes);
            let _ = decode_handshake(&body);
        }
    }

    #[test]
    fn another_version_is_named_and_its_sender_can_be_answered() {
        let hello = HandshakeFrame {
            version: 9,
            destination: ConnectionId(0),
            source: ConnectionId(77),
            body: Handshake::Pending,
        };
        let bytes = encoded(&hello);
        assert_eq!(decode_handshake(&bytes), Err(DecodeError::Version(9)));
        assert_eq!(preamble(&bytes).map(|preamble| preamble.source), Ok(ConnectionId(77)));
        let body = Handshake::VersionMismatch { lowest: 8, highest: 9 };
        let mismatch = HandshakeFrame { body, ..hello };
        assert_eq!(decode_handshake(&encoded(&mismatch)), Ok(mismatch));
    }

    //= protocol.md: preamble.1
    #[test]
    fn broken_preambles_are_refused() {
        let pending = HandshakeFrame {
            version: VERSION,
            destination: ConnectionId(1),
            source: ConnectionId(2),
            body: Handshake::Pending,
        };
        let with = |at: usize, value: u8| {
            let mut bytes = encoded(&pending);
            bytes[at] = value;
            decode_handshake(&bytes).err()
        };
        assert_eq!(with(0, 0), None);
        assert_eq!(with(0, 0x20), Some(DecodeError::HandshakeLink(2)));
        assert_eq!(with(0, 3), Some(DecodeError::NotHandshake(Kind::Write)));
        assert_eq!(with(0, 13), Some(DecodeError::Kind(13)));
        assert_eq!(with(1, 8), Some(DecodeError::Step(8)));
        assert_eq!(with(4, b'e'), Some(DecodeError::Magic(*b"eTHN")));
    }

    //= protocol.md: preamble.1
    #[test]
    fn parameters_out_of_range_are_refused() {
        let frame = Parts {
            step: 1,
            ids: (0, 1),
            parameters: Parameters {
                incarnation: 0,
                features: crate::parameters::Features::NONE,
                epoch: Epoch(0),
                links_max: 17,
                frame_bytes_max: 1472,
                read_depth: 0,
                operation_window: 1,
                order_pool_bytes: 0,
                receive_buffer_bytes: 0,
                ack_delay_max_ns: 0,
                receive_credit: crate::identity::MessageNumber(0),
                service: 0,
            },
            cookie: [0; 24],
            addresses: Vec::new(),
            private_data: Vec::new(),
            reason: RejectReason::NoListener,
        };
        let error = DecodeError::Range { field: "links_max", value: 17 };
        assert_eq!(decode_handshake(&encoded(&frame.frame())), Err(error));
    }

    #[test]
    fn the_codec_agrees_with_the_table_of_steps() {
        for layout in fields::STEP_LAYOUTS {
            let parts_bytes: usize = layout.parts.iter().map(|part| layout_end(*part)).sum();
            let mut bytes = [0; HANDSHAKE_BYTES_MAX];
            bytes[..8].copy_from_slice(&[0, layout.step, 1, 0, b'E', b'T', b'H', b'N']);
            let parameters = &mut bytes[PREAMBLE_BYTES..];
            if layout.parts.first() == Some(&Layout::Parameters) {
                parameters[18] = 1;
                parameters[21] = 1;
                parameters[24] = 1;
            }
            let frame = decode_handshake(&bytes[..PREAMBLE_BYTES + parts_bytes]).unwrap();
            assert_eq!(frame.body.step(), layout.step);
        }
    }

    #[test]
    fn the_largest_hello_fits() {
        let addresses =
            [PeerAddr([4, 0, 0, 1, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]); 16];
        let parameters = parameters().new_tree(&mut proptest::test_runner::TestRunner::default());
        let body = Handshake::Hello {
            parameters: proptest::strategy::ValueTree::current(&parameters.unwrap()),
            cookie: [1; COOKIE_BYTES],
            addresses: Addresses::from_slice(&addresses),
            private_data: &[7; PRIVATE_BYTES_MAX],
        };
        let (destination, source) = (ConnectionId(0), ConnectionId(1));
        let frame = HandshakeFrame { version: VERSION, destination, source, body };
        assert_eq!(encoded(&frame).len(), HANDSHAKE_BYTES_MAX);
    }

    /// The parts of a handshake frame.
    #[derive(Clone, Debug)]
    struct Parts {
        step: u8,
        ids: (u32, u32),
        parameters: Parameters,
        cookie: [u8; COOKIE_BYTES],
        addresses: Vec<PeerAddr>,
        private_data: Vec<u8>,
        reason: RejectReason,
    }

    impl Parts {
        fn frame(&self) -> HandshakeFrame<'_> {
            let Self { parameters, cookie, private_data, reason, .. } = self;
            let addresses = Addresses::from_slice(&self.addresses);
            let (parameters, cookie, reason) = (*parameters, *cookie, *reason);
            let body = match self.step {
                1 => Handshake::Hello { parameters, cookie, addresses, private_data },
                2 => Handshake::Retry { cookie },
                3 => {
                    let parameters = Parameters { service: 0, ..parameters };
                    Handshake::Accept { parameters, addresses, private_data }
                }
                4 => Handshake::Reject { reason, private_data },
                5 => Handshake::Pending,
                6 => Handshake::Reset { epoch: parameters.epoch, packet: parameters.service },
                _ => Handshake::VersionMismatch { lowest: 1, highest: parameters.epoch.0 },
            };
            let (destination, source) = (ConnectionId(self.ids.0), ConnectionId(self.ids.1));
            HandshakeFrame { version: VERSION, destination, source, body }
        }
    }

    prop_compose! {
        fn parts()(
            step in 1..=7_u8,
            ids: (u32, u32),
            parameters in parameters(),
            cookie: [u8; COOKIE_BYTES],
            addresses in vec(address(), 0..=ADDRESSES_MAX),
            private_data in vec(any::<u8>(), 0..=PRIVATE_BYTES_MAX),
            reason in reject_reason(),
        ) -> Parts {
            Parts { step, ids, parameters, cookie, addresses, private_data, reason }
        }
    }

    fn encoded(frame: &HandshakeFrame<'_>) -> Vec<u8> {
        let mut out = [0; HANDSHAKE_BYTES_MAX];
        let length = frame.encode(&mut out);
        out[..length].to_vec()
    }
}
