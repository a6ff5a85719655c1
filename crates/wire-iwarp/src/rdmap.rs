//! RDMAP: opcodes, whole segment headers, and the payload of a Read Request (RFC 5040 sections 4.1
//! to 4.4).

use core::ops::Range;

use crate::cause::Cause;
use crate::ddp::{
    self, DDP_VERSION, DdpHeader, QueueNumber, SEGMENT_HEADER_BYTES_MAX, Stag, TAGGED_HEADER_BYTES,
    UNTAGGED_HEADER_BYTES,
};
use crate::octets::{Appender, u16_at, u32_at, u64_at};

/// The version of RDMAP that this crate implements.
pub const RDMAP_VERSION: u8 = 1;

/// What a segment is for (RFC 5040 section 4.1, figure 4).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Opcode {
    /// Writes the payload into a buffer of the receiver.
    Write,
    /// Asks for the content of a buffer of the receiver.
    ReadRequest,
    /// Answers a Read Request.
    ReadResponse,
    /// Delivers a message.
    Send,
    /// Delivers a message and invalidates an STag of the receiver.
    SendInvalidate,
    /// Delivers a message and asks for an event at the receiver.
    SendSolicited,
    /// Delivers a message, invalidates an STag of the receiver and asks for an event there.
    SendSolicitedInvalidate,
    /// Says why the sender ends the connection.
    Terminate,
}

impl Opcode {
    /// All opcodes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
    ];

    /// Returns the number of the opcode, 0 to 7.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the opcode with this number, or `None` if RFC 5040 reserves it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the queue of the opcode's messages, or `None` if they are tagged.
    pub const fn queue(self) -> Option<QueueNumber> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest => Some(QueueNumber::ReadRequest),
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate => Some(QueueNumber::Send),
            Self::Terminate => Some(QueueNumber::Terminate),
        }
    }

    /// Returns whether the segments have an STag to invalidate.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Returns whether the message asks for an event at the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(self, Self::SendSolicited | Self::SendSolicitedInvalidate)
    }
}

/// The headers of a segment: the fields of DDP and the opcode of RDMAP, which agree with each other
/// if the segment was decoded.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Segment {
    /// The fields of DDP.
    pub ddp: DdpHeader,
    /// What the segment is for.
    pub opcode: Opcode,
    /// The reserved bits of the control field, masked with [`Segment::RESERVED`]. Senders set them
    /// to 0, and receivers ignore them.
    pub reserved: u16,
}

impl Segment {
    /// Mask of the reserved bits of the control field: 4 of DDP and 2 of RDMAP.
    pub const RESERVED: u16 = 0x3c30;

    /// Returns the headers of a tagged segment.
    pub const fn tagged(opcode: Opcode, last: bool, stag: Stag, offset: u64) -> Self {
        Self { ddp: DdpHeader::Tagged { last, stag, offset }, opcode, reserved: 0 }
    }

    /// Returns the headers of an untagged segment without an STag to invalidate.
    pub const fn untagged(
        opcode: Opcode,
        last: bool,
        queue: QueueNumber,
        msn: u32,
        mo: u32,
    ) -> Self {
        let ddp = DdpHeader::Untagged { last, queue, msn, mo, upper_layer: 0 };
        Self { ddp, opcode, reserved: 0 }
    }

    /// Returns the STag that the receiver is to invalidate, if the opcode says so.
    pub const fn invalidate_stag(&self) -> Option<Stag> {
        match self.ddp {
            DdpHeader::Untagged { upper_layer, .. } if self.opcode.invalidates() => {
                Some(Stag(upper_layer))
            }
            _ => None,
        }
    }

    /// Returns the length of the encoded headers in bytes: 14 for tagged segments, else 18.
    pub const fn encoded_bytes(&self) -> usize {
        self.ddp.encoded_bytes()
    }

    /// Encodes the headers at the start of `out` and returns their length in bytes. Bits of
    /// [`Segment::reserved`] outside of its mask are not encoded.
    pub fn encode(&self, out: &mut [u8; SEGMENT_HEADER_BYTES_MAX]) -> usize {
        let rdmap = u16::from(RDMAP_VERSION) << VERSION_SHIFT | u16::from(self.opcode.number());
        let control = self.ddp.control() | rdmap | self.reserved & Self::RESERVED;
        let mut headers = Appender::new(out);
        headers.put(&control.to_be_bytes());
        self.ddp.put(&mut headers);
        headers.length()
    }
}

/// What the first bytes of a ULPDU contain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SegmentStart {
    /// The start of the headers, without a fault so far.
    Incomplete {
        /// Number of bytes, counted from the start of the ULPDU, to receive before the next call. It
        /// is above the number of bytes given and at most the length of the ULPDU.
        needed: usize,
    },
    /// The headers.
    Complete {
        /// The headers.
        segment: Segment,
        /// Length of the headers in bytes. The rest of the ULPDU is payload.
        header_bytes: usize,
    },
}

/// Why a ULPDU is no segment that RDMAP allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The ULPDU is shorter than its headers.
    #[error("a ULPDU of {found} bytes, less than the {needed} of its headers")]
    Truncated {
        /// Number of bytes that the headers need.
        needed: usize,
        /// Length of the ULPDU in bytes.
        found: usize,
    },
    /// A tagged segment has another DDP version than 1.
    #[error("a tagged segment of DDP version {0}, not 1")]
    TaggedDdpVersion(u8),
    /// An untagged segment has another DDP version than 1.
    #[error("an untagged segment of DDP version {0}, not 1")]
    UntaggedDdpVersion(u8),
    /// RDMAP uses the queues 0, 1 and 2 only.
    #[error("queue number {0}, not 0, 1 or 2")]
    QueueNumber(u32),
    /// The RDMAP version is not 1.
    #[error("RDMAP version {0}, not 1")]
    RdmapVersion(u8),
    /// The opcode is 8 or above, which RFC 5040 reserves.
    #[error("reserved RDMAP opcode {0}")]
    Opcode(u8),
    /// The segment is tagged, but its opcode belongs to untagged messages.
    #[error("a tagged segment of opcode {0:?}")]
    MustBeUntagged(Opcode),
    /// The segment is untagged, but its opcode belongs to tagged messages.
    #[error("an untagged segment of opcode {0:?}")]
    MustBeTagged(Opcode),
    /// The segment is on the queue of another opcode.
    #[error("a segment of opcode {opcode:?} on queue {queue}")]
    Queue {
        /// Opcode of the segment.
        opcode: Opcode,
        /// Its queue number.
        queue: u32,
    },
    /// The payload of a Read Request has the wrong length.
    #[error("a Read Request of {0} bytes, not 28")]
    ReadRequestLength(usize),
}

impl SegmentError {
    /// Returns what a Terminate that answers this error says.
    pub const fn cause(self) -> Cause {
        match self {
            // No RFC assigns a code to a ULPDU that is shorter than its headers. The code for a wrong
            // length field fits best, and siw sends it too.
            Self::Truncated { .. } => Cause::MpaMarkerAndLength,
            Self::TaggedDdpVersion(_) => Cause::TaggedVersion,
            Self::UntaggedDdpVersion(_) => Cause::UntaggedVersion,
            Self::QueueNumber(_) | Self::Queue { .. } => Cause::UntaggedQueueNumber,
            Self::RdmapVersion(_) => Cause::OperationVersion,
            Self::Opcode(_) | Self::MustBeUntagged(_) | Self::MustBeTagged(_) => {
                Cause::OperationOpcode
            }
            Self::ReadRequestLength(_) => Cause::OperationUnspecified,
        }
    }
}

const CONTROL_BYTES: usize = 2;
const VERSION: u16 = 0x00c0;
const VERSION_SHIFT: u32 = 6;
const OPCODE: u16 = 0x000f;

/// Decodes the headers of a ULPDU that is complete, and returns them with the range of the payload.
///
/// # Errors
/// Returns [`SegmentError`], as [`decode_segment_start`] does.
pub fn decode_segment(ulpdu: &[u8]) -> Result<(Segment, Range<usize>), SegmentError> {
    match decode_segment_start(ulpdu.len(), ulpdu)? {
        SegmentStart::Complete { segment, header_bytes } => {
            Ok((segment, header_bytes..ulpdu.len()))
        }
        SegmentStart::Incomplete { needed } => {
            Err(SegmentError::Truncated { needed, found: ulpdu.len() })
        }
    }
}

//= RFC 5041 section 4.1: the version of DDP is 1, and reserved bits are ignored
//= RFC 5040 section 4.1: the version of RDMAP is 1, and reserved bits are ignored
//= RFC 5040 section 4.1: opcodes from 8 on are reserved
/// Decodes the headers of a ULPDU of `ulpdu_length` bytes, of which the bytes `start` have arrived.
/// Use it to place payload before the rest of the ULPDU arrives.
///
/// # Errors
/// Returns [`SegmentError`] if the ULPDU is too short for its headers, if a version is not 1, if
/// the queue number or the opcode is none of RDMAP, or if the opcode belongs to the other kind of
/// segment or to another queue. Faults of DDP are reported before faults of RDMAP.
pub fn decode_segment_start(
    ulpdu_length: usize,
    start: &[u8],
) -> Result<SegmentStart, SegmentError> {
    let truncated = |needed| SegmentError::Truncated { needed, found: ulpdu_length };
    if ulpdu_length < CONTROL_BYTES {
        return Err(truncated(CONTROL_BYTES));
    }
    let Some(control) = u16_at(start, 0) else {
        return Ok(SegmentStart::Incomplete { needed: CONTROL_BYTES });
    };
    let is_tagged = control & ddp::TAGGED != 0;
    let ddp_version = ((control & ddp::VERSION) >> ddp::VERSION_SHIFT) as u8;
    if ddp_version != DDP_VERSION {
        return Err(if is_tagged {
            SegmentError::TaggedDdpVersion(ddp_version)
        } else {
            SegmentError::UntaggedDdpVersion(ddp_version)
        });
    }
    let header_bytes = if is_tagged { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES };
    if ulpdu_length < header_bytes {
        return Err(truncated(header_bytes));
    }
    let last = control & ddp::LAST != 0;
    let ddp = if is_tagged { tagged(start, last) } else { untagged(start, last)? };
    let Some(ddp) = ddp else {
        return Ok(SegmentStart::Incomplete { needed: header_bytes });
    };
    let rdmap_version = ((control & VERSION) >> VERSION_SHIFT) as u8;
    if rdmap_version != RDMAP_VERSION {
        return Err(SegmentError::RdmapVersion(rdmap_version));
    }
    let number = (control & OPCODE) as u8;
    let opcode = Opcode::from_number(number).ok_or(SegmentError::Opcode(number))?;
    check_opcode(opcode, ddp)?;
    let segment = Segment { ddp, opcode, reserved: control & Segment::RESERVED };
    Ok(SegmentStart::Complete { segment, header_bytes })
}

fn tagged(start: &[u8], last: bool) -> Option<DdpHeader> {
    let (stag, offset) = u32_at(start, 2).zip(u64_at(start, 6))?;
    Some(DdpHeader::Tagged { last, stag: Stag(stag), offset })
}

fn untagged(start: &[u8], last: bool) -> Result<Option<DdpHeader>, SegmentError> {
    let Some(number) = u32_at(start, 6) else { return Ok(None) };
    let queue = QueueNumber::from_number(number).ok_or(SegmentError::QueueNumber(number))?;
    let fields = u32_at(start, 2).zip(u32_at(start, 10)).zip(u32_at(start, 14));
    Ok(fields.map(|((upper_layer, msn), mo)| DdpHeader::Untagged {
        last,
        queue,
        msn,
        mo,
        upper_layer,
    }))
}

//= RFC 5040 section 4.1: an opcode belongs to tagged segments, or to one queue
/// Checks that the opcode belongs to the kind of the segment and to its queue.
fn check_opcode(opcode: Opcode, ddp: DdpHeader) -> Result<(), SegmentError> {
    match (opcode.queue(), ddp) {
        (None, DdpHeader::Tagged { .. }) => Ok(()),
        (None, DdpHeader::Untagged { .. }) => Err(SegmentError::MustBeTagged(opcode)),
        (Some(_), DdpHeader::Tagged { .. }) => Err(SegmentError::MustBeUntagged(opcode)),
        (Some(own), DdpHeader::Untagged { queue, .. }) if own == queue => Ok(()),
        (Some(_), DdpHeader::Untagged { queue, .. }) => {
            Err(SegmentError::Queue { opcode, queue: queue.number() })
        }
    }
}

/// Length of the payload of a Read Request in bytes.
pub const READ_REQUEST_BYTES: usize = 28;

/// The payload of a Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ReadRequest {
    /// The requester's buffer, into which the answer is written.
    pub sink_stag: Stag,
    /// Tagged offset of the first byte to write there.
    pub sink_offset: u64,
    /// Number of bytes to read.
    pub size: u32,
    /// The responder's buffer.
    pub source_stag: Stag,
    /// Tagged offset of the first byte to read there.
    pub source_offset: u64,
}

impl ReadRequest {
    //= RFC 5040 section 4.4: a Read Request names the sink, the size and the source
    /// Encodes the payload of a Read Request.
    pub fn encode(&self) -> [u8; READ_REQUEST_BYTES] {
        let mut bytes = [0; READ_REQUEST_BYTES];
        let mut payload = Appender::new(&mut bytes);
        payload.put(&self.sink_stag.0.to_be_bytes());
        payload.put(&self.sink_offset.to_be_bytes());
        payload.put(&self.size.to_be_bytes());
        payload.put(&self.source_stag.0.to_be_bytes());
        payload.put(&self.source_offset.to_be_bytes());
        bytes
    }

    /// Decodes the payload of a Read Request.
    ///
    /// # Errors
    /// Returns [`SegmentError::ReadRequestLength`] if the payload does not have 28 bytes.
    pub fn decode(payload: &[u8]) -> Result<Self, SegmentError> {
        let length = payload.len();
        let words = u32_at(payload, 0).zip(u32_at(payload, 12)).zip(u32_at(payload, 16));
        let offsets = u64_at(payload, 4).zip(u64_at(payload, 20));
        let fields = words.zip(offsets).filter(|_| length == READ_REQUEST_BYTES);
        let Some((((sink_stag, size), source_stag), (sink_offset, source_offset))) = fields else {
            return Err(SegmentError::ReadRequestLength(length));
        };
        Ok(Self {
            sink_stag: Stag(sink_stag),
            sink_offset,
            size,
            source_stag: Stag(source_stag),
            source_offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate::{queue, read_request, segment};

    fn encoded(segment: &Segment) -> Vec<u8> {
        let mut out = [0; SEGMENT_HEADER_BYTES_MAX];
        let length = segment.encode(&mut out);
        out[..length].to_vec()
    }

    /// Returns the error of decoding headers whose control field has these bits.
    fn error_of(control: u16, queue: u32) -> SegmentError {
        let mut bytes = [0; SEGMENT_HEADER_BYTES_MAX];
        bytes[..2].copy_from_slice(&control.to_be_bytes());
        bytes[6..10].copy_from_slice(&queue.to_be_bytes());
        decode_segment(&bytes).unwrap_err()
    }

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(segment in segment(), payload in 0..40_usize) {
            let mut ulpdu = encoded(&segment);
            let header_bytes = ulpdu.len();
            prop_assert_eq!(header_bytes, segment.encoded_bytes());
            ulpdu.resize(header_bytes + payload, 0xaa);
            prop_assert_eq!(decode_segment(&ulpdu), Ok((segment, header_bytes..ulpdu.len())));
        }

        #[test]
        fn every_start_of_headers_is_incomplete(segment in segment(), length in 18..70_000_usize) {
            let bytes = encoded(&segment);
            for count in 0..bytes.len() {
                let start = decode_segment_start(length, &bytes[..count]);
                let Ok(SegmentStart::Incomplete { needed }) = start else {
                    return Err(TestCaseError::fail("the start of headers is complete or wrong"));
                };
                prop_assert!(needed > count && needed <= bytes.len());
            }
            let complete = SegmentStart::Complete { segment, header_bytes: bytes.len() };
            prop_assert_eq!(decode_segment_start(length, &bytes), Ok(complete));
        }

        #[test]
        fn a_ulpdu_shorter_than_its_headers_is_refused(segment in segment()) {
            let bytes = encoded(&segment);
            for found in 0..bytes.len() {
                let needed = if found < CONTROL_BYTES { CONTROL_BYTES } else { bytes.len() };
                let error = SegmentError::Truncated { needed, found };
                prop_assert_eq!(decode_segment(&bytes[..found]), Err(error));
                prop_assert_eq!(error.cause(), Cause::MpaMarkerAndLength);
            }
        }

        #[test]
        fn any_bytes_that_decode_encode_to_the_same_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 0..40),
            control in prop_oneof![any::<u16>(), (0..0x10_u16).prop_map(|low| low | 0x0140)],
            queue in 0..3_u32,
        ) {
            if bytes.len() >= 10 {
                bytes[..2].copy_from_slice(&control.to_be_bytes());
                bytes[6..10].copy_from_slice(&queue.to_be_bytes());
            }
            if let Ok((segment, payload)) = decode_segment(&bytes) {
                prop_assert_eq!(&encoded(&segment)[..], &bytes[..payload.start]);
            }
        }

        //= RFC 5040 section 4.1: an opcode belongs to tagged segments, or to one queue
        #[test]
        fn an_opcode_on_the_wrong_queue_is_refused(segment in segment(), queue in queue()) {
            let opcode = segment.opcode;
            prop_assume!(opcode.queue().is_some_and(|own| own != queue));
            let wrong = Segment::untagged(opcode, true, queue, 1, 0);
            let error = SegmentError::Queue { opcode, queue: queue.number() };
            prop_assert_eq!(decode_segment(&encoded(&wrong)), Err(error));
            prop_assert_eq!(error.cause(), Cause::UntaggedQueueNumber);
        }

        //= RFC 5040 section 4.4: a Read Request names the sink, the size and the source
        #[test]
        fn a_read_request_has_28_bytes(request in read_request(), length in 0..60_usize) {
            let mut bytes = request.encode().to_vec();
            prop_assert_eq!(ReadRequest::decode(&bytes), Ok(request));
            prop_assume!(length != READ_REQUEST_BYTES);
            bytes.resize(length, 0);
            let error = SegmentError::ReadRequestLength(length);
            prop_assert_eq!(ReadRequest::decode(&bytes), Err(error));
        }
    }

    //= RFC 5041 section 4.1: the version of DDP is 1, and reserved bits are ignored
    #[test]
    fn only_version_1_of_ddp_is_accepted() {
        for version in [0, 2, 3] {
            let control = 0x4043 | version << 8;
            let error = SegmentError::UntaggedDdpVersion(version as u8);
            assert_eq!(error_of(control, 0), error);
            assert_eq!(error.cause(), Cause::UntaggedVersion);
            let error = SegmentError::TaggedDdpVersion(version as u8);
            assert_eq!(error_of(control | 0x8000, 0), error);
            assert_eq!(error.cause(), Cause::TaggedVersion);
        }
        let reserved = Segment { reserved: Segment::RESERVED, ..send() };
        assert_eq!(encoded(&reserved)[..2], [0x7d, 0x73]);
        assert_eq!(decode_segment(&encoded(&reserved)), Ok((reserved, 18..18)));
    }

    //= RFC 5040 section 4.1: the version of RDMAP is 1, and reserved bits are ignored
    //= RFC 5040 section 4.1: opcodes from 8 on are reserved
    #[test]
    fn only_version_1_and_the_opcodes_of_rdmap_are_accepted() {
        for version in [0, 2, 3] {
            let error = SegmentError::RdmapVersion(version as u8);
            assert_eq!(error_of(0x4103 | version << 6, 0), error);
            assert_eq!(error.cause(), Cause::OperationVersion);
        }
        for opcode in 8..16 {
            let error = SegmentError::Opcode(opcode as u8);
            assert_eq!(error_of(0x4140 | opcode, 0), error);
            assert_eq!(error.cause(), Cause::OperationOpcode);
        }
    }

    //= RFC 5040 section 4.1: an opcode belongs to tagged segments, or to one queue
    #[test]
    fn an_opcode_of_the_other_kind_of_segment_is_refused() {
        for opcode in Opcode::ALL {
            let control = 0x4140 | u16::from(opcode.number());
            let error = match opcode.queue() {
                Some(_) => error_of(control | 0x8000, 0),
                None => error_of(control, 0),
            };
            let expected = match opcode.queue() {
                Some(_) => SegmentError::MustBeUntagged(opcode),
                None => SegmentError::MustBeTagged(opcode),
            };
            assert_eq!(error, expected);
            assert_eq!(error.cause(), Cause::OperationOpcode);
        }
        assert_eq!(error_of(0x4143, 3), SegmentError::QueueNumber(3));
        assert_eq!(error_of(0x4143, 3).cause(), Cause::UntaggedQueueNumber);
    }

    #[test]
    fn a_fault_of_ddp_is_reported_before_a_fault_of_rdmap() {
        assert_eq!(error_of(0x400f, 9), SegmentError::UntaggedDdpVersion(0));
        assert_eq!(error_of(0x418f, 9), SegmentError::QueueNumber(9));
        assert_eq!(error_of(0x418f, 0), SegmentError::RdmapVersion(2));
    }

    #[test]
    fn the_control_fields_are_those_that_siw_sends() {
        let stag = Stag(1);
        let queue = QueueNumber::ReadRequest;
        for (segment, control) in [
            (Segment::tagged(Opcode::Write, true, stag, 0), 0xc140_u16),
            (Segment::tagged(Opcode::Write, false, stag, 0), 0x8140),
            (Segment::tagged(Opcode::ReadResponse, true, stag, 0), 0xc142),
            (Segment::untagged(Opcode::ReadRequest, true, queue, 1, 0), 0x4141),
            (send(), 0x4143),
        ] {
            assert_eq!(encoded(&segment)[..2], control.to_be_bytes());
        }
    }

    #[test]
    fn only_sends_with_invalidate_name_an_stag_to_invalidate() {
        for opcode in Opcode::ALL {
            let Some(queue) = opcode.queue() else { continue };
            let upper_layer = 0x1234;
            let ddp = DdpHeader::Untagged { last: true, queue, msn: 1, mo: 0, upper_layer };
            let segment = Segment { ddp, opcode, reserved: 0 };
            let expected = [Opcode::SendInvalidate, Opcode::SendSolicitedInvalidate]
                .contains(&opcode)
                .then_some(Stag(upper_layer));
            assert_eq!(segment.invalidate_stag(), expected);
        }
    }

    fn send() -> Segment {
        Segment::untagged(Opcode::Send, true, QueueNumber::Send, 1, 0)
    }
}
