//! Datagrams: frames without a connection, from one queue pair to another queue pair or to a group
//! (protocol.md §10).

use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::flags::{Flags, Kind};
use crate::identity::{PeerAddr, QueuePairNumber};
use crate::octets::{get, put};

/// Number of bytes of a datagram before its payload.
pub const DATAGRAM_HEADER_BYTES: usize = layout_end(Layout::Datagram);
const _: () = assert!(DATAGRAM_HEADER_BYTES == 16);

/// The header of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Datagram {
    /// Queue pair number of the receiver.
    pub destination: QueuePairNumber,
    /// Queue pair number of the sender.
    pub source: QueuePairNumber,
    /// Queue key. The receiver accepts the datagram only if this key equals the receiver's queue
    /// key.
    pub key: u32,
    /// Immediate data, delivered with the completion.
    pub immediate: Option<u32>,
    /// Whether the completion wakes a waiting application.
    pub solicited: bool,
}

impl Datagram {
    //= protocol.md: frame.2
    /// Encodes the header.
    #[inline]
    pub fn encode(&self) -> [u8; DATAGRAM_HEADER_BYTES] {
        let solicited = Flags(Flags::SOLICITED.0 * u8::from(self.solicited));
        let immediate = Flags(Flags::IMMEDIATE.0 * u8::from(self.immediate.is_some()));
        let mut bytes = [0; DATAGRAM_HEADER_BYTES];
        put!(&mut bytes, fields::DATAGRAM_KIND, [Kind::Datagram as u8]);
        put!(&mut bytes, fields::DATAGRAM_FLAGS, [solicited.with(immediate).0]);
        put!(&mut bytes, fields::DATAGRAM_DESTINATION, self.destination.to_le_bytes());
        put!(&mut bytes, fields::DATAGRAM_SOURCE, self.source.to_le_bytes());
        put!(&mut bytes, fields::DATAGRAM_KEY, self.key.to_le_bytes());
        put!(&mut bytes, fields::DATAGRAM_IMMEDIATE, self.immediate.unwrap_or(0).to_le_bytes());
        bytes
    }
}

//= protocol.md: datagram.1
/// Decodes the header of a datagram. Returns the header and the payload after it. If the payload is
/// stored separately, `bytes` must end with the header.
///
/// # Errors
/// Returns [`DecodeError`] if the frame is malformed.
#[inline]
pub fn decode_datagram(bytes: &[u8]) -> Result<(Datagram, &[u8]), DecodeError> {
    let Some((header, payload)) = bytes.split_first_chunk::<DATAGRAM_HEADER_BYTES>() else {
        let (needed, found) = (DATAGRAM_HEADER_BYTES, bytes.len());
        return Err(DecodeError::Truncated { part: "header of a datagram", needed, found });
    };
    match Kind::from_first_byte(header[0])? {
        Kind::Datagram if header[0] >> 4 == 0 => {}
        Kind::Datagram => return Err(DecodeError::DatagramLink(header[0] >> 4)),
        other => return Err(DecodeError::NotDatagram(other)),
    }
    let flags = Flags(u8::from_le_bytes(get!(header, fields::DATAGRAM_FLAGS)));
    let immediate = u32::from_le_bytes(get!(header, fields::DATAGRAM_IMMEDIATE));
    let datagram = Datagram {
        destination: QueuePairNumber::from_le_bytes(get!(header, fields::DATAGRAM_DESTINATION)),
        source: QueuePairNumber::from_le_bytes(get!(header, fields::DATAGRAM_SOURCE)),
        key: u32::from_le_bytes(get!(header, fields::DATAGRAM_KEY)),
        immediate: flags.contains(Flags::IMMEDIATE).then_some(immediate),
        solicited: flags.contains(Flags::SOLICITED),
    };
    Ok((datagram, payload))
}

//= protocol.md: datagram.2
/// Returns the maximum payload of a datagram, in bytes, on a link with frames of at most
/// `frame_bytes_max` bytes.
pub const fn datagram_payload_max(frame_bytes_max: u16) -> u16 {
    let room = frame_bytes_max.saturating_sub(DATAGRAM_HEADER_BYTES as u16);
    match room {
        4096.. => 4096,
        2048.. => 2048,
        1024.. => 1024,
        512.. => 512,
        256.. => 256,
        less => less,
    }
}

/// Number of bytes before the payload in the receive of a datagram.
pub const ROUTE_HEADER_BYTES: usize = 40;

//= protocol.md: datagram.7
/// Returns the bytes before the payload in the receive of a datagram: the global route header of
/// `InfiniBand`, which has the layout of the IPv6 header.
pub fn route_header(from: PeerAddr, to: PeerAddr, payload_bytes: u16) -> [u8; ROUTE_HEADER_BYTES] {
    let mut bytes = [0; ROUTE_HEADER_BYTES];
    bytes[0] = 6 << 4;
    bytes[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
    bytes[6] = NEXT_HEADER;
    bytes[7] = HOP_LIMIT;
    bytes[8..24].copy_from_slice(&from.to_gid());
    bytes[24..].copy_from_slice(&to.to_gid());
    bytes
}

/// Next-header value of an `InfiniBand` packet (volume 1, 8.3).
const NEXT_HEADER: u8 = 0x1b;

/// The largest hop limit. This protocol does not count the routers on the route.
const HOP_LIMIT: u8 = 0xff;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{decode, peek, peek_prefix};
    use crate::generate::{datagram, mutations};
    use crate::identity::{ConnectionId, Epoch};

    proptest! {
        #[test]
        fn decode_returns_what_was_encoded(
            datagram in datagram(),
            payload in vec(any::<u8>(), 0..300),
        ) {
            let header = datagram.encode();
            let bytes = [&header[..], &payload[..]].concat();
            prop_assert_eq!(decode_datagram(&bytes), Ok((datagram, &payload[..])));
            prop_assert_eq!(peek(&bytes), Ok((Kind::Datagram, ConnectionId(0), Epoch(0))));
            prop_assert_eq!(decode(&bytes), Err(DecodeError::Datagram));
            prop_assert!(peek_prefix(&bytes).is_err());
            for length in 0..header.len() {
                let truncated =
                    matches!(decode_datagram(&header[..length]), Err(DecodeError::Truncated { .. }));
                prop_assert!(truncated, "{length} bytes");
            }
        }

        //= protocol.md: peer.2, datagram.1
        #[test]
        fn a_decoded_datagram_encodes_to_the_same_bytes(
            datagram in datagram(),
            mutations in mutations(),
            made_up in vec(any::<u8>(), 0..60),
        ) {
            let mut changed: Vec<u8> = datagram.encode().to_vec();
            for mutation in &mutations {
                mutation.apply(&mut changed);
            }
            for bytes in [changed, made_up] {
                let Ok((datagram, payload)) = decode_datagram(&bytes) else { continue };
                prop_assert_eq!(payload, &bytes[DATAGRAM_HEADER_BYTES..]);
                let again = datagram.encode();
                prop_assert_eq!(decode_datagram(&again), Ok((datagram, &[][..])));
            }
        }
    }

    //= protocol.md: datagram.1, frame.2
    #[test]
    fn a_datagram_has_the_documented_bytes() {
        let datagram = Datagram {
            destination: QueuePairNumber::new(0x0a_0b0c).unwrap(),
            source: QueuePairNumber::new(0x01_0203).unwrap(),
            key: 0x1122_3344,
            immediate: Some(0xdead_beef),
            solicited: true,
        };
        let bytes = [
            0x0a, 0x90, 0x0c, 0x0b, 0x0a, 0x03, 0x02, 0x01, 0x44, 0x33, 0x22, 0x11, 0xef, 0xbe,
            0xad, 0xde,
        ];
        assert_eq!(datagram.encode(), bytes);
        // Decoders ignore all other flags. If the flag of the immediate is not set, decoders also
        // ignore the bytes of the immediate.
        let mut odd = bytes;
        odd[1] = 0x6f;
        let plain = Datagram { immediate: None, solicited: false, ..datagram };
        assert_eq!(decode_datagram(&odd), Ok((plain, &[][..])));
    }

    //= protocol.md: datagram.1
    #[test]
    fn other_frames_and_link_indices_are_refused() {
        assert_eq!(decode_datagram(&[0x1a; 16]), Err(DecodeError::DatagramLink(1)));
        assert_eq!(decode_datagram(&[3; 16]), Err(DecodeError::NotDatagram(Kind::Write)));
        assert_eq!(decode_datagram(&[0x0f; 16]), Err(DecodeError::Kind(0x0f)));
    }

    //= protocol.md: datagram.2
    #[test]
    fn the_datagram_size_is_the_largest_infiniband_mtu_that_the_link_carries() {
        for (frame_bytes, payload) in [
            (1472, 1024),
            (1452, 1024),
            (4111, 2048),
            (4112, 4096),
            (8972, 4096),
            (256, 240),
            (9, 0),
        ] {
            assert_eq!(datagram_payload_max(frame_bytes), payload, "{frame_bytes}");
        }
    }

    //= protocol.md: datagram.7
    #[test]
    fn a_route_header_names_both_ends() {
        let v4 = PeerAddr::from(core::net::SocketAddr::from(([10, 1, 2, 3], 7)));
        let v6: core::net::SocketAddr = "[2001:db8::9]:7".parse().unwrap();
        let header = route_header(v4, PeerAddr::from(v6), 0x0102);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 1, 2, 0x1b, 0xff]);
        assert_eq!(header[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(header[24..], [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let station = PeerAddr::mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55], 1);
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55];
        assert_eq!(station.to_gid(), local);
        let shared = PeerAddr::shared_memory(1, 0x0102_0304_0506_0708);
        assert_eq!(shared.to_gid(), [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_number_of_more_than_24_bits_names_no_queue_pair() {
        assert_eq!(QueuePairNumber::new(0x00ff_ffff), Some(QueuePairNumber::GROUP));
        assert_eq!(QueuePairNumber::new(0x0100_0000), None);
    }
}
