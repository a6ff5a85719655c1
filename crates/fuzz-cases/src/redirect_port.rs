//! Passes arbitrary bytes to a redirect port as a datagram. The port must not panic. Its answers
//! must be well-formed and no longer than protocol.md §4.5 permits.

use delivery::Instant;
use engine::{REDIRECT_ANSWER_BYTES_MAX, RedirectPort};
use wire_edge::{Moved, PeerAddr, decode_handshake};

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let address = PeerAddr::mac([2, 0, 0, 0, 0, 1], 7);
    let mut redirect_port = RedirectPort::new(vec![(0, Moved { address, service: 1 })]);
    let mut out = [0; REDIRECT_ANSWER_BYTES_MAX];
    let now = Instant(1_000_000_000);
    let Some(len) = redirect_port.answer(now, address, bytes, &mut out) else { return };
    let answer = &out[..len];
    let factor = if bytes.len() < 20 { 2 } else { 1 };
    assert!(len <= factor * bytes.len(), "protocol.md 4.5");
    assert!(decode_handshake(answer).is_ok());
    // A redirect port must not answer an answer. Otherwise two redirect ports could exchange
    // datagrams forever.
    assert_eq!(
        redirect_port.answer(now, address, answer, &mut [0; REDIRECT_ANSWER_BYTES_MAX]),
        None
    );
}
