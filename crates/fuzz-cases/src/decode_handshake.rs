//! Decodes arbitrary bytes as a handshake frame. Decoding must not panic. Encoding and decoding an
//! accepted frame must give the same frame.

use wire_edge::{HANDSHAKE_BYTES_MAX, decode_handshake, preamble};

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let preamble = preamble(bytes);
    let Ok(frame) = decode_handshake(bytes) else { return };
    assert_eq!(preamble.map(|preamble| preamble.source), Ok(frame.source));
    let mut out = [0; HANDSHAKE_BYTES_MAX];
    let length = frame.encode(&mut out);
    assert_eq!(length, bytes.len());
    assert_eq!(decode_handshake(&out[..length]), Ok(frame));
}
