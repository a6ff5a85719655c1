//! Decodes arbitrary bytes as a datagram. Decoding must not panic. Encoding and decoding an
//! accepted datagram must give the same datagram.

use wire_edge::{DATAGRAM_HEADER_BYTES, Kind, decode, decode_datagram, peek};

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let Ok((datagram, payload)) = decode_datagram(bytes) else { return };
    assert_eq!(peek(bytes).map(|(kind, ..)| kind), Ok(Kind::Datagram));
    assert!(decode(bytes).is_err());
    assert_eq!(payload, &bytes[DATAGRAM_HEADER_BYTES..]);
    assert_eq!(decode_datagram(&datagram.encode()), Ok((datagram, &[][..])));
}
