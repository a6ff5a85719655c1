//! The segment because of which a stream has ended, for messages to people.

use std::fmt;

use wire_iwarp::{
    DdpHeader, SEGMENT_HEADER_BYTES_MAX, Segment, SegmentStart, Stag, decode_segment_start,
};

/// The segment of the peer because of which a stream has ended. It is displayed with its opcode and
/// the fields of its headers, or with their bytes if they cannot be decoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlamedSegment {
    /// The first bytes of the ULPDU.
    header: [u8; SEGMENT_HEADER_BYTES_MAX],
    /// Number of the bytes in `header` that the ULPDU has.
    known: u8,
    /// Length of the ULPDU in bytes.
    length: u16,
}

impl BlamedSegment {
    /// Returns the segment with this length whose ULPDU begins with these bytes, or `None` if none
    /// of the bytes is known.
    pub(crate) fn new(ulpdu: &[u8], length: u16) -> Option<Self> {
        let known = ulpdu.len().min(SEGMENT_HEADER_BYTES_MAX);
        let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
        header.get_mut(..known)?.copy_from_slice(ulpdu.get(..known)?);
        (known > 0).then_some(Self { header, known: known as u8, length })
    }

    fn bytes(&self) -> &[u8] {
        self.header.get(..usize::from(self.known)).unwrap_or_default()
    }
}

impl fmt::Display for BlamedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = usize::from(self.length);
        if let Ok(SegmentStart::Complete { segment, header_bytes }) =
            decode_segment_start(length, self.bytes())
        {
            let payload = length.saturating_sub(header_bytes);
            return show(f, &segment, payload);
        }
        write!(f, "segment of {length} bytes that begins with")?;
        self.bytes().iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

fn show(f: &mut fmt::Formatter<'_>, segment: &Segment, payload: usize) -> fmt::Result {
    write!(f, "{:?} segment with {payload} bytes of payload", segment.opcode)?;
    match segment.ddp {
        DdpHeader::Tagged { stag: Stag(stag), offset, .. } => {
            write!(f, ", STag {stag:#010x}, offset {offset:#x}")?;
        }
        DdpHeader::Untagged { msn, mo, .. } => write!(f, ", MSN {msn}, MO {mo}")?,
    }
    if let Some(Stag(stag)) = segment.invalidate_stag() {
        write!(f, ", invalidates STag {stag:#010x}")?;
    }
    if segment.ddp.is_last() { f.write_str(", the last of its message") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use wire_iwarp::{Opcode, QueueNumber};

    use super::*;

    fn shown(segment: &Segment, payload: u16) -> String {
        let mut bytes = [0; SEGMENT_HEADER_BYTES_MAX];
        let length = segment.encode(&mut bytes);
        let blamed = BlamedSegment::new(&bytes[..length], length as u16 + payload);
        blamed.expect("it has bytes").to_string()
    }

    #[test]
    fn a_segment_is_shown_with_its_fields() {
        let write = Segment::tagged(Opcode::Write, false, Stag(0x1234), 0xff00);
        assert_eq!(
            shown(&write, 1444),
            "Write segment with 1444 bytes of payload, STag 0x00001234, offset 0xff00"
        );
        let send = Segment::untagged(Opcode::Send, true, QueueNumber::Send, 7, 0);
        assert_eq!(
            shown(&send, 12),
            "Send segment with 12 bytes of payload, MSN 7, MO 0, the last of its message"
        );
    }

    #[test]
    fn a_segment_that_cannot_be_decoded_is_shown_as_bytes() {
        let blamed = BlamedSegment::new(&[0xff, 1], 2).expect("it has bytes");
        assert_eq!(blamed.to_string(), "segment of 2 bytes that begins with ff 01");
        assert_eq!(BlamedSegment::new(&[], 0), None);
    }
}
