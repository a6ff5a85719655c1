//! Redirect ports. Peers ask a redirect port for services, and the port answers with the address of
//! another endpoint and the number of the service there.

use delivery::{Instant, RateLimiter};
use wire_edge::{
    ConnectionId, DecodeError, Handshake, HandshakeFrame, MOVED_BYTES, Moved, PeerAddr, Preamble,
    RejectReason, VERSION, decode_handshake, preamble,
};

/// A redirect port. Peers ask it for services, and the port answers with the address of another
/// endpoint and the number of the service there.
///
/// A redirect port stores nothing about peers and their connections. Established connections do not
/// use the port.
#[derive(Debug)]
pub struct RedirectPort {
    /// The services, each with the endpoint and number to which it has moved.
    moved: Vec<(u32, Moved)>,
    answers: RateLimiter,
}

/// Bytes of the longest answer.
pub const REDIRECT_ANSWER_BYTES_MAX: usize = PREAMBLE_BYTES + REJECT_BYTES + MOVED_BYTES;

impl RedirectPort {
    /// Creates a redirect port. `moved` contains the services, each with the endpoint and number to
    /// which it has moved.
    pub fn new(moved: Vec<(u32, Moved)>) -> Self {
        // These are the limits of an endpoint: protocol.md §4.2.
        Self { moved, answers: RateLimiter::new(40_000, 8000) }
    }

    //= protocol.md: moved.3, amplify.1, amplify.2, amplify.3
    /// Answers a frame from the address `from`. Writes the answer to the start of `out`, and
    /// returns the bytes of the answer. Returns `None` if there is no answer.
    pub fn answer(
        &mut self,
        now: Instant,
        from: PeerAddr,
        frame: &[u8],
        out: &mut [u8; REDIRECT_ANSWER_BYTES_MAX],
    ) -> Option<usize> {
        if from.is_group() {
            return None;
        }
        let Preamble { source, step, .. } = preamble(frame).ok()?;
        let moved;
        let body = match decode_handshake(frame) {
            Ok(HandshakeFrame { body: Handshake::Hello { parameters, .. }, .. }) => {
                let service = parameters.service;
                match self.moved.iter().find(|(asked, _)| *asked == service) {
                    Some((_, place)) => {
                        moved = place.encode();
                        Handshake::Reject { reason: RejectReason::Moved, private_data: &moved }
                    }
                    None => {
                        Handshake::Reject { reason: RejectReason::NoListener, private_data: &[] }
                    }
                }
            }
            Err(DecodeError::Version(_)) if step == HELLO => {
                Handshake::VersionMismatch { lowest: VERSION, highest: VERSION }
            }
            _ => return None,
        };
        if !self.answers.allow(now) {
            return None;
        }
        let (version, none) = (VERSION, ConnectionId(0));
        let answer = HandshakeFrame { version, destination: source, source: none, body };
        Some(answer.encode(out))
    }
}

/// The value of the step field of a Hello. The value is the same in all versions of the protocol.
const HELLO: u8 = 1;

const PREAMBLE_BYTES: usize = 16;
const REJECT_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use wire_edge::{Addresses, Epoch, Features, HANDSHAKE_BYTES_MAX, MessageNumber, Parameters};

    use super::*;

    fn ip(text: &str) -> PeerAddr {
        PeerAddr::from(text.parse::<SocketAddr>().expect("a literal address"))
    }

    fn hello(version: u16, service: u32) -> Vec<u8> {
        let parameters = Parameters {
            incarnation: 1,
            features: Features::NONE,
            epoch: Epoch(2),
            links_max: 1,
            frame_bytes_max: 1472,
            read_depth: 1,
            operation_window: 16,
            order_pool_bytes: 0,
            receive_buffer_bytes: 0,
            ack_delay_max_ns: 0,
            receive_credit: MessageNumber(0),
            service,
        };
        let (addresses, cookie) = (Addresses::NONE, [0; 24]);
        let body = Handshake::Hello { parameters, cookie, addresses, private_data: b"who" };
        encoded(version, body)
    }

    fn encoded(version: u16, body: Handshake<'_>) -> Vec<u8> {
        let (destination, source) = (ConnectionId(0), ConnectionId(77));
        let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
        let len = HandshakeFrame { version, destination, source, body }.encode(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// Returns the answer of a redirect port to a frame, at a time when the rate limit allows an
    /// answer. Returns `None` if the port does not answer.
    fn said(
        redirect_port: &mut RedirectPort,
        from: &str,
        frame: &[u8],
    ) -> Option<(u32, RejectReason, Vec<u8>)> {
        let mut out = [0; REDIRECT_ANSWER_BYTES_MAX];
        let len = redirect_port.answer(Instant(1_000_000_000), ip(from), frame, &mut out)?;
        assert!(len <= frame.len(), "no answer is longer than its cause");
        let decoded = decode_handshake(&out[..len]).expect("a frame");
        let Handshake::Reject { reason, private_data } = decoded.body else { return None };
        Some((decoded.destination.0, reason, private_data.to_vec()))
    }

    //= protocol.md: moved.3
    #[test]
    fn a_redirect_port_redirects_known_services_and_rejects_unknown_ones() {
        let moved = Moved { address: ip("10.0.0.9:61440"), service: 8 };
        let mut redirect_port = RedirectPort::new(vec![(7, moved)]);
        let there = Some((77, RejectReason::Moved, moved.encode().to_vec()));
        assert_eq!(said(&mut redirect_port, "10.0.0.1:5", &hello(1, 7)), there);
        let no_listener = Some((77, RejectReason::NoListener, Vec::new()));
        assert_eq!(said(&mut redirect_port, "10.0.0.1:5", &hello(1, 8)), no_listener);
        let mut out = [0; REDIRECT_ANSWER_BYTES_MAX];
        let now = Instant(1_000_000_000);
        let len = redirect_port.answer(now, ip("10.0.0.1:5"), &hello(2, 7), &mut out);
        let decoded = decode_handshake(&out[..len.expect("an answer")]).expect("a frame");
        assert_eq!(decoded.body, Handshake::VersionMismatch { lowest: 1, highest: 1 });
    }

    //= protocol.md: moved.3, amplify.2, amplify.3, amplify.4
    #[test]
    fn a_redirect_port_answers_only_hellos_of_unicast_addresses_within_its_rate() {
        let mut redirect_port =
            RedirectPort::new(vec![(7, Moved { address: ip("0.0.0.0:1"), service: 7 })]);
        let reject = Handshake::Reject { reason: RejectReason::Moved, private_data: &[] };
        for frame in [encoded(1, Handshake::Pending), encoded(1, reject), encoded(2, reject)] {
            assert_eq!(said(&mut redirect_port, "10.0.0.1:5", &frame), None);
        }
        assert_eq!(said(&mut redirect_port, "10.0.0.1:5", &[3; 200]), None);
        assert_eq!(said(&mut redirect_port, "10.0.0.1:5", &hello(1, 7)[..60]), None);
        assert_eq!(said(&mut redirect_port, "224.0.0.1:5", &hello(1, 7)), None);
        let answered =
            (0..10_000).filter(|_| said(&mut redirect_port, "10.0.0.1:5", &hello(1, 7)).is_some());
        assert_eq!(answered.count(), 8000);
    }
}
