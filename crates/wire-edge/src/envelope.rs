//! The envelope of a frame on raw Ethernet. It contains the fields that UDP and IP add to a frame
//! in a UDP datagram.

use crate::error::DecodeError;
use crate::fields::{self, Field, Layout, layout_end};
use crate::octets::{get, put};

/// Size of an envelope in bytes. The envelope stands between the `EtherType` and the frame.
pub const ENVELOPE_BYTES: usize = layout_end(Layout::Envelope);

/// The default `EtherType`: the first of those that IEEE 802 reserves for local experiments.
pub const ETHERTYPE_DEFAULT: u16 = 0x88b5;

/// The content of an envelope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum EnvelopeKind {
    /// An edge frame.
    Frame = 1,
    /// A message without content. Asks by broadcast which station has an endpoint at the
    /// destination port.
    Discover = 2,
    /// A message without content. Answers a Discover. The answer goes to the station and port that
    /// sent the Discover.
    Here = 3,
}

/// The start of every edge frame and message on raw Ethernet.
///
/// An Ethernet header does not contain the length of a short frame, which the sender pads, and does
/// not name an endpoint of the host. Frames on virtual Ethernet have no check sequence. The
/// envelope adds a length, two ports and a checksum.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Envelope {
    /// The kind of the content.
    pub kind: EnvelopeKind,
    /// Length of the content in bytes, without padding.
    pub length: u16,
    /// Port of the endpoint on the receiving host.
    pub destination_port: u16,
    /// Port of the endpoint on the sending host.
    pub source_port: u16,
    /// CRC-32C (RFC 3720, appendix B.4) of the first eight bytes of the envelope and of the
    /// content.
    pub checksum: u32,
}

/// Number of bytes of an envelope that the checksum covers: all bytes before the checksum.
pub const ENVELOPE_BYTES_COVERED: usize = fields::ENVELOPE_CHECKSUM.offset;

impl Envelope {
    /// Encodes the envelope.
    #[inline]
    pub fn encode(&self) -> [u8; ENVELOPE_BYTES] {
        let mut bytes = [0; ENVELOPE_BYTES];
        put!(&mut bytes, fields::ENVELOPE_VERSION, [VERSION]);
        put!(&mut bytes, fields::ENVELOPE_KIND, [self.kind as u8]);
        put!(&mut bytes, fields::ENVELOPE_LENGTH, self.length.to_le_bytes());
        put!(&mut bytes, fields::ENVELOPE_DESTINATION, self.destination_port.to_be_bytes());
        put!(&mut bytes, fields::ENVELOPE_SOURCE, self.source_port.to_be_bytes());
        put!(&mut bytes, fields::ENVELOPE_CHECKSUM, self.checksum.to_le_bytes());
        bytes
    }

    /// Decodes the bytes after the `EtherType`. Returns the envelope and its content, without
    /// padding. Does not verify the checksum.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes end too early, or if the version or kind is unknown.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((envelope, rest)) = bytes.split_first_chunk::<ENVELOPE_BYTES>() else {
            return Err(truncated(ENVELOPE_BYTES, bytes.len()));
        };
        let [version] = get!(envelope, fields::ENVELOPE_VERSION);
        if version != VERSION {
            return Err(out_of_range(fields::ENVELOPE_VERSION, version));
        }
        let kind = match get!(envelope, fields::ENVELOPE_KIND) {
            [1] => EnvelopeKind::Frame,
            [2] => EnvelopeKind::Discover,
            [3] => EnvelopeKind::Here,
            [other] => return Err(out_of_range(fields::ENVELOPE_KIND, other)),
        };
        let length = u16::from_le_bytes(get!(envelope, fields::ENVELOPE_LENGTH));
        let Some(content) = rest.get(..usize::from(length)) else {
            return Err(truncated(ENVELOPE_BYTES + usize::from(length), bytes.len()));
        };
        let envelope = Self {
            kind,
            length,
            destination_port: u16::from_be_bytes(get!(envelope, fields::ENVELOPE_DESTINATION)),
            source_port: u16::from_be_bytes(get!(envelope, fields::ENVELOPE_SOURCE)),
            checksum: u32::from_le_bytes(get!(envelope, fields::ENVELOPE_CHECKSUM)),
        };
        Ok((envelope, content))
    }
}

const fn truncated(needed: usize, found: usize) -> DecodeError {
    DecodeError::Truncated { part: "envelope with its content", needed, found }
}

const fn out_of_range(field: Field, value: u8) -> DecodeError {
    DecodeError::Range { field: field.name, value: value as u64 }
}

/// Version of the envelope.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding_whatever_padding_follows(
            kind in prop_oneof![
                Just(EnvelopeKind::Frame), Just(EnvelopeKind::Discover), Just(EnvelopeKind::Here)
            ],
            destination_port: u16, source_port: u16, checksum: u32,
            content in proptest::collection::vec(any::<u8>(), 0..80),
            padding in proptest::collection::vec(any::<u8>(), 0..46),
        ) {
            let length = content.len() as u16;
            let envelope = Envelope { kind, length, destination_port, source_port, checksum };
            let mut bytes = envelope.encode().to_vec();
            bytes.extend_from_slice(&content);
            bytes.extend_from_slice(&padding);
            prop_assert_eq!(Envelope::decode(&bytes), Ok((envelope, &content[..])));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            if let Ok((envelope, content)) = Envelope::decode(&bytes) {
                prop_assert_eq!(usize::from(envelope.length), content.len());
                prop_assert_eq!(&envelope.encode()[..], &bytes[..ENVELOPE_BYTES]);
            }
        }
    }

    #[test]
    fn a_truncated_content_is_refused() {
        let envelope = Envelope {
            kind: EnvelopeKind::Frame,
            length: 5,
            destination_port: 1,
            source_port: 2,
            checksum: 3,
        };
        let mut bytes = envelope.encode().to_vec();
        bytes.extend_from_slice(&[0; 4]);
        assert_eq!(Envelope::decode(&bytes), Err(truncated(17, 16)));
    }
}
