//! The payload of a Terminate message: why the sender ends the connection (RFC 5040 section 4.8).

use crate::cause::{Cause, ErrorCode};
use crate::ddp::{TAGGED_HEADER_BYTES, UNTAGGED_HEADER_BYTES};
use crate::error::EncodeError;
use crate::octets::{Appender, array, u16_at};
use crate::rdmap::READ_REQUEST_BYTES;

/// Length of the longest Terminate payload in bytes.
pub const TERMINATE_BYTES_MAX: usize =
    CONTROL_BYTES + SEGMENT_LENGTH_BYTES + UNTAGGED_HEADER_BYTES + READ_REQUEST_BYTES;

const CONTROL_BYTES: usize = 4;
const SEGMENT_LENGTH_BYTES: usize = 2;

/// The order of the bits in the control word of a Terminate.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum BitOrder {
    /// The order of RFC 5040, in which this project sends.
    #[default]
    Rfc,
    /// The order that Linux siw sends on little-endian hosts: layer and type change their places,
    /// and M, D and R are the lowest bits of the third byte, with M lowest.
    Swapped,
}

/// The headers of the segment at fault, as a Terminate has them: 14 bytes of a tagged segment, or
/// 18 of an untagged one. They may be malformed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TerminatedHeader<'a>(&'a [u8]);

impl<'a> TerminatedHeader<'a> {
    /// Returns the headers at the start of a ULPDU. Returns `None` if the ULPDU is shorter.
    pub fn at_start_of(ulpdu: &'a [u8]) -> Option<Self> {
        let is_tagged = ulpdu.first()? & 0x80 != 0;
        let length = if is_tagged { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES };
        ulpdu.get(..length).map(Self)
    }

    /// Returns the bytes of the headers.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The payload of a Terminate message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terminate<'a> {
    /// The error.
    pub error: ErrorCode,
    /// The order of the bits in the control word.
    pub order: BitOrder,
    /// The 13 reserved bits, at most [`Terminate::RESERVED`].
    pub reserved: u16,
    /// Length of the ULPDU at fault in bytes. Present if the bit M is set.
    pub segment_length: Option<u16>,
    /// Headers of the segment at fault. Present if the bit D is set.
    pub ddp_header: Option<TerminatedHeader<'a>>,
    /// Payload of the Read Request at fault. Present if the bit R is set.
    pub read_request: Option<[u8; READ_REQUEST_BYTES]>,
    /// Bytes that follow, which the receiver ignores. Empty in a Terminate of this project.
    pub trailing: &'a [u8],
}

impl<'a> Terminate<'a> {
    /// Mask of the reserved bits.
    pub const RESERVED: u16 = 0x1fff;

    /// Returns a Terminate that says nothing about a segment.
    pub const fn new(cause: Cause) -> Self {
        Self {
            error: cause.error_code(),
            order: BitOrder::Rfc,
            reserved: 0,
            segment_length: None,
            ddp_header: None,
            read_request: None,
            trailing: &[],
        }
    }

    /// Returns this Terminate with the length in bytes and the headers of the segment at fault.
    #[must_use]
    pub const fn with_segment(self, length: u16, header: TerminatedHeader<'a>) -> Self {
        Self { segment_length: Some(length), ddp_header: Some(header), ..self }
    }

    /// Returns this Terminate with the payload of the Read Request at fault.
    #[must_use]
    pub const fn with_read_request(self, payload: [u8; READ_REQUEST_BYTES]) -> Self {
        Self { read_request: Some(payload), ..self }
    }

    /// Encodes the payload at the start of `out` and returns its length in bytes.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the payload does not fit into `out`, or if a field exceeds its
    /// bits.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        for (bits, mask) in [
            (self.reserved, Self::RESERVED),
            (u16::from(self.error.layer), 0x0f),
            (u16::from(self.error.error_type), 0x0f),
        ] {
            if bits & !mask != 0 {
                return Err(EncodeError::Reserved { bits, mask });
            }
        }
        let header = self.ddp_header.map_or(&[][..], TerminatedHeader::as_bytes);
        let needed = CONTROL_BYTES
            + self.segment_length.map_or(0, |_| SEGMENT_LENGTH_BYTES)
            + header.len()
            + self.read_request.map_or(0, |request| request.len())
            + self.trailing.len();
        if out.len() < needed {
            return Err(EncodeError::Buffer { needed, found: out.len() });
        }
        let mut payload = Appender::new(out);
        payload.put(&self.control());
        if let Some(length) = self.segment_length {
            payload.put(&length.to_be_bytes());
        }
        payload.put(header);
        payload.put(self.read_request.as_ref().map_or(&[][..], |request| request));
        payload.put(self.trailing);
        Ok(payload.length())
    }

    fn control(&self) -> [u8; CONTROL_BYTES] {
        let ErrorCode { layer, error_type, code } = self.error;
        let flags =
            [self.segment_length.is_some(), self.ddp_header.is_some(), self.read_request.is_some()];
        let [high, low] = self.reserved.to_be_bytes();
        match self.order {
            BitOrder::Rfc => {
                let [m, d, r] = flags.map(u8::from);
                [layer << 4 | error_type, code, m << 7 | d << 6 | r << 5 | high, low]
            }
            BitOrder::Swapped => {
                let [m, d, r] = flags.map(u8::from);
                [error_type << 4 | layer, code, high << 3 | r << 2 | d << 1 | m, low]
            }
        }
    }
}

/// Why the payload of a Terminate message is malformed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TerminateError {
    /// The payload ends inside a part that the message says to have.
    #[error("{part} of a Terminate needs {needed} bytes and {found} are left")]
    Truncated {
        /// Name of the part.
        part: &'static str,
        /// Number of bytes that the part needs.
        needed: usize,
        /// Number of bytes left.
        found: usize,
    },
}

//= RFC 5040 section 4.8: M, D and R say which parts follow the control word
/// Decodes the payload of a Terminate message, in the bit order of the RFC or in that of siw.
///
/// If one of the bits M, D and R is set, its place shows the order. Else the order is that in which
/// the error code is known, or at least the type of the error. If both or none are known,
/// `prefer_swapped` decides; pass whether the peer is known to be siw.
///
/// # Errors
/// Returns [`TerminateError`] if the payload ends before a part that it says to have.
pub fn decode_terminate(
    bytes: &[u8],
    prefer_swapped: bool,
) -> Result<Terminate<'_>, TerminateError> {
    let control =
        array(bytes, 0).ok_or_else(|| truncated("the control word", CONTROL_BYTES, bytes))?;
    let order = order_of(control, prefer_swapped);
    let error = error_of(control, order);
    let [_, _, flags, low] = control;
    let ([m, d, r], high) = match order {
        BitOrder::Rfc => ([0x80, 0x40, 0x20].map(|bit| flags & bit != 0), flags & 0x1f),
        BitOrder::Swapped => ([0x01, 0x02, 0x04].map(|bit| flags & bit != 0), flags >> 3),
    };
    let reserved = u16::from_be_bytes([high, low]);
    let mut rest = bytes.get(CONTROL_BYTES..).unwrap_or_default();
    let mut segment_length = None;
    if m {
        let part = "the segment length";
        segment_length =
            Some(u16_at(rest, 0).ok_or_else(|| truncated(part, SEGMENT_LENGTH_BYTES, rest))?);
        rest = rest.get(SEGMENT_LENGTH_BYTES..).unwrap_or_default();
    }
    let mut ddp_header = None;
    if d {
        let is_tagged = rest.first().is_some_and(|first| first & 0x80 != 0);
        let needed = if is_tagged { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES };
        let header = TerminatedHeader::at_start_of(rest)
            .ok_or_else(|| truncated("the DDP header", needed, rest))?;
        ddp_header = Some(header);
        rest = rest.get(header.0.len()..).unwrap_or_default();
    }
    let mut read_request = None;
    if r {
        let part = "the Read Request";
        read_request =
            Some(array(rest, 0).ok_or_else(|| truncated(part, READ_REQUEST_BYTES, rest))?);
        rest = rest.get(READ_REQUEST_BYTES..).unwrap_or_default();
    }
    Ok(Terminate {
        error,
        order,
        reserved,
        segment_length,
        ddp_header,
        read_request,
        trailing: rest,
    })
}

fn truncated(part: &'static str, needed: usize, rest: &[u8]) -> TerminateError {
    TerminateError::Truncated { part, needed, found: rest.len() }
}

/// Returns the bit order of a control word.
fn order_of(control: [u8; CONTROL_BYTES], prefer_swapped: bool) -> BitOrder {
    let [_, _, flags, _] = control;
    if flags & 0xe0 != 0 {
        return BitOrder::Rfc;
    }
    if flags & 0x07 != 0 {
        return BitOrder::Swapped;
    }
    let [rfc, swapped] = [BitOrder::Rfc, BitOrder::Swapped].map(|order| {
        let error = error_of(control, order);
        (error.cause().is_some(), error.has_known_type())
    });
    let is_swapped = swapped > rfc || swapped == rfc && prefer_swapped;
    if is_swapped { BitOrder::Swapped } else { BitOrder::Rfc }
}

fn error_of([first, code, ..]: [u8; CONTROL_BYTES], order: BitOrder) -> ErrorCode {
    let (high, low) = (first >> 4, first & 0x0f);
    let (layer, error_type) = match order {
        BitOrder::Rfc => (high, low),
        BitOrder::Swapped => (low, high),
    };
    ErrorCode { layer, error_type, code }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::generate::{error_code, order, read_request};

    fn encoded(terminate: &Terminate<'_>) -> Vec<u8> {
        let mut out = [0; 200];
        let length = terminate.encode(&mut out).unwrap();
        out[..length].to_vec()
    }

    proptest! {
        #[test]
        fn any_bytes_that_decode_encode_to_the_same_bytes(
            bytes in vec(any::<u8>(), 0..100),
            flags in 0..8_u8,
            is_rfc: bool,
            prefer_swapped: bool,
        ) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.get_mut(2) {
                *byte = if is_rfc { flags << 5 } else { flags };
            }
            if let Ok(terminate) = decode_terminate(&bytes, prefer_swapped) {
                prop_assert_eq!(encoded(&terminate), bytes);
            }
        }

        //= RFC 5040 section 4.8: M, D and R say which parts follow the control word
        #[test]
        fn decode_returns_what_was_encoded(
            error in error_code(),
            order in order(),
            ulpdu in vec(any::<u8>(), 18..30),
            request in read_request(),
            parts: [bool; 3],
        ) {
            prop_assume!(parts.contains(&true));
            let terminate = Terminate {
                error,
                order,
                reserved: 0,
                segment_length: parts[0].then_some(ulpdu.len() as u16),
                ddp_header: parts[1].then(|| TerminatedHeader::at_start_of(&ulpdu).unwrap()),
                read_request: parts[2].then(|| request.encode()),
                trailing: &[],
            };
            let bytes = encoded(&terminate);
            prop_assert!(bytes.len() <= TERMINATE_BYTES_MAX);
            prop_assert_eq!(decode_terminate(&bytes, false), Ok(terminate));
            prop_assert_eq!(decode_terminate(&bytes, true), Ok(terminate));
            for length in 0..bytes.len() {
                prop_assert!(decode_terminate(&bytes[..length], false).is_err());
            }
        }
    }

    #[test]
    fn the_bits_are_those_of_the_rfc_and_of_siw() {
        let ulpdu = [0x41; 18];
        let header = TerminatedHeader::at_start_of(&ulpdu).unwrap();
        let terminate = Terminate::new(Cause::UntaggedNoBuffer).with_segment(20, header);
        assert_eq!(encoded(&terminate)[..6], [0x12, 0x02, 0xc0, 0x00, 0, 20]);
        let swapped = Terminate { order: BitOrder::Swapped, ..terminate };
        assert_eq!(encoded(&swapped)[..6], [0x21, 0x02, 0x03, 0x00, 0, 20]);
        let terminate = Terminate::new(Cause::ProtectionStag)
            .with_segment(46, header)
            .with_read_request([7; READ_REQUEST_BYTES]);
        assert_eq!(encoded(&terminate)[..4], [0x01, 0x00, 0xe0, 0x00]);
        let swapped = Terminate { order: BitOrder::Swapped, ..terminate };
        assert_eq!(encoded(&swapped)[..4], [0x10, 0x00, 0x07, 0x00]);
    }

    #[test]
    fn without_flags_the_order_is_the_one_in_which_the_error_is_known() {
        let order = |control: [u8; 4], prefer| decode_terminate(&control, prefer).unwrap().order;
        for prefer in [false, true] {
            // MPA, invalid set-up frame, as siw sends it. As RDMAP's operation error, 4 is unknown.
            assert_eq!(order([0x02, 0x04, 0, 0], prefer), BitOrder::Swapped);
            // The same in the order of the RFC.
            assert_eq!(order([0x20, 0x04, 0, 0], prefer), BitOrder::Rfc);
            // Layer 1 and type 2 are known, layer 2 and type 1 are not.
            assert_eq!(order([0x12, 0x77, 0, 0], prefer), BitOrder::Rfc);
            assert_eq!(order([0x21, 0x77, 0, 0], prefer), BitOrder::Swapped);
        }
        // Insufficient IRD of MPA, or an unexpected opcode of RDMAP.
        assert_eq!(order([0x02, 0x06, 0, 0], false), BitOrder::Rfc);
        assert_eq!(order([0x02, 0x06, 0, 0], true), BitOrder::Swapped);
        // Unknown in both orders.
        assert_eq!(order([0x77, 0x00, 0, 0], false), BitOrder::Rfc);
        assert_eq!(order([0x77, 0x00, 0, 0], true), BitOrder::Swapped);
    }

    #[test]
    fn a_terminate_without_flags_decodes_in_every_known_cause() {
        for cause in Cause::ALL {
            let bytes = encoded(&Terminate::new(*cause));
            assert_eq!(decode_terminate(&bytes, false).unwrap().error.cause(), Some(*cause));
            let swapped = Terminate { order: BitOrder::Swapped, ..Terminate::new(*cause) };
            let bytes = encoded(&swapped);
            assert_eq!(decode_terminate(&bytes, true).unwrap().error.cause(), Some(*cause));
        }
    }

    #[test]
    fn a_field_that_exceeds_its_bits_is_not_encoded() {
        let plain = Terminate::new(Cause::MpaCrc);
        let error = EncodeError::Buffer { needed: 4, found: 3 };
        assert_eq!(plain.encode(&mut [0; 3]), Err(error));
        for terminate in [
            Terminate { reserved: 0x2000, ..plain },
            Terminate { error: ErrorCode { layer: 16, ..plain.error }, ..plain },
            Terminate { error: ErrorCode { error_type: 16, ..plain.error }, ..plain },
        ] {
            assert!(matches!(terminate.encode(&mut [0; 4]), Err(EncodeError::Reserved { .. })));
        }
    }

    #[test]
    fn a_ulpdu_that_is_too_short_has_no_headers_to_return() {
        assert_eq!(TerminatedHeader::at_start_of(&[]), None);
        assert_eq!(TerminatedHeader::at_start_of(&[0x81; 13]), None);
        assert_eq!(TerminatedHeader::at_start_of(&[0x41; 17]), None);
        let tagged = [0x81; 20];
        assert_eq!(TerminatedHeader::at_start_of(&tagged).unwrap().as_bytes().len(), 14);
    }
}
