//! Set-up frames of MPA: the request of the initiator and the reply of the responder (RFC 5044
//! section 7.1.1, RFC 6581 sections 6 and 9).

use core::fmt;

use crate::cause::Cause;
use crate::error::EncodeError;
use crate::octets::{Appender, u16_at};

/// Length of a set-up frame without its private data, in bytes.
pub const SETUP_HEADER_BYTES: usize = 20;

/// Maximum length of the private data in bytes, the words of enhanced set-up included.
pub const PRIVATE_DATA_MAX: usize = 512;

/// Length of the longest set-up frame in bytes.
pub const SETUP_FRAME_BYTES_MAX: usize = SETUP_HEADER_BYTES + PRIVATE_DATA_MAX;

/// Length of the two words of enhanced set-up in bytes. They are the first bytes of the private
/// data on the wire.
pub const ENHANCED_BYTES: usize = 4;

/// Maximum of [`EnhancedSetup::ird`] and [`EnhancedSetup::ord`] that is a number of reads.
pub const DEPTH_MAX: u16 = 0x3ffe;

/// Value of [`EnhancedSetup::ird`] and [`EnhancedSetup::ord`] that says that the number of reads is
/// not negotiated (RFC 6581 section 9.1).
pub const DEPTH_NOT_NEGOTIATED: u16 = 0x3fff;

/// Which end sends a set-up frame.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum SetupKind {
    /// The initiator's frame.
    Request,
    /// The responder's answer.
    Reply,
}

impl SetupKind {
    /// Returns the key at the start of the frame.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

impl fmt::Display for SetupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Reply => "reply",
        })
    }
}

/// The revision of MPA that a set-up frame has.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Revision {
    /// Revision 0, which the RDMA Consortium's version of MPA has.
    Zero,
    /// Revision 1 (RFC 5044).
    One,
    /// Revision 2 (RFC 6581).
    Two,
}

impl Revision {
    /// Returns the number of the revision.
    pub const fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// Returns the revision with this number, or `None` if it is above 2.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Zero),
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }
}

/// The flags of a set-up frame.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each bit of the wire")]
pub struct SetupFlags {
    /// M: the sender of the frame wants to receive markers.
    pub markers: bool,
    /// C: the sender of the frame wants CRCs in both directions.
    pub crc: bool,
    /// R: the responder rejects the connection. Meaningless in a request.
    pub reject: bool,
    /// S: the private data begins with the words of enhanced set-up, if the revision is 2.
    pub enhanced: bool,
    /// A bit that RFC 6581 reserves. Linux siw sets it if it sends FPDUs above the segment size of
    /// TCP, and echoes it always.
    pub gso: bool,
    /// The reserved bits as they are on the wire, masked with [`SetupFlags::RESERVED`]. Senders set
    /// them to 0, and receivers ignore them.
    pub reserved: u16,
}

impl SetupFlags {
    /// Mask of the reserved bits.
    pub const RESERVED: u16 = 0x0700;

    /// The reserved bit that an initiator of this project sets in its request.
    pub const ETHERNOT_REQUEST: u16 = 0x0200;

    /// The reserved bit that a responder of this project sets in its reply to a request with
    /// [`SetupFlags::ETHERNOT_REQUEST`]. It is another bit, because Linux siw echoes the reserved
    /// bits of a request.
    pub const ETHERNOT_REPLY: u16 = 0x0400;

    const MARKERS: u16 = 0x8000;
    const CRC: u16 = 0x4000;
    const REJECT: u16 = 0x2000;
    const ENHANCED: u16 = 0x1000;
    const GSO: u16 = 0x0800;

    const fn from_bits(bits: u16) -> Self {
        Self {
            markers: bits & Self::MARKERS != 0,
            crc: bits & Self::CRC != 0,
            reject: bits & Self::REJECT != 0,
            enhanced: bits & Self::ENHANCED != 0,
            gso: bits & Self::GSO != 0,
            reserved: bits & Self::RESERVED,
        }
    }

    fn bits(self) -> u16 {
        let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        bit(self.markers, Self::MARKERS)
            | bit(self.crc, Self::CRC)
            | bit(self.reject, Self::REJECT)
            | bit(self.enhanced, Self::ENHANCED)
            | bit(self.gso, Self::GSO)
            | self.reserved
    }
}

/// The words of enhanced set-up (RFC 6581 section 9).
///
/// In a request, the three `rtr_` fields say which first FPDUs the initiator can send. In a reply,
/// they say which of these the responder wants.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each bit of the wire")]
pub struct EnhancedSetup {
    /// Number of reads that the sender of the frame answers at a time, at most [`DEPTH_MAX`], or
    /// [`DEPTH_NOT_NEGOTIATED`].
    pub ird: u16,
    /// Number of reads that the sender of the frame has outstanding at a time, at most
    /// [`DEPTH_MAX`], or [`DEPTH_NOT_NEGOTIATED`].
    pub ord: u16,
    /// A: peer-to-peer mode. The responder may send once the first FPDU of the initiator, the
    /// ready-to-receive (RTR) message, has arrived.
    pub peer_to_peer: bool,
    /// B: the RTR message may be a Send without payload.
    pub rtr_send: bool,
    /// C: the RTR message may be a Write without payload.
    pub rtr_write: bool,
    /// D: the RTR message may be a Read Request for 0 bytes.
    pub rtr_read: bool,
}

impl EnhancedSetup {
    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;
    const DEPTH: u16 = 0x3fff;

    //= RFC 6581 section 9: the first word has A, B and the IRD, the second C, D and the ORD
    /// Returns the setup with these two words.
    const fn from_words(ird: u16, ord: u16) -> Self {
        Self {
            ird: ird & Self::DEPTH,
            ord: ord & Self::DEPTH,
            peer_to_peer: ird & Self::HIGH != 0,
            rtr_send: ird & Self::LOW != 0,
            rtr_write: ord & Self::HIGH != 0,
            rtr_read: ord & Self::LOW != 0,
        }
    }

    fn words(self) -> Result<[u16; 2], EncodeError> {
        if let Some(depth) = [self.ird, self.ord].into_iter().find(|depth| *depth > Self::DEPTH) {
            return Err(EncodeError::Depth(depth));
        }
        let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        Ok([
            self.ird | bit(self.peer_to_peer, Self::HIGH) | bit(self.rtr_send, Self::LOW),
            self.ord | bit(self.rtr_write, Self::HIGH) | bit(self.rtr_read, Self::LOW),
        ])
    }
}

/// A set-up frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetupFrame<'a> {
    /// Which end sends the frame.
    pub kind: SetupKind,
    /// The revision of MPA.
    pub revision: Revision,
    /// The flags.
    pub flags: SetupFlags,
    /// The words of enhanced set-up, which the frame has if its revision is 2 and its flags have
    /// [`SetupFlags::enhanced`].
    pub enhanced: Option<EnhancedSetup>,
    /// The private data without the words of enhanced set-up. With them it has at most
    /// [`PRIVATE_DATA_MAX`] bytes.
    pub private_data: &'a [u8],
}

impl SetupFrame<'_> {
    /// Encodes the frame at the start of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the frame does not fit into `out`, if the private data is too
    /// long, if a number of reads exceeds 14 bits, if reserved flags are outside of their mask, or
    /// if the words of enhanced set-up do not agree with revision and flags.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let has_words = self.revision == Revision::Two && self.flags.enhanced;
        if has_words != self.enhanced.is_some() {
            return Err(EncodeError::Enhanced);
        }
        if self.flags.reserved & !SetupFlags::RESERVED != 0 {
            let (bits, mask) = (self.flags.reserved, SetupFlags::RESERVED);
            return Err(EncodeError::Reserved { bits, mask });
        }
        let words = self.enhanced.map(EnhancedSetup::words).transpose()?;
        let length = self.private_data.len() + if has_words { ENHANCED_BYTES } else { 0 };
        let length_field = u16::try_from(length).ok().filter(|_| length <= PRIVATE_DATA_MAX);
        let Some(length_field) = length_field else {
            return Err(EncodeError::PrivateDataLength(length));
        };
        let (needed, found) = (SETUP_HEADER_BYTES + length, out.len());
        if found < needed {
            return Err(EncodeError::Buffer { needed, found });
        }
        let mut frame = Appender::new(out);
        frame.put(self.kind.key());
        frame.put(&(self.flags.bits() | u16::from(self.revision.number())).to_be_bytes());
        frame.put(&length_field.to_be_bytes());
        for word in words.into_iter().flatten() {
            frame.put(&word.to_be_bytes());
        }
        frame.put(self.private_data);
        Ok(frame.length())
    }
}

/// What the first bytes of a stream contain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parsed<'a> {
    /// The start of a set-up frame, without a fault so far.
    Incomplete {
        /// Number of bytes, counted from the start of the frame, to receive before the next call. It
        /// is above the number of bytes given.
        needed: usize,
    },
    /// A set-up frame.
    Complete {
        /// The frame.
        frame: SetupFrame<'a>,
        /// Length of the frame in bytes. The bytes after it are the first FPDUs.
        consumed: usize,
    },
}

const FLAGS: usize = 16;
const PRIVATE_DATA_LENGTH: usize = 18;

/// Why the bytes at the start of a stream are no MPA set-up frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The key differs from the key of the expected kind.
    #[error("not an MPA {kind} frame: the key differs at byte {at}")]
    Key {
        /// The expected kind of frame.
        kind: SetupKind,
        /// Offset of the first wrong byte, 0 to 15.
        at: usize,
    },
    /// The revision is unknown.
    #[error("MPA revision {0}, not 0, 1 or 2")]
    Revision(u8),
    /// The length of the private data is above the limit of RFC 5044 section 7.1.1.
    #[error("{0} bytes of private data, more than {PRIVATE_DATA_MAX}")]
    PrivateDataLength(u16),
    /// The frame says that it has the words of enhanced set-up, but its private data is too short.
    #[error("enhanced set-up with {0} bytes of private data, less than 4")]
    EnhancedTruncated(u16),
}

impl SetupError {
    /// Returns the section of the RFC whose rule the frame breaks.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Key { .. } | Self::Revision(_) | Self::PrivateDataLength(_) => {
                "RFC 5044 section 7.1.1"
            }
            Self::EnhancedTruncated(_) => "RFC 6581 section 6",
        }
    }

    /// Returns what a Terminate that answers this error says.
    pub const fn cause(self) -> Cause {
        Cause::MpaInvalidSetup
    }
}

//= RFC 5044 section 7.1.1: a key that differs, and private data above 512 bytes, end the set-up
//= RFC 6581 section 6: S in revision 2 says that the private data begins with the words
/// Decodes a set-up frame of this kind at the start of `bytes`. Reports a fault as soon as the byte
/// that shows it is there.
///
/// # Errors
/// Returns [`SetupError`] if the key is that of another protocol or of the other kind, if the
/// revision is above 2, or if the length of the private data is not allowed.
pub fn decode_setup(kind: SetupKind, bytes: &[u8]) -> Result<Parsed<'_>, SetupError> {
    let key = kind.key();
    if let Some(at) = key.iter().zip(bytes).position(|(expected, found)| expected != found) {
        return Err(SetupError::Key { kind, at });
    }
    let Some(bits) = u16_at(bytes, FLAGS) else {
        return Ok(Parsed::Incomplete { needed: SETUP_HEADER_BYTES });
    };
    let number = (bits & 0x00ff) as u8;
    let revision = Revision::from_number(number).ok_or(SetupError::Revision(number))?;
    let flags = SetupFlags::from_bits(bits);
    let Some(length) = u16_at(bytes, PRIVATE_DATA_LENGTH) else {
        return Ok(Parsed::Incomplete { needed: SETUP_HEADER_BYTES });
    };
    if usize::from(length) > PRIVATE_DATA_MAX {
        return Err(SetupError::PrivateDataLength(length));
    }
    let has_words = revision == Revision::Two && flags.enhanced;
    if has_words && usize::from(length) < ENHANCED_BYTES {
        return Err(SetupError::EnhancedTruncated(length));
    }
    let consumed = SETUP_HEADER_BYTES + usize::from(length);
    let Some(private_data) = bytes.get(SETUP_HEADER_BYTES..consumed) else {
        return Ok(Parsed::Incomplete { needed: consumed });
    };
    let words = u16_at(private_data, 0).zip(u16_at(private_data, 2)).filter(|_| has_words);
    let enhanced = words.map(|(ird, ord)| EnhancedSetup::from_words(ird, ord));
    let private_data = if has_words {
        private_data.get(ENHANCED_BYTES..).unwrap_or_default()
    } else {
        private_data
    };
    let frame = SetupFrame { kind, revision, flags, enhanced, private_data };
    Ok(Parsed::Complete { frame, consumed })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate::{AnySetup, setup};

    impl AnySetup {
        fn frame(&self) -> SetupFrame<'_> {
            let AnySetup { kind, revision, flags, enhanced, ref private_data } = *self;
            SetupFrame { kind, revision, flags, enhanced, private_data }
        }
    }

    fn encoded(frame: &SetupFrame<'_>) -> Vec<u8> {
        let mut out = [0; SETUP_FRAME_BYTES_MAX];
        let length = frame.encode(&mut out).unwrap();
        out[..length].to_vec()
    }

    fn plain() -> SetupFrame<'static> {
        SetupFrame {
            kind: SetupKind::Request,
            revision: Revision::One,
            flags: SetupFlags::default(),
            enhanced: None,
            private_data: &[],
        }
    }

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(setup in setup(), behind in 0..9_usize) {
            let frame = setup.frame();
            let mut bytes = encoded(&frame);
            let consumed = bytes.len();
            bytes.extend([7; 9].iter().take(behind));
            prop_assert_eq!(decode_setup(frame.kind, &bytes), Ok(Parsed::Complete { frame, consumed }));
        }

        #[test]
        fn every_prefix_of_a_frame_is_incomplete_and_names_a_longer_one(setup in setup()) {
            let frame = setup.frame();
            let bytes = encoded(&frame);
            for length in 0..bytes.len() {
                let Ok(Parsed::Incomplete { needed }) = decode_setup(frame.kind, &bytes[..length])
                else {
                    return Err(TestCaseError::fail("a prefix is complete or wrong"));
                };
                prop_assert!(needed > length && needed <= bytes.len());
            }
        }

        #[test]
        fn any_bytes_that_decode_encode_to_the_same_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600),
            has_key: bool,
            revision in 0..4_u8,
            length in 0..600_u16,
        ) {
            if has_key && bytes.len() >= SETUP_HEADER_BYTES {
                bytes[..16].copy_from_slice(SetupKind::Reply.key());
                bytes[17] = revision;
                bytes[18..20].copy_from_slice(&length.to_be_bytes());
            }
            if let Ok(Parsed::Complete { frame, consumed }) = decode_setup(SetupKind::Reply, &bytes) {
                prop_assert_eq!(&encoded(&frame), &bytes[..consumed]);
            }
        }
    }

    //= RFC 5044 section 7.1.1: a key that differs, and private data above 512 bytes, end the set-up
    #[test]
    fn a_wrong_key_is_found_at_its_first_wrong_byte() {
        let bytes = encoded(&plain());
        for at in 0..16 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x20;
            let error = SetupError::Key { kind: SetupKind::Request, at };
            assert_eq!(decode_setup(SetupKind::Request, &bytes[..=at]), Err(error));
            assert!(decode_setup(SetupKind::Request, &bytes[..at]).is_ok());
        }
        let error = SetupError::Key { kind: SetupKind::Reply, at: 9 };
        assert_eq!(decode_setup(SetupKind::Reply, &bytes), Err(error), "a request is no reply");
    }

    //= RFC 5044 section 7.1.1: a key that differs, and private data above 512 bytes, end the set-up
    #[test]
    fn private_data_ends_at_512_bytes() {
        let private_data = [9; PRIVATE_DATA_MAX + 1];
        let mut frame = SetupFrame { private_data: &private_data[..PRIVATE_DATA_MAX], ..plain() };
        let mut bytes = encoded(&frame);
        assert_eq!(bytes.len(), SETUP_FRAME_BYTES_MAX);
        assert!(matches!(
            decode_setup(SetupKind::Request, &bytes),
            Ok(Parsed::Complete { consumed: SETUP_FRAME_BYTES_MAX, .. })
        ));
        bytes[18..20].copy_from_slice(&513_u16.to_be_bytes());
        let error = SetupError::PrivateDataLength(513);
        assert_eq!(decode_setup(SetupKind::Request, &bytes[..20]), Err(error));
        frame.private_data = &private_data;
        assert_eq!(frame.encode(&mut [0; 600]), Err(EncodeError::PrivateDataLength(513)));
    }

    #[test]
    fn a_revision_above_2_is_refused_as_soon_as_it_is_there() {
        let mut bytes = encoded(&plain());
        bytes[17] = 3;
        assert_eq!(decode_setup(SetupKind::Request, &bytes[..18]), Err(SetupError::Revision(3)));
        assert_eq!(SetupError::Revision(3).cause(), Cause::MpaInvalidSetup);
    }

    //= RFC 6581 section 6: S in revision 2 says that the private data begins with the words
    #[test]
    fn the_words_are_there_in_revision_2_with_their_flag_only() {
        let flags = SetupFlags { enhanced: true, ..SetupFlags::default() };
        let private_data = &[0x80, 4, 0xc0, 4];
        let frame = SetupFrame { flags, private_data, ..plain() };
        let mut bytes = encoded(&frame);
        assert_eq!(
            decode_setup(SetupKind::Request, &bytes),
            Ok(Parsed::Complete { frame, consumed: 24 })
        );
        bytes[17] = 2;
        let Ok(Parsed::Complete { frame, .. }) = decode_setup(SetupKind::Request, &bytes) else {
            panic!("a whole frame")
        };
        assert!(frame.enhanced.is_some() && frame.private_data.is_empty());
        bytes[19] = 3;
        let error = SetupError::EnhancedTruncated(3);
        assert_eq!(decode_setup(SetupKind::Request, &bytes), Err(error));
        let frame = SetupFrame { revision: Revision::Two, flags, ..plain() };
        assert_eq!(frame.encode(&mut [0; 24]), Err(EncodeError::Enhanced));
    }

    //= RFC 6581 section 9: the first word has A, B and the IRD, the second C, D and the ORD
    #[test]
    fn the_words_have_the_bits_of_the_rfc() {
        let none = EnhancedSetup::default();
        for (setup, words) in [
            (EnhancedSetup { ird: 5, ..none }, [5, 0]),
            (EnhancedSetup { ord: DEPTH_NOT_NEGOTIATED, ..none }, [0, 0x3fff]),
            (EnhancedSetup { peer_to_peer: true, ..none }, [0x8000, 0]),
            (EnhancedSetup { rtr_send: true, ..none }, [0x4000, 0]),
            (EnhancedSetup { rtr_write: true, ..none }, [0, 0x8000]),
            (EnhancedSetup { rtr_read: true, ..none }, [0, 0x4000]),
        ] {
            assert_eq!(setup.words(), Ok(words));
        }
        let too_many = EnhancedSetup { ird: 0x4000, ..none };
        assert_eq!(too_many.words(), Err(EncodeError::Depth(0x4000)));
    }

    #[test]
    fn the_flags_have_the_bits_of_the_rfc() {
        for (bits, is_set) in [
            (0x8000, (|flags| flags.markers) as fn(SetupFlags) -> bool),
            (0x4000, |flags| flags.crc),
            (0x2000, |flags| flags.reject),
            (0x1000, |flags| flags.enhanced),
            (0x0800, |flags| flags.gso),
        ] {
            assert!(is_set(SetupFlags::from_bits(bits)) && !is_set(SetupFlags::from_bits(!bits)));
        }
    }

    #[test]
    fn a_frame_that_does_not_fit_is_not_encoded() {
        let error = EncodeError::Buffer { needed: 20, found: 19 };
        assert_eq!(plain().encode(&mut [0; 19]), Err(error));
        let flags = SetupFlags { reserved: 0x8000, ..SetupFlags::default() };
        let error = EncodeError::Reserved { bits: 0x8000, mask: SetupFlags::RESERVED };
        assert_eq!(SetupFrame { flags, ..plain() }.encode(&mut [0; 20]), Err(error));
    }
}
